"""The load of a run, as its test asked for it, and how long it is measured for what is asked of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, cast, get_args

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.load.driver import check_users
from pytest_gpuserve.load.schedule import Closed, Schedule, Steps, Trace, is_finite
from pytest_gpuserve.load.source import LOCAL
from pytest_gpuserve.load.validity import LATE_SHARE, LATENCIES_LONG
from pytest_gpuserve.measure.objectives import Objectives
from pytest_gpuserve.measure.steady import truncate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpuserve.load.source import EngineSource
    from pytest_gpuserve.measure.window import Window


def windows_wanted(windows: Sequence[Window], shape: LoadShape) -> int:
    """Return how many windows this start should come to: those that it has, where these will do.

    It is lengthened until its throughput is steady, until what is left of it holds the requests that its quantiles
    need, and until that is long enough for Little's law. Where that leads nowhere ``shape.most_windows`` ends it, which
    is for the caller to see.

    Args:
        windows: Measured so far, two at least.
        shape: How it is loaded.
    """
    cut = truncate([window.throughput for window in windows])
    wanted = len(windows)
    if not cut.steady:
        doubled = 2 * shape.windows
        wanted = doubled if wanted < doubled else shape.most_windows
    kept = windows[cut.discard :]
    requests = sum(window.requests for window in kept)
    if not requests:
        # A slow server's first answers are still to come; those that never come end the load by their timeout.
        return len(windows) + 1
    rate = requests / len(kept)
    # What the longest start does not have is not waited for.
    wanted_requests = max((each for each in shape.requests_wanted if each <= rate * shape.most_windows), default=0)
    if requests < wanted_requests:
        wanted = max(wanted, len(windows) + math.ceil((wanted_requests - requests) / rate))
    mean_seconds = sum(window.latency.sum_seconds for window in kept) / requests
    # On top of what was cut off: the law is asked of the rest.
    return max(wanted, cut.discard + math.ceil(LATENCIES_LONG * mean_seconds / WINDOW_SECONDS))


TICK_SECONDS: Final = 0.1
TICKS_A_WINDOW: Final = 5
WINDOW_SECONDS: Final = TICK_SECONDS * TICKS_A_WINDOW

SECONDS: Final = 4.0
"""Measured time of a start, unless its test says otherwise."""

LEAST_WINDOWS: Final = 4
"""Of a start: half of them may be cut."""

LENGTHEN_AT_MOST: Final = 3
"""A start is measured up to so many times as long as asked, if its quantiles need more requests."""

PATIENCE: Final = 15
"""A start that ends by ``requests`` or ``until`` may take so many times ``seconds``."""


@dataclass(frozen=True)
class LoadShape:
    """The load of a run.

    Args:
        schedule: When requests are sent.
        seconds: Measured time of a start, 4 by default; a schedule that ends by itself takes none.
        warmup_seconds: Loaded time before it, which is thrown away.
        starts: Fresh starts a session, two at least.
        timeout_seconds: After which a request is an error.
        requests: Instead of ``seconds``, a start ends after so many.
        until: Instead of ``seconds``, a start ends when this says so of its finished windows.
        processes: Load engines that share the schedule.
        seed: Of random arrivals and of a shuffled rotation.
        check: Whether ``all`` answers are checked, or ``some``, as many as disturb nothing.
        allowed_errors: Share of the requests that may fail.
        requests_wanted: A start is lengthened (up to three times) to reach the most of these that it can.
        baseline_clock_mhz: Mean SM clock under this load when its baseline was recorded: with a much slower one a
            window is measured again. None if not known.
        foreign_cores: Cores that others may take: a start in which they took more is measured again, where not too many
            are. None for as many as they like.
        goodput: What each answer has to meet to be a good one; None where nobody asks.
        source: Where the load engines come from.
        late_share: What the client may add, by being late, of the time of users or of an open loop's latencies.

    Raises:
        UsageProblem: An argument is out of range, or two contradict each other.
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
    foreign_cores: float | None = field(default=None, compare=False)
    goodput: Objectives | None = None
    source: EngineSource = field(default=LOCAL, compare=False)
    late_share: float = field(default=LATE_SHARE, compare=False)

    def __post_init__(self) -> None:
        for name in ("starts", "processes", "seed"):
            if type(getattr(self, name)) is not int:
                raise UsageProblem(f"load({name}=...) is a whole number, not {getattr(self, name)!r}")
        if self.starts < 2:
            raise UsageProblem(
                f"load(starts={self.starts}): a session has two fresh starts at least",
                remedies=["starts of one build differ by more than windows of one start do; leave starts=... out"],
            )
        if self.processes < 1:
            raise UsageProblem(f"load(processes={self.processes}): one engine at least makes a load")
        if self.check not in {"all", "some"}:
            raise UsageProblem(f"load(check=...) is 'all' or 'some' of the answers, not {self.check!r}")
        for name in ("seconds", "warmup_seconds", "timeout_seconds"):
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and value > 0):
                argument = "timeout" if name == "timeout_seconds" else name
                raise UsageProblem(f"load({argument}=...) is a number of seconds above 0, not {value!r}")
        if not (_is_number(self.allowed_errors) and 0 <= self.allowed_errors < 1):
            raise UsageProblem(
                f"load(allowed_errors=...) is a share of the requests in [0, 1), not {self.allowed_errors!r}"
            )
        if self.goodput is not None and not isinstance(self.goodput, Objectives):
            raise UsageProblem(
                f"load(goodput=...) is what a good answer has to meet, not {self.goodput!r}",
                remedies=["from pytest_gpuserve.load import Objectives; load(..., goodput=Objectives(ttft=200 * ms))"],
            )
        self._check_end()
        check_users(self.schedule, self.processes)

    def _check_end(self) -> None:
        if self.requests is not None and (type(self.requests) is not int or self.requests < 1):
            raise UsageProblem(f"load(requests=...) is a whole number of 1 at least, not {self.requests!r}")
        if self.until is not None and not callable(self.until):
            raise UsageProblem(f"load(until=...) is a function of the finished windows, not {self.until!r}")
        if self.requests is not None and self.until is not None:
            raise UsageProblem("load(requests=..., until=...): one of them says when a start ends")
        given = [name for name in ("requests", "until", "seconds") if getattr(self, name) is not None]
        if given and is_finite(self.schedule):
            raise UsageProblem(
                f"load({given[0]}=...) has no say: a {type(self.schedule).__name__} schedule ends by itself"
            )

    def workload(self) -> Mapping[str, str]:
        """What a baseline must have in common with it.

        How long it was looked at is no part of it; the number of starts is, for sessions of more starts vary less.
        """
        words = {**self.schedule.workload(), "starts": str(self.starts)}
        if self.processes > 1 and "max_in_flight" in words:
            # Each worker has its share of the ceiling, and waits for that though another may have room.
            words["processes"] = str(self.processes)
        if self.seed:
            words["seed"] = str(self.seed)
        if self.allowed_errors:
            words["allowed_errors"] = f"{self.allowed_errors:g}"
        if self.goodput is not None:
            words["goodput"] = str(self.goodput)
        return words

    def check_target(self, payloads: int, *, is_stream: bool, has_turns: bool = False) -> None:
        """See that there is what the load asks of its target: payloads, streams; and that turns are users'.

        Args:
            payloads: How many there are.
            is_stream: Whether answers are streams.
            has_turns: Whether some continue a conversation.

        Raises:
            UsageProblem: One of them is not so.
        """
        if self.goodput is not None and self.goodput.is_of_streams and not is_stream:
            raise UsageProblem(
                f"only a stream has a TTFT or a TPOT, and these answers are none ({self.goodput})",
                remedies=["server.post(..., stream=True)", "Objectives(latency=...) alone"],
            )
        if has_turns and self.users is None and not self.steps:
            raise UsageProblem(
                "a turn of a conversation follows an answer, and this load waits for none",
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
        """Whether the schedule ends by itself; then all of it is measured, and none of it expected to be steady."""
        return is_finite(self.schedule)

    @property
    def users(self) -> int | None:
        """How many users there are all the time; None of other loads."""
        return self.schedule.users if isinstance(self.schedule, Closed) else None

    @property
    def steps(self) -> tuple[tuple[int, float], ...]:
        """Where users change in steps, their numbers and for how many seconds each stays."""
        return self.schedule.steps if isinstance(self.schedule, Steps) else ()

    @property
    def warmup(self) -> Schedule:
        """What warms a server up: the load itself, or where that is measured as a whole, users that come before it."""
        if not self.finite:
            return self.schedule
        return Closed(self.schedule.steps[0][0]) if isinstance(self.schedule, Steps) else Closed(1)

    @property
    def windows(self) -> int:
        """Measured windows of a start."""
        return max(LEAST_WINDOWS, round((SECONDS if self.seconds is None else self.seconds) / WINDOW_SECONDS))

    @property
    def most_windows(self) -> int:
        """Where a start is given up that has not come to its end."""
        return self.windows * (LENGTHEN_AT_MOST if self.requests is None and self.until is None else PATIENCE)


def schedule_of(concurrency: int | None, schedule: Schedule | None) -> Schedule:
    """Return the schedule that is meant, of which ``concurrency`` is the short form of one.

    Raises:
        UsageProblem: Both are given, or neither, or something else.
    """
    if (concurrency is None) == (schedule is None):
        raise UsageProblem(
            "load(...) takes either concurrency=... or schedule=...",
            remedies=["concurrency=16 for a closed loop", "schedule=Poisson(rate=200) for an open one"],
        )
    if schedule is None:
        if type(concurrency) is not int or concurrency < 1:
            raise UsageProblem(f"load(concurrency=...) is a whole number of users, not {concurrency!r}")
        return Closed(concurrency)
    if not isinstance(schedule, get_args(Schedule)):
        raise UsageProblem(
            f"load(schedule=...) is a schedule of pytest_gpuserve.load, not {schedule!r}",
            remedies=["from pytest_gpuserve.load import Poisson; load(..., schedule=Poisson(rate=200))"],
        )
    return cast("Schedule", schedule)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True, slots=True)
class Terms:
    """How two servers are compared.

    Args:
        shape: The load, which is the same for both.
        requests_wanted: Answers that each server should give in a block, if it can: the most of these.
        tolerance: The throughput's tolerance: a tighter one makes a window longer.
        most_foreign_cores: A block in which others took more of the host is thrown away.
        by_turns: Whether only one of them may run at a time.
        seed: Of the coins.
    """

    shape: LoadShape
    requests_wanted: tuple[int, ...]
    tolerance: float
    most_foreign_cores: float
    by_turns: bool
    seed: str
