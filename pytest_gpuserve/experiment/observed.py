"""Observations of a load besides its metrics: counts, counters, components, steps. They are not gated."""

from __future__ import annotations

import itertools
import statistics
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.load.schedule import Steps
from pytest_gpuserve.measure.breakdown import Breakdown, breakdown_of
from pytest_gpuserve.measure.points import NotMeasured, total_of
from pytest_gpuserve.measure.steady import mser
from pytest_gpuserve.measure.window import Window
from pytest_gpuserve.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpuserve.load.schedule import Schedule
    from pytest_gpuserve.measure.counters import Counters, ServerSetting
    from pytest_gpuserve.measure.window import Session, Start
    from pytest_gpuserve.verdict.reason import Reason

GAP_NS: Final = 1_000_000
"""Longest gap between windows of one load. Its windows have no gaps, and a new load begins later than this."""


LEAST_TO_CUT: Final = 4
"""Steps of fewer windows are taken as a whole."""

WHOLE_SHARE: Final = 0.5
"""Share of its step's first window from which a window is whole: the load's last may have any length."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """One step, pooled over the starts.

    Args:
        users: Number of users.
        total: Sum of its windows. Requests count in the step of their end, sent at any time.
        steady_throughput: Throughput without the step's begin, if that was unlike the rest (MSER), and without answers
            after the load's end.
        last_window_throughput: Throughput of the last whole window: a load tool's "current RPS" at the end.
    """

    users: int
    total: Window
    steady_throughput: float
    last_window_throughput: float


class Observed:
    """Observations of a load so far.

    Args:
        sessions: Gives the measured sessions, the first look first; a comparison may add to them.
        schedule: Schedule of the requests; None if unknown.
    """

    def __init__(self, sessions: Callable[[], Sequence[Session]], schedule: Schedule | None = None) -> None:
        self._sessions = sessions
        self.schedule = schedule

    @property
    def sessions(self) -> Sequence[Session]:
        """Measured sessions so far, the first look first."""
        return self._sessions()

    @property
    def _starts(self) -> list[Start]:
        return [start for session in self.sessions for start in session.starts]

    @property
    def loads(self) -> int:
        """Number of times that the load was begun: once a start, and once a turn in side-by-side runs.

        At the begin and the end of each load, the server and the client count requests in flight differently.
        """
        return sum(_stretches(start.windows) for start in self._starts)

    @property
    def _windows(self) -> list[Window]:
        return [window for session in self.sessions for window in session.windows]

    @property
    def summary(self) -> Window:
        """Sum of all measured windows: requests, errors, throughput, latencies, delays of the client.

        Raises:
            NotMeasured: No request was answered.
        """
        return total_of(self._windows)

    @property
    def counters(self) -> Counters:
        """Server counts within the measured windows of all starts, with models or stages as parts.

        Raises:
            NotMeasured: The server does not count, or did not in every window.
        """
        found = Window.pooled(self._windows).counters
        if found is None:
            raise NotMeasured(
                "the server's counters are unknown: it has none, or did not report them in every window",
                remedies=["command_server and remote_server take counters=MetricNames(...)"],
            )
        return found

    @property
    def settings(self) -> Mapping[str, ServerSetting]:
        """Actual settings that the server of the last start reports; empty if it reports none."""
        return self._starts[-1].settings if self._starts else {}

    @property
    def cold_start_parts(self) -> Mapping[str, float]:
        """Parts of the last start's cold start in seconds, as the server reports them; empty if it reports none."""
        return self._starts[-1].cold_start_parts if self._starts else {}

    @property
    def breakdown(self) -> Breakdown:
        """Time of an average request, by component.

        Raises:
            NotMeasured: The server does not count by request, or no request was answered.
        """
        return breakdown_of(self.summary)

    @property
    def cpu_share(self) -> float:
        """Share of the machine's cores, 0 to 1, that server, client and all others kept busy; the mean over starts.

        Raises:
            NotMeasured: CPU share is not sampled in side-by-side runs, which have two servers.
        """
        known = [start.cpu_share for start in self._starts if start.cpu_share is not None]
        if not known:
            raise NotMeasured("the share of busy cores is unknown: it is not sampled side by side, or without a load")
        return statistics.fmean(known)

    @property
    def steps(self) -> tuple[StepResult, ...]:
        """Results of each step of a stepped load, pooled over the starts.

        Raises:
            UsageProblem: The load has no steps.
            NotMeasured: The load was measured side by side, as one window.
        """
        if not isinstance(self.schedule, Steps):
            raise UsageProblem(
                "run.steps needs a load whose users change in steps",
                remedies=["load(..., schedule=Steps(((1, 10), (20, 10))))"],
            )
        return steps_of(self.schedule.steps, self._starts)

    @property
    def problems(self) -> tuple[str, ...]:
        """Reasons why the run proves nothing, in words; empty if it is valid."""
        return tuple(map(str, self.invalid))

    @property
    def invalid(self) -> tuple[Reason, ...]:
        """Reasons why the run proves nothing, as values."""
        return tuple(problem for session in self.sessions for problem in session.problems)


def _stretches(windows: Sequence[Window]) -> int:
    """Number of stretches between gaps in the windows."""
    gaps = (later.begin_ns - earlier.end_ns > GAP_NS for earlier, later in itertools.pairwise(windows))
    return 1 + sum(gaps) if windows else 0


def steps_of(steps: Sequence[tuple[int, float]], starts: Sequence[Start]) -> tuple[StepResult, ...]:
    """Assign the windows of a stepped load to its steps: each belongs to the step that contains its middle.

    Args:
        steps: Steps of the schedule: number of users, and seconds.
        starts: Measured starts, each with the whole load.

    Raises:
        NotMeasured: The windows are too long to be assigned: side by side a whole load is one.
    """
    longest = max((window.seconds for start in starts for window in start.windows), default=0.0)
    if longest > min(seconds for _, seconds in steps) and len(steps) > 1:
        raise NotMeasured(
            f"the steps cannot be told apart: side by side the whole load is one window, of {format_seconds(longest)}"
        )
    ends = list(itertools.accumulate(seconds for _, seconds in steps))
    # Windows of each step in each start; in the last ones only requests in flight at the end were still answered.
    placed: list[list[list[Window]]] = [[[] for _ in starts] for _ in range(len(steps) + 1)]
    for number, start in enumerate(starts):
        passed = 0.0
        for window in start.windows:
            placed[bisect_right(ends, passed + window.seconds / 2)][number].append(window)
            passed += window.seconds
    *of_steps, drains = placed
    results = []
    for (users, _), found in zip(steps, of_steps, strict=True):
        whole = [[window for window in start if window.seconds > WHOLE_SHARE * start[0].seconds] for start in found]
        after = drains if found is of_steps[-1] else []
        results.append(
            StepResult(
                users=users,
                total=Window.pooled(list(itertools.chain(*found, *after))),
                steady_throughput=Window.pooled(list(itertools.chain(*map(_steady, whole)))).throughput,
                last_window_throughput=Window.pooled([start[-1] for start in whole if start]).throughput,
            )
        )
    return tuple(results)


def _steady(windows: list[Window]) -> list[Window]:
    return windows[mser([window.throughput for window in windows]) :] if len(windows) >= LEAST_TO_CUT else windows
