"""The load of a run, as its test describes it, and the length of its measurement."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, cast, get_args

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.load.driver import check_users
from pytest_gpuserve.load.schedule import Closed, Schedule, Steps, Trace, is_finite, is_open
from pytest_gpuserve.load.source import LOCAL
from pytest_gpuserve.load.validity import LATE_SHARE, LATENCIES_LONG
from pytest_gpuserve.measure.objectives import Objectives
from pytest_gpuserve.measure.steady import truncate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpuserve.load.source import EngineSource
    from pytest_gpuserve.measure.window import Window


def windows_wanted(windows: Sequence[Window], shape: LoadShape) -> int:
    """Number of windows that this start should reach: the present number if these are enough.

    The start is lengthened until its throughput is steady, the steady rest holds the requests that its quantiles need,
    and that rest is long enough for Little's law. ``shape.most_windows`` ends a start that gets no further; the caller
    has to check for that.

    Args:
        windows: Windows so far, at least two.
        shape: The load.
    """
    cut = truncate([window.throughput for window in windows])
    wanted = len(windows)
    if not cut.steady:
        doubled = 2 * shape.windows
        wanted = doubled if wanted < doubled else shape.most_windows
    kept = windows[cut.discard :]
    requests = sum(window.requests for window in kept)
    if not requests:
        # A slow server's first answers are still to come; missing answers end the load by their timeout.
        return len(windows) + 1
    rate = requests / len(kept)
    # Numbers that the longest start cannot reach are ignored.
    wanted_requests = max((each for each in shape.requests_wanted if each <= rate * shape.most_windows), default=0)
    if requests < wanted_requests:
        wanted = max(wanted, len(windows) + math.ceil((wanted_requests - requests) / rate))
    mean_seconds = sum(window.latency.sum_seconds for window in kept) / requests
    # Added to the cut windows, because the law is checked on the rest.
    return max(wanted, cut.discard + math.ceil(LATENCIES_LONG * mean_seconds / WINDOW_SECONDS))


TICK_SECONDS: Final = 0.1
TICKS_A_WINDOW: Final = 5
WINDOW_SECONDS: Final = TICK_SECONDS * TICKS_A_WINDOW

SECONDS: Final = 4.0
"""Default measured time of a start."""

LEAST_WINDOWS: Final = 4
"""Fewest windows of a start, because half of them may be cut."""

LENGTHEN_AT_MOST: Final = 3
"""Largest factor by which a start is lengthened if its quantiles need more requests."""

PATIENCE: Final = 15
"""Most time of a start that ends by ``requests`` or ``until``, as a multiple of ``seconds``."""


@dataclass(frozen=True)
class LoadShape:
    """The load of a run.

    Args:
        schedule: When requests are sent.
        seconds: Measured time of a start, 4 by default; not for a schedule that ends by itself.
        warmup_seconds: Loaded time before it, which is thrown away.
        starts: Fresh starts a session, at least two.
        timeout_seconds: Age at which a request becomes an error.
        requests: Number of requests that ends a start; replaces ``seconds``.
        until: Function of the finished windows that ends a start; replaces ``seconds``.
        processes: Load engines that share the schedule.
        seed: Seed of random arrivals and of a shuffled rotation.
        check: ``all`` checks every answer, ``some`` as many as disturb nothing.
        allowed_errors: Share of the requests that may fail.
        requests_wanted: Numbers of requests; a start is lengthened (up to three times) for the largest reachable one.
            Side by side, windows are lengthened for it.
        baseline_clock_mhz: Mean SM clock under this load when its baseline was recorded, None if unknown. A window with
            a much slower clock is measured again.
        foreign_cores: Cores that other processes may take, any number by default. A start, or a block side by side, in
            which they took more is measured again, up to a limit.
        goodput: Objectives of a good answer; None if the test names none.
        source: Source of the load engines.
        late_share: Largest share that the client's lateness may add to the time of users or to an open loop's
            latencies.

    Raises:
        UsageProblem: An argument is out of range, or two arguments contradict each other.
    """

    schedule: Schedule
    seconds: float | None = None
    warmup_seconds: float = 1.0
    starts: int = 2
    timeout_seconds: float = 10.0
    requests: int | None = None
    until: Callable[[Sequence[Window]], object] | None = field(default=None, compare=False)
    processes: int = 1
    seed: int = 0
    check: Literal["all", "some"] = "some"
    allowed_errors: float = 0.0
    requests_wanted: tuple[int, ...] = ()
    baseline_clock_mhz: float | None = field(default=None, compare=False)
    foreign_cores: float = field(default=math.inf, compare=False)
    goodput: Objectives | None = None
    source: EngineSource = field(default=LOCAL, compare=False)
    late_share: float = field(default=LATE_SHARE, compare=False)

    def __post_init__(self) -> None:
        for name in ("starts", "processes", "seed"):
            if type(getattr(self, name)) is not int:
                raise UsageProblem(f"load({name}=...) must be a whole number, not {getattr(self, name)!r}")
        if self.starts < 2:
            raise UsageProblem(
                f"load(starts={self.starts}): a session needs at least two fresh starts",
                remedies=["starts of one build differ by more than windows of one start do; leave starts=... out"],
            )
        if self.processes < 1:
            raise UsageProblem(f"load(processes={self.processes}): a load needs at least one engine")
        if self.check not in {"all", "some"}:
            raise UsageProblem(f"load(check=...) is 'all' or 'some' of the answers, not {self.check!r}")
        for name in ("seconds", "warmup_seconds", "timeout_seconds"):
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and value > 0):
                argument = "timeout" if name == "timeout_seconds" else name
                raise UsageProblem(f"load({argument}=...) must be a number of seconds above 0, not {value!r}")
        if not (_is_number(self.allowed_errors) and 0 <= self.allowed_errors < 1):
            raise UsageProblem(
                f"load(allowed_errors=...) must be a share of the requests in [0, 1), not {self.allowed_errors!r}"
            )
        if self.goodput is not None and not isinstance(self.goodput, Objectives):
            raise UsageProblem(
                f"load(goodput=...) must be Objectives, not {self.goodput!r}",
                remedies=["from pytest_gpuserve.load import Objectives; load(..., goodput=Objectives(ttft=200 * ms))"],
            )
        self._check_end()
        check_users(self.schedule, self.processes)

    def _check_end(self) -> None:
        if self.requests is not None and (type(self.requests) is not int or self.requests < 1):
            raise UsageProblem(f"load(requests=...) must be a whole number of at least 1, not {self.requests!r}")
        if self.until is not None and not callable(self.until):
            raise UsageProblem(f"load(until=...) must be a function of the finished windows, not {self.until!r}")
        if self.requests is not None and self.until is not None:
            raise UsageProblem("load(requests=..., until=...): give one of them, because each ends a start")
        given = [name for name in ("requests", "until", "seconds") if getattr(self, name) is not None]
        if given and is_finite(self.schedule):
            raise UsageProblem(
                f"load({given[0]}=...) has no effect: a {type(self.schedule).__name__} schedule ends by itself"
            )

    def workload(self) -> Mapping[str, str]:
        """Facts that a baseline must have in common with this load.

        The measured time is not one of them. The number of starts is, because sessions of more starts vary less.
        """
        words = {**self.schedule.workload(), "starts": str(self.starts)}
        if self.processes > 1 and "max_in_flight" in words:
            # Each worker has its share of the ceiling, and waits for that even if another one has room.
            words["processes"] = str(self.processes)
        if self.seed:
            words["seed"] = str(self.seed)
        if self.allowed_errors:
            words["allowed_errors"] = f"{self.allowed_errors:g}"
        if self.goodput is not None:
            words["goodput"] = str(self.goodput)
        return words

    def check_target(self, payloads: int, *, is_stream: bool, has_turns: bool = False) -> None:
        """Check that the target fits the load: payloads, streams, and users for conversations.

        Args:
            payloads: Number of payloads.
            is_stream: Whether answers are streams.
            has_turns: Whether some requests continue a conversation.

        Raises:
            UsageProblem: The target does not fit.
        """
        if self.goodput is not None and self.goodput.is_of_streams and not is_stream:
            raise UsageProblem(
                f"only a stream has a TTFT or a TPOT, and these answers are not streams ({self.goodput})",
                remedies=["server.post(..., stream=True)", "Objectives(latency=...) alone"],
            )
        if has_turns and is_open(self.schedule):
            raise UsageProblem(
                "a turn of a conversation follows an answer, and this load does not wait for answers",
                found=f"{self.workload()['load']}, of requests with turns",
                remedies=["users who converse: load(..., concurrency=16)", "leave out turns=..."],
            )
        if isinstance(self.schedule, Trace):
            highest = max(index for _, index in self.schedule.requests)
            if highest >= payloads:
                raise UsageProblem(
                    f"a Trace names request {highest} (from 0), but the load has {payloads}",
                    remedies=["load(server.rotate([server.post(...), server.post(...)]), schedule=Trace(...))"],
                )

    @property
    def finite(self) -> bool:
        """Whether the schedule ends by itself; then it is measured as a whole, and is not expected to be steady."""
        return is_finite(self.schedule)

    @property
    def ends_by_time(self) -> bool:
        """Whether time ends a start, and neither a number of requests nor the user's function."""
        return self.requests is None and self.until is None

    @property
    def warmup(self) -> Schedule:
        """Schedule of the warm-up: the load's own, or constant users if the load is measured as a whole."""
        if not self.finite:
            return self.schedule
        return Closed(self.schedule.steps[0][0]) if isinstance(self.schedule, Steps) else Closed(1)

    @property
    def windows(self) -> int:
        """Measured windows of a start."""
        return max(LEAST_WINDOWS, round((SECONDS if self.seconds is None else self.seconds) / WINDOW_SECONDS))

    @property
    def most_windows(self) -> int:
        """Largest number of windows of a start, after which it is given up."""
        return self.windows * (LENGTHEN_AT_MOST if self.ends_by_time else PATIENCE)


def schedule_of(concurrency: int | None, schedule: Schedule | None) -> Schedule:
    """Return the schedule; ``concurrency`` is the short form of one.

    Raises:
        UsageProblem: Both are given, or neither, or an argument has the wrong type.
    """
    if (concurrency is None) == (schedule is None):
        raise UsageProblem(
            "load(...) takes either concurrency=... or schedule=...",
            remedies=["concurrency=16 for a closed loop", "schedule=Poisson(rate=200) for an open one"],
        )
    if schedule is None:
        if type(concurrency) is not int or concurrency < 1:
            raise UsageProblem(f"load(concurrency=...) must be a whole number of users, not {concurrency!r}")
        return Closed(concurrency)
    if not isinstance(schedule, get_args(Schedule)):
        raise UsageProblem(
            f"load(schedule=...) must be a schedule of pytest_gpuserve.load, not {schedule!r}",
            remedies=["from pytest_gpuserve.load import Poisson; load(..., schedule=Poisson(rate=200))"],
        )
    return cast("Schedule", schedule)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms of a comparison of two servers.

    Args:
        shape: The load, which is the same for both.
        tolerance: The throughput's tolerance: a tighter one makes a window longer.
        one_at_a_time: Whether only one of the servers may run at a time.
        seed: Seed of the coins.
    """

    shape: LoadShape
    tolerance: float
    one_at_a_time: bool
    seed: str
