"""Server-sent events over HTTP/1.1: each token of a stream is reported when it arrives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_gpuserve.load.engine.http1 import Http1, HttpConnection, MalformedResponse, Parsed, ResponseParser
from pytest_gpuserve.load.engine.transport import IDLE

if TYPE_CHECKING:
    from pytest_gpuserve.load.engine.transport import Slot

MAX_LINE_BYTES: Final = 1 << 22
"""Many times what a token takes, even with its log-probabilities; a longer line is no stream of tokens."""

_BOM: Final = b"\xef\xbb\xbf"
_DONE: Final = b"[DONE]"
_DONE_LINE: Final = b"data: " + _DONE
_HEAD_BYTES: Final = len(_BOM + _DONE_LINE) + 1
_LF: Final = 10
_ENDS: Final = b"\r\n"

# What the data of an event is so far.
_NO_DATA: Final = 0
_EMPTY: Final = 1
_TEXT: Final = 2


class EventCounter:
    """The parser of one stream.

    A token is an event whose data is neither empty nor ``[DONE]``, of whatever type. As the standard has it, an event
    is complete with the empty line after it, and one that the end of the stream cuts off is none.
    """

    __slots__ = ("_after_cr", "_data", "_first", "_head", "_length")

    def __init__(self) -> None:
        self._data = _NO_DATA
        # Of an unfinished line its length and its first bytes: they tell all that matters here.
        self._head = b""
        self._length = 0
        self._after_cr = False
        self._first = True

    def feed(self, piece: bytes) -> int:
        """Return how many tokens this piece of the body completes.

        Raises:
            ValueError: A line is longer than ``MAX_LINE_BYTES``; the counter is of no use after that.
        """
        lines = piece.splitlines()
        # Nearly every piece is one whole event of one line. Whether its last line end was cut does not matter: at rest,
        # an empty line more or less is nothing.
        if len(lines) == 2 and not lines[1] and not (self._length or self._data):
            line = lines[0]
            if line.startswith(b"data: ") and len(b"data: ") < len(line) <= MAX_LINE_BYTES and line != _DONE_LINE:
                self._first = False
                return 1
        return self._feed(piece, lines) if piece else 0

    def _feed(self, piece: bytes, lines: list[bytes]) -> int:
        if self._after_cr and piece[0] == _LF:
            # The second half of a line end that was cut.
            del lines[0]
        last = piece[-1]
        self._after_cr = last == _ENDS[0]
        rest = b"" if last in _ENDS else lines.pop()
        tokens = 0
        for line in lines:
            tokens += self._end_line(line)
        self._begin_line(rest)
        return tokens

    def _begin_line(self, part: bytes) -> None:
        self._length += len(part)
        if self._length > MAX_LINE_BYTES:
            raise ValueError(f"a line of more than {MAX_LINE_BYTES} bytes in a stream of events")
        if len(self._head) < _HEAD_BYTES:
            self._head = (self._head + part)[:_HEAD_BYTES]

    def _end_line(self, part: bytes) -> int:
        """Return how many tokens the end of this line completes."""
        self._begin_line(part)
        head, length = self._head, self._length
        self._head, self._length = b"", 0
        if self._first:
            self._first = False
            if head.startswith(_BOM):
                head, length = head[len(_BOM) :], length - len(_BOM)
        if not length:
            data, self._data = self._data, _NO_DATA
            return int(data == _TEXT)
        field, _, value = head.partition(b":")
        if field == b"data":
            # One space after the colon is not of the value.
            value = value.removeprefix(b" ")
            # Several lines are joined by line ends, so they are neither empty nor `[DONE]`.
            self._data = _kind(value) if self._data == _NO_DATA else _TEXT
        return 0


def _kind(value: bytes) -> int:
    return _TEXT if value and value != _DONE else _EMPTY


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
        """Parse received data; return the answer if it is complete now.

        Raises:
            MalformedResponse: It is no answer to one request, or no stream of events.
        """
        parsed = super().feed(data)
        if self._problem:
            raise MalformedResponse(self._problem)
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
        """Return None: between a stream's first byte and its last the server takes the time."""

    def remember(self, data: bytes, parsed: Parsed) -> None:
        """Recognise nothing: every token has to be counted."""
