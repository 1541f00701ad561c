"""Server-sent events over HTTP/1.1: each event that carries content is reported when it arrives."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pytest_gpuserve.load.engine.http1 import Http1, HttpConnection, MalformedResponse, Parsed, ResponseParser
from pytest_gpuserve.load.engine.transport import IDLE, Stream

if TYPE_CHECKING:
    from pytest_gpuserve.load.engine.transport import Slot

MAX_LINE_BYTES: Final = 1 << 22
"""Many times what a token takes, even with its log-probabilities; a longer line is no stream of tokens."""

_BOM: Final = b"\xef\xbb\xbf"
_MOST_TOKENS: Final = 1 << 32
_DONE: Final = b"[DONE]"
_DONE_LINE: Final = b"data: " + _DONE
_DATA_BYTES: Final = len(b"data: ")
_HEAD_BYTES: Final = len(_BOM + _DONE_LINE) + 1
_JSON_LINE: Final = re.compile(rb"(?:\xef\xbb\xbf)?data: ?\{")
_BRACE: Final = 123
_LF: Final = 10
_ENDS: Final = b"\r\n"

_SEVERAL_LINES: Final = b"\n"
"""Stands for the data of an event of several lines: they are neither empty, nor ``[DONE]``, nor a chunk."""


class _Delta(msgspec.Struct, gc=False):
    # Of any type: a field that is unlike the API's own is content all the same.
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    refusal: Any = None
    audio: Any = None
    tool_calls: Any = None
    function_call: Any = None


class _Choice(msgspec.Struct, gc=False):
    delta: _Delta | None = None
    text: Any = None


class _Chunk(msgspec.Struct, gc=False):
    """What matters of a chunk of OpenAI's API; ``choices`` or ``usage`` tells it from any other JSON object."""

    choices: list[_Choice | None] | None = None
    usage: Any = None
    error: Any = None

    @property
    def is_of_this_api(self) -> bool:
        return self.choices is not None or isinstance(self.usage, dict)

    @property
    def tokens(self) -> int | None:
        """What the usage says, where it is a number of tokens."""
        found = self.usage.get("completion_tokens") if isinstance(self.usage, dict) else None
        if not isinstance(found, (int, float)) or isinstance(found, bool) or not 0 <= found <= _MOST_TOKENS:
            return None
        return int(found)


_decode_chunk: Final = msgspec.json.Decoder(_Chunk).decode


def _read_chunk(data: bytes) -> _Chunk | None:
    """Decode a chunk; None of what is none."""
    try:
        return _decode_chunk(data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        pass
    # Servers write what only Python reads: NaN among log-probabilities, half of a surrogate pair.
    try:
        return msgspec.convert(json.loads(data), _Chunk)
    except (msgspec.ValidationError, ValueError, RecursionError):
        return None


class EventCounter:
    """The parser of one stream: counts the events that carry content.

    Such is an event whose data is neither empty nor ``[DONE]``, of whatever type. A chunk of OpenAI's API (a JSON
    object with ``choices`` or ``usage``) carries content only where a choice has some: the chunks that begin and end an
    answer have none. A JSON object with an ``error`` has none either. As the standard has it, an event is complete with
    the empty line after it, and one that the end of the stream cuts off is none.

    Attributes:
        usage: The last ``usage.completion_tokens`` of the stream's chunks; None where there was none.
        has_error: Whether an event said that the server failed.
    """

    __slots__ = ("_after_cr", "_data", "_first", "_length", "_line", "_whole", "has_error", "usage")

    def __init__(self) -> None:
        self.usage: int | None = None
        self.has_error = False
        self._data: bytes | None = None
        # Of an unfinished line its length, and all of it where it may be a chunk, else its first bytes.
        self._line = bytearray()
        self._whole = False
        self._length = 0
        self._after_cr = False
        self._first = True

    def feed(self, piece: bytes) -> int:
        """Return how many events with content this piece of the body completes.

        Raises:
            ValueError: A line is longer than ``MAX_LINE_BYTES``; the counter is of no use after that.
        """
        lines = piece.splitlines()
        # Nearly every piece is one whole event of one line. Whether its last line end was cut does not matter: at rest,
        # an empty line more or less is nothing.
        if len(lines) == 2 and not lines[1] and not self._length and self._data is None:
            line = lines[0]
            if line.startswith(b"data: ") and len(line) <= MAX_LINE_BYTES:
                self._first = False
                return self._carries_content(line[_DATA_BYTES:])
        return self._feed(piece, lines) if piece else 0

    def _feed(self, piece: bytes, lines: list[bytes]) -> int:
        if self._after_cr and piece[0] == _LF:
            # The second half of a line end that was cut.
            del lines[0]
        last = piece[-1]
        self._after_cr = last == _ENDS[0]
        rest = b"" if last in _ENDS else lines.pop()
        found = 0
        for line in lines:
            found += self._end_line(line)
        if rest:
            self._begin_line(rest)
        return found

    def _begin_line(self, part: bytes) -> None:
        self._length += len(part)
        _check_length(self._length)
        if self._whole or len(self._line) < _HEAD_BYTES:
            self._line += part
            self._whole = _JSON_LINE.match(self._line) is not None
            if not self._whole:
                del self._line[_HEAD_BYTES:]

    def _end_line(self, part: bytes) -> int:
        """Return how many events with content the end of this line completes."""
        line = part
        if self._length:
            self._begin_line(part)
            line = bytes(self._line)
            self._line.clear()
            self._whole = False
            self._length = 0
        else:
            _check_length(len(part))
        if self._first:
            self._first = False
            line = line.removeprefix(_BOM)
        if not line:
            data, self._data = self._data, None
            return 0 if data is None else self._carries_content(data)
        field, _, value = line.partition(b":")
        if field == b"data":
            # One space after the colon is not of the value.
            self._data = value.removeprefix(b" ") if self._data is None else _SEVERAL_LINES
        return 0

    def _carries_content(self, data: bytes) -> int:
        """Whether an event's data counts, as 0 or 1; long data that is no JSON may be cut."""
        if not data or data == _DONE:
            return 0
        if data[0] != _BRACE:
            return 1
        chunk = _read_chunk(data)
        if chunk is None:
            return 1
        if chunk.error:
            self.has_error = True
            return 0
        if not chunk.is_of_this_api:
            return 1
        if chunk.usage is not None:
            said = chunk.tokens
            self.usage = self.usage if said is None else said
        return int(any(map(_has_content, chunk.choices or ())))


def _has_content(choice: _Choice | None) -> bool:
    if choice is None:
        return False
    delta = choice.delta
    return bool(
        choice.text
        or (
            delta is not None
            and (
                delta.content
                or delta.reasoning_content
                or delta.reasoning
                or delta.refusal
                or delta.audio
                or delta.tool_calls
                or delta.function_call
            )
        )
    )


def _check_length(length: int) -> None:
    if length > MAX_LINE_BYTES:
        raise ValueError(f"a line of more than {MAX_LINE_BYTES} bytes in a stream of events")


class StreamParser(ResponseParser):
    """Reads answers and counts their events with content.

    Attributes:
        counter: Of the last answer.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counter = EventCounter()
        self._problem = ""
        self._found = 0

    def take_found(self) -> int:
        """Return how many events with content have arrived since the last call."""
        found, self._found = self._found, 0
        return found

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
        self.counter = EventCounter()

    def on_body(self, body: bytes) -> None:
        """Keep a piece of the body, and count its events; those of an error's page are none."""
        super().on_body(body)
        if 200 <= self.status < 300:
            try:
                self._found += self.counter.feed(body)
            except ValueError as problem:
                # Not raised through the parser, which would take it for a mistake of ours.
                self._problem = str(problem)


class EventStreamConnection(HttpConnection):
    """One connection."""

    __slots__ = ("_before_ns", "_chunks", "_content_ns", "_stream")

    def _new_parser(self) -> ResponseParser:
        self._content_ns = self._before_ns = IDLE
        self._chunks = 0
        self._stream = StreamParser()
        return self._stream

    def send(self, payload: bytes) -> None:
        """Send a request."""
        self._content_ns = self._before_ns = IDLE
        self._chunks = 0
        super().send(payload)

    def _feed(self, data: bytes, now_ns: int) -> Parsed | None:
        parsed = super()._feed(data, now_ns)
        found = self._stream.take_found()
        if found and not self._chunks:
            self._content_ns = now_ns
        self._chunks += found
        for _ in range(found):
            self._transport.issuer.chunk(now_ns, self._before_ns)
            self._before_ns = now_ns
        return parsed

    def _finish(self, now_ns: int, parsed: Parsed) -> None:
        if not self._fault(parsed):
            stream = Stream(self._content_ns, self._chunks, self._stream.counter.usage)
            self._transport.issuer.streamed(self, now_ns, stream)
        super()._finish(now_ns, parsed)

    def _fault(self, parsed: Parsed) -> str:
        counter = self._stream.counter
        if counter.has_error:
            return "error in a stream"
        # A stream that says nothing would be the fastest of all; one of tokens that make no text says how many.
        has_tokens = self._chunks or counter.usage
        return super()._fault(parsed) or ("" if has_tokens else "no tokens")


class Streams(Http1):
    """The transport of server-sent events; an answer is complete with its last byte, as any other."""

    def open(self, place: int) -> Slot:
        """Begin to open a slot."""
        return EventStreamConnection(place, self)

    def take_transfer(self) -> None:
        """Return None: between a stream's first byte and its last the server takes the time."""

    def remember(self, data: bytes, parsed: Parsed) -> None:
        """Recognise nothing: every event has to be counted."""
