"""The loops keep their promises exactly, by a clock that stands still: who sends what when, and how it is counted."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise, takewhile
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuserve.load.engine.loop import OPENING_AT_ONCE, RECONNECT_NS
from pytest_gpuserve.load.request import NUMBER_PLACE
from pytest_gpuserve.load.schedule import (
    Burst,
    Closed,
    ClosedSchedule,
    Constant,
    Gamma,
    Objectives,
    OpenSchedule,
    Poisson,
    Schedule,
    Steps,
    Trace,
)
from pytest_gpuserve.load.wire import OPENS, Endpoint, Plan
from pytest_gpuserve.measure.histogram import Histogram, bucket_of
from tests.fakes.scripted_engines import taken
from tests.fakes.simulated_load import HOUR_NS, MS, Reply, Sent, Simulation

ONE = ((b"0",),)
TWO = ((b"0",), (b"1",))


def plan(
    schedule: Schedule,
    *,
    requests: int | None = None,
    ms: int | None = None,
    payloads: tuple[tuple[bytes, ...], ...] = ONE,
    timeout_ms: int = 3_600_000,
    tick_ns: int = HOUR_NS,
    **more: Any,  # noqa: ANN401 -- of the plan
) -> Plan:
    """Plan a load, by default with a tick longer than it."""
    return Plan(
        endpoint=Endpoint("http", "simulated", 80),
        payloads=payloads,
        schedule=schedule,
        tick_ns=tick_ns,
        timeout_ns=timeout_ms * MS,
        requests=requests,
        nanoseconds=None if ms is None else ms * MS,
        **more,
    )


def share(whole: Plan, parts: int) -> list[Plan]:
    """Plan of each of this number of engines."""
    return [msgspec.structs.replace(whole, part=part, parts=parts) for part in range(parts)]


def test_a_time_limit_stops_the_sending_and_waits_for_what_is_under_way() -> None:
    """Requests of 30 ms in a load of 100 ms: the fourth is counted at 120 ms; without requests in flight it ends."""
    simulation = Simulation(plan(Closed(2), ms=100), lambda _: Reply(30 * MS)).run()
    assert simulation.sends == [0, 0, 30 * MS, 30 * MS, 60 * MS, 60 * MS, 90 * MS, 90 * MS]
    assert simulation.ended_ns == simulation.begin_ns + 120 * MS
    (tick,) = simulation.ticks
    assert (tick.requests, tick.under_way, tick.last) == (8, 0, True)
    assert tick.latency == taken(8 * [30 * MS])
    assert tick.service == taken([])
    assert (tick.sent, tick.due, tick.in_flight_ns) == (8, 8, 8 * 30 * MS)
    thinking = Simulation(plan(Closed(3, think_seconds=10.0), ms=1000)).run()
    deaf = Simulation(plan(Closed(3), ms=1000), opens=lambda _: (5000 * MS, "connect timeout")).run()
    assert thinking.ended_ns == deaf.ended_ns == thinking.begin_ns + 1000 * MS


@pytest.mark.parametrize(
    ("reply", "times"),
    [
        (Reply(50 * MS, first_ns=10 * MS, tokens=5, is_stream=True), [(10, 10)] * 2),
        (Reply(50 * MS, first_ns=10 * MS, is_stream=True), [(10, None)] * 2),
        # Nobody has seen anything before its end.
        (Reply(50 * MS, tokens=5, is_stream=True), [(50, None)] * 2),
        (Reply(50 * MS, first_ns=10 * MS, tokens=1, is_stream=True), [(10, None)] * 2),
        (Reply(50 * MS, first_ns=10 * MS, tail_ns=20 * MS, tokens=5, is_stream=True), [(10, 5)] * 2),
    ],
    ids=["all told", "no usage", "no content", "one token", "late usage"],
)
@pytest.mark.parametrize("due_ms", [0, 7])
def test_a_stream_has_its_times_when_it_ends(reply: Reply, times: list[tuple[int, int | None]], due_ms: int) -> None:
    """To the first token and to the last from when it was due; for each token, where the answer says how many."""
    schedule = Trace(((0.0, 0), (due_ms / 1000, 0)), max_in_flight=1) if due_ms else Closed(1)
    (tick,) = Simulation(plan(schedule, requests=None if due_ms else 2), lambda _: reply).run().ticks
    # Of the trace the second waits until the first has ended.
    waits = [0, 50 - due_ms if due_ms else 0]
    assert tick.streams is not None
    assert tick.streams.ttft == taken((ttft + wait) * MS for (ttft, _), wait in zip(times, waits, strict=False))
    assert tick.streams.tpot == taken(tpot * MS for _, tpot in times if tpot is not None)
    # What comes after the last token belongs to no latency, but the request is under way until its end.
    assert tick.latency == taken(50 * MS - reply.tail_ns + wait * MS for wait in waits)
    assert (tick.in_flight_ns, tick.untimed_ns) == (2 * 50 * MS, 2 * reply.tail_ns)
    assert tick.streams.with_usage == (len(times) if reply.tokens else 0)


STREAM = Reply(50 * MS, first_ns=10 * MS, tokens=5, is_stream=True)
"""Its TTFT is 10 ms, and so is its TPOT."""


@pytest.mark.parametrize(
    ("objectives", "reply", "found"),
    [
        (Objectives(ttft=0.01, tpot=0.01, latency=0.05), STREAM, (3, 0)),
        (Objectives(ttft=0.0099), STREAM, (0, 0)),
        (Objectives(ttft=0.01, tpot=0.0099), STREAM, (0, 0)),
        (Objectives(latency=0.0499), STREAM, (0, 0)),
        (Objectives(latency=0.03, tpot=0.005), replace(STREAM, tail_ns=20 * MS), (3, 0)),
        (Objectives(ttft=0.01), replace(STREAM, tokens=None), (3, 0)),
        (Objectives(ttft=0.01, tpot=0.01), replace(STREAM, tokens=None), (0, 3)),
        (Objectives(ttft=0.0099, tpot=0.01), replace(STREAM, tokens=None), (0, 0)),
        (Objectives(tpot=0.001), replace(STREAM, tokens=1), (3, 0)),
        (Objectives(latency=0.05), Reply(50 * MS), (3, 0)),
        (Objectives(latency=0.0499), Reply(50 * MS), (0, 0)),
        (Objectives(latency=1.0), Reply(50 * MS, "status 503"), (0, 0)),
        (Objectives(ttft=1.0), Reply(50 * MS), (0, 3)),
        (None, STREAM, (0, 0)),
    ],
)
def test_a_good_answer_meets_all_objectives(
    objectives: Objectives | None, reply: Reply, found: tuple[int, int]
) -> None:
    """At the limit too; what is missed for sure is missed, and what is not known of is neither good nor bad."""
    whole = msgspec.structs.replace(plan(Closed(1), requests=3), objectives=objectives)
    if reply.is_stream:
        whole = msgspec.structs.replace(whole, endpoint=Endpoint("sse", "simulated", 80))
    (tick,) = Simulation(whole, lambda _: reply).run().ticks
    assert (tick.good, tick.unjudged) == found


@pytest.mark.parametrize("payloads", [ONE, TWO])
def test_a_user_thinks_between_an_answer_and_the_next_request(payloads: tuple[tuple[bytes, ...], ...]) -> None:
    """10 ms of service and 30 ms of thought: a request every 40 ms, and no thought in latency or lag."""
    simulation = Simulation(plan(Closed(2, think_seconds=0.03), ms=200, payloads=payloads)).run()
    assert simulation.sends == sorted(2 * list(range(0, 200 * MS, 40 * MS)))
    (tick,) = simulation.ticks
    assert tick.latency == taken(10 * [10 * MS])
    assert (tick.lag.sum_ns, tick.in_flight_ns, len(simulation.opened)) == (0, 10 * 10 * MS, 2)
    # The next request is due at 110 ms, while the engine stands still.
    stopped = Simulation(plan(Closed(1, think_seconds=0.1), ms=200, payloads=payloads), stopped=(1100 * MS, 1150 * MS))
    assert stopped.run().ticks[0].lag == taken([0, 40 * MS])


def test_users_come_and_leave_in_steps() -> None:
    """Steps of 2, 5 and 1 users at their absolute times; who is taken away leaves when answered."""
    schedule = Steps(((2, 1.0), (5, 0.5), (1, 1.1)))
    simulation = Simulation(plan(schedule, tick_ns=700 * MS), lambda _: Reply(300 * MS)).run()
    # Two began at 0 and are answered every 300 ms; three at 1000.
    begun = [(0, 2), (999, 2), (1000, 5), (1499, 5)]
    leaving = [(1500, 3), (1599, 3), (1600, 1), (1799, 1), (1800, 1), (2400, 1)]
    assert [(at_ms, simulation.busy(at_ms * MS)) for at_ms, _ in begun + leaving] == begun + leaving
    assert simulation.ended_ns == simulation.begin_ns + 2800 * MS
    assert (max(simulation.sends), len(simulation.opened)) == (2500 * MS, 5)
    thinking = Simulation(plan(Steps(((3, 1.0), (1, 5.0)), think_seconds=2.0))).run()
    assert thinking.sends == [0, 0, 0, 2010 * MS, 4020 * MS]


def check_account(simulation: Simulation) -> None:
    """Compare all ticks of a load with what its server and its slots saw."""
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


def test_a_user_whose_connection_failed_pauses_and_nobody_takes_the_place() -> None:
    """A dead server gets one request of each user for each pause, not as fast as it can refuse."""
    refused = Simulation(plan(Closed(4), ms=1000), opens=lambda _: (0, "connection refused")).run()
    assert refused.opened == sorted(4 * [refused.begin_ns + at_ns for at_ns in range(0, 1000 * MS, RECONNECT_NS)])
    reset = Simulation(plan(Closed(4), ms=1000), lambda _: Reply(MS, "connection reset", lost=True)).run()
    assert reset.sends == sorted(4 * list(range(0, 1000 * MS, RECONNECT_NS + MS)))


def test_connections_of_users_are_opened_a_bounded_number_at_a_time_and_those_of_arrivals_at_once() -> None:
    """Users come as fast as a backlog allows; a delay of the client's for arrivals would look like the server's."""
    count = 3 * OPENING_AT_ONCE + 7
    users = Simulation(plan(Closed(count), ms=200), opens=lambda _: (10 * MS, "")).run()
    assert users.most_opening == OPENING_AT_ONCE
    assert users.busy(100 * MS) == users.most_at_once == count
    burst = Simulation(plan(Burst(count)), lambda _: Reply(1000 * MS), lambda _: (10 * MS, "")).run()
    assert burst.most_opening == burst.most_at_once == count
    assert max(burst.sends) == 10 * MS


def test_a_failed_answer_is_counted_with_its_request() -> None:
    """The sample names the request, the kind its number; the next request follows at once, on a slot of that place."""
    whole = plan(Closed(1), requests=4)
    simulation = Simulation(whole, lambda sent: Reply(kind="status 503" if sent.number in {1, 2} else "")).run()
    assert simulation.errors == {"status 503": 2}
    assert simulation.ticks[0].error_samples == {"status 503": "request 1: b'right'"}
    assert simulation.said == 1, "what nobody keeps was made text"
    assert (simulation.sends, len(simulation.opened)) == ([0, 10 * MS, 20 * MS, 30 * MS], 1)
    closing = Simulation(plan(Closed(3), requests=12), lambda _: Reply(keep=False)).run()
    assert (closing.errors, len(closing.opened)) == ({}, 12)
    assert {sent.place for sent in closing.sent} == {0, 1, 2}
    assert closing.sends == sorted(3 * [0, 10 * MS, 20 * MS, 30 * MS])


def test_an_unanswered_request_expires_and_its_user_goes_on() -> None:
    """Given up at the first tick after its time-out, counted once, with the time that it was under way."""
    whole = plan(Closed(2), requests=6, timeout_ms=100, tick_ns=30 * MS)
    simulation = Simulation(whole, lambda sent: Reply(None if sent.number == 1 else 10 * MS)).run()
    assert simulation.errors == {"timeout": 1}
    assert simulation.ended == 6
    (lost,) = (sent for sent in simulation.sent if not sent.good)
    assert (lost.number, lost.end_ns) == (1, simulation.begin_ns + 120 * MS)
    assert [tick.oldest_ns for tick in simulation.ticks] == [30 * MS, 60 * MS, 90 * MS, 0]
    check_account(simulation)


def test_payloads_rotate_in_an_order_of_the_seed() -> None:
    """Every round has each payload once; the same seed gives the same order in all processes, another one another."""
    payloads = tuple((b"%d" % index,) for index in range(10))
    orders = []
    for seed in (1, 1, 2):
        whole = plan(Closed(3), requests=40, payloads=payloads, shuffled=True, seed=seed)
        sent = {sent.number: sent.payload for part in share(whole, 3) for sent in Simulation(part).run().sent}
        order = [sent[number] for number in range(40)]
        assert order == order[:10] * 4
        assert sorted(order[:10]) == [payload for (payload,) in payloads]
        orders.append(order)
    assert orders[0] == orders[1] != orders[2]
    assert orders[0] != sorted(orders[0])


def test_the_short_way_counts_like_the_long_one() -> None:
    """A load that slots repeat by themselves has the figures of the same load through the loop.

    But for which requests the lag is noted of, which is about every eighth.
    """
    figures = []
    for payloads in (ONE, ONE * 2):
        draw = random.Random(1)
        replies = [Reply(draw.randrange(1, 9 * MS), keep=draw.random() < 0.9) for _ in range(5000)]
        simulation = Simulation(plan(Closed(5), ms=900, payloads=payloads, tick_ns=100 * MS))
        simulation.serve = lambda sent, replies=replies: replies[sent.number]  # type: ignore[misc]  # mypy cannot infer lambdas with defaults
        check_account(simulation.run())
        assert len({sent.place for sent in simulation.sent}) == 5
        assert sum(tick.lag.total for tick in simulation.ticks) == pytest.approx(len(simulation.sent) / 8, rel=0.1)
        figures.append([msgspec.structs.replace(tick, answers=[], lag=Histogram()) for tick in simulation.ticks])
    assert figures[0] == figures[1]
    assert sum(tick.requests for tick in figures[0]) > 500


SCHEDULES: list[OpenSchedule] = [
    Constant(1000.0),
    Poisson(500.0),
    Gamma(500.0, 0.3),
    Burst(40),
    Trace(((0.0, 1), (0.1, 0), (0.1, 1), (0.35, 0))),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: type(schedule).__name__)
@pytest.mark.parametrize(("processes", "requests"), [(1, 10**6), (3, 10**6), (1, 3), (3, 17), (5, 3)])
def test_every_arrival_is_sent_at_its_own_time(schedule: OpenSchedule, processes: int, requests: int) -> None:
    """The times are exact to the nanosecond for any answers; several processes send each arrival exactly once.

    Also where the load ends by number before it does by time, and has fewer requests than there are engines.
    """
    draw = random.Random(1)
    whole = plan(schedule, ms=400, requests=requests, payloads=TWO, seed=7)
    parts = [Simulation(part, lambda _: Reply(draw.randrange(90 * MS))).run() for part in share(whole, processes)]
    sent = sorted((sent for part in parts for sent in part.sent), key=lambda sent: sent.number)
    due = takewhile(lambda arrival: arrival.at_ns < 400 * MS and arrival.number < requests, schedule.arrivals(7))
    assert [(each.at_ns - parts[0].begin_ns, each.number, each.payload) for each in sent] == [
        (arrival.at_ns, arrival.number, b"%d" % (arrival.number % 2 if arrival.index is None else arrival.index))
        for arrival in due
    ]
    for part in parts:
        check_account(part)
        assert part.ended_ns is not None
        assert part.ticks[0].lag.sum_ns == part.ticks[0].held == 0
        assert part.ticks[0].due == part.ticks[0].sent == sum(part.ticks[0].lag.counts.values())


def test_time_to_open_a_connection_is_latency_but_neither_lag_nor_service() -> None:
    """It holds with a connection for each request, and if the server closes idle ones, which is not an error."""
    simulation = Simulation(plan(Trace(((0.0, 0), (1.0, 0)))), opens=lambda _: (5 * MS, "")).run()
    (tick,) = simulation.ticks
    assert tick.latency == taken([15 * MS, 10 * MS])
    assert tick.service == taken([10 * MS, 10 * MS])
    assert tick.lag == taken([0, 0])
    assert len(simulation.opened) == 1, "a slot is used again before another is opened"
    fresh = Simulation(
        plan(Constant(3000), requests=3000), lambda _: Reply(5 * MS, keep=False), lambda _: (100 * MS, "")
    ).run()
    assert max(tick.latency.max_ns for tick in fresh.ticks) == 105 * MS
    closed = Simulation(plan(Constant(10.0), ms=500))

    def serve(sent: Sent) -> Reply:
        (slot,) = closed.slots
        closed.at(sent.at_ns + 50 * MS, slot.hang_up)
        return Reply(10 * MS)

    closed.serve = serve
    closed.run()
    assert (closed.sends, closed.errors) == ([0, 100 * MS, 200 * MS, 300 * MS, 400 * MS], {})


@pytest.mark.parametrize("ceiling", [1, 10, None])
def test_an_engine_that_stood_still_owns_up_to_it(ceiling: int | None) -> None:
    """Each of the 500 due meanwhile is late by the rest of it in lag and latency, with a free slot or without."""
    schedule = Constant(1000.0, max_in_flight=ceiling)
    simulation = Simulation(
        plan(schedule, ms=1000), lambda _: Reply(1000), begin_ns=1000 * MS, stopped=(1200 * MS, 1700 * MS)
    ).run()
    (tick,) = simulation.ticks
    late = [late_ms * MS for late_ms in range(1, 501)]
    if ceiling is None:
        assert tick.lag == taken([*late, *500 * [0]])
        assert tick.latency == taken([*(1000 + late_ns for late_ns in late), *500 * [1000]])
    # With a ceiling they follow each other, each after the answers of those before.
    assert sum(count for bucket, count in tick.lag.counts.items() if bucket >= bucket_of(100 * MS)) == 401
    assert sum(count for bucket, count in tick.latency.counts.items() if bucket >= bucket_of(100 * MS)) == 401
    assert tick.lag.max_ns == 500 * MS
    assert tick.service == taken(1000 * [1000])
    assert (tick.due, tick.sent) == (1000, 1000)


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_the_ceiling_is_never_exceeded_and_always_used(processes: int) -> None:
    """At twice the rate that 4 at once can serve 4 are under way, and what waits is counted; files too."""
    parts = [Simulation(part).run() for part in share(plan(Constant(800.0, max_in_flight=4), ms=500), processes)]
    assert sum(part.most_at_once for part in parts) == sum(part.most_slots_at_once for part in parts) == 4
    assert {sum(part.busy(at_ms * MS) for part in parts) for at_ms in range(50, 490)} == {4}
    ticks = [tick for part in parts for tick in part.ticks]
    assert sum(tick.due for tick in ticks) == sum(tick.sent for tick in ticks) == 400
    late = sum(sent.at_ns > sent.intended_ns for part in parts for sent in part.sent)
    assert sum(tick.held for tick in ticks) == late > 150
    limited = Simulation(plan(Burst(30)), most_slots=10).run()
    assert (limited.most_slots_at_once, limited.ticks[0].held, limited.requests) == (10, 20, 30)


def test_what_was_due_before_the_end_is_sent_after_it() -> None:
    """A time limit ends the arrivals, not the queue, nor what was due while the engine stood still."""
    waiting = Simulation(plan(Constant(100.0, max_in_flight=1), ms=100), lambda _: Reply(30 * MS)).run()
    assert (waiting.requests, waiting.ticks[0].due) == (10, 10)
    assert waiting.ended_ns == waiting.begin_ns + 300 * MS
    stopped = Simulation(plan(Constant(100.0), ms=100), begin_ns=1000 * MS, stopped=(1045 * MS, 1300 * MS)).run()
    assert stopped.requests == stopped.ticks[0].due == 10
    assert stopped.sends[5:] == 5 * [300 * MS]


REPLIES = [
    *(Reply(MS), Reply(MS), Reply(8 * MS), Reply(30 * MS), Reply(5 * MS, keep=False), Reply(None)),
    *(Reply(2 * MS, "status 503"), Reply(2 * MS, "status 503", keep=False)),
    Reply(3 * MS, "connection reset", lost=True),
]
OPENINGS = [(0, ""), (0, ""), (4 * MS, ""), (MS, "connection refused")]


@st.composite
def shared_loads(draw: st.DrawFn) -> tuple[Plan, list[Plan]]:
    """A load that ends by number, or by time in an open loop, and its parts."""
    processes = draw(st.integers(1, 4))
    users, rate = draw(st.integers(processes, 12)), draw(st.sampled_from([0, 50.0, 300.0, 2000.0]))
    closed = Closed(users, think_seconds=draw(st.sampled_from([0.0, 0.02])))
    schedule = Poisson(rate, max_in_flight=draw(st.none() | st.integers(processes, 6))) if rate else closed
    requests = None if rate else draw(st.integers(1, 60))
    whole = plan(schedule, requests=requests, ms=150 if rate else None, timeout_ms=80, tick_ns=20 * MS)
    return whole, share(whole, processes)


@settings(max_examples=250, deadline=None)
@given(
    load=shared_loads(),
    replies=st.lists(st.sampled_from(REPLIES), min_size=1, max_size=30),
    openings=st.lists(st.sampled_from(OPENINGS), min_size=1, max_size=10),
    stop_ms=st.sampled_from([0, 60]),
)
def test_nothing_is_lost_or_doubled_whatever_goes_wrong(
    load: tuple[Plan, list[Plan]], replies: list[Reply], openings: list[tuple[int, str]], stop_ms: int
) -> None:
    """Over all processes every request ends once, none is sent early, and every account is exact."""
    whole, shares = load
    parts = [
        Simulation(
            part,
            lambda sent: replies[sent.number % len(replies)],
            lambda number: openings[number % len(openings)],
            begin_ns=1000 * MS,
            stopped=(1050 * MS, (1050 + stop_ms) * MS),
        ).run()
        for part in shares
    ]
    for part in parts:
        check_account(part)
        assert part.ended_ns is not None
        assert part.ticks[-1].last
    numbers = [number for part in parts for number in part.numbers]
    assert len(numbers) == len(set(numbers))
    ended = sum(part.ended for part in parts)
    refused = sum(part.errors.get("connection refused", 0) for part in parts)
    if isinstance(whole.schedule, Closed):
        assert whole.requests is not None
        assert ended == whole.requests
        assert set(numbers) <= set(range(whole.requests))
        assert len(numbers) == whole.requests - refused
        assert sum(part.most_at_once for part in parts) <= whole.schedule.users
        return
    assert isinstance(whole.schedule, Poisson)
    # A connection that failed when nobody needed it any more is an error without a request.
    assert sum(tick.due for part in parts for tick in part.ticks) <= ended
    assert ended <= sum(tick.due for part in parts for tick in part.ticks) + refused
    assert all(sent.at_ns >= sent.intended_ns for part in parts for sent in part.sent)
    if whole.schedule.max_in_flight is not None:
        assert sum(part.most_slots_at_once for part in parts) <= whole.schedule.max_in_flight


# -- conversations

PAUSES_NS = (OPENS, 7 * MS, 3 * MS, OPENS, OPENS, 0, OPENS, 20 * MS)
"""Pauses of conversations of three turns, one, two and two."""


def conversing(schedule: ClosedSchedule, **more: Any) -> Plan:  # noqa: ANN401 -- of the plan
    """Plan a load of these conversations; each payload is its index and the place of a number."""
    return plan(
        schedule,
        payloads=tuple((b"%d %s" % (index, NUMBER_PLACE),) for index in range(len(PAUSES_NS))),
        numbers_before_end=(len(NUMBER_PLACE),) * len(PAUSES_NS),
        pauses_ns=PAUSES_NS,
        **more,
    )


def conversations(sent: list[Sent]) -> list[list[tuple[int, Sent]]]:
    """The turns of each conversation with their payloads, by the number that they bear."""
    found: dict[bytes, list[tuple[int, Sent]]] = {}
    for each in sent:
        payload, number = each.payload.split()
        found.setdefault(number, []).append((int(payload), each))
    return list(found.values())


@pytest.mark.parametrize("schedule", [Closed(5), Closed(4, think_seconds=0.011), Steps(((2, 0.3), (6, 0.4), (3, 0.3)))])
@pytest.mark.parametrize("trouble", [0.0, 0.4])
def test_a_turn_follows_the_answer_to_the_one_before_it_after_its_pause(
    schedule: ClosedSchedule, trouble: float
) -> None:
    """Also where an answer is an error, closes its connection or is lost: the conversation goes on on another one.

    Nobody's pause is cut short, and where connections stay each turn is sent to the nanosecond.
    """
    draw = random.Random(1)

    def serve(sent: Sent) -> Reply:
        del sent
        after_ns = draw.randrange(1, 20 * MS)
        if draw.random() >= trouble:
            return Reply(after_ns)
        return draw.choice([Reply(after_ns, keep=False), Reply(after_ns, "reset", lost=True), Reply(after_ns, "503")])

    finite = isinstance(schedule, Steps)
    simulation = Simulation(conversing(schedule, ms=None if finite else 2000), serve).run()
    played = conversations(simulation.sent)
    assert len(played) > 50
    for turns in played:
        for (before, answered), (payload, sent) in pairwise(turns):
            assert payload == before + 1
            assert answered.end_ns is not None
            late_ns = sent.at_ns - answered.end_ns - PAUSES_NS[payload]
            assert 0 <= late_ns <= (RECONNECT_NS if trouble else 0)
    users = 6 if finite else schedule.users if isinstance(schedule, Closed) else 0
    assert simulation.most_at_once == users
    # Whoever begins somewhere in a conversation was a user's first.
    assert 0 < sum(PAUSES_NS[turns[0][0]] != OPENS for turns in played) < users
    ended = [turns for turns in played if PAUSES_NS[turns[-1][0] + 1 : turns[-1][0] + 2] in {(OPENS,), ()}]
    assert len(ended) >= len(played) - users - (2 if finite else 0)


def test_engines_share_conversations_without_a_number_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each plays all of them in turn, from another one on; a prefix cache takes no two for the same."""
    # They begin at the same time.
    monkeypatch.setattr("time.time_ns", lambda: 10**18)
    numbers: list[bytes] = []
    for part, first in ((0, {0, 1, 2}), (1, {4, 5})):
        played = conversations(Simulation(conversing(Closed(4), ms=1000, parts=2, part=part)).run().sent)
        assert played[0][0][0] in first
        openings = [turns[0][0] for turns in played if PAUSES_NS[turns[0][0]] == OPENS]
        counts = [openings.count(index) for index in (0, 3, 4, 6)]
        # Users' first conversations begin anywhere.
        assert max(counts) - min(counts) <= 2
        numbers += [turns[0][1].payload.split()[1] for turns in played]
    assert len(set(numbers)) == len(numbers)


def test_a_user_who_thinks_goes_on_though_the_server_hangs_up() -> None:
    """With the same conversation, on a new connection, when the pause is over."""
    simulation = Simulation(conversing(Closed(1), requests=12))

    def serve(sent: Sent) -> Reply:
        (slot,) = simulation.slots
        if sent.payload.startswith(b"6"):
            simulation.at(sent.at_ns + 12 * MS, slot.hang_up)
        return Reply(10 * MS)

    simulation.serve = serve
    simulation.run()
    assert simulation.errors == {}
    (turns,) = (turns for turns in conversations(simulation.sent) if [payload for payload, _ in turns] == [6, 7])
    assert turns[1][1].at_ns - turns[0][1].at_ns == 30 * MS
