"""Watch of a server under load: turns ticks into windows, and finds signs that the measurement is not of the server."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
import psutil

from pytest_gpuserve.device.host import read_host
from pytest_gpuserve.errors import LoadFailed, ServerFailed
from pytest_gpuserve.experiment.shape import TICK_SECONDS, WINDOW_SECONDS
from pytest_gpuserve.load.answers import answer_reasons
from pytest_gpuserve.load.run import lost_in_mid_load
from pytest_gpuserve.load.tick import Tick, shares, total
from pytest_gpuserve.load.validity import DISTURBANCES, SATURATED_SHARE, disturbances, one_line, reasons, share_reasons
from pytest_gpuserve.load.wire import Plan
from pytest_gpuserve.measure.counters import Counters, WentBackwards, counted_between
from pytest_gpuserve.measure.streams import Streams
from pytest_gpuserve.measure.window import COMPILING, Client, Window
from pytest_gpuserve.measure.work import unsteady_cache
from pytest_gpuserve.units import format_fraction, format_seconds
from pytest_gpuserve.verdict.reason import Reason, ReasonKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.experiment.shape import LoadShape
    from pytest_gpuserve.load.answers import AnswerCheck, Complaint
    from pytest_gpuserve.load.driver import Engines
    from pytest_gpuserve.load.schedule import Schedule
    from pytest_gpuserve.load.shared_memory import SharedTensors
    from pytest_gpuserve.servers.instance import Instance

DEATH_GRACE_SECONDS: Final = 1.0
"""Time after errors to see whether the server is dying, before the errors are taken for the cause."""

ANSWERED_LATENCIES: Final = 2
"""Mean latencies after which requests in flight have usually been answered."""

STUCK_SECONDS: Final = 1.0
"""Shortest wait that is called stuck, even if the other answers were faster."""


@dataclass(frozen=True, slots=True)
class CounterReading:
    """A reading of a server's counters.

    Args:
        counters: The counters.
        at_seconds: Time of the reading by the monotonic clock, as its middle.
        took_seconds: Delay from the end of the last tick to the end of the reading: large on a stalled machine.
    """

    counters: Counters
    at_seconds: float
    took_seconds: float


class Progress(Protocol):
    """Progress display for a person."""

    def show(self, totals: Tick) -> None:
        """Show all ticks of a load so far."""


@dataclass
class Watch:
    """Watch of one start of a server under load.

    Args:
        instance: The running server.
        target: The requests.
        shape: Schedule and length of the load.
        check: Check of the answers.
        progress: Shown the progress of the load.
        problems: Reasons why the start proves nothing; after the first one, no more ticks are taken.
        disturbances: Further such reasons, which another measurement may be free of.
        so_far: All ticks that were shown.
        ended: Whether the load has ended by itself.
    """

    instance: Instance
    target: Target
    shape: LoadShape
    check: AnswerCheck
    progress: Progress
    problems: list[Reason] = field(default_factory=list)
    disturbances: list[Reason] = field(default_factory=list)
    so_far: Tick = field(default_factory=Tick)
    ended: bool = False
    _complaints: list[Complaint] = field(default_factory=list)
    _tick_end_seconds: float | None = None
    _shared: SharedTensors | None = None
    # Ticks with late beats of load engines.
    _late: list[Tick] = field(default_factory=list)

    @contextlib.contextmanager
    def sharing(self) -> Iterator[None]:
        """Own the target's shared memory, if it uses any; plans are made and loads run within the block.

        Raises:
            UsageProblem: The load cannot go through shared memory.
            ServerFailed: The server does not map the memory.
        """
        with self.target.shared(self.instance, self.shape.schedule) as self._shared:
            yield

    def plan(self, schedule: Schedule) -> Plan:
        """The plan of a load engine, for this schedule."""
        target, shape, shared = self.target, self.shape, self._shared
        assert shared is not None or target.sharing is None, "a plan outside of sharing()"
        return Plan(
            endpoint=target.endpoint(self.instance),
            payloads=target.payloads(self.instance, shared),
            numbers_before_end=target.numbers_before_end(),
            pauses_ns=target.pauses_ns(),
            schedule=schedule,
            tick_ns=round(TICK_SECONDS * 1e9),
            timeout_ns=round(shape.timeout_seconds * 1e9),
            seed=shape.seed,
            shuffled=target.shuffled,
            keep_answers=shape.check,
            outputs=None if shared is None else shared.outputs,
            objectives=shape.goodput,
        )

    def ticks(self, engines: Engines, count: int | None) -> list[Tick]:
        """Take ticks until this number is reached (None: without limit), the load has ended, or there is trouble.

        Raises:
            LoadFailed: A load engine failed.
        """
        ticks: list[Tick] = []
        while (count is None or len(ticks) < count) and not self.ended and not self.problems:
            tick = engines.next_tick()
            self.ended = tick.last
            self._tick_end_seconds = tick.end_ns / 1e9
            self._look(tick)
            # Answers are not needed after they were checked.
            tick = msgspec.structs.replace(tick, answers=[])
            ticks.append(tick)
            self._late += [tick] if tick.late_beats else []
            self.so_far += tick
            self.progress.show(self.so_far)
        return ticks

    def window(self, ticks: Sequence[Tick], counted: Counters | None) -> Window | None:
        """Make a window of ticks and of the server's counts meanwhile; None if no time has passed."""
        totals = total(ticks)
        if totals.nanoseconds <= 0:
            return None
        executed = counted if counted is not None and counted.counts_batches else None
        return Window(
            seconds=totals.seconds,
            requests=totals.requests,
            errors=dict(totals.errors),
            latency=totals.latency,
            items=None if executed is None else executed.items,
            batches=None if executed is None else executed.batches,
            client_cpu_seconds=totals.cpu_seconds,
            stages={} if counted is None else counted.stages,
            streams=_streams_of(totals),
            good=None if self.shape.goodput is None else totals.good,
            unjudged=totals.unjudged,
            tallies={} if counted is None else counted.tallies,
            begin_ns=ticks[0].begin_ns,
            end_ns=ticks[-1].end_ns,
        )

    def read_counters(self) -> CounterReading | None:
        """Read the server's counters; None if it has none. A failed reading is a problem, and gives None too."""
        began = time.monotonic()
        try:
            counters = self.instance.counters()
        except ServerFailed as problem:
            death = self.instance.death()
            self.problems.append(Reason(ReasonKind.SERVER_FAILED, death or str(problem)))
            return None
        ended = time.monotonic()
        since = began if self._tick_end_seconds is None else min(began, self._tick_end_seconds)
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

    def disturbed(self, ticks: Sequence[Tick]) -> tuple[Reason, ...]:
        """Reason why the client was disturbed in a window, which is then measured again."""
        shape, totals, usual = self.shape, total(ticks), self.so_far
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

    def lose(self, problem: LoadFailed) -> None:
        """Note that the load was lost after it had begun."""
        self.problems.append(self._shown(lost_in_mid_load(problem)))

    def reasons(self, ticks: Sequence[Tick]) -> list[Reason]:
        """Reasons why ticks would prove nothing, if they were a load by themselves.

        Args:
            ticks: Oldest first.
        """
        shape, cores = self.shape, self._cores()
        schedule = self.target.as_thought(shape.schedule)
        found = reasons(
            total(ticks),
            schedule=schedule,
            processes=shape.processes,
            cores=cores,
            allowed_errors=shape.allowed_errors,
            late_share=shape.late_share,
        )
        each = share_reasons(shares(ticks), schedule, among=cores, late_share=shape.late_share)
        return [self._shown(reason) for reason in (*found, *each)]

    def judge(self, ticks: Sequence[Tick], windows: Sequence[Window]) -> None:
        """Note signs that the measurement is not of the server: in ``problems``, or if repeatable in ``disturbances``.

        Args:
            ticks: All measured ticks, oldest first.
            windows: The same as windows.
        """
        shape = self.shape
        totals = total(ticks)
        # The last of the allowed errors may have been a dying server's first.
        death = self.instance.death(grace_seconds=DEATH_GRACE_SECONDS) if totals.errors else None
        if death is not None:
            self.problems.append(Reason(ReasonKind.SERVER_FAILED, death))
        found = self.reasons(ticks)
        for reason in found:
            (self.disturbances if reason.kind in DISTURBANCES else self.problems).append(reason)
        if not shape.finite:
            half = len(windows) // 2
            drift = unsteady_cache((windows[:half], windows[half:]))
            self.problems.extend([drift] if drift else [])
        compiled = sum(window.stages[COMPILING].count for window in windows if COMPILING in window.stages)
        if compiled:
            text = (
                f"compiled under load: the model was compiled in {compiled} executions of the measured time, for new"
                " shapes. Send these shapes before: load(..., warmup_seconds=...)"
            )
            self.problems.append(Reason(ReasonKind.COMPILED_UNDER_LOAD, text))
        if shape.finite and not any(reason.kind is ReasonKind.CLIENT_SATURATED for reason in found):
            # On average, a quiet step hides one in which the client could not keep up.
            self.disturbances.extend(self._saturated(windows))
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

    def _look(self, tick: Tick) -> None:
        """Check whether the load may go on."""
        complaints = self.check.check(tick)
        self._complaints.extend(complaints)
        errors = bool(tick.errors) and not self.shape.allowed_errors
        # A dying server first shows as a hundred reset connections, which would hide the cause. A load with allowed
        # errors goes on without this wait, which would leave the watch behind the load.
        death = self.instance.death(grace_seconds=DEATH_GRACE_SECONDS if errors else 0.0)
        if death is not None:
            self.problems.append(Reason(ReasonKind.SERVER_FAILED, death))
        elif errors:
            kinds = ", ".join(f"{kind}: {number}" for kind, number in sorted(tick.errors.items()))
            samples = "; ".join(f"{kind}: {one_line(text)}" for kind, text in sorted(tick.error_samples.items()))
            text = f"request errors ({kinds}); first of each kind: {samples}"
            self.problems.append(self._shown(Reason(ReasonKind.REQUEST_ERRORS, text)))
        if complaints:
            self.problems.extend(map(self._shown, answer_reasons(self.check, self._complaints)))

    def _shown(self, reason: Reason) -> Reason:
        """Text that may repeat an answer, without the secrets of the server or of a request."""
        text = reason.text
        # A load has many requests, usually with one set of headers.
        for headers in {tuple(sorted(request.headers.items())) for request in self.target.requests}:
            text = self.instance.shown(text, dict(headers))
        return reason.with_text(text)

    def _saturated(self, windows: Sequence[Window]) -> list[Reason]:
        at_once = min(self.shape.processes, self._cores() or self.shape.processes)
        # The last window may be so short that a report alone fills it.
        whole = [window for window in windows if window.seconds > WINDOW_SECONDS / 2]
        worst = max(whole, key=lambda window: window.client_cpu_seconds / window.seconds, default=None)
        share = worst.client_cpu_seconds / (worst.seconds * at_once) if worst is not None else 0.0
        if share <= SATURATED_SHARE:
            return []
        text = (
            f"client saturated: in its busiest window the load engine used {format_fraction(share)} of a core,"
            f" over {format_fraction(SATURATED_SHARE)}; share the load: processes={self.shape.processes + 1}"
        )
        return [Reason(ReasonKind.CLIENT_SATURATED, text)]


def _streams_of(totals: Tick) -> Streams | None:
    if not totals.chunks and not totals.ttft.total:
        return None
    return Streams(
        ttft=totals.ttft,
        itl=totals.itl,
        tpot=totals.tpot,
        tokens=totals.chunks + totals.tokens_beyond_chunks,
        with_usage=totals.with_usage,
        usage_tokens=totals.usage_tokens,
    )


def client_of(totals: Tick) -> Client:
    """Observations of the load engine besides the latencies."""
    return Client(
        lag=totals.lag,
        service=totals.service,
        resent=totals.resent,
        sending_seconds=None if totals.sending_ns is None else totals.sending_ns / 1e9,
        receiving_seconds=None if totals.receiving_ns is None else totals.receiving_ns / 1e9,
    )


def our_processes(beyond: Iterable[int] = ()) -> list[psutil.Process]:
    """This process and its descendants: the engines, the supervisors, and through them the servers.

    Args:
        beyond: Pids of servers that descend from other processes; see ``Instance.members``.
    """
    own = psutil.Process()
    found = {process.pid: process for process in (own, *own.children(recursive=True))}
    for pid in beyond:
        with contextlib.suppress(psutil.Error):
            found.setdefault(pid, psutil.Process(pid))
    return list(found.values())
