"""Server-sent events over HTTP/1.1: arrival of each event with content, and completeness of an answer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pytest_gpuserve.load.engine.http1 import Http1, HttpConnection, Parsed, ResponseParser
from pytest_gpuserve.load.engine.transport import IDLE, FaultKind, MalformedResponse, Stream
from pytest_gpuserve.process.logs import begin_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.load.engine.loop import Loop
    from pytest_gpuserve.load.engine.reactor import Reactor
    from pytest_gpuserve.load.engine.transport import Fault
    from pytest_gpuserve.load.wire import Endpoint

MAX_EVENT_BYTES: Final = 1 << 22
"""Largest event: many times a token with its log-probabilities."""

_BOM: Final = b"\xef\xbb\xbf"
_MOST_TOKENS: Final = 1 << 32
_DONE: Final = b"[DONE]"
_DATA_BYTES: Final = len(b"data: ")
_BRACE: Final = 123
_CR: Final = 13
_LF: Final = 10
_AROUND_NAMES: Final = b' \t{"'
"""Pattern of the name ``error`` in a line of JSON that a server writes without ``data:``."""

_ABANDONED: Final = frozenset({"error", "abort", "aborted", "cancelled", "timeout"})
"""Finish reasons of a server that gave up: vLLM and OpenRouter say ``error``, SGLang ``abort``, TensorRT-LLM
``cancelled`` and ``timeout``."""


class _Delta(msgspec.Struct, gc=False):
    # Values may have any type: a field that differs from the API's own is content too.
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    refusal: Any = None
    audio: Any = None
    tool_calls: Any = None
    function_call: Any = None


class _Choice(msgspec.Struct, gc=False):
    index: int | float | str | None = 0
    delta: _Delta | None = None
    text: Any = None
    finish_reason: Any = None


class _Chunk(msgspec.Struct, gc=False):
    """Relevant fields of a chunk of OpenAI's API; ``choices`` or ``usage`` identifies one among JSON objects."""

    choices: list[_Choice | None] | None = None
    usage: Any = None
    error: Any = None
    object: Any = None
    type: Any = None

    @property
    def is_error(self) -> bool:
        """Whether it reports a failure of the server: by a field, or, without choices, by its type."""
        return bool(self.error) or (self.choices is None and (_names_error(self.object) or _names_error(self.type)))

    @property
    def tokens(self) -> int | None:
        """Token count of the usage, if it is a number."""
        found = self.usage.get("completion_tokens") if isinstance(self.usage, dict) else None
        if not isinstance(found, (int, float)) or isinstance(found, bool) or not 0 <= found <= _MOST_TOKENS:
            return None
        return int(found)


_decode_chunk: Final = msgspec.json.Decoder(_Chunk).decode


def _read_chunk(data: bytes) -> _Chunk | None:
    """Decode a chunk; None for other data."""
    try:
        return _decode_chunk(data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        pass
    # Servers write JSON that only Python reads: NaN among log-probabilities, half of a surrogate pair.
    try:
        return msgspec.convert(json.loads(data), _Chunk)
    except (msgspec.ValidationError, ValueError, RecursionError):
        return None


def _names_error(name: object) -> bool:
    """Whether a type names an error, such as ``error``, ``server_error`` or ``BadRequestError``."""
    return isinstance(name, str) and name.lower().endswith("error")


def _is_abandoned(finish_reason: object) -> bool:
    said = finish_reason.get("type") if isinstance(finish_reason, dict) else finish_reason
    return isinstance(said, str) and said.lower() in _ABANDONED


class EventReader:
    """Splits a stream into events, for any division into pieces (WHATWG HTML, 9.2.6).

    The ``data`` lines of an event are joined by line feeds. An event is complete with the empty line after it; the end
    of the stream does not complete one.

    Attributes:
        error: The first line outside of data that reports a failure of the server; may be empty. Such lines are
            ``event: error`` (then the event's data, if any), the field ``error`` (llama.cpp), and an error as JSON
            without ``data:``.
    """

    __slots__ = ("_after_cr", "_bytes", "_data", "_first", "_is_error", "_line", "error")

    def __init__(self) -> None:
        self.error = b""
        self._is_error = False
        self._data: list[bytes] = []
        self._line = bytearray()
        self._bytes = 0
        self._after_cr = False
        self._first = True

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the data of the events that this piece of the body completes.

        Raises:
            ValueError: An event is longer than ``MAX_EVENT_BYTES``; the reader cannot be used after that.
        """
        lines = piece.splitlines()
        # Nearly every piece is one whole event of one line. Whether its last line end was cut does not matter, because
        # between events an empty line more or less has no effect.
        if len(lines) == 2 and not lines[1] and not self._bytes:
            line = lines[0]
            if line.startswith(b"data: ") and len(line) <= MAX_EVENT_BYTES:
                self._first = False
                return [line[_DATA_BYTES:]]
        return self._feed(piece, lines) if piece else []

    def _feed(self, piece: bytes, lines: list[bytes]) -> list[bytes]:
        if self._after_cr and piece[0] == _LF:
            # The second half of a line end that was cut.
            del lines[0]
        self._after_cr = piece[-1] == _CR
        rest = b"" if piece[-1] in {_CR, _LF} else lines.pop()
        events: list[bytes] = []
        for line in lines:
            if self._line:
                self._line += line
                whole = bytes(self._line)
                self._line.clear()
            else:
                whole = line
            self._grow(len(line))
            self._end_line(whole, events)
        self._line += rest
        self._grow(len(rest))
        return events

    def _grow(self, size: int) -> None:
        self._bytes += size
        if self._bytes > MAX_EVENT_BYTES:
            raise ValueError(f"an event of more than {MAX_EVENT_BYTES} bytes in a stream of events")

    def _end_line(self, line: bytes, events: list[bytes]) -> None:
        if self._first:
            self._first = False
            line = line.removeprefix(_BOM)
        if not line:
            if self._data:
                events.append(b"\n".join(self._data))
                if self._is_error:
                    self.error = events[-1] or self.error
                self._data.clear()
            self._is_error = False
            self._bytes = 0
            return
        field, _, value = line.partition(b":")
        if field == b"data":
            # One space after the colon does not belong to the value.
            self._data.append(value.removeprefix(b" "))
        elif field and not self.error and _is_error_line(line, field, value):
            self.error = line
            self._is_error = field == b"event"
        if not self._data:
            self._bytes = 0


def _is_error_line(line: bytes, field: bytes, value: bytes) -> bool:
    if field.strip(_AROUND_NAMES) == b"error" or (field == b"event" and value.strip().lower() == b"error"):
        return True
    chunk = _read_chunk(line) if line[0] == _BRACE else None
    return chunk is not None and chunk.is_error


class StreamAnswer(Stream):
    """Content of the events of one answer; its ``tokens`` are the last ``usage.completion_tokens`` of its chunks.

    An event of any type has content if its data is neither empty nor ``[DONE]``. A chunk of OpenAI's API (a JSON object
    with ``choices`` or ``usage``) has content only if a choice has some. The first and last chunks of an answer have
    none. A JSON object with an error has none either.
    """

    __slots__ = ("_begun", "_ended", "_error", "_events", "_is_done", "_last", "_unreadable")

    def __init__(self) -> None:
        super().__init__()
        self._events = EventReader()
        self._begun: set[object] = set()
        self._ended: set[object] = set()
        self._is_done = False
        self._error = b""
        self._unreadable = b""
        self._last = b""

    def feed(self, piece: bytes) -> int:
        """Return the number of events with content that this piece of the body completes.

        Raises:
            ValueError: The data is not a stream of terminated events.
        """
        found = 0
        for data in self._events.feed(piece):
            found += self._has_content(data)
        self.chunks += found
        return found

    def fault(self, requested_choices: int) -> tuple[FaultKind, str, bytes] | None:
        """Fault that makes the answer incomplete, with its evidence; None for a complete answer.

        An answer of a chat or a completion, which has ``choices``, marks its end: by the ``finish_reason`` of each
        choice, or by ``[DONE]``. All other streams end with their body.
        """
        error = self._error or self._events.error
        if error:
            return FaultKind.ERROR_IN_STREAM, "the server said", error
        if self._begun and self._unreadable:
            return FaultKind.UNREADABLE_EVENT, "neither a chunk of the API nor [DONE]:", self._unreadable
        choices = max(requested_choices, len(self._begun))
        if self._begun and not self._is_done and (self._ended != self._begun or len(self._ended) < choices):
            text = f"no [DONE], and a finish_reason for {len(self._ended)} of {choices} choices; the last event is"
            return FaultKind.NO_END, text, self._last
        if not self.chunks and not self.tokens:
            # It would be the fastest of all. An answer of tokens without text reports their number.
            return FaultKind.NO_TOKENS, "the last event is", self._last
        return None

    def _has_content(self, data: bytes) -> bool:
        if not data:
            return False
        self._last = data
        if data.strip() == _DONE:
            self._is_done = True
            return False
        # An empty line of data before an object is a line break before its JSON.
        is_object = data.lstrip().startswith(b"{")
        chunk = _read_chunk(data) if is_object else None
        if chunk is None:
            self._unreadable = self._unreadable or data
            if is_object and b'"choices"' in data:
                # A chunk of the API that was cut.
                self._begun.add(None)
            return True
        if chunk.is_error:
            self._error = self._error or data
            return False
        if chunk.usage is not None:
            said = chunk.tokens
            self.tokens = self.tokens if said is None else said
        if chunk.choices is None:
            return not isinstance(chunk.usage, dict)
        return sum(self._take(choice, data) for choice in chunk.choices if choice is not None) > 0

    def _take(self, choice: _Choice, data: bytes) -> bool:
        """Note whether a choice has ended; return whether it has content."""
        self._begun.add(choice.index)
        if choice.finish_reason:
            self._ended.add(choice.index)
            if _is_abandoned(choice.finish_reason):
                self._error = self._error or data
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


class StreamParser(ResponseParser):
    """Reads answers and their events.

    Attributes:
        answer: The last one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.answer = StreamAnswer()
        self._problem = ""

    def feed(self, data: bytes) -> Parsed | None:
        """Parse received data; return the answer if it is complete now.

        Raises:
            MalformedResponse: The data is not an answer to one request, or not a stream of events.
        """
        parsed = super().feed(data)
        if self._problem:
            raise MalformedResponse(self._problem)
        return parsed

    def on_message_begin(self) -> None:
        """Begin an answer."""
        super().on_message_begin()
        self.answer = StreamAnswer()

    def on_body(self, body: bytes) -> None:
        """Keep a piece of the body, and read its events; an error's page has none."""
        super().on_body(body)
        if 200 <= self.status < 300:
            try:
                self.answer.feed(body)
            except ValueError as problem:
                # Not raised through the parser, which would take it for our own error.
                self._problem = str(problem)


class EventStreamConnection(HttpConnection):
    """A connection of streams."""

    __slots__ = ("_stream",)

    _transport: Streams

    def _new_parser(self) -> ResponseParser:
        self._stream = StreamParser()
        return self._stream

    def _feed(self, data: bytes, now_ns: int) -> Parsed | None:
        before = self._stream.answer
        known = before.chunks
        parsed = super()._feed(data, now_ns)
        answer = self._stream.answer
        for _ in range(answer.chunks - (known if answer is before else 0)):
            self._transport.loop.chunk(now_ns, answer.last_ns)
            if answer.last_ns == IDLE:
                answer.first_ns = now_ns
            answer.last_ns = now_ns
        return parsed

    def _fault(self, parsed: Parsed) -> Fault | None:
        found = self._stream.answer.fault(self._transport.choices[self.index])
        if found is None or not 200 <= parsed.status < 300:
            return super()._fault(parsed)
        kind, text, shown = found
        return kind, lambda: f"{text} {begin_of(shown)!r}" if shown else repr(begin_of(parsed.body))

    def _answer(self, now_ns: int, body: bytes, *, keep: bool) -> None:
        self._transport.loop.streamed(self, now_ns, self._stream.answer, body, keep=keep)


class Streams(Http1):
    """The transport of server-sent events.

    Args:
        choices: Number of answers that each payload requests.
        further: As for `Http1`.
    """

    connection = EventStreamConnection

    def __init__(
        self,
        endpoint: Endpoint,
        reactor: Reactor,
        loop: Loop,
        connect_timeout_ns: int,
        choices: Sequence[int],
    ) -> None:
        super().__init__(endpoint, reactor, loop, connect_timeout_ns)
        self.choices = choices

    def remember(self, data: bytes, parsed: Parsed) -> None:
        """Do nothing, because every event has to be counted."""
