"""From windows to the numbers that are judged: one log cost a session, with how well the session knows it."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, ClassVar, Final

from pytest_gpuserve.errors import GpuserveError
from pytest_gpuserve.measure.histogram import merge
from pytest_gpuserve.measure.streams import Streams, is_quantile_known, within_one_read
from pytest_gpuserve.units import format_fraction, format_seconds
from pytest_gpuserve.verdict.metric import (
    COLD_START,
    GOODPUT,
    LATENCY,
    OUTPUT_TOKENS,
    Metric,
    log_cost,
    requests_needed,
)
from pytest_gpuserve.verdict.reason import Reason, ReasonKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpuserve.measure.histogram import Histogram
    from pytest_gpuserve.measure.window import Session, Start, Window

OF_STREAMS: Final = frozenset({"ttft", "itl", "tpot"})
"""Times that only streams have."""

ASK_FOR_USAGE: Final = 'ask for it in the request\'s body: "stream_options": {"include_usage": true}; server.chat does'


class NotMeasured(GpuserveError):
    """A metric has no value, or too few requests stand behind it; it is never judged."""

    kind: ClassVar[ReasonKind] = ReasonKind.NOT_MEASURED

    @property
    def reason(self) -> Reason:
        """The same as a verdict gives it."""
        return Reason(self.kind, str(self))


class TooFewRequests(NotMeasured):
    """The measurement is sound, there is only too little of it for the metric and its tolerance."""

    kind: ClassVar[ReasonKind] = ReasonKind.TOO_FEW_REQUESTS


def point(metric: Metric, session: Session, tolerance: float) -> float:
    """Reduce a session to one log cost: the mean over its starts, of a batching ratio that of its totals.

    Raises:
        NotMeasured: The metric is not known of every start.
        TooFewRequests: It is known, but too few requests of a start stand behind it.
    """
    if not session.starts:
        raise NotMeasured(f"{metric.name} is not known: no server start was measured")
    _demand_requests(metric, session, tolerance)
    return _cost(metric, session)


def _cost(metric: Metric, session: Session) -> float:
    costs = [log_cost(metric, value_of_starts(metric, [start])) for start in session.starts]
    if metric.name == "batching_ratio":
        return log_cost(metric, value_of(metric, session.windows))
    return statistics.fmean(costs)


def mean_value(metric: Metric, sessions: Sequence[Session]) -> float:
    """The metric of average sessions, in its unit: what stored numbers are compared by, at their mean log cost.

    Raises:
        NotMeasured: It is not known of every start, or there is none.
    """
    known = [session for session in sessions if session.starts]
    if not known:
        raise NotMeasured(f"{metric.name} is not known: no server start was measured")
    return metric.value_at(statistics.fmean(_cost(metric, session) for session in known))


def pooled_value(metric: Metric, sessions: Sequence[Session]) -> float:
    """The metric over all sessions together, in its unit: what a plain limit is compared with. Raises `NotMeasured`."""
    return value_of_starts(metric, [start for session in sessions for start in session.starts])


def too_few_requests(metric: Metric, sessions: Sequence[Session], tolerance: float) -> str:
    """Tell that a pooled quantile has too few requests behind it; empty where they are enough, or it is no quantile."""
    needed = requests_needed(metric, tolerance)
    found = sum(observations(metric, session.windows) for session in sessions)
    if metric.quantile is None or found >= needed:
        return ""
    return f"{metric.name} needs {needed} {metric.counted}, there are {found}"


def value_of_starts(metric: Metric, starts: Sequence[Start]) -> float:
    """The metric over some starts, in its unit: of what a start has one value of their mean, else that of all windows.

    Raises:
        NotMeasured: There is nothing to compute it from.
    """
    if metric.name == COLD_START:
        return statistics.fmean(cold_starts([start.cold_start_seconds for start in starts]))
    return value_of(metric, [window for start in starts for window in start.windows])


def value_of(metric: Metric, windows: Sequence[Window]) -> float:
    """The metric over some windows, in its unit. Raises `NotMeasured`."""
    if metric.name in _VALUES:
        return _VALUES[metric.name](metric, windows)
    if metric.quantile is None:
        raise NotMeasured(f"{metric.name} is not known of windows: a start has one, and it ends before the first")
    if metric.times != LATENCY:
        return _quantile_of_streams(metric, metric.quantile, windows)
    latency = merge(window.latency for window in windows)
    if latency.total == 0:
        raise NotMeasured(f"{metric.name} is not known: no request was answered")
    return latency.quantile(metric.quantile)


def _throughput(metric: Metric, windows: Sequence[Window]) -> float:
    requests = sum(window.requests for window in windows)
    if requests == 0:
        raise NotMeasured(f"{metric.name} is not known: no request was answered")
    return requests / sum(window.seconds for window in windows)


def _batching_ratio(metric: Metric, windows: Sequence[Window]) -> float:
    del metric
    items, batches = batch_totals(windows)
    if batches == 0 or items == 0:
        raise NotMeasured(
            "the batching ratio is not known: the server executed no batch in the measured windows",
            remedies=["give a stage a max_batch_size above 1, or name it: mosec_server(..., stage='Name_2')"],
        )
    return items / batches


def _quantile_of_streams(metric: Metric, q: float, windows: Sequence[Window]) -> float:
    streams = _streams(metric, windows)
    if metric.times == "tpot":
        _demand_usage(metric, streams)
    times: Histogram = getattr(streams, metric.times)
    if times.total == 0:
        raise NotMeasured(f"{metric.name} is not known: there were no {metric.counted}")
    # Of a first token there is no time before it that could be in the same read.
    if metric.times != "ttft" and not is_quantile_known(times, q):
        share = format_fraction(within_one_read(times))
        raise NotMeasured(f"{metric.name} is not known: {share} of its times lie within one read of the client")
    return times.quantile(q)


def _streams(metric: Metric, windows: Sequence[Window]) -> Streams:
    found = Streams.pooled(window.streams for window in windows)
    if found is None:
        raise NotMeasured(
            f"{metric.name} is not known: no answer was a stream",
            remedies=["ask for streams: server.post(..., stream=True)"],
        )
    return found


def _demand_usage(metric: Metric, streams: Streams) -> None:
    """Only the server knows how many tokens an answer has: a chunk may hold several."""
    if not streams.has_usage:
        raise NotMeasured(
            f"{metric.name} is not known: {streams.with_usage} of {streams.ttft.total} answers say how many tokens they"
            " have",
            remedies=[ASK_FOR_USAGE],
        )


def _tokens_per_second(metric: Metric, windows: Sequence[Window]) -> float:
    streams = _streams(metric, windows)
    _demand_usage(metric, streams)
    if streams.tokens <= 0:
        raise NotMeasured(f"{metric.name} is not known: no tokens arrived")
    return streams.tokens / math.fsum(window.seconds for window in windows)


def _goodput(metric: Metric, windows: Sequence[Window]) -> float:
    if any(window.good is None for window in windows):
        raise NotMeasured(
            f"{metric.name} is not known: this load has no objectives",
            remedies=["load(..., goodput=Objectives(ttft=200 * ms)), from pytest_gpuserve.load import Objectives"],
        )
    unjudged = sum(window.unjudged for window in windows)
    if unjudged:
        raise NotMeasured(
            f"{metric.name} is not known: {unjudged} answers do not say how many tokens they have",
            remedies=[ASK_FOR_USAGE],
        )
    good = sum(window.good or 0 for window in windows)
    if not good:
        answered = sum(window.requests for window in windows)
        raise NotMeasured(f"{metric.name} is not known: of {answered} answers none met all objectives")
    return good / math.fsum(window.seconds for window in windows)


def observations(metric: Metric, windows: Sequence[Window]) -> int:
    """How many there are of what stands behind a metric, see `Metric.counted`; of most it is the answered requests."""
    if metric.name == GOODPUT:
        # Of a much slower build few are good, and that is no want of requests.
        return sum(window.requests - window.unjudged for window in windows if window.good is not None)
    if metric.times in OF_STREAMS:
        return sum(getattr(window.streams, metric.times).total for window in windows if window.streams is not None)
    return sum(window.requests for window in windows)


def cold_starts(seconds: Sequence[float | None]) -> list[float]:
    """The cold starts in seconds. Raises `NotMeasured` where there is none, or one is not known."""
    known = [each for each in seconds if each is not None and each > 0]
    if not known and not seconds:
        raise NotMeasured(f"{COLD_START} is not known: no server start was measured")
    if len(known) < len(seconds):
        raise NotMeasured(
            f"{COLD_START} is not known: the server was not started by this run",
            remedies=["a remote server has no cold start: gate that of a server that the test starts, by its file"],
        )
    return known


def mean_sm_clock_mhz(sessions: Sequence[Session]) -> float | None:
    """Clock of the GPUs' multiprocessors while they computed, weighed by time; None where no window knows it.

    Windows in which they had nothing to do know none, so that a load with pauses has the clock of its work.
    """
    known = [
        (window.seconds, window.gpus.sm_clock_mhz)
        for session in sessions
        for window in session.windows
        if window.gpus is not None and window.gpus.sm_clock_mhz is not None
    ]
    seconds = math.fsum(each for each, _ in known)
    return math.fsum(each * clock for each, clock in known) / seconds if seconds else None


def batch_totals(windows: Sequence[Window]) -> tuple[int, int]:
    """Add up executed items and batches. Raises `NotMeasured` where a window does not have them."""
    items = batches = 0
    for window in windows:
        if window.items is None or window.batches is None:
            raise NotMeasured(
                "the batching ratio is not known: nothing counts this server's batches;"
                " command_server and remote_server take counters=MetricNames(...)"
            )
        items += window.items
        batches += window.batches
    return items, batches


_OF_GPUS: Final = {
    "energy_per_inference": ("joules", "energy"),
    "gpu_memory": ("memory_bytes", "memory"),
    "gpu_utilisation": ("utilisation", "utilisation"),
}
"""Of each metric of GPUs: its field of `GpuUse`, and its name for people."""


def _value_of_gpus(metric: Metric, windows: Sequence[Window]) -> float:
    """Telemetry of all GPUs together in some windows.

    Energy is their joules over the answered requests, idle power included; a request of several items counts once, as
    it does for the throughput. Memory is the most of any window, utilisation the mean weighed by time. Two servers side
    by side are on the same GPUs: while one is loaded the other rests, so its idle power is in the energy of both
    alike, and makes their ratio smaller than that of the servers alone.
    """
    field, what = _OF_GPUS[metric.name]
    known: list[tuple[float, float]] = []
    for window in windows:
        value = getattr(window.gpus, field, None)
        if value is None:
            raise _unseen(metric, what, is_watched=any(each.gpus is not None for each in windows))
        known.append((window.seconds, value))
    if not known:
        raise NotMeasured(f"{metric.name} is not known: no window was measured")
    if metric.name == "gpu_memory":
        found = max(value for _, value in known)
    elif metric.name == "gpu_utilisation":
        found = math.fsum(seconds * value for seconds, value in known) / math.fsum(seconds for seconds, _ in known)
    else:
        requests = sum(window.requests for window in windows)
        if requests == 0:
            raise NotMeasured(f"{metric.name} is not known: no request was answered")
        found = math.fsum(value for _, value in known) / requests
    if not (math.isfinite(found) and found > 0):
        raise NotMeasured(
            f"{metric.name} is not known: the GPUs' {what} reads {found:g} under this load",
            remedies=["see that the server computes on the GPU"],
        )
    return found


_VALUES: Final[Mapping[str, Callable[[Metric, Sequence[Window]], float]]] = {
    "throughput": _throughput,
    "batching_ratio": _batching_ratio,
    OUTPUT_TOKENS: _tokens_per_second,
    GOODPUT: _goodput,
    **dict.fromkeys(_OF_GPUS, _value_of_gpus),
}
"""How a metric is computed that is no quantile."""


def _unseen(metric: Metric, what: str, *, is_watched: bool) -> NotMeasured:
    if is_watched:
        return NotMeasured(
            f"{metric.name} is not known: a GPU did not tell its {what} in every window",
            remedies=[
                "gate it where the GPU and its driver count it"
                + (
                    "; of two servers that share it, side by side, none is known: gpuserve(one_at_a_time=True)"
                    if metric.name == "gpu_memory"
                    else "; of a MIG instance nothing does, only of a whole GPU"
                )
            ],
        )
    return NotMeasured(
        f"{metric.name} is not known: no GPU was watched under this load",
        remedies=["run it on a GPU of this machine: --gpu=NAME"],
    )


def _demand_requests(metric: Metric, session: Session, tolerance: float) -> None:
    needed = requests_needed(metric, tolerance)
    counts = [observations(metric, start.windows) for start in session.starts]
    fewest = min(counts)
    if fewest < needed:
        if not any(counts) and any(start.requests for start in session.starts):
            # What no answer had, more of them will not have.
            value_of_starts(metric, session.starts)
        start = session.starts[counts.index(fewest)]
        raise TooFewRequests(
            f"{metric.name} at a tolerance of {format_fraction(tolerance)} needs {needed} {metric.counted} a server"
            " start",
            found=f"{fewest} {metric.counted} in {format_seconds(start.seconds)}",
            remedies=[
                f"load(..., seconds={_enough(session, counts, needed)})",
                *([f"a wider tolerance by the marker gpuserve({metric.option}=...)"] if metric.is_of_requests else []),
            ],
        )


def _enough(session: Session, counts: Sequence[int], needed: int) -> int:
    """Whole seconds in which the slowest start would have come to so many, with a fifth to spare."""
    seconds_each = max(start.seconds / max(count, 1) for start, count in zip(session.starts, counts, strict=True))
    return math.ceil(1.2 * needed * seconds_each)
