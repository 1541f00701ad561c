"""A server's own counts between two readings, and its actual settings."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 -- msgspec reads the annotations
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class WentBackwards(ValueError):
    """A counter is smaller than it was: the server was restarted in between."""


@dataclass(frozen=True, slots=True)
class Counters:
    """A reading of a server's own counters, which only rise during its life.

    Args:
        items: Items that its batching stage has executed since the start; 0 if not counted.
        batches: Batches that it has executed; 0 likewise.
        batch_sizes: Executions by batch size; the key is the upper edge of the server's own bucket. Empty if not
            reported.
        stages: Time since the start by stage, by the names of ``measure/window.py``, such as ``compute``. Stages that
            are not counted are left out.
        requests: Well answered requests of all clients; None if not counted.
        parts: Counters of each of its models, or stages of its pipeline, by name; their own parts are empty.
        counts_batches: Whether it counts items and batches.
        tallies: Further counts, by the names of ``measure/window.py``, such as ``prompt_tokens``.
    """

    items: int
    batches: int
    batch_sizes: Mapping[str, int] = field(default_factory=dict)
    stages: Mapping[str, StageTime] = field(default_factory=dict)
    requests: int | None = None
    parts: Mapping[str, Counters] = field(default_factory=dict)
    counts_batches: bool = True
    tallies: Mapping[str, int] = field(default_factory=dict)


def counted_between(before: Counters, after: Counters) -> Counters:
    """Difference of two readings; batch sizes, stages and parts without a change are left out.

    Raises:
        WentBackwards: A counter is smaller than before, or a part is gone; the text names it.
    """
    return _changed(_joined(before, after, _rise))


def added(readings: Iterable[Counters]) -> Counters | None:
    """Sum of the counts of several stretches; None for none."""
    found: Counters | None = None
    for reading in readings:
        found = reading if found is None else _joined(found, reading, lambda _, one, other: one + other)
    return found


def _joined(one: Counters, other: Counters, join: Callable[[str, Any, Any], Any], where: str = "") -> Counters:
    """Join each count of two readings, missing ones as 0; ``join`` gets its name too."""
    nothing, never = Counters(items=0, batches=0, requests=0), StageTime(0.0, 0)
    # Parts first: if the whole has fallen, the part that fell says more.
    parts = {
        name: _joined(one.parts.get(name, nothing), other.parts.get(name, nothing), join, f"{name}: ")
        for name in sorted(one.parts.keys() | other.parts.keys())
    }
    stages = {}
    for name in sorted(one.stages.keys() | other.stages.keys()):
        early, late = one.stages.get(name, never), other.stages.get(name, never)
        count = join(f"{where}count of {name}", early.count, late.count)
        stages[name] = StageTime(join(f"{where}seconds of {name}", early.seconds, late.seconds), count)
    sizes = {
        size: join(f"{where}batches of {size}", one.batch_sizes.get(size, 0), other.batch_sizes.get(size, 0))
        for size in sorted(one.batch_sizes.keys() | other.batch_sizes.keys())
    }
    are_known = one.requests is not None and other.requests is not None
    return Counters(
        items=join(f"{where}items", one.items, other.items),
        batches=join(f"{where}batches", one.batches, other.batches),
        batch_sizes=sizes,
        stages=stages,
        requests=join(f"{where}requests", one.requests or 0, other.requests or 0) if are_known else None,
        parts=parts,
        counts_batches=one.counts_batches and other.counts_batches,
        tallies={
            name: join(f"{where}{name}", one.tallies.get(name, 0), other.tallies.get(name, 0))
            for name in sorted(one.tallies.keys() | other.tallies.keys())
        },
    )


def _rise(what: str, before: float, after: float) -> float:
    # Sums of floating-point seconds over workers may lose their last digit.
    if after < (before if isinstance(before, int) else before * (1 - 1e-9) - 1e-9):
        raise WentBackwards(f"{what} fell from {before} to {after}")
    return max(0, after - before)


def _changed(found: Counters) -> Counters:
    """Differences without those that are 0."""
    return replace(
        found,
        batch_sizes={size: count for size, count in found.batch_sizes.items() if count},
        stages={name: time for name, time in found.stages.items() if time.count},
        parts={name: _changed(part) for name, part in found.parts.items() if part.batches or part.requests},
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
