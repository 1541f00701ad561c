"""A server's own counts between two readings, and its actual settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping  # noqa: TC003 -- msgspec reads the annotations
from dataclasses import dataclass, field


class WentBackwards(ValueError):
    """A counter is smaller than it was: the server was restarted in between."""


@dataclass(frozen=True, slots=True)
class Counters:
    """A reading of a server's own counters. They only rise during its life, except ``pending``.

    Args:
        items: Items that its batching stage has executed since the start; 0 if not counted.
        batches: Batches that it has executed; 0 likewise.
        batch_sizes: Executions by batch size; the key is the upper edge of the server's own bucket. Empty if not
            reported.
        stages: Time since the start by stage, by the names of ``measure/window.py``, such as ``compute``. Stages that
            are not counted are left out.
        requests: Well answered requests of all clients; None if not counted.
        pending: Requests in the server right now, as far as it counts them; None if not reported.
        parts: Counters of each of its models, or stages of its pipeline, by name; their own parts are empty.
        counts_batches: Whether it counts items and batches.
        tallies: Further counts, by the names of ``measure/window.py``, such as ``prompt_tokens``.
    """

    items: int
    batches: int
    batch_sizes: Mapping[str, int] = field(default_factory=dict)
    stages: Mapping[str, StageTime] = field(default_factory=dict)
    requests: int | None = None
    pending: int | None = None
    parts: Mapping[str, Counters] = field(default_factory=dict)
    counts_batches: bool = True
    tallies: Mapping[str, int] = field(default_factory=dict)


def counted_between(before: Counters, after: Counters) -> Counters:
    """Difference of two readings; ``pending`` is that of the later one.

    Batch sizes, stages and parts without a change are left out.

    Raises:
        WentBackwards: A counter is smaller than before, or a part is gone; the text names it.
    """
    return _between("", before, after)


def _between(where: str, before: Counters, after: Counters) -> Counters:
    # Parts first: if the whole has fallen, the part that fell says more.
    nothing = Counters(items=0, batches=0)
    parts = {
        name: _between(f"{name}: ", before.parts.get(name, nothing), after.parts.get(name, nothing))
        for name in before.parts.keys() | after.parts.keys()
    }
    stages = {}
    for name in before.stages.keys() | after.stages.keys():
        early = before.stages.get(name, StageTime(0.0, 0))
        late = after.stages.get(name, StageTime(0.0, 0))
        count = _rise(f"{where}count of {name}", early.count, late.count)
        # Sums of floating-point seconds over workers may lose their last digit.
        if late.seconds < early.seconds * (1 - 1e-9) - 1e-9:
            raise WentBackwards(f"{where}seconds of {name} fell from {early.seconds:g} to {late.seconds:g}")
        if count:
            stages[name] = StageTime(max(0.0, late.seconds - early.seconds), count)
    sizes = {
        size: _rise(f"{where}batches of {size}", before.batch_sizes.get(size, 0), after.batch_sizes.get(size, 0))
        for size in before.batch_sizes.keys() | after.batch_sizes.keys()
    }
    known = after.requests is not None and before.requests is not None
    return Counters(
        items=_rise(f"{where}items", before.items, after.items),
        batches=_rise(f"{where}batches", before.batches, after.batches),
        batch_sizes={size: sizes[size] for size in sorted(sizes) if sizes[size]},
        stages={name: stages[name] for name in sorted(stages)},
        requests=_rise(f"{where}requests", before.requests or 0, after.requests or 0) if known else None,
        pending=after.pending,
        parts={name: parts[name] for name in sorted(parts) if parts[name].batches or parts[name].requests},
        counts_batches=after.counts_batches,
        tallies={
            name: _rise(f"{where}{name}", before.tallies.get(name, 0), after.tallies.get(name, 0))
            for name in sorted(before.tallies.keys() | after.tallies.keys())
        },
    )


def _rise(what: str, before: int, after: int) -> int:
    if after < before:
        raise WentBackwards(f"{what} fell from {before} to {after}")
    return after - before


def added(readings: list[Counters]) -> Counters | None:
    """Sum of the counts of several stretches; None for none. ``pending`` has no sum."""
    if not readings:
        return None
    sizes: dict[str, int] = {}
    stages: dict[str, StageTime] = {}
    parts: dict[str, list[Counters]] = {}
    tallies: Counter[str] = Counter()
    for reading in readings:
        tallies.update(reading.tallies)
        for size, count in reading.batch_sizes.items():
            sizes[size] = sizes.get(size, 0) + count
        for name, time in reading.stages.items():
            stages[name] = stages.get(name, StageTime(0.0, 0)) + time
        for name, part in reading.parts.items():
            parts.setdefault(name, []).append(part)
    requests = [reading.requests for reading in readings]
    whole = {name: added(found) for name, found in parts.items()}
    return Counters(
        items=sum(reading.items for reading in readings),
        batches=sum(reading.batches for reading in readings),
        batch_sizes=sizes,
        stages=stages,
        requests=None if None in requests else sum(count or 0 for count in requests),
        parts={name: part for name, part in whole.items() if part is not None},
        counts_batches=all(reading.counts_batches for reading in readings),
        tallies=dict(tallies),
    )


@dataclass(frozen=True, slots=True)
class StageTime:
    """Time that a server counted in one of its stages, such as `COMPUTE`.

    Args:
        seconds: Sum of the times; overlapping times count each.
        count: Number of requests or batches, as the stage's name says.
    """

    seconds: float
    count: int

    def __add__(self, other: StageTime) -> StageTime:
        return StageTime(self.seconds + other.seconds, self.count + other.count)

    @property
    def mean(self) -> float:
        """Mean seconds. Raises ZeroDivisionError if the count is 0."""
        return self.seconds / self.count


@dataclass(frozen=True, slots=True)
class ServerSetting:
    """One setting of a server, as text: the value in use and the requested one; None if unknown."""

    used: str | None
    asked: str | None = None

    @property
    def differs(self) -> bool:
        """Whether the server is known to use another value than requested."""
        return self.asked is not None and self.used is not None and self.asked != self.used


def moved(before: Mapping[str, ServerSetting], after: Mapping[str, ServerSetting]) -> list[str]:
    """Describe settings that the server did not use before; a value that is unknown before or now has not moved."""
    return [
        f"setting {name}: {before[name].used} before, {setting.used} now"
        for name, setting in after.items()
        if name in before and None not in {before[name].used, setting.used} and before[name].used != setting.used
    ]


def differences(settings: Mapping[str, ServerSetting]) -> list[str]:
    """Describe settings that are not as requested, in their order."""
    return [
        f"{name}: asked for {setting.asked}, the server uses {setting.used}"
        for name, setting in settings.items()
        if setting.differs
    ]
