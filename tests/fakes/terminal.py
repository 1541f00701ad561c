"""A terminal: keeps what a program writes there, and the screen as a person would see it."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import struct
import termios
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing_extensions import Self

SAVE: Final = "\x1b7"
RESTORE: Final = "\x1b8"

_TOKEN: Final = re.compile(r"\x1b[78]|\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\s\S]")
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")


class Screen:
    """What a terminal of so many rows and columns shows; it knows what pytest and we write, and refuses the rest.

    Args:
        columns: Of it.
        rows: Of it; what goes beyond scrolls away, and with it a saved place of the cursor.

    Attributes:
        lines: All that was ever shown, the last ``rows`` of which are on the screen.
        restored: The line of the cursor and its place in it, before and after each time that it was restored.
    """

    def __init__(self, columns: int, rows: int = 12) -> None:
        self.lines: list[list[str]] = [[]]
        self.restored: list[tuple[tuple[int, int], tuple[int, int]]] = []
        self._columns, self._rows = columns, rows
        self._row = self._column = 0
        self._saved = (0, 0)
        self._saved_at = (0, 0)
        self._wraps = True

    @property
    def text(self) -> str:
        """All lines, without what is blank at their ends."""
        return "\n".join("".join(line).rstrip() for line in self.lines)

    @property
    def _top(self) -> int:
        return max(0, len(self.lines) - self._rows)

    def write(self, text: str) -> None:
        """Show what is written."""
        for token in _TOKEN.findall(text):
            self._take(token)

    def _take(self, token: str) -> None:
        if token == "\r":
            self._column = 0
        elif token == "\n":
            self._down()
        elif token == SAVE:
            self._saved_at = (self._row, self._column)
            self._saved = (self._row - self._top, self._column)
        elif token == RESTORE:
            self._row, self._column = self._saved[0] + self._top, self._saved[1]
            self.restored.append((self._saved_at, (self._row, self._column)))
        elif token == "\x1b[K":
            del self.lines[self._row][self._column :]
        elif token in {"\x1b[?7l", "\x1b[?7h"}:
            self._wraps = token.endswith("h")
        elif not token.startswith("\x1b"):
            assert token.isprintable(), repr(token)
            self._put(token)
        else:
            assert _COLOUR.fullmatch(token) or token.startswith("\x1b]"), repr(token)

    def _put(self, sign: str) -> None:
        if self._column == self._columns:
            if self._wraps:
                self._column = 0
                self._down()
            else:
                self._column -= 1
        line = self.lines[self._row]
        line.extend(" " * (self._column + 1 - len(line)))
        line[self._column] = sign
        self._column += 1

    def _down(self) -> None:
        self._row += 1
        if self._row == len(self.lines):
            self.lines.append([])


class Terminal:
    """A terminal on which a program runs; as a context it is open.

    Args:
        columns: Of it.

    Attributes:
        path: By which a program opens it.
        text: All that was written there, so far.
    """

    def __init__(self, columns: int = 100) -> None:
        self.text = ""
        self._owner, self._held = pty.openpty()
        fcntl.ioctl(self._held, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.path = os.ttyname(self._held)
        self._reader = threading.Thread(target=self._read)

    def __enter__(self) -> Self:
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        # What is still on its way is read, for Linux says that nobody holds the other end when that is empty.
        os.close(self._held)
        self._reader.join()
        os.close(self._owner)

    def _read(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        with suppress(OSError):
            while data := os.read(self._owner, 1 << 16):
                self.text += decoder.decode(data)
