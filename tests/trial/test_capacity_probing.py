"""What a try of one rate shows, from its ticks and from what validity says of them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import pytest

from pytest_gpuserve.experiment.capacity.probing import Probing
from pytest_gpuserve.experiment.capacity.times import (
    BATCHES,
    MOST_SECONDS,
    OBJECTIVES_LONG,
    SAMPLE_BATCHES,
    SECONDS,
    Looks,
    least_rate,
    seconds_to_show,
    settle_seconds,
)
from pytest_gpuserve.experiment.shape import TICK_SECONDS
from pytest_gpuserve.load.totals import total
from pytest_gpuserve.load.validity import Reason, ReasonKind
from pytest_gpuserve.load.wire import Latencies, Tick
from pytest_gpuserve.measure.capacity import Finding, Objective
from pytest_gpuserve.measure.histogram import bucket_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpuserve.measure.capacity import Probe

P99 = Objective(0.99, 0.050)
FAST, SLOW = bucket_of(10_000_000), bucket_of(80_000_000)
LOOKS = Looks.within(SECONDS)


def tick(number: int, requests: int = 200, slow: int = 0, *, failed: int = 0, due: int | None = None) -> Tick:
    """A tick of requests that took 10 ms, but for the slow ones, which took 80 ms."""
    counts = {bucket: count for bucket, count in ((FAST, requests - slow), (SLOW, slow)) if count}
    begin = round(number * TICK_SECONDS * 1e9)
    return Tick(
        number,
        begin,
        begin + round(TICK_SECONDS * 1e9),
        requests=requests,
        latency=Latencies(
            counts, 10_000_000 * (requests - slow) + 80_000_000 * slow, 80_000_000 if slow else 10_000_000
        ),
        due=requests + failed if due is None else due,
        sent=requests + failed,
        errors={"status 503": failed} if failed else {},
        cpu_ns=1_000_000,
    )


def probed(
    make: Callable[[int], Tick],
    reasons: Sequence[Reason] = (),
    *,
    looks: Looks = LOOKS,
    objective: Objective = P99,
    allowed_errors: float = 0.0,
    is_sample: bool = False,
    is_patient: bool = False,
) -> tuple[Probe, int]:
    """The probe of these ticks, and how many of them it took."""
    probing = Probing(objective, 2000.0, looks, allowed_errors, is_sample=is_sample, is_patient=is_patient)
    ticks: list[Tick] = []
    for number in range(looks.ticks[-1]):
        ticks.append(make(number))
        if probing.add(ticks[-1]):
            probe = probing.look(total(ticks), reasons)
            if probe is not None:
                return probe, len(ticks)
    raise AssertionError("a probe ends at its last look")


def reason(kind: ReasonKind) -> Reason:
    """A reason of this kind."""
    return Reason(kind, f"{kind}: as told")


def test_looks_double() -> None:
    """Each look is after twice the time of the one before, the first after a tick for each batch."""
    assert LOOKS.ticks == (24, 48, 96, 192)
    assert Looks.within(0.1).ticks == (BATCHES,)
    assert Looks.within(1e9).ticks[0] == BATCHES


@pytest.mark.parametrize(("seconds", "last"), [(1.2, 2.4), (20, 19.2), (50, 48.0), (60, 60.0), (120, 120.0)])
def test_the_last_look_is_at_the_time_that_was_given(seconds: float, last: float) -> None:
    """To a batch of it, and it is no power of two of anything."""
    looks = Looks.at(1e6, P99, seconds)
    assert looks.ticks[-1] * TICK_SECONDS == pytest.approx(last)
    assert list(looks.ticks) == sorted(set(looks.ticks))
    assert all(ticks % BATCHES == 0 for ticks in looks.ticks)


@pytest.mark.parametrize("seconds", [1.2, 9.6, 30.0])
def test_a_time_that_was_given_is_lengthened_as_the_usual_one(seconds: float) -> None:
    """By a low rate and by a slow objective: what is too short decides nothing, or calls good latencies overload."""
    low = 1.01 * least_rate(P99, seconds)
    assert Looks.at(low, P99, seconds).ticks[-1] * TICK_SECONDS >= 0.9 * MOST_SECONDS
    slow = Objective(0.99, 2.0)
    assert Looks.at(1e6, slow, seconds).ticks[-1] * TICK_SECONDS >= OBJECTIVES_LONG * 2.0 - BATCHES * TICK_SECONDS
    assert least_rate(P99, seconds) == least_rate(P99, None)
    assert least_rate(P99, 600.0) < least_rate(P99, None) / 5


@pytest.mark.parametrize("seconds", [0.001, 0.05, 0.1, 1.0, 3.0])
def test_a_probe_settles_for_the_objective_at_least(seconds: float) -> None:
    """So that a server whose answers all take as long answers from its first measured tick on."""
    assert settle_seconds(Objective(0.99, seconds)) >= max(0.5, seconds)


def test_how_long_it_takes_to_decide_is_told() -> None:
    """A search that is given so long shows a share of 0 at a rate that was not decided."""
    undecided, _ = probed(lambda number: tick(number, 1), looks=Looks.within(2.4))
    assert undecided.finding is Finding.UNDECIDED
    seconds = seconds_to_show(replace(undecided, rate=1 / TICK_SECONDS), P99)
    assert probed(lambda number: tick(number, 1), looks=Looks.within(seconds))[0].finding is Finding.MET
    assert seconds >= 2 * undecided.seconds


@pytest.mark.parametrize("quantile", [0.5, 0.9, 0.95, 0.99])
@pytest.mark.parametrize("rate", [5.0, 30.0, 70.0, 150.0, 1000.0])
def test_a_low_rate_is_given_the_time_that_it_takes(rate: float, quantile: float) -> None:
    """At the lowest rate that is tried, and above it, a share of 0 can be shown; and no probe lasts for ever."""
    objective = Objective(quantile, 0.050)
    looks = Looks.at(rate, objective)
    assert looks.ticks[-1] * TICK_SECONDS <= MOST_SECONDS + 1e-9
    if rate < least_rate(objective, None):
        return
    a_tick = rate * TICK_SECONDS

    def make(number: int) -> Tick:
        return tick(number, int((number + 1) * a_tick) - int(number * a_tick))

    assert probed(make, looks=looks, objective=objective)[0].finding is Finding.MET


def test_what_is_clear_is_decided_at_once() -> None:
    """Without a slow request the first look says that it is met, with one in five that it is missed."""
    assert probed(tick)[1] == BATCHES
    assert probed(tick)[0].finding is Finding.MET
    missed, ticks = probed(lambda number: tick(number, slow=40))
    assert (missed.finding, ticks) == (Finding.MISSED, BATCHES)
    assert missed.latency == pytest.approx(0.080, rel=0.001)
    assert (missed.requests, missed.slow) == (4800, 960)


def test_the_allowed_share_is_not_decided() -> None:
    """At the very share that is allowed nothing is said, and only where there is no lower rate all looks are taken."""
    found, ticks = probed(lambda number: tick(number, slow=2))
    assert (found.finding, ticks) == (Finding.UNDECIDED, LOOKS.ticks[0])
    found, ticks = probed(lambda number: tick(number, slow=2), is_patient=True)
    assert (found.finding, ticks) == (Finding.UNDECIDED, LOOKS.ticks[-1])


def test_what_time_would_decide_is_not_given_up() -> None:
    """A share of a fifth less than is allowed is shown to be so by the last look, which takes all the time there is."""
    thousands = Looks.within(76.8)
    found, ticks = probed(lambda number: tick(number, 500, slow=4), looks=thousands)
    assert found.finding is Finding.MET
    assert ticks > thousands.ticks[0]


@pytest.mark.parametrize("slow", [0, 2, 40])
def test_a_sample_decides_nothing_by_its_latencies(slow: int) -> None:
    """It has one look, and tells the share; what fails, or is not answered, misses at any rate."""
    looks = Looks.of_sample(2000.0, P99)
    assert looks.ticks == (60,)
    found, _ = probed(lambda number: tick(number, slow=slow), looks=looks, is_sample=True)
    assert (found.finding, found.share) == (Finding.UNDECIDED, slow / 200)
    assert found.effective > 0
    failed, _ = probed(lambda number: tick(number, failed=1), looks=looks, is_sample=True)
    unanswered, _ = probed(lambda number: tick(number, due=230), looks=looks, is_sample=True)
    assert failed.finding is unanswered.finding is Finding.MISSED


@pytest.mark.parametrize("seconds", [1.2, 2.4, 19.2, 60.0])
@pytest.mark.parametrize("rate", [30.0, 150.0, 1e4])
def test_a_sample_takes_a_part_of_the_time_of_a_probe(rate: float, seconds: float) -> None:
    """In whole batches; the more time a rate is given, the longer it is."""
    (ticks,) = Looks.of_sample(rate, P99, seconds).ticks
    assert ticks % SAMPLE_BATCHES == 0
    assert ticks == pytest.approx(0.3125 * Looks.at(rate, P99, seconds).ticks[-1], abs=SAMPLE_BATCHES / 2 + 13)


def test_slow_requests_in_one_cluster_decide_nothing() -> None:
    """A moment in which the machine stood still, with 3 % of the requests in it, is no sign of a low capacity."""
    found, _ = probed(lambda number: tick(number, slow=180 if number in {3, 4} else 0))
    assert found.finding is not Finding.MISSED


@pytest.mark.parametrize(
    ("kind", "finding"),
    [
        (ReasonKind.GROWING, Finding.UNDECIDED),
        (ReasonKind.IN_FLIGHT, Finding.UNDECIDED),
        (ReasonKind.NOTHING, Finding.UNDECIDED),
        (ReasonKind.SATURATED, Finding.UNDECIDED),
        (ReasonKind.UNKNOWN, Finding.UNDECIDED),
        (ReasonKind.LATE, Finding.MET),
    ],
)
def test_no_rate_is_met_by_what_would_be_invalid(kind: ReasonKind, finding: Finding) -> None:
    """Good latencies alone are not enough; only a late client, whose lateness is in the latencies, may meet it."""
    assert probed(tick, [reason(kind)])[0].finding is finding


@pytest.mark.parametrize(("lag_ns", "client"), [(3_000_000, False), (20_000_000, True)])
def test_a_little_lateness_does_not_make_a_sample_the_clients(lag_ns: int, *, client: bool) -> None:
    """Of the objective it is too little to move the share of slow requests."""
    lags = Latencies({bucket_of(lag_ns): 200}, 200 * lag_ns, lag_ns)

    def make(number: int) -> Tick:
        return msgspec.structs.replace(tick(number, slow=2), service=_taken(FAST), lag=lags)

    found, _ = probed(make, [reason(ReasonKind.LATE)], looks=Looks.of_sample(2000.0, P99), is_sample=True)
    assert found.finding is Finding.UNDECIDED
    assert bool(found.client) is client


@pytest.mark.parametrize(
    ("lag_ns", "service", "client"),
    [(3_000_000, SLOW, False), (20_000_000, SLOW, True), (3_000_000, FAST, True), (None, SLOW, True)],
)
def test_a_little_lateness_is_not_why_a_server_is_slow(lag_ns: int | None, service: int, *, client: bool) -> None:
    """A late client is told of a missed rate, unless it missed it from the sends on, and by far more than the lag."""

    def make(number: int) -> Tick:
        slow = tick(number, slow=40)
        lags = {} if lag_ns is None else {"lag": Latencies({bucket_of(lag_ns): 200}, 200 * lag_ns, lag_ns)}
        return msgspec.structs.replace(slow, service=_taken(service), **lags)

    found, _ = probed(make, [reason(ReasonKind.LATE)])
    assert found.finding is Finding.MISSED
    assert bool(found.client) is client


def test_a_queue_that_grows_is_neither_met_nor_missed() -> None:
    """That of a slow server grows for seconds at any rate: all looks are taken, and it is told why none decided."""
    found, ticks = probed(tick, [reason(ReasonKind.GROWING)])
    assert (found.finding, ticks) == (Finding.UNDECIDED, LOOKS.ticks[-1])
    assert found.reason.startswith("overloaded")
    slow, _ = probed(partial(tick, slow=40), [reason(ReasonKind.GROWING)])
    assert slow.finding is Finding.MISSED


def test_requests_that_stay_unanswered_miss() -> None:
    """A server that answers quickly what it answers, and leaves a tenth, has missed."""
    found, _ = probed(lambda number: tick(number, due=230))
    assert found.finding is Finding.MISSED
    assert found.reason.startswith("overloaded: only ")


def test_a_rate_that_was_held_back_is_the_servers() -> None:
    """What had to wait because too many were under way is a miss, what the client did not send is the client's."""
    rate = reason(ReasonKind.RATE)
    held, _ = probed(lambda number: _with(tick(number), held=5), [rate])
    assert (held.finding, held.client) == (Finding.MISSED, "")
    behind, _ = probed(tick, [rate])
    assert (behind.finding, behind.client) == (Finding.UNDECIDED, str(rate))


def test_a_failed_request_misses() -> None:
    """Where none may fail, one does it, whatever the latencies; the error is told."""
    errors = [Reason(ReasonKind.ERRORS, "request errors: 1 failed")]
    found, _ = probed(lambda number: tick(number, failed=number == 7), errors)
    assert (found.finding, found.reason) == (Finding.MISSED, "request errors: 1 failed")


def test_allowed_failures_count_as_slow() -> None:
    """Within what may fail a request that failed is one that was too slow; beyond it the rate is missed."""
    few, _ = probed(lambda number: tick(number, failed=number % 12 == 0), allowed_errors=0.05)
    assert few.finding is Finding.MET
    assert few.slow > 0
    many, _ = probed(lambda number: tick(number, failed=30), allowed_errors=0.05)
    assert many.finding is Finding.MISSED


def test_a_stuck_request_keeps_a_rate_from_being_met() -> None:
    """One that never comes back has no latency; a rate at which it hangs is not met."""
    found, _ = probed(lambda number: _with(tick(number), oldest_ns=round(1e8 * (number + 1))))
    assert found.finding is Finding.UNDECIDED
    assert found.reason.startswith("stuck requests")


def test_no_answer_at_all_misses() -> None:
    """A server that answers nothing of what is due has missed, and nothing is divided by zero."""
    found, _ = probed(lambda number: tick(number, 0, due=200), [reason(ReasonKind.NOTHING)])
    assert found.finding is Finding.MISSED
    assert found.latency is None


def test_a_latency_of_exactly_the_objective_meets_it() -> None:
    """Longer than the objective is slow, as long is not, to the histogram's 0.05 %."""
    exact = Objective(0.99, 0.010)
    below = Objective(0.99, 0.010 / 1.002)
    assert probed(tick, objective=exact)[0].finding is Finding.MET
    assert probed(tick, objective=below)[0].finding is Finding.MISSED


def _taken(bucket: int) -> Latencies:
    """160 fast requests, and 40 of a bucket."""
    counts = {FAST: 160}
    counts[bucket] = counts.get(bucket, 0) + 40
    return Latencies(counts, 1, 1_000_000_000)


def _with(given: Tick, **fields: int) -> Tick:

    return msgspec.structs.replace(given, **fields)
