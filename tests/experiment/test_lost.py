"""Load engines that are lost side by side make their round invalid; a load that never began is an error."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from pytest_gpuserve.device.contention import CpuReading
from pytest_gpuserve.errors import LoadFailed
from pytest_gpuserve.experiment import by_turns, pairing, server_arm
from pytest_gpuserve.experiment.capacity import rounds
from pytest_gpuserve.experiment.capacity.shape import search_shape
from pytest_gpuserve.experiment.handle import ServerHandle, Target
from pytest_gpuserve.experiment.pairing import Pairing
from pytest_gpuserve.experiment.shape import LoadShape, Terms
from pytest_gpuserve.gate.sequential import BLOCKS
from pytest_gpuserve.load.request import Request
from pytest_gpuserve.load.schedule import Closed, Poisson, Steps
from pytest_gpuserve.load.source import LOCAL
from pytest_gpuserve.measure.rounds import ARMS
from pytest_gpuserve.measure.window import Start
from tests.fakes.scripted_engines import TICK_NS, ScriptedEngines, scripted_instance
from tests.servers.pairs import Seen
from tests.support.builders import window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpuserve.load.source import EngineSource
    from pytest_gpuserve.load.wire import Plan
    from pytest_gpuserve.measure.rounds import Arm
    from pytest_gpuserve.servers.base import Ask, ServerKind
    from pytest_gpuserve.servers.instance import Instance

PORTS: dict[Arm, int] = {"base": 1, "candidate": 2}
LOST = "node-b/worker-1 was lost"
LOG = f"noise\n{LOST}\n"

CLOSED, OPEN, STEPS = (
    LoadShape(schedule, warmup_seconds=0.3) for schedule in (Closed(4), Poisson(1000.0), Steps(((4, 0.5),)))
)
"""Loads whose warm-up is three ticks."""

either_way = pytest.mark.parametrize("one_at_a_time", [False, True])
either_arm = pytest.mark.parametrize("arm", ARMS)


@dataclass
class World:
    """Two servers and their load engines that are not there.

    Args:
        lost: Whose engines are lost, at what is asked of them, and at which time that it is, from 0; None for never.
        is_lost: Whether that has been.
        asked: What was asked of the engines so far, and whose.
        starts: Whose server was started.
        running: Whose servers run.
        now_ns: The time.
    """

    lost: tuple[Arm, str, int] | None = None
    is_lost: bool = False
    asked: list[tuple[Arm, str]] = field(default_factory=list)
    starts: list[Arm] = field(default_factory=list)
    running: list[Arm] = field(default_factory=list)
    now_ns: int = 0

    def ask(self, arm: Arm, what: str) -> None:
        """Ask something of engines, which may be lost then."""
        assert not (self.is_lost and self.lost is not None and arm == self.lost[0]), f"{what} of engines that are lost"
        number = self.asked.count((arm, what))
        self.asked.append((arm, what))
        if (arm, what, number) == self.lost:
            self.is_lost = True
            raise LoadFailed("the load engine died", found="exit status 1", log_tail=LOG)

    def passing(self) -> int:
        """Let a tick pass."""
        self.now_ns += TICK_NS
        return self.now_ns - TICK_NS

    def engines(self, plan: Plan, _processes: int, _source: EngineSource) -> ScriptedEngines:
        """Stand for `Engines`."""
        arm = next(arm for arm in ARMS if PORTS[arm] == plan.endpoint.port)
        return ScriptedEngines(plan, self.passing, lambda what: self.ask(arm, what))

    def target(self, arm: Arm) -> Target:
        """The server, and a request."""

        @contextmanager
        def start(kind: ServerKind, ask: Ask, beside: Callable[[], None] | None = None) -> Iterator[Instance]:
            if beside is not None:
                beside()
            self.starts.append(arm)
            self.running.append(arm)
            try:
                yield scripted_instance(PORTS[arm])
            finally:
                self.running.remove(arm)

        return Target(ServerHandle(cast("ServerKind", None), start), (Request("GET", "/"),))

    def pair(self, shape: LoadShape, *, one_at_a_time: bool = False) -> Pairing:
        """Both, to be compared under this load."""
        terms = Terms(shape, requests_wanted=1, most_foreign_cores=1000.0, by_turns=one_at_a_time, seed="s")
        return Pairing(self.target("base"), self.target("candidate"), terms, Seen())


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """A world, which takes the place of engines and of the host."""
    made = World()
    monkeypatch.setattr(server_arm, "Engines", made.engines)
    for module in (pairing, by_turns):
        monkeypatch.setattr(module, "our_processes", lambda _: [])
        monkeypatch.setattr(module, "read_cpu", lambda _: CpuReading(0.0, 0.0, 0.0, 0.0))
    return made


@either_way
@pytest.mark.parametrize(
    ("shape", "what", "number"),
    [
        pytest.param(CLOSED, "tick", 1, id="in the warm-up"),
        pytest.param(CLOSED, "halt", 0, id="after the warm-up"),
        pytest.param(CLOSED, "begin", 0, id="as a turn begins"),
        pytest.param(CLOSED, "tick", 6, id="in a turn"),
        pytest.param(CLOSED, "halt", 1, id="after a turn"),
        pytest.param(OPEN, "halt", 1, id="before an open loop begins"),
        pytest.param(STEPS, "tick", 1, id="in the warm-up of what is measured as a whole"),
        pytest.param(STEPS, "tick", 3, id="at the first tick of what is measured as a whole"),
        pytest.param(STEPS, "halt", 1, id="after what is measured as a whole"),
    ],
)
@either_arm
def test_a_load_that_is_lost_makes_its_round_invalid(
    world: World, arm: Arm, shape: LoadShape, what: str, number: int, *, one_at_a_time: bool
) -> None:
    """With whose it was and which worker; the servers end, and nothing more is asked of what is lost."""
    world.lost = (arm, what, number)
    both = world.pair(shape, one_at_a_time=one_at_a_time)
    both.measure(BLOCKS)
    (measured,) = both.rounds
    assert world.is_lost
    assert measured.problems == (LOST if arm == "candidate" else f"the base: {LOST}",)
    assert len(measured.blocks) < (1 if one_at_a_time else BLOCKS)
    assert set(measured.sides) == set(ARMS)
    assert (world.running, both.blocks_of_open_round) == ([], 0)
    # By turns no other start is made for a round that is lost.
    assert world.starts[-1] == arm if one_at_a_time else sorted(world.starts) == list(ARMS)
    # Another round has engines of its own, and is sound.
    world.lost = None
    both.measure(BLOCKS)
    assert both.rounds[1].problems == ()
    assert len(both.rounds[1].blocks) == (1 if one_at_a_time else BLOCKS)


@either_way
@pytest.mark.parametrize(
    ("shape", "what", "number"),
    [
        pytest.param(CLOSED, "ready", 0, id="not started"),
        pytest.param(CLOSED, "tick", 0, id="before its first tick"),
        pytest.param(STEPS, "ready", 1, id="not started after another warm-up"),
    ],
)
@either_arm
def test_a_load_that_never_began_is_an_error(
    world: World, arm: Arm, shape: LoadShape, what: str, number: int, *, one_at_a_time: bool
) -> None:
    """There is nothing to keep, and its log says more than a line."""
    world.lost = (arm, what, number)
    both = world.pair(shape, one_at_a_time=one_at_a_time)
    with pytest.raises(LoadFailed) as caught:
        both.measure(BLOCKS)
    assert caught.value.log_tail == LOG
    assert (both.rounds, world.running) == ([], [])


@either_arm
def test_a_search_that_is_lost_makes_its_round_invalid(world: World, monkeypatch: pytest.MonkeyPatch, arm: Arm) -> None:
    """As a load is, whichever server is searched first."""

    def search(instance: Instance, *_: object) -> SimpleNamespace:
        is_lost = instance.site.port == PORTS[arm]
        found = Start(() if is_lost else (window((0.01,)),), 1.0)
        return SimpleNamespace(problems=[LOST] if is_lost else [], interrupted=False, measure=lambda: found)

    monkeypatch.setattr(rounds, "SearchedStart", search)
    shape = search_shape(
        {"p99": 0.1},
        precision=0.1,
        arrivals="poisson",
        seconds=None,
        warmup_seconds=0.5,
        starts=2,
        timeout=None,
        processes=1,
        seed=0,
        check="some",
        allowed_errors=0.0,
        source=LOCAL,
    )
    both = world.pair(shape)
    both.measure(BLOCKS)
    (measured,) = both.rounds
    assert measured.problems == (LOST if arm == "candidate" else f"the base: {LOST}",)
    assert (measured.blocks, world.starts[-1], world.running) == ((), arm, [])
