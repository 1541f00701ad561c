"""A measurement is believed only where every number that could speak against it is known, and none does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.load.schedule import Burst, Closed, Constant, Gamma, Poisson, Schedule, Steps, Trace
from pytest_gpuserve.load.totals import Durations, Totals, total
from pytest_gpuserve.load.validity import (
    LATE_SHARE,
    TIMER_SECONDS,
    WINDOW_LATE_SHARE,
    ReasonKind,
    disturbances,
    one_line,
    reasons,
)
from pytest_gpuserve.load.wire import BEAT_NS, Latencies, Tick
from pytest_gpuserve.measure.histogram import bucket_of

SECOND = 10**9
USERS = 4

CLOSED = Closed(USERS)
OPEN = Poisson(1000.0)
OPEN_SCHEDULES = (OPEN, Constant(1000.0), Gamma(1000.0, 2.0), Trace(((0.0, 0),)), Burst(1000))


def alike(count: int, nanoseconds: int) -> Durations:
    """So many durations of one length."""
    return Durations().plus(latencies(count, nanoseconds))


def latencies(count: int, nanoseconds: int) -> Latencies:
    """What an engine counts of so many durations of one length."""
    return Latencies({bucket_of(nanoseconds): count}, count * nanoseconds, nanoseconds) if count else Latencies()


def closed(**changed: Any) -> Totals:  # noqa: ANN401 -- any of the fields
    """A second in which four users had 1000 answers of 4 ms each; nothing speaks against it."""
    sound = Totals(
        nanoseconds=SECOND,
        end_ns=SECOND,
        requests=1000,
        latency=alike(1000, 4_000_000),
        due=1000,
        sent=1000,
        in_flight_ns=USERS * SECOND,
        users=USERS,
        cpu_ns=SECOND // 10,
    )
    return replace(sound, **changed)


def opened(**changed: Any) -> Totals:  # noqa: ANN401 -- any of the fields
    """A second in which an open loop had 1000 answers of 4 ms each; nothing speaks against it."""
    sound = closed(service=alike(1000, 4_000_000), latency=alike(1000, 4_100_000), lag=alike(1000, 100_000), users=0)
    return replace(sound, **changed)


def kinds(totals: Totals, schedule: Schedule, processes: int = 1, **arguments: Any) -> list[ReasonKind]:  # noqa: ANN401
    """Of which sorts the reasons are."""
    return [reason.kind for reason in reasons(totals, schedule=schedule, processes=processes, **arguments)]


def text(totals: Totals, schedule: Schedule, processes: int = 1, **arguments: Any) -> str:  # noqa: ANN401
    """The only reason."""
    (reason,) = reasons(totals, schedule=schedule, processes=processes, **arguments)
    assert "\n" not in reason.text
    assert str(reason) == reason.text
    return reason.text


def test_a_sound_measurement_has_no_reason_against_it() -> None:
    """Closed or open, of users, steps, or any open loop."""
    assert kinds(closed(), CLOSED) == []
    assert kinds(closed(), Steps(((USERS, 1.0),))) == []
    for schedule in OPEN_SCHEDULES:
        assert kinds(opened(), schedule) == []


@pytest.mark.parametrize("schedule", [CLOSED, *OPEN_SCHEDULES], ids=lambda schedule: type(schedule).__name__)
@pytest.mark.parametrize(
    "empty",
    [
        Totals(),
        Totals(nanoseconds=SECOND, end_ns=SECOND, cpu_ns=1),
        closed(requests=0),
        opened(nanoseconds=0),
        total([Tick(0, 0, SECOND, last=True)]),
    ],
)
def test_an_empty_measurement_is_never_valid(empty: Totals, schedule: Schedule) -> None:
    """Nothing answered, or in no time, is a reason of its own and crashes no other check."""
    assert kinds(empty, schedule) == [ReasonKind.NOTHING]


def test_errors_are_told_even_where_nothing_was_answered() -> None:
    """They are why."""
    failed = Totals(nanoseconds=SECOND, errors={"refused": 7}, error_samples={"refused": "nobody listens"})
    assert kinds(failed, CLOSED) == [ReasonKind.ERRORS, ReasonKind.NOTHING]


def test_no_error_is_allowed_unless_told() -> None:
    """One error of a thousand is one too many; what it was stands in the reason."""
    failed = closed(errors={"reset": 1, "status 503": 2}, error_samples={"status 503": "503 Busy\nsecond line"})
    assert text(failed, CLOSED) == (
        "request errors: 3 of 1003 (0.3 %) failed, 0 % may: reset: 1; status 503: 2 (first: 503 Busy second line)"
    )


@pytest.mark.parametrize(("failed", "valid"), [(111, True), (112, False)])
def test_errors_up_to_the_allowed_share_are_none(failed: int, *, valid: bool) -> None:
    """The share is of all requests: 111 of 1111 is 9.99 %, 112 of 1112 is 10.07 %."""
    assert (kinds(closed(errors={"reset": failed}), CLOSED, allowed_errors=0.1) == []) is valid


@pytest.mark.parametrize(
    ("cpu_share", "processes", "valid"), [(0.9, 1, True), (0.91, 1, False), (1.79, 2, True), (1.81, 2, False)]
)
def test_a_client_that_uses_up_its_cores_measures_itself(cpu_share: float, processes: int, *, valid: bool) -> None:
    """Over 90 % of a core for each process."""
    busy = closed(cpu_ns=round(cpu_share * SECOND))
    assert kinds(busy, CLOSED, processes) == ([] if valid else [ReasonKind.SATURATED])


def test_saturation_names_its_numbers() -> None:
    """The share, and what helps."""
    assert text(closed(cpu_ns=SECOND * 95 // 100), CLOSED) == (
        "client saturated: the load engine used 95 % of a core, over 90 %, and so measured itself;"
        " share the load: processes=2, as far as there are cores"
    )
    assert "each of the 2 load engines used 95 %" in text(closed(cpu_ns=SECOND * 19 // 10), CLOSED, 2)


def test_a_client_that_reports_no_cpu_is_not_known_to_have_kept_up() -> None:
    """A load costs CPU; none means that nobody looked."""
    assert kinds(closed(cpu_ns=0), CLOSED) == [ReasonKind.UNKNOWN]


def test_the_ceiling_is_named_where_the_client_was_saturated_and_decides_nothing() -> None:
    """What it reached in another hour is told; what its CPU time says counts."""
    found = text(closed(cpu_ns=SECOND * 95 // 100), CLOSED, ceiling_per_second=1000.0)
    assert "(1000/s is what it reaches on this host at all)" in found
    assert kinds(closed(), CLOSED, ceiling_per_second=1000.0) == []


@pytest.mark.parametrize(
    ("lag_ns", "latency_ns", "valid"),
    [
        (280_000, 4_000_000, True),
        (300_000, 4_000_000, False),
        (3_900_000, 400_000_000, True),
        (4_300_000, 400_000_000, False),
    ],
)
def test_lag_may_make_up_a_hundredth_of_the_latencies_beyond_what_timers_take(
    lag_ns: int, latency_ns: int, *, valid: bool
) -> None:
    """A timer is late by up to 0.25 ms on any host, and of what is beyond it 1 % of the mean latency is granted."""
    late = opened(lag=alike(1000, lag_ns), latency=alike(1000, latency_ns))
    assert kinds(late, OPEN) == ([] if valid else [ReasonKind.LATE])


def with_late(count: int, lag_ns: int, requests: int, latency_ns: int) -> Totals:
    """A second of an open loop of which so many requests were sent late by so much."""
    alike_all = alike(requests, latency_ns)
    lag = alike(requests - count, 1000).plus(latencies(count, lag_ns))
    under_way = requests * latency_ns
    return opened(
        requests=requests,
        sent=requests,
        due=requests,
        lag=lag,
        latency=alike_all,
        service=alike_all,
        in_flight_ns=under_way,
    )


def test_the_p99_is_another_where_a_hundredth_of_the_requests_is_sent_late() -> None:
    """One late request of a hundred moves no p99, and two may; over 1 ms and over 1 % of it."""
    assert kinds(with_late(1, 5_000_000, 100, 40_000_000), OPEN) == []
    assert text(with_late(2, 5_000_000, 100, 40_000_000), OPEN) == (
        "client late: requests were sent with a lag p99 of 5.00 ms, over 1.00 ms and over 1 % of the p99 40.0 ms"
    )
    assert kinds(with_late(2, 900_000, 100, 40_000_000), OPEN) == []
    assert kinds(with_late(2, 3_900_000, 100, 400_000_000), OPEN) == []


@given(late=st.integers(1, 30), lag_ms=st.floats(1.0, 100.0))
def test_of_few_requests_no_quantile_is_asked(late: int, lag_ms: float) -> None:
    """Of fewer than a hundred there is no p99 to move, so that what counts is how much lag there is in all of them."""
    few = with_late(late, round(lag_ms * 1e6), 50, 80_000_000)
    mean_seconds = (few.lag.mean or 0.0) - TIMER_SECONDS
    assert (kinds(few, OPEN) == [ReasonKind.LATE]) == (mean_seconds > LATE_SHARE * 0.08)


def test_two_hiccups_of_few_requests_are_no_lateness() -> None:
    """What made a newcomer's first run red: two lags of 4 ms among the few of a closed loop of 60 ms."""
    hiccups = alike(60, 1000).plus(latencies(2, 3_990_000))
    sound = {"requests": 500, "sent": 500, "latency": alike(500, 61_100_000), "in_flight_ns": 500 * 61_100_000}
    assert kinds(closed(**sound, users=32, lag=hiccups), Closed(32)) == []


@pytest.mark.parametrize(
    ("lag_ns", "think_seconds", "valid"),
    [
        (39_000, 0.0, True),
        (41_000, 0.0, False),
        (309_000, 0.002, True),
        (311_000, 0.002, False),
    ],
)
def test_users_may_be_idle_for_a_hundredth_of_their_time(lag_ns: int, think_seconds: float, *, valid: bool) -> None:
    """Each cycle is 4 ms of latency and what the user thinks; a think time ends by a timer, an answer does not."""
    late = closed(lag=alike(125, lag_ns))
    assert kinds(late, Closed(USERS, think_seconds)) == ([] if valid else [ReasonKind.LATE])


def beats(*stills_ms: float) -> dict[str, int]:
    """What an engine notes of standstills that each begin with a beat."""
    late = [ms - 5 * number for ms in stills_ms for number in range(20) if ms - 5 * number > 1]
    return {"late_beats": len(late), "late_beats_ns": round(sum(late) * 1e6)}


@pytest.mark.parametrize(
    ("stills_ms", "valid"), [((5.0,), True), ((9.0,), True), ((12.0,), False), ((5.0,) * 20, False)]
)
def test_an_engine_that_does_not_run_leaves_users_idle(stills_ms: tuple[float, ...], *, valid: bool) -> None:
    """Of a second with answers after 4 ms one of 5 ms is less than a hundredth; a longer one, or many, more."""
    assert kinds(closed(**beats(*stills_ms)), CLOSED) == ([] if valid else [ReasonKind.LATE])


def test_a_standstill_that_is_short_beside_a_latency_takes_little_of_it() -> None:
    """Of slow answers few come while it does not run, and these take at most 5 ms more; of fast ones many do."""
    slow = {"requests": 64, "sent": 64, "latency": alike(64, 62_500_000)}
    assert kinds(closed(**slow, **beats(*[5.0] * 10)), CLOSED) == []
    assert kinds(closed(**beats(*[5.0] * 10)), CLOSED) == [ReasonKind.LATE]


def test_a_client_that_is_held_up_names_its_numbers() -> None:
    """For how long, and what that adds."""
    assert text(closed(**beats(100.0)), CLOSED) == (
        "client held up: the load engine did not run for 10 % of the time though it had to, and so adds 10 % to the"
        " time of users, over 1 %"
    )
    assert "client held up: the load engine did not run for 10 % of the time" in text(opened(**beats(100.0)), OPEN)


@given(
    stills_ms=st.lists(st.floats(1.0, 99.0), max_size=9), engines=st.integers(1, 8), latency_ms=st.floats(0.1, 1000.0)
)
def test_users_are_not_idle_for_longer_than_their_engine_stands_still(
    stills_ms: list[float], engines: int, latency_ms: float
) -> None:
    """Whatever the latencies are, and shared by so many engines that each user is of one."""
    noted = beats(*stills_ms)
    latency_ns = round(latency_ms * 1e6)
    busy = closed(latency=alike(1000, latency_ns), in_flight_ns=1000 * latency_ns, **noted, cpu_ns=1)
    share = noted["late_beats"] * BEAT_NS / SECOND / engines
    assert share > 0.999 * WINDOW_LATE_SHARE or not disturbances(busy, schedule=CLOSED, usual=busy, processes=engines)


@given(requests=st.integers(1, 10_000), latency_ns=st.integers(1, 10**9), lag_ns=st.integers(0, 10**8))
@pytest.mark.parametrize("schedule", [CLOSED, OPEN], ids=["closed", "open"])
def test_what_a_window_measured_does_not_decide_whether_it_is_measured_again(
    schedule: Schedule, requests: int, latency_ns: int, lag_ns: int
) -> None:
    """However many answers it had, and whatever they took: beside the load as it usually is the client alone counts."""
    usual = opened()
    did = {"lag": alike(100, lag_ns), **beats(40.0)}
    plain = disturbances(opened(**did), schedule=schedule, usual=usual)
    other = opened(
        **did,
        requests=requests,
        latency=alike(requests, latency_ns),
        service=alike(requests, latency_ns),
        in_flight_ns=7,
    )
    assert disturbances(other, schedule=schedule, usual=usual) == plain


def test_a_window_is_measured_again_for_the_client_alone() -> None:
    """Saturated or late, of which one busy window tells; never for errors, a missed rate or requests that are stuck."""
    bad = opened(errors={"reset": 9}, due=2000, in_flight_ns=9 * SECOND, cpu_ns=SECOND, lag=alike(1000, 10**8))
    found = disturbances(bad, schedule=OPEN, usual=opened())
    assert [reason.kind for reason in found] == [ReasonKind.SATURATED, ReasonKind.LATE]
    sound = opened(errors={"reset": 9}, due=2000, in_flight_ns=9 * SECOND)
    assert disturbances(sound, schedule=OPEN, usual=opened()) == ()
    assert disturbances(Totals(), schedule=OPEN, usual=opened()) == ()


def test_a_queue_that_grows_to_the_end_is_an_overload() -> None:
    """The latencies of a rate that the server cannot reach say how long one looked; a queue that is steady is none."""
    growing = tuple(range(0, 200, 4))
    found = text(opened(in_flight_course=growing), OPEN)
    assert found.startswith("overloaded: the requests under way grew from 94 in the middle to 174 at the end")
    for course in ((96,) * 50, (0, 96) * 10, growing[:19], tuple(number // 2 for number in range(50))):
        assert kinds(opened(in_flight_course=course), OPEN) == []
    assert kinds(closed(in_flight_course=growing), CLOSED) == []


def test_users_who_wait_for_a_connection_are_told() -> None:
    """They have no request under way, and so no latency; a moment of it is what a new connection takes."""
    waiting = closed(opening=3, users=USERS, oldest_opening_ns=1_100_000_000)
    assert text(waiting, CLOSED).startswith(
        "in flight: at the end 3 of 4 users waited for a connection, one for 1.10 s"
    )
    assert kinds(closed(opening=3, oldest_opening_ns=900_000_000), CLOSED) == []


def test_failed_requests_were_under_way_as_well() -> None:
    """A time-out that is allowed for does not look like a stuck request."""
    timed_out = closed(errors={"timeout": 1}, in_flight_ns=(USERS + 1) * SECOND, failed_ns=SECOND)
    assert kinds(timed_out, CLOSED, allowed_errors=0.01) == []


def test_lateness_names_its_numbers() -> None:
    """By how much requests are sent late, and what that adds."""
    assert text(opened(lag=alike(1000, 2_000_000)), OPEN) == (
        "client late: it sends requests 2.00 ms late on average, and so adds 42.7 % to latencies, over 1 %"
    )
    assert "client late: it sends requests 2.00 ms late on average, and so adds 35 % to the time of users" in text(
        closed(lag=alike(1000, 2_000_000)), Closed(USERS, 0.001)
    )


@pytest.mark.parametrize("lag", [Durations(), alike(999, 1000)])
def test_an_open_loop_whose_lag_is_not_known_is_not_valid(lag: Durations) -> None:
    """It must be known of every request that was sent."""
    assert kinds(opened(lag=lag), OPEN) == [ReasonKind.UNKNOWN]


def test_what_waited_for_max_in_flight_needs_no_lag() -> None:
    """Waiting there is the load's own wish, and not the client's lag."""
    assert kinds(opened(lag=alike(10, 1000), held=990), Poisson(1000.0, 10)) == []


@pytest.mark.parametrize(("sent", "valid"), [(990, True), (989, False), (1100, True)])
@pytest.mark.parametrize("schedule", OPEN_SCHEDULES, ids=lambda schedule: type(schedule).__name__)
def test_under_99_percent_of_what_was_due_is_not_the_load(schedule: Schedule, sent: int, *, valid: bool) -> None:
    """What was caught up with from the time before counts as sent."""
    assert kinds(opened(sent=sent, lag=alike(sent, 1000)), schedule) == ([] if valid else [ReasonKind.RATE])


def test_one_request_at_the_edge_is_no_missing_rate() -> None:
    """Due with the end of the stretch and sent just after it; two are more than the edge."""
    few = {"requests": 10, "due": 10, "service": alike(10, 400_000_000), "latency": alike(10, 400_000_000)}
    assert kinds(opened(**few, sent=9, lag=alike(9, 1000)), OPEN) == []
    assert kinds(opened(**few, sent=8, lag=alike(8, 1000)), OPEN) == [ReasonKind.RATE]


def test_a_missing_rate_names_its_cause() -> None:
    """The ceiling where requests waited for it, else the client."""
    assert text(opened(sent=900, held=50), Poisson(1000.0, 10)) == (
        "rate not reached: 900 of the 1000 requests that were due were sent (90 %); 50 had to wait for max_in_flight,"
        " so the server is slower than the load: raise max_in_flight or lower the rate"
    )
    assert text(opened(sent=900), OPEN).endswith(
        "were sent (90 %); the client did not keep up: more processes=..., or a lower rate"
    )


def test_a_closed_loop_has_no_rate_to_miss() -> None:
    """Its users send when they are answered."""
    assert kinds(closed(due=2000), CLOSED) == []


@pytest.mark.parametrize(("under_way", "valid"), [(3.81, True), (3.79, False), (4.19, True), (4.21, False)])
@pytest.mark.parametrize("schedule", [Closed(3), OPEN], ids=["closed", "open"])
def test_the_number_under_way_is_rate_times_latency(under_way: float, schedule: Schedule, *, valid: bool) -> None:
    """1000/s of 4 ms each are 4 at a time, by Little's law, give or take 5 %."""
    measured = (opened if schedule is OPEN else closed)(in_flight_ns=round(under_way * SECOND))
    assert kinds(measured, schedule) == ([] if valid else [ReasonKind.IN_FLIGHT])


def test_a_stuck_request_shows_as_more_under_way() -> None:
    """A request that is never answered has no latency, and yet is under way."""
    stuck = closed(in_flight_ns=(USERS + 1) * SECOND, oldest_ns=SECOND)
    assert text(stuck, CLOSED) == (
        "in flight: 5 requests were under way on average, while 1000/s of 4.00 ms each make 4: requests are stuck"
        " (the oldest at the end had waited 1.00 s), or 1.00 s are too short for such latencies:"
        " measure 80.0 ms at least"
    )


def test_the_law_is_of_service_times_in_an_open_loop() -> None:
    """What waits in the client is not under way, though its latency counts."""
    assert kinds(opened(latency=alike(1000, 400_000_000)), OPEN) == []


@pytest.mark.parametrize(
    "uncounted", [{"in_flight_ns": 0}, {"in_flight_ns": 0, "latency": Durations(alike(1000, 1).histogram, 0, 1)}]
)
def test_a_client_that_does_not_count_what_is_under_way_is_not_valid(uncounted: dict[str, Any]) -> None:
    """Zero is no number of requests under way for requests that were answered."""
    assert kinds(closed(**uncounted), Closed(USERS, 0.1)) == [ReasonKind.IN_FLIGHT]


@pytest.mark.parametrize(
    ("totals", "schedule"),
    [
        (closed(latency=alike(999, 4_000_000)), CLOSED),
        (opened(latency=alike(999, 4_000_000)), OPEN),
        (opened(service=alike(999, 4_000_000)), OPEN),
    ],
)
def test_times_must_be_known_of_every_answer(totals: Totals, schedule: Schedule) -> None:
    """A latency that was not taken could be the slowest."""
    assert kinds(totals, schedule) == [ReasonKind.UNKNOWN]


def test_an_open_loop_without_service_times_is_not_valid() -> None:
    """They are not taken for the latencies."""
    assert kinds(opened(service=Durations()), OPEN)[0] == ReasonKind.UNKNOWN


def test_all_reasons_are_told() -> None:
    """Whoever mends one sees the next ones too."""
    bad = opened(errors={"reset": 1}, cpu_ns=SECOND, lag=alike(1000, 10**8), due=2000, in_flight_ns=9 * SECOND, held=10)
    assert kinds(bad, OPEN) == [
        ReasonKind.ERRORS,
        ReasonKind.SATURATED,
        ReasonKind.LATE,
        ReasonKind.RATE,
        ReasonKind.IN_FLIGHT,
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        {"processes": 0},
        {"allowed_errors": -0.1},
        {"allowed_errors": 1.0},
        {"allowed_errors": float("nan")},
        {"ceiling_per_second": 0.0},
        {"ceiling_per_second": float("nan")},
        {"ceiling_per_second": float("inf")},
    ],
)
def test_limits_that_check_nothing_are_refused(arguments: dict[str, Any]) -> None:
    """A NaN or an infinite limit would be passed by everything."""
    with pytest.raises(ValueError, match=r"not (at )?(0|-0.1|1.0|nan|inf)"):
        reasons(closed(), schedule=CLOSED, **{"processes": 1, **arguments})


def test_what_a_server_sent_cannot_write_on_the_terminal() -> None:
    """Line breaks become spaces, and escape sequences their names."""
    assert one_line(" a\r\n b\t\x1b[2Jé\x85 ") == "a b \\x1b[2Jé"
