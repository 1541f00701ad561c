"""The load of a run, as its test describes it, and the length of its measurement."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, cast, get_args

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.load.driver import LOCAL, EngineSource, check_users
from pytest_gpuserve.load.schedule import Closed, Objectives, Schedule, Steps, Trace, is_finite, is_open
from pytest_gpuserve.load.validity import LATE_SHARE, LATENCIES_LONG
from pytest_gpuserve.measure.rounds import FEWEST_GROUPS
from pytest_gpuserve.measure.steady import truncate
from pytest_gpuserve.measure.window import total
from pytest_gpuserve.verdict.evidence import BLOCKS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pytest_gpuserve.measure.window import Window


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
        _check("starts", self.starts, "a whole number of at least 2", is_right=_is_count(self.starts, 2))
        _check("processes", self.processes, "a whole number of at least 1", is_right=_is_count(self.processes))
        _check("seed", self.seed, "a whole number", is_right=type(self.seed) is int)
        _check("check", self.check, "'all' or 'some' of the answers", is_right=self.check in {"all", "some"})
        times = {"seconds": self.seconds, "warmup_seconds": self.warmup_seconds, "timeout": self.timeout_seconds}
        for name, value in times.items():
            is_right = value is None or (_is_number(value) and value > 0)
            _check(name, value, "a number of seconds above 0", is_right=is_right)
        share, requests, until, goodput = self.allowed_errors, self.requests, self.until, self.goodput
        is_right = _is_number(share) and 0 <= share < 1
        _check("allowed_errors", share, "a share of the requests in [0, 1)", is_right=is_right)
        _check("requests", requests, "a whole number of at least 1", is_right=requests is None or _is_count(requests))
        _check("until", until, "a function of the finished windows", is_right=until is None or callable(until))
        is_right = goodput is None or isinstance(goodput, Objectives)
        _check("goodput", goodput, "Objectives(ttft=200 * ms), from pytest_gpuserve.load", is_right=is_right)
        if requests is not None and until is not None:
            raise UsageProblem("load(requests=..., until=...): give one of them, because each ends a start")
        given = [name for name in ("requests", "until", "seconds") if getattr(self, name) is not None]
        if given and self.finite:
            kind = type(self.schedule).__name__
            raise UsageProblem(f"load({given[0]}=...) has no effect: a {kind} schedule ends by itself")
        check_users(self.schedule, self.processes)

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


def _is_count(value: object, least: int = 1) -> bool:
    return type(value) is int and value >= least


def _check(name: str, value: object, expected: str, *, is_right: bool) -> None:
    if not is_right:
        raise UsageProblem(f"load({name}=...) must be {expected}, not {value!r}")


# -- length of a start alone


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


# -- length of the turns of two servers

SETTLE_TICKS: Final = 1
"""Time at the begin of a turn that is thrown away, because the load has to build up again.

Its effect ends there: in 167 turns of mosec and LitServe servers the next tick had 0.998 (standard error 0.007) and
1.004 (0.012) of the throughput of later ticks.
"""

SETTLE_LATENCIES: Final = 2.0
"""Mean latencies until a load has built up: the first requests and their successors have been answered."""

LATENCIES_TIMES_TOLERANCE: Final = 1.0
LEAST_LATENCIES: Final = 8.0
"""Length of a window in mean latencies: the larger of the first number over the tolerance, and the second.

Users whose requests are batched together are answered together. So a window of n mean latencies counts n batches or one
more: 0.4 / n (sd) of its throughput. Over three blocks that is 1.2 % at a tolerance of 5 %, and at most 3 % at wide
tolerances.
"""

LEAST_TICKS: Final = 4
"""Fewest ticks of a window: those of the recorded rounds on which the rules were tried."""

WIDE_TOLERANCE: Final = 0.15
TICKS_WITHIN_WIDE: Final = 3
"""Ticks of a window if the throughput's tolerance is that wide: the spread by its shortness is small beside it."""

BLOCKS_FOR_REQUESTS: Final = (2, BLOCKS // FEWEST_GROUPS)
"""Blocks that together may hold the requests of a quantile, which are merged for it.

Pairs come first: three of them tell a p99 nearly as well as six blocks, for the spread between starts outweighs the
rest. A slow server gets along with two groups of three.
"""

MARGIN_OF_REQUESTS: Final = 1.1
"""The warm-up's rate is not exact, and one group of blocks without its requests would make all groups larger."""

MOST_TICKS_FOR_REQUESTS: Final = 4 * TICKS_A_WINDOW
"""Longest window for the sake of a quantile; a smaller number of requests is taken instead of a longer one."""

MOST_TICKS: Final = 20 * TICKS_A_WINDOW


@dataclass(frozen=True, slots=True)
class Pace:
    """Length of turns, in ticks.

    Args:
        settle: Ticks at the begin of a turn that are thrown away.
        window: Measured ticks.
    """

    settle: int
    window: int


def pace_of(warmup: Sequence[Window], shape: LoadShape, tolerance: float) -> Pace:
    """Length of a server's turns, from its warm-up.

    Args:
        warmup: Ticks of the warm-up, whose later half counts.
        shape: The load. Each group of blocks should have the largest reachable number of its ``requests_wanted``.
        tolerance: The throughput's tolerance.
    """
    base = LEAST_TICKS if tolerance < WIDE_TOLERANCE else TICKS_WITHIN_WIDE
    if shape.seconds is not None:
        base *= max(1, round(shape.seconds / (8 * WINDOW_SECONDS)))
    later = later_half(warmup)
    if not later.requests or later.latency.mean is None:
        return Pace(SETTLE_TICKS, base)
    latency_ticks = later.latency.mean / TICK_SECONDS
    for_requests = _ticks_for(shape.requests_wanted, later.requests / later.seconds * TICK_SECONDS)
    for_latencies = math.ceil(max(LEAST_LATENCIES, LATENCIES_TIMES_TOLERANCE / tolerance) * latency_ticks)
    settle = max(SETTLE_TICKS, math.ceil(SETTLE_LATENCIES * latency_ticks))
    return Pace(min(settle, MOST_TICKS), max(base, for_requests, min(for_latencies, MOST_TICKS)))


def later_half(warmup: Sequence[Window]) -> Window:
    """Sum of the later half of a warm-up."""
    return total(warmup[len(warmup) // 2 :])


def _ticks_for(requests_wanted: Iterable[int], rate_per_tick: float) -> int:
    """Ticks of a window, so that a group of blocks has the largest of these numbers that it can have."""
    for wanted in sorted(requests_wanted, reverse=True):
        for blocks in BLOCKS_FOR_REQUESTS:
            ticks = math.ceil(wanted * MARGIN_OF_REQUESTS / (2 * blocks) / rate_per_tick)
            if ticks <= MOST_TICKS_FOR_REQUESTS:
                return ticks
    return 0
