"""Sums of each worker of a load."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_gpuserve.load.schedule import Closed, Constant
from pytest_gpuserve.load.tick import AnswerCount, Tick, shares, together, total
from pytest_gpuserve.load.validity import reasons, share_reasons
from pytest_gpuserve.verdict.reason import ReasonKind
from tests.load.ticks import TICK_NS, alike, tick_of

MS = 1_000_000


def tick(number: int = 0, *, requests: int = 100, lag_ms: float = 0.01, cpu_share: float = 0.1) -> Tick:
    """A tick of a worker: of so many requests of 5 ms each, sent with this lag."""
    if not requests:
        return tick_of(number, 0, 0, cpu_ns=MS)
    return tick_of(
        number,
        requests,
        5 * MS,
        service=alike(requests, 5 * MS),
        lag=alike(requests, round(lag_ms * MS)),
        cpu_ns=round(cpu_share * TICK_NS),
        answers=[AnswerCount(0, b"yes", requests, 0)],
    )


def test_one_late_worker_of_many_is_named() -> None:
    """The p99 of all workers together hides one of two hundred that is late; its own does not."""
    good = {f"engine {place}": tick() for place in range(199)}
    ticks = [together({**good, "engine 199": tick(lag_ms=20)})]
    schedule = Constant(rate=200_000)
    assert reasons(total(ticks), schedule=schedule, processes=200) == ()
    (told,) = share_reasons(shares(ticks), schedule)
    assert told.kind is ReasonKind.CLIENT_LATE
    assert told.text.startswith("engine 199: client late")


IDLE = Tick(0, 0, TICK_NS, cpu_ns=MS)


@pytest.mark.parametrize(
    ("one", "kinds"),
    [
        # Also where all of them together used half of what they may.
        pytest.param(tick(cpu_share=0.99), [ReasonKind.CLIENT_SATURATED], id="saturated"),
        # However well the other does.
        pytest.param(
            replace(IDLE, sent=4, due=4, in_flight_ns=4 * TICK_NS),
            [ReasonKind.NOTHING_MEASURED],
            id="sends and hears nothing",
        ),
        pytest.param(replace(IDLE, errors={"refused": 2}), [ReasonKind.NOTHING_MEASURED], id="cannot send: refused"),
        pytest.param(replace(IDLE, opening=3), [ReasonKind.NOTHING_MEASURED], id="cannot send: swallowed"),
        pytest.param(replace(IDLE, due=5), [ReasonKind.NOTHING_MEASURED], id="cannot send: late"),
        # Of a few requests over many workers some get none.
        pytest.param(IDLE, [], id="had nothing to do"),
    ],
)
def test_one_worker_that_does_not_do_its_share_is_named(one: Tick, kinds: list[ReasonKind]) -> None:
    """The reason names one of two workers."""
    told = share_reasons(shares([together({"a": tick(cpu_share=0.05), "b": one})]), Closed(8))
    assert [reason.kind for reason in told] == kinds
    assert all(reason.text.startswith("b:") for reason in told)


def test_workers_that_share_this_host_are_judged_as_a_whole_and_not_twice() -> None:
    """A short time with a core to itself does not count."""
    ticks = [together({name: tick(cpu_share=0.95 if name == "a" else 0.1) for name in "abcd"})]
    assert share_reasons(shares(ticks), Closed(8), among=2) == ()
    assert share_reasons(shares(ticks), Closed(8), among=4)


@given(st.lists(st.lists(st.integers(0, 50), min_size=3, max_size=3), min_size=1, max_size=4))
def test_shares_add_up_to_the_whole(rows: list[list[int]]) -> None:
    """Each worker counts exactly once, in the order of their parts and without answers."""
    names = ["b", "a", "c"]
    each = [[tick(number, requests=count) for count in row] for number, row in enumerate(rows)]
    ticks = [together(dict(zip(names, row, strict=True))) for row in each]
    found = shares(ticks)
    assert list(found) == names
    assert list(found.values()) == [total(worker) for worker in zip(*each, strict=True)]
    assert found == shares(ticks[1:], shares(ticks[:1]))
    assert b"yes" not in b"".join(whole.workers for whole in ticks)
