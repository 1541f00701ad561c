"""The queue to an in-process worker, both ends: the engine's slots, and the worker's queue in a process of its own."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Client
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.load.engine import worker_queue as worker_module
from pytest_gpuserve.load.engine.reactor import READABLE, Reactor
from pytest_gpuserve.load.engine.transport import IDLE, text_of
from pytest_gpuserve.load.engine.worker_queue import QueueSlot, WorkerQueue
from pytest_gpuserve.load.wire import Endpoint
from pytest_gpuserve.process import queue_server as queue_module
from pytest_gpuserve.process.queue_server import QueuedRequest, QueueServer
from tests.fakes.pieces import cut
from tests.load.loading import run_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

    from pytest_gpuserve.load.engine.transport import Sample, Slot

GUARD_SECONDS = 30.0
KINDS = {"protocol", "incomplete answer", "connection closed", "connection reset"}


class Rig:
    """An engine with nothing but its transport; its own issuer, which notes what it is told."""

    def __init__(self, path: str) -> None:
        self.reactor = Reactor()
        self.worker = WorkerQueue(Endpoint("worker", path), self.reactor, self, 10**9)
        self.open: list[Slot] = []
        self.told: list[tuple[str, int, object]] = []
        self.after: Callable[[Slot], None] = lambda slot: None
        self.on_lost: Callable[[Slot], object] = lambda slot: None
        self.times: list[int] = []

    def ready(self, slot: Slot) -> None:
        """Note an open slot."""
        self.open.append(slot)

    def answered(self, slot: Slot, now_ns: int, body: bytes, keep: bool) -> None:  # noqa: FBT001 -- as the issuer has it
        """Note a good answer."""
        assert keep
        assert slot.sent_ns <= now_ns <= time.perf_counter_ns()
        self.times.append(now_ns)
        self.told.append(("answered", slot.place, body))
        self.after(slot)

    def refused(self, slot: Slot, now_ns: int, kind: str, sample: Sample, *, keep: bool) -> None:
        """Note an error."""
        assert keep
        assert slot.sent_ns <= now_ns <= time.perf_counter_ns()
        assert callable(sample) == (kind == "worker error"), "an answer is made text only where somebody asks"
        self.told.append((kind, slot.place, text_of(sample)))
        self.after(slot)

    def lost(self, slot: Slot, kind: str, sample: str) -> None:
        """Note a loss."""
        self.told.append((f"lost: {kind}", slot.place, sample))
        self.on_lost(slot)

    def token(self, slot: Slot, now_ns: int, before_ns: int) -> None:
        """A queue has no streams."""
        raise AssertionError

    def until_told(self, count: int) -> None:
        """Run it until so much was told."""
        run_until(self.reactor, lambda: len(self.told) >= count)

    def turn(self) -> None:
        """Let all happen that can happen now."""
        beats = iter([False, False, True])
        run_until(self.reactor, lambda: next(beats))

    def slots(self, count: int) -> list[Slot]:
        """Open so many slots and wait until they are."""
        before = len(self.open)
        slots = [self.worker.open(place) for place in range(count)]
        run_until(self.reactor, lambda: len(self.open) == before + count)
        return slots

    def kinds(self) -> list[tuple[str, int]]:
        """What was told of which slot, without the words."""
        return [(kind, place) for kind, place, _ in self.told]


@pytest.fixture
def path() -> Iterator[str]:
    """A short path in a folder of its own; pytest's are too long for a socket."""
    with tempfile.TemporaryDirectory(prefix="gpuserve-") as folder:
        yield str(Path(folder, "queue"))


@contextlib.contextmanager
def engine(path: str) -> Iterator[Rig]:
    """An engine that is closed at the end."""
    rig = Rig(path)
    try:
        yield rig
    finally:
        rig.worker.close()
        rig.reactor.close()


@contextlib.contextmanager
def scripted(count: int, busy: int = 0) -> Iterator[tuple[Rig, list[Slot], socket.socket]]:
    """An engine with open slots, of which the first so many have sent a request, and the bare other end."""
    # An abstract name: there is nothing to remove.
    path = f"\0gpuserve-test-{os.getpid()}-{time.perf_counter_ns()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        with engine(path) as rig:
            slots = rig.slots(count)
            peer, _ = listener.accept()
            with peer:
                peer.settimeout(GUARD_SECONDS)
                for slot in slots[:busy]:
                    slot.send(b"request")
                yield rig, slots, peer


def answer(number: int, body: bytes, status: int = 0) -> bytes:
    """An answer as it goes over the wire."""
    return struct.pack(">i", 9 + len(body)) + struct.pack("<QB", number, status) + body


def request(number: int, body: bytes) -> bytes:
    """A request's message, without its length."""
    return struct.pack("<Q", number) + body


def receive(peer: socket.socket) -> tuple[int, bytes]:
    """Take one request from the bare connection: its number and body."""
    data, wanted = bytearray(), 4
    while len(data) < wanted:
        piece = peer.recv(wanted - len(data))
        assert piece
        data += piece
        if len(data) == 4:
            wanted += struct.unpack(">i", data)[0]
    return struct.unpack("<Q", data[4:12])[0], bytes(data[12:])


# -- the engine's end, against bytes


@settings(max_examples=60, deadline=None)
@given(
    order=st.permutations(range(6)),
    bodies=st.lists(st.binary(max_size=30), min_size=6, max_size=6),
    errors=st.sets(st.integers(0, 5)),
    late=st.sets(st.integers(0, 5)),
    cuts=st.lists(st.integers(0, 1000), max_size=4),
)
def test_each_slot_gets_its_own_answer(
    order: list[int], bodies: list[bytes], errors: set[int], late: set[int], cuts: list[int]
) -> None:
    """In any order and any pieces, answers and errors go to who asked, and late ones to nobody, without harm."""
    with scripted(6, busy=6) as (rig, slots, peer):
        for place in late:
            slots[place].expire(1.5)
        assert rig.told == [("timeout", place, "no answer within 1.5 s") for place in late]
        rig.told.clear()
        stream = b"".join(answer(1 + place, bodies[place], place in errors) for place in order)
        for piece in cut(stream, cuts):
            peer.sendall(piece)
            rig.turn()
        assert rig.told == [
            ("worker error", place, bodies[place].decode(errors="replace"))
            if place in errors
            else ("answered", place, bodies[place])
            for place in order
            if place not in late
        ]
        assert len(set(rig.times)) <= len(cut(stream, cuts))
        slots[0].send(b"again")
        assert [receive(peer) for _ in range(7)][-1] == (7, b"again")


@settings(max_examples=100, deadline=None)
@given(
    order=st.lists(st.integers(1, 4), max_size=6),
    damage=st.lists(st.tuples(st.integers(0, 1000), st.binary(max_size=4)), max_size=3),
    cuts=st.lists(st.integers(0, 1000), max_size=3),
    reset=st.booleans(),
)
def test_damage_never_raises_and_ends_every_request_once(
    order: list[int],
    damage: list[tuple[int, bytes]],
    cuts: list[int],
    reset: bool,  # noqa: FBT001 -- hypothesis
) -> None:
    """Answers that are repeated, unknown, cut or overwritten: each request ends once, as an answer or a known kind."""
    stream = b"".join(answer(number, b"body") for number in order)
    for place, inserted in damage:
        position = place % (len(stream) + 1)
        stream = stream[:position] + inserted + stream[position + 1 :]
    with scripted(3, busy=3) as (rig, _, peer):
        for piece in cut(stream, cuts):
            with contextlib.suppress(OSError):
                peer.sendall(piece)
            rig.turn()
        if not reset:
            for _ in range(3):
                receive(peer)
        # With something unread in it, closing resets the connection.
        peer.close()
        run_until(rig.reactor, lambda: sum(kind.startswith("lost") for kind, _ in rig.kinds()) == 3)
        for place in range(3):
            own = [kind.removeprefix("lost: ") for kind, whose in rig.kinds() if whose == place]
            assert own[-1] in KINDS | {""}
            ends = [kind for kind in own if kind]
            # A request ends once; a fault when nothing is under way is told once for all.
            assert len(ends) == 1 or (ends[1:] == ["protocol"] and ends[0] in {"answered", "worker error"})
        protocol = [place for kind, place in rig.kinds() if kind == "lost: protocol"]
        assert len(protocol) == len(set(protocol))


@pytest.mark.parametrize(
    ("stream", "sample"),
    [
        (answer(9, b"body"), "an answer to request 9, which waits for none"),
        (answer(1, b"body") * 2, "an answer to request 1, which waits for none"),
        (answer(2, b"body", status=2), "an answer with status byte 2, where 0 is good and 1 an error"),
        (struct.pack(">i", 8), "a message of 8 bytes; an answer has 9 to 268435465"),
        (struct.pack(">i", (1 << 28) + 10), "a message of 268435466 bytes; an answer has 9 to 268435465"),
        (struct.pack(">iQ", -1, 1 << 40), "a message of -1 bytes; an answer has 9 to 268435465"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "a message of 1213486160 bytes; an answer has 9 to 268435465"),
    ],
)
def test_a_broken_protocol_loses_every_busy_slot(stream: bytes, sample: str) -> None:
    """Requests are lost as `protocol`, idle slots without a fault; where nothing is under way one of them is told."""
    with scripted(4, busy=3) as (rig, _, peer):
        peer.sendall(stream)
        run_until(rig.reactor, lambda: ("lost: ", 3) in rig.kinds())
        busy = [place for place in range(3) if ("answered", place) not in rig.kinds()]
        assert [told for told in rig.told if told[0] != "answered"] == [
            ("lost: protocol", place, sample) if place in busy else ("lost: ", place, "") for place in range(4)
        ]
    with scripted(2) as (rig, _, peer):
        peer.sendall(answer(1, b"body"))
        rig.until_told(2)
        assert rig.kinds() == [("lost: protocol", 0), ("lost: ", 1)]


@pytest.mark.parametrize(
    ("stream", "read", "kind"),
    [
        (b"", True, "connection closed"),
        (b"", False, "connection reset"),
        (answer(1, b"body")[:3], True, "incomplete answer"),
        (answer(1, b"body")[:-1], False, "incomplete answer"),
    ],
)
def test_what_the_end_of_the_worker_means(stream: bytes, read: bool, kind: str) -> None:  # noqa: FBT001 -- parametrised
    """Requests under way are lost, by how the connection ended; slots without one have lost nothing."""
    with scripted(3) as (rig, slots, peer):
        for slot in slots[:2]:
            slot.send(b"request")
            if read:
                receive(peer)
        peer.sendall(stream)
        peer.close()
        rig.until_told(3)
        assert rig.kinds() == [(f"lost: {kind}", 0), (f"lost: {kind}", 1), ("lost: ", 2)]


def test_answers_before_the_end_are_good() -> None:
    """What came whole, if in pieces, counts, even if read after a failed send; the end is then one before an answer."""
    with scripted(2, busy=1) as (rig, slots, peer):
        receive(peer)
        peer.sendall(answer(1, b"body")[:7])
        rig.turn()
        peer.sendall(answer(1, b"body")[7:])
        peer.close()
        slots[1].send(b"to nobody")
        rig.until_told(3)
        assert rig.kinds() == [("answered", 0), ("lost: ", 0), ("lost: connection closed", 1)]


def test_a_full_socket_keeps_requests_whole_and_in_order() -> None:
    """Requests beyond what the socket holds wait, follow in order, and are not sent at all if they expire before."""
    with scripted(5) as (rig, slots, peer):
        big = [bytes([place]) * 400_000 for place in range(5)]
        for slot, payload in zip(slots, big, strict=True):
            slot.send(payload)
        # That is the issuer's to say.
        assert {slot.sent_ns for slot in slots} == {IDLE}
        slots[0].expire(1)
        slots[3].expire(1)
        received: list[tuple[int, bytes]] = []
        reader = threading.Thread(target=lambda: received.extend(receive(peer) for _ in range(4)))
        reader.start()
        run_until(rig.reactor, lambda: not reader.is_alive())
        reader.join()
        assert received == [(1 + place, big[place]) for place in (0, 1, 2, 4)]
        peer.sendall(answer(1, b"late") + b"".join(answer(1 + place, b"good") for place in (4, 2, 1)))
        rig.until_told(5)
        assert rig.told[2:] == [("answered", place, b"good") for place in (4, 2, 1)]


def test_a_worker_that_owes_too_many_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of late answers are remembered up to a bound; at it every request is lost as `timeout`."""
    monkeypatch.setattr(worker_module, "MAX_LATE", 3)
    with scripted(2) as (rig, slots, peer):
        slots[1].send(b"request")
        for _ in range(3):
            slots[0].send(b"request")
            slots[0].expire(1)
        slots[0].send(b"request")
        slots[0].expire(1)
        assert rig.kinds() == [("timeout", 0)] * 3 + [("lost: timeout", 0), ("lost: timeout", 1)]
        assert rig.told[-1][2] == "the worker owes 3 answers to requests that timed out"
        rig.turn()
        for _ in range(5):
            receive(peer)
        assert peer.recv(1) == b""


def test_a_slot_can_leave_with_a_request_under_way() -> None:
    """A closed slot hears nothing more, its answer harms nobody, and the last one closes the connection."""
    with scripted(2, busy=2) as (rig, slots, peer):
        receive(peer)
        receive(peer)
        slots[0].close()
        slots[0].close()
        peer.sendall(answer(1, b"late") + answer(2, b"good"))
        rig.until_told(1)
        slots[1].close()
        rig.turn()
        assert peer.recv(1) == b""
        assert rig.told == [("answered", 1, b"good")]


def test_an_issuer_may_close_and_open_within_what_it_is_told() -> None:
    """Of what is closed nothing more is told; slots that are opened at a loss share a new connection."""
    with scripted(2, busy=2) as (rig, _, peer):
        rig.after = lambda slot: rig.worker.close()
        peer.sendall(answer(1, b"good") + answer(2, b"good"))
        rig.turn()
        assert rig.kinds() == [("answered", 0)]
    with scripted(3, busy=3) as (rig, slots, peer):
        rig.on_lost = lambda slot: slots[1].close()
        for _ in slots:
            receive(peer)
        peer.close()
        rig.until_told(2)
        assert rig.kinds() == [("lost: connection closed", 0), ("lost: connection closed", 2)]
    with scripted(3) as (rig, _, peer):
        rig.on_lost = lambda slot: rig.worker.close()
        peer.close()
        rig.until_told(1)
        assert rig.kinds() == [("lost: ", 0)]
    with scripted(2) as (rig, _, peer):
        rig.on_lost = lambda slot: rig.worker.open(slot.place)
        rig.open.clear()
        peer.close()
        run_until(rig.reactor, lambda: len(rig.open) == 2)
        assert {slot.connection for slot in rig.open if isinstance(slot, QueueSlot)} == {rig.worker._connection}


def test_a_slot_on_an_open_connection_is_ready_later() -> None:
    """The issuer hears of it only after it has it; if the connection ends before, the slot was no idle one."""
    with scripted(1) as (rig, _, peer):
        slot = rig.worker.open(1)
        assert slot not in rig.open
        gone = rig.worker.open(2)
        gone.close()
        run_until(rig.reactor, lambda: slot in rig.open)
        slot.send(b"request")
        assert receive(peer) == (1, b"request")
        assert gone not in rig.open
    with scripted(1) as (rig, _, peer):
        peer.close()
        rig.worker.open(1)
        connection = rig.worker._connection
        assert connection is not None
        # As the reactor does if it sees the end before the slot's turn to be ready.
        connection._happened(READABLE)
        rig.turn()
        assert rig.kinds() == [("lost: ", 0), ("lost: connection closed", 1)]
        assert len(rig.open) == 1


# -- no worker


def test_a_missing_socket_and_a_dead_one_are_told_of_every_slot(path: str) -> None:
    """Without a worker every slot is lost as `connect`; if its socket is still there, as `connection refused`."""
    with engine(path) as rig:
        rig.worker.open(0)
        rig.worker.open(1)
        assert rig.told == []
        rig.until_told(2)
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(path)
        rig.worker.open(2)
        rig.until_told(3)
        assert rig.kinds() == [("lost: connect", 0), ("lost: connect", 1), ("lost: connection refused", 2)]


# -- the worker's end


@pytest.fixture
def requests() -> Iterator[QueueServer]:
    """A queue of this process."""
    with QueueServer() as requests:
        yield requests


@contextlib.contextmanager
def client(requests: QueueServer) -> Iterator[Connection[Any, Any]]:
    """A connection of the standard library's own."""
    with Client(requests.path, "AF_UNIX") as connection:
        yield connection


def next_of(requests: QueueServer) -> QueuedRequest:
    """The next request, which must come."""
    item = requests.get(GUARD_SECONDS)
    assert item is not None
    return item


def test_a_queue_speaks_multiprocessing_messages(requests: QueueServer) -> None:
    """A request is its number and body, an answer the number, a status and a body; several engines are kept apart."""
    with client(requests) as first, client(requests) as second:
        first.send_bytes(request(7, b"a"))
        item_a = next_of(requests)
        second.send_bytes(request(7, b"b"))
        item_b = next_of(requests)
        assert (item_a.body, item_b.body) == (b"a", b"b")
        requests.fail(item_b, "größer")
        requests.answer(item_a, b"body")
        assert first.recv_bytes() == struct.pack("<QB", 7, 0) + b"body"
        assert second.recv_bytes() == struct.pack("<QB", 7, 1) + "größer".encode()


def test_a_batch_is_what_came_in_time(requests: QueueServer) -> None:
    """What is there, in order, up to its size; the first waits for later ones; if none comes at all it is empty."""
    assert requests.get(0.01) is None
    assert requests.get_batch(4, 0.01, timeout_seconds=0.01) == []
    with client(requests) as connection:

        def send(numbers: range, pause_seconds: float = 0.0) -> None:
            for number in numbers:
                connection.send_bytes(request(number, bytes([number])))
                time.sleep(pause_seconds)

        send(range(5))
        while requests._queue.qsize() < 5:
            time.sleep(0.001)
        assert [item.body for item in requests.get_batch(3, 0.0)] == [b"\0", b"\1", b"\2"]
        assert [item.body for item in requests.get_batch(9, 0.01)] == [b"\3", b"\4"]
        sender = threading.Thread(target=send, args=(range(2), 0.05))
        sender.start()
        assert len(requests.get_batch(2, GUARD_SECONDS)) == 2
        sender.join()


def test_a_queue_that_is_full_reads_no_further() -> None:
    """Beyond its bound requests wait in the engine, and come when there is room."""
    with QueueServer(max_waiting=2) as requests, client(requests) as connection:

        def send() -> None:
            for number in range(20):
                connection.send_bytes(request(number, bytes(100_000)))

        sender = threading.Thread(target=send)
        sender.start()
        sender.join(0.3)
        assert (sender.is_alive(), requests._queue.qsize()) == (True, 2)
        assert [next_of(requests).number for _ in range(20)] == [struct.pack("<Q", number) for number in range(20)]
        sender.join(GUARD_SECONDS)
        assert not sender.is_alive()


def test_who_sends_garbage_is_sent_away(requests: QueueServer) -> None:
    """A message that is no request, or too long, ends its own connection only; so does the end of an engine."""
    with client(requests) as good:
        for garbage in (b"\0\0\0\3abc", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff" + b"\xff" * 8, b"\x80\0\0\0", b"\0"):
            with socket.socket(socket.AF_UNIX) as bad:
                bad.settimeout(GUARD_SECONDS)
                bad.connect(requests.path)
                bad.sendall(garbage)
                bad.shutdown(socket.SHUT_WR)
                with contextlib.suppress(ConnectionResetError):
                    assert bad.recv(1) == b""
        good.send_bytes(request(1, b"body"))
        assert next_of(requests).body == b"body"


def test_answers_that_cannot_be_sent(monkeypatch: pytest.MonkeyPatch, requests: QueueServer) -> None:
    """What an engine would take for garbage is the worker's error; that an engine has gone is none."""
    monkeypatch.setattr("pytest_gpuserve.process.queue_server.MAX_BODY_BYTES", 10)
    with client(requests) as connection:
        connection.send_bytes(request(1, b""))
        item = next_of(requests)
        with pytest.raises(ValueError, match="10 bytes at most, not 11"):
            requests.answer(item, bytes(11))
    item.sender.thread.join(GUARD_SECONDS)
    requests.answer(item, b"body")
    requests.fail(item, "text")


def test_answers_of_several_threads_are_whole(requests: QueueServer) -> None:
    """Threads of a worker may answer at the same time, however large."""
    with client(requests) as connection:
        for number in range(8):
            connection.send_bytes(request(number, b""))
        threads = [
            threading.Thread(target=requests.answer, args=(next_of(requests), bytes([place]) * 300_000))
            for place in range(8)
        ]
        for thread in threads:
            thread.start()
        received = sorted(connection.recv_bytes() for _ in range(8))
        for thread in threads:
            thread.join()
    assert received == [struct.pack("<QB", place, 0) + bytes([place]) * 300_000 for place in range(8)]


def test_closing_leaves_nothing() -> None:
    """No thread, socket or folder, though its file was removed; who waits for a request or for a reader is let go."""
    before = threading.active_count()
    requests = QueueServer()
    folder = Path(requests.path).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    with client(requests) as connection, client(requests) as half:
        connection.send_bytes(request(1, b""))
        item = next_of(requests)
        os.write(half.fileno(), b"\0\0\1\0half")
        found: list[object] = []
        waiting = [threading.Thread(target=lambda: found.append(requests.get())) for _ in range(2)]
        waiting.append(threading.Thread(target=requests.answer, args=(item, bytes(5_000_000))))
        for thread in waiting:
            thread.start()
        time.sleep(0.05)
        Path(requests.path).unlink()
        requests.close()
        requests.close()
        for thread in waiting:
            thread.join(GUARD_SECONDS)
        assert found == [None, None]
        assert requests.get_batch(4, 1.0) == []
    assert threading.active_count() == before
    assert not folder.exists()


def test_a_path_that_cannot_be_is_a_usage_problem(path: str) -> None:
    """A path that is taken or too long is named, with what helps."""
    with QueueServer(path), pytest.raises(UsageProblem, match="Address already in use") as taken:
        QueueServer(path)
    assert path in str(taken.value)
    with pytest.raises(UsageProblem, match="less than 108 bytes"):
        QueueServer(path + "x" * 108)


# -- both ends


def answer_all(requests: QueueServer) -> None:
    """Answer with the body turned round, or fail as the body says, until the queue is closed."""
    while batch := requests.get_batch(max_size=4, max_wait_seconds=0.001):
        for item in reversed(batch):
            if item.body == b"fail":
                requests.fail(item, "no such input " * 100)
            else:
                requests.answer(item, item.body[::-1])


def test_a_load_through_a_worker(requests: QueueServer) -> None:
    """Hundreds of requests of all sizes, many under way: each slot gets the answers to its own, or its error."""
    sizes = [0, 1, 100, 16_384, 16_385, 65_535, 300_000]
    left = 300
    expected: dict[int, tuple[str, object]] = {}
    wrong: list[int] = []

    worker = threading.Thread(target=answer_all, args=(requests,))
    worker.start()
    with engine(requests.path) as rig:

        def send(slot: Slot) -> None:
            nonlocal left
            left -= 1
            payload = struct.pack("<QQ", left, slot.place) + bytes(sizes[left % len(sizes)])
            expected[slot.place] = ("answered", payload[::-1])
            if left % 10 == 0:
                payload = b"fail"
                expected[slot.place] = ("worker error", "no such input " * 100)
            slot.send(payload)

        def after(slot: Slot) -> None:
            kind, _, body = rig.told[-1]
            if (kind, body) != expected.pop(slot.place):
                wrong.append(slot.place)
            if left:
                send(slot)

        rig.after = after
        for slot in rig.slots(16):
            send(slot)
        rig.until_told(300)
    requests.close()
    worker.join()
    assert wrong == []


@pytest.mark.parametrize(
    ("name", "trouble"),
    [
        ("os.dup", OSError(24, "Too many open files")),
        ("threading.Thread.start", RuntimeError("can't start new thread")),
        ("pytest_gpuserve.process.queue_server.MAX_CONNECTIONS", None),
    ],
)
def test_an_engine_for_whom_nothing_is_left_is_sent_away(
    monkeypatch: pytest.MonkeyPatch, requests: QueueServer, name: str, trouble: Exception | None
) -> None:
    """Without a file or a thread for it, or beyond the bound; the queue hears the next one, when there is again."""
    with monkeypatch.context() as patched:
        patched.setattr(name, mock.Mock(side_effect=trouble) if trouble else 0)
        for _ in range(2):
            with client(requests) as connection:
                assert connection.poll(GUARD_SECONDS)
                with pytest.raises((EOFError, ConnectionResetError)):
                    connection.recv_bytes()
    assert requests._senders == set()
    with client(requests) as connection:
        connection.send_bytes(request(1, b"body"))
        requests.answer(next_of(requests), b"good")
        assert connection.recv_bytes().endswith(b"good")


@contextlib.contextmanager
def queue_of_another_process() -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A worker process with a queue in a temporary folder; gives the folder, which is gone at the end."""
    program = "from pytest_gpuserve.process.queue_server import QueueServer as Q; print(Q().path, flush=True); input()"
    argv = [sys.executable, "-c", program]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            folder = Path(process.stdout.readline().strip()).parent
            yield process, folder
        finally:
            process.kill()
            process.wait()
            queue_module.sweep()


def test_what_a_killed_worker_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    """Its folder, with the socket in it; that of a worker that lives stays, and so does what only looks like one."""
    with queue_of_another_process() as (killed, leftover), queue_of_another_process() as (_, other):
        foreign = leftover.with_name(f"{queue_module.FOLDER_PREFIX}{os.getpid()}")
        foreign.symlink_to(tmp_path)
        try:
            with QueueServer() as requests:
                own = Path(requests.path).parent
                assert leftover.exists()
                killed.kill()
                killed.wait()
                assert leftover.exists()
                with QueueServer():
                    assert not leftover.exists()
                    assert other.exists()
                    assert own.exists()
                    assert foreign.is_symlink()
                    assert tmp_path.exists()
            assert not own.exists()
        finally:
            foreign.unlink()
    assert not other.exists()
