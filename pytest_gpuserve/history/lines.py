"""The line of a metric: its values in order, broken where they stop being of one thing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.device.rules import changes, compare
from pytest_gpuserve.gate.metric import METRICS
from pytest_gpuserve.history.change_points import changes_of
from pytest_gpuserve.report.html.history import LinePoint, MetricLine

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpuserve.compare.loads import LoadKey
    from pytest_gpuserve.gate.metric import Metric
    from pytest_gpuserve.history.change_points import Change
    from pytest_gpuserve.history.observations import MetricValue, Observation


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
