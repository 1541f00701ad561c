"""Opens connections without blocking: TCP, and TCP with TLS."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuserve.load.engine.reactor import READABLE, WRITABLE, Reactor
from pytest_gpuserve.load.engine.transport import FaultKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuserve.load.wire import Endpoint, Tls

PROBE_SECONDS: Final = 2.0


class TlsSocket:
    """A TLS connection that raises ``BlockingIOError`` as a plain socket does."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._socket = sock
        self.fileno = sock.fileno
        self.pending = sock.pending
        self.close = sock.close

    def recv(self, size: int) -> bytes:
        """Receive, or raise ``BlockingIOError``."""
        try:
            return self._socket.recv(size)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as problem:
            raise BlockingIOError from problem

    def send(self, data: bytes | memoryview) -> int:
        """Send, or raise ``BlockingIOError``."""
        try:
            return self._socket.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as problem:
            raise BlockingIOError from problem


Connected = socket.socket | TlsSocket


@dataclass(frozen=True)
class ResolvedAddress:
    """Address to connect to, with all resolved data."""

    family: int
    at: tuple[Any, ...]
    tls: ssl.SSLContext | None
    server_name: str


def resolve(endpoint: Endpoint, protocols: tuple[str, ...] = ()) -> ResolvedAddress:
    """Look up the endpoint's address, and prepare TLS; ``protocols`` are offered by ALPN.

    If a name has several addresses (``localhost`` has two), the first that accepts a connection is used, else the
    first.

    Raises:
        OSError: The name is unknown or impossible, or the certificates cannot be read.
    """
    context = _context(endpoint.tls, protocols) if endpoint.tls else None
    name = endpoint.tls.server_name if endpoint.tls else ""
    found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    for family, _, _, _, at in found if len(found) > 1 else ():
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.settimeout(PROBE_SECONDS)
            probe.connect(at)
            return ResolvedAddress(family, at, context, name)
    return ResolvedAddress(found[0][0], found[0][4], context, name)


def _context(tls: Tls, protocols: tuple[str, ...]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.ca_file or None)
    except OSError as problem:
        raise OSError(f"no certificates can be read from {tls.ca_file!r}: {problem}") from problem
    # Some builds of Python set it: an answer that is cut off would then pass for a complete one.
    context.options &= ~getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0)
    if protocols:
        context.set_alpn_protocols(list(protocols))
    try:
        # As for a connection: an invalid name is found now, before all of them.
        context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname=tls.server_name)
    except ValueError as problem:
        raise OSError(f"no certificate can be for {tls.server_name!r}: {problem}") from problem
    return context


class Opening:
    """A connection that is being opened; calls exactly one of two callbacks, never from within the constructor."""

    def __init__(
        self,
        address: ResolvedAddress,
        reactor: Reactor,
        timeout_ns: int,
        on_open: Callable[[Connected], None],
        on_failure: Callable[[str, str], None],
    ) -> None:
        self._reactor = reactor
        self._address = address
        self._on_open = on_open
        self._on_failure = on_failure
        self._ended = False
        self._timeout_ns = timeout_ns
        self._socket: socket.socket | None = None
        self._timers: list[int] = []
        now_ns = time.perf_counter_ns()
        try:
            self._socket = socket.socket(address.family, socket.SOCK_STREAM)
            self._socket.settimeout(0)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            code = self._socket.connect_ex(address.at)
            if code == errno.EINPROGRESS:
                # On the same host it is connected by now. Its event would come late, behind the answers of thousands of
                # other connections.
                code = self._socket.connect_ex(address.at)
        except OSError as problem:
            failure = _kind(problem.errno) if problem.errno else ("connect", str(problem))
            self._timers.append(reactor.at(now_ns, lambda: self._fail(*failure)))
            return
        self._timers.append(reactor.at(now_ns + timeout_ns, self._expire))
        if code in {0, errno.EISCONN}:
            self._timers.append(reactor.at(now_ns, lambda: self._connected(WRITABLE)))
        elif code in {errno.EINPROGRESS, errno.EALREADY}:
            reactor.watch(self._socket.fileno(), self._connected, WRITABLE)
        else:
            self._timers.append(reactor.at(now_ns, lambda: self._fail(*_kind(code))))

    def cancel(self) -> None:
        """Give up without a callback."""
        if not self._ended:
            self._end()

    def _end(self) -> None:
        self._finish()
        if self._socket is not None:
            self._reactor.close_later(self._socket)

    def _finish(self) -> None:
        self._ended = True
        # A timer would keep us and our callbacks alive until its end, which may be minutes away.
        for timer in self._timers:
            self._reactor.cancel(timer)

    def _fail(self, kind: str, sample: str) -> None:
        if not self._ended:
            self._end()
            self._on_failure(kind, sample)

    def _expire(self) -> None:
        self._fail(FaultKind.CONNECT_TIMEOUT, f"no connection within {self._timeout_ns / 1e9:g} s")

    def _connected(self, _mask: int) -> None:
        assert self._socket is not None
        code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._fail(*_kind(code))
        elif self._address.tls is None:
            self._open(self._socket)
        else:
            self._reactor.forget(self._socket.fileno())
            try:
                secured = self._address.tls.wrap_socket(
                    self._socket,
                    do_handshake_on_connect=False,
                    # An end without TLS's own is an error, because it may have cut an answer (RFC 9112, 9.8).
                    suppress_ragged_eofs=False,
                    server_hostname=self._address.server_name,
                )
            except OSError as problem:
                self._fail(FaultKind.TLS, str(problem))
                return
            self._socket = secured
            self._reactor.watch(secured.fileno(), lambda _mask: self._handshake(secured), WRITABLE)

    def _handshake(self, secured: ssl.SSLSocket) -> None:
        try:
            secured.do_handshake()
        except ssl.SSLWantReadError:
            self._reactor.change(secured.fileno(), lambda _mask: self._handshake(secured), READABLE)
        except ssl.SSLWantWriteError:
            self._reactor.change(secured.fileno(), lambda _mask: self._handshake(secured), WRITABLE)
        except OSError as problem:
            # For example a certificate that is not trusted.
            self._fail(FaultKind.TLS, str(problem))
        else:
            self._open(TlsSocket(secured))

    def _open(self, connected: Connected) -> None:
        self._finish()
        self._reactor.forget(connected.fileno())
        self._on_open(connected)


def _kind(code: int) -> tuple[str, str]:
    text = f"[Errno {code}] {os.strerror(code)}"
    if code in {errno.EMFILE, errno.ENFILE}:
        return FaultKind.CONNECT, f"{text}: the limit on open files is too low, see `ulimit -n`"
    return (FaultKind.CONNECTION_REFUSED if code == errno.ECONNREFUSED else FaultKind.CONNECT), text
