"""The loops keep their promises exactly, by a clock that stands still: who sends what when, and how it is counted."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuserve.load.engine.loop import OPENING_AT_ONCE, RECONNECT_NS
from pytest_gpuserve.load.schedule import Burst, Closed, Constant, Gamma, Poisson, Steps, Trace
from pytest_gpuserve.load.wire import Endpoint, Plan
from pytest_gpuserve.measure.histogram import bucket_of
from tests.fakes.simulated_load import HOUR_NS, MS, Reply, Sent, Simulation

if TYPE_CHECKING:
    from pytest_gpuserve.load.schedule import Schedule
    from pytest_gpuserve.load.wire import Latencies

ONE = ((b"0",),)


def plan(
    schedule: Schedule,
    *,
    requests: int | None = None,
    ms: int | None = None,
    payloads: tuple[tuple[bytes, ...], ...] = ONE,
    timeout_ms: int = 3_600_000,
) -> Plan:
    """Plan a load; a tick is longer than it, unless it is replaced."""
    return Plan(
        endpoint=Endpoint("http", "simulated"),
        payloads=payloads,
        schedule=schedule,
        tick_ns=HOUR_NS,
        timeout_ns=timeout_ms * MS,
        requests=requests,
        nanoseconds=None if ms is None else ms * MS,
    )


def share(whole: Plan, parts: int) -> list[Plan]:
    """Return what each of so many engines is told."""
    return [msgspec.structs.replace(whole, part=part, parts=parts) for part in range(parts)]


def latencies(*durations_ns: int) -> tuple[Counter[int], int, int]:
    """Count durations in the way of ``counted``."""
    return Counter(map(bucket_of, durations_ns)), sum(durations_ns), max(durations_ns, default=0)


def counted(reported: Latencies) -> tuple[Counter[int], int, int]:
    """Return what a tick says of durations."""
    return Counter(reported.counts), reported.sum_ns, reported.max_ns


# -- closed loop


def test_every_user_is_busy_all_the_time_and_never_with_two_requests() -> None:
    """8 users of a server that takes 10 ms: at every moment 8 requests, each sent when the last was answered."""
    simulation = Simulation(plan(Closed(8), ms=1000)).run()
    assert simulation.most_at_once == 8
    assert {simulation.busy(ms * MS) for ms in range(1000)} == {8}
    assert simulation.sends == sorted(8 * list(range(0, 1000 * MS, 10 * MS)))
    assert len(simulation.opened) == 8


def test_a_time_limit_stops_the_sending_and_waits_for_what_is_under_way() -> None:
    """Requests of 30 ms in a load of 100 ms: the fourth is sent at 90 ms and counted at 120 ms, in the last tick."""
    simulation = Simulation(plan(Closed(2), ms=100), lambda _: Reply(30 * MS)).run()
    assert simulation.sends == [0, 0, 30 * MS, 30 * MS, 60 * MS, 60 * MS, 90 * MS, 90 * MS]
    assert simulation.ended_ns == simulation.begin_ns + 120 * MS
    (tick,) = simulation.ticks
    assert (tick.requests, tick.in_flight, tick.last, tick.users) == (8, 0, True, 0)
    assert counted(tick.latency) == latencies(*8 * [30 * MS])
    assert counted(tick.service) == latencies()
    assert (tick.sent, tick.due, tick.in_flight_ns) == (8, 8, 8 * 30 * MS)


def test_a_time_limit_ends_a_load_of_which_nothing_is_under_way() -> None:
    """A server that cannot be connected to, or users who all think, do not make the load longer."""
    thinking = Simulation(plan(Closed(3, think_seconds=10.0), ms=1000)).run()
    assert thinking.ended_ns == thinking.begin_ns + 1000 * MS
    deaf = Simulation(plan(Closed(3), ms=1000), opens=lambda _: (5000 * MS, "connect timeout")).run()
    assert deaf.ended_ns == deaf.begin_ns + 1000 * MS


@pytest.mark.parametrize("payloads", [ONE, ((b"0",), (b"1",))])
def test_a_user_thinks_between_an_answer_and_the_next_request(payloads: tuple[tuple[bytes, ...], ...]) -> None:
    """10 ms of service and 30 ms of thought: a request every 40 ms, and no thought in latency or lag."""
    schedule = Closed(2, think_seconds=0.03)
    simulation = Simulation(plan(schedule, ms=200, payloads=payloads)).run()
    assert simulation.sends == sorted(2 * list(range(0, 200 * MS, 40 * MS)))
    (tick,) = simulation.ticks
    assert counted(tick.latency) == latencies(*10 * [10 * MS])
    assert tick.lag.sum_ns == 0
    assert (tick.in_flight_ns, len(simulation.opened)) == (10 * 10 * MS, 2)


@pytest.mark.parametrize("kind", ["", "status 503"])
@pytest.mark.parametrize("lost", [False, True])
def test_a_user_thinks_also_without_a_connection(kind: str, *, lost: bool) -> None:
    """Where the server closes after each answer, refuses or resets, the next request comes no sooner."""
    reply = Reply(10 * MS, kind or ("reset" if lost else ""), keep=False, lost=lost)
    simulation = Simulation(plan(Closed(1, think_seconds=0.1), ms=500), lambda _: reply).run()
    assert simulation.sends == list(range(0, 500 * MS, 110 * MS))


def test_a_user_whose_server_hangs_up_meanwhile_thinks_on() -> None:
    """A connection that is closed while its user thinks is opened again, but the request still comes when it is due."""
    simulation = Simulation(plan(Closed(1, think_seconds=0.1), ms=300))

    def serve(sent: Sent) -> Reply:
        (lane,) = simulation.lanes
        simulation.at(sent.at_ns + 50 * MS, lane.hang_up)
        return Reply(10 * MS)

    simulation.serve = serve
    assert simulation.run().sends == [0, 110 * MS, 220 * MS]
    assert simulation.errors == {}
    assert len(simulation.opened) == 3


def test_a_late_thinker_is_lag() -> None:
    """An engine that stands still sends the next request late, and says by how much."""
    simulation = Simulation(
        plan(Closed(1, think_seconds=0.1), ms=200), begin_ns=1000 * MS, stopped=(1100 * MS, 1150 * MS)
    ).run()
    assert simulation.sends == [0, 150 * MS]
    assert counted(simulation.ticks[0].lag) == latencies(0, 40 * MS)


def test_users_come_and_leave_in_steps() -> None:
    """Steps of 2, 5 and 1 users at their absolute times; who is taken away leaves after their answer."""
    schedule = Steps(((2, 1.0), (5, 0.5), (1, 1.1)))
    simulation = Simulation(plan(schedule), lambda _: Reply(300 * MS)).run()
    # Two began at 0 and are answered every 300 ms; three at 1000.
    begun = [(0, 2), (999, 2), (1000, 5), (1499, 5)]
    leaving = [(1500, 3), (1599, 3), (1600, 1), (1799, 1), (1800, 1), (2400, 1)]
    for at_ms, users in begun + leaving:
        assert simulation.busy(at_ms * MS) == users, f"at {at_ms} ms"
    assert simulation.ended_ns == simulation.begin_ns + 2800 * MS
    assert max(simulation.sends) == 2500 * MS
    assert len(simulation.opened) == 5


def test_a_thinking_user_who_is_taken_away_sends_nothing_more() -> None:
    """Who has their answer already leaves without another request."""
    simulation = Simulation(plan(Steps(((3, 1.0), (1, 5.0)), think_seconds=2.0))).run()
    assert simulation.sends == [0, 0, 0, 2010 * MS, 4020 * MS]


def test_the_users_of_steps_are_reported() -> None:
    """A tick names the users that there should be at its end, and none after the end."""
    whole = msgspec.structs.replace(plan(Steps(((2, 1.0), (5, 1.0)))), tick_ns=600 * MS)
    simulation = Simulation(whole).run()
    assert [tick.users for tick in simulation.ticks] == [2, 5, 5, 0]


@pytest.mark.parametrize("processes", [2, 3, 5])
def test_processes_share_the_users_of_every_step(processes: int) -> None:
    """Together they are as many as in one process, at every moment."""
    whole = plan(Steps(((5, 0.1), (8, 0.1), (2, 0.1), (1, 0.1))))
    parts = [Simulation(part).run() for part in share(whole, processes)]
    for at_ms, users in [(0, 5), (99, 5), (100, 8), (199, 8), (210, 2), (299, 2), (310, 1), (399, 1)]:
        assert sum(part.busy(at_ms * MS) for part in parts) == users
    assert {part.ended_ns for part in parts} == {parts[0].begin_ns + 400 * MS}


def fault(kind: str, every: int) -> Simulation:
    """Make the behaviours of a server and of its connections that go wrong every so often."""
    simulation = Simulation(plan(Closed(1), ms=1))
    replies = {
        "close": Reply(keep=False),
        "status": Reply(kind="status 503"),
        "status and close": Reply(kind="status 503", keep=False),
        "reset": Reply(kind="connection reset", lost=True),
        "never": Reply(None),
    }
    bad = replies.get(kind, Reply())
    simulation.serve = lambda sent: bad if (sent.number + 1) % every == 0 else Reply(7 * MS)
    if kind == "refused":
        simulation.opens = lambda number: (MS, "connection refused" if (number + 1) % every == 0 else "")
    return simulation


FAULTS = ["none", "close", "status", "status and close", "reset", "never", "refused"]


@settings(max_examples=150, deadline=None)
@given(
    users=st.integers(1, 12),
    requests=st.integers(1, 60),
    processes=st.integers(1, 4),
    kind=st.sampled_from(FAULTS),
    every=st.integers(1, 5),
    think_seconds=st.sampled_from([0.0, 0.02]),
)
def test_a_number_of_requests_is_exact_whatever_goes_wrong(
    *, users: int, requests: int, processes: int, kind: str, every: int, think_seconds: float
) -> None:
    """Over all processes so many are answered or failed, none is sent twice, each user has one, and all of them end."""
    whole = plan(Closed(max(users, processes), think_seconds), requests=requests, timeout_ms=100)
    whole = msgspec.structs.replace(whole, tick_ns=20 * MS)
    behaviour = fault(kind, every)
    parts = [Simulation(part, behaviour.serve, behaviour.opens).run() for part in share(whole, processes)]
    assert all(part.ended_ns is not None and part.ticks[-1].last for part in parts)
    assert sum(part.ended for part in parts) == requests
    numbers = [number for part in parts for number in part.numbers]
    assert len(numbers) == len(set(numbers))
    assert set(numbers) <= set(range(requests))
    if kind != "refused":
        assert len(numbers) == requests
    assert sum(part.most_at_once for part in parts) <= max(users, processes)
    for part in parts:
        check_account(part)


def check_account(simulation: Simulation) -> None:
    """Compare all ticks of a load with what its server and its lanes saw."""
    end_ns = simulation.now_ns
    for tick in simulation.ticks:
        overlap = sum(
            max(0, min(tick.end_ns, sent.end_ns or end_ns) - max(tick.begin_ns, sent.at_ns)) for sent in simulation.sent
        )
        assert tick.in_flight_ns == overlap
    for tick, after in zip(simulation.ticks, simulation.ticks[1:], strict=False):
        assert (tick.end_ns, tick.number + 1) == (after.begin_ns, after.number)
    assert sum(tick.sent for tick in simulation.ticks) == len(simulation.sent)
    good = [sent for sent in simulation.sent if sent.good]
    assert simulation.requests == len(good)
    assert sum(answers.count for tick in simulation.ticks for answers in tick.answers) == len(good)
    served_ns = sum((sent.end_ns or end_ns) - sent.at_ns for sent in good)
    if isinstance(simulation.plan.schedule, (Closed, Steps)):
        assert sum(tick.latency.sum_ns for tick in simulation.ticks) == served_ns
    else:
        waited_ns = sum(sent.at_ns - sent.intended_ns for sent in good)
        assert sum(tick.service.sum_ns for tick in simulation.ticks) == served_ns
        assert sum(tick.latency.sum_ns for tick in simulation.ticks) == served_ns + waited_ns


@pytest.mark.parametrize("users", [1, 3])
@pytest.mark.parametrize("requests", [1, 2])
def test_a_process_without_a_request_of_its_own_ends_at_once(users: int, requests: int) -> None:
    """Of fewer requests than processes: who has nothing to send does not wait for ever."""
    parts = [Simulation(part).run() for part in share(plan(Closed(3 * users), requests=requests), 3)]
    assert [part.requests for part in parts] == [1, requests - 1, 0]
    assert parts[2].ended_ns == parts[2].begin_ns


def test_more_users_than_requests_fail_no_more_than_requests() -> None:
    """20 users and 5 requests on a server that refuses all connections: 5 failures, not 20."""
    simulation = Simulation(plan(Closed(20), requests=5), opens=lambda _: (MS, "connection refused")).run()
    assert (simulation.errors, simulation.requests) == ({"connection refused": 5}, 0)
    assert simulation.ended_ns is not None


def test_connections_are_opened_a_bounded_number_at_a_time() -> None:
    """Many users come as fast as a backlog allows, and all of them come."""
    users = 3 * OPENING_AT_ONCE + 7
    simulation = Simulation(plan(Closed(users), ms=200), opens=lambda _: (10 * MS, "")).run()
    assert simulation.most_opening == OPENING_AT_ONCE
    assert simulation.busy(100 * MS) == users == simulation.most_at_once


def test_a_user_whose_connection_failed_pauses_and_nobody_takes_the_place() -> None:
    """A dead server is asked by each user once a pause, not as fast as it can refuse."""
    refused = Simulation(plan(Closed(4), ms=1000), opens=lambda _: (0, "connection refused")).run()
    assert refused.opened == sorted(4 * [refused.begin_ns + at_ns for at_ns in range(0, 1000 * MS, RECONNECT_NS)])
    reset = Simulation(plan(Closed(4), ms=1000), lambda _: Reply(MS, "connection reset", lost=True)).run()
    assert reset.sends == sorted(4 * list(range(0, 1000 * MS, RECONNECT_NS + MS)))


def test_a_failed_answer_is_counted_with_its_request() -> None:
    """The sample names the request, the kind its number; the lane that stays is used again at once."""
    simulation = Simulation(
        plan(Closed(1), requests=4), lambda sent: Reply(kind="status 503" if sent.number in {1, 2} else "")
    ).run()
    assert simulation.errors == {"status 503": 2}
    assert simulation.ticks[0].error_samples == {"status 503": "request 1: refused"}
    assert simulation.said == 1, "what nobody keeps was made text"
    assert len(simulation.opened) == 1
    assert simulation.sends == [0, 10 * MS, 20 * MS, 30 * MS]


def test_a_connection_that_the_server_closes_is_replaced_in_its_place() -> None:
    """After each `Connection: close` another lane has the same place, and the next request follows at once."""
    simulation = Simulation(plan(Closed(3), requests=12), lambda _: Reply(keep=False)).run()
    assert len(simulation.opened) == 12
    assert {sent.place for sent in simulation.sent} == {0, 1, 2}
    assert simulation.sends == sorted(3 * [0, 10 * MS, 20 * MS, 30 * MS])
    assert simulation.errors == {}


def test_an_unanswered_request_expires_and_its_user_goes_on() -> None:
    """Given up at the first tick after its time-out, counted once, with the time that it was under way."""
    whole = msgspec.structs.replace(plan(Closed(2), requests=6, timeout_ms=100), tick_ns=30 * MS)
    simulation = Simulation(whole, lambda sent: Reply(None if sent.number == 1 else 10 * MS)).run()
    assert simulation.errors == {"timeout": 1}
    assert simulation.ended == 6
    (lost,) = (sent for sent in simulation.sent if not sent.good)
    assert (lost.number, lost.end_ns) == (1, simulation.begin_ns + 120 * MS)
    assert [tick.oldest_ns for tick in simulation.ticks] == [30 * MS, 60 * MS, 90 * MS, 0]
    check_account(simulation)


# -- rotation


def test_payloads_rotate_in_turn() -> None:
    """Request n carries payload n modulo their number, whoever sends it."""
    payloads = tuple((b"%d" % index,) for index in range(3))
    for part in share(plan(Closed(4), requests=20, payloads=payloads), 2):
        simulation = Simulation(part).run()
        assert all(sent.payload == b"%d" % (sent.number % 3) for sent in simulation.sent)


def test_payloads_rotate_in_an_order_of_the_seed() -> None:
    """Every round has each payload once; the same seed gives the same order in all processes, another one another."""
    payloads = tuple((b"%d" % index,) for index in range(10))
    orders = []
    for seed in (1, 1, 2):
        whole = plan(Closed(3), requests=40, payloads=payloads)
        whole = msgspec.structs.replace(whole, shuffled=True, seed=seed)
        sent = {sent.number: sent.payload for part in share(whole, 3) for sent in Simulation(part).run().sent}
        order = [sent[number] for number in range(40)]
        assert order == order[:10] * 4
        assert sorted(order[:10]) == [payload for (payload,) in payloads]
        orders.append(order)
    assert orders[0] == orders[1] != orders[2]
    assert orders[0] != sorted(orders[0])


def test_every_lane_sends_its_own_form() -> None:
    """Where a payload has a form for each place, a lane sends that of its place."""
    payloads = tuple(tuple(b"%d in %d" % (index, place) for place in range(3)) for index in range(2))
    simulation = Simulation(plan(Closed(3), requests=30, payloads=payloads), lambda _: Reply(keep=False)).run()
    assert all(sent.payload == b"%d in %d" % (sent.number % 2, sent.place) for sent in simulation.sent)
    assert len(set(simulation.numbers)) == 30


def test_the_short_way_counts_like_the_long_one() -> None:
    """A load that takes the engine's shortest way has the figures of the same load that cannot take it."""
    figures = []
    for payloads in (ONE, ((b"0",), (b"0",))):
        draw = random.Random(1)
        whole = msgspec.structs.replace(plan(Closed(5), ms=900, payloads=payloads), tick_ns=100 * MS)
        replies = [Reply(draw.randrange(1, 9 * MS), keep=draw.random() < 0.9) for _ in range(5000)]
        simulation = Simulation(whole, lambda sent, replies=replies: replies[sent.number]).run()  # type: ignore[misc]  # mypy cannot infer lambdas with defaults
        check_account(simulation)
        assert len({sent.place for sent in simulation.sent}) == 5
        figures.append([msgspec.structs.replace(tick, answers=[]) for tick in simulation.ticks])
    assert figures[0] == figures[1]
    assert sum(tick.requests for tick in figures[0]) > 500


@pytest.mark.parametrize("payloads", [ONE, ((b"0",), (b"1",))])
def test_every_process_of_a_closed_loop_notes_its_lag(payloads: tuple[tuple[bytes, ...], ...]) -> None:
    """About every eighth request's, in each of the processes."""
    for part in share(plan(Closed(4), ms=1000, payloads=payloads), 2):
        simulation = Simulation(part).run()
        noted = sum(simulation.ticks[0].lag.counts.values())
        assert len(simulation.sent) == 200
        assert 200 // 8 <= noted <= 200 // 8 + 8


# -- open loop

SCHEDULES: list[Schedule] = [
    Constant(1000.0),
    Poisson(500.0),
    Gamma(500.0, 0.3),
    Burst(40),
    Trace(((0.0, 1), (0.1, 0), (0.1, 1), (0.35, 0))),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: type(schedule).__name__)
@pytest.mark.parametrize("processes", [1, 3])
def test_every_arrival_is_sent_at_its_own_time(schedule: Schedule, processes: int) -> None:
    """To the nanosecond, whatever the answers take; several processes send each arrival once, and none is left out."""
    assert not isinstance(schedule, (Closed, Steps))
    draw = random.Random(1)
    whole = plan(schedule, ms=400, payloads=((b"0",), (b"1",)))
    whole = msgspec.structs.replace(whole, seed=7)
    parts = [Simulation(part, lambda _: Reply(draw.randrange(90 * MS))).run() for part in share(whole, processes)]
    sent = sorted((sent for part in parts for sent in part.sent), key=lambda sent: sent.number)
    expected = []
    for arrival in schedule.arrivals(7):
        if arrival.at_ns >= 400 * MS:
            break
        expected.append(
            (arrival.at_ns, arrival.number, b"%d" % (arrival.number % 2 if arrival.index is None else arrival.index))
        )
    begin_ns = parts[0].begin_ns
    assert [(each.at_ns - begin_ns, each.number, each.payload) for each in sent] == expected
    for part in parts:
        check_account(part)
        assert part.ended_ns is not None
        assert part.ticks[0].lag.sum_ns == part.ticks[0].held == 0
        assert part.ticks[0].due == part.ticks[0].sent == sum(part.ticks[0].lag.counts.values())


def test_latency_counts_from_the_intended_send_and_service_from_the_actual_one() -> None:
    """A burst of 4 at one at a time, 10 ms each: the last has waited for three, and only its latency says so."""
    simulation = Simulation(plan(Burst(4, max_in_flight=1))).run()
    (tick,) = simulation.ticks
    assert counted(tick.latency) == latencies(10 * MS, 20 * MS, 30 * MS, 40 * MS)
    assert counted(tick.service) == latencies(*4 * [10 * MS])
    assert counted(tick.lag) == latencies(0, 0, 0, 0)
    assert (tick.due, tick.sent, tick.held, tick.in_flight_ns) == (4, 4, 3, 40 * MS)
    assert simulation.most_at_once == 1


def test_time_to_open_a_connection_is_latency_but_neither_lag_nor_service() -> None:
    """The client was ready to send; the server was not ready to be sent to."""
    simulation = Simulation(plan(Trace(((0.0, 0), (1.0, 0)))), opens=lambda _: (5 * MS, "")).run()
    (tick,) = simulation.ticks
    assert counted(tick.latency) == latencies(15 * MS, 10 * MS)
    assert counted(tick.service) == latencies(10 * MS, 10 * MS)
    assert counted(tick.lag) == latencies(0, 0)
    assert len(simulation.opened) == 1


def test_lag_is_what_the_engine_takes_from_due_or_free_to_the_send() -> None:
    """With 7 ns for each look at the clock: one look to notice and one to send, whether a request is held or not.

    What is due together with the one before it is noticed together with it.
    """
    held = Simulation(plan(Burst(3, max_in_flight=1)), look_ns=7).run()
    assert counted(held.ticks[0].lag) == latencies(14, 7, 7)
    alone = Simulation(plan(Constant(10.0), ms=250), look_ns=7).run()
    assert counted(alone.ticks[0].lag) == latencies(14, 14, 14)
    for payloads in (ONE, ((b"0",), (b"1",))):
        closed = Simulation(plan(Closed(1), ms=500, payloads=payloads), look_ns=7).run()
        assert set(closed.ticks[0].lag.counts) == {bucket_of(7)}


@pytest.mark.parametrize("ceiling", [1, 10, None])
def test_an_engine_that_stood_still_owns_up_to_it(ceiling: int | None) -> None:
    """Stopped for half a second at 1000 requests a second: each of the 500 due meanwhile is late by the rest of it.

    So say the lag and the latency, whether there was a lane to send on or not; the service time knows nothing of it.
    """
    schedule = Constant(1000.0, ceiling)
    simulation = Simulation(
        plan(schedule, ms=1000), lambda _: Reply(1000), begin_ns=1000 * MS, stopped=(1200 * MS, 1700 * MS)
    ).run()
    (tick,) = simulation.ticks
    late = [late_ms * MS for late_ms in range(1, 501)]
    if ceiling is None:
        assert counted(tick.lag) == latencies(*late, *500 * [0])
        assert counted(tick.latency) == latencies(*(1000 + late_ns for late_ns in late), *500 * [1000])
    # With a ceiling they follow each other, each after the answers of those before.
    assert sum(count for bucket, count in tick.lag.counts.items() if bucket >= bucket_of(100 * MS)) == 401
    assert sum(count for bucket, count in tick.latency.counts.items() if bucket >= bucket_of(100 * MS)) == 401
    assert tick.lag.max_ns == 500 * MS
    assert counted(tick.service) == latencies(*1000 * [1000])
    assert (tick.due, tick.sent) == (1000, 1000)


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_the_ceiling_is_never_exceeded_and_always_used(processes: int) -> None:
    """At twice the rate that 4 at once can serve, over all processes 4 are under way, and what waits is counted."""
    whole = plan(Constant(800.0, max_in_flight=4), ms=500)
    parts = [Simulation(part).run() for part in share(whole, processes)]
    assert sum(part.most_at_once for part in parts) == 4
    assert sum(part.most_lanes_at_once for part in parts) == 4
    for at_ms in range(50, 490):
        assert sum(part.busy(at_ms * MS) for part in parts) == 4
    ticks = [tick for part in parts for tick in part.ticks]
    assert sum(tick.due for tick in ticks) == sum(tick.sent for tick in ticks) == 400
    late = sum(sent.at_ns > sent.intended_ns for part in parts for sent in part.sent)
    assert sum(tick.held for tick in ticks) == late > 150


def test_the_limit_on_open_files_is_a_ceiling() -> None:
    """An open loop never has more lanes than there may be files; what waits for one is held."""
    simulation = Simulation(plan(Burst(30)), most_lanes=10).run()
    assert simulation.most_lanes_at_once == 10
    assert (simulation.ticks[0].held, simulation.requests) == (20, 30)


def test_what_waits_is_sent_in_the_order_in_which_it_was_due() -> None:
    """Nobody overtakes in the client's queue."""
    draw = random.Random(1)
    simulation = Simulation(
        plan(Poisson(1000.0, max_in_flight=3), ms=300),
        lambda _: Reply(draw.randrange(20 * MS), keep=draw.random() < 0.8),
    ).run()
    assert [sent.number for sent in simulation.sent] == list(range(len(simulation.sent)))
    assert simulation.ticks[0].held > 50


def test_an_open_loop_opens_all_the_connections_that_it_needs_at_once() -> None:
    """To open them by and by would be a delay of the client's that looks like the server's."""
    requests = 3 * OPENING_AT_ONCE + 1
    simulation = Simulation(plan(Burst(requests)), lambda _: Reply(1000 * MS), lambda _: (10 * MS, "")).run()
    assert simulation.most_opening == simulation.most_at_once == requests
    assert max(simulation.sends) == 10 * MS


def test_slow_connections_are_no_reason_for_later_requests_to_wait() -> None:
    """With a new connection for each request, a latency is the connection's and the server's time and nothing else."""
    simulation = Simulation(
        plan(Constant(3000), requests=3000), lambda _: Reply(5 * MS, keep=False), lambda _: (100 * MS, "")
    ).run()
    assert max(tick.latency.max_ns for tick in simulation.ticks) == 105 * MS


def test_lanes_are_used_again_before_another_is_opened() -> None:
    """An open loop has as many connections as were ever needed at the same time."""
    simulation = Simulation(plan(Constant(100.0), ms=1000), lambda _: Reply(25 * MS)).run()
    assert len(simulation.opened) == simulation.most_at_once == 3


def test_an_idle_lane_that_the_server_closes_is_not_used_again() -> None:
    """Nor is it an error; another is opened when one is needed."""
    simulation = Simulation(plan(Constant(10.0), ms=500))

    def serve(sent: Sent) -> Reply:
        (lane,) = simulation.lanes
        simulation.at(sent.at_ns + 50 * MS, lane.hang_up)
        return Reply(10 * MS)

    simulation.serve = serve
    assert simulation.run().sends == [0, 100 * MS, 200 * MS, 300 * MS, 400 * MS]
    assert (simulation.errors, len(simulation.opened)) == ({}, 5)


def test_what_could_not_be_sent_expires_like_what_was() -> None:
    """A deaf server and a ceiling of 2: all 10 requests of a burst end as time-outs, and so does the load."""
    whole = msgspec.structs.replace(plan(Burst(10, max_in_flight=2), timeout_ms=100), tick_ns=30 * MS)
    simulation = Simulation(whole, lambda _: Reply(None)).run()
    assert simulation.errors == {"timeout": 10}
    assert sum(tick.due for tick in simulation.ticks) == 10
    assert simulation.ended_ns == simulation.begin_ns + 120 * MS
    check_account(simulation)


def test_an_arrival_whose_lane_cannot_be_opened_is_an_error() -> None:
    """Each of a burst on a dead server fails once, by its own number, and the load ends."""
    simulation = Simulation(plan(Burst(10, max_in_flight=3)), opens=lambda _: (MS, "connection refused")).run()
    assert (simulation.errors, simulation.requests, simulation.sent) == ({"connection refused": 10}, 0, [])
    assert simulation.ticks[0].error_samples == {"connection refused": "request 0: not opened"}
    assert simulation.ended_ns is not None


def test_a_limit_by_requests_ends_an_open_loop_exactly() -> None:
    """Also over processes, of which one may have nothing to send."""
    for requests in (1, 2, 7):
        parts = [Simulation(part).run() for part in share(plan(Constant(100.0), requests=requests), 3)]
        assert sorted(number for part in parts for number in part.numbers) == list(range(requests))
        assert sum(part.requests for part in parts) == requests
        assert all(part.ended_ns is not None for part in parts)


def test_what_was_due_before_the_end_is_sent_after_it() -> None:
    """A time limit ends the arrivals, not the queue: nothing that was due is forgotten."""
    simulation = Simulation(plan(Constant(100.0, max_in_flight=1), ms=100), lambda _: Reply(30 * MS)).run()
    assert (simulation.requests, simulation.ticks[0].due) == (10, 10)
    assert simulation.ended_ns == simulation.begin_ns + 300 * MS


def test_an_engine_that_stood_still_over_the_end_sends_what_was_due() -> None:
    """The last arrivals are late, not left out."""
    simulation = Simulation(plan(Constant(100.0), ms=100), begin_ns=1000 * MS, stopped=(1045 * MS, 1300 * MS)).run()
    assert simulation.requests == simulation.ticks[0].due == 10
    assert simulation.sends[5:] == 5 * [300 * MS]


REPLIES = st.sampled_from(
    [
        Reply(MS),
        Reply(MS),
        Reply(8 * MS),
        Reply(30 * MS),
        Reply(5 * MS, keep=False),
        Reply(2 * MS, "status 503"),
        Reply(2 * MS, "status 503", keep=False),
        Reply(3 * MS, "connection reset", lost=True),
        Reply(None),
    ]
)
OPENINGS = st.sampled_from([(0, ""), (0, ""), (4 * MS, ""), (MS, "connection refused")])


@settings(max_examples=200, deadline=None)
@given(
    replies=st.lists(REPLIES, min_size=1, max_size=30),
    openings=st.lists(OPENINGS, min_size=1, max_size=10),
    ceiling=st.none() | st.integers(2, 6),
    rate=st.sampled_from([50.0, 300.0, 2000.0]),
    processes=st.integers(1, 2),
    stop_ms=st.sampled_from([0, 60]),
)
def test_an_open_loop_loses_nothing_whatever_goes_wrong(
    *,
    replies: list[Reply],
    openings: list[tuple[int, str]],
    ceiling: int | None,
    rate: float,
    processes: int,
    stop_ms: int,
) -> None:
    """All that was due is answered or failed, nothing is sent early or twice, and every tick's account is exact."""
    whole = plan(Poisson(rate, ceiling), ms=150, timeout_ms=80)
    whole = msgspec.structs.replace(whole, tick_ns=20 * MS)
    for part in share(whole, processes):
        simulation = Simulation(
            part,
            lambda sent: replies[sent.number % len(replies)],
            lambda number: openings[number % len(openings)],
            begin_ns=1000 * MS,
            stopped=(1050 * MS, (1050 + stop_ms) * MS),
        ).run()
        check_account(simulation)
        assert simulation.ended_ns is not None
        due = sum(tick.due for tick in simulation.ticks)
        refused = simulation.errors.get("connection refused", 0)
        # A connection that failed when nobody needed it any more is an error without a request.
        assert due <= simulation.ended <= due + refused
        assert len(simulation.numbers) == len(set(simulation.numbers))
        assert all(sent.at_ns >= sent.intended_ns for sent in simulation.sent)
        if ceiling is not None:
            assert simulation.most_lanes_at_once <= -(-ceiling // processes)
