"""The line of a metric: its values in order, broken where they stop being of one thing, and where its level changed.

Levels are found by PELT on the log of the values, by the library ruptures.

The optimal partition of Killick, Fearnhead and Eckley (JASA 107, 2012, 1590-1598) minimises the squared distance to
each segment's mean, in units of the noise, plus a penalty a segment. The noise is estimated from the differences of
neighbours (Rice, Annals of Statistics 12, 1984, 1215-1230), which a few changes of level hardly touch.

The penalty was chosen by counting, on series without any change (4000 of each kind, 1500 from 100 points on), those in
which one was found, in percent; and on series with one change, those in which it was found within a point of where it
was (600 of each kind, normal noise), for changes of so many standard deviations of the noise:

    points                                   8    12    20    50   100   200
    flat, normal noise                     1.2   0.8   1.0   0.3   0.1   0.3
    flat, Student's t, 4 degrees           0.8   0.8   0.7   0.5   0.5   2.3
    flat, neighbours correlated by .3      4.0   6.8   8.8  12.5  13.4  18.5

    points, of which at the new level     8: 4  12: 3  20: 10  20: 3  50: 25  50: 3
    a change of 3                           43     52      94     65      97     75
    a change of 5                           80     95     100     99     100     99

So the rate holds where each point is a measurement by itself, as one a commit is. A slow drift of the machine is found
as changes of level, because it is nothing else.
"""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.device.rules import changes, compare
from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.gate.metric import METRICS
from pytest_gpuserve.report.html.history import LinePoint, MetricLine

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpuserve.compare.loads import LoadKey
    from pytest_gpuserve.gate.metric import Metric
    from pytest_gpuserve.history.observations import MetricValue, Observation


FEWEST_POINTS: Final = 8
"""With fewer, even a change of five times the noise would mostly be overlooked."""

SHORTEST: Final = 3
"""Points of a level; one odd value is none."""

PENALTY: Final = 11.0
PENALTY_GROWTH: Final = 1.5
"""The penalty is the first of them, plus the second times the log of the number of points."""

EXTRA: Final = "pip install 'pytest-gpuserve[history]'"


@dataclass(frozen=True, slots=True)
class Change:
    """A new level.

    Args:
        point: Position of its first point.
        before: The level before it, as geometric mean.
        after: The new level, likewise.
    """

    point: int
    before: float
    after: float

    @property
    def fraction(self) -> float:
        """The change as a fraction, by the sign of the value."""
        return self.after / self.before - 1


def demand_library() -> None:
    """See that what finds change points is installed.

    Raises:
        UsageProblem: It is not.
    """
    try:
        importlib.import_module("ruptures")
        importlib.import_module("numpy")
    except ImportError as problem:
        raise UsageProblem(
            "change points are found by the library ruptures, which is not installed",
            found=str(problem),
            remedies=[EXTRA, "draw the lines without them: --no-change-points"],
        ) from None


def changes_of(values: Sequence[float], *, smallest_sd: float) -> tuple[Change, ...]:
    """Find the points with which a new level begins.

    Args:
        values: Positive, oldest first.
        smallest_sd: Standard deviation of log values below which none is believed.

    Returns:
        The changes, in order; none where there are fewer than `FEWEST_POINTS` values.

    Raises:
        UsageProblem: The library is not installed.
    """
    if len(values) < FEWEST_POINTS:
        return ()
    logs = [math.log(value) for value in values]
    noise = max(noise_sd(logs), smallest_sd)
    # About the middle, because the library squares what it is given.
    middle = median(logs)
    ends = _segment_ends([(y - middle) / noise for y in logs], penalty(len(logs)))
    means = [math.exp(fmean(logs[begin:end])) for begin, end in pairwise([0, *ends])]
    return tuple(Change(end, *levels) for end, levels in zip(ends, pairwise(means), strict=False))


def noise_sd(logs: Sequence[float]) -> float:
    """Standard deviation about a level that may change now and then, from differences of neighbours."""
    squares = [(after - before) ** 2 for before, after in pairwise(logs)]
    return math.sqrt(fmean(squares) / 2)


def penalty(points: int) -> float:
    """What another level must gain, in squares of the noise's standard deviation."""
    return PENALTY + PENALTY_GROWTH * math.log(points)


def _segment_ends(scaled: Sequence[float], penalty_each: float) -> list[int]:
    demand_library()
    array = importlib.import_module("numpy").asarray(scaled, dtype=float).reshape(-1, 1)
    detector = importlib.import_module("ruptures").KernelCPD(kernel="linear", min_size=SHORTEST)
    return [int(end) for end in detector.fit_predict(array, pen=penalty_each)]


WORDS_SHOWN: Final = 3
"""Differences of a workload that are named; a server that is set up anew has many."""


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """A point of a line.

    Args:
        notes: What is worth knowing of it, a line each.
    """

    observation: Observation
    known: MetricValue
    notes: tuple[str, ...]


@dataclass(frozen=True)
class HistoryLine:
    """A metric of a load on one host, over a time in which it stayed comparable.

    Args:
        places: Its points, oldest first.
        part: Which part of the host's history this is, from 1.
        parts: Of how many.
        because: Why it begins anew here; empty for the first part.
        changes: Where its level changed; None where nobody looked.
    """

    key: LoadKey
    host: str
    metric: Metric
    places: tuple[HistoryPoint, ...]
    part: int
    parts: int
    because: str
    changes: tuple[Change, ...] | None

    @property
    def values(self) -> list[float]:
        """The values, in the metric's unit."""
        return [place.known.value for place in self.places]

    @property
    def title(self) -> str:
        """What it is of, for people."""
        part = f", part {self.part} of {self.parts}" if self.parts > 1 else ""
        return f"{self.key} {self.metric.name} on host {self.host}{part}"

    def is_worse(self, change: Change) -> bool:
        """Whether a change of level is to the worse."""
        return (change.fraction < 0) == self.metric.higher_is_better

    def drawn(self) -> MetricLine:
        """The same for the HTML page; why it begins anew stands with its first point."""
        return MetricLine(
            title=self.title,
            unit=self.metric.unit,
            points=tuple(
                LinePoint(
                    place.observation.label,
                    place.known.value,
                    place.known.low,
                    place.known.high,
                    "; ".join(([self.because] if number == 0 and self.because else []) + list(place.notes)),
                )
                for number, place in enumerate(self.places)
            ),
            changes=tuple(change.point for change in self.changes or ()),
        )


def lines_of(
    observations: Iterable[Observation], metrics: Sequence[Metric], *, find_changes: bool
) -> list[HistoryLine]:
    """Make the lines of all loads, hosts and metrics, by their names.

    Args:
        observations: In the order of time.

    Raises:
        UsageProblem: The library that finds change points is not installed.
    """
    histories: dict[tuple[LoadKey, str], list[Observation]] = {}
    for observation in observations:
        histories.setdefault((observation.key, observation.host), []).append(observation)
    order = list(METRICS.values())
    return [
        line
        for key, host in sorted(histories)
        for metric in sorted(metrics, key=order.index)
        for line in _of_metric(metric, histories[key, host], find_changes=find_changes)
    ]


def _of_metric(metric: Metric, history: Sequence[Observation], *, find_changes: bool) -> list[HistoryLine]:
    having = [observation for observation in history if metric.name in observation.known]
    parts: list[tuple[str, list[Observation]]] = []
    for observation in having:
        because = _difference(parts[-1][1][-1], observation) if parts else ""
        if because or not parts:
            parts.append((because, []))
        parts[-1][1].append(observation)
    lines = []
    for number, (because, part) in enumerate(parts):
        places = _places(metric, part)
        values = [place.known.value for place in places]
        lines.append(
            HistoryLine(
                # The name that the load has at last, which a rename of its file gave to all of it.
                key=part[-1].key,
                host=part[-1].host,
                metric=metric,
                places=places,
                part=number + 1,
                parts=len(parts),
                because=because,
                changes=changes_of(values, smallest_sd=metric.sd_floor) if find_changes else None,
            )
        )
    return lines


def _places(metric: Metric, part: Sequence[Observation]) -> tuple[HistoryPoint, ...]:
    found = []
    previous = ("", "")
    for observation in part:
        current = (
            f"reason: {observation.note}" if observation.note else "",
            (observation.anchors or {}).get(metric.name, ""),
        )
        # A baseline keeps its reason and anchors until they are replaced: they are told where they are new.
        notes = tuple(new for new, old in zip(current, previous, strict=True) if new and new != old)
        if observation.anchors is not None:
            previous = current
        found.append(HistoryPoint(observation, observation.known[metric.name], notes))
    return tuple(found)


def _difference(before: Observation, after: Observation) -> str:
    """Why two observations are not of one line; empty where they are."""
    incompatible = compare(before.device, after.device).incompatible
    if incompatible:
        return f"another device: {', '.join(changes(before.device, after.device)) or incompatible[0]}"
    words = _other_words(before.workload, after.workload)
    if not words:
        return ""
    more = f" and {len(words) - WORDS_SHOWN} more" if len(words) > WORDS_SHOWN else ""
    return f"another workload: {', '.join(words[:WORDS_SHOWN])}{more}"


def _other_words(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    return [
        f"{word} {before.get(word, 'nothing')} -> {after.get(word, 'nothing')}"
        for word in sorted({*before, *after})
        if before.get(word) != after.get(word)
    ]
