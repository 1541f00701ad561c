"""The report for people: one HTML file without a script, which loads nothing (``--gpuserve-report``).

Each load has a plot of its rounds and one of its latencies, with those of its base, drawn by matplotlib as SVG.
"""

from __future__ import annotations

import io
import re
from contextlib import suppress
from html import escape
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.measure.histogram import merge, seconds_of
from pytest_gpuserve.measure.points import NotMeasured, value_of_starts
from pytest_gpuserve.report.names import known_facts, printable
from pytest_gpuserve.report.next_step import next_step
from pytest_gpuserve.report.results import HEADINGS
from pytest_gpuserve.report.terminal import totals_line
from pytest_gpuserve.verdict.metric import METRICS, Metric

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from matplotlib.axes import Axes

    from pytest_gpuserve.measure.window import Session
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


EXTRA: Final = "pip install 'pytest-gpuserve[report]'"

NOW, BASE = "now", "base"
_COLOURS: Final = {NOW: "#c0392c", BASE: "#2a6fae"}
_INK: Final = "#75808c"
"""Colour of axes and texts, readable on a light page and on a dark one."""

_PLOT_STYLE: Final[dict[Any, Any]] = {
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "legend.frameon": False,
    "svg.fonttype": "none",
    # Makes the page reproducible.
    "svg.hashsalt": "gpuserve",
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
}

_INCHES: Final = (8.4, 2.5)
_EDGES: Final = {"left": 0.09, "right": 0.99, "bottom": 0.18, "top": 0.97, "wspace": 0.25}
_SCALES: Final = {"s": (1e3, "ms"), "B": (2.0**-30, "GiB")}
"""Factor and unit of drawn values."""

MOST_POINTS: Final = 150
"""Largest number of points of a curve."""

_SHARES: Final = (100, 10, 1, 0.1, 0.01)
"""Smallest share of requests on a curve, in per cent."""


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


def plots_of(run: RunResult) -> str:
    """Draw a load as one SVG of two panels, without scripts and links; empty without an answer.

    Raises:
        UsageProblem: matplotlib is not installed.
    """
    sides = {BASE: run.base_sessions, NOW: run.candidate_sessions or run.sessions}
    if not any(window.latency.total for session in sides[NOW] for window in session.windows):
        return ""
    try:
        import matplotlib  # noqa: ICN001, PLC0415 -- only who asks for the page pays for it
        from matplotlib.figure import Figure  # noqa: PLC0415 -- as above
    except ImportError:
        raise UsageProblem(
            "the plots of an HTML report are drawn by matplotlib, which is not installed",
            looked=["the packages of this interpreter"],
            remedies=[EXTRA],
        ) from None
    metric = next((each.metric for each in run.judgements if not each.verdict.passes), METRICS["throughput"])
    with matplotlib.rc_context(_PLOT_STYLE):
        figure = Figure(figsize=_INCHES)
        rounds, latencies = figure.subplots(1, 2, gridspec_kw=_EDGES)
        _draw_rounds(rounds, metric, sides, _reference(run, metric))
        _draw_latencies(latencies, sides)
        text = io.StringIO()
        figure.savefig(
            text, format="svg", transparent=True, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type"))
        )
    return _small(text.getvalue())


def _reference(run: RunResult, metric: Metric) -> float | None:
    """Reference line of a stored baseline or a limit; a base that was measured has its rounds instead."""
    found = (each.reference for each in run.judgements if each.metric == metric)
    return None if run.base_sessions else next((value for value in found if value is not None), None)


def _draw_rounds(axes: Axes, metric: Metric, sides: dict[str, tuple[Session, ...]], reference: float | None) -> None:
    """Draw a point for each start of a server; those of one round have the same position."""
    scale, unit = _SCALES.get(metric.unit, (1.0, metric.unit))
    for name, sessions in sides.items():
        places, values = [], []
        for place, start in enumerate((start for session in sessions for start in session.starts), 1):
            with suppress(NotMeasured):
                values.append(scale * value_of_starts(metric, [start]))
                places.append(place)
        if values:
            axes.plot(places, values, "o-", label=name, color=_COLOURS[name], linewidth=0.8, markersize=4)
    if reference is not None:
        axes.axhline(scale * reference, label="reference", color=_INK, linestyle="--", linewidth=0.8)
    axes.locator_params(axis="x", integer=True, min_n_ticks=1)
    axes.set_xlabel("start of the server")
    axes.set_ylabel(f"{metric.name}{f' ({unit})' if unit else ''}")
    if axes.has_data():
        axes.legend()


def _draw_latencies(axes: Axes, sides: dict[str, tuple[Session, ...]]) -> None:
    """Draw the share of requests that took longer, over the time: p99 is the time at 1 %."""
    for name, sessions in sides.items():
        latency = merge(window.latency for session in sessions for window in session.windows)
        slower, curve = latency.total, []
        for bucket, count in sorted(latency.counts.items()):
            slower -= count
            curve.append((1e3 * seconds_of(bucket), max(100 * slower / latency.total, _SHARES[-1])))
        kept = _thinned(curve)
        if kept:
            axes.plot(*zip(*kept, strict=True), label=name, color=_COLOURS[name], linewidth=1.2)
    axes.set_yscale("log")
    axes.set_yticks(_SHARES, [f"{share:g} %" for share in _SHARES])
    axes.minorticks_off()
    axes.set_xlabel("latency (ms)")
    axes.set_ylabel("requests that took longer")
    axes.legend()


def _thinned(curve: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    step = -(-len(curve) // MOST_POINTS) or 1
    return [*curve[:-1:step], *curve[-1:]]


def _small(svg: str) -> str:
    """The drawing as an element of a page: without a prologue, page-wide styles, and names of groups."""
    parts = (r"<\?xml.*?\?>", "<!DOCTYPE.*?>", "<!--.*?-->", "<metadata>.*?</metadata>", "<style.*?</style>")
    svg = re.sub("|".join(parts), "", svg, flags=re.DOTALL)
    svg = re.sub(r'(?<=<g) id="[^"]*"| transform="rotate\(-0 [^"]*"', "", svg)
    # Only coordinates are cut short: a label such as 0.01 is a text between tags.
    return " ".join(re.sub("<[^>]*>", lambda tag: re.sub(r"(\.\d)\d+", r"\1", tag[0]), svg).split())
