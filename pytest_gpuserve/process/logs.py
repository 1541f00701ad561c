"""Makes another program's text fit to be shown: the end of a log, or an excerpt without secrets."""

from __future__ import annotations

import os
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.process.secrets import without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

SHOWN_CHARACTERS: Final = 200

_LOOKED_AT_CHARACTERS: Final = 1 << 16
_LOOKED_AT_BYTES: Final = 4 * (_LOOKED_AT_CHARACTERS + 1)  # a character of UTF-8 has four at most

_WORD_AT_END: Final = re.compile(r"[\w+/=.~%-]+\Z")
"""Word at a cut. It is left out, because code that knows more secrets would not recognise half of one."""


def excerpt(text: str, environment: Mapping[str, str], *, most: int = SHOWN_CHARACTERS) -> str:
    """Return the beginning of a text, without secrets and without half a secret at the cut.

    A word at the cut is left out, because it may be a secret that only others know.

    Args:
        environment: Variables and headers whose values it may repeat, as for `without_secrets`.
        most: Number of characters that are shown; a mark replaces the rest.
    """
    begin = text[:_LOOKED_AT_CHARACTERS]
    shown = without_secrets(begin, environment)
    if len(begin) < len(text):
        # The shown part may end within a secret.
        shown = shown[:-_LONGEST_SECRET]
    elif len(shown) <= most:
        return shown
    return _WORD_AT_END.sub("", shown[:most]) + "…"


def begin_of(answer: bytes | bytearray) -> bytes:
    """Enough bytes of an answer for `excerpt`, and some more, so that it can tell that the text goes on.

    Cut an answer before it is decoded, which takes long for a large one.
    """
    return bytes(answer[:_LOOKED_AT_BYTES])


_MOST_BYTES = 1 << 16
_MOST_COLUMNS = 400
_LONGEST_SECRET = 1 << 13  # a private key in one line has some 3000 characters
_ERROR = re.compile(r"^E\d{4} |^[\w.]+(Error|Exception)\b|\b(ERROR|CRITICAL|FATAL)\b|Traceback \(most recent")
"""An error's line, in the log of Triton, of Python, and of most servers."""

_TERMINAL_CODES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


def read_tail(path: Path, *, start: int, lines: int, shown: Callable[[str], str] = str) -> str:
    """Last lines of a log, from its last 64 KiB; empty without a log.

    Errors before them are shown too, because a server may log much more while it ends. Three dots mark a gap.

    Args:
        start: Offset in bytes at which the reading begins.
        lines: Most lines to return; besides them, half as many lines of earlier errors.
        shown: Makes a text fit to be shown. It gets uncut lines, because in a cut line it would not recognise the
            secret at the cut.
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
    tail = max(0, len(found) - lines)
    errors = _error_lines(found[:tail])
    numbers = [*errors[max(0, len(errors) - lines // 2) :], *range(tail, len(found))]
    told = [printable(found[number]) for number in numbers[:1]]
    for before, number in pairwise(numbers):
        told += [*(["..."] if number > before + 1 else []), printable(found[number])]
    return "\n".join(told)


def _error_lines(lines: Sequence[str]) -> list[int]:
    """Numbers of the lines of errors, with all lines of tracebacks."""
    found = []
    in_traceback = False
    for number, line in enumerate(lines):
        if in_traceback or _ERROR.search(line):
            found.append(number)
        # The line after the indented ones has the exception itself.
        in_traceback = "Traceback (most recent" in line or (in_traceback and line.startswith((" ", "\t")))
    return found


def printable(line: str) -> str:
    """Make one printable line of foreign text: no control characters, and at most 400 columns of its begin and end.

    Some servers log a whole traceback as one line, whose end has the exception.
    """
    shown = "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in line.expandtabs()
    )
    half = _MOST_COLUMNS // 2
    return shown if len(shown) <= _MOST_COLUMNS else f"{shown[:half]} … {shown[-half:]}"
