"""Two servers and their load engines that are not there, for rounds side by side and one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from pytest_gpuserve.errors import LoadFailed, ServerFailed
from pytest_gpuserve.experiment.handle import ServerHandle, Target
from pytest_gpuserve.experiment.pairing import Pairing
from pytest_gpuserve.experiment.shape import LEAST_TICKS, SETTLE_TICKS, LoadShape
from pytest_gpuserve.experiment.shared_starts import SharedStarts
from pytest_gpuserve.experiment.telemetry import NO_TELEMETRY
from pytest_gpuserve.load.driver import EngineSource
from pytest_gpuserve.load.request import Request
from pytest_gpuserve.load.schedule import Closed
from pytest_gpuserve.load.wire import BEAT_NS, Plan
from pytest_gpuserve.measure.counters import Counters, StageTime
from pytest_gpuserve.measure.rounds import ARMS, Arm, Round
from pytest_gpuserve.measure.window import COMPILING, Window
from pytest_gpuserve.process.ready import Ask
from pytest_gpuserve.servers.base import ServerKind
from pytest_gpuserve.servers.instance import Instance
from pytest_gpuserve.verdict.evidence import BLOCKS
from tests.fakes.scripted_engines import (
    TICK_REQUESTS,
    ScriptedEngines,
    ScriptedEyes,
    busy_tick,
    scripted_instance,
    stand_in,
)

LOST = "lost in mid-load: the load engine died: it was killed"
LOG = "noise\nit was killed\n"

WARMUP_TICKS = 3
USERS = LoadShape(Closed(4), warmup_seconds=0.3)
"""A load with such a warm-up, as all here have."""

either_way = pytest.mark.parametrize("alone", [False, True])
either_arm = pytest.mark.parametrize("arm", ARMS)


def told(arm: Arm, problem: str) -> str:
    """A problem of a server, as a round tells it."""
    return problem if arm == "candidate" else f"the base: {problem}"


@dataclass
class Stage:
    """Where both play; a server is named by its arm, or by its start, from 0, and its windows by their number.

    Args:
        rate: Answers in each tick of a window of a server; of window -1, its warm-up.
        late: Late beats of the client in a window of a start, for each half second of it.
        lost: Whose engines are lost, at what is asked of them, and at which time that it is, from 0; None for never.
        failing: Which of the starts fail, and how.
        compiling: Whose models are compiled all the time.
        foreign: Cores that others take, of each block to come; none after these.
        eyes: Look at the GPU, where there is one; they have the time.
        notes: Notes of the monitor.
        starts: Whose server was started.
        running: Whose servers run.
        ending: How many servers ran when one was asked to end, which it does when it is waited for.
        turns: Whose turn it was.
        asked: Calls of the engines so far, with their server.
        is_lost: Whether engines are lost.
        lost_at: After how much of what was asked that was.
        seeds: With which their loads were to begin.
        owner: Owns the servers.
    """

    rate: Callable[[Arm, int], int] = lambda _arm, _number: TICK_REQUESTS
    late: Callable[[int, int], int] = lambda _start, _number: 0
    lost: tuple[Arm, str, int] | None = None
    failing: Callable[[Arm, int], ServerFailed | None] = lambda _arm, _start: None
    compiling: set[Arm] = field(default_factory=set)
    foreign: list[float] = field(default_factory=list)
    eyes: ScriptedEyes = field(default_factory=ScriptedEyes)
    notes: list[str] = field(default_factory=list)
    starts: list[Arm] = field(default_factory=list)
    running: list[_Started] = field(default_factory=list)
    ending: list[int] = field(default_factory=list)
    turns: list[Arm] = field(default_factory=list)
    asked: list[tuple[Arm, str]] = field(default_factory=list)
    is_lost: bool = False
    lost_at: int = 0
    seeds: dict[Arm, list[int]] = field(default_factory=lambda: {arm: [] for arm in ARMS})
    owner: SharedStarts = field(default_factory=SharedStarts)

    def pair(
        self,
        shape: LoadShape = USERS,
        *,
        alone: bool = False,
        on_gpu: bool = False,
        requests: int = 1,
    ) -> Pairing:
        """Both, to be compared under this load; a seed makes it repeatable."""
        shape = replace(shape, requests_wanted=(1,), foreign_cores=0.5)
        source = self.eyes.source(self.notes)

        def target(arm: Arm) -> Target:
            handle = ServerHandle(
                cast("ServerKind", SimpleNamespace(workload=dict, information=dict)), _Starter(self, arm).start
            )
            sent = (Request("GET", "/"),) * requests
            return Target(handle, sent, telemetry_source=source if on_gpu else NO_TELEMETRY)

        return Pairing(
            target("base"),
            target("candidate"),
            shape,
            lambda _: None,
            tolerance=0.05,
            one_at_a_time=alone,
            seed="s",
            starts=self.owner,
        )

    def round(self, shape: LoadShape = USERS, *, alone: bool = False, on_gpu: bool = False) -> Round:
        """A round to its end, after which no server is left."""
        both = self.pair(shape, alone=alone, on_gpu=on_gpu)
        both.measure(BLOCKS)
        self.owner.end()
        assert not self.running
        (measured,) = both.rounds
        return measured

    def ask(self, arm: Arm, what: str) -> None:
        """Ask something of engines, which may be lost then."""
        assert not (self.is_lost and self.lost is not None and arm == self.lost[0]), f"{what} of engines that are lost"
        number = self.asked.count((arm, what))
        self.asked.append((arm, what))
        if (arm, what, number) == self.lost:
            self.is_lost, self.lost_at = True, len(self.asked)
            raise LoadFailed("the load engine died", found="exit status 1", log_tail=LOG)

    def in_turn(self, number: int) -> bool:
        """Whether this turn, from 1, is under way."""
        return len(self.turns) == number and any(one.loading for one in self.running)

    def engines(self, plan: Plan, _processes: int, _source: EngineSource) -> ScriptedEngines:
        """Replace ``Engines``."""
        (started,) = (one for one in self.running if one.port == plan.endpoint.port)
        return started.loaded(plan)


@dataclass
class _Starter:
    """Starts a server."""

    stage: Stage
    arm: Arm

    @contextmanager
    def start(self, kind: ServerKind, ask: Ask, beside: Callable[[], None] | None = None) -> Iterator[Instance]:
        stage, started = self.stage, _Started(self.stage, self.arm, len(self.stage.starts))
        stage.starts.append(self.arm)
        failure = stage.failing(self.arm, started.start)
        if beside is not None:
            beside()
        if failure is not None:
            raise failure
        stage.running.append(started)
        try:
            process = SimpleNamespace(pid=7, ask_to_end=lambda: stage.ending.append(len(stage.running)))
            yield scripted_instance(started.port, process=process, counters=started.counters)
        finally:
            stage.running.remove(started)


@dataclass(eq=False)
class _Started:
    """A server that is up, and its load engines."""

    stage: Stage
    arm: Arm
    start: int
    warmed: int = 0
    loading: bool = False
    settling: int = 0
    measured: int = 0
    looks: int = 0

    @property
    def port(self) -> int:
        return 1 + self.start

    def counters(self) -> Counters | None:
        if self.arm not in self.stage.compiling:
            return None
        self.looks += 1
        return Counters(
            items=self.looks, batches=self.looks, stages={COMPILING: StageTime(0.1 * self.looks, self.looks)}
        )

    def loaded(self, plan: Plan) -> ScriptedEngines:
        return ScriptedEngines(plan, self.passing, self.ask, changed=self.changed, seeds=self.stage.seeds[self.arm])

    def ask(self, what: str) -> None:
        self.stage.ask(self.arm, what)
        if what == "begin":
            self.loading, self.settling = True, SETTLE_TICKS
        elif what == "halt":
            self.loading = False

    def passing(self) -> int:
        # The load of a start that is measured alone goes on after the warm-up.
        self.loading = self.loading or (self.warmed == WARMUP_TICKS and len(self.stage.running) == 1)
        self.warmed += not self.loading
        if self.loading and not self.settling and self._begins:
            self.stage.turns.append(self.arm)
        return self.stage.eyes.pass_tick()

    @property
    def _begins(self) -> bool:
        """Whether a turn's window begins now; of a server that runs alone it has only one."""
        return self.measured % LEAST_TICKS == 0 and (self.measured == 0 or len(self.stage.running) > 1)

    def changed(self, tick: Window) -> Window:
        if not self.loading:
            return self._at(tick, -1)
        number, place = divmod(self.measured, LEAST_TICKS)
        late = 0
        if self.settling:
            self.settling -= 1
        else:
            self.measured += 1
            late = self.stage.late(self.start, number) if not place else 0
        return msgspec.structs.replace(self._at(tick, number), late_beats=late, late_beats_ns=late * BEAT_NS)

    def _at(self, tick: Window, number: int) -> Window:
        return busy_tick(tick.number, tick.begin_ns, self.stage.rate(self.arm, number), last=tick.last)


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A stage, which takes the place of engines and of the host."""
    made = Stage()
    stand_in(monkeypatch, made.engines, lambda *_: made.foreign.pop(0) if made.foreign else 0.0)
    return made
