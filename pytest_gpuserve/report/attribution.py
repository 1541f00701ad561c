"""Parts of a server's time that moved with its latency, from its counters; never a cause that was not counted."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.measure.breakdown import QueueFrom, profile_of
from pytest_gpuserve.measure.counters import moved
from pytest_gpuserve.measure.points import NotMeasured, mean_value
from pytest_gpuserve.measure.window import Client
from pytest_gpuserve.measure.work import SAME_CACHED
from pytest_gpuserve.units import format_change, format_fraction, format_ratio, format_seconds
from pytest_gpuserve.verdict.metric import METRICS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pytest_gpuserve.measure.breakdown import Profile
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

CLIENT: Final = "client lag p99"
CLIENT_CORES: Final = "client"
OUTSIDE: Final = "network and client"
QUEUE: Final = "queue"
REST: Final = "queue, network and client"
FORMATION: Final = "batch formation"
FILLING: Final = "time to fill a batch"
COMPUTE: Final = "compute per batch"
OTHER_COMPUTE: Final = "compute of "
TTFT: Final = "queue and prefill (TTFT)"
DECODE: Final = "decode"
TPOT: Final = "decode a token (TPOT)"
TOKENS: Final = "tokens an answer"
CACHED: Final = "prompt tokens from the prefix cache"
PREEMPTIONS: Final = "preemptions"

QUEUES: Final = {
    QueueFrom.COUNTER: (QUEUE, ""),
    QueueFrom.SERVER: (QUEUE, "the server's time less compute"),
    QueueFrom.LATENCY: (REST, "the latency less compute"),
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
    clients = [Client.pooled(session.client for session in sessions) for sessions in (before, after)]
    settings = [
        next((start.settings for session in reversed(sessions) for start in session.starts if start.settings), {})
        for sessions in (before, after)
    ]
    return [
        *moved(*settings),
        *attribution(profile_of(windows[0], clients[0]), profile_of(windows[1], clients[1])),
    ]


def attribution(before: Profile, after: Profile) -> list[str]:
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


def _parts(before: Profile, after: Profile) -> list[_Part]:
    """All parts in the order of a request's way; a detail of another part only if it is known."""
    whole = after.mean_seconds - before.mean_seconds
    least = NOTABLE_SHARE * max(abs(whole), NOTABLE_CHANGE * before.mean_seconds)
    tail = after.p99_seconds - before.p99_seconds
    tail_least = NOTABLE_SHARE * max(abs(tail), TAIL_CHANGE * before.p99_seconds)
    in_latency = partial(
        _Part,
        text=format_seconds,
        least=least,
        additive=True,
        whole=whole if _notable(before, after) else 0.0,
    )
    details = [
        in_latency(OUTSIDE, before.outside_seconds, after.outside_seconds),
        _Part(FILLING, before.formation_seconds, after.formation_seconds, format_seconds, least),
        in_latency(TTFT, before.ttft_seconds, after.ttft_seconds),
        in_latency(DECODE, before.decode_seconds, after.decode_seconds),
        _Part(TPOT, before.tpot_seconds, after.tpot_seconds, format_seconds),
        _Part(TOKENS, before.tokens, after.tokens, format_ratio),
        _Part(CACHED, before.cached_share, after.cached_share, format_fraction, SAME_CACHED),
        _Part(PREEMPTIONS, before.preemptions, after.preemptions, "{:.0f}".format, 1.0, " in 1000 requests"),
    ]
    outside, filling, *of_streams = ([part] if (part.before, part.after) != (None, None) else [] for part in details)
    return [
        _Part(CLIENT, before.client_lag_seconds, after.client_lag_seconds, format_seconds, tail_least),
        _Part(CLIENT_CORES, before.client_cores, after.client_cores, format_fraction, NOTABLE_SHARE, " of a core"),
        *outside,
        *itertools.chain(*of_streams),
        *_queues(before, after, in_latency),
        _Part(FORMATION, before.items_per_batch, after.items_per_batch, format_ratio, unit=" items"),
        *filling,
        in_latency(COMPUTE, before.compute_seconds, after.compute_seconds),
        *(
            in_latency(OTHER_COMPUTE + stage, before.other_compute.get(stage), after.other_compute.get(stage))
            for stage in sorted({*before.other_compute, *after.other_compute})
        ),
    ]


def _queues(before: Profile, after: Profile, in_latency: partial[_Part]) -> list[_Part]:
    """The queue of both servers if it has the same origin, else that of each apart."""
    known = {profile.queue_from for profile in (before, after)} - {None}
    if not known:
        return [in_latency(QUEUE, None, None)]
    found = []
    for how, (name, note) in QUEUES.items():
        old, new = (profile.queue_seconds if profile.queue_from is how else None for profile in (before, after))
        if how in known:
            found.append(in_latency(name, old, new, note=note))
    return found


def _notable(before: Profile, after: Profile) -> bool:
    """Whether the mean latency has moved."""
    return abs(after.mean_seconds / before.mean_seconds - 1) >= NOTABLE_CHANGE


def _shares(before: Profile, after: Profile, counted: list[_Part]) -> list[str]:
    """Share of each part in the mean latency's change."""
    if not _notable(before, after):
        return []
    whole = after.mean_seconds - before.mean_seconds
    parts = [part for part in counted if part.additive and abs(part.change) >= NOTABLE_SHARE * abs(whole)]
    parts.sort(key=lambda part: -abs(part.change))
    texts = (f"{part.name} {_signed(part.change)} ({part.change / whole * 100:.0f} %)" for part in parts)
    return _joined(f"of the mean latency's {_signed(whole)}", texts)


def _tail(before: Profile, after: Profile) -> list[str]:
    """Note that only the slowest requests changed, about which means are silent."""
    tail = after.p99_seconds / before.p99_seconds - 1
    if abs(tail) < TAIL_CHANGE or _notable(before, after):
        return []
    mean = after.mean_seconds / before.mean_seconds - 1
    text = f"latency.p99 {format_change(tail)}, but the mean latency {format_change(mean)}: few requests changed"
    return [f"{text}, and counters that are means do not say why"]


def _where(moved: list[_Part]) -> list[str]:
    """The first places to look, by the parts that moved together."""
    parts = {part.name: part for part in moved}
    compute, items = parts.get(COMPUTE), parts.get(FORMATION)
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
        "the size of the KV cache, and how many sequences share it": PREEMPTIONS in parts,
        "why answers have another number of tokens (max_tokens, stop, sampling)": TOKENS in parts,
        "decode (sequences a step, kernels, speculation)": TPOT in parts or (DECODE in parts and TOKENS not in parts),
    }
    where = [hint for hint, applies in hints.items() if applies]
    where += [f"the stage {name.removeprefix(OTHER_COMPUTE)}" for name in parts if name.startswith(OTHER_COMPUTE)]
    if not where and QUEUE in parts:
        where.append("arrivals and scheduling (the queue moved alone)")
    return where


def _signed(seconds: float) -> str:
    return f"{'+' if seconds >= 0 else ''}{format_seconds(seconds)}"
