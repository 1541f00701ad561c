"""From windows to judged numbers: one log cost a session, and its precision."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, ClassVar, Final

from pytest_gpuserve.errors import GpuserveError
from pytest_gpuserve.measure.histogram import is_quantile_known, within_one_read
from pytest_gpuserve.measure.window import Streams, Window
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
    from pytest_gpuserve.measure.window import Session, Start

OF_STREAMS: Final = frozenset({"ttft", "itl", "tpot"})
"""Times that only streams have."""

LEAST_WINDOW_SECONDS: Final = 0.3
SECONDS_OF_LEAST_WINDOW: Final = 4
"""Side by side, a window lasts at least the first number for every four seconds of ``load(seconds=...)``."""

ASK_FOR_USAGE: Final = 'ask for it in the request\'s body: "stream_options": {"include_usage": true}; server.chat does'


class NotMeasured(GpuserveError):
    """A metric has no value, or rests on too few requests; it is not judged."""

    kind: ClassVar[ReasonKind] = ReasonKind.NOT_MEASURED

    @property
    def reason(self) -> Reason:
        """Reason for a verdict."""
        return Reason(self.kind, str(self))


class TooFewRequests(NotMeasured):
    """The measurement is sound, but too small for the metric and its tolerance."""

    kind: ClassVar[ReasonKind] = ReasonKind.TOO_FEW_REQUESTS


def point(metric: Metric, session: Session, tolerance: float) -> float:
    """Reduce a session to one log cost; see `cost`.

    Raises:
        NotMeasured: A start does not know the metric.
        TooFewRequests: A start has too few requests for the metric.
    """
    if not session.starts:
        raise NotMeasured(f"{metric.name} is not known: no server start was measured")
    demand_requests(metric, [start.windows for start in session.starts], tolerance, "each server start")
    return cost(metric, session.starts)


def cost(metric: Metric, starts: Sequence[Start]) -> float:
    """Log cost of starts: the mean over them, or for a batching ratio that of their totals. Raises `NotMeasured`."""
    costs = [log_cost(metric, value_of_starts(metric, [start])) for start in starts]
    if metric.name == "batching_ratio":
        return log_cost(metric, value_of_starts(metric, starts))
    return statistics.fmean(costs)


def mean_value(metric: Metric, sessions: Sequence[Session]) -> float:
    """The metric of average sessions, in its unit; stored numbers are compared by their mean log cost.

    Raises:
        NotMeasured: A session does not know the metric, or the list is empty.
    """
    known = [session for session in sessions if session.starts]
    if not known:
        raise NotMeasured(f"{metric.name} is not known: no server start was measured")
    return metric.value_at(statistics.fmean(cost(metric, session.starts) for session in known))


def pooled_value(metric: Metric, sessions: Sequence[Session]) -> float:
    """The metric over all sessions together, in its unit, for comparison with a limit. Raises `NotMeasured`."""
    return value_of_starts(metric, [start for session in sessions for start in session.starts])


def value_of_starts(metric: Metric, starts: Sequence[Start]) -> float:
    """The metric over some starts, in its unit: cold starts are averaged, other metrics use all windows together.

    Raises:
        NotMeasured: The values are missing.
    """
    if metric.name != COLD_START:
        return value_of(metric, [window for start in starts for window in start.windows])
    if not starts:
        raise NotMeasured(f"{COLD_START} is not known: no server start was measured")
    known = [start.cold_start_seconds for start in starts if start.cold_start_seconds]
    if len(known) < len(starts):
        raise NotMeasured(
            f"{COLD_START} is not known: the server was not started by this run",
            remedies=["a remote server has no cold start: gate a server that the test starts, by its file"],
        )
    return statistics.fmean(known)


def total_of(windows: Sequence[Window]) -> Window:
    """Sum of windows. Raises `NotMeasured` if no request was answered in them."""
    total = Window.pooled(windows)
    if not total.requests:
        raise NotMeasured("no request was answered in the measured time")
    return total


def value_of(metric: Metric, windows: Sequence[Window]) -> float:
    """The metric over some windows, in its unit. Raises `NotMeasured`."""
    total = Window.pooled(windows)
    if metric.name in _VALUES:
        return _VALUES[metric.name](metric, total)
    if metric.quantile is None:
        raise NotMeasured(f"{metric.name} is a number of a whole start, not of windows")
    if metric.times != LATENCY:
        return _quantile_of_streams(metric, metric.quantile, total)
    if not total.requests:
        raise _unanswered(metric)
    return total.quantile(metric.quantile)


def _unanswered(metric: Metric) -> NotMeasured:
    return NotMeasured(f"{metric.name} is not known: no request was answered")


def _throughput(metric: Metric, total: Window) -> float:
    if total.requests == 0:
        raise _unanswered(metric)
    return total.requests / total.seconds


def _batching_ratio(metric: Metric, total: Window) -> float:
    del metric
    counters = total.counters
    if counters is None or not counters.counts_batches:
        raise NotMeasured(
            "the batching ratio is not known: this server's batches are not counted;"
            " command_server and remote_server take counters=MetricNames(...)"
        )
    if counters.batches == 0 or counters.items == 0:
        raise NotMeasured(
            "the batching ratio is not known: the server executed no batch in the measured windows",
            remedies=["give a stage a max_batch_size above 1, or name it: mosec_server(..., stage='Name_2')"],
        )
    return counters.items / counters.batches


def _quantile_of_streams(metric: Metric, q: float, total: Window) -> float:
    streams = _streams(metric, total)
    if metric.times == "tpot":
        _demand_usage(metric, streams)
    times: Histogram = getattr(streams, metric.times)
    if times.total == 0:
        raise NotMeasured(f"{metric.name} is not known: the answers had no {metric.counted}")
    # The first token has no time before it that could be in the same read.
    if metric.times != "ttft" and not is_quantile_known(times, q):
        share = format_fraction(within_one_read(times))
        raise NotMeasured(
            f"{metric.name} is not known: for {share} of its times, one read of the client brought all tokens"
        )
    return times.quantile(q)


def _streams(metric: Metric, total: Window) -> Streams:
    if total.streams is None:
        raise NotMeasured(
            f"{metric.name} is not known: no answer was a stream",
            remedies=["request streams: server.post(..., stream=True)"],
        )
    return total.streams


def _demand_usage(metric: Metric, streams: Streams) -> None:
    """Raise unless all answers report a token count. The client cannot count, as a chunk may hold several tokens."""
    if not streams.has_usage:
        raise NotMeasured(
            f"{metric.name} is not known: only {streams.with_usage} of {streams.ttft.total} answers report their token"
            " count",
            remedies=[ASK_FOR_USAGE],
        )


def _tokens_per_second(metric: Metric, total: Window) -> float:
    streams = _streams(metric, total)
    _demand_usage(metric, streams)
    if streams.tokens <= 0:
        raise NotMeasured(f"{metric.name} is not known: no tokens arrived")
    return streams.tokens / total.seconds


def _goodput(metric: Metric, total: Window) -> float:
    if total.good is None:
        raise NotMeasured(
            f"{metric.name} is not known: this load has no objectives",
            remedies=["load(..., goodput=Objectives(ttft=200 * ms)), from pytest_gpuserve.load import Objectives"],
        )
    if total.unjudged:
        raise NotMeasured(
            f"{metric.name} is not known: {total.unjudged} answers do not report their token count",
            remedies=[ASK_FOR_USAGE],
        )
    if not total.good:
        raise NotMeasured(f"{metric.name} is not known: none of {total.requests} answers met all objectives")
    return total.good / total.seconds


_OF_GPUS: Final = {
    "energy_per_inference": ("joules", "energy", "a MIG instance does not count it, only a whole GPU does"),
    "gpu_memory": (
        "memory_bytes",
        "memory",
        "two servers side by side share it: start them alternately, @pytest.mark.gpuserve(one_at_a_time=True)",
    ),
    "gpu_utilisation": ("utilisation", "utilisation", "a MIG instance does not count it, only a whole GPU does"),
}
"""Field of `GpuUse` of each metric of GPUs, its name for people, and a case in which it is unknown."""


def _value_of_gpu(metric: Metric, total: Window) -> float:
    """Use of the GPU.

    Energy is the GPU's joules over the answered requests, idle power included. A request of several items counts once,
    as for the throughput. Two servers side by side share the GPU: while one is loaded the other rests, and its idle
    power is in the energy of both alike. The ratio of their energies is therefore closer to 1 than that of the servers
    alone.
    """
    field, what, case = _OF_GPUS[metric.name]
    found: float | None = getattr(total.gpus, field, None)
    if found is None:
        raise NotMeasured(
            f"{metric.name} is not known: the GPU's {what} was not read in every window",
            remedies=["run it on a GPU of this machine: --gpu=NAME", case],
        )
    if field == "joules":
        if not total.requests:
            raise _unanswered(metric)
        found /= total.requests
    if not (math.isfinite(found) and found > 0):
        raise NotMeasured(
            f"{metric.name} is not known: the GPU's {what} reads {found:g} under this load",
            remedies=["check that the server computes on the GPU"],
        )
    return found


_VALUES: Final[Mapping[str, Callable[[Metric, Window], float]]] = {
    "throughput": _throughput,
    "batching_ratio": _batching_ratio,
    OUTPUT_TOKENS: _tokens_per_second,
    GOODPUT: _goodput,
    **dict.fromkeys(_OF_GPUS, _value_of_gpu),
}
"""Computation of each metric of windows that is not a quantile."""


def observations(metric: Metric, windows: Sequence[Window]) -> int:
    """Sample size of a metric, see `Metric.counted`; for most metrics the answered requests."""
    if metric.name == GOODPUT:
        # A much slower build has few good answers, but not too few requests.
        return sum(window.requests - window.unjudged for window in windows if window.good is not None)
    if metric.times in OF_STREAMS:
        return sum(getattr(window.streams, metric.times).total for window in windows if window.streams is not None)
    return sum(window.requests for window in windows)


def demand_requests(
    metric: Metric,
    parts: Sequence[Sequence[Window]],
    tolerance: float,
    where: str,
    *,
    window_seconds: float | None = None,
) -> None:
    """Check that every part of a measurement has the requests that a metric needs.

    Args:
        metric: The metric.
        parts: Windows of each part, at least one part.
        tolerance: Its tolerance.
        where: Name of such a part.
        window_seconds: Length of a window where ``load(seconds=...)`` sets that: side by side.

    Raises:
        TooFewRequests: A part has too few.
        NotMeasured: More requests would not help, because none so far tells the metric.
    """
    needed = requests_needed(metric, tolerance)
    counts = [observations(metric, windows) for windows in parts]
    fewest = min(counts)
    if fewest >= needed:
        return
    windows = [window for part in parts for window in part]
    if not any(counts) and any(window.requests for window in windows):
        value_of(metric, windows)
    seconds = math.fsum(window.seconds for window in parts[counts.index(fewest)])
    factor = 1.2 * needed / fewest if fewest else None
    if factor is None:
        longer = "measure longer: load(..., seconds=...)"
    elif window_seconds is None:
        longer = f"measure {factor:.1f} times as long: load(..., seconds=...)"
    else:
        steps = math.ceil(factor * window_seconds / LEAST_WINDOW_SECONDS)
        longer = f"windows {factor:.1f} times as long: load(..., seconds={steps * SECONDS_OF_LEAST_WINDOW})"
    raise TooFewRequests(
        f"{metric.name} at a tolerance of {format_fraction(tolerance)} needs {needed} {metric.counted} in {where}",
        found=f"{fewest} {metric.counted} in {format_seconds(seconds)}",
        remedies=[
            f"{longer}, or a longer schedule",
            *([f"a wider tolerance by the marker gpuserve({metric.option}=...)"] if metric.is_of_requests else []),
        ],
    )
