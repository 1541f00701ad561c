"""Connections are opened or not, as is told once; the reactor calls what is due, and nothing for a closed socket."""

from __future__ import annotations

import errno
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.load.engine import opening
from pytest_gpuserve.load.engine.opening import Connected, Opening, ResolvedAddress, resolve
from pytest_gpuserve.load.engine.reactor import FEW_TIMERS, READABLE, Reactor
from pytest_gpuserve.load.wire import Endpoint, Tls
from pytest_gpuserve.process.ports import free_port

SAFETY_NS = 20_000_000_000
SHORT_NS = 30_000_000
LONGER_NS = 200_000_000
"""Time limit for a connection or its refusal, even if this process has to wait for a core."""

HOST = "127.0.0.1"


class Attempt:
    """An opening in a reactor of its own, and what was said about it."""

    def __init__(self, stack: ExitStack, address: ResolvedAddress, timeout_ns: int = SAFETY_NS) -> None:
        self.said: list[tuple[str, str]] = []
        self.connected: Connected | None = None
        self.reactor = Reactor()
        self._stack = stack
        # Time enough for a second word.
        self._after_ns = 2 * (SHORT_NS if timeout_ns == SAFETY_NS else timeout_ns)
        stack.callback(self.reactor.close)
        self.opening = Opening(address, self.reactor, timeout_ns, self._open, self._fail)
        assert self.said == [], "called from within the constructor"

    def _open(self, connected: Connected) -> None:
        self._stack.callback(connected.close)
        self.connected = connected
        self._say("open", "")

    def _fail(self, kind: str, sample: str) -> None:
        self._say(kind, sample)

    def _say(self, kind: str, sample: str) -> None:
        self.said.append((kind, sample))
        self.run_for(self._after_ns)

    def run_for(self, nanoseconds: int) -> None:
        """Let the reactor run on for so long, or begin to."""
        self.reactor.at(time.perf_counter_ns() + nanoseconds, self.reactor.stop)

    def result(self) -> tuple[str, str]:
        """Run until something was said, and return it if that was all."""
        timer = self.reactor.at(time.perf_counter_ns() + SAFETY_NS, self.reactor.stop)
        self.reactor.run()
        self.reactor.cancel(timer)
        assert len(self.said) == 1, self.said
        return self.said[0]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Give what closes everything at the end."""
    with ExitStack() as held:
        yield held


def listen(stack: ExitStack, backlog: int = 10) -> tuple[socket.socket, ResolvedAddress]:
    """Listen on any port."""
    listener = stack.enter_context(socket.create_server((HOST, 0), backlog=backlog))
    return listener, ResolvedAddress(socket.AF_INET, listener.getsockname(), None, "")


def test_an_open_connection_is_handed_over_free_of_the_reactor(stack: ExitStack) -> None:
    """It is connected, sends at once and whole, does not time out later, and its new owner can watch it."""
    listener, address = listen(stack)
    attempt = Attempt(stack, address, LONGER_NS)
    assert attempt.result() == ("open", "")
    connected = attempt.connected
    assert isinstance(connected, socket.socket)
    assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert not connected.getblocking()
    accepted, _ = listener.accept()
    with accepted:
        accepted.send(b"hello")
        attempt.reactor.watch(connected.fileno(), lambda _mask: attempt.reactor.stop(), READABLE)
        attempt.reactor.run()
        assert connected.recv(10) == b"hello"
    attempt.reactor.forget(connected.fileno())


def test_the_limit_on_open_files_is_named(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that this process may not open fails with the command that shows the limit."""
    _, address = listen(stack)

    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "socket", refuse)
    kind, sample = Attempt(stack, address).result()
    assert (kind, "the limit on open files is too low, see `ulimit -n`" in sample) == ("connect", True)


def test_cancelled_timers_leave_nothing_behind(stack: ExitStack) -> None:
    """Not even thousands of time-outs that are an hour away, as connections leave them."""
    reactor = stack.enter_context(running())
    for _ in range(10_000):
        reactor.cancel(reactor.at(time.perf_counter_ns() + 3600 * 10**9, reactor.stop))
    assert len(reactor._timers) <= FEW_TIMERS + 2


@pytest.mark.parametrize(
    ("endpoint", "said"),
    [
        (Endpoint("http", "nobody.invalid", 80), "Name or service not known|Temporary failure|No address"),
        *(
            (Endpoint("http", HOST, 1, Tls(name)), f"no certificate can be for '{name}'")
            for name in ("", ".example", "a" * 64 + ".example")
        ),
        *((Endpoint("http", HOST, 1, Tls("localhost", ca_file=file)), file) for file in ("/dev/null", "/nowhere.pem")),
    ],
)
def test_what_no_request_could_reach_is_told_before_the_load(endpoint: Endpoint, said: str) -> None:
    """An unknown host, an impossible server name and a file without certificates are told once, not by each request."""
    with pytest.raises(OSError, match=said):
        resolve(endpoint)


def test_what_cannot_be_connected_is_told_later(stack: ExitStack) -> None:
    """A refusal has its own kind; an immediate failure comes from the reactor too; no time-out follows."""
    refusing = ResolvedAddress(socket.AF_INET, (HOST, free_port()), None, "")
    assert Attempt(stack, refusing, LONGER_NS).result() == ("connection refused", "[Errno 111] Connection refused")
    kind, sample = Attempt(stack, ResolvedAddress(socket.AF_INET, ("255.255.255.255", 1), None, "")).result()
    assert (kind, bool(sample)) == ("connect", True)


def fill(stack: ExitStack, address: ResolvedAddress) -> None:
    """Fill a listener's backlog, until a further connection is left waiting."""
    for _ in range(20):
        filler = stack.enter_context(socket.socket())
        filler.settimeout(0.2)
        try:
            filler.connect(address.at)
        except TimeoutError:
            return
    raise AssertionError("the backlog has no end")


def test_a_full_backlog_is_a_connect_timeout(stack: ExitStack) -> None:
    """A server that does not accept is given up after the time that was allowed, not before, with that time."""
    _, address = listen(stack, backlog=0)
    fill(stack, address)
    begin_ns = time.perf_counter_ns()
    attempt = Attempt(stack, address, SHORT_NS)
    attempt.reactor.at(begin_ns + SHORT_NS - 1_000_000, lambda: attempt.said.append(("nothing yet", "")))
    attempt.reactor.run()
    assert attempt.said == [("nothing yet", ""), ("connect timeout", "no connection within 0.03 s")]
    assert time.perf_counter_ns() - begin_ns >= SHORT_NS


def context() -> ssl.SSLContext:
    """Make a client's context without checks."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    return made


@pytest.mark.parametrize(
    ("answer", "reason"),
    [(b"HTTP/1.1 400 Bad Request\r\n\r\n", "WRONG_VERSION_NUMBER"), (b"", ""), (b"\x15\x03\x03\x00\x02\x02\x28", "")],
    ids=["plain text", "hang-up", "alert"],
)
def test_a_handshake_that_fails_is_told_once(stack: ExitStack, answer: bytes, reason: str) -> None:
    """It fails as ``tls``, in OpenSSL's words."""
    listener, address = listen(stack)
    attempt = Attempt(stack, ResolvedAddress(address.family, address.at, context(), "localhost"))

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    kind, sample = attempt.result()
    thread.join()
    assert (kind, bool(sample), reason in sample) == ("tls", True, True)


def test_a_handshake_that_is_not_answered_times_out(stack: ExitStack) -> None:
    """The time for connecting is that of the handshake too."""
    listener, address = listen(stack)
    attempt = Attempt(stack, ResolvedAddress(address.family, address.at, context(), "localhost"), SHORT_NS)
    assert attempt.result() == ("connect timeout", "no connection within 0.03 s")
    with listener.accept()[0] as accepted:
        # It is closed, not left open: after the client's greeting comes the end.
        while accepted.recv(1 << 16):
            pass


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that a name has, which a test fills in."""
    hosts: list[str] = []

    def getaddrinfo(_host: str, port: int, *_: object, **__: object) -> list[tuple[object, ...]]:
        families = [socket.AF_INET6 if ":" in host else socket.AF_INET for host in hosts]
        return [(family, socket.SOCK_STREAM, 6, "", (host, port)) for family, host in zip(families, hosts, strict=True)]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return hosts


def test_of_two_addresses_the_one_that_accepts_is_taken(stack: ExitStack, names: list[str]) -> None:
    """``localhost`` often means ::1 too, without a listener: the order of the addresses does not matter."""
    listener, _ = listen(stack)
    port = listener.getsockname()[1]
    for hosts in (("::1", HOST), (HOST, "::1"), ("127.0.0.9", HOST)):
        names[:] = hosts
        address = resolve(Endpoint("http", "localhost", port))
        assert (address.family, address.at) == (socket.AF_INET, (HOST, port))
        assert Attempt(stack, address).result() == ("open", "")
    # A server that is not there yet is refused later, by the first of its addresses.
    port = free_port()
    assert resolve(Endpoint("http", "localhost", port)).at == ("127.0.0.9", port)


def test_an_address_that_does_not_answer_does_not_keep_the_next_from_being_tried(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch, names: list[str]
) -> None:
    """If the first of two addresses drops connections, the second is used after a bounded time."""
    full = stack.enter_context(socket.create_server(("127.0.0.9", 0), backlog=0))
    port = full.getsockname()[1]
    fill(stack, ResolvedAddress(socket.AF_INET, full.getsockname(), None, ""))
    stack.enter_context(socket.create_server((HOST, port)))
    monkeypatch.setattr(opening, "PROBE_SECONDS", 0.05)
    names[:] = ["127.0.0.9", HOST]
    assert resolve(Endpoint("http", "localhost", port)).at == (HOST, port)


MILLISECOND_NS = 1_000_000


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


@pytest.mark.parametrize("batch", [2, 300])
def test_a_socket_closed_in_a_batch_gets_none_of_its_events(stack: ExitStack, batch: int) -> None:
    """The first handler closes all others and opens new sockets: neither the old handlers nor the new are called."""
    reactor = stack.enter_context(running())

    def pair() -> tuple[socket.socket, socket.socket]:
        ours, theirs = socket.socketpair()
        ours.settimeout(0)
        return stack.enter_context(ours), stack.enter_context(theirs)

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
