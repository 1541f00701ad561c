"""The judgements of a run as the lines of a table."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpuserve.gate.verdict import Judgement, Verdict
from pytest_gpuserve.report.explain import evidence, reference_text
from pytest_gpuserve.report.html.text import UNKNOWN, cut
from pytest_gpuserve.units import format_change, format_fraction, format_value

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_gpuserve.report.html.text import Texts
    from pytest_gpuserve.report.ranking import Row

OVERRULED = "settled side by side: that verdict is the last word"


@dataclass(frozen=True)
class Line:
    """A judgement as a line of the table; every text is fit to be shown.

    Args:
        nodeid: The test's id as it was measured, to find its section by.
        name: The load.
        metric: The metric.
        verdict: The outcome.
        counts: Whether it decides something.
        cells: What stands in the columns, by their headings.
        reasons: Why, and what it rests on, a line each.
    """

    nodeid: str
    name: str
    metric: str
    verdict: str
    counts: bool
    cells: dict[str, str]
    reasons: tuple[str, ...]


def towards_worse(judgement: Judgement, change: float) -> float:
    """A change of the value as one in which worse is larger, whether more or less of the metric is better."""
    # Adding zero turns the -0.0 of no change into 0.0.
    return (-change if judgement.metric.higher_is_better else change) + 0.0


def counted(rows: Iterable[Row]) -> list[tuple[str, int]]:
    """How many judgements that decide something there are of each verdict, in the order in which rows have them."""
    return list(Counter(str(row.judgement.verdict) for row in rows if row.counts).items())


def line_of(row: Row, name: str, texts: Texts) -> Line:
    """Write a judgement as a line.

    Args:
        row: The judgement.
        name: Of the load, fit to be shown.
        texts: Makes texts fit to be shown.
    """
    judgement = row.judgement
    unit = judgement.unit
    interval = UNKNOWN
    if judgement.interval is not None:
        interval = " to ".join(format_change(bound) for bound in judgement.interval)
    cells = {
        "now": UNKNOWN if judgement.value is None else format_value(judgement.value, unit),
        "reference": reference_text(judgement, unknown=UNKNOWN, always_named=True),
        "change": UNKNOWN if judgement.change is None else format_change(judgement.change),
        "interval": interval,
        "tolerance": UNKNOWN if judgement.tolerance is None else format_fraction(judgement.tolerance),
        "detectable": UNKNOWN if judgement.detectable is None else format_fraction(judgement.detectable),
    }
    reasons = [texts.line(reason.text) for reason in row.reasons]
    # What a pass rests on stands in the test's own section: 200 lines of it would hide those that matter.
    if judgement.rounds and judgement.verdict is not Verdict.PASS:
        reasons.append(evidence(judgement))
    if row.judgement.overruled:
        reasons.append(OVERRULED)
    return Line(
        row.test.nodeid,
        cut(name),
        judgement.metric.name,
        str(judgement.verdict),
        row.counts,
        cells,
        tuple(reasons),
    )
