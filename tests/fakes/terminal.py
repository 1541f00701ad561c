"""A terminal: keeps what a program writes there."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import struct
import termios
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self


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
