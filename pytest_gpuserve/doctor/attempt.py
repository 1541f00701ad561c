"""Reading what may fail in ways that nobody has thought of."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from pytest_gpuserve.errors import GpuserveError

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")


def attempt(unknown: dict[str, str], what: str, read: Callable[[], _T]) -> _T | None:
    """Read something, or keep why it cannot be read.

    Args:
        unknown: Where the reason goes.
        what: Its name there.
        read: Reads it.

    Raises:
        GpuserveError: The user can mend it, and is to hear how.
    """
    try:
        return read()
    except GpuserveError:
        raise
    except OSError as problem:
        unknown[what] = str(problem)
    except Exception as problem:  # noqa: BLE001 -- whatever a strange machine does to one reader, the rest is still told
        unknown[what] = f"{type(problem).__name__}: {problem}"
    return None


def words(problem: GpuserveError) -> tuple[str, str]:
    """What an error says, and what helps, each on a line."""
    told = f"{problem.summary} Found: {problem.found}" if problem.found else problem.summary
    return told, "; or ".join(problem.remedies)
