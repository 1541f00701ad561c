"""The reactor calls what is due when it is due, and tells no handler what happened to another's socket."""

from __future__ import annotations

import gc
import socket
import time
import weakref
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.load.engine.reactor import FEW_TIMERS, READABLE, Reactor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Pairs = Callable[[], tuple[socket.socket, socket.socket]]

MILLISECOND_NS = 1_000_000
FAR_NS = 3_600_000_000_000
SAFETY_NS = 10_000_000_000


@contextmanager
def running() -> Iterator[Reactor]:
    """Give a reactor that a failing test cannot leave waiting for ever."""
    reactor = Reactor()

    def give_up() -> None:
        raise AssertionError("nobody stopped the reactor")

    reactor.at(time.perf_counter_ns() + SAFETY_NS, give_up)
    try:
        yield reactor
    finally:
        reactor.close()


@pytest.fixture
def reactor() -> Iterator[Reactor]:
    """Give a reactor."""
    with running() as given_reactor:
        yield given_reactor


@pytest.fixture
def pair() -> Iterator[Pairs]:
    """Give a maker of connected sockets, which are closed at the end unless they were before."""
    with ExitStack() as stack:

        def make() -> tuple[socket.socket, socket.socket]:
            ours, theirs = socket.socketpair()
            ours.settimeout(0)
            return stack.enter_context(ours), stack.enter_context(theirs)

        yield make


@given(delays=st.lists(st.integers(-3 * MILLISECOND_NS, 3 * MILLISECOND_NS), min_size=1, max_size=20))
def test_timers_are_called_in_order_and_never_early(delays: list[int]) -> None:
    """For any order of setting, also in the past: by time, and equal times by the order of setting."""
    called: list[tuple[int, int]] = []
    with running() as reactor:
        base_ns = time.perf_counter_ns()

        def note(number: int) -> None:
            assert time.perf_counter_ns() >= base_ns + delays[number]
            called.append((delays[number], number))
            if len(called) == len(delays):
                reactor.stop()

        for number, delay_ns in enumerate(delays):
            reactor.at(base_ns + delay_ns, partial(note, number))
        reactor.run()
    assert called == sorted((delay_ns, number) for number, delay_ns in enumerate(delays))


def test_cancelled_timers_are_not_called_and_leave_nothing_behind(reactor: Reactor) -> None:
    """Many thousand time-outs an hour away, cancelled as connections open, leave neither callbacks nor places."""

    class Watched:
        def call(self) -> None:
            raise AssertionError("called though cancelled")

    kept = [reactor.at(time.perf_counter_ns() + FAR_NS + number, reactor.stop) for number in range(10)]
    gc.disable()
    try:
        for number in range(10_000):
            watched = Watched()
            watch = weakref.ref(watched)
            timer = reactor.at(time.perf_counter_ns() + FAR_NS - number, watched.call)
            del watched
            assert watch() is not None
            reactor.cancel(timer)
            assert watch() is None
    finally:
        gc.enable()
    assert len(reactor._timers) <= 2 * (len(kept) + 1) + FEW_TIMERS + 1
    reactor.at(0, reactor.stop)
    reactor.run()


@pytest.mark.parametrize("batch", [2, 300])
def test_a_socket_closed_in_a_batch_gets_none_of_its_events(reactor: Reactor, pair: Pairs, batch: int) -> None:
    """The first handler closes all others and opens new sockets: neither the old handlers nor the new are called."""
    olds = [pair() for _ in range(batch)]
    called: list[int] = []

    def close_others(number: int, _mask: int) -> None:
        called.append(number)
        for other, (ours, theirs) in enumerate(olds):
            if other != number:
                reactor.close_later(ours)
                theirs.close()
        for _ in range(batch):
            ours, _ = pair()
            # With an old socket's number it would get the old one's event, though there is nothing to read.
            reactor.watch(ours.fileno(), lambda _mask: pytest.fail("another's event"), READABLE)
        reactor.forget(olds[number][0].fileno())
        reactor.at(time.perf_counter_ns() + 5 * MILLISECOND_NS, reactor.stop)

    for number, (ours, theirs) in enumerate(olds):
        reactor.watch(ours.fileno(), partial(close_others, number), READABLE)
        theirs.send(b"go")
    reactor.run()
    assert len(called) == 1
    assert [ours.fileno() for number, (ours, _) in enumerate(olds) if number != called[0]] == [-1] * (batch - 1)


def test_a_socket_that_is_to_be_closed_later_is_closed_after_the_batch(reactor: Reactor, pair: Pairs) -> None:
    """A socket with unread bytes has no more events; one from the last timer is closed with the reactor."""
    ours, theirs = pair()

    def readable(_mask: int) -> None:
        reactor.close_later(ours)
        assert ours.fileno() != -1
        reactor.at(time.perf_counter_ns() + MILLISECOND_NS, reactor.stop)

    reactor.watch(ours.fileno(), readable, READABLE)
    theirs.send(b"go")
    reactor.run()
    assert ours.fileno() == -1
    other, _ = pair()
    with running() as ending:
        ending.at(0, partial(ending.close_later, other))
        ending.at(0, ending.stop)
        ending.run()
    assert other.fileno() == -1
