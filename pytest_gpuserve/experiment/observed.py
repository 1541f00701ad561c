"""What was seen of a load beside its metrics: counts, counters, components, steps. Nothing of it is a gate."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.load.schedule import Steps
from pytest_gpuserve.measure.breakdown import Breakdown, breakdown_of
from pytest_gpuserve.measure.counters import Counters, added
from pytest_gpuserve.measure.points import NotMeasured
from pytest_gpuserve.measure.summary import StepResult, Summary, steps_of, summary_of
from pytest_gpuserve.measure.window import Client

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpuserve.load.schedule import Schedule
    from pytest_gpuserve.measure.counters import ServerSetting
    from pytest_gpuserve.measure.histogram import Histogram
    from pytest_gpuserve.measure.window import Session, Start, Window
    from pytest_gpuserve.verdict.reason import Reason


@dataclass(frozen=True)
class Quantiles:
    """Quantiles of durations, in seconds.

    Args:
        name: What they are of.
        histogram: The durations.
    """

    name: str
    histogram: Histogram

    @property
    def p50(self) -> float:
        """The median; as the others, it raises ``NotMeasured`` where there is nothing to compute it from."""
        return self._quantile(0.5)

    @property
    def p90(self) -> float:
        """The 90th percentile."""
        return self._quantile(0.9)

    @property
    def p95(self) -> float:
        """The 95th percentile."""
        return self._quantile(0.95)

    @property
    def p99(self) -> float:
        """The 99th percentile."""
        return self._quantile(0.99)

    def _quantile(self, q: float) -> float:
        if not self.histogram.total:
            raise NotMeasured(f"nothing was measured of the {self.name}")
        return self.histogram.quantile(q)


GAP_NS: Final = 1_000_000
"""Windows of one load follow each other without a gap, and engines are told of a begin longer before it."""


class Observed:
    """What was seen of a load so far.

    Args:
        sessions: What was measured, the first look first; a comparison may add to it.
        schedule: When its requests were sent; None where nobody knows.
    """

    def __init__(self, sessions: list[Session], schedule: Schedule | None = None) -> None:
        self.sessions = sessions
        self.schedule = schedule

    @property
    def _starts(self) -> list[Start]:
        return [start for session in self.sessions for start in session.starts]

    @property
    def loads(self) -> int:
        """How often the load was begun: once a start, and side by side as often as it was a server's turn.

        At the begin and the end of each, what is under way is counted by the server and the client on either side.
        """
        return sum(_stretches(start.windows) for start in self._starts)

    @property
    def summary(self) -> Summary:
        """Requests, errors, throughput and latencies over all that was measured.

        Raises:
            NotMeasured: No request was answered.
        """
        return summary_of(window for session in self.sessions for window in session.windows)

    @property
    def counters(self) -> Counters:
        """What the server counted within the measured windows of all starts, with its models or stages as parts.

        Raises:
            NotMeasured: It does not count, or not in every start.
        """
        known = [start.counters for start in self._starts if start.counters is not None]
        found = added(known)
        if found is None:
            raise NotMeasured(
                "this server counts nothing",
                remedies=["command_server and remote_server take counters=MetricNames(...)"],
            )
        if len(known) < len(self._starts):
            raise NotMeasured(f"of {len(self._starts)} starts only {len(known)} know what the server counted")
        return found

    @property
    def settings(self) -> Mapping[str, ServerSetting]:
        """How the server of the last start was really set up, beside what was asked for; empty where it is silent."""
        return self._starts[-1].settings if self._starts else {}

    @property
    def cold_start_parts(self) -> Mapping[str, float]:
        """What the server of the last start says that its cold start went to, in seconds; empty where it is silent."""
        return self._starts[-1].cold_start_parts if self._starts else {}

    @property
    def breakdown(self) -> Breakdown:
        """Where the time of an average request went.

        Raises:
            NotMeasured: The server does not count it by request, or no request was answered.
        """
        return breakdown_of(self.summary, self.counters, self.client)

    @property
    def cpu_share(self) -> float:
        """Share of the machine's cores, 0 to 1, that were busy meanwhile, by whomever: server, client and others.

        Raises:
            NotMeasured: Nobody looked, as side by side, where two servers are up.
        """
        known = [(start.seconds, start.cpu_share) for start in self._starts if start.cpu_share is not None]
        seconds = math.fsum(each for each, _ in known)
        if not seconds:
            raise NotMeasured("the share of busy cores is unknown: it is not sampled side by side, or without a load")
        return math.fsum(each * share for each, share in known) / seconds

    @property
    def steps(self) -> tuple[StepResult, ...]:
        """What each step of a stepped load came to, pooled over the starts.

        Raises:
            UsageProblem: The load has no steps.
            NotMeasured: It was measured side by side, where a whole load is one window.
        """
        if not isinstance(self.schedule, Steps):
            raise UsageProblem(
                "run.steps is of a load whose users change in steps",
                remedies=["load(..., schedule=Steps(((1, 10), (20, 10))))"],
            )
        return steps_of(self.schedule.steps, self._starts)

    @property
    def client(self) -> Client:
        """What the load engine saw beside the latencies."""
        return Client.pooled(session.client for session in self.sessions)

    @property
    def send_lag(self) -> Quantiles:
        """How late the client sent its requests."""
        return Quantiles("send lag", self.client.lag)

    @property
    def service(self) -> Quantiles:
        """Of an open loop, latencies from the actual send, without what a request waited in the client."""
        return Quantiles("service time, which only an open loop has beside the latency", self.client.service)

    @property
    def problems(self) -> tuple[str, ...]:
        """Why nothing may be concluded from this run, in words; empty when all is well."""
        return tuple(map(str, self.invalid))

    @property
    def invalid(self) -> tuple[Reason, ...]:
        """The same as values."""
        return tuple(problem for session in self.sessions for problem in session.problems)


def _stretches(windows: Sequence[Window]) -> int:
    """Into how many stretches gaps divide windows; each one whose time is not known, for it was kept, is one."""
    gaps = (
        not earlier.end_ns or later.begin_ns - earlier.end_ns > GAP_NS for earlier, later in itertools.pairwise(windows)
    )
    return 1 + sum(gaps) if windows else 0
