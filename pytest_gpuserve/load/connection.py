"""One keep-alive HTTP/1.1 connection of the closed loop: it sends, times, and sends again.

A request's clock runs from the moment its bytes are handed to the socket to the arrival of the answer's last byte.
Opening a connection is not part of it.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Protocol, cast

import httptools

if TYPE_CHECKING:
    from pytest_gpuserve.load.tally import Tally

IDLE = -1


class Owner(Protocol):
    """Who keeps the connections: told when one is gone, so that the user behind it can get another."""

    tally: Tally
    payload: bytes
    head: bool

    def lost(self, connection: Connection, *, failed: bool) -> None:
        """The connection is closed; ``failed`` if something went wrong on it."""


class Connection(asyncio.Protocol):
    """The protocol of one user."""

    __slots__ = (
        "_announced",
        "_begun",
        "_body",
        "_closing",
        "_complete",
        "_failed",
        "_owner",
        "_parser",
        "_reusable",
        "_status",
        "_surplus",
        "_transport",
        "sent_ns",
    )

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._failed = False
        self._closing = False
        self.sent_ns = IDLE

    def _new_parser(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._begun = False
        self._status = 0
        self._complete = False
        self._surplus = False

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first request."""
        # uvloop's transports do not inherit from asyncio's, so there is nothing to check at run time.
        self._transport = cast("asyncio.Transport", transport)
        self._new_parser()
        self._send()

    def data_received(self, data: bytes) -> None:
        """Feed the parser; the time of arrival is taken before any of our own work."""
        now_ns = time.perf_counter_ns()
        if self._closing:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            # Ours, not the server's: it must end the engine instead of counting as an odd answer.
            raise
        except httptools.HttpParserUpgrade:
            self._fail("protocol", "the server switched protocols")
        except httptools.HttpParserError as problem:
            self._fail("protocol", f"not an HTTP/1.1 answer ({problem}): {data[:80]!r}")
        else:
            if self._complete:
                self._finish(now_ns)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell what the loss means for a request under way, and then the owner."""
        now_ns = time.perf_counter_ns()
        if not self._closing:
            self._closing = True
            if exc is None and self._status and not self._announced:
                # Neither a length nor chunks were announced: the body ends where the connection does (RFC 9112, 6.3).
                self._finish(now_ns)
            elif self._begun:
                status = f" after status {self._status}" if self._status else ""
                self._count_failure("incomplete answer", f"connection closed in mid-answer{status}")
            else:
                self._count_failure("connection reset" if exc else "connection closed", str(exc or "before any answer"))
        # The parser holds our methods and the transport holds us: without a garbage collector (see the engine's main)
        # these cycles would stay for ever.
        del self._parser
        self._transport = None
        self._owner.lost(self, failed=self._failed)

    # -- httptools callbacks

    def on_message_begin(self) -> None:
        """Begin an answer, or note that it is one too many."""
        if self._complete:
            self._surplus = True
            return
        self._begun = True
        self._body: list[bytes] = []
        self._announced = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note whether the answer says where it ends."""
        lowered = name.lower()
        if lowered == b"content-length" or (lowered == b"transfer-encoding" and value.lower().endswith(b"chunked")):
            self._announced = True

    def on_headers_complete(self) -> None:
        """Note the status; the answer to HEAD ends here."""
        self._status = self._parser.get_status_code()
        # Asked now because the parser forgets the headers when the message is complete.
        self._reusable = self._parser.should_keep_alive()
        if self._owner.head and self._status >= 200:
            self._complete = True

    def on_body(self, body: bytes) -> None:
        """Keep a piece of the body."""
        if self._complete:
            self._surplus = True
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Note the end of the answer; interim answers (1xx) are not the answer."""
        if self._status < 200:
            self._status = 0
        else:
            self._complete = True

    # -- ours

    def expire(self, now_ns: int, timeout_ns: int) -> None:
        """Give a request up that has waited too long."""
        if self.sent_ns != IDLE and now_ns - self.sent_ns > timeout_ns:
            self._fail("timeout", f"no answer within {timeout_ns / 1e9:g} s")

    def abandon(self) -> None:
        """Close without counting: the load is over."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def _send(self) -> None:
        assert self._transport is not None
        self.sent_ns = time.perf_counter_ns()
        self._transport.write(self._owner.payload)

    def _finish(self, now_ns: int) -> None:
        if self._surplus:
            self._fail("protocol", "more than one answer to one request")
            return
        body = b"".join(self._body)
        if 200 <= self._status < 300:
            self._owner.tally.answered(now_ns - self.sent_ns, body)
        else:
            # An error status is counted, but the connection is as good as before.
            self._owner.tally.failed(f"status {self._status}", repr(body[:200]))
        self.sent_ns = IDLE
        if self._closing:
            return
        if not self._reusable:
            self._closing = True
            assert self._transport is not None
            self._transport.close()
            return
        if self._owner.head:
            # The old one may wait for the body that was announced.
            self._new_parser()
        else:
            self._begun = False
            self._status = 0
            self._complete = False
        self._send()

    def _fail(self, kind: str, sample: str) -> None:
        self._count_failure(kind, sample)
        self._closing = True
        assert self._transport is not None
        self._transport.abort()

    def _count_failure(self, kind: str, sample: str) -> None:
        self._failed = True
        self.sent_ns = IDLE
        self._owner.tally.failed(kind, sample)
