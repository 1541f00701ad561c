"""A measurement is believed only where every number that could speak against it is known, and none does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_gpuserve.load.schedule import Burst, Closed, Constant, Gamma, Poisson, Schedule, Steps, Trace
from pytest_gpuserve.load.tick import shares, together
from pytest_gpuserve.load.validity import disturbances, late_share_within, one_line, reasons
from pytest_gpuserve.measure.histogram import Histogram, merge
from pytest_gpuserve.measure.window import AnswerCount, Streams, Window, total
from pytest_gpuserve.verdict.reason import Reason, ReasonKind
from tests.fakes.scripted_engines import TICK_NS, alike, tick_of

SECOND = 10**9
USERS = 4

CLOSED = Closed(USERS)
OPEN = Poisson(1000.0)

ERRORS, NOTHING = ReasonKind.REQUEST_ERRORS, ReasonKind.NOTHING_MEASURED
SATURATED, LATE = ReasonKind.CLIENT_SATURATED, ReasonKind.CLIENT_LATE
HELD_UP = ReasonKind.CLIENT_HELD_UP
RATE, IN_FLIGHT = ReasonKind.RATE_NOT_REACHED, ReasonKind.STUCK_REQUESTS
OPEN_SCHEDULES = (OPEN, Constant(1000.0), Gamma(1000.0, 2.0), Trace(((0.0, 0),)), Burst(1000))


def closed(**changed: Any) -> Window:  # noqa: ANN401 -- any of the fields
    """A second in which four users had 1000 answers of 4 ms each; valid."""
    sound = Window(
        end_ns=SECOND,
        requests=1000,
        latency=alike(1000, 4_000_000),
        due=1000,
        sent=1000,
        in_flight_ns=USERS * SECOND,
        cpu_ns=SECOND // 10,
    )
    return replace(sound, **changed)


def opened(**changed: Any) -> Window:  # noqa: ANN401 -- any of the fields
    """A second in which an open loop had 1000 answers of 4 ms each; valid."""
    sound = closed(service=alike(1000, 4_000_000), latency=alike(1000, 4_100_000), lag=alike(1000, 100_000))
    return replace(sound, **changed)


def kinds(totals: Window, schedule: Schedule, processes: int = 1, **arguments: Any) -> list[ReasonKind]:  # noqa: ANN401
    """Kinds of the reasons."""
    return [reason.kind for reason in reasons(totals, schedule=schedule, processes=processes, **arguments)]


@pytest.mark.parametrize(
    "schedule", [CLOSED, Steps(((USERS, 1.0),)), *OPEN_SCHEDULES], ids=lambda each: type(each).__name__
)
def test_an_empty_measurement_is_never_valid_and_a_sound_one_is(schedule: Schedule) -> None:
    """A measurement without answers, or without time, is a reason of its own and crashes no other check."""
    assert kinds(opened() if schedule in OPEN_SCHEDULES else closed(), schedule) == []
    for empty in (
        Window(),
        Window(end_ns=SECOND, cpu_ns=1),
        closed(requests=0),
        opened(end_ns=0),
        total([Window(0, 0, SECOND, last=True)]),
    ):
        assert kinds(empty, schedule) == [NOTHING]


def with_late(count: int, lag_ns: int, requests: int, latency_ns: int) -> Window:
    """A second of an open loop with this number of requests sent this late."""
    return opened(
        requests=requests,
        sent=requests,
        due=requests,
        lag=merge([alike(requests - count, 1000), alike(count, lag_ns)]),
        latency=alike(requests, latency_ns),
        service=alike(requests, latency_ns),
        in_flight_ns=requests * latency_ns,
    )


def lagging(lag_ns: int, latency_ns: int = 4_000_000) -> Window:
    """An open loop whose requests are all late by so much."""
    return opened(lag=alike(1000, lag_ns), latency=alike(1000, latency_ns))


def beats(*stills_ms: float) -> dict[str, int]:
    """Late beats of pauses that each begin with a beat."""
    late = [ms - 5 * number for ms in stills_ms for number in range(20) if ms - 5 * number > 1]
    return {"late_beats": len(late), "late_beats_ns": round(sum(late) * 1e6)}


SLOW = {"requests": 64, "sent": 64, "latency": alike(64, 62_500_000)}
FEW = {"requests": 10, "due": 10, "service": alike(10, 400_000_000), "latency": alike(10, 400_000_000)}
MANY = {"requests": 500, "sent": 500, "latency": alike(500, 61_100_000), "in_flight_ns": 500 * 61_100_000}


CASES: dict[str, tuple[Window, Schedule, list[ReasonKind]]] = {
    "errors where nothing was answered": (Window(end_ns=SECOND, errors={"refused": 7}), CLOSED, [ERRORS, NOTHING]),
    "90 % of a core": (closed(cpu_ns=SECOND * 90 // 100), CLOSED, []),
    # A timer is late by up to 0.25 ms on any host, and of what is beyond it 1 % of the mean latency is granted.
    "lag of what timers take": (lagging(280_000), OPEN, []),
    "lag of more": (lagging(300_000), OPEN, [LATE]),
    "late sends that are little of the latencies": (with_late(20, 2_000_000, 1000, 400_000_000), OPEN, []),
    "late sends that are much of the first tokens": (
        replace(with_late(20, 2_000_000, 1000, 400_000_000), streams=Streams(ttft=alike(1000, 40_000_000))),
        OPEN,
        [LATE],
    ),
    "lag that is much of the first token": (
        replace(lagging(3_900_000, 400_000_000), streams=Streams(ttft=alike(1000, 40_000_000))),
        OPEN,
        [LATE],
    ),
    "lag under a hundredth": (lagging(3_900_000, 400_000_000), OPEN, []),
    "lag over a hundredth": (lagging(4_300_000, 400_000_000), OPEN, [LATE]),
    # One late request of a hundred moves no p99, and two may; over 1 ms and over 1 % of it.
    "one late of a hundred": (with_late(1, 5_000_000, 100, 40_000_000), OPEN, []),
    "two late by under 1 ms": (with_late(2, 900_000, 100, 40_000_000), OPEN, []),
    "two late by under 1 %": (with_late(2, 3_900_000, 100, 400_000_000), OPEN, []),
    # What made a newcomer's first run red: two lags of 4 ms among the few of a closed loop of 60 ms.
    "two hiccups of few": (
        closed(**MANY, lag=merge([alike(60, 1000), alike(2, 3_990_000)])),
        Closed(32),
        [],
    ),
    # Each cycle is 4 ms of latency and what the user thinks; a think time ends by a timer, an answer does not.
    "idle under a hundredth": (closed(lag=alike(125, 39_000)), CLOSED, []),
    "idle over a hundredth": (closed(lag=alike(125, 41_000)), CLOSED, [LATE]),
    "thinking under a hundredth": (closed(lag=alike(125, 309_000)), Closed(USERS, think_seconds=0.002), []),
    "thinking over a hundredth": (closed(lag=alike(125, 311_000)), Closed(USERS, think_seconds=0.002), [LATE]),
    # Of a second with answers after 4 ms a standstill of 9 ms is less than a hundredth; a longer one, or many, more.
    "one short standstill": (closed(**beats(9.0)), CLOSED, []),
    "one long standstill": (closed(**beats(12.0)), CLOSED, [HELD_UP]),
    "ten short standstills": (closed(**beats(*[5.0] * 10)), CLOSED, [HELD_UP]),
    "ten that are short beside a latency": (closed(**SLOW, **beats(*[5.0] * 10)), CLOSED, []),
    "a moment for a connection": (closed(opening=3, oldest_opening_ns=900_000_000), CLOSED, []),
    "no lag where the load wished to wait": (
        opened(lag=alike(10, 1000), held=990),
        Poisson(1000.0, max_in_flight=10),
        [],
    ),
    # Due with the end of the stretch and sent just after it; two are more than the edge.
    "one request at the edge": (opened(**FEW, sent=9, lag=alike(9, 1000)), OPEN, []),
    "two requests at the edge": (opened(**FEW, sent=8, lag=alike(8, 1000)), OPEN, [RATE]),
    "a closed loop has no rate": (closed(due=2000), CLOSED, []),
    # What waits in the client is not under way, though its latency counts.
    "little's law of service times": (opened(latency=alike(1000, 400_000_000)), OPEN, []),
    "nothing counted under way": (closed(in_flight_ns=0), Closed(USERS, think_seconds=0.1), [IN_FLIGHT]),
    "nothing under way, no latency": (
        closed(in_flight_ns=0, latency=Histogram(alike(1000, 1).counts, 0, 1)),
        Closed(USERS, think_seconds=0.1),
        [IN_FLIGHT],
    ),
    # Four users in step: of a stretch of ten latencies the answers of nine alone may lie within.
    "users cut at the edges": (closed(requests=36, sent=36, due=36, latency=alike(36, SECOND // 10)), CLOSED, []),
    "all reasons at once": (
        opened(errors={"a": 1}, cpu_ns=SECOND, lag=alike(1000, 10**8), due=2000, in_flight_ns=9 * SECOND, held=10),
        OPEN,
        [ERRORS, SATURATED, LATE, RATE, IN_FLIGHT],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_speaks_against_a_measurement_is_found_and_nothing_else(name: str) -> None:
    """An unknown is never a pass, and a limit is where it is said to be."""
    totals, schedule, expected = CASES[name]
    assert kinds(totals, schedule) == expected


def test_shares_are_of_requests_and_of_processes() -> None:
    """111 errors of 1111 are 9.99 %, 112 of 1112 10.07 %, and no stuck requests; 90 % of a core are each process's."""
    assert kinds(closed(errors={"reset": 111}), CLOSED, allowed_errors=0.1) == []
    assert kinds(closed(errors={"reset": 112}), CLOSED, allowed_errors=0.1) == [ERRORS]
    timed_out = closed(errors={"timeout": 1}, in_flight_ns=(USERS + 1) * SECOND, untimed_ns=SECOND)
    assert kinds(timed_out, CLOSED, allowed_errors=0.01) == []
    assert kinds(closed(cpu_ns=SECOND * 179 // 100), CLOSED, 2) == []
    assert kinds(closed(cpu_ns=SECOND * 181 // 100), CLOSED, 2) == [SATURATED]


@pytest.mark.parametrize(("sent", "valid"), [(990, True), (989, False), (1100, True)])
@pytest.mark.parametrize("schedule", OPEN_SCHEDULES, ids=lambda schedule: type(schedule).__name__)
def test_under_99_percent_of_what_was_due_is_not_the_load(schedule: Schedule, sent: int, *, valid: bool) -> None:
    """Requests that were due earlier and sent now count as sent."""
    assert kinds(opened(sent=sent, lag=alike(sent, 1000)), schedule) == ([] if valid else [RATE])


@pytest.mark.parametrize(("under_way", "valid"), [(3.8, True), (3.78, False), (4.2, True), (4.23, False)])
@pytest.mark.parametrize("schedule", [Closed(3), OPEN], ids=["closed", "open"])
def test_the_number_under_way_is_rate_times_latency(under_way: float, schedule: Schedule, *, valid: bool) -> None:
    """1000/s of 4 ms each are 4 at a time, by Little's law, give or take 5 % and one latency of each at the edges."""
    measured = (opened if schedule is OPEN else closed)(in_flight_ns=round(under_way * SECOND))
    assert kinds(measured, schedule) == ([] if valid else [IN_FLIGHT])


def test_users_of_a_host_that_stood_still_at_the_edge_are_not_stuck() -> None:
    """Four users may wait 250 ms at the end, as all did once before; not longer, nor if only one did."""
    uneven = merge([alike(496, 4_000_000), alike(4, 300_000_000)])
    waited = {"requests": 500, "sent": 500, "due": 500, "latency": uneven}
    excess_ns = USERS * 250_000_000
    assert kinds(closed(**waited, in_flight_ns=uneven.sum_ns + excess_ns), CLOSED) == []
    assert kinds(closed(**waited, in_flight_ns=uneven.sum_ns + 2 * excess_ns), CLOSED) == [IN_FLIGHT]
    once = merge([alike(499, 4_000_000), alike(1, 300_000_000)])
    assert kinds(closed(**waited | {"latency": once}, in_flight_ns=once.sum_ns + excess_ns), CLOSED) == [IN_FLIGHT]


WORDS: dict[str, tuple[Window, Schedule]] = {
    "request errors: 3 of 1003 (0.3 %) failed, 0 % allowed: reset: 1; status 503: 2 (first: 503 Busy second line)": (
        closed(errors={"reset": 1, "status 503": 2}, error_samples={"status 503": "503 Busy\nsecond line"}),
        CLOSED,
    ),
    "client saturated: the load engine used 91 % of a core, over 90 %, so it measured itself."
    " Share the load if the machine has cores: processes=2": (closed(cpu_ns=SECOND * 91 // 100), CLOSED),
    "client late: requests were sent with a lag p99 of 5.00 ms, over 1.00 ms and over 1 % of the p99 40.0 ms": (
        with_late(2, 5_000_000, 100, 40_000_000),
        OPEN,
    ),
    "client late: it sends requests 2.00 ms late on average, and so adds 42.7 % to latencies, over 1 %": (
        opened(lag=alike(1000, 2_000_000)),
        OPEN,
    ),
    "client late: it sends requests 2.00 ms late on average, and so adds 35 % to the time of users": (
        closed(lag=alike(1000, 2_000_000)),
        Closed(USERS, think_seconds=0.001),
    ),
    "client held up: the load engine was paused for 10 % of the time when it had work, and so adds 10 % to the"
    " time of users, over 1 %": (closed(**beats(100.0)), CLOSED),
    "in flight: at the end 3 users waited for a connection, one for 1.10 s": (
        closed(opening=3, oldest_opening_ns=1_100_000_000),
        CLOSED,
    ),
    "in flight: 5 requests were in flight on average, but 1000/s times 4.00 ms is 4. Requests are stuck"
    " (the oldest at the end had waited 1.00 s)": (closed(in_flight_ns=(USERS + 1) * SECOND, oldest_ns=SECOND), CLOSED),
    ", or 1.00 s are too short for such latencies: measure at least 2.00 s": (
        closed(requests=20, sent=20, due=20, latency=alike(20, SECOND // 10)),
        CLOSED,
    ),
    "rate not reached: 900 of 1000 due requests were sent (90 %); 50 had to wait for max_in_flight,"
    " so the server is slower than the load: raise max_in_flight or lower the rate": (
        opened(sent=900, held=50),
        Poisson(1000.0, max_in_flight=10),
    ),
    "were sent (90 %); the client did not keep up: more processes=..., or a lower rate": (opened(sent=900), OPEN),
}


@pytest.mark.parametrize("words", WORDS, ids=[words[:40] for words in WORDS])
def test_a_reason_names_its_numbers(words: str) -> None:
    """A reason has its numbers and a remedy in one line."""
    totals, schedule = WORDS[words]
    (reason,) = reasons(totals, schedule=schedule, processes=1)
    assert "\n" not in reason.text
    assert str(reason) == reason.text
    assert words in reason.text


@pytest.mark.parametrize(
    ("course", "schedule", "grows"),
    [
        (range(0, 200, 4), OPEN, True),
        (range(0, 200, 4), CLOSED, False),
        ((96,) * 50, OPEN, False),
        # It comes and goes, has few ticks, or grows little.
        ((0, 96) * 10, OPEN, False),
        (range(0, 76, 4), OPEN, False),
        ([number // 2 for number in range(50)], OPEN, False),
    ],
)
def test_a_queue_that_grows_to_the_end_is_overload(course: Sequence[int], schedule: Schedule, *, grows: bool) -> None:
    """The reason has the queue's averages in the middle and at the end; users in a closed loop make no queue."""
    found = reasons(opened() if schedule is OPEN else closed(), schedule=schedule, processes=1, course=course)
    assert [reason.kind for reason in found] == [ReasonKind.OVERLOADED] * grows
    words = "overloaded: requests in flight grew from 94 in the middle to 174 at the end"
    assert all(reason.text.startswith(words) for reason in found)


@pytest.mark.parametrize(("tolerance", "most"), [(0.02, 0.01), (0.05, 0.01), (0.1, 0.01), (0.3, 0.03)])
def test_a_client_may_add_a_tenth_of_what_may_get_worse(tolerance: float, most: float) -> None:
    """The limit is at least 1 %: a smaller share moves a metric by no more, and decides nothing."""
    late: dict[str, Any] = {"in_flight_ns": 1000 * 1_000_000, "latency": alike(1000, 1_000_000)}
    late["lag"] = alike(1000, round(most * 1.02e6))
    less = {**late, "lag": alike(1000, round(most * 0.98e6))}
    share = late_share_within(tolerance)
    assert [reason.kind for reason in reasons(closed(**late), schedule=CLOSED, processes=1, late_share=share)] == [LATE]
    assert not reasons(closed(**less), schedule=CLOSED, processes=1, late_share=share)


@given(requests=st.integers(1, 10_000), latency_ns=st.integers(1, 10**9), lag_ns=st.integers(0, 10**8))
@pytest.mark.parametrize("schedule", [CLOSED, OPEN], ids=["closed", "open"])
def test_what_a_window_measured_does_not_decide_whether_it_is_measured_again(
    schedule: Schedule, requests: int, latency_ns: int, lag_ns: int
) -> None:
    """For any number and length of its answers only the client counts, beside the usual load."""
    did = {"lag": alike(100, lag_ns), **beats(40.0)}
    times = alike(requests, latency_ns)
    other = opened(**did, requests=requests, latency=times, service=times, in_flight_ns=7)
    plain = disturbances(opened(**did), schedule=schedule, usual=opened())
    assert disturbances(other, schedule=schedule, usual=opened()) == plain


def test_a_window_is_measured_again_for_the_client_alone() -> None:
    """A saturated or late client has a window measured again; errors, a missed rate or stuck requests do not."""
    sound = opened(errors={"reset": 9}, due=2000, in_flight_ns=9 * SECOND)
    bad = replace(sound, cpu_ns=SECOND, lag=alike(1000, 10**8))
    assert [each.kind for each in disturbances(bad, schedule=OPEN, usual=opened())] == [SATURATED, LATE]
    assert disturbances(sound, schedule=OPEN, usual=opened()) == ()
    assert disturbances(Window(), schedule=OPEN, usual=opened()) == ()


def test_what_a_server_sent_cannot_write_on_the_terminal() -> None:
    """Line breaks become spaces, and escape sequences their names."""
    assert one_line(" a\r\n b\t\x1b[2Jé\x85 ") == "a b \\x1b[2Jé"


# -- workers


def of_worker(number: int = 0, *, requests: int = 100, lag_ms: float = 0.01, cpu_share: float = 0.1) -> Window:
    """A worker's tick of so many requests of 5 ms each, sent with this lag."""
    if not requests:
        return tick_of(number, 0, 0, cpu_ns=1_000_000)
    return tick_of(
        number,
        requests,
        5_000_000,
        service=alike(requests, 5_000_000),
        lag=alike(requests, round(lag_ms * 1e6)),
        cpu_ns=round(cpu_share * TICK_NS),
        answers=[AnswerCount(0, b"yes", requests, 0)],
    )


def of_workers(ticks: list[Window], schedule: Schedule, cores: int | None = None) -> list[Reason]:
    """Reasons that name a worker."""
    found = reasons(total(ticks), schedule=schedule, processes=2, cores=cores, workers=shares(ticks))
    return [reason for reason in found if reason.about]


def test_one_late_worker_of_many_is_named() -> None:
    """The p99 of all workers together hides one of two hundred that is late; its own does not."""
    good = {f"engine {place}": of_worker() for place in range(199)}
    ticks = [together({**good, "engine 199": of_worker(lag_ms=20)})]
    schedule = Constant(rate=200_000)
    assert reasons(total(ticks), schedule=schedule, processes=200) == ()
    (told,) = of_workers(ticks, schedule)
    assert told.kind is LATE
    assert told.text.startswith("engine 199: client late")


IDLE = Window(0, 0, TICK_NS, cpu_ns=1_000_000)


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        # Also where all of them together used half of what they may.
        pytest.param(of_worker(cpu_share=0.99), [SATURATED], id="saturated"),
        # However well the other does.
        pytest.param(
            replace(IDLE, sent=4, due=4, in_flight_ns=4 * TICK_NS),
            [NOTHING],
            id="sends and hears nothing",
        ),
        pytest.param(replace(IDLE, errors={"refused": 2}), [NOTHING], id="cannot send: refused"),
        pytest.param(replace(IDLE, opening=3), [NOTHING], id="cannot send: swallowed"),
        pytest.param(replace(IDLE, due=5), [NOTHING], id="cannot send: late"),
        # Of a few requests over many workers some get none.
        pytest.param(IDLE, [], id="had nothing to do"),
    ],
)
def test_one_worker_that_does_not_do_its_share_is_named(one: Window, expected: list[ReasonKind]) -> None:
    """The reason names one of two workers."""
    told = of_workers([together({"a": of_worker(cpu_share=0.05), "b": one})], Closed(8))
    assert [reason.kind for reason in told] == expected
    assert all(reason.text.startswith("b:") for reason in told)


def test_workers_that_share_this_host_are_judged_as_a_whole_and_not_twice() -> None:
    """A short time with a core to itself does not count."""
    ticks = [together({name: of_worker(cpu_share=0.95 if name == "a" else 0.1) for name in "abcd"})]
    assert of_workers(ticks, Closed(8), cores=2) == []
    assert of_workers(ticks, Closed(8), cores=4)


@given(st.lists(st.lists(st.integers(0, 50), min_size=3, max_size=3), min_size=1, max_size=4))
def test_shares_add_up_to_the_whole(rows: list[list[int]]) -> None:
    """Each worker counts exactly once, in the order of their parts and without answers."""
    names = ["b", "a", "c"]
    each = [[of_worker(number, requests=count) for count in row] for number, row in enumerate(rows)]
    ticks = [together(dict(zip(names, row, strict=True))) for row in each]
    found = shares(ticks)
    assert list(found) == names
    assert list(found.values()) == [total(worker) for worker in zip(*each, strict=True)]
    assert found == shares(ticks[1:], shares(ticks[:1]))
    assert b"yes" not in b"".join(whole.workers for whole in ticks)
