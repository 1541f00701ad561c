"""The texts of a run, made fit for a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pytest_gpuserve.report.names import printable

if TYPE_CHECKING:
    from collections.abc import Callable

UNKNOWN: Final = "not known"

LABEL_CHARACTERS: Final = 60
"""A longer text is cut where there is little room: on an axis, in a table's row."""

_KEPT: Final = frozenset("\n\t")
"""What is not printable, and still has its place in a text of several lines."""


class Texts:
    """Makes the texts of a run fit to be shown, each of them once.

    What is left may hold the signs of HTML: the page's template escapes them, and `figure.draw` does so for plots.
    """

    def __init__(self, shown: Callable[[str], str]) -> None:
        self._shown = shown
        self._blocks: dict[str, str] = {}

    def block(self, text: str) -> str:
        """Make a text of several lines visible: what is not printable stands there as an escape sequence."""
        known = self._blocks.get(text)
        if known is None:
            # Masked before anything else: a secret that is cut or escaped would not be found any more.
            known = self._blocks[text] = printable(self._shown(text), _KEPT)
        return known

    def line(self, text: str) -> str:
        """Make a text visible in one line."""
        return " ".join(self.block(text).split())

    def short(self, text: str) -> str:
        """Make a text visible where there is little room."""
        return cut(self.line(text))

    def fact(self, value: Any) -> str:  # noqa: ANN401 -- facts are whatever was found out
        """Make a fact visible; one that is not known says so."""
        if value is None:
            return UNKNOWN
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, dict):
            return "; ".join(f"{self.line(str(name))}: {self.fact(each)}" for name, each in value.items()) or "none"
        return self.line(str(value))


def cut(text: str) -> str:
    """Cut a text that is fit to be shown where there is little room."""
    return text if len(text) <= LABEL_CHARACTERS else f"{text[: LABEL_CHARACTERS - 1]}…"
