"""A load of several replicas: how it is dealt out, what each did in it, and when nothing may be concluded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.load.answers import AnswerCheck
from pytest_gpuserve.load.merging import together
from pytest_gpuserve.load.request import Request
from pytest_gpuserve.load.schedule import Burst, Closed, Poisson, Schedule, Steps, Trace
from pytest_gpuserve.load.wire import Latencies, Tick
from pytest_gpuserve.measure.capacity import Objective
from pytest_gpuserve.measure.counters import Counters, counted_between
from pytest_gpuserve.measure.counters import together as counted_together
from pytest_gpuserve.measure.histogram import bucket_of
from pytest_gpuserve.measure.replicas import ReplicaWindow, replicas_of
from pytest_gpuserve.process.secrets import secret_headers, without_secrets
from pytest_gpuserve.servers.command import CommandServer
from pytest_gpuserve.servers.remote import Remote
from pytest_gpuserve.servers.replicas import Replicas
from pytest_gpuserve.trial.capacity.shape import SearchShape
from pytest_gpuserve.trial.handle import ServerHandle, Target
from pytest_gpuserve.trial.replicas import ReplicaShares, for_replicas, warmup_of
from pytest_gpuserve.trial.shape import LoadShape
from pytest_gpuserve.trial.watch import Reading, Watch
from tests.support.builders import histogram, window

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pytest_gpuserve.load.driver import Engines
    from pytest_gpuserve.measure.window import Window
    from pytest_gpuserve.servers.base import Site
    from pytest_gpuserve.servers.instance import Instance
    from pytest_gpuserve.trial.handle import Starter

NAMES = ("a:1", "b:1")
MS = 1_000_000
TICK_NS = 100 * MS


def target_of(replicas: int, *, requests: int = 1, grpc: bool = False) -> Target:
    """Requests to so many replicas."""
    servers = [Remote(f"host{number}", 8000, grpc_port=8001) for number in range(replicas)]
    kind = servers[0] if replicas == 1 else Replicas.of(servers)
    handle = ServerHandle(kind, cast("Starter", None))
    return Target(
        handle,
        tuple(Request("POST", "/infer", b"%d" % number) for number in range(requests)),
        protocol="grpc" if grpc else "http",
        messages=(b"message",) * requests if grpc else (),
    )


# -- how it is dealt out


@pytest.mark.parametrize(("given_", "workers"), [(1, 3), (3, 3), (6, 6)])
def test_each_replica_has_as_many_workers(given_: int, workers: int) -> None:
    """The one worker that a load has by default becomes one for each."""
    shape = LoadShape(Closed(12), processes=given_)
    assert for_replicas(shape, target_of(3)).processes == workers


def test_a_load_of_one_server_stays_as_it_is() -> None:
    """Whatever it is."""
    shape = LoadShape(Closed(1), processes=1)
    assert for_replicas(shape, target_of(1, requests=4)) is shape


def test_two_deployments_side_by_side_have_one_load() -> None:
    """Which can be dealt out to either."""
    assert for_replicas(LoadShape(Closed(12)), target_of(2), target_of(3)).processes == 6
    assert for_replicas(LoadShape(Closed(12)), target_of(1), target_of(3)).processes == 3


@pytest.mark.parametrize(
    ("workers", "would_do"), [(2, "processes=3 "), (4, "processes=3 or 6"), (7, "processes=6 or 9")]
)
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
    ("requests", "replicas", "each"), [(2, 2, "1 request of"), (6, 4, "3 requests of"), (9, 3, "3 ")]
)
def test_each_replica_gets_every_request(requests: int, replicas: int, each: str) -> None:
    """What rotates goes by the request's number, and so do the replicas: one would get the short ones alone."""
    with pytest.raises(UsageProblem, match="always the same") as caught:
        for_replicas(LoadShape(Closed(12)), target_of(replicas, requests=requests))
    assert f"only {each}" in str(caught.value)
    for_replicas(LoadShape(Closed(12)), target_of(replicas, requests=requests + 1))


@settings(deadline=None)
@given(replicas=st.integers(2, 6), requests=st.integers(1, 12), workers_each=st.integers(1, 3))
def test_what_is_let_through_sends_every_request_to_every_replica(
    replicas: int, requests: int, workers_each: int
) -> None:
    """By the rule by which an engine picks the next: its number modulo the requests."""
    parts = replicas * workers_each
    sent = {(number % parts % replicas, number % requests) for number in range(parts * requests)}
    try:
        for_replicas(LoadShape(Closed(99), processes=parts), target_of(replicas, requests=requests))
    except UsageProblem:
        assert len(sent) < replicas * requests
    else:
        assert len(sent) == replicas * requests


def test_a_trace_says_itself_what_goes_where() -> None:
    """Its requests do not rotate."""
    schedule = Trace(((0.0, 0), (0.1, 1)))
    assert for_replicas(LoadShape(schedule), target_of(2, requests=2)).processes == 2


@pytest.mark.parametrize(
    ("schedule", "warmup"),
    [(Burst(9), Closed(3)), (Steps(((1, 1.0), (9, 1.0))), Closed(3)), (Steps(((5, 1.0),)), Closed(5))],
)
def test_each_replica_is_warmed_up(schedule: Schedule, warmup: Schedule) -> None:
    """Before a load that is measured as a whole, by a worker with a user for each."""
    shape = for_replicas(LoadShape(schedule), target_of(3))
    assert warmup_of(shape, 3) == (warmup, 3)


def test_a_plan_names_all_of_them() -> None:
    """In the order of the URLs; a gRPC connection with what each is called."""
    watch = watched(target_of(3))
    plan = watch.plan(Closed(3))
    assert [(each.host, each.port) for each in (plan.endpoint, *plan.replicas)] == [
        ("host0", 8000),
        ("host1", 8000),
        ("host2", 8000),
    ]
    plan, workers = watched(target_of(3, grpc=True), LoadShape(Burst(9))).warmup()
    assert [each.authority for each in (plan.endpoint, *plan.replicas)] == ["host0:8001", "host1:8001", "host2:8001"]
    assert (plan.schedule, workers) == (Closed(3), 3)
    plan, workers = watched(target_of(1), LoadShape(Burst(9))).warmup()
    assert (plan.replicas, plan.schedule, workers) == ((), Closed(1), 1)


def test_a_server_that_we_start_is_one(tmp_path: Path) -> None:
    """Only remote ones are several."""
    kind = CommandServer(("server", "{port}"), tmp_path, "here", "python")
    assert Target(ServerHandle(kind, cast("Starter", None)), (Request("GET", "/"),)).replicas == 1


# -- what each did


def part(requests: int = 10, *, number: int = 0, latency_ms: float = 5, **errors: int) -> Tick:
    """What a worker reports of a tick."""
    latency_ns = round(latency_ms * MS)
    return Tick(
        number,
        number * TICK_NS,
        (number + 1) * TICK_NS,
        requests=requests,
        sent=requests,
        due=requests,
        errors={f"status {kind.removeprefix('s')}": count for kind, count in errors.items()},
        latency=Latencies({bucket_of(latency_ns): requests}, requests * latency_ns, latency_ns)
        if requests
        else Latencies(),
        in_flight_ns=requests * latency_ns,
        cpu_ns=TICK_NS // 10,
    )


def heard(names: tuple[str, ...], *ticks: Tick) -> ReplicaShares:
    """What was heard of a load of these replicas."""
    shares = ReplicaShares(names)
    for tick in ticks:
        shares.hear(tick)
    return shares


def test_workers_of_a_replica_are_added_up() -> None:
    """Part p of n replicas goes to the (p mod n)-th, however its worker is called."""
    tick = together({"w": part(1), "x": part(2, s503=1), "y": part(4), "z": part(8, s503=2, s500=1)})
    first, second = heard(NAMES, tick).window([tick])
    assert (first.name, first.requests, dict(first.errors)) == ("a:1", 5, {})
    assert (second.name, second.requests, dict(second.errors)) == ("b:1", 10, {"status 503": 3, "status 500": 1})
    assert second.latency.total == 10


def test_a_worker_that_has_ended_changes_nothing_for_the_others() -> None:
    """The parts of a load are known from its first tick; in a later one the first worker may be missing."""
    begin = together({"w": part(1), "x": part(2)})
    later = together({"x": part(4, number=1)})
    first, second = heard(NAMES, begin, later).window([later])
    assert (first.requests, second.requests) == (0, 4)


def test_a_load_that_begins_anew_is_learned_anew() -> None:
    """As that after its warm-up, whose workers are others."""
    warmup, load = together({"w": part(), "x": part()}), together({"x": part(1), "w": part(2)})
    first, second = heard(NAMES, warmup, load).window([load])
    assert (first.requests, second.requests) == (1, 2)


@pytest.mark.parametrize("tick", [part(), together({"w": part(), "stranger": part()})])
def test_what_nobody_knows_is_not_made_up(tick: Tick) -> None:
    """A tick of one engine alone, or of a worker of which nobody knows where it went."""
    shares = heard(NAMES, together({"w": part(), "x": part()}))
    assert shares.window([msgspec.structs.replace(tick, number=1)]) == ()
    assert shares.problems([window()], allowed_errors=0.5) == ["replicas: what each of the 2 did is not known"]


def test_of_one_server_there_are_no_replicas() -> None:
    """Also where several workers load it."""
    tick = together({"w": part(), "x": part(s503=1)})
    shares = heard((), tick)
    assert shares.window([tick]) == ()
    assert shares.failing(tick) == ""
    assert shares.problems([window()], allowed_errors=0.0) == []


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
    (said,) = ReplicaShares(NAMES).problems([shared(of("a:1", 1000), second)], allowed_errors=allowed)
    assert said.endswith(words)


def test_errors_that_are_allowed_are_none() -> None:
    """Of each replica as of all."""
    found = ReplicaShares(NAMES).problems([shared(of("a:1"), of("b:1", 90, timeout=10))], allowed_errors=0.1)
    assert found == []


def test_a_replica_that_fails_by_chance_is_not_failing() -> None:
    """Of 50 requests a single failure is 2 %, and no sign that more than 1 % fail; of a thousand 20 are."""
    few = [shared(of("a:1"), of("b:1", 49, timeout=1))]
    assert ReplicaShares(NAMES).problems(few, allowed_errors=0.01) == []
    (said,) = ReplicaShares(NAMES).problems([shared(of("a:1"), of("b:1", 980, timeout=25))], allowed_errors=0.01)
    assert said.startswith("replica b:1: 25 of 1005 requests")


def test_a_search_of_many_replicas_is_dealt_out() -> None:
    """The users of its first guess are no fewer than they are; what a test did not choose it is not told to change."""
    search = SearchShape(Closed(16), objective=Objective(0.99, 0.05))
    shape = for_replicas(search, target_of(20))
    assert isinstance(shape, SearchShape)
    assert (shape.schedule, shape.processes) == (Closed(20), 20)


def test_one_silent_window_is_no_silent_replica() -> None:
    """It is looked at over all that was measured."""
    windows = [shared(of("a:1"), of("b:1", 0)), shared(of("a:1"), of("b:1", 1))]
    assert ReplicaShares(NAMES).problems(windows, allowed_errors=0.0) == []


# -- within a load


@dataclass
class Somebody:
    """Servers that somebody else runs."""

    kind: Remote

    @property
    def site(self) -> Site:
        """Where the first is."""
        return self.kind.site()

    def death(self, *, grace_seconds: float = 0.0) -> str | None:
        """Nothing is known of it."""

    def shown(self, text: str, headers: Mapping[str, str]) -> str:
        """Hide what the request's headers say."""
        return without_secrets(text, secret_headers(headers))


@dataclass
class Ticks:
    """Load engines that report these ticks."""

    ticks: list[Tick]

    def next_tick(self) -> Tick:
        """The next one."""
        return self.ticks.pop(0)


class Nobody:
    """A progress line that nobody looks at."""

    def show(self, *_: object) -> None:
        """Hear of a tick."""

    def clear(self) -> None:
        """Hear of the end."""


def watched(target: Target, shape: LoadShape | None = None) -> Watch:
    """A watch that looks after a load of it."""
    instance: Any = Somebody(cast("Remote", target.server.kind))
    return Watch(
        cast("Instance", instance),
        target,
        shape or LoadShape(Closed(12)),
        AnswerCheck([None] * len(target.requests)),
        Nobody(),
        lambda: None,
    )


def test_a_watched_load_knows_what_each_replica_did() -> None:
    """Its windows have it, and a replica that answers nothing makes it invalid."""
    watch = watched(target_of(2), LoadShape(Closed(12), processes=2))
    watch.plan(Closed(12))
    ticks = [together({"w": part(number=number), "x": part(0, number=number)}) for number in range(5)]
    measured = watch.ticks(cast("Engines", Ticks(list(ticks))), 5)
    made = watch.window(measured, None)
    assert made is not None
    assert [(each.name, each.requests) for each in made.replicas] == [("host0:8000", 50), ("host1:8000", 0)]
    watch.judge(measured, [made], None)
    assert "replica host1:8000: it answered nothing" in watch.problems


def test_an_error_is_told_with_its_replica() -> None:
    """The first that ends a load says whose it is."""
    watch = watched(target_of(3), LoadShape(Closed(12), processes=3))
    watch.plan(Closed(12))
    tick = together({"w": part(), "x": part(s503=1), "y": part()})
    watch.ticks(cast("Engines", Ticks([tick])), 1)
    (problem,) = watch.problems
    assert problem.startswith("request errors of host1:8000 (status 503: 1)")


def test_a_replica_whose_counters_fell_is_named() -> None:
    """Also where those of all together rose: it was started anew under load."""
    watch = watched(target_of(2))
    before = counted_together({"a:1": Counters(items=9, batches=9), "b:1": Counters(items=9, batches=9)})
    after = counted_together({"a:1": Counters(items=99, batches=99), "b:1": Counters(items=3, batches=3)})
    assert watch.counted(Reading(before, 0.0, 0.0), Reading(after, 1.0, 0.0)) is None
    (problem,) = watch.problems
    assert "went backwards (b:1: items fell from 9 to 3)" in problem


def test_a_replica_is_named_where_all_together_fell() -> None:
    """The part says more than the sum of which it is one."""
    watch = watched(target_of(2))
    before = counted_together({"a:1": Counters(items=9, batches=9), "b:1": Counters(items=99, batches=9)})
    after = counted_together({"a:1": Counters(items=9, batches=9), "b:1": Counters(items=0, batches=0)})
    watch.counted(Reading(before, 0.0, 0.0), Reading(after, 1.0, 0.0))
    assert "went backwards (b:1: items fell from 99 to 0)" in watch.problems[0]


def test_what_each_counted_is_kept_apart() -> None:
    """From reading to reading, and so to what each came to."""
    before = counted_together({"a:1": Counters(items=1, batches=1), "b:1": Counters(items=1, batches=1)})
    after = counted_together({"a:1": Counters(items=9, batches=3), "b:1": Counters(items=5, batches=5)})
    counted = counted_between(before, after)
    assert (counted.items, counted.batches) == (12, 6)
    first, second = replicas_of([shared(of("a:1"), of("b:1"))], counted)
    assert (first.batching_ratio, second.batching_ratio) == (4.0, 1.0)
