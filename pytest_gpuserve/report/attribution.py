"""Parts of a server's time that moved with its latency, from its counters; never a cause that was not counted."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.measure.breakdown import (
    CACHED,
    CLIENT,
    CLIENT_CORES,
    COMPUTE_OF,
    COMPUTE_OF_BATCH,
    DECODE,
    FILLING,
    FORMATION_ITEMS,
    MEAN,
    OUTSIDE,
    P99,
    PREEMPTED,
    QUEUE_COUNTED,
    QUEUE_OF_LATENCY,
    QUEUE_OF_SERVER,
    TOKENS,
    TPOT,
    TTFT,
    profile_of,
)
from pytest_gpuserve.measure.counters import moved
from pytest_gpuserve.measure.points import NotMeasured, mean_value
from pytest_gpuserve.measure.work import SAME_CACHED
from pytest_gpuserve.units import format_change, format_fraction, format_ratio, format_seconds
from pytest_gpuserve.verdict.metric import METRICS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pytest_gpuserve.measure.window import Session
    from pytest_gpuserve.verdict.metric import Metric

NOTABLE_CHANGE: Final = 0.03
"""Change below which a part did not move, unless it makes up most of the change of the mean latency."""

NOTABLE_SHARE: Final = 0.10
"""Share of the change of the mean latency below which a part did not move, even if it doubled."""

MAJOR_SHARE: Final = 0.50
"""Share of the whole change from which a part moved, even if it was large before."""

TAIL_CHANGE: Final = 0.10
"""Change of p99 that needs an explanation if the mean did not change; a smaller one is within its noise."""

LARGEST_CHANGE: Final = 10.0
"""Change beyond which a percentage says less than the two values."""

QUEUES: Final = {
    QUEUE_COUNTED: ("queue", ""),
    QUEUE_OF_SERVER: ("queue", QUEUE_OF_SERVER),
    QUEUE_OF_LATENCY: ("queue, network and client", QUEUE_OF_LATENCY),
}
"""Name of the queue and origin of its time, if no counter gives it."""


@dataclass(frozen=True)
class _Part:
    """A counted quantity of both servers.

    Args:
        text: Formats a value, without ``unit``.
        least: Smallest change that is worth a word, in its own unit.
        additive: Whether it is a part of the mean latency.
        whole: Change of the mean latency, if that moved and this is a part of it; else 0.
    """

    name: str
    before: float | None
    after: float | None
    text: Callable[[float], str]
    least: float = 0.0
    unit: str = ""
    note: str = ""
    additive: bool = False
    whole: float = 0.0

    @property
    def change(self) -> float:
        """Change in its own unit; 0 if a value is unknown."""
        return 0.0 if self.before is None or self.after is None else self.after - self.before

    @property
    def relative(self) -> float:
        """Change as a fraction; infinite if the first value is 0."""
        return self.change / self.before if self.before else math.copysign(math.inf, self.change)

    @property
    def moved(self) -> bool:
        """Whether the change is worth a word."""
        if not self.change or abs(self.change) < self.least:
            return False
        if self.whole and self.change / self.whole >= MAJOR_SHARE:
            return True
        return abs(self.relative) >= NOTABLE_CHANGE

    def __str__(self) -> str:
        """``compute per batch 4.10 ms -> 4.52 ms (+10.2 %)``, or one value if both have the same text."""
        before, after = ("" if value is None else self.text(value) for value in (self.before, self.after))
        if before and after:
            values = after if before == after else f"{before} -> {after}"
        else:
            values = f"now {after}" if after else f"before {before}"
        notes = [self.note] if self.note else []
        if self.moved and abs(self.relative) <= LARGEST_CHANGE:
            notes.insert(0, format_change(self.relative))
        return f"{self.name} {values}{self.unit}" + (f" ({'; '.join(notes)})" if notes else "")


def other_changes(metric: Metric, before: Sequence[Session], after: Sequence[Session]) -> Mapping[str, float]:
    """Changes of all other metrics since before, as plain fractions; without unmeasured ones."""
    changes = {}
    for other in METRICS.values():
        try:
            change = mean_value(other, after) / mean_value(other, before) - 1
        except NotMeasured:
            continue
        if other != metric:
            changes[other.name] = change
    return changes


def attributed(before: Sequence[Session], after: Sequence[Session]) -> list[str]:
    """Settings and parts of the server's time that moved, a line each; empty without a comparison."""
    windows = [[window for session in sessions for window in session.windows] for sessions in (before, after)]
    if not all(windows) or not all(any(window.requests for window in side) for side in windows):
        return []
    settings = [
        next((start.settings for session in reversed(sessions) for start in session.starts if start.settings), {})
        for sessions in (before, after)
    ]
    return [
        *moved(*settings),
        *attribution(*map(profile_of, windows)),
    ]


def attribution(before: Mapping[str, float], after: Mapping[str, float]) -> list[str]:
    """List the parts that moved with the latency, those that did not, the unknown ones, and where to look.

    A latency's change is divided over the mean, which is the sum of its parts; a quantile is not. In a closed loop the
    throughput is the concurrency over that mean (Little's law), so its change is divided as well.
    """
    parts = _parts(before, after)
    counted = [part for part in parts if part.before is not None and part.after is not None]
    one_sided = [part for part in parts if (part.before is None) is not (part.after is None)]
    changed = [part for part in counted if part.moved]
    return [
        *_joined("moved with it", map(str, changed) if changed else ["nothing that was counted"]),
        *_shares(before, after, counted),
        *_joined("did not move", (str(part) for part in counted if not part.moved)),
        *_joined("not counted", (part.name for part in parts if part.before is None and part.after is None)),
        *_joined("counted for one server only", map(str, one_sided)),
        *_tail(before, after),
        *_joined("look at", _where(changed), "; "),
    ]


def _joined(label: str, texts: Iterable[str], between: str = ", ") -> list[str]:
    together = between.join(texts)
    return [f"{label}: {together}"] if together else []


def _parts(before: Mapping[str, float], after: Mapping[str, float]) -> list[_Part]:
    """All parts in the order of a request's way; a detail of another part only if it is known."""
    whole = after[MEAN] - before[MEAN]
    least = NOTABLE_SHARE * max(abs(whole), NOTABLE_CHANGE * before[MEAN])
    tail_least = NOTABLE_SHARE * max(abs(after[P99] - before[P99]), TAIL_CHANGE * before[P99])

    def part(name: str, text: Callable[[float], str] = format_seconds, *, least: float = 0.0, unit: str = "") -> _Part:
        return _Part(name, before.get(name), after.get(name), text, least, unit)

    def in_latency(name: str, shown: str = "", note: str = "") -> _Part:
        moved = whole if _notable(before, after) else 0.0
        return replace(part(name, least=least), name=shown or name, note=note, additive=True, whole=moved)

    known = before.keys() | after.keys()
    queues = [in_latency(name, *texts) for name, texts in QUEUES.items() if name in known]
    others = [in_latency(name) for name in sorted(known) if name.startswith(COMPUTE_OF)]
    details = {OUTSIDE, FILLING, TTFT, DECODE, TPOT, TOKENS, CACHED, PREEMPTED} - known
    parts = [
        part(CLIENT, least=tail_least),
        part(CLIENT_CORES, format_fraction, least=NOTABLE_SHARE, unit=" of a core"),
        in_latency(OUTSIDE),
        in_latency(TTFT),
        in_latency(DECODE),
        part(TPOT),
        part(TOKENS, format_ratio),
        part(CACHED, format_fraction, least=SAME_CACHED),
        part(PREEMPTED, "{:.0f}".format, least=1.0, unit=" in 1000 requests"),
        *(queues or [in_latency(QUEUE_COUNTED)]),
        part(FORMATION_ITEMS, format_ratio, unit=" items"),
        part(FILLING, least=least),
        in_latency(COMPUTE_OF_BATCH),
        *others,
    ]
    return [each for each in parts if each.name not in details]


def _notable(before: Mapping[str, float], after: Mapping[str, float]) -> bool:
    """Whether the mean latency has moved."""
    return abs(after[MEAN] / before[MEAN] - 1) >= NOTABLE_CHANGE


def _shares(before: Mapping[str, float], after: Mapping[str, float], counted: list[_Part]) -> list[str]:
    """Share of each part in the mean latency's change."""
    if not _notable(before, after):
        return []
    whole = after[MEAN] - before[MEAN]
    parts = [part for part in counted if part.additive and abs(part.change) >= NOTABLE_SHARE * abs(whole)]
    parts.sort(key=lambda part: -abs(part.change))
    texts = (f"{part.name} {_signed(part.change)} ({part.change / whole * 100:.0f} %)" for part in parts)
    return _joined(f"of the mean latency's {_signed(whole)}", texts)


def _tail(before: Mapping[str, float], after: Mapping[str, float]) -> list[str]:
    """Note that only the slowest requests changed, about which means are silent."""
    tail = after[P99] / before[P99] - 1
    if abs(tail) < TAIL_CHANGE or _notable(before, after):
        return []
    mean = after[MEAN] / before[MEAN] - 1
    text = f"latency.p99 {format_change(tail)}, but the mean latency {format_change(mean)}: few requests changed"
    return [f"{text}, and counters that are means do not say why"]


def _where(moved: list[_Part]) -> list[str]:
    """The first places to look, by the parts that moved together."""
    parts = {part.name: part for part in moved}
    compute, items = parts.get(COMPUTE_OF_BATCH), parts.get(FORMATION_ITEMS)
    # Work grows with a batch's size, but not faster. Beyond that, the work itself has changed.
    in_step = compute and items and 0 < compute.relative / items.relative <= 1
    size = "larger" if items and items.change > 0 else "smaller"
    follows = ", or compute: either may follow from the other" if in_step else ""
    fewer = "fewer" if CACHED in parts and parts[CACHED].change < 0 else "more"
    hints = {
        "the measuring machine and the way to the server": CLIENT in parts or OUTSIDE in parts,
        f"why batches are {size} (batching window, max_batch_size, arrivals{follows})": items is not None,
        "the model, its kernels, the clocks": compute and not in_step,
        "queue and prefill (prompts, prefix cache, slots)": TTFT in parts,
        f"why {fewer} prompt tokens come from the prefix cache (its setting, its size, the prompts)": CACHED in parts,
        "the size of the KV cache, and how many sequences share it": PREEMPTED in parts,
        "why answers have another number of tokens (max_tokens, stop, sampling)": TOKENS in parts,
        "decode (sequences a step, kernels, speculation)": TPOT in parts or (DECODE in parts and TOKENS not in parts),
    }
    where = [hint for hint, applies in hints.items() if applies]
    where += [f"the stage {name.removeprefix(COMPUTE_OF)}" for name in parts if name.startswith(COMPUTE_OF)]
    if not where and QUEUE_COUNTED in parts:
        where.append("arrivals and scheduling (the queue moved alone)")
    return where


def _signed(seconds: float) -> str:
    return f"{'+' if seconds >= 0 else ''}{format_seconds(seconds)}"
