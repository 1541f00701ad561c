"""Text of a run in a markdown document: it is shown, and does nothing else.

A test's id, a server's log, a setting may hold anything: markup, a picture of a stranger's, the name of a user who
would be notified, the number of an issue that would be linked. So there is one way in: within ``<code>`` or ``<pre>``,
in a block of HTML. Markdown leaves such a block alone up to the first blank line (GitHub Flavored Markdown 0.29,
section 4.6), and there is none in it; what a site links of its own accord, users, issues, commits and addresses, it
does not link within these two.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.report.names import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LONGEST: Final = 400
"""Characters of a line that are shown; names and reasons are shorter."""

LONGEST_BLOCK: Final = 6000
"""The same of several lines, such as a log's end."""

_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class Inert:
    """Makes texts of a run into HTML that only shows them.

    Args:
        shown: Makes a text fit to be shown: without secrets.
    """

    shown: Callable[[str], str]

    def code(self, text: str, *, longest: int = LONGEST) -> str:
        """Show a text in a line; an end of a line in it is seen as an escape.

        Args:
            text: The text.
            longest: Characters of it that are shown.
        """
        return f"<code>{html.escape(_cut(printable(self._known(text)), longest), quote=False)}</code>"

    def block(self, text: str, *, keep_end: bool = False) -> str:
        """Show a text of several lines.

        Args:
            text: The text.
            keep_end: Whether the end of a long one matters, as it does of a log.
        """
        lines = "\n".join(map(printable, self._known(text).expandtabs().splitlines())).strip("\n")
        cut = _cut(lines, LONGEST_BLOCK, keep_end=keep_end)
        # A line's end is written as a reference, for two of them are a blank line, which would end the block of HTML.
        return f"<pre>{html.escape(cut, quote=False)}</pre>".replace("\n", "&#10;")

    def passage(self, text: str) -> str:
        """Show a text that may have several lines."""
        return self.block(text) if "\n" in text.strip() else self.code(text.strip())

    def _known(self, text: str) -> str:
        # First of all, for a secret may be coloured in the middle.
        return self.shown(_COLOURS.sub("", text))


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a document that may be cut short.

    Args:
        opening: What stands before its rows.
        rows: What may be left out, the most important first; each is one line.
        closing: What stands behind them; may be empty.
        what: What the rows are, as people call them.
    """

    opening: str
    rows: Sequence[str]
    closing: str
    what: str

    def text(self, kept: int) -> str:
        """The piece with so many of its rows, and what it says of the others."""
        left_out = len(self.rows) - kept
        note = f"<p><strong>Left out for length: {left_out} of {len(self.rows)} {self.what}.</strong></p>"
        lines = (self.opening, *self.rows[:kept], self.closing) if kept else ()
        return "\n".join(line for line in (*lines, note if left_out else "") if line)


def fitted(parts: Sequence[Part], most_bytes: int) -> str:
    """Write pieces one after the other, the first ones as whole as they can be.

    Sizes are those of UTF-8, which are never below what a site counts, whether that is bytes or characters.

    Args:
        parts: The pieces; one without rows is not there.
        most_bytes: What they may take together.
    """
    parts = [part for part in parts if part.rows]
    # What each takes at the least: the line that says that it was left out.
    spare = most_bytes - sum(_size(part.text(0)) for part in parts)
    texts = []
    for part in parts:
        least = _size(part.text(0))
        text = part.text(_rows_within(part, spare + least))
        spare -= _size(text) - least
        texts.append(text)
    return "\n".join(texts)


def _rows_within(part: Part, most_bytes: int) -> int:
    """How many rows of a piece fit."""
    if _size(part.text(len(part.rows))) <= most_bytes:
        return len(part.rows)
    kept, used = 0, _size(part.text(0)) + _size(part.opening) + _size(part.closing)
    for row in part.rows[:-1]:
        used += _size(row)
        if used > most_bytes:
            break
        kept += 1
    return kept


def _size(text: str) -> int:
    """Bytes of a piece, with the line's end behind it."""
    return len(text.encode()) + 1


def _cut(text: str, longest: int, *, keep_end: bool = False) -> str:
    if len(text) <= longest:
        return text
    return f"... {text[-longest:]}" if keep_end else f"{text[:longest]} ..."
