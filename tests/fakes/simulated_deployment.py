"""A deployment of simulated queues that ``SearchedStart`` searches: no processes, no sockets, and a time of its own."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, cast

import msgspec

from pytest_gpuserve.experiment.capacity.start import SearchedStart
from pytest_gpuserve.experiment.handle import ServerHandle, Target
from pytest_gpuserve.experiment.replicas import for_replicas
from pytest_gpuserve.load.answers import AnswerCheck
from pytest_gpuserve.load.durations import Durations
from pytest_gpuserve.load.request import Request
from pytest_gpuserve.load.schedule import Closed, Constant, Poisson
from pytest_gpuserve.load.totals import together
from pytest_gpuserve.measure.counters import Counters, StageTime
from pytest_gpuserve.measure.window import COMPILING
from pytest_gpuserve.servers.remote import RemoteServer, Replicas
from pytest_gpuserve.testing import Unseen
from tests.fakes.scripted_engines import scripted_instance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from typing_extensions import Self

    from pytest_gpuserve.experiment.capacity.shape import SearchShape
    from pytest_gpuserve.gate.reason import Reason
    from pytest_gpuserve.load.wire import Plan, Tick
    from pytest_gpuserve.measure.objectives import Objectives
    from pytest_gpuserve.measure.window import Start
    from tests.fakes.simulated_queue import Queue


@dataclass
class Deployment:
    """Replicas, each a queue.

    Args:
        queues: Of each replica.
        dead: Which of them refuse all requests.
        failing: Share of a replica's requests that fail, by its number.
        counts: Whether the server counts its requests.
        others: Requests of another client, for each of ours.
        compiles: The number of the load, by its order, in which models are compiled; all from this on. None for none.
        changed: Makes of a tick of the so manieth load what is reported.
        seeds: Of its loads.
    """

    queues: tuple[Queue, ...]
    dead: frozenset[int] = frozenset()
    failing: Mapping[int, float] = field(default_factory=dict)
    counts: bool = False
    others: float = 0.0
    compiles: int | None = None
    answered: int = 0
    under_way: int = 0
    loads: int = 0
    changed: Callable[[int, object, Tick], Tick] = lambda _load, _schedule, tick: tick
    seeds: list[int] = field(default_factory=list)

    @property
    def kind(self) -> RemoteServer:
        """What it is."""
        servers = [RemoteServer(f"host{number}", 8000) for number in range(len(self.queues))]
        return servers[0] if len(servers) == 1 else Replicas.of(servers)

    def counters(self) -> Counters | None:
        """What it has answered, and compiled."""
        if not self.counts:
            return None
        number = round(self.answered * (1 + self.others))
        compiled = max(0, self.loads - self.compiles) if self.compiles is not None else 0
        stages = {COMPILING: StageTime(0.5 * compiled, compiled)} if compiled else {}
        return Counters(items=number, batches=number, requests=number, stages=stages)

    def ticks(self, schedule: object, seed: int, objectives: Objectives | None) -> Iterator[Tick]:
        """Be loaded; users who wait for each answer reach 150 requests a second of each replica."""
        assert isinstance(schedule, (Closed, Constant, Poisson))
        rate = 150.0 if isinstance(schedule, Closed) else schedule.rate / len(self.queues)
        self.loads += 1
        self.seeds.append(seed)
        # Of its own clock each tick ends later than now.
        now_ns = time.perf_counter_ns()
        loads = [
            queue.ticks(rate, Random(f"{seed} {number}"), objectives=objectives)
            for number, queue in enumerate(self.queues)
        ]
        for parts in zip(*loads, strict=True):
            seen = {f"worker {number}": self._of(number, part, now_ns) for number, part in enumerate(parts)}
            self.answered += sum(tick.requests for tick in seen.values())
            self.under_way = sum(tick.in_flight for tick in seen.values())
            tick = together(seen) if len(seen) > 1 else seen["worker 0"]
            yield self.changed(self.loads, schedule, tick)

    def _of(self, number: int, tick: Tick, now_ns: int) -> Tick:
        """What a replica does of what its queue would do."""
        tick = msgspec.structs.replace(tick, begin_ns=tick.begin_ns + now_ns, end_ns=tick.end_ns + now_ns)
        if number in self.dead:
            nothing = Durations()
            errors = {"refused": tick.sent} if tick.sent else {}
            return msgspec.structs.replace(
                tick, requests=0, latency=nothing, service=nothing, errors=errors, in_flight=0, in_flight_ns=0
            )
        failed = round(self.failing.get(number, 0.0) * tick.sent)
        return msgspec.structs.replace(tick, errors={"status 503": failed} if failed else {})


@dataclass
class SimulatedEngines:
    """Stands for ``Engines``: a load of a deployment."""

    deployment: Deployment
    plan: Plan
    processes: int
    source: object
    pids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        assert self.processes % len(self.deployment.queues) == 0
        self._ticks = self.deployment.ticks(self.plan.schedule, self.plan.seed, self.plan.objectives)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing has to end."""

    def next_tick(self) -> Tick:
        """The next one."""
        return next(self._ticks)

    def halt(self, *, seed: int) -> None:
        """Come to rest, when what is under way is answered."""
        self.deployment.answered += self.deployment.under_way


def search_deployment(deployment: Deployment, shape: SearchShape, monkeypatch: Any) -> tuple[Start, list[Reason]]:  # noqa: ANN401 -- pytest.MonkeyPatch
    """Search it; what was found, and why nothing may be concluded from it."""
    monkeypatch.setattr(
        "pytest_gpuserve.experiment.capacity.start.Engines",
        lambda plan, processes, source: SimulatedEngines(deployment, plan, processes, source),
    )
    target = Target(ServerHandle(deployment.kind, cast("Any", None)), (Request("POST", "/", b"x"),))
    check = AnswerCheck([None])
    shape = cast("SearchShape", for_replicas(shape, target))
    kind = deployment.kind
    instance = scripted_instance(kind=kind, site=kind.site(), counters=deployment.counters)
    searching = SearchedStart(instance, target, shape, check, Unseen())
    return searching.measure(), searching.problems
