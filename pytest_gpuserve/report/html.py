"""The report for people: one HTML file without a script, which loads nothing (``--gpuserve-report``)."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuserve.report.names import known_facts, printable
from pytest_gpuserve.report.next_step import next_step
from pytest_gpuserve.report.plots import plots_of
from pytest_gpuserve.report.remarks import totals_line
from pytest_gpuserve.report.results import HEADINGS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_gpuserve.report.results import Row, RunResult, SessionResult, TestResult

UNKNOWN: Final = "not known"

MOST_BYTES: Final = 490_000
"""Size limit of a page. If it is exceeded, the least bad rows are left to the JSON."""

TABLE_BYTES: Final = 200_000
"""Size limit of the table."""

LABEL_CHARACTERS: Final = 100
TEXT_CHARACTERS: Final = 4_000
"""Longest name, and longest text of several lines; the rest is cut."""

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""Content security policy: the page must not run or load anything."""

_STYLE: Final = """
:root { color-scheme: light dark; }
body { max-width: 1160px; margin: 0 auto; padding: 16px; font: 15px/1.45 system-ui, sans-serif; }
body { overflow-wrap: anywhere; }
h2 { margin: 28px 0 8px; border-bottom: 1px solid #8885; }
h3 { margin: 20px 0 4px; font-size: 1rem; }
p { margin: 4px 0; }
pre { padding: 8px; background: #8881; white-space: pre-wrap; font-size: 12.5px; unicode-bidi: plaintext; }
table { border-collapse: collapse; font-size: 0.9rem; }
th, td { padding: 3px 10px 3px 0; text-align: left; vertical-align: top; }
.why td { opacity: 0.7; }
tr:not(.why) td { border-top: 1px solid #8885; }
b { padding: 0 6px; border-radius: 8px; color: #fff; background: #646d77; font-size: 0.8rem; }
.PASS, .passed { background: #1f7f48; } .IMPROVED { background: #2a6fae; }
.REGRESSED, .failed, .error, .interrupted { background: #c0392c; }
.INCONCLUSIVE { background: #a35f00; } .INVALID { background: #8a42ad; }
svg { max-width: 100%; height: auto; }
"""


def document(result: SessionResult) -> str:
    """Write a session's result as one HTML file of at most `MOST_BYTES`.

    Raises:
        UsageProblem: matplotlib, which draws the plots, is not installed.
    """
    top = [
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>gpuserve report</title><style>{_STYLE}</style></head><body><h1>gpuserve report</h1>",
        *_paragraphs(totals_line(result) or ("" if result.tests else "Nothing was measured."), result.header),
        *_blocks(next_step(result)),
        *_paragraphs(f"begun {result.at or UNKNOWN}, commit {_commit(result)}"),
    ]
    bottom = [
        "<h2>Where it ran</h2>",
        *_facts("device", result.gpu),
        *_facts("host", result.host),
        *_facts("software", result.software),
        *(f"<p>{_line(note)}</p>" for note in (*result.notes, *result.places)),
        "</body></html>\n",
    ]
    table = _fitting(map(_row, result.rows), TABLE_BYTES, "row")
    if table:
        test, metric, *numbers, verdict = HEADINGS
        headings = "".join(f"<th>{name}</th>" for name in (verdict, metric, test, *numbers))
        table = ["<h2>Verdicts</h2><table>", f"<thead><tr>{headings}</tr></thead>", *table, "</table>"]
    sections = (_section(test, result.names[test.nodeid]) for test in result.ranked_tests)
    room = MOST_BYTES - sum(map(_bytes, (*top, *table, *bottom)))
    return "\n".join([*top, *table, *_fitting(sections, room, "test"), *bottom])


def _fitting(parts: Iterable[str], room: int, what: str) -> list[str]:
    """As many parts as fit; further ones are not even made."""
    found: list[str] = []
    for part in parts:
        room -= _bytes(part)
        if room < 0:
            return [*found, f"<p>More {what}s do not fit here: --gpuserve-json has them.</p>"]
        found.append(part)
    return found


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "backslashreplace")) + 1


def _row(row: Row) -> str:
    """A row of the table, with a line of reasons."""
    name, metric, *numbers, verdict = row.cells
    line = "".join(f"<td>{_line(text)}</td>" for text in (metric, name, *numbers))
    reasons = [reason.text for reason in row.reasons]
    if row.basis and not row.judgement.verdict.passes:
        reasons.append(row.basis)
    why = "".join(f"<p>{_line(reason, TEXT_CHARACTERS)}</p>" for reason in reasons)
    return f"<tr><td>{_badge(verdict)}</td>{line}</tr>" + (
        f'<tr class="why"><td colspan="{len(HEADINGS)}">{why}</td></tr>' if why else ""
    )


def _section(test: TestResult, name: str) -> str:
    """Section of a test: verdicts, plots, reason of a failure, and the ends of its servers' logs."""
    ends = test.logs if test.failed else ()
    logs = [
        f"<details><summary>end of the log {_line(log.name)}</summary><pre>{_block(log.text, last=True)}</pre>"
        "</details>"
        for log in ends
    ]
    return "\n".join(
        [
            f"<h3>{_badge(test.outcome)} {_line(name)}</h3>",
            *_paragraphs(test.nodeid),
            *_blocks(test.problem),
            *(part for run in test.runs for part in _load(run)),
            *logs,
        ]
    )


def _load(run: RunResult) -> list[str]:
    found = [f"<p>load {_line(run.label)}</p>"] if run.label else []
    problems = (problem.text for session in (*run.sessions, *run.candidate_sessions) for problem in session.problems)
    found += [f"<p>{_line(text, TEXT_CHARACTERS)}</p>" for text in dict.fromkeys(problems)]
    if run.base is not None:
        found.append(f"<p>side by side with {_line(run.base)}</p>")
    return [*found, plots_of(run)]


def _badge(word: str) -> str:
    return f'<b class="{_line(word)}">{_line(word)}</b>'


def _facts(name: str, facts: Mapping[str, Any]) -> list[str]:
    lines = [f"{key}: {value}" for key, value in known_facts(facts)]
    return [f"<h3>{name}</h3><p>{'<br>'.join(map(_line, lines))}</p>"] if lines else []


def _commit(result: SessionResult) -> str:
    return UNKNOWN if result.commit is None else f"{result.commit}{'' if result.clean else ', with changes'}"


def _paragraphs(*texts: str) -> list[str]:
    return [f"<p>{_line(text, TEXT_CHARACTERS)}</p>" for text in texts if text]


def _blocks(text: str) -> list[str]:
    return [f"<pre>{_block(text)}</pre>"] if text else []


def _line(text: str, most: int = LABEL_CHARACTERS) -> str:
    """A text of the run in one line: characters that cannot be printed and the signs of HTML are escaped."""
    shown = " ".join(printable(text, "\n\t").split())
    return escape(shown if len(shown) <= most else f"{shown[: most - 1]}…")


def _block(text: str, *, last: bool = False) -> str:
    """A text of several lines, escaped likewise: its first lines, or its last."""
    shown = printable(text, "\n\t")
    if len(shown) > TEXT_CHARACTERS:
        shown = f"…{shown[-TEXT_CHARACTERS:]}" if last else f"{shown[:TEXT_CHARACTERS]}…"
    return escape(shown)
