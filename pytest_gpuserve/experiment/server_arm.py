"""One of two servers that are loaded alternately: it runs all the time, its load only during its turns."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.errors import LoadFailed
from pytest_gpuserve.experiment.shape import TICK_SECONDS, TICKS_A_WINDOW, WINDOW_SECONDS
from pytest_gpuserve.experiment.watch import Watch, client_of
from pytest_gpuserve.load.answers import AnswerCheck, answer_reasons
from pytest_gpuserve.load.driver import Engines
from pytest_gpuserve.load.schedule import is_open
from pytest_gpuserve.load.tick import Tick, total
from pytest_gpuserve.measure.counters import added
from pytest_gpuserve.measure.rounds import FEWEST_GROUPS, Arm, ArmResult
from pytest_gpuserve.verdict.reason import Reason, ReasonKind
from pytest_gpuserve.verdict.sequential import BLOCKS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from contextlib import ExitStack

    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.experiment.shape import LoadShape
    from pytest_gpuserve.experiment.watch import CounterReading, Progress
    from pytest_gpuserve.measure.counters import Counters
    from pytest_gpuserve.measure.window import Window
    from pytest_gpuserve.servers.instance import Instance

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

OVERLOADED_SHARE: Final = 0.95
"""Share of the due requests below which an open loop is overloaded: its latencies depend on the measured time."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Length of turns, in ticks.

    Args:
        settle: Ticks at the begin of a turn that are thrown away.
        window: Measured ticks.
    """

    settle: int
    window: int


@dataclass(frozen=True, slots=True)
class _Turn:
    """Record of a turn."""

    window: Window
    ticks: list[Tick]
    counted: Counters | None


@dataclass
class ServerArm:
    """A started server; its load engines are at rest after the warm-up.

    Args:
        arm: Which of the two servers it is.
        watch: Watches the server.
        shape: The load.
    """

    arm: Arm
    watch: Watch
    shape: LoadShape
    _engines: Engines | None = None
    _warmup: list[Tick] = field(default_factory=list)
    _turns: list[_Turn] = field(default_factory=list)
    _last: CounterReading | None = None
    _loading: bool = False

    @classmethod
    def of(cls, arm: Arm, instance: Instance, target: Target, shape: LoadShape, progress: Progress) -> ServerArm:
        """Watch a running server under a load.

        Args:
            arm: See the class.
            instance: The server.
            target: The requests.
            shape: See the class.
            progress: Shown the progress of the load.
        """
        check = AnswerCheck((request.expect for request in target.requests), wants_all=shape.check == "all")
        return cls(arm, Watch(instance, target, shape, check, progress), shape)

    def warm_up(self, stack: ExitStack) -> None:
        """Load the server for a while, at least until an answer comes, and leave it at rest.

        Its engines end with the stack.
        Trouble and lost engines appear in ``problems``; the server then takes no turns.

        Raises:
            LoadFailed: The load could not be begun.
        """
        watch, shape = self.watch, self.shape
        stack.enter_context(watch.sharing())
        warmup_ticks = max(1, round(shape.warmup_seconds / TICK_SECONDS))
        try:
            if shape.finite:
                with Engines(watch.plan(shape.warmup), 1, shape.source) as engines:
                    self._warmup = watch.ticks(engines, warmup_ticks)
                # The measured load is a new one, which has yet to begin.
                watch.so_far = Tick()
            self._engines = stack.enter_context(Engines(watch.plan(shape.schedule), shape.processes, shape.source))
            if not shape.finite:
                self._warmup = watch.ticks(self._engines, warmup_ticks)
                # Turns are as long as answers need, so the warm-up has to see one.
                longest = warmup_ticks + round(shape.timeout_seconds / TICK_SECONDS)
                while not self._warmed_up.requests and len(self._warmup) < longest:
                    more = watch.ticks(self._engines, 1)
                    if not more:
                        break
                    self._warmup += more
            self._engines.halt(seed=shape.seed)
        except LoadFailed as problem:
            if not watch.so_far.seconds:
                raise
            watch.lose(problem)

    @property
    def _warmed_up(self) -> Tick:
        """The later half of the warm-up."""
        return total(self._warmup[len(self._warmup) // 2 :])

    @property
    def engines(self) -> Engines:
        """The load engines; they exist from the warm-up on."""
        assert self._engines is not None
        return self._engines

    @property
    def _is_random(self) -> bool:
        return is_open(self.shape.schedule) or self.watch.target.shuffled

    @property
    def varies(self) -> bool:
        """Whether the requests differ from one load to another, so that turns are alike only if begun alike."""
        return is_open(self.shape.schedule) or len(self.watch.target.requests) > 1

    @property
    def problems(self) -> list[Reason]:
        """Reasons why the server's turns prove nothing."""
        return self.watch.problems

    @property
    def disturbances(self) -> list[Reason]:
        """Further reasons from the last judgement, which another measurement may be free of."""
        return self.watch.disturbances

    def pace(self, requests_wanted: Iterable[int], tolerance: float) -> Pace:
        """Length of the turns, from the warm-up.

        Args:
            requests_wanted: Answers of each server that a group of blocks should have: the largest reachable number.
            tolerance: The throughput's tolerance.
        """
        base = LEAST_TICKS if tolerance < WIDE_TOLERANCE else TICKS_WITHIN_WIDE
        if self.shape.seconds is not None:
            base *= max(1, round(self.shape.seconds / (8 * WINDOW_SECONDS)))
        later = self._warmed_up
        if not later.requests or later.latency.mean is None:
            return Pace(SETTLE_TICKS, base)
        rate_per_tick = later.requests / later.seconds * TICK_SECONDS
        for_requests = _ticks_for(requests_wanted, rate_per_tick)
        for_latencies = math.ceil(_latencies_wanted(tolerance) * later.latency.mean / TICK_SECONDS)
        window = max(base, for_requests, min(for_latencies, MOST_TICKS))
        settle = math.ceil(SETTLE_LATENCIES * later.latency.mean / TICK_SECONDS)
        return Pace(min(max(SETTLE_TICKS, settle), MOST_TICKS), window)

    def turn(self, pace: Pace, *, seed: int) -> Window | None:
        """Load the server for a window, and leave the load on for a possible next turn. None if there was trouble.

        Lost engines are trouble too.

        Args:
            pace: Length of the turn.
            seed: Seed of random arrivals, if the load has to be begun.
        """
        if self.problems:
            return None
        try:
            return self._taken(pace, seed)
        except LoadFailed as problem:
            self._lose(problem)
            return None

    def _taken(self, pace: Pace, seed: int) -> Window | None:
        if not self._loading:
            self.watch.ended = False
            self._loading = True
            before = self.watch.read_counters() if self.shape.finite else None
            if self._is_random:
                self.engines.halt(seed=seed)
            self.engines.begin()
            if not self.shape.finite:
                self.watch.ticks(self.engines, pace.settle)
                before = self.watch.read_counters() if not self.problems else None
            self._last = before
        ticks = self.watch.ticks(self.engines, None if self.shape.finite else pace.window)
        after = self.watch.read_counters() if not self.problems else None
        counted = self.watch.counted(self._last, after)
        window = self.watch.window(ticks, counted)
        self._last = after
        if self.shape.finite:
            # The load has ended by itself, and the next turn begins it anew.
            self.rest()
        if window is None and not self.problems:
            text = "nothing measured: the load ended as soon as it had begun"
            self.problems.append(Reason(ReasonKind.NOTHING_MEASURED, text))
        if self.problems or window is None:
            return None
        self._turns.append(_Turn(window, ticks, counted))
        return window

    def disturbed(self, window: Window) -> tuple[Reason, ...]:
        """Reason why the client was disturbed in a turn, which is then measured again."""
        return next(
            self.watch.disturbed(turn.ticks)
            for turn in reversed(self._turns)
            if turn.window.begin_ns == window.begin_ns
        )

    def discard(self, windows: Iterable[Window]) -> None:
        """Forget turns that do not belong to the round, so that they are not judged."""
        gone = {window.begin_ns for window in windows}
        self._turns = [turn for turn in self._turns if turn.window.begin_ns not in gone]

    @property
    def instance(self) -> Instance:
        """The server."""
        return self.watch.instance

    def members(self) -> Collection[int]:
        """Pids of the server's processes that are not descendants of this process."""
        return self.watch.instance.members()

    def rest(self) -> None:
        """End the load; the server goes on. Lost engines are a problem."""
        if self._loading:
            try:
                self.engines.halt(seed=self.shape.seed)
            except LoadFailed as problem:
                self._lose(problem)
            self._loading = False

    def _lose(self, problem: LoadFailed) -> None:
        self.watch.lose(problem)
        # Lost engines are not told to rest, because a stuck one would be waited for again.
        self._loading = False

    def judge(self) -> None:
        """Judge all turns together: find signs that the measurement is not of the server."""
        self.watch.judge(self._ticks(), [turn.window for turn in self._turns])
        self.problems.extend(_overload(self._totals(), self.shape))
        if not self.problems:
            self.problems.extend(answer_reasons(self.watch.check, []))

    def side(self) -> ArmResult:
        """Record of the server besides its windows."""
        counters = added([turn.counted for turn in self._turns if turn.counted is not None])
        instance = self.watch.instance
        return ArmResult(
            cold_start_seconds=(instance.cold_start_seconds,),
            client=client_of(self._totals()),
            batch_sizes={} if counters is None else counters.batch_sizes,
            answers=self.watch.check.answers,
            answers_checked=self.watch.check.checked,
            cold_start_parts=instance.cold_start_parts,
            settings=instance.settings,
            counters=counters,
        )

    def _totals(self) -> Tick:
        return total(self._ticks())

    def _ticks(self) -> list[Tick]:
        return [tick for turn in self._turns for tick in turn.ticks]


def _ticks_for(requests_wanted: Iterable[int], rate_per_tick: float) -> int:
    """Ticks of a window, so that a group of blocks has the largest of these numbers that it can have."""
    for wanted in sorted(requests_wanted, reverse=True):
        for blocks in BLOCKS_FOR_REQUESTS:
            ticks = math.ceil(wanted * MARGIN_OF_REQUESTS / (2 * blocks) / rate_per_tick)
            if ticks <= MOST_TICKS_FOR_REQUESTS:
                return ticks
    return 0


def _latencies_wanted(tolerance: float) -> float:
    """Mean latencies that a window should last."""
    return max(LEAST_LATENCIES, LATENCIES_TIMES_TOLERANCE / tolerance)


def _overload(totals: Tick, shape: LoadShape) -> list[Reason]:
    """Reason for overload. Each turn begins with an empty queue, so an overloaded open loop does not show by growth."""
    if not is_open(shape.schedule) or shape.finite:
        return []
    if totals.requests >= OVERLOADED_SHARE * totals.due - 3 * math.sqrt(totals.due):
        return []
    text = (
        f"overloaded: only {totals.requests} of {totals.due} requests were answered in the time when they were due."
        " The rate is too high for the server, so latencies depend on the duration: lower the rate"
    )
    return [Reason(ReasonKind.OVERLOADED, text)]
