"""HTTP/1.1: each slot is a keep-alive connection.

Connections time the transfer of large messages only, because reading the clock costs time. A request of up to
``UNTIMED_BYTES`` that the kernel takes at once, and an answer in one piece, count 0. For an answer in several pieces
the clock is read anyway.

A server may close a kept-open connection at any time (RFC 9112, 9.3.1 and 9.6). If the end is known when an answer is
read, the connection is not used again. A request that was sent meanwhile, without any byte of an answer, is sent once
more on a new connection. The request fails instead on a connection that has not carried an answer yet. It also fails if
the end comes so late that the server has read the request; for an exception see `ENDED_AFTER_FIRST`.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, Protocol

import httptools

from pytest_gpuserve.load.engine.opening import Opening, ResolvedAddress, TlsSocket, resolve
from pytest_gpuserve.load.engine.reactor import PEER_CLOSED, READABLE, WRITABLE, Reactor
from pytest_gpuserve.load.engine.transport import (
    LAG_SAMPLE,
    MAX_ANSWER_BYTES,
    FaultKind,
    MalformedResponse,
    Slot,
)
from pytest_gpuserve.process.logs import begin_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuserve.load.engine.loop import Loop
    from pytest_gpuserve.load.engine.opening import Connected
    from pytest_gpuserve.load.engine.transport import Fault
    from pytest_gpuserve.load.wire import Endpoint


class Parsed(NamedTuple):
    """A complete answer, the target of its redirect, and its fault by another protocol than HTTP."""

    status: int
    body: bytes
    reusable: bool
    content_type: bytes = b""
    location: bytes = b""
    fault: Fault | None = None


class AnswerReader(Protocol):
    """Reads the answers of one connection, split into any pieces."""

    @property
    def resting(self) -> bool:
        """Whether no byte of an answer has come."""

    @property
    def status(self) -> int:
        """Status of the current answer; 0 while unknown."""
        return 0

    def feed(self, data: bytes) -> Parsed | None:
        """Read received data; return the answer if it is complete now. Raises MalformedResponse."""

    def end(self) -> Parsed | None:
        """Handle the end of the connection; return the answer if the end completes it."""
        return None

    def release(self) -> None:
        """Drop references to itself."""
        return


class ResponseParser:
    """Reads answers of HTTP/1.1; see `AnswerReader`."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._rest()

    def _rest(self) -> None:
        self.resting = True
        self._status = 0
        self._announced = False
        self._content_type = b""
        self._location = b""
        self._reusable = False
        self._complete = False
        self._surplus = False
        self._body: list[bytes] = []
        self._body_bytes = 0

    @property
    def status(self) -> int:
        """Status of the current answer; 0 while unknown."""
        return self._status

    def feed(self, data: bytes) -> Parsed | None:
        """Parse received data; return the answer if it is complete now.

        Raises:
            MalformedResponse: The data is not an answer to one request; the text has all of the data.
        """
        self.resting = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            # Our own error, not the server's: it must end the engine instead of counting as an odd answer.
            raise
        except httptools.HttpParserUpgrade as problem:
            raise MalformedResponse("the server switched protocols") from problem
        except httptools.HttpParserError as problem:
            raise MalformedResponse(f"not an HTTP/1.1 answer ({problem}): {data!r}") from problem
        if self._body_bytes > MAX_ANSWER_BYTES:
            raise MalformedResponse(f"an answer of more than {MAX_ANSWER_BYTES >> 20} MB")
        return self._finish() if self._complete else None

    def end(self) -> Parsed | None:
        """Handle the end of the connection; return the answer if the end completes it."""
        # An answer without a length and without chunks ends with the connection (RFC 9112, 6.3).
        if self._status and not self._announced:
            body = b"".join(self._body)
            if self._status < 300 and _media_type(self._content_type) == b"application/json" and not _is_json(body):
                return None
            self._reusable = False
            return self._finish()
        return None

    def release(self) -> None:
        """Drop the parser, which holds our methods: without a garbage collector such a cycle stays for ever."""
        del self._parser

    def _finish(self) -> Parsed:
        if self._surplus:
            raise MalformedResponse("more than one answer to one request")
        parsed = Parsed(self._status, b"".join(self._body), self._reusable, self._content_type, self._location)
        self._rest()
        return parsed

    # -- httptools' callbacks

    def on_message_begin(self) -> None:
        """Begin an answer, or note a surplus one."""
        if self._complete:
            self._surplus = True
            return
        self._body = []
        self._body_bytes = 0
        self._announced = False
        self._content_type = b""

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note the answer's length, type and redirect."""
        lowered = name.lower()
        if lowered == b"content-type":
            self._content_type = value
        elif lowered == b"content-length" or (lowered == b"transfer-encoding" and value.lower().endswith(b"chunked")):
            self._announced = True
        elif lowered == b"location":
            self._location = value

    def on_headers_complete(self) -> None:
        """Note the status."""
        self._status = self._parser.get_status_code()
        # Read now because the parser forgets the headers when the message is complete.
        self._reusable = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        """Keep a piece of the body."""
        self._body.append(body)
        self._body_bytes += len(body)

    def on_message_complete(self) -> None:
        """Note the end of the answer; interim answers (1xx) are not the answer."""
        if self._status < 200:
            self._status = 0
        else:
            self._complete = True


def _media_type(content_type: bytes) -> bytes:
    return content_type.partition(b";")[0].strip().lower()


def _is_json(body: bytes) -> bool:
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return False
    return True


NO_BODY: Final = b"no body"
"""Replaces the content type of an empty answer."""

RECEIVE_BYTES: Final = 1 << 16

UNTIMED_BYTES: Final = 1 << 14
"""Largest request that is not timed if the kernel takes it at once, because copying takes microseconds."""

KNOWN_ANSWERS: Final = 4096
KNOWN_ANSWER_BYTES: Final = 1 << 12
"""Largest number and length of answers that are recognised byte for byte instead of being parsed again."""


class KnownAnswers(dict[bytes, bytes]):
    """The bodies of good answers by their bytes on the wire."""

    __slots__ = ()

    def find(self, data: bytes) -> bytes | None:
        """Return the body of an answer; None if unknown."""
        # A hash of 64 kB takes as long as several small requests, and long answers are not remembered.
        return self.get(data) if len(data) <= KNOWN_ANSWER_BYTES else None

    def add(self, data: bytes, body: bytes) -> None:
        """Remember an answer, unless it is too long."""
        if len(data) <= KNOWN_ANSWER_BYTES:
            if len(self) >= KNOWN_ANSWERS:
                self.clear()
            self[data] = body


STALE_NS: Final = 20_000_000
STALE_CONNECTS: Final = 3
"""Time in which a connection that the server had closed before a request shows its end: three times its own opening
time, or 20 ms. If the end comes later, the server has read the request, and failed."""

ENDED_AFTER_FIRST: Final = 3
"""Number of kept-open connections that a server may end right after their first answer. After that it gets one request
on each connection. Until then, a request right behind the first answer is sent again, however late the end comes. On a
busy host no time limit separates this from a failure."""


class HttpConnection(Slot):
    """A connection."""

    __slots__ = (
        "_answered",
        "_awaits",
        "_busy",
        "_closing",
        "_connect_ns",
        "_first_ns",
        "_handler",
        "_is_kept",
        "_known",
        "_opening",
        "_parser",
        "_recv",
        "_repeat",
        "_rest",
        "_send",
        "_socket",
        "_transport",
        "_used_ns",
        "_used_once",
    )

    def __init__(self, place: int, transport: Http1) -> None:
        super().__init__(place)
        self._transport = transport
        self._socket: Connected | None = None
        self._busy = False
        self._closing = self._used_once = False
        self._used_ns = 0
        # The server kept it after an answer, and has not closed it since. Before and after, answers are parsed.
        self._is_kept = False
        # On such a connection: the request is sent completely, and no byte of its answer has come.
        self._awaits = False
        self._rest: memoryview | None = None
        self._first_ns = 0
        self._connect_ns = 0
        self._known = transport.known
        self._answered = transport.loop.answered
        self._repeat = transport.loop.repeat
        self._parser: AnswerReader = self._new_parser()
        self._opening: Opening | None = self._begin_opening(self._opened, self._not_opened)

    def _begin_opening(self, on_open: Callable[[Connected], None], on_failure: Callable[[str, str], None]) -> Opening:
        transport = self._transport
        self._connect_ns = -time.perf_counter_ns()
        return Opening(transport.address, transport.reactor, transport.connect_timeout_ns, on_open, on_failure)

    def _new_parser(self) -> AnswerReader:
        return ResponseParser()

    def _opened(self, connected: Connected) -> None:
        self._use(connected)
        self._transport.loop.ready(self)

    def _use(self, connected: Connected) -> None:
        self._opening = None
        self._connect_ns += time.perf_counter_ns()
        self._socket = connected
        self._send = connected.send
        self._recv = connected.recv
        self._handler = self._readable_tls if isinstance(connected, TlsSocket) else self._readable
        self._transport.reactor.watch(connected.fileno(), self._handler, READABLE | PEER_CLOSED)

    def _not_opened(self, kind: str, sample: str) -> None:
        self._opening = None
        self._parser.release()
        self._transport.loop.lost(self, kind, sample)

    # -- for the loop

    def send(self, payload: bytes) -> None:
        """Send a request."""
        self._busy = True
        self._awaits = self._is_kept
        send = self._send
        try:
            count = send(payload)
        except OSError as problem:
            self._sent_in_part(payload, problem)
            return
        if count != len(payload):
            self._sent_in_part(payload, count)
        elif count > UNTIMED_BYTES:
            self._sent()

    def _sent_in_part(self, payload: bytes, count: int | OSError) -> None:
        self._awaits = False
        if isinstance(count, BlockingIOError):
            count = 0
        # Any other problem has broken the connection; its next event tells how.
        if isinstance(count, int):
            assert self._socket is not None
            self._rest = memoryview(payload)[count:]
            self._transport.reactor.change(self._socket.fileno(), self._handler, READABLE | WRITABLE | PEER_CLOSED)

    def _sent(self) -> None:
        """Note that the kernel has all of a timed request."""
        self._transport.loop.counters.sending_ns += time.perf_counter_ns() - self.sent_ns

    def expire(self, seconds: float) -> None:
        """Give up the request, and its connection, which may still answer it."""
        self._lose(FaultKind.TIMEOUT, f"no answer within {seconds:g} s")

    def close(self) -> None:
        """Close without a report to the loop."""
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
            self._parser.release()
        elif self._socket is not None:
            self._transport.reactor.close_later(self._socket)
            self._socket = None
            # The parser holds us: without a garbage collector such a cycle stays for ever.
            del self._handler
            self._parser.release()

    # -- events

    def _readable(self, mask: int) -> None:
        if mask != READABLE and not self._flushed(mask):
            return
        # Bound here, because an attribute costs more to look up than a local name.
        recv = self._recv
        try:
            data = recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError as problem:
            self._ended(time.perf_counter_ns(), problem)
            return
        now_ns = time.perf_counter_ns()
        if self._awaits:
            repeat = self._repeat
            number = repeat.number
            if number < repeat.end and (data == repeat.answer or repeat.recall(data, self._known.find(data))):
                # As ``Repeat.again``, without the calls.
                note = repeat.note_latency
                note(now_ns - self.sent_ns)
                count = repeat.count
                count[0] = times = count[0] + 1
                self.number = number
                repeat.number = number + repeat.step
                send = self._send
                self.sent_ns = sent_ns = time.perf_counter_ns()
                try:
                    sent = send(repeat.payload)
                except OSError as problem:
                    self._sent_in_part(repeat.payload, problem)
                    return
                if sent != repeat.size:
                    self._sent_in_part(repeat.payload, sent)
                if not times & LAG_SAMPLE:
                    repeat.note_lag(sent_ns - now_ns)
                return
            body = self._known.find(data)
            if body is not None:
                self._busy = self._awaits = self._used_once = False
                answered = self._answered
                answered(self, now_ns, body, True)  # noqa: FBT003 -- see ``Loop.answered``
                return
        self._take(data, now_ns)

    def _readable_tls(self, mask: int) -> None:
        self._readable(mask)
        # Data that TLS has read ahead causes no more events of the socket.
        while isinstance(self._socket, TlsSocket) and self._socket.pending():
            self._readable(READABLE)

    def _take(self, data: bytes, now_ns: int) -> None:
        if not data:
            self._ended(now_ns, None)
            return
        if not self._busy:
            self._lose(FaultKind.PROTOCOL, f"an answer to no request: {data!r}")
            return
        self._awaits = False
        resting = self._parser.resting
        if resting:
            self._first_ns = now_ns
        try:
            parsed = self._feed(data, now_ns)
        except MalformedResponse as problem:
            self._lose(FaultKind.PROTOCOL, str(problem))
            return
        if parsed is not None:
            self._finish(now_ns, parsed, data if resting and self._rest is None else None)

    def _feed(self, data: bytes, now_ns: int) -> Parsed | None:
        del now_ns
        return self._parser.feed(data)

    def _finish(self, now_ns: int, parsed: Parsed, data: bytes | None = None) -> None:
        self._busy = False
        self._transport.loop.counters.receiving_ns += now_ns - self._first_ns
        # A server that answers before it has read all of the request will take the rest for another one.
        is_for_one = self._transport.ended_after_first >= ENDED_AFTER_FIRST
        keep = parsed.reusable and self._rest is None and not self._closing and not is_for_one
        if keep:
            self._used_once = not self._used_ns
            self._used_ns = self._used_ns or now_ns
            # From the second answer on, because the first answer's bytes are kept only until then.
            self._is_kept = not self._used_once
        else:
            self.close()
        fault = self._fault(parsed)
        if fault is None:
            if data is not None:
                self._transport.remember(data, parsed)
            self._answer(now_ns, parsed.body, keep=keep)
        else:
            # The timeout is counted, but the connection is as good as before.
            self._transport.loop.refused(self, now_ns, *fault, keep=keep)

    def _fault(self, parsed: Parsed) -> Fault | None:
        """Failure of a complete answer, if it is one."""
        if not 200 <= parsed.status < 300:
            moved = f"it redirects to {parsed.location.decode('latin-1')}; " if parsed.location else ""
            return f"status {parsed.status}", lambda: moved + repr(begin_of(parsed.body))
        return self._transport.other_type(self.index, parsed)

    def _answer(self, now_ns: int, body: bytes, *, keep: bool) -> None:
        self._answered(self, now_ns, body, keep)

    def _ended(self, now_ns: int, problem: OSError | None) -> None:
        """Report the consequence of the connection's end for the current request."""
        if not self._busy:
            self._lose("", "")
            return
        parser = self._parser
        if problem is None:
            try:
                parsed = parser.end()
            except MalformedResponse as malformed:
                self._lose(FaultKind.PROTOCOL, str(malformed))
                return
            if parsed is not None:
                self._finish(now_ns, parsed)
                return
        if not parser.resting:
            status = f" after status {parser.status}" if parser.status else ""
            self._lose(FaultKind.INCOMPLETE, f"connection closed in mid-answer{status}")
            return
        kind, sample = (
            FaultKind.CONNECTION_CLOSED if problem is None else FaultKind.CONNECTION_RESET,
            str(problem or "before any answer"),
        )
        is_second = self._used_once and self.sent_ns - self._used_ns <= STALE_NS
        in_time = self._used_ns > 0 and now_ns - self.sent_ns <= max(STALE_NS, STALE_CONNECTS * self._connect_ns)
        if is_second:
            self._transport.ended_after_first += 1
        if is_second or in_time:
            self._send_again(kind, sample)
        else:
            self._lose(kind, sample)

    def _send_again(self, kind: str, sample: str) -> None:
        """Send the current request on a new connection; it fails if that ends or cannot be opened."""
        self.close()
        self._closing = self._used_once = self._is_kept = self._awaits = False
        self._used_ns = 0
        self._rest = None
        self._parser = self._new_parser()
        payload = self._transport.loop.resent(self)

        def opened(connected: Connected) -> None:
            self._use(connected)
            self.send(payload)

        def not_opened(_kind: str, why: str) -> None:
            self._not_opened(kind, f"{sample}; on a new connection: {why}")

        self._opening = self._begin_opening(opened, not_opened)

    def _lose(self, kind: str, sample: str) -> None:
        self._busy = False
        self.close()
        self._transport.loop.lost(self, kind, sample)

    def _flushed(self, mask: int) -> bool:
        """Send the rest of a request; return whether there is data to receive as well."""
        if self._socket is None:
            return False
        if mask & PEER_CLOSED:
            self._closing = True
            self._is_kept = self._awaits = False
        if self._rest is not None and mask & WRITABLE:
            try:
                self._rest = self._rest[self._send(self._rest) :] or None
            except BlockingIOError:
                pass
            except OSError:
                # The connection is broken; receiving tells how.
                return True
            if self._rest is None:
                self._sent()
                self._transport.reactor.change(self._socket.fileno(), self._handler, READABLE | PEER_CLOSED)
        return mask != WRITABLE


class Http1:
    """The transport of HTTP/1.1.

    Args:
        endpoint: Address of the server.
        reactor: Waits for its slots.
        loop: Sends on its slots.
        connect_timeout_ns: Time limit of a connection attempt.
        protocols: Protocols that TLS offers.

    Attributes:
        ended_after_first: Connections that ended right after their first answer; see `ENDED_AFTER_FIRST`.

    Raises:
        OSError: The host is unknown.
    """

    connection: ClassVar[type[HttpConnection]] = HttpConnection

    def __init__(
        self,
        endpoint: Endpoint,
        reactor: Reactor,
        loop: Loop,
        connect_timeout_ns: int,
        protocols: tuple[str, ...] = (),
    ) -> None:
        self.reactor = reactor
        self.loop = loop
        self.connect_timeout_ns = connect_timeout_ns
        self.address: ResolvedAddress = resolve(endpoint, protocols)
        self.known = KnownAnswers()
        self._types: dict[int, bytes] = {}
        self._has_one_type = True
        self.ended_after_first = 0

    def open(self, place: int) -> Slot:
        """Begin to open a slot."""
        return self.connection(place, self)

    def other_type(self, index: int, parsed: Parsed) -> Fault | None:
        """Fault if the content type differs from that of the payload's first answer with a body; else None."""
        # A server that answers some requests with nothing, such as 204 under load, would be the fastest.
        found, first = parsed.content_type if parsed.body else NO_BODY, self._types.get(index)
        if found == first:
            return None
        if first is None or first is NO_BODY:
            # A server may answer with nothing until it is warm.
            self._types.pop(index, None)
            self._has_one_type = self._has_one_type and found == next(iter(self._types.values()), found)
            if first or not self._has_one_type:
                # Known bytes do not identify the payload that they answer.
                self.known.clear()
            self._types[index] = found
            return None
        if _media_type(found) == _media_type(first):
            return None
        body = parsed.body
        return FaultKind.OTHER_TYPE, lambda: f"{found!r} instead of {first!r}: {begin_of(body)!r}"

    def remember(self, data: bytes, parsed: Parsed) -> None:
        """Recognise a good answer by its bytes the next time, because equal bytes parse equally."""
        if parsed.reusable and self._has_one_type:
            self.known.add(data, parsed.body)
