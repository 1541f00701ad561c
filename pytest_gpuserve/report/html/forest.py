"""All judgements in one plot: each change with its interval, against what is tolerated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.report.explain import headline
from pytest_gpuserve.report.html.figure import QUIET, VERDICT_COLOURS, Axis, Figure, Panel, Point, Series
from pytest_gpuserve.report.html.svg import ROW_PX
from pytest_gpuserve.report.html.verdicts import towards_worse
from pytest_gpuserve.units import format_change

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpuserve.gate.verdict import Judgement
    from pytest_gpuserve.report.ranking import Row

NOT_ASSERTED: Final = "not asserted"

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
    series = [_tolerances(drawn)]
    for word in dict.fromkeys(each.word for each in drawn):
        alike = [each for each in drawn if each.word == word]
        sure = [each for each in alike if each.judgement.interval is not None]
        # An interval of no length would claim that the change is known exactly.
        bare = [each for each in alike if each.judgement.interval is None]
        series += [_estimates(word, sure, "dot")] if sure else []
        series += [_estimates(f"{word}, no interval known", bare, "ring")] if bare else []
    left_out = len(every) - len(drawn)
    return Figure(
        "Changes and how surely they are known",
        _along(drawn),
        (Panel(Axis(), tuple(series), height=ROW_PX * len(drawn)),),
        notes=(
            "Right of 0 it got worse, whatever the metric. A small upright stroke is the tolerance.",
            *(
                [f"{left_out} without a known change, against a plain limit or settled otherwise: see the table."]
                if left_out
                else []
            ),
        ),
        is_wide=True,
        is_sideways=True,
    )


def _is_drawn(row: Row) -> bool:
    judgement = row.judgement
    return judgement.change is not None and judgement.reference_kind != "limit" and not row.judgement.overruled


def _estimates(word: str, drawn: Sequence[_Drawn], mark: str) -> Series:
    points = tuple(
        Point(each.worse, each.place, _told(each), f"{each.judgement.metric.name} {each.name}", _interval(each))
        for each in drawn
    )
    return Series(word, drawn[0].colour, points, mark=mark)


def _interval(each: _Drawn) -> tuple[float, float] | None:
    if each.judgement.interval is None:
        return None
    low, high = sorted(towards_worse(each.judgement, bound) for bound in each.judgement.interval)
    return min(low, each.worse), max(high, each.worse)


def _told(each: _Drawn) -> str:
    interval = "no interval known"
    if each.judgement.interval is not None:
        low, high = each.judgement.interval
        interval = f"interval {format_change(low)} to {format_change(high)}"
    return f"{each.name}: {headline(each.judgement)}; {interval}"


def _tolerances(drawn: Sequence[_Drawn]) -> Series:
    points = tuple(Point(each.tolerated, each.place) for each in drawn if each.tolerated is not None)
    return Series("tolerance", QUIET, points, mark="stroke")


def _along(drawn: Sequence[_Drawn]) -> Axis:
    sizes = [abs(each.worse) for each in drawn] + [each.tolerated or 0.0 for each in drawn]
    reach = _REACH * max(_LEAST_REACH, *sizes)
    return Axis("change towards worse", "%", bounds=(-reach, reach))
