"""The end of a log, or a line, that another program wrote, made fit to be shown."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_MOST_BYTES = 1 << 16
_MOST_COLUMNS = 400
_LONGEST_SECRET = 1 << 13  # a private key in one line has some 3000 characters
_TERMINAL_CODES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


def read_tail(path: Path, *, start: int, lines: int, shown: Callable[[str], str] = str) -> str:
    """Last lines of a log, from its last 64 KiB; empty if there is none.

    Args:
        path: The log, of any size and with any bytes in it.
        start: Offset in bytes before which nothing is read.
        lines: Most lines to return.
        shown: Makes a text fit to be shown. It gets lines as they are: in one that is cut it would not know the secret
            that lies across the cut.
    """
    try:
        with path.open("rb") as log:
            first = max(start, log.seek(0, os.SEEK_END) - _MOST_BYTES)
            log.seek(first)
            text = log.read(_MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""
    found = shown(_TERMINAL_CODES.sub("", text)).splitlines()
    if first > start and len(found) > 1:
        del found[0]  # most likely cut in the middle
    elif first > start:
        found = [line[_LONGEST_SECRET:] for line in found]  # it may begin within a secret
    return "\n".join(printable(line) for line in found[-lines:])


def printable(line: str) -> str:
    """Make one line of foreign text fit for a terminal: no control characters, at most 400 columns."""
    shown = "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in line.expandtabs()
    )
    return shown if len(shown) <= _MOST_COLUMNS else f"{shown[:_MOST_COLUMNS]}…"
