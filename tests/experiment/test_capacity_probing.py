"""What a try of one rate shows, from its ticks and from what validity says of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from pytest_gpuserve.experiment.capacity.planning import (
    BATCHES,
    MOST_SECONDS,
    OBJECTIVES_LONG,
    SECONDS,
    Looks,
    least_rate,
    seconds_to_show,
    settle_seconds,
)
from pytest_gpuserve.experiment.capacity.probing import Probing
from pytest_gpuserve.experiment.shape import TICK_SECONDS
from pytest_gpuserve.gate.reason import Reason, ReasonKind
from pytest_gpuserve.load.durations import Durations
from pytest_gpuserve.load.totals import total
from pytest_gpuserve.load.wire import Tick
from pytest_gpuserve.measure.capacity import Objective, ProbeOutcome
from pytest_gpuserve.measure.histogram import bucket_of
from pytest_gpuserve.measure.objectives import Objectives

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpuserve.measure.capacity import Probe

P99 = Objective(0.99, 0.050)
FAST, SLOW = bucket_of(10_000_000), bucket_of(80_000_000)
NEVER_MET = (
    ReasonKind.STUCK_REQUESTS,
    ReasonKind.NOTHING_MEASURED,
    ReasonKind.CLIENT_SATURATED,
    ReasonKind.NOT_COUNTED,
)
LOOKS = Looks.within(SECONDS)


def tick(
    number: int,
    requests: int = 200,
    slow: int = 0,
    *,
    failed: int = 0,
    due: int | None = None,
    **fields: Any,  # noqa: ANN401 -- of a tick
) -> Tick:
    """A tick of requests that took 10 ms, but for the slow ones, which took 80 ms."""
    counts = {bucket: count for bucket, count in ((FAST, requests - slow), (SLOW, slow)) if count}
    begin = round(number * TICK_SECONDS * 1e9)
    made = Tick(
        number,
        begin,
        begin + round(TICK_SECONDS * 1e9),
        requests=requests,
        latency=Durations(
            counts, 10_000_000 * (requests - slow) + 80_000_000 * slow, 80_000_000 if slow else 10_000_000
        ),
        due=requests + failed if due is None else due,
        sent=requests + failed,
        errors={"status 503": failed} if failed else {},
        cpu_ns=1_000_000,
    )
    return msgspec.structs.replace(made, **fields)


def probed(
    make: Callable[[int], Tick],
    reasons: Sequence[Reason] = (),
    *,
    looks: Looks = LOOKS,
    objective: Objective = P99,
    allowed_errors: float = 0.0,
    **options: Any,  # noqa: ANN401 -- of `Probing`
) -> tuple[Probe, int]:
    """The probe of these ticks, and how many of them it took."""
    probing = Probing(objective, 2000.0, looks, allowed_errors, **options)
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


def taken(bucket: int) -> Durations:
    """160 fast requests, and 40 of a bucket."""
    counts = {FAST: 160}
    counts[bucket] = counts.get(bucket, 0) + 40
    return Durations(counts, 1, 1_000_000_000)


def lagging(lag_ns: int) -> Durations:
    """All requests of a tick sent so late."""
    return Durations({bucket_of(lag_ns): 200}, 200 * lag_ns, lag_ns)


# -- when one looks


@pytest.mark.parametrize("seconds", [1.2, 9.6, 30.0])
def test_a_time_that_was_given_is_lengthened_as_the_usual_one(seconds: float) -> None:
    """By a low rate and by a slow objective: what is too short decides nothing, or calls good latencies overload."""
    low = 1.01 * least_rate(P99, seconds)
    assert Looks.at(low, P99, seconds).ticks[-1] * TICK_SECONDS >= 0.9 * MOST_SECONDS
    slow = Objective(0.99, 2.0)
    assert Looks.at(1e6, slow, seconds).ticks[-1] * TICK_SECONDS >= OBJECTIVES_LONG * 2.0 - BATCHES * TICK_SECONDS
    assert least_rate(P99, seconds) == least_rate(P99, None)
    assert least_rate(P99, 600.0) < least_rate(P99, None) / 5
    # It settles for the objective at least: answers that all take as long come from the first measured tick on.
    assert settle_seconds(Objective(0.99, seconds)) >= max(0.5, seconds)


def test_how_long_it_takes_to_decide_is_told() -> None:
    """A search that is given so long shows a share of 0 at a rate that was not decided."""
    undecided, _ = probed(lambda number: tick(number, 1), looks=Looks.within(2.4))
    assert undecided.finding is ProbeOutcome.UNDECIDED
    seconds = seconds_to_show(replace(undecided, rate=1 / TICK_SECONDS), P99)
    assert probed(lambda number: tick(number, 1), looks=Looks.within(seconds))[0].finding is ProbeOutcome.MET
    assert seconds >= 2 * undecided.seconds


@pytest.mark.parametrize("quantile", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("rate", [5.0, 30.0, 150.0, 1000.0])
def test_a_low_rate_is_given_the_time_that_it_takes(rate: float, quantile: float) -> None:
    """At the lowest rate that is tried, and above it, a share of 0 can be shown; and no probe lasts for ever."""
    objective = Objective(quantile, 0.050)
    looks = Looks.at(rate, objective)
    assert looks.ticks[-1] * TICK_SECONDS <= MOST_SECONDS + 1e-9
    if rate >= least_rate(objective, None):
        in_a_tick = rate * TICK_SECONDS
        found, _ = probed(
            lambda number: tick(number, int((number + 1) * in_a_tick) - int(number * in_a_tick)),
            looks=looks,
            objective=objective,
        )
        assert found.finding is ProbeOutcome.MET


# -- what is found


def test_what_is_clear_is_decided_at_once() -> None:
    """Without a slow request the first look says that it is met, with one in five that it is missed."""
    met, ticks = probed(tick)
    assert (met.finding, ticks) == (ProbeOutcome.MET, BATCHES)
    missed, ticks = probed(lambda number: tick(number, slow=40))
    assert (missed.finding, ticks) == (ProbeOutcome.MISSED, BATCHES)
    assert missed.latency == pytest.approx(0.080, rel=0.001)
    assert (missed.requests, missed.slow) == (4800, 960)


def test_what_is_not_clear_takes_more_looks() -> None:
    """A fifth less than the allowed share is shown by the last; the very share is given up, unless no rate is lower."""
    thousands = Looks.within(76.8)
    found, ticks = probed(lambda number: tick(number, 500, slow=4), looks=thousands)
    assert found.finding is ProbeOutcome.MET
    assert ticks > thousands.ticks[0]
    for is_patient, last in ((False, LOOKS.ticks[0]), (True, LOOKS.ticks[-1])):
        found, ticks = probed(lambda number: tick(number, slow=2), is_patient=is_patient)
        assert (found.finding, ticks) == (ProbeOutcome.UNDECIDED, last)


@pytest.mark.parametrize(
    ("make", "given", "finding", "told"),
    [
        # Good latencies alone are not enough; only a late client, whose lateness is in the latencies, may meet it.
        (tick, {"reasons": [reason(ReasonKind.OVERLOADED)]}, ProbeOutcome.UNDECIDED, "overloaded"),
        *((tick, {"reasons": [reason(kind)]}, ProbeOutcome.UNDECIDED, "") for kind in NEVER_MET),
        (tick, {"reasons": [reason(ReasonKind.CLIENT_LATE)]}, ProbeOutcome.MET, ""),
        # A queue that grows does not hide what is slow.
        (lambda number: tick(number, slow=40), {"reasons": [reason(ReasonKind.OVERLOADED)]}, ProbeOutcome.MISSED, ""),
        # One that never comes back has no latency.
        (
            lambda number: tick(number, oldest_ns=round(1e8 * (number + 1))),
            {},
            ProbeOutcome.UNDECIDED,
            "stuck requests",
        ),
        # A server that answers quickly what it answers, and leaves a tenth, or all.
        (lambda number: tick(number, due=230), {}, ProbeOutcome.MISSED, "overloaded: only "),
        (
            lambda number: tick(number, 0, due=200),
            {"reasons": [reason(ReasonKind.NOTHING_MEASURED)]},
            ProbeOutcome.MISSED,
            "",
        ),
        # Within what may fail a request that failed is one that was too slow; beyond it the rate is missed.
        (
            lambda number: tick(number, failed=number == 7),
            {"reasons": [Reason(ReasonKind.REQUEST_ERRORS, "request errors: 1 failed")]},
            ProbeOutcome.MISSED,
            "request errors: 1 failed",
        ),
        (lambda number: tick(number, failed=number % 12 == 0), {"allowed_errors": 0.05}, ProbeOutcome.MET, ""),
        (lambda number: tick(number, failed=30), {"allowed_errors": 0.05}, ProbeOutcome.MISSED, ""),
        # Longer than the objective is slow, as long is not, to the histogram's 0.05 %.
        (tick, {"objective": Objective(0.99, 0.010)}, ProbeOutcome.MET, ""),
        (tick, {"objective": Objective(0.99, 0.010 / 1.002)}, ProbeOutcome.MISSED, ""),
    ],
)
def test_a_probe_finds(make: Callable[[int], Tick], given: dict[str, Any], finding: ProbeOutcome, told: str) -> None:
    """What would be invalid meets no rate, and what fails or is not answered misses it, however good the latencies."""
    found, ticks = probed(make, **given)
    assert found.finding is finding
    assert found.reason.startswith(told)
    if told == "overloaded":  # the queue of a slow server grows for seconds at any rate
        assert ticks == LOOKS.ticks[-1]
    if "allowed_errors" in given:
        assert found.slow > 0
    if not found.requests:
        assert found.latency is None


@pytest.mark.parametrize(("good", "finding"), [(200, ProbeOutcome.MET), (190, ProbeOutcome.MISSED)])
def test_of_several_objectives_at_once_what_the_engine_counted_decides(good: int, finding: ProbeOutcome) -> None:
    """However good the latencies are by themselves; which failed is not good either."""
    objective = Objective(0.99, 1.0, Objectives(ttft=0.050, tpot=0.010))
    found, _ = probed(lambda number: tick(number, good=good, ttft=taken(FAST), tpot=taken(FAST)), objective=objective)
    assert (found.finding, found.share, found.latency) == (finding, (200 - good) / 200, None)
    assert found.ttft == found.tpot == pytest.approx(0.010, rel=0.001)


def test_slow_requests_in_one_cluster_decide_nothing() -> None:
    """A moment in which the machine stood still, with 3 % of the requests in it, is no sign of a low capacity."""
    found, _ = probed(lambda number: tick(number, slow=180 if number in {3, 4} else 0))
    assert found.finding is not ProbeOutcome.MISSED


# -- samples


@pytest.mark.parametrize("slow", [0, 2, 40])
def test_a_sample_decides_nothing_by_its_latencies(slow: int) -> None:
    """It has one look, and tells the share; what fails, or is not answered, misses at any rate."""
    sample: dict[str, Any] = {"looks": Looks.of_sample(2000.0, P99), "is_sample": True}
    found, ticks = probed(lambda number: tick(number, slow=slow), **sample)
    assert (found.finding, found.share, ticks) == (ProbeOutcome.UNDECIDED, slow / 200, 60)
    assert found.effective > 0
    assert probed(lambda number: tick(number, failed=1), **sample)[0].finding is ProbeOutcome.MISSED
    assert probed(lambda number: tick(number, due=230), **sample)[0].finding is ProbeOutcome.MISSED


# -- whose fault it is


@pytest.mark.parametrize(("lag_ns", "client"), [(3_000_000, False), (20_000_000, True)])
def test_a_little_lateness_does_not_make_a_sample_the_clients(lag_ns: int, *, client: bool) -> None:
    """Of the objective it is too little to move the share of slow requests."""
    found, _ = probed(
        lambda number: tick(number, slow=2, service=taken(FAST), lag=lagging(lag_ns)),
        [reason(ReasonKind.CLIENT_LATE)],
        looks=Looks.of_sample(2000.0, P99),
        is_sample=True,
    )
    assert (found.finding, bool(found.client)) == (ProbeOutcome.UNDECIDED, client)


@pytest.mark.parametrize(
    ("lag_ns", "service", "client"),
    [(3_000_000, SLOW, False), (20_000_000, SLOW, True), (3_000_000, FAST, True), (None, SLOW, True)],
)
def test_a_little_lateness_is_not_why_a_server_is_slow(lag_ns: int | None, service: int, *, client: bool) -> None:
    """A late client is told of a missed rate, unless it missed it from the sends on, and by far more than the lag."""
    lag: dict[str, Any] = {} if lag_ns is None else {"lag": lagging(lag_ns)}
    found, _ = probed(
        lambda number: tick(number, slow=40, service=taken(service), **lag), [reason(ReasonKind.CLIENT_LATE)]
    )
    assert (found.finding, bool(found.client)) == (ProbeOutcome.MISSED, client)


@pytest.mark.parametrize(("name", "client"), [("ttft", True), ("tpot", False)])
def test_lateness_makes_no_token_slow_but_the_first(name: str, *, client: bool) -> None:
    """A TPOT counts from the first token on, whenever the request was sent."""
    times: dict[str, Any] = {name: taken(SLOW)}
    found, _ = probed(
        lambda number: tick(number, good=160, lag=lagging(20_000_000), service=taken(SLOW), **times),
        [reason(ReasonKind.CLIENT_LATE)],
        objective=Objective(0.99, 1.0, Objectives(**{name: 0.050})),
    )
    assert (found.finding, bool(found.client)) == (ProbeOutcome.MISSED, client)


def test_a_rate_that_was_held_back_is_the_servers() -> None:
    """What had to wait because too many were under way is a miss, what the client did not send is the client's."""
    rate = reason(ReasonKind.RATE_NOT_REACHED)
    held, _ = probed(lambda number: tick(number, held=5), [rate])
    assert (held.finding, held.client) == (ProbeOutcome.MISSED, "")
    behind, _ = probed(tick, [rate])
    assert (behind.finding, behind.client) == (ProbeOutcome.UNDECIDED, str(rate))
