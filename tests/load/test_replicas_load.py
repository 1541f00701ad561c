"""A load of several replicas: how it is dealt out, what each did in it, and when nothing may be concluded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast
from unittest.mock import Mock

import msgspec
import pytest

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.experiment.another_client import CounterReading
from pytest_gpuserve.experiment.handle import ServerHandle, Target
from pytest_gpuserve.experiment.replicas import ReplicaShares, for_replicas, warmup_of
from pytest_gpuserve.experiment.shape import LoadShape
from pytest_gpuserve.experiment.watch import Watch
from pytest_gpuserve.gate.reason import ReasonKind
from pytest_gpuserve.load.answers import AnswerCheck
from pytest_gpuserve.load.request import Request
from pytest_gpuserve.load.schedule import Burst, Closed, Poisson, Schedule, Steps
from pytest_gpuserve.load.totals import together
from pytest_gpuserve.measure.counters import Counters, counted_between
from pytest_gpuserve.measure.counters import together as counted_together
from pytest_gpuserve.measure.replicas import replicas_of
from pytest_gpuserve.measure.window import ReplicaWindow
from pytest_gpuserve.servers.command import CommandServer
from pytest_gpuserve.servers.remote import RemoteServer, Replicas
from tests.load.ticks import tick_of
from tests.support.builders import histogram, window
from tests.support.reasons import said

if TYPE_CHECKING:
    from pytest_gpuserve.experiment.handle import Starter
    from pytest_gpuserve.load.driver import Engines
    from pytest_gpuserve.load.wire import Tick
    from pytest_gpuserve.measure.window import Window

NAMES = ("a:1", "b:1")


def target_of(replicas: int, *, grpc: bool = False) -> Target:
    """Requests to so many replicas."""
    servers = [RemoteServer(f"host{number}", 8000, grpc_port=8001) for number in range(replicas)]
    kind = servers[0] if replicas == 1 else Replicas.of(servers)
    handle = ServerHandle(kind, cast("Starter", None))
    return Target(
        handle,
        (Request("POST", "/infer", b"0"),),
        protocol="grpc" if grpc else "http",
        messages=(b"message",) if grpc else (),
    )


# -- how it is dealt out


@pytest.mark.parametrize(
    ("workers", "targets", "found"),
    [
        # The one worker that a load has by default becomes one for each.
        (1, (3,), 3),
        (3, (3,), 3),
        (6, (3,), 6),
        # Two deployments side by side have one load, which can be dealt out to either.
        (1, (2, 3), 6),
        (1, (1, 3), 3),
    ],
)
def test_each_replica_has_as_many_workers(workers: int, targets: tuple[int, ...], found: int) -> None:
    """A load of one server stays as it is."""
    assert for_replicas(LoadShape(Closed(12), processes=workers), *map(target_of, targets)).processes == found
    alone = LoadShape(Closed(1), processes=1)
    assert for_replicas(alone, target_of(1)) is alone


@pytest.mark.parametrize(("workers", "would_do"), [(2, "processes=3 "), (4, "processes=3 or 6")])
def test_what_cannot_be_dealt_out_evenly_is_told(workers: int, would_do: str) -> None:
    """With the numbers that would do."""
    with pytest.raises(UsageProblem, match="cannot be dealt out evenly to 3 replicas") as caught:
        for_replicas(LoadShape(Closed(12), processes=workers), target_of(3))
    assert f"{caught.value.remedies[0]} ".startswith(would_do)


@pytest.mark.parametrize("schedule", [Closed(2), Steps(((1, 1.0), (2, 1.0))), Poisson(9, max_in_flight=2), Burst(9, 2)])
def test_each_replica_needs_a_user(schedule: Schedule) -> None:
    """Two users cannot load three."""
    with pytest.raises(UsageProblem, match="2 requests at a time cannot be shared by 3 replicas") as caught:
        for_replicas(LoadShape(schedule), target_of(3))
    assert "concurrency=3" in caught.value.remedies[0]


@pytest.mark.parametrize(
    ("schedule", "warmup"),
    [(Burst(9), Closed(3)), (Steps(((1, 1.0), (9, 1.0))), Closed(3)), (Steps(((5, 1.0),)), Closed(5))],
)
def test_each_replica_is_warmed_up(schedule: Schedule, warmup: Schedule) -> None:
    """Before a load that is measured as a whole, by a worker with a user for each."""
    shape = for_replicas(LoadShape(schedule), target_of(3))
    assert warmup_of(shape, 3) == (warmup, 3)


def test_a_plan_names_all_of_them() -> None:
    """In the order of the URLs; a gRPC connection with what each is called. A server that we start is one."""
    plan = watched(target_of(3)).plan(Closed(3))
    hosts = [(each.host, each.port) for each in (plan.endpoint, *plan.replicas)]
    assert hosts == [("host0", 8000), ("host1", 8000), ("host2", 8000)]
    plan, workers = watched(target_of(3, grpc=True), LoadShape(Burst(9))).warmup()
    assert [each.authority for each in (plan.endpoint, *plan.replicas)] == ["host0:8001", "host1:8001", "host2:8001"]
    assert (plan.schedule, workers) == (Closed(3), 3)
    plan, workers = watched(target_of(1), LoadShape(Burst(9))).warmup()
    assert (plan.replicas, plan.schedule, workers) == ((), Closed(1), 1)
    kind = CommandServer(("server", "{port}"), Path.cwd(), "here", "python")
    assert Target(ServerHandle(kind, cast("Starter", None)), (Request("GET", "/"),)).replicas == 1


# -- what each did


def part(requests: int = 10, *, number: int = 0, **errors: int) -> Tick:
    """What a worker reports of a tick, of requests of 5 ms each."""
    kinds = {f"status {kind.removeprefix('s')}": count for kind, count in errors.items()}
    return tick_of(number, requests, 5_000_000, errors=kinds)


def heard(names: tuple[str, ...], *ticks: Tick) -> ReplicaShares:
    """What was heard of a load of these replicas."""
    shares = ReplicaShares(names)
    for tick in ticks:
        shares.hear(tick)
    return shares


def test_workers_of_a_replica_are_added_up() -> None:
    """Part p of n replicas goes to the (p mod n)-th, however its worker is called, in the newest load."""
    warmup = together({"w": part(), "x": part(), "z": part(), "y": part()})
    tick = together({"w": part(1), "x": part(2, s503=1), "y": part(4), "z": part(8, s503=2, s500=1)})
    first, second = heard(NAMES, warmup, tick).window([tick])
    assert (first.name, first.requests, dict(first.errors)) == ("a:1", 5, {})
    assert (second.name, second.requests, dict(second.errors)) == ("b:1", 10, {"status 503": 3, "status 500": 1})
    assert second.latency.total == 10
    # A worker that has ended changes nothing for the others.
    later = together({"x": part(4, number=1)})
    first, second = heard(NAMES, tick, later).window([later])
    assert (first.requests, second.requests) == (0, 4)


@pytest.mark.parametrize("tick", [part(), together({"w": part(), "stranger": part()})])
def test_what_nobody_knows_is_not_made_up(tick: Tick) -> None:
    """A tick of one engine alone, or of a worker of which nobody knows where it went."""
    shares = heard(NAMES, together({"w": part(), "x": part()}))
    assert shares.window([msgspec.structs.replace(tick, number=1)]) == ()
    (told,) = shares.problems([window()], allowed_errors=0.5)
    assert (told.kind, told.text) == (ReasonKind.NOT_COUNTED, "replicas: what each of the 2 did is not known")
    # One server has no replicas, also where several workers load it.
    alone = heard((), together({"w": part(), "x": part(s503=1)}))
    assert (alone.window([tick]), alone.failing(tick)) == ((), "")
    assert alone.problems([window()], allowed_errors=0.0) == []


# -- when nothing may be concluded


def shared(*replicas: ReplicaWindow) -> Window:
    """A window in which replicas did this."""
    return replace(window(), replicas=replicas)


def of(name: str, requests: int = 100, **errors: int) -> ReplicaWindow:
    """What a replica did in a window."""
    return ReplicaWindow(name, requests, errors, histogram([0.01] * requests))


@pytest.mark.parametrize(
    ("second", "allowed", "words"),
    [
        (of("b:1", 0), 0.0, "replica b:1: it answered nothing"),
        (of("b:1", 0, timeout=1), 0.9, "replica b:1: it answered nothing, and 1 request to it failed: timeout: 1"),
        (of("b:1", 98, reset=1, timeout=1), 0.0, "2 of 100 requests to it (2 %) failed, 0 % may: reset: 1; timeout: 1"),
        (of("b:1", 70, timeout=30), 0.15, "replica b:1: 30 of 100 requests to it (30 %) failed, 15 % may: timeout: 30"),
    ],
)
def test_a_replica_that_fails_makes_all_of_it_invalid(second: ReplicaWindow, allowed: float, words: str) -> None:
    """Named; among many requests of the others its own errors may be fewer than are allowed of all."""
    (told,) = ReplicaShares(NAMES).problems([shared(of("a:1", 1000), second)], allowed_errors=allowed)
    assert told.kind is ReasonKind.REPLICA
    assert told.text.endswith(words)


def test_few_errors_are_no_failing_replica() -> None:
    """Allowed ones; a single one of 50, which may be chance; and one silent window of two."""
    shares = ReplicaShares(NAMES)
    assert shares.problems([shared(of("a:1"), of("b:1", 90, timeout=10))], allowed_errors=0.1) == []
    assert shares.problems([shared(of("a:1"), of("b:1", 49, timeout=1))], allowed_errors=0.01) == []
    (told,) = shares.problems([shared(of("a:1"), of("b:1", 980, timeout=25))], allowed_errors=0.01)
    assert told.text.startswith("replica b:1: 25 of 1005 requests")
    windows = [shared(of("a:1"), of("b:1", 0)), shared(of("a:1"), of("b:1", 1))]
    assert shares.problems(windows, allowed_errors=0.0) == []


# -- within a load


def watched(target: Target, shape: LoadShape | None = None) -> Watch:
    """A watch that looks after a load of it; servers that somebody else runs do not die, and hide no text."""
    kind = cast("RemoteServer", target.server.kind)
    hides = {"death.return_value": None, "shown.side_effect": lambda text, _: text}
    instance = Mock(kind=kind, site=kind.site(), **hides)
    check = AnswerCheck([None] * len(target.requests))
    return Watch(instance, target, shape or LoadShape(Closed(12)), check, Mock(), lambda: None)


def reporting(*ticks: Tick) -> Engines:
    """Load engines that report these ticks."""
    engines: Engines = Mock(**{"next_tick.side_effect": ticks})
    return engines


def test_a_watched_load_knows_what_each_replica_did() -> None:
    """Its windows have it; a replica that answers nothing makes it invalid, and an error is told with its replica."""
    watch = watched(target_of(2), LoadShape(Closed(12), processes=2))
    watch.plan(Closed(12))
    ticks = [together({"w": part(number=number), "x": part(0, number=number)}) for number in range(5)]
    measured = watch.ticks(reporting(*ticks), 5)
    made = watch.window(measured, None)
    assert made is not None
    assert [(each.name, each.requests) for each in made.replicas] == [("host0:8000", 50), ("host1:8000", 0)]
    watch.judge(measured, [made], None)
    assert "replica host1:8000: it answered nothing" in said(watch.problems)
    watch = watched(target_of(3), LoadShape(Closed(12), processes=3))
    watch.plan(Closed(12))
    watch.ticks(reporting(together({"w": part(), "x": part(s503=1), "y": part()})), 1)
    (problem,) = watch.problems
    assert problem.kind is ReasonKind.REQUEST_ERRORS
    assert problem.text.startswith("request errors of host1:8000 (status 503: 1)")


def counted(a: tuple[int, int], b: tuple[int, int]) -> Counters | None:
    """A reading of two replicas' items and batches."""
    return counted_together({"a:1": Counters(items=a[0], batches=a[1]), "b:1": Counters(items=b[0], batches=b[1])})


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (counted((9, 9), (9, 9)), counted((99, 99), (3, 3)), "b:1: items fell from 9 to 3"),
        (counted((9, 9), (99, 9)), counted((9, 9), (0, 0)), "b:1: items fell from 99 to 0"),
    ],
    ids=["all together rose", "all together fell"],
)
def test_a_replica_whose_counters_fell_is_named(before: Counters, after: Counters, told: str) -> None:
    """It was started anew under load."""
    watch = watched(target_of(2))
    assert watch.counted(CounterReading(before, 0.0, 0.0), CounterReading(after, 1.0, 0.0)) is None
    (problem,) = watch.problems
    assert f"went backwards ({told})" in problem.text


def test_what_each_counted_is_kept_apart() -> None:
    """From reading to reading, and so to what each came to."""
    before, after = counted((1, 1), (1, 1)), counted((9, 3), (5, 5))
    assert before is not None
    assert after is not None
    meanwhile = counted_between(before, after)
    assert (meanwhile.items, meanwhile.batches) == (12, 6)
    first, second = replicas_of([shared(of("a:1"), of("b:1"))], meanwhile)
    assert (first.batching_ratio, second.batching_ratio) == (4.0, 1.0)
