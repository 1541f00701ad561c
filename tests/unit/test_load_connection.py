"""How answers are read, without sockets: whatever arrives, in whatever pieces."""

from __future__ import annotations

import asyncio
import gc
import weakref
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_gpuserve.load.connection import Connection
from pytest_gpuserve.load.tally import Tally
from tests.fakes.http_server import ANSWERS, BIG, ok

if TYPE_CHECKING:
    from pytest_gpuserve.load.wire import Tick

ONCE = {path: answer for path, answer in ANSWERS.items() if answer and path != "/big"}


class FakeTransport(asyncio.Transport):
    """Counts what is sent; a closed one tells its protocol when it is asked to, as an event loop would."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = 0
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Count a request."""
        assert not self.closed
        self.sent += 1

    def close(self) -> None:
        """Note the end."""
        self.closed = True

    abort = close


class User:
    """The owner of one connection, and the event loop in one."""

    def __init__(self, *, head: bool = False) -> None:
        self.tally = Tally(0, 0)
        self.payload = b"request"
        self.head = head
        self.lost_failed: list[bool] = []
        self.transport = FakeTransport()
        self.connection = Connection(self)
        self.connection.connection_made(self.transport)

    def lost(self, connection: Connection, *, failed: bool) -> None:
        """Note what the connection says about its end."""
        self.lost_failed.append(failed)

    def receive(self, *pieces: bytes, problem: Exception | None = None, end: bool = True) -> Tick:
        """Deliver the pieces and then the end of the connection; returns what was counted."""
        for piece in pieces:
            if self.transport.closed:
                break
            self.connection.data_received(piece)
        if end:
            self.connection.connection_lost(problem)
        return self.tally.close(1, 1, 0)


def outcome(tick: Tick) -> tuple[object, ...]:
    """Reduce a tick to what does not depend on time."""
    return tick.requests, tick.errors, {answers.body: answers.count for answers in tick.answers}


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    """Cut data at these places."""
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[begin:end] for begin, end in pairwise(places)]


CUTS = st.lists(st.integers(0, 10_000), max_size=20)


@given(pieces=st.lists(st.binary(max_size=40), max_size=8), head=st.booleans(), reset=st.booleans())
@example(pieces=[b"HTTP/1.1 200 OK\r\n\r\n"], head=True, reset=False)
def test_nothing_that_arrives_can_raise(pieces: list[bytes], head: bool, reset: bool) -> None:  # noqa: FBT001 -- hypothesis
    """Arbitrary bytes end in one failure of a known kind, told once to the owner, with nothing under way."""
    user = User(head=head)
    tick = user.receive(*filter(None, pieces), problem=ConnectionResetError() if reset else None)
    assert tick.requests + sum(tick.errors.values()) == user.transport.sent
    assert set(tick.errors) <= {"protocol", "incomplete answer", "connection closed", "connection reset"}
    assert user.lost_failed == [bool(tick.errors)]
    assert user.connection.sent_ns == -1


@given(
    order=st.lists(st.sampled_from(sorted(ONCE)), min_size=1, max_size=3),
    damage=st.lists(st.tuples(st.integers(0, 10_000), st.binary(max_size=3)), max_size=3),
    cuts=CUTS,
    head=st.booleans(),
)
def test_damaged_answers_cannot_raise_nor_be_counted_twice(
    order: list[str],
    damage: list[tuple[int, bytes]],
    cuts: list[int],
    head: bool,  # noqa: FBT001 -- hypothesis
) -> None:
    """Every request that was sent ends exactly once, however real answers are damaged, joined and cut."""
    data = b"".join(ONCE[path] for path in order)
    for place, inserted in damage:
        position = place % (len(data) + 1)
        data = data[:position] + inserted + data[position + 1 :]
    user = User(head=head)
    tick = user.receive(*split(data, cuts))
    assert tick.requests + sum(tick.errors.values()) == user.transport.sent
    assert user.connection.sent_ns == -1


@given(path=st.sampled_from(["/ok", "/chunked", "/continue", "/empty", "/unavailable", "/moved"]), cuts=CUTS)
def test_a_kept_connection_reads_answers_the_same_in_all_pieces(path: str, cuts: list[int]) -> None:
    """Where an answer is cut changes nothing: it is counted with its body and the next request is sent, twice."""
    whole, pieces = User(), User()
    expected = whole.receive(ONCE[path], ONCE[path], end=False)
    found = pieces.receive(*split(ONCE[path], cuts), *split(ONCE[path], cuts), end=False)
    assert outcome(found) == outcome(expected)
    assert expected.requests + sum(expected.errors.values()) == 2
    assert whole.transport.sent == pieces.transport.sent == 3


@given(path=st.sampled_from(["/close", "/until-close", "/cut-body", "/cut-chunk", "/half-header"]), cuts=CUTS)
def test_a_closed_connection_reads_answers_the_same_in_all_pieces(path: str, cuts: list[int]) -> None:
    """An answer that ends with its connection, or is cut off by it, is judged the same however it arrived."""
    expected = User().receive(ONCE[path])
    assert outcome(User().receive(*split(ONCE[path], cuts))) == outcome(expected)
    assert expected.requests + sum(expected.errors.values()) == 1


@pytest.mark.parametrize("ending", [b"", b"HTTP", ok()[:30], ok()])
def test_anything_after_an_answer_in_its_own_packet_is_a_fault(ending: bytes) -> None:
    """Even the beginning of a second answer is noticed; taken for the next one it would shift all that follow."""
    tick = User().receive(ok() + ending, end=False)
    assert (tick.requests, tick.errors) == ((0, {"protocol": 1}) if ending else (1, {}))


@pytest.mark.parametrize(
    ("received", "problem", "requests", "errors"),
    [
        (b"", None, 0, {"connection closed": 1}),
        (b"", ConnectionResetError("reset by peer"), 0, {"connection reset": 1}),
        (b"H", None, 0, {"incomplete answer": 1}),
        (ANSWERS["/until-close"], None, 1, {}),
        (ANSWERS["/until-close"], ConnectionResetError("reset by peer"), 0, {"incomplete answer": 1}),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nbody", None, 1, {}),
        (b"HTTP/1.1 100 Continue\r\n\r\n", None, 0, {"incomplete answer": 1}),
        # The end comes after an answer, when the next request is under way: nothing of the last one may be left.
        (ok(), None, 1, {"connection closed": 1}),
        (ANSWERS["/empty"], None, 1, {"connection closed": 1}),
        (ANSWERS["/unavailable"], None, 0, {"status 503": 1, "connection closed": 1}),
    ],
)
def test_what_the_end_of_a_connection_means(
    received: bytes, problem: Exception | None, requests: int, errors: dict[str, int]
) -> None:
    """An orderly end completes an answer without length, and nothing else; what it cuts off is a failure."""
    tick = User().receive(*filter(None, [received]), problem=problem)
    assert (tick.requests, tick.errors) == (requests, errors)


def test_a_large_answer_is_put_together_again() -> None:
    """A body of one MB in packets of 64 kB arrives whole."""
    data = ok(BIG)
    tick = User().receive(*split(data, list(range(0, len(data), 1 << 16))), end=False)
    assert (tick.requests, tick.answers[0].body) == (1, BIG)


def test_a_request_expires_once() -> None:
    """A request that has waited beyond its time is one timeout, and its connection is closed."""
    user = User()
    sent_ns = user.connection.sent_ns
    user.connection.expire(sent_ns + 100, 100)
    assert not user.transport.closed
    user.connection.expire(sent_ns + 101, 100)
    user.connection.expire(sent_ns + 102, 100)
    assert user.transport.closed
    assert user.receive(ok()).errors == {"timeout": 1}


def test_an_abandoned_request_is_not_counted() -> None:
    """At the end of the load what is under way is neither an answer nor an error."""
    user = User()
    user.connection.abandon()
    tick = user.receive(ok())
    assert (tick.requests, tick.errors) == (0, {})


def test_an_exception_of_our_own_is_not_the_servers_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails inside a callback is raised, for the engine to end with, instead of being counted."""

    def fail(*_: object) -> None:
        raise ArithmeticError

    monkeypatch.setattr(Connection, "on_body", fail)
    user = User()
    with pytest.raises(Exception, match="callback") as caught:
        user.receive(ok())
    assert isinstance(caught.value.__context__, ArithmeticError)
    assert user.tally.close(1, 1, 0).errors == {}


def test_a_lost_connection_is_freed_without_a_garbage_collector() -> None:
    """No reference cycle keeps a lost connection: the engine's collector is off."""

    class Watched(Connection):
        __slots__ = ("__weakref__",)

    user = User()
    gc.disable()
    try:
        user.connection = Watched(user)
        user.connection.connection_made(FakeTransport())
        user.connection.data_received(ok())
        watch = weakref.ref(user.connection)
        user.connection.connection_lost(None)
        del user.connection
        assert watch() is None
    finally:
        gc.enable()
