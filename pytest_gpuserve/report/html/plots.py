"""The data of a page's plots, packed together: as plain JSON they would be a quarter of it."""

from __future__ import annotations

import base64
import gzip
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pytest_gpuserve.report.html.figure import Figure

_LEVEL: Final = 6
"""Of the compression: a higher one takes several times as long, and wins one percent."""


class Plots:
    """Collects the plots of a page while it is written."""

    def __init__(self) -> None:
        self._plots: list[str] = []

    def add(self, figure: Figure) -> int:
        """Keep a plot; returns its place."""
        self._plots.append(figure.to_json())
        return len(self._plots) - 1

    def packed(self) -> str:
        """All of them as one list of JSON, gzip'd and in base64, in which no sign ends a ``script`` element."""
        return packed(f"[{','.join(self._plots)}]".encode("ascii"))


def packed(content: bytes) -> str:
    """Make a content small, and fit to stand in a page."""
    # Without the time of packing: the same results make the same file.
    return base64.b64encode(gzip.compress(content, _LEVEL, mtime=0)).decode("ascii")
