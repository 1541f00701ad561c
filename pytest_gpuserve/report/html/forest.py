"""All judgements in one plot: each change with its interval, against what is tolerated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuserve.report.explain import headline
from pytest_gpuserve.report.html.figure import QUIET, VERDICT_COLOURS, Figure, Trace, axis, number, numbers
from pytest_gpuserve.report.html.text import as_label
from pytest_gpuserve.report.html.verdicts import towards_worse
from pytest_gpuserve.units import format_change

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpuserve.gate.verdict import Judgement
    from pytest_gpuserve.report.ranking import Row

ROW_HEIGHT: Final = 40
"""CSS pixels: a line of text, and the interval below it."""

NOT_ASSERTED: Final = "not asserted"

_LABEL_ABOVE: Final = 0.42
"""Of a row, how far its text stands above its interval."""

_LEAST_REACH: Final = 0.05
_REACH: Final = 1.5
"""The axis ends at so many times the largest change or tolerance: a very wide interval is cut there."""


@dataclass(frozen=True)
class _Drawn:
    """A judgement in its place.

    Attributes:
        place: Its row, from the top.
        name: The load, fit to be shown.
        judgement: What was concluded; its change is known.
    """

    place: int
    name: str
    judgement: Judgement

    @property
    def worse(self) -> float:
        """Its change."""
        return towards_worse(self.judgement, self.judgement.change or 0.0)

    @property
    def word(self) -> str:
        """What it is in the legend."""
        return str(self.judgement.verdict) if self.judgement.asserted else NOT_ASSERTED

    @property
    def colour(self) -> str:
        return VERDICT_COLOURS[self.judgement.verdict] if self.judgement.asserted else QUIET

    @property
    def tolerated(self) -> float | None:
        """The largest change towards worse that is accepted."""
        return self.judgement.tolerance


def forest(named: Iterable[tuple[str, Row]]) -> Figure | None:
    """Draw every judgement whose change is known; None where none is.

    A change is drawn towards worse, so that a lower throughput and a higher latency lie on one side. A plain limit has
    neither tolerance nor interval: how far away it is would only make the axis long. What was settled otherwise is no
    last word.

    Args:
        named: The judgements from the top, each with the name of its load, which is fit to be shown.
    """
    every = list(named)
    known = [(name, row.judgement) for name, row in every if _is_drawn(row)]
    drawn = [_Drawn(place, name, judgement) for place, (name, judgement) in enumerate(known)]
    if not drawn:
        return None
    traces = [_tolerances(drawn)]
    for word in dict.fromkeys(each.word for each in drawn):
        alike = [each for each in drawn if each.word == word]
        sure = [each for each in alike if each.judgement.interval is not None]
        bare = [each for each in alike if each.judgement.interval is None]
        traces += [_estimates(sure)] if sure else []
        traces += [_bare(bare)] if bare else []
    traces.append(_labels(drawn))
    left_out = len(every) - len(drawn)
    return Figure(
        "Changes and how surely they are known",
        tuple(traces),
        _layout(drawn),
        height=ROW_HEIGHT * len(drawn) + 120,
        notes=(
            "Right of 0 it got worse, whatever the metric. A small upright stroke is the tolerance.",
            *(
                [f"{left_out} without a known change, against a plain limit or settled otherwise: see the table."]
                if left_out
                else []
            ),
        ),
    )


def _is_drawn(row: Row) -> bool:
    judgement = row.judgement
    return judgement.change is not None and judgement.reference_kind != "limit" and not row.overruled


def _estimates(drawn: Sequence[_Drawn]) -> Trace:
    """Those with an interval, which is drawn as error bars."""
    above, below = [], []
    for each in drawn:
        low, high = sorted(towards_worse(each.judgement, bound) for bound in each.judgement.interval or ())
        above.append(number(max(0.0, high - each.worse)))
        below.append(number(max(0.0, each.worse - low)))
    return {
        **_points(drawn),
        "name": drawn[0].word,
        "marker": {"size": 10, "color": drawn[0].colour},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": above,
            "arrayminus": below,
            "thickness": 2.5,
            "color": drawn[0].colour,
        },
    }


def _bare(drawn: Sequence[_Drawn]) -> Trace:
    """Those without: an error bar of no length would claim that the change is known exactly."""
    return {
        **_points(drawn),
        "name": f"{drawn[0].word}, no interval known",
        "marker": {"size": 10, "symbol": "circle-open", "color": drawn[0].colour},
    }


def _points(drawn: Sequence[_Drawn]) -> Trace:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": numbers(each.worse for each in drawn),
        "y": [each.place for each in drawn],
        "customdata": [_told(each) for each in drawn],
        "hovertemplate": "%{customdata[0]}<br>%{customdata[1]}<br>%{customdata[2]}<extra></extra>",
        "legendgroup": drawn[0].word,
    }


def _told(each: _Drawn) -> list[str]:
    interval = "no interval known"
    if each.judgement.interval is not None:
        low, high = each.judgement.interval
        interval = f"interval {format_change(low)} to {format_change(high)}"
    value, _, reference = headline(each.judgement).partition(", ")
    return [as_label(each.name), f"{value}<br>{reference}" if reference else value, interval]


def _tolerances(drawn: Sequence[_Drawn]) -> Trace:
    known = [(each.place, each.tolerated) for each in drawn if each.tolerated is not None]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "tolerance",
        "x": numbers(tolerated for _, tolerated in known),
        "y": [place for place, _ in known],
        "hoverinfo": "skip",
        "marker": {"symbol": "line-ns-open", "size": 16, "color": QUIET, "line": {"width": 2}},
    }


def _labels(drawn: Sequence[_Drawn]) -> Trace:
    """Names inside of the plot, so that a narrow screen keeps its width for the intervals."""
    return {
        "type": "scatter",
        "mode": "text",
        "x": [0] * len(drawn),
        "y": [each.place - _LABEL_ABOVE for each in drawn],
        "text": [f"<b>{each.judgement.metric.name}</b> {as_label(each.name)}" for each in drawn],
        "textposition": "middle right",
        "xaxis": "x2",
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _layout(drawn: Sequence[_Drawn]) -> dict[str, Any]:
    sizes = [abs(each.worse) for each in drawn] + [each.tolerated or 0.0 for each in drawn]
    reach = _REACH * max(_LEAST_REACH, *sizes)
    return {
        "hovermode": "closest",
        "xaxis": axis("change towards worse", "%", range=[-reach, reach], side="top", zeroline=True),
        "xaxis2": {"overlaying": "x", "range": [0, 1], "visible": False, "fixedrange": True},
        "yaxis": {"range": [len(drawn) - 0.5, -0.8], "visible": False, "fixedrange": True},
        "legend": {"y": 0, "yanchor": "top"},
    }
