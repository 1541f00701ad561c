"""Load engines that are lost side by side make their round invalid; a load that never began is an error."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from pytest_gpuserve.device.contention import CpuReading
from pytest_gpuserve.errors import LoadFailed
from pytest_gpuserve.gate.sequential import BLOCKS
from pytest_gpuserve.load.request import Request
from pytest_gpuserve.load.schedule import Closed, Poisson, Steps
from pytest_gpuserve.load.source import LOCAL
from pytest_gpuserve.load.wire import Latencies, Tick
from pytest_gpuserve.measure.histogram import bucket_of
from pytest_gpuserve.measure.rounds import ARMS
from pytest_gpuserve.measure.window import Start
from pytest_gpuserve.trial import by_turns, contender, pairing
from pytest_gpuserve.trial.capacity import rounds
from pytest_gpuserve.trial.capacity.shape import search_shape
from pytest_gpuserve.trial.handle import ServerHandle, Target
from pytest_gpuserve.trial.pairing import Pairing, Terms
from pytest_gpuserve.trial.shape import LoadShape
from tests.servers.pairs import Seen
from tests.support.builders import window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from typing_extensions import Self

    from pytest_gpuserve.load.schedule import Schedule
    from pytest_gpuserve.load.wire import Plan
    from pytest_gpuserve.measure.rounds import Arm
    from pytest_gpuserve.servers.base import Ask, ServerKind
    from pytest_gpuserve.servers.instance import Instance

TICK_NS = 100_000_000
TICK_REQUESTS = 100
LATENCY_NS = 4_000_000
PORTS: dict[Arm, int] = {"base": 1, "candidate": 2}

LOG = "noise\nnode-b/worker-1 was lost\n"
LOST = "node-b/worker-1 was lost"


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

    def target(self, arm: Arm) -> Target:
        """The server, and a request."""

        @contextmanager
        def start(kind: ServerKind, ask: Ask, beside: Callable[[], None] | None = None) -> Iterator[Instance]:
            if beside is not None:
                beside()
            del kind, ask
            self.starts.append(arm)
            self.running.append(arm)
            try:
                yield cast(
                    "Instance",
                    SimpleNamespace(
                        kind=None,
                        process=None,
                        members=tuple,
                        counters=lambda: None,
                        death=lambda **_: None,
                        shown=lambda text, _: text,
                        site=SimpleNamespace(host="127.0.0.1", port=PORTS[arm], tls=False, ca_file=""),
                        cold_start_seconds=1.0,
                        cold_start_parts={},
                        settings={},
                    ),
                )
            finally:
                self.running.remove(arm)

        return Target(ServerHandle(cast("ServerKind", None), start), (Request("GET", "/"),))

    def pair(self, *, one_at_a_time: bool, schedule: Schedule) -> Pairing:
        """Both, to be compared under this load."""
        shape = LoadShape(schedule, warmup_seconds=0.3)
        terms = Terms(shape, requests_wanted=1, most_foreign_cores=1000.0, by_turns=one_at_a_time, seed="s")
        return Pairing(self.target("base"), self.target("candidate"), terms, Seen())


class FakeEngines:
    """Load engines whose ticks take no time but that of the world."""

    def __init__(self, world: World, plan: Plan) -> None:
        self.world = world
        self.arm: Arm = next(arm for arm in ARMS if PORTS[arm] == plan.endpoint.port)
        self.ends = isinstance(plan.schedule, Steps)
        self.number = 0
        world.ask(self.arm, "ready")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def begin(self) -> None:
        """Begin anew."""
        self.world.ask(self.arm, "begin")
        self.number = 0

    def halt(self, *, seed: int) -> None:
        """Rest."""
        del seed
        self.world.ask(self.arm, "halt")

    def next_tick(self) -> Tick:
        """A tenth of a second; a schedule of steps ends after half a second."""
        self.world.ask(self.arm, "tick")
        begin_ns = self.world.now_ns
        self.world.now_ns += TICK_NS
        self.number += 1
        latency = Latencies({bucket_of(LATENCY_NS): TICK_REQUESTS}, TICK_REQUESTS * LATENCY_NS, LATENCY_NS)
        return Tick(
            self.number - 1,
            begin_ns,
            self.world.now_ns,
            requests=TICK_REQUESTS,
            latency=latency,
            service=latency,
            lag=Latencies({bucket_of(1000): TICK_REQUESTS}, TICK_REQUESTS * 1000, 1000),
            cpu_ns=1_000_000,
            sent=TICK_REQUESTS,
            due=TICK_REQUESTS,
            in_flight=4,
            in_flight_ns=TICK_REQUESTS * LATENCY_NS,
            users=4,
            last=self.ends and self.number == 5,
        )


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """A world, which takes the place of engines and of the host."""
    made = World()
    monkeypatch.setattr(contender, "Engines", lambda plan, _processes, _source: FakeEngines(made, plan))
    for module in (pairing, by_turns):
        monkeypatch.setattr(module, "our_processes", lambda _: [])
        monkeypatch.setattr(module, "read_cpu", lambda _: CpuReading(0.0, 0.0, 0.0, 0.0))
    return made


@pytest.mark.parametrize("one_at_a_time", [False, True])
@pytest.mark.parametrize("schedule", [Closed(4), Poisson(1000.0), Steps(((4, 0.5),))], ids=["closed", "open", "steps"])
def test_without_a_loss_a_round_is_sound(world: World, schedule: Schedule, *, one_at_a_time: bool) -> None:
    """So that what the other tests see is the loss."""
    both = world.pair(one_at_a_time=one_at_a_time, schedule=schedule)
    both.measure(BLOCKS)
    (measured,) = both.rounds
    assert measured.problems == ()
    assert len(measured.blocks) == (1 if one_at_a_time else BLOCKS)


@pytest.mark.parametrize("one_at_a_time", [False, True])
@pytest.mark.parametrize(
    ("schedule", "what", "number"),
    [
        pytest.param(Closed(4), "tick", 1, id="in the warm-up"),
        pytest.param(Closed(4), "halt", 0, id="after the warm-up"),
        pytest.param(Closed(4), "begin", 0, id="as a turn begins"),
        pytest.param(Closed(4), "tick", 6, id="in a turn"),
        pytest.param(Closed(4), "halt", 1, id="after a turn"),
        pytest.param(Poisson(1000.0), "halt", 1, id="before an open loop begins"),
        pytest.param(Steps(((4, 0.5),)), "tick", 1, id="in the warm-up of what is measured as a whole"),
        pytest.param(Steps(((4, 0.5),)), "tick", 3, id="at the first tick of what is measured as a whole"),
        pytest.param(Steps(((4, 0.5),)), "halt", 1, id="after what is measured as a whole"),
    ],
)
@pytest.mark.parametrize("arm", ARMS)
def test_a_load_that_is_lost_makes_its_round_invalid(
    world: World, arm: Arm, schedule: Schedule, what: str, number: int, *, one_at_a_time: bool
) -> None:
    """With whose it was and which worker; the servers end, and nothing more is asked of what is lost."""
    world.lost = (arm, what, number)
    both = world.pair(one_at_a_time=one_at_a_time, schedule=schedule)
    both.measure(BLOCKS)
    (measured,) = both.rounds
    assert world.is_lost
    assert measured.problems == (LOST if arm == "candidate" else f"the base: {LOST}",)
    assert len(measured.blocks) < (1 if one_at_a_time else BLOCKS)
    assert set(measured.sides) == set(ARMS)
    assert not world.running
    assert both.blocks_of_open_round == 0
    # By turns no other start is made for a round that is lost.
    assert world.starts[-1] == arm if one_at_a_time else sorted(world.starts) == list(ARMS)


@pytest.mark.parametrize("one_at_a_time", [False, True])
@pytest.mark.parametrize(
    ("schedule", "what", "number"),
    [
        pytest.param(Closed(4), "ready", 0, id="not started"),
        pytest.param(Closed(4), "tick", 0, id="before its first tick"),
        pytest.param(Steps(((4, 0.5),)), "ready", 1, id="not started after another warm-up"),
    ],
)
@pytest.mark.parametrize("arm", ARMS)
def test_a_load_that_never_began_is_an_error(
    world: World, arm: Arm, schedule: Schedule, what: str, number: int, *, one_at_a_time: bool
) -> None:
    """There is nothing to keep, and its log says more than a line."""
    world.lost = (arm, what, number)
    both = world.pair(one_at_a_time=one_at_a_time, schedule=schedule)
    with pytest.raises(LoadFailed) as caught:
        both.measure(BLOCKS)
    assert caught.value.log_tail == LOG
    assert both.rounds == []
    assert not world.running


def test_the_next_round_is_measured(world: World) -> None:
    """What is lost is lost for one round; another one has engines of its own."""
    world.lost = ("base", "tick", 6)
    both = world.pair(one_at_a_time=False, schedule=Closed(4))
    both.measure(BLOCKS)
    world.is_lost = False
    both.measure(BLOCKS)
    assert [bool(measured.problems) for measured in both.rounds] == [True, False]


@dataclass
class LostSearch:
    """Finds nothing, for its load is lost where it is the one to lose.

    Args:
        is_lost: Whether it is.
    """

    is_lost: bool
    interrupted: bool = False

    @property
    def problems(self) -> list[str]:
        """Why nothing may be concluded from it."""
        return [LOST] if self.is_lost else []

    def measure(self) -> Start:
        """Search."""
        return Start(() if self.is_lost else (window((0.01,)),), 1.0)


@pytest.mark.parametrize("arm", ARMS)
def test_a_search_that_is_lost_makes_its_round_invalid(world: World, monkeypatch: pytest.MonkeyPatch, arm: Arm) -> None:
    """As a load is, whichever server is searched first."""
    monkeypatch.setattr(rounds, "SearchedStart", lambda instance, *_: LostSearch(instance.site.port == PORTS[arm]))
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
    terms = Terms(shape, requests_wanted=1, most_foreign_cores=1000.0, by_turns=False, seed="s")
    both = Pairing(world.target("base"), world.target("candidate"), terms, Seen())
    both.measure(BLOCKS)
    (measured,) = both.rounds
    assert measured.problems == (LOST if arm == "candidate" else f"the base: {LOST}",)
    assert measured.blocks == ()
    assert world.starts[-1] == arm
    assert not world.running
