"""One fresh start of a server, searched for the highest rate at which it meets an objective."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

import msgspec

from pytest_gpuserve.errors import LoadFailed
from pytest_gpuserve.experiment.another_client import OTHERS_SHARE
from pytest_gpuserve.experiment.capacity.outcome import MeasuredProbe, not_its_own, not_precise, problem_of, too_slow
from pytest_gpuserve.experiment.capacity.planning import Looks, Planner, Try, least_rate, search_for, settle_seconds
from pytest_gpuserve.experiment.capacity.probing import Probing
from pytest_gpuserve.experiment.loaded import OneStart
from pytest_gpuserve.experiment.replicas import ReplicaShares
from pytest_gpuserve.experiment.shape import TICK_SECONDS
from pytest_gpuserve.gate.reason import Reason, ReasonKind
from pytest_gpuserve.load.driver import Engines, most_under_way
from pytest_gpuserve.load.totals import RunningTotals, total
from pytest_gpuserve.measure.capacity import ProbeOutcome, Search
from pytest_gpuserve.measure.conditions import judge_windows
from pytest_gpuserve.measure.points import ASK_FOR_USAGE
from pytest_gpuserve.measure.window import COMPILING
from pytest_gpuserve.servers.remote import addresses_of
from pytest_gpuserve.units import format_rate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpuserve.experiment.another_client import CounterReading
    from pytest_gpuserve.experiment.capacity.shape import SearchShape
    from pytest_gpuserve.experiment.shape import LoadShape
    from pytest_gpuserve.experiment.watch import Watch
    from pytest_gpuserve.load.schedule import Schedule
    from pytest_gpuserve.load.wire import Tick
    from pytest_gpuserve.measure.capacity import Probe
    from pytest_gpuserve.measure.window import Start


@dataclass
class CountedLoads:
    """Holds what a server counted from rest to rest against what was sent to it in between.

    At rest, because a server that is given too much may not answer for its counters, and because nothing is under way
    then. What cannot be read is a problem of the watch.

    Args:
        watch: Reads the counters.
    """

    watch: Watch
    _before: CounterReading | None = None
    _sent: int = 0
    _last_end_seconds: float | None = None
    _unseen_seconds: float = 0.0
    _owed: int = 0

    def begin(self) -> None:
        """A load is over, and what comes now counts."""
        self._before = self.watch.read_counters()
        self._owed = 0

    def load(self) -> None:
        """A load begins."""
        self._sent, self._last_end_seconds, self._unseen_seconds = 0, None, 0.0

    def add(self, ticks: Sequence[Tick]) -> None:
        """Add the ticks that came next, measured or thrown away."""
        self._sent += sum(tick.sent for tick in ticks)
        if ticks:
            self._last_end_seconds = ticks[-1].end_ns / 1e9

    def halt(self) -> None:
        """The load is about to be halted: what it has sent since its last tick nobody reports."""
        last = self._last_end_seconds
        self._unseen_seconds = TICK_SECONDS + (0.0 if last is None else max(0.0, time.perf_counter() - last))

    def doubts(self, rate: float) -> tuple[Reason, ...]:
        """Why what was measured of a load that has come to rest may not be what the server does under it alone.

        Args:
            rate: Requests a second that were due in it.
        """
        before, self._before = self._before, self.watch.read_counters()
        counted = self.watch.counted(before, self._before)
        if counted is None:
            return ()
        found = []
        if counted.requests is not None:
            unseen = rate * self._unseen_seconds
            sent = self._sent + unseen
            # What it was not done with when it was hung up on, it may have answered now.
            allowed = 3 + 3 * math.sqrt(unseen) + self._owed
            if counted.requests > sent * (1 + OTHERS_SHARE) + allowed:
                text = (
                    f"another client: the server answered {counted.requests} requests, we sent it {sent:.0f}; make sure"
                    " that nobody else uses it"
                )
                found.append(Reason(ReasonKind.ANOTHER_CLIENT, text))
            self._owed = max(0, self._owed + self._sent - counted.requests)
        if COMPILING in counted.stages:
            text = (
                f"compiled under load: in {counted.stages[COMPILING].count} executions the model was compiled, for"
                " shapes that it had not seen; let it see them before: load.capacity(..., warmup_seconds=...)"
            )
            found.append(Reason(ReasonKind.COMPILED_UNDER_LOAD, text))
        return tuple(found)


GUESS_SECONDS: Final = 1.0
GUESS_ANSWERS: Final = 4
"""Measured time of the users by whose rate the first one is guessed, and what they wait for beyond it, up to the time
in which a request must be answered; a failed request is not waited beyond."""

MOST_DISTURBED: Final = 3
"""Probes that are made again because the cards were disturbed."""

ANY_ERRORS: Final = 1e-9
"""Allowed share of errors at which a load goes on: here they tell that a rate is too high."""

OF_SAMPLES: Final = 1000
"""Seeds from here on are those of samples: the arrivals of each are the same in all starts of a session or a round, so
that of two servers only what they do about them differs."""


@runtime_checkable
class ProbeProgress(Protocol):
    """Who can show what is searched, beside how its load gets on."""

    def probe(self, text: str) -> None:
        """Hear which rate is tried, and between which ones the capacity lies; empty when the search is over."""


@dataclass
class SearchedStart(OneStart):
    """One start that is searched; it stands where ``LoadedStart`` does."""

    shape: SearchShape
    _taken: list[MeasuredProbe] = field(default_factory=list)
    _ticks_left: int = 0
    _loads: int = 0
    _sample: Looks | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._counted = CountedLoads(self._watch)

    @property
    def _watched_shape(self) -> LoadShape:
        """The shape by which its loads are watched: errors do not end them."""
        return replace(self.shape, allowed_errors=max(self.shape.allowed_errors, ANY_ERRORS))

    def measure(self) -> Start:
        """Warm up, guess, and search, unless something is wrong already.

        What goes wrong under load ends it early and stands in ``problems``. Ctrl-C too: it is to be raised again, when
        what was measured is safe, by who finds ``interrupted``.
        """
        try:
            self.monitor.up(self.instance)
            if not self.problems:
                with self._host_watched():
                    self._find()
            self._judged()
            if not self.problems:
                self.problems.extend(self._why_nothing())
        except KeyboardInterrupt:
            self._interrupt(f"{len(self._taken)} probes")
        except LoadFailed as problem:
            if self._loads <= 1 and not self._watch.so_far.seconds:
                # It never began: nothing was measured that an error could lose.
                raise
            self._watch.lose(problem)
        finally:
            self._show("")
            self.progress.clear()
        if not self.problems:
            self.shape.known.capacity = self._search.value
        return self._start()

    @property
    def _search(self) -> Search:
        return Search(self.shape.objective, tuple(taken.probe for taken in self._taken))

    def _why_nothing(self) -> list[Reason]:
        """Why nothing may be concluded from the search, now that its probes are known."""
        replicas = ReplicaShares(addresses_of(self.instance))
        search, allowed_errors = self._search, self.shape.allowed_errors
        problem = problem_of(search) or not_precise(search)
        return [*not_its_own(search, self._taken, replicas, allowed_errors), *([problem] if problem else [])]

    def _start(self) -> Start:
        """What is kept: the window of the highest rate that met the objective, or else of the lowest rate."""
        # The windows of all probes together say nothing: each has another load.
        search = self._search
        met = [
            taken for taken in self._taken if taken.probe.rate == search.low and taken.probe.finding is ProbeOutcome.MET
        ]
        kept = met[-1:] or sorted(self._taken, key=lambda taken: taken.probe.rate)[:1]
        totals = total(tick for taken in kept for tick in taken.ticks)
        return replace(self._kept([taken.window for taken in kept], totals), search=search)

    def _find(self) -> None:
        """Warm up, guess and search."""
        guess = self._guess()
        if guess is None:
            return
        objective, seconds = self.shape.objective, self.shape.probe_seconds
        planner = Planner.beginning(
            guess=guess,
            known=self.shape.known.capacity,
            precision=self.shape.precision,
            least=least_rate(objective, seconds),
        )
        search_for(objective, planner, self._probe)

    def _guess(self) -> float | None:
        """Requests a second that users reach who wait for each answer; None where there was trouble."""
        self._show("warming up")
        warmup_ticks = max(1, round(self.shape.warmup_seconds / TICK_SECONDS))
        most_ticks = math.ceil((GUESS_SECONDS + self.shape.timeout_seconds) / TICK_SECONDS)
        ticks = self._load(self.shape.schedule, warmup_ticks, most_ticks, enough=_answered)
        totals = total(ticks)
        if self.problems:
            return None
        if not totals.requests:
            kinds = ", ".join(f"{kind}: {count}" for kind, count in sorted(totals.errors.items())) or "none came"
            text = f"nothing measured: no request was answered well while it was warmed up ({kinds})"
            self.problems.append(Reason(ReasonKind.NOTHING_MEASURED, text))
            return None
        self.shape = self.shape.for_answers(totals)
        problem = too_slow(self.shape)
        if problem is not None:
            self.problems.append(problem)
            return None
        self._counted.begin()
        return totals.requests / totals.seconds

    def _load(
        self,
        schedule: Schedule,
        settle_ticks: int,
        most_ticks: int,
        *,
        enough: Callable[[Sequence[Tick]], bool],
        sample: int | None = None,
    ) -> list[Tick]:
        """Load it, throw the first ticks away, and return the others: so many, or until they are enough."""
        watch = self._watch
        watch.so_far, watch.ended = RunningTotals(), False
        self._ticks_left = settle_ticks + most_ticks
        measured: list[Tick] = []
        # The rate that is tried once more is not to have the same luck.
        self._loads += 1
        self._counted.load()
        number = self._loads if sample is None else OF_SAMPLES + sample
        plan = msgspec.structs.replace(watch.plan(schedule), seed=self.shape.seed + number)
        with Engines(plan, self.shape.processes, self.shape.source) as engines:
            self.monitor.loaded_by(engines.pids)
            self._ticks(engines, settle_ticks)
            while len(measured) < most_ticks and not self.problems:
                measured += self._ticks(engines, 1)
                if not self.problems and enough(measured):
                    break
            if not self.problems:
                self._counted.halt()
                # What is still under way would be in the next one's way.
                engines.halt(seed=self.shape.seed)
        return measured

    def _ticks(self, engines: Engines, count: int) -> list[Tick]:
        self._ticks_left -= count
        ticks = self._watch.ticks(engines, count)
        self._counted.add(ticks)
        silent = sum(tick.ttft.total - tick.with_usage for tick in ticks)
        if silent and "tpot" in self.shape.objective.limits and not self.problems:
            text = f"capacity is not known: {silent} answers do not say how many tokens they have; {ASK_FOR_USAGE}"
            self.problems.append(Reason(ReasonKind.NOT_MEASURED, text))
        return ticks

    def _probe(self, which: Try, search: Search) -> Probe | None:
        """Try a rate, anew where the cards were disturbed meanwhile; None where there is trouble."""
        if which.sample == 0 and problem_of(search):
            # Samples do not mend it.
            return None
        self._show(_standing(which, search))
        while True:
            taken = self._tried(which)
            if taken is None:
                return None
            conditions = self.monitor.judge([taken.window], wait=True)
            self.problems.extend(self.monitor.problems())
            self._conditions += conditions
            if self.problems:
                return None
            if not any(condition.again for condition in conditions):
                self._taken.append(taken)
                return taken.probe
            if sum(bool(condition.again) for condition in self._conditions) > MOST_DISTURBED:
                self.problems.extend(judge_windows(self._conditions, most_rejected_share=0.0).invalid)
                return None

    def _tried(self, which: Try) -> MeasuredProbe | None:
        schedule = self.shape.at(which.rate)
        probing = Probing(
            self.shape.objective,
            which.rate,
            self._looks(which),
            self.shape.allowed_errors,
            is_sample=which.sample is not None,
            is_patient=which.is_last_resort,
        )
        found: list[Probe] = []

        def enough(ticks: Sequence[Tick]) -> bool:
            probe = probing.look(total(ticks), self._watch.reasons(ticks, schedule)) if probing.add(ticks[-1]) else None
            found.extend([probe] if probe is not None else [])
            return probe is not None

        settle = math.ceil(settle_seconds(self.shape.objective) / TICK_SECONDS)
        ticks = self._load(schedule, settle, probing.looks.ticks[-1], enough=enough, sample=which.sample)
        doubts = () if self.problems or not found else self._counted.doubts(which.rate)
        window = None if self.problems or not found else self._watch.window(ticks, None)
        if window is None:
            return None
        return MeasuredProbe(self._as_bounded(found[0], ticks), ticks, window, doubts)

    def _looks(self, which: Try) -> Looks:
        objective, seconds = self.shape.objective, self.shape.probe_seconds
        if which.sample is None:
            return Looks.at(which.rate, objective, seconds)
        if which.sample == 0 or self._sample is None:
            self._sample = Looks.of_sample(which.rate, objective, seconds)
        return self._sample

    def _as_bounded(self, probe: Probe, ticks: Sequence[Tick]) -> Probe:
        """Say that it was the client's limit, where that on open files made requests wait."""
        most, wanted = most_under_way(self.shape.at(probe.rate)), self.shape.in_flight_at(probe.rate)
        if most is None or most >= wanted or not any(tick.held for tick in ticks):
            return probe
        text = f"client saturated: with the hard limit on open files it has {most} requests under way at most"
        return replace(probe, client="; ".join(filter(None, (probe.client, text))))

    def _show(self, text: str) -> None:
        if isinstance(self.progress, ProbeProgress):
            self.progress.probe(text)

    def _seconds_left(self) -> float:
        return max(0, self._ticks_left) * TICK_SECONDS


def _answered(ticks: Sequence[Tick]) -> bool:
    """Whether users have been waited for long enough to guess a rate."""
    totals = total(ticks)
    return totals.seconds >= GUESS_SECONDS - TICK_SECONDS / 2 and (
        totals.requests >= GUESS_ANSWERS or totals.error_count > 0
    )


def _standing(which: Try, search: Search) -> str:
    """``trying 812/s of 750/s .. 900/s``."""
    low, high = ("?" if end is None else format_rate(end) for end in (search.low, search.high))
    return f"trying {format_rate(which.rate)} of {low} .. {high}"
