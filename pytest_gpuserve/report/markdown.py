"""The result as markdown: a comment on a pull request (``--gpuserve-markdown``) and the summary of a CI step.

It is one block of HTML, in which no site interprets markdown. A job that posts it need not trust whoever wrote it: what
comes from here has no tag with an attribute, no blank line, and outside of ``<code>`` and ``<pre>`` only our own words
and numbers, so that it can be told from anything else.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.report.names import flat_facts, printable
from pytest_gpuserve.report.next_step import next_step
from pytest_gpuserve.report.remarks import totals_line
from pytest_gpuserve.report.results import HEADINGS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pytest_gpuserve.report.results import Row, SessionResult, TestResult

LONGEST: Final = 400
"""Characters of a line that are shown; names and reasons are shorter."""

LONGEST_BLOCK: Final = 6000
"""The same of several lines, such as a log's end."""


def code(text: str, *, longest: int = LONGEST) -> str:
    """HTML that only shows a text, in a line; an end of a line in it is seen as an escape."""
    return f"<code>{html.escape(_cut(printable(text), longest), quote=False)}</code>"


def block(text: str, *, keep_end: bool = False) -> str:
    """HTML that only shows a text of several lines; of a long one `keep_end` shows the end, which matters of a log."""
    lines = "\n".join(map(printable, text.expandtabs().splitlines())).strip("\n")
    cut = _cut(lines, LONGEST_BLOCK, keep_end=keep_end)
    # A line's end is written as a reference, for two of them are a blank line, which would end the block of HTML.
    return f"<pre>{html.escape(cut, quote=False)}</pre>".replace("\n", "&#10;")


def passage(text: str) -> str:
    """HTML that only shows a text that may have several lines."""
    return block(text) if "\n" in text.strip() else code(text.strip())


@dataclass(frozen=True, slots=True)
class CommentPart:
    """A piece of a document that may be cut short.

    Args:
        rows: What may be left out, the most important first; each is one line.
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


def fitted(parts: Sequence[CommentPart], most_bytes: int) -> str:
    """Write pieces one after the other, the first ones as whole as they can be.

    Sizes are those of UTF-8, which are never below what a site counts, whether that is bytes or characters.

    Args:
        parts: The pieces; one without rows is not there.
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


def _rows_within(part: CommentPart, most_bytes: int) -> int:
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


def _table_row(row: Row) -> str:
    """A row of a table of HTML, in one line."""
    name, metric, *numbers, verdict = row.cells
    cells = (code(name), metric, *numbers, f"<strong>{verdict}</strong>")
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


PASSED: Final = "passed"

SKIPPED: Final = "skipped"

COMMENT_BYTES: Final = 60_000
"""GitHub takes comments of 65 536 characters; whoever posts this may add some lines."""

SUMMARY_BYTES: Final = 500_000
"""GitHub takes 1 MiB for all that a step writes, which may run pytest twice."""

MARKER: Final = "pytest-gpuserve"
"""How the hidden first line of a comment begins, by which the next run finds it."""

_TABLE: Final = f"<table>\n<tr>{''.join(f'<th>{name}</th>' for name in HEADINGS)}</tr>"


def comment(result: SessionResult) -> str:
    """Write a session's result for a comment on a pull request.

    Its first line names what was compared where, and nothing that another run of the same would have otherwise.
    """
    device = re.sub("[^A-Za-z0-9.]+", "-", _device(result)).strip("-")[:64] or "unknown"
    marker = f"<!-- {MARKER} {device} {'stored' if result.stored else 'against'} -->"
    return f"{marker}\n{_document(result, COMMENT_BYTES)}\n"


def step_summary(result: SessionResult) -> str:
    """Write a session's result for the summary of a CI step, which others may write to before and after.

    Args:
        result: The result; of one without tests there is nothing to write.
    """
    return f"\n\n{_document(result, SUMMARY_BYTES)}\n\n" if result.tests else ""


def _document(result: SessionResult, most_bytes: int) -> str:
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
    # With room for its own end, and for the hidden line before it.
    return f"{head}\n{fitted(parts, most_bytes - len(head.encode()) - 200)}".rstrip("\n")


def headline(tests: Sequence[TestResult]) -> str:
    """What came of it in a line: what fails, and without that what was skipped, before what passed."""
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
    """What is always there: what came of it, what to do next, what was measured and how."""
    yield f"<h3>{headline(result.tests)} on {code(_device(result))}</h3>"
    if any(test.outcome != PASSED for test in result.tests):
        for line in (totals_line(result), *next_step(result).splitlines()):
            if line:
                # A command that was cut off would be another one.
                yield f"<p>{code(line, longest=LONGEST_BLOCK)}</p>"
    if result.header:
        yield f"<p>{code(result.header)}</p>"
    commit = "commit unknown" if result.commit is None else f"commit {code(result.commit)}"
    changed = "" if result.clean or result.commit is None else ", with changes that are not committed"
    at = f", {code(result.at)}" if result.at else ""
    yield f"<p>{commit}{changed}{at}</p>"


def _reasons(rows: Iterable[Row]) -> list[str]:
    """Why verdicts are what they are, each reason once: what a file lacks would else be said for every metric."""
    reasons = (f"<li>{row.judgement.verdict}: {passage(reason.text)}</li>" for row in rows for reason in row.reasons)
    return list(dict.fromkeys(reasons))


def _problems(tests: Iterable[TestResult]) -> list[str]:
    """Of each test that did not pass what pytest says of it; those that failed before those that were skipped."""
    ordered = sorted((test for test in tests if test.outcome != PASSED), key=lambda test: test.outcome == SKIPPED)
    return [
        f"<details><summary>{code(test.nodeid)}: {code(test.outcome)}</summary>"
        f"{block(test.problem) if test.problem else '<p>Nothing is known of why.</p>'}</details>"
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
    """What was noted of the run, what is to be said of verdicts that pass, and where results are."""
    noted, places = (
        [f"<li>{passage(note)}</li>" for note in notes if note.strip()] for notes in (result.notes, result.places)
    )
    return [*noted, *_reasons(row for row in rows if row.judgement.verdict.passes), *places]


def _facts(result: SessionResult) -> list[str]:
    """Facts of device, host and software; what is not known is not there."""
    return [
        f"<tr><td>{title}</td><td>{code(name)}</td><td>{code(value)}</td></tr>"
        for title, facts in (("device", result.gpu), ("host", result.host), ("software", result.software))
        for name, value in flat_facts(facts)
    ]


def _folded(title: str, opening: str, rows: Sequence[str], closing: str, what: str) -> CommentPart:
    return CommentPart(f"<details><summary>{title}</summary>{opening}", rows, f"{closing}</details>", what)
