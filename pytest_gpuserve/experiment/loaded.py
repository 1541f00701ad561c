"""A running server under load: adds ticks up to windows, and finds signs that the measurement is not of the server."""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec
import psutil

from pytest_gpuserve.device.host import cores_taken_by_others, cpu_share, read_cpu, read_host
from pytest_gpuserve.errors import LoadFailed, ServerFailed
from pytest_gpuserve.experiment.shape import TICK_SECONDS, WINDOW_SECONDS, later_half
from pytest_gpuserve.load.answers import AnswerCheck
from pytest_gpuserve.load.driver import Engines
from pytest_gpuserve.load.schedule import is_finite, is_open
from pytest_gpuserve.load.tick import shares
from pytest_gpuserve.load.validity import (
    DISTURBANCES,
    disturbances,
    lost_in_mid_load,
    reasons,
    request_errors,
)
from pytest_gpuserve.load.wire import OPENS, Plan
from pytest_gpuserve.measure.counters import Counters, WentBackwards, counted_between
from pytest_gpuserve.measure.window import COMPILING, Start, Window, total
from pytest_gpuserve.measure.work import unsteady_cache
from pytest_gpuserve.units import format_seconds
from pytest_gpuserve.verdict.reason import Reason, ReasonKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.experiment.shape import LoadShape
    from pytest_gpuserve.load.schedule import Schedule
    from pytest_gpuserve.load.shared_memory import SharedTensors
    from pytest_gpuserve.servers.instance import Instance

Progress: TypeAlias = "Callable[[Window], None]"
"""Shows all ticks of a load so far to a person."""

DEATH_GRACE_SECONDS: Final = 1.0
"""Time after errors to see whether the server is dying, before the errors are taken for the cause."""

ANSWERED_LATENCIES: Final = 2
"""Mean latencies after which requests in flight have usually been answered."""

STUCK_SECONDS: Final = 1.0
"""Shortest wait that is called stuck, even if the other answers were faster."""

OVERLOADED_SHARE: Final = 0.95
"""Share of the due requests below which an open loop is overloaded: its latencies depend on the measured time."""


class CounterReading(NamedTuple):
    """A reading of a server's counters.

    Args:
        counters: The counters.
        at_seconds: Time of the reading by the monotonic clock, as its middle.
        took_seconds: Delay from the end of the last tick to the end of the reading: large on a stalled machine.
    """

    counters: Counters
    at_seconds: float
    took_seconds: float


class Measured(NamedTuple):
    """A window, its ticks, and the counter readings before and after it."""

    window: Window
    ticks: Sequence[Window]
    before: CounterReading | None = None
    after: CounterReading | None = None


@dataclass
class HostUse:
    """Use of the host's cores: the number that others took, and the share that was busy; None if not sampled."""

    foreign_cores: float = 0.0
    cpu_share: float | None = None


@contextlib.contextmanager
def host_watched(servers: Iterable[LoadedServer]) -> Iterator[HostUse]:
    """Watch who uses the host's cores until the end of the block; filled in then, unless the block raises.

    The servers have to run until then, because the use of one that has ended would be taken for that of others.
    """
    use, known = HostUse(), list(servers)
    before = read_cpu(our_processes(known))
    yield use
    after = read_cpu(our_processes(known))
    use.foreign_cores, use.cpu_share = cores_taken_by_others(before, after), cpu_share(before, after)


def our_processes(servers: Iterable[LoadedServer] = ()) -> list[psutil.Process]:
    """This process and its descendants: the engines, the supervisors, and through them the servers.

    Servers may have processes that descend from others; see ``Instance.members``.
    """
    own = psutil.Process()
    found = {process.pid: process for process in (own, *own.children(recursive=True))}
    for pid in (pid for server in servers for pid in server.instance.members()):
        with contextlib.suppress(psutil.Error):
            found.setdefault(pid, psutil.Process(pid))
    return list(found.values())


@dataclass
class LoadedServer:
    """One start of a server under load. Its load goes on from window to window, until it rests or ends by itself.

    Args:
        instance: The running server.
        target: The requests.
        shape: Schedule and length of the load.
        progress: Shown the progress of the load.
        before: Reasons of windows that this start measures again, one text each.

    Attributes:
        check: Check of the answers.
        problems: Reasons why the start proves nothing; after the first one, no more ticks are taken.
        disturbances: Further such reasons, which another measurement may be free of.
        measured: The windows that count, oldest first.
        tried: Reasons to measure each window again; none for a good one.
        discarded: Windows that were cut off the front.
        use: Use of the host by others.
        warmup: Ticks of the warm-up.
        ended: Whether the load has ended by itself.
    """

    instance: Instance
    target: Target
    shape: LoadShape
    progress: Progress = lambda _: None
    before: tuple[str, ...] = ()
    check: AnswerCheck = field(init=False)
    problems: list[Reason] = field(default_factory=list, init=False)
    disturbances: list[Reason] = field(default_factory=list, init=False)
    measured: list[Measured] = field(default_factory=list, init=False)
    tried: list[tuple[Reason, ...]] = field(default_factory=list, init=False)
    discarded: int = field(default=0, init=False)
    use: HostUse = field(default_factory=HostUse, init=False)
    warmup: list[Window] = field(default_factory=list, init=False)
    ended: bool = field(default=False, init=False)
    _engines: Engines | None = field(default=None, init=False)
    _so_far: Window = field(default_factory=Window, init=False)
    _last: CounterReading | None = field(default=None, init=False)
    _goes_on: bool = field(default=False, init=False)
    _loading: bool = field(default=False, init=False)
    _shared: SharedTensors | None = field(default=None, init=False)
    # Ticks with late beats of load engines.
    _late: list[Window] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        expects = (request.expect for request in self.target.requests)
        self.check = AnswerCheck(expects, wants_all=self.shape.check == "all")

    @property
    def windows(self) -> list[Window]:
        """The windows that count."""
        return [measured.window for measured in self.measured]

    @property
    def rejected(self) -> tuple[str, ...]:
        """Reasons of windows that were measured again, one text each."""
        return (*self.before, *("; ".join(map(str, reasons)) for reasons in self.tried if reasons))

    @property
    def varies(self) -> bool:
        """Whether the requests differ from one load to another, so that turns are alike only if begun alike."""
        return is_open(self.shape.schedule) or len(self.target.requests) > 1

    def warm_up(self, stack: contextlib.ExitStack, *, goes_on: bool = False) -> None:
        """Load the server for a while, side by side at least until an answer comes.

        Its engines and its shared memory end with the stack.

        Trouble and lost engines appear in ``problems``; no window is measured then.

        Args:
            stack: See above.
            goes_on: Whether the load goes on into the first window, unless it is measured as a whole; else it rests.

        Raises:
            LoadFailed: The load could not be begun.
            UsageProblem: The load cannot go through shared memory.
            ServerFailed: The server does not map the memory.
        """
        shape = self.shape
        if self.target.sharing is not None:
            self._shared = stack.enter_context(self.target.sharing.opened(self.instance, shape.schedule))
        self._goes_on = goes_on and not shape.finite
        ticks = max(1, round(shape.warmup_seconds / TICK_SECONDS))
        try:
            if shape.finite:
                with Engines(self.plan(shape.warmup), 1, shape.source) as engines:
                    self.warmup = self.ticks(engines, ticks)
                    if not self.problems:
                        # Requests in flight would be counted as the load's.
                        engines.halt(seed=shape.seed)
                # The measured load is a new one, which has yet to begin.
                self._so_far = Window()
            self._engines = stack.enter_context(Engines(self.plan(shape.schedule), shape.processes, shape.source))
            if not shape.finite:
                self.warmup = self.ticks(self._engines, ticks)
            if self._goes_on:
                self._loading, self._last = True, self.read_counters()
            else:
                self._await_answer(self._engines, ticks + round(shape.timeout_seconds / TICK_SECONDS))
                self._engines.halt(seed=shape.seed)
        except LoadFailed as problem:
            if not self._so_far.seconds:
                # The load never began, so an error loses no measurement.
                raise
            self.lose(problem)

    def _await_answer(self, engines: Engines, longest: int) -> None:
        """Lengthen the warm-up until its later half has an answer: turns are as long as answers need."""
        while not self.shape.finite and not later_half(self.warmup).requests and len(self.warmup) < longest:
            more = self.ticks(engines, 1)
            if not more:
                break
            self.warmup += more

    def turn(self, settle: int, ticks: int | None, *, seed: int) -> Measured | None:
        """Measure a window, and leave the load on for a possible next one. None if there was trouble.

        Lost engines are trouble too.

        Args:
            settle: Ticks that are thrown away if the load has to be begun.
            ticks: Ticks of the window; None until the load ends by itself.
            seed: Seed of random arrivals if the load has to be begun.
        """
        if self.problems:
            return None
        try:
            return self._taken(settle, ticks, seed)
        except LoadFailed as problem:
            self.lose(problem)
            return None

    def _taken(self, settle: int, count: int | None, seed: int) -> Measured | None:
        engines, begins = self._engines, not self._loading
        assert engines is not None, "a turn before the warm-up"
        if begins:
            self.ended, self._loading = False, True
            # Requests of a load that is measured as a whole are counted from the first one.
            self._last = self.read_counters() if self.shape.finite else None
            if is_open(self.shape.schedule) or self.target.shuffled:
                engines.halt(seed=seed)
            engines.begin()
            if not self.shape.finite:
                self.ticks(engines, settle)
                self._last = self.read_counters()
        before, ticks = self._last, self.ticks(engines, count)
        self._last = after = self.read_counters()
        window = self.window(ticks, self.counted(before, after))
        if self.ended:
            self.rest()
        if window is None:
            if begins and not self.problems:
                text = "nothing measured: the load ended as soon as it had begun"
                self.problems.append(Reason(ReasonKind.NOTHING_MEASURED, text))
            return None
        self.measured.append(Measured(window, ticks, before, after))
        return None if self.problems else self.measured[-1]

    def rest(self) -> None:
        """End the load; the server goes on. Lost engines are a problem."""
        if self._loading and self._engines is not None:
            self._loading = False
            try:
                self._engines.halt(seed=self.shape.seed)
            except LoadFailed as problem:
                self.lose(problem)

    def lose(self, problem: LoadFailed) -> None:
        """Note that the load was lost after it had begun."""
        # Lost engines are not told to rest, because a stuck one would be waited for again.
        self._loading = False
        self.problems.append(self._shown(lost_in_mid_load(problem)))

    def settle(self, windows: Sequence[Window], reasons: tuple[Reason, ...]) -> None:
        """Take the newest windows as the monitor judged them, or drop them if they are to be measured again."""
        count = len(windows)
        judged = zip(self.measured[-count:], windows, strict=True)
        self.measured[-count:] = [] if reasons else [measured._replace(window=window) for measured, window in judged]
        self.tried += [reasons] * count

    def record(self) -> Start:
        """Record of the start with the windows that count."""
        instance = self.instance
        return Start(
            tuple(self.windows),
            instance.cold_start_seconds,
            discarded=self.discarded,
            foreign_cores=self.use.foreign_cores,
            cpu_share=self.use.cpu_share,
            cold_start_parts=instance.cold_start_parts,
            settings=instance.settings,
            rejected=self.rejected,
            answers=self.check.answers,
            answers_checked=self.check.checked,
        )

    def plan(self, schedule: Schedule) -> Plan:
        """The plan of a load engine, for this schedule."""
        target, shape, shared = self.target, self.shape, self._shared
        assert shared is not None or target.sharing is None, "a plan before the warm-up"
        is_checked = any(request.expect is not None for request in target.requests)
        return Plan(
            endpoint=target.endpoint(self.instance),
            payloads=target.payloads(self.instance, shared),
            numbers_before_end=target.numbers_before_end(),
            pauses_ns=tuple(OPENS if pause is None else round(pause * 1e9) for pause in target.pauses),
            schedule=schedule,
            tick_ns=round(TICK_SECONDS * 1e9),
            timeout_ns=round(shape.timeout_seconds * 1e9),
            seed=shape.seed,
            shuffled=target.shuffled,
            keep_answers=shape.check if is_checked else "none",
            outputs=None if shared is None else shared.outputs,
            objectives=shape.goodput,
        )

    def ticks(self, engines: Engines, count: int | None) -> list[Window]:
        """Take ticks until this number is reached (None: without limit), the load has ended, or there is trouble.

        Raises:
            LoadFailed: A load engine failed.
        """
        ticks: list[Window] = []
        while (count is None or len(ticks) < count) and not self.ended and not self.problems:
            tick = engines.next_tick()
            self.ended = tick.last
            self._look(tick)
            # Answers are not needed after they were checked.
            tick = msgspec.structs.replace(tick, answers=[])
            ticks.append(tick)
            self._late += [tick] if tick.late_beats else []
            self._so_far += tick
            self.progress(self._so_far)
        return ticks

    def window(self, ticks: Sequence[Window], counters: Counters | None) -> Window | None:
        """Sum of ticks, with the server's counts meanwhile; None if no time has passed."""
        totals = total(ticks)
        if totals.nanoseconds <= 0:
            return None
        # The windows of HTTP/2 delay sends, and the time between a stream's first byte and its last is the server's.
        is_timed = self.target.protocol == "http"
        return msgspec.structs.replace(
            totals,
            # Kept rounds are files, and a sample may repeat a secret of a request.
            error_samples={},
            counters=counters,
            good=None if self.shape.goodput is None else totals.good,
            sending_ns=totals.sending_ns if is_timed else None,
            receiving_ns=totals.receiving_ns if is_timed else None,
        )

    def read_counters(self) -> CounterReading | None:
        """Read the server's counters; None if it has none, or after trouble. A failed reading is trouble too."""
        if self.problems:
            return None
        began = time.monotonic()
        try:
            counters = self.instance.counters()
        except ServerFailed as problem:
            death = self.instance.death()
            self.problems.append(self._shown(Reason(ReasonKind.SERVER_FAILED, death or str(problem))))
            return None
        ended = time.monotonic()
        since = min(began, self._so_far.end_ns / 1e9 or began)
        return None if counters is None else CounterReading(counters, (began + ended) / 2, ended - since)

    def counted(self, before: CounterReading | None, after: CounterReading | None) -> Counters | None:
        """The server's counts between two readings; None without counters, or if they are not plausible."""
        if before is None or after is None:
            return None
        try:
            return counted_between(before.counters, after.counters)
        except WentBackwards as problem:
            text = f"the server's counters went backwards ({problem}): the server or a worker was restarted under load"
            self.problems.append(Reason(ReasonKind.COUNTERS_WENT_BACK, text))
            return None

    def disturbed(self, ticks: Sequence[Window]) -> tuple[Reason, ...]:
        """Reason why the client was disturbed in a window, which is then measured again."""
        shape, totals, usual = self.shape, total(ticks), self._so_far
        # Requests that were in flight while the engine paused just before are answered in this window.
        since_ns = ticks[0].begin_ns - ANSWERED_LATENCIES * (usual.latency.mean or 0.0) * 1e9 if ticks else 0
        late = [tick for tick in self._late if ticks and since_ns < tick.end_ns <= ticks[0].begin_ns]
        return disturbances(
            msgspec.structs.replace(
                totals,
                late_beats=totals.late_beats + sum(tick.late_beats for tick in late),
                late_beats_ns=totals.late_beats_ns + sum(tick.late_beats_ns for tick in late),
            ),
            schedule=self.target.as_thought(shape.schedule),
            usual=usual,
            processes=shape.processes,
            cores=self._cores(),
            late_share=shape.late_share,
        )

    def _cores(self) -> int | None:
        """Cores that the load engines share; None for one each."""
        return read_host().cores if self.shape.source.is_here else None

    def judge(self) -> None:
        """Judge all windows together: note signs that the measurement is not of the server.

        They appear in ``problems``, or in ``disturbances`` if another measurement may be free of them.
        """
        shape, windows, cores = self.shape, self.windows, self._cores()
        ticks = [tick for measured in self.measured for tick in measured.ticks]
        totals, schedule = total(ticks), self.target.as_thought(shape.schedule)
        # The last of the allowed errors may have been a dying server's first.
        death = self.instance.death(grace_seconds=DEATH_GRACE_SECONDS) if totals.errors else None
        if death is not None:
            self.problems.append(Reason(ReasonKind.SERVER_FAILED, death))
        found = reasons(
            totals,
            schedule=schedule,
            processes=shape.processes,
            cores=cores,
            allowed_errors=shape.allowed_errors,
            late_share=shape.late_share,
            course=[tick.under_way for tick in ticks if tick.due],
            workers=shares(ticks),
        )
        for reason in map(self._shown, found):
            (self.disturbances if reason.kind in DISTURBANCES else self.problems).append(reason)
        if not shape.finite:
            half = len(windows) // 2
            drift = unsteady_cache((windows[:half], windows[half:]))
            self.problems.extend([drift] if drift else [])
        counters = Window.pooled(windows).counters
        compiled = None if counters is None else counters.stages.get(COMPILING)
        if compiled is not None:
            text = (
                f"compiled under load: the model was compiled in {compiled.count} executions of the measured time, for"
                " new shapes. Send these shapes before: load(..., warmup_seconds=...)"
            )
            self.problems.append(Reason(ReasonKind.COMPILED_UNDER_LOAD, text))
        if shape.finite and not any(reason.kind is ReasonKind.CLIENT_SATURATED for reason in found):
            # On average, a quiet step hides one in which the client could not keep up. A report alone may fill the last
            # window.
            steps = [measured for measured in self.measured if measured.window.seconds > WINDOW_SECONDS / 2]
            worst = max(steps, key=lambda step: step.window.cpu_seconds / step.window.seconds, default=None)
            within = () if worst is None else self.disturbed(worst.ticks)
            self.disturbances.extend(reason for reason in within if reason.kind is ReasonKind.CLIENT_SATURATED)
        # Requests without an answer have no latency: a server that has lost some of its requests looks fast.
        slowest_seconds = max((window.latency.max_seconds for window in windows), default=0.0)
        oldest_seconds = totals.oldest_ns / 1e9
        if oldest_seconds > max(STUCK_SECONDS, 2 * slowest_seconds):
            text = (
                f"stuck requests: at the end one had waited {format_seconds(oldest_seconds)} for its answer, but the"
                f" slowest answer took {format_seconds(slowest_seconds)}. If the server is that uneven, measure longer:"
                " load(..., seconds=...)"
            )
            self.problems.append(Reason(ReasonKind.STUCK_REQUESTS, text))
        if not self._goes_on:
            self.problems.extend(overload(totals, shape.schedule))
        if not self.problems:
            self.problems.extend(self.check.reasons())

    def _look(self, tick: Window) -> None:
        """Check whether the load may go on."""
        self.check.check(tick)
        errors = bool(tick.errors) and not self.shape.allowed_errors
        # A dying server first shows as a hundred reset connections, which would hide the cause. A load with allowed
        # errors goes on without this wait, which would leave the watch behind the load.
        death = self.instance.death(grace_seconds=DEATH_GRACE_SECONDS if errors else 0.0)
        if death is not None:
            self.problems.append(Reason(ReasonKind.SERVER_FAILED, death))
        elif errors:
            self.problems.extend(map(self._shown, request_errors(tick, 0.0)))
        if self.check.wrong:
            self.problems.extend(map(self._shown, self.check.reasons()))

    def _shown(self, reason: Reason) -> Reason:
        """Text that may repeat an answer, without the secrets of the server or of a request."""
        text = reason.text
        # A load has many requests, usually with one set of headers.
        for headers in {tuple(sorted(request.headers.items())) for request in self.target.requests}:
            text = self.instance.shown(text, dict(headers))
        return reason.with_text(text)


def overload(totals: Window, schedule: Schedule) -> list[Reason]:
    """Reason for overload. Each turn begins with an empty queue, so an overloaded open loop does not show by growth."""
    if not is_open(schedule) or is_finite(schedule):
        return []
    if totals.requests >= OVERLOADED_SHARE * totals.due - 3 * math.sqrt(totals.due):
        return []
    text = (
        f"overloaded: only {totals.requests} of {totals.due} requests were answered in the time when they were due."
        " The rate is too high for the server, so latencies depend on the duration: lower the rate"
    )
    return [Reason(ReasonKind.OVERLOADED, text)]
