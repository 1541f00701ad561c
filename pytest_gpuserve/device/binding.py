"""Calls of NVIDIA's management library (NVML), of which each may fail or be unsupported."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar, final

from pytest_gpuserve.device.card import UNSUPPORTED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

_T = TypeVar("_T")


class Unreadable(Exception):
    """A fact without which a card cannot be named or compared; its text says which, and what NVML said."""


@contextmanager
def opened(pynvml: ModuleType) -> Iterator[None]:
    """Initialise the library, and shut it down at the end.

    Raises:
        pynvml.NVMLError: It cannot be initialised.
    """
    pynvml.nvmlInit()
    try:
        yield
    finally:
        # All has been read by then.
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


@final
class Reader:
    """Calls functions of the binding, and keeps why one gave nothing.

    Args:
        pynvml: The binding.
    """

    def __init__(self, pynvml: ModuleType) -> None:
        self.pynvml = pynvml
        self.unknown: dict[str, str] = {}

    def required(self, what: str, read: Callable[..., _T], *arguments: object) -> _T:
        """Read what there must be.

        Args:
            what: The fact, for people.
            read: A function of the binding.
            arguments: Its arguments.

        Raises:
            Unreadable: It gives nothing.
        """
        try:
            return read(*arguments)
        except (self.pynvml.NVMLError, UnicodeDecodeError) as error:
            raise Unreadable(f"{what} cannot be read; {self.said(error)}") from error

    def supported(self, what: str, read: Callable[..., _T], *arguments: object) -> _T | None:
        """Read what not every card has; None is that it has none.

        Raises:
            Unreadable: It cannot be told whether the card has it.
        """
        try:
            return read(*arguments)
        except (self.pynvml.NVMLError, UnicodeDecodeError) as error:
            if self._is_unsupported(error):
                return None
            raise Unreadable(f"{what} cannot be read; {self.said(error)}") from error

    def optional(self, field: str, read: Callable[..., _T], *arguments: object) -> _T | None:
        """Read what may stay unknown.

        Args:
            field: Under which the reason is kept if so.
            read: A function of the binding.
            arguments: Its arguments.
        """
        try:
            return read(*arguments)
        except (self.pynvml.NVMLError, UnicodeDecodeError) as error:
            self.unknown[field] = UNSUPPORTED if self._is_unsupported(error) else self.said(error)
            return None

    def said(self, error: Exception) -> str:
        """What NVML said, in the library's words."""
        if isinstance(error, UnicodeDecodeError):
            return "NVML gave bytes that are no text"
        code = getattr(error, "value", self.pynvml.NVML_ERROR_UNKNOWN)
        # The binding's own table words some errors differently from the library, and people search for the library's.
        try:
            return f"NVML said: {self.pynvml.nvmlErrorString(code)}"
        except (self.pynvml.NVMLError, UnicodeDecodeError):
            return f"NVML said: {error}"

    def _is_unsupported(self, error: Exception) -> bool:
        # An older driver lacks the function altogether, and a newer one has given it up: the same for who asks.
        return getattr(error, "value", None) in {
            self.pynvml.NVML_ERROR_NOT_SUPPORTED,
            self.pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            self.pynvml.NVML_ERROR_DEPRECATED,
        }
