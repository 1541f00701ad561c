"""Parts of a server's time that moved with its latency, from its counters; never a cause that was not counted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.measure.counters import Counters, moved
from pytest_gpuserve.measure.points import NotMeasured, mean_value
from pytest_gpuserve.measure.window import COMPUTE, FORMATION, OTHER_COMPUTE, QUEUE, SERVER, Streams, Window
from pytest_gpuserve.measure.work import SAME_CACHED, cached_share, preemptions_of_thousand
from pytest_gpuserve.units import format_change, format_fraction, format_ratio, format_seconds
from pytest_gpuserve.verdict.metric import METRICS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pytest_gpuserve.measure.window import Session
    from pytest_gpuserve.verdict.metric import Metric

NOTABLE_CHANGE: Final = 0.03
"""Change below which the mean latency did not move, nor a quantity that is not a part of it."""

NOTABLE_SHARE: Final = 0.10
"""Share of the change of the latency below which a part did not move, even if it doubled."""

TAIL_CHANGE: Final = 0.10
"""Change of p99 that needs an explanation if the mean did not change; a smaller one is within its noise."""

LARGEST_CHANGE: Final = 10.0
"""Change beyond which a percentage says less than the two values."""

MEAN: Final = "mean latency"
P99: Final = "latency.p99"
CLIENT: Final = "client lag p99"
ITEMS: Final = "batch formation"
COMPUTE_OF_BATCH: Final = "compute per batch"
STAGE: Final = "compute of "
"""Prefix of the computation of an average batch in another stage of the pipeline."""

DECODE: Final = "decode"
TOKENS: Final = "tokens an answer"

QUEUE_OF_SERVER: Final = "queue (the server's time less compute)"
"""A queue that is not counted, with the wait for a batch to fill."""

QUEUE_OF_LATENCY: Final = "queue, network and client (the latency less compute)"
"""The same if the server's time is not counted either."""

_MACHINE: Final = "the measuring machine and the way to the server"
_DECODING: Final = "decode (sequences a step, kernels, speculation)"
_ALONE: Final = "arrivals and scheduling (the queue moved alone)"


@dataclass(frozen=True)
class _Kind:
    """A kind of part.

    Args:
        look_at: First place to look if it moved.
        text: Formats a value, without ``unit``.
        least: Smallest change that is worth a word, in its own unit; None for a share of the latency's change.
        in_latency: Whether it is a part of the mean latency.
        usual: Whether its absence is worth a word.
    """

    look_at: str = ""
    text: Callable[[float], str] = format_seconds
    unit: str = ""
    least: float | None = None
    in_latency: bool = False
    usual: bool = False


PARTS: Final[Mapping[str, _Kind]] = {
    CLIENT: _Kind(_MACHINE, usual=True),
    "client": _Kind(text=format_fraction, unit=" of a core", least=NOTABLE_SHARE),
    "network and client": _Kind(_MACHINE, in_latency=True),
    "queue and prefill (TTFT)": _Kind("queue and prefill (prompts, prefix cache, slots)", in_latency=True),
    DECODE: _Kind(_DECODING, in_latency=True),
    "decode a token (TPOT)": _Kind(_DECODING, least=0.0),
    TOKENS: _Kind(
        "why answers have another number of tokens (max_tokens, stop, sampling)", text=format_ratio, least=0.0
    ),
    "prompt tokens from the prefix cache": _Kind(
        "the prefix cache (its setting, its size, the prompts)", text=format_fraction, least=SAME_CACHED
    ),
    "preemptions": _Kind(
        "the size of the KV cache, and how many sequences share it", "{:.0f}".format, " in 1000 requests", least=1.0
    ),
    **dict.fromkeys((QUEUE, QUEUE_OF_SERVER, QUEUE_OF_LATENCY), _Kind(_ALONE, in_latency=True)),
    ITEMS: _Kind("batches (batching window, max_batch_size, arrivals)", format_ratio, " items", least=0.0, usual=True),
    "time to fill a batch": _Kind(),
    COMPUTE_OF_BATCH: _Kind("the model, its kernels, the clocks", in_latency=True, usual=True),
}
"""Parts in the order of a request's way; other stages of the pipeline follow."""


def profile_of(windows: Sequence[Window]) -> dict[str, float]:
    """Known parts of a server's mean latency by name, in seconds, items, cores or as shares.

    If they are known, queue, computation and the time outside add up to the mean, except for values that are rounded
    up to zero. A batch counts once in its computation, for any number of requests. If large batches take longer than
    small ones, part of a request's wait is in the queue.

    Args:
        windows: Windows of one server, or of several starts of it.

    Raises:
        ValueError: No request was answered in the windows.
    """
    total = Window.pooled(windows)
    mean, counters, streams = total.latency.mean, total.counters or Counters(0, 0), total.streams or Streams()
    if mean is None:
        raise ValueError("the latency of windows without answered requests cannot be explained")
    stages = {name: time.mean for name, time in counters.stages.items() if time.count}
    other = {
        name.replace(OTHER_COMPUTE, STAGE, 1): seconds
        for name, seconds in sorted(stages.items())
        if name.startswith(OTHER_COMPUTE)
    }
    server, queue, compute = (stages.get(name) for name in (SERVER, QUEUE, COMPUTE))
    outside, queue_name = None if server is None else mean - server, QUEUE
    if compute is not None:
        busy = compute + math.fsum(other.values())
        if queue is None:
            queue_name, whole = (QUEUE_OF_LATENCY, mean) if server is None else (QUEUE_OF_SERVER, server)
            queue = max(0.0, whole - busy)
        elif server is None:
            outside = mean - queue - busy
    ttft = streams.ttft.mean
    found = {
        MEAN: mean,
        P99: total.quantile(0.99),
        CLIENT: total.lag.quantile(0.99) if total.lag.total else None,
        "client": total.cpu_seconds / total.seconds,
        "network and client": None if outside is None else max(0.0, outside),
        "queue and prefill (TTFT)": ttft,
        DECODE: None if ttft is None else max(0.0, mean - ttft),
        "decode a token (TPOT)": streams.tpot.mean if streams.has_usage else None,
        TOKENS: streams.usage_tokens / total.requests if streams.has_usage else None,
        "prompt tokens from the prefix cache": cached_share(windows),
        "preemptions": preemptions_of_thousand(windows),
        queue_name: queue,
        ITEMS: counters.items / counters.batches if counters.batches else None,
        "time to fill a batch": stages.get(FORMATION),
        COMPUTE_OF_BATCH: compute,
        **other,
    }
    return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True)
class _Part:
    """A part that is known before and after.

    Args:
        kind: Its kind.
        least: Smallest change that is worth a word, in its own unit.
        whole: Change of the mean latency, if that moved and this is a part of it; else 0.
    """

    name: str
    before: float
    after: float
    kind: _Kind
    least: float
    whole: float

    @property
    def change(self) -> float:
        """Change in its own unit."""
        return self.after - self.before

    @property
    def relative(self) -> float:
        """Change as a fraction; infinite if the first value is 0."""
        return self.change / self.before if self.before else math.copysign(math.inf, self.change)

    @property
    def moved(self) -> bool:
        """Whether the change is worth a word."""
        if not self.change or abs(self.change) < self.least:
            return False
        return bool(self.whole) or abs(self.relative) >= NOTABLE_CHANGE

    def __str__(self) -> str:
        """``compute per batch 4.10 ms -> 4.52 ms (+10.2 %)``, or one value if both have the same text."""
        before, after = self.kind.text(self.before), self.kind.text(self.after)
        values = after if before == after else f"{before} -> {after}"
        is_percent = self.moved and abs(self.relative) <= LARGEST_CHANGE
        return f"{self.name} {values}{self.kind.unit}" + (f" ({format_change(self.relative)})" if is_percent else "")


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
    change = after[MEAN] - before[MEAN]
    mean, tail = (after[name] / before[name] - 1 for name in (MEAN, P99))
    is_notable = abs(mean) >= NOTABLE_CHANGE
    of_mean = NOTABLE_SHARE * max(abs(change), NOTABLE_CHANGE * before[MEAN])
    of_tail = NOTABLE_SHARE * max(abs(after[P99] - before[P99]), TAIL_CHANGE * before[P99])
    kinds = {**PARTS, **{name: _stage(name) for name in (*before, *after) if name.startswith(STAGE)}}
    parts = [
        _Part(
            name,
            before[name],
            after[name],
            kind,
            least=kind.least if kind.least is not None else of_tail if name == CLIENT else of_mean,
            whole=change if kind.in_latency and is_notable else 0.0,
        )
        for name, kind in kinds.items()
        if name in before and name in after
    ]
    known = {part.name for part in parts}
    uncounted = [
        name for name, kind in kinds.items() if name not in known and (kind.usual or name in before or name in after)
    ]
    changed = [part for part in parts if part.moved]
    shares = sorted(
        (part for part in parts if part.whole and abs(part.change) >= NOTABLE_SHARE * abs(change)),
        key=lambda part: -abs(part.change),
    )
    lines = [
        *_joined("moved with it", map(str, changed) if changed else ["nothing that was counted"]),
        *_joined(
            f"of the mean latency's {_signed(change)}",
            (f"{part.name} {_signed(part.change)} ({part.change / change * 100:.0f} %)" for part in shares),
        ),
        *_joined("did not move", (str(part) for part in parts if not part.moved)),
        *_joined("not counted", uncounted),
    ]
    if abs(tail) >= TAIL_CHANGE and not is_notable:
        text = f"latency.p99 {format_change(tail)}, but the mean latency {format_change(mean)}: few requests changed"
        lines.append(f"{text}, and counters do not say why, because they are means")
    return [*lines, *_joined("look at", _where(changed), "; ")]


def _stage(name: str) -> _Kind:
    return _Kind(f"the stage {name.removeprefix(STAGE)}", in_latency=True)


def _joined(label: str, texts: Iterable[str], between: str = ", ") -> list[str]:
    together = between.join(texts)
    return [f"{label}: {together}"] if together else []


def _where(changed: list[_Part]) -> list[str]:
    """The first places to look, by the parts that moved together."""
    parts = {part.name: part for part in changed}
    hints = {name: part.kind.look_at for name, part in parts.items() if part.kind.look_at}
    compute, items = parts.get(COMPUTE_OF_BATCH), parts.get(ITEMS)
    # Work grows with a batch's size, but not faster. Beyond that, the work itself has changed.
    if compute and items and 0 < compute.relative / items.relative <= 1:
        del hints[COMPUTE_OF_BATCH]
        hints[ITEMS] += ", or compute: either may follow from the other"
    if TOKENS in hints:
        # Longer answers take longer to decode.
        hints.pop(DECODE, None)
    where = list(dict.fromkeys(hints.values()))
    return [hint for hint in where if hint != _ALONE] or where


def _signed(seconds: float) -> str:
    return f"{'+' if seconds >= 0 else ''}{format_seconds(seconds)}"
