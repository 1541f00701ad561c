"""The result as markdown: a comment on a pull request, or the summary of a CI step (``--gpuserve-markdown``).

It is one block of HTML, in which sites do not interpret markdown. A job may post it without trust in its author. The
text has no tag with an attribute and no blank line. Outside ``<code>`` and ``<pre>`` it has only our own words and
numbers.
"""

from __future__ import annotations

import html
import re
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.report.names import known_facts, printable
from pytest_gpuserve.report.next_step import next_step
from pytest_gpuserve.report.results import HEADINGS
from pytest_gpuserve.report.terminal import totals_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pytest_gpuserve.report.results import Row, SessionResult, TestResult

LONGEST: Final = 400
"""Longest line that is shown; names and reasons are shorter."""

LONGEST_BLOCK: Final = 6000
"""Longest text of several lines, such as a log's end."""


def code(text: str, *, longest: int = LONGEST) -> str:
    """Escape a text of one line as HTML; line ends in it are shown as escapes."""
    return f"<code>{html.escape(_cut(printable(text), longest), quote=False)}</code>"


def block(text: str, *, keep_end: bool = False) -> str:
    """Escape a text of several lines as HTML. `keep_end` keeps the end of a long one, which matters in a log."""
    lines = "\n".join(map(printable, text.expandtabs().splitlines())).strip("\n")
    cut = _cut(lines, LONGEST_BLOCK, keep_end=keep_end)
    # Line ends are written as references, because a blank line would end the block of HTML.
    return f"<pre>{html.escape(cut, quote=False)}</pre>".replace("\n", "&#10;")


def passage(text: str) -> str:
    """Escape a text as HTML that may have several lines."""
    return block(text) if "\n" in text.strip() else code(text.strip())


@dataclass(frozen=True, slots=True)
class CommentPart:
    """A piece of a document that may be shortened.

    Args:
        rows: Rows, the most important first; each is one line, and the last ones may be left out.
    """

    opening: str
    rows: Sequence[str]
    closing: str
    what: str

    def text(self, kept: int) -> str:
        """The piece with this number of rows, and a note on the others."""
        left_out = len(self.rows) - kept
        note = f"<p><strong>Left out for length: {left_out} of {len(self.rows)} {self.what}.</strong></p>"
        lines = (self.opening, *self.rows[:kept], self.closing) if kept else ()
        return "\n".join(line for line in (*lines, note if left_out else "") if line)


def fitted(parts: Sequence[CommentPart], most_bytes: int) -> str:
    """Join pieces, and keep the first ones as complete as possible.

    Sizes are bytes of UTF-8. They are never below the site's own count, which may be in bytes or characters.

    Args:
        parts: The pieces; pieces without rows are left out.
    """
    parts = [part for part in parts if part.rows]
    # Smallest size of each: the line that says that it was left out.
    spare = most_bytes - sum(_size(part.text(0)) for part in parts)
    texts = []
    for part in parts:
        least = _size(part.text(0))
        text = part.text(_rows_within(part, spare + least))
        spare -= _size(text) - least
        texts.append(text)
    return "\n".join(texts)


def _rows_within(part: CommentPart, most_bytes: int) -> int:
    """Number of rows of a piece that fit."""
    if _size(part.text(len(part.rows))) <= most_bytes:
        return len(part.rows)
    return max(0, bisect_right(range(len(part.rows)), most_bytes, key=lambda kept: _size(part.text(kept))) - 1)


def _size(text: str) -> int:
    """Bytes of a piece, with its line end."""
    return len(text.encode()) + 1


def _cut(text: str, longest: int, *, keep_end: bool = False) -> str:
    if len(text) <= longest:
        return text
    return f"... {text[-longest:]}" if keep_end else f"{text[:longest]} ..."


def _table_row(row: Row) -> str:
    """A row of an HTML table, in one line."""
    name, metric, *numbers, verdict = row.cells
    cells = (code(name), metric, *numbers, f"<strong>{verdict}</strong>")
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


PASSED: Final = "passed"

SKIPPED: Final = "skipped"

COMMENT_BYTES: Final = 60_000
"""GitHub accepts comments of 65 536 characters; the job that posts this may add some lines."""

MARKER: Final = "pytest-gpuserve"
"""Prefix of the hidden first line of a comment, by which the next run finds it."""

_TABLE: Final = f"<table>\n<tr>{''.join(f'<th>{name}</th>' for name in HEADINGS)}</tr>"


def comment(result: SessionResult) -> str:
    """Write a session's result for a comment on a pull request.

    The first line names device and reference, so that it is the same in every run of one job.
    """
    device = re.sub("[^A-Za-z0-9.]+", "-", _device(result)).strip("-")[:64] or "unknown"
    marker = f"<!-- {MARKER} {device} {'stored' if result.stored else 'against'} -->"
    rows = result.rows
    bad, others = ([_table_row(row) for row in rows if row.is_bad is wanted] for wanted in (True, False))
    head = "\n".join(_head(result))
    parts = (
        CommentPart(_TABLE, bad, "</table>", "rows that do not pass, the least bad ones"),
        CommentPart("<ul>", _reasons([row for row in rows if row.is_bad]), "</ul>", "reasons"),
        CommentPart("<p>Messages of the tests:</p>", _problems(result.tests), "", "tests that did not pass"),
        _folded("Other rows", _TABLE, others, "</table>", "other rows"),
        _folded("Notes", "<ul>", _notes(result, rows), "</ul>", "notes"),
        _folded("Device, host, software", "<table>", _facts(result), "</table>", "facts"),
        _folded("Logs of servers", "", _logs(result.tests), "", "ends of logs"),
    )
    # Room for its own end, and for the hidden line before it.
    document = f"{head}\n{fitted(parts, COMMENT_BYTES - len(head.encode()) - 200)}".rstrip("\n")
    return f"{marker}\n{document}\n"


def headline(tests: Sequence[TestResult]) -> str:
    """Outcome in a line: failed tests before skipped ones, and those before passed ones."""
    counts = Counter(test.outcome for test in tests)
    passed, skipped, total = counts[PASSED], counts[SKIPPED], len(tests)
    failed = total - passed - skipped
    beside = f", {skipped} skipped" if skipped else ""
    of_all = f"{total} test{'' if total == 1 else 's'}"
    if failed:
        return f"❌ {failed} of {of_all} did not pass{beside}"
    if skipped:
        return f"⚠️ {passed} of {of_all} passed{beside}"
    return f"✅ {passed} of {of_all} passed" if total else "⚠️ Nothing was measured"


def _device(result: SessionResult) -> str:
    return str(result.gpu.get("name") or "an unknown device")


def _head(result: SessionResult) -> Iterator[str]:
    """Fixed head: outcome, next step, device and mode."""
    yield f"<h3>{headline(result.tests)} on {code(_device(result))}</h3>"
    if any(test.outcome != PASSED for test in result.tests):
        for line in (totals_line(result), *next_step(result).splitlines()):
            if line:
                # A shortened command would be another one.
                yield f"<p>{code(line, longest=LONGEST_BLOCK)}</p>"
    if result.header:
        yield f"<p>{code(result.header)}</p>"
    commit = "commit unknown" if result.commit is None else f"commit {code(result.commit)}"
    changed = "" if result.clean or result.commit is None else ", with changes that are not committed"
    at = f", {code(result.at)}" if result.at else ""
    yield f"<p>{commit}{changed}{at}</p>"


def _reasons(rows: Iterable[Row]) -> list[str]:
    """Reasons of verdicts, each once, because a defect of a file would be repeated for every metric."""
    reasons = (f"<li>{row.judgement.verdict}: {passage(reason.text)}</li>" for row in rows for reason in row.reasons)
    return list(dict.fromkeys(reasons))


def _problems(tests: Iterable[TestResult]) -> list[str]:
    """Message of pytest for each test that did not pass; failed tests before skipped ones."""
    ordered = sorted((test for test in tests if test.outcome != PASSED), key=lambda test: test.outcome == SKIPPED)
    return [
        f"<details><summary>{code(test.nodeid)}: {code(test.outcome)}</summary>"
        f"{block(test.problem) if test.problem else '<p>The reason is unknown.</p>'}</details>"
        for test in ordered
    ]


def _logs(tests: Iterable[TestResult]) -> list[str]:
    return [
        f"<p>{code(test.nodeid)}: {code(log.name)}</p>{block(log.text, keep_end=True)}"
        for test in tests
        if test.outcome != PASSED
        for log in test.logs
        if log.text.strip()
    ]


def _notes(result: SessionResult, rows: Iterable[Row]) -> list[str]:
    """Notes of the run, remarks on verdicts that pass, and the places of results."""
    noted, places = (
        [f"<li>{passage(note)}</li>" for note in notes if note.strip()] for notes in (result.notes, result.places)
    )
    return [*noted, *_reasons(row for row in rows if row.judgement.verdict.passes), *places]


def _facts(result: SessionResult) -> list[str]:
    """Known facts of device, host and software."""
    return [
        f"<tr><td>{title}</td><td>{code(name)}</td><td>{code(value)}</td></tr>"
        for title, facts in (("device", result.gpu), ("host", result.host), ("software", result.software))
        for name, value in known_facts(facts)
    ]


def _folded(title: str, opening: str, rows: Sequence[str], closing: str, what: str) -> CommentPart:
    return CommentPart(f"<details><summary>{title}</summary>{opening}", rows, f"{closing}</details>", what)
