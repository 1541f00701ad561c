"""Server-sent events over HTTP/1.1: each token of a stream is reported when it arrives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuserve.load.engine.events import EventCounter
from pytest_gpuserve.load.engine.http1 import Http1, HttpConnection
from pytest_gpuserve.load.engine.http1_parser import Malformed, Parsed, ResponseParser
from pytest_gpuserve.load.engine.transport import IDLE

if TYPE_CHECKING:
    from pytest_gpuserve.load.engine.transport import Slot


class StreamParser(ResponseParser):
    """Reads answers and counts their tokens."""

    def __init__(self) -> None:
        super().__init__()
        self._counter = EventCounter()
        self._problem = ""
        self._tokens = 0

    def take_tokens(self) -> int:
        """Return how many tokens have arrived since the last call."""
        tokens, self._tokens = self._tokens, 0
        return tokens

    def feed(self, data: bytes) -> Parsed | None:
        """Take what arrived; return the answer if it is complete now.

        Raises:
            Malformed: It is no answer to one request, or no stream of events.
        """
        parsed = super().feed(data)
        if self._problem:
            raise Malformed(self._problem)
        return parsed

    def on_message_begin(self) -> None:
        """Begin an answer."""
        super().on_message_begin()
        self._counter = EventCounter()

    def on_body(self, body: bytes) -> None:
        """Keep a piece of the body, and count its tokens; those of an error's page are none."""
        super().on_body(body)
        if 200 <= self.status < 300:
            try:
                self._tokens += self._counter.feed(body)
            except ValueError as problem:
                # Not raised through the parser, which would take it for a mistake of ours.
                self._problem = str(problem)


class EventStreamConnection(HttpConnection):
    """One connection."""

    __slots__ = ("_before_ns", "_stream")

    def _new_parser(self) -> ResponseParser:
        self._before_ns = IDLE
        self._stream = StreamParser()
        return self._stream

    def send(self, payload: bytes) -> None:
        """Send a request."""
        self._before_ns = IDLE
        super().send(payload)

    def _feed(self, data: bytes, now_ns: int) -> Parsed | None:
        parsed = super()._feed(data, now_ns)
        for _ in range(self._stream.take_tokens()):
            self._transport.issuer.token(self, now_ns, self._before_ns)
            self._before_ns = now_ns
        return parsed

    def _fault(self, parsed: Parsed) -> str:
        # A stream that says nothing would be the fastest of all.
        return super()._fault(parsed) or ("no tokens" if self._before_ns == IDLE else "")


class Streams(Http1):
    """The transport of server-sent events; an answer is complete with its last byte, as any other."""

    def open(self, place: int) -> Slot:
        """Begin to open a slot."""
        return EventStreamConnection(place, self)

    def take_transfer(self) -> None:
        """Not known: from a stream's first byte to its last it is the server that takes its time."""

    def remember(self, data: bytes, parsed: Parsed) -> None:
        """Recognise nothing: every token has to be counted."""
