"""Reads answers of HTTP/1.1, one connection's at a time."""

from __future__ import annotations

from typing import NamedTuple

import httptools

from pytest_gpuserve.load.engine.transport import MAX_ANSWER_BYTES


class Malformed(Exception):
    """What arrived is no answer, or one too many."""


class Parsed(NamedTuple):
    """A complete answer.

    Args:
        status: Such as 200.
        body: Without its chunks' framing.
        reusable: Whether the connection may carry another request.
    """

    status: int
    body: bytes
    reusable: bool


class ResponseParser:
    """Reads the answers of one connection, in whatever pieces they arrive.

    Args:
        head: Whether answers have no body though they announce one.
    """

    def __init__(self, *, head: bool = False) -> None:
        self._head = head
        self._new()

    def _new(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._rest()

    def _rest(self) -> None:
        self.resting = True
        self._status = 0
        self._announced = False
        self._reusable = False
        self._complete = False
        self._surplus = False
        self._body: list[bytes] = []
        self._body_bytes = 0

    @property
    def status(self) -> int:
        """Status of the answer that is being read; 0 before it is known."""
        return self._status

    def feed(self, data: bytes) -> Parsed | None:
        """Take what arrived; return the answer if it is complete now.

        Raises:
            Malformed: It is no answer to one request; the text has all of the data.
        """
        self.resting = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            # Ours, not the server's: it must end the engine instead of counting as an odd answer.
            raise
        except httptools.HttpParserUpgrade as problem:
            raise Malformed("the server switched protocols") from problem
        except httptools.HttpParserError as problem:
            raise Malformed(f"not an HTTP/1.1 answer ({problem}): {data!r}") from problem
        if self._body_bytes > MAX_ANSWER_BYTES:
            raise Malformed(f"an answer of more than {MAX_ANSWER_BYTES >> 20} MB")
        return self._finish() if self._complete else None

    def end(self) -> Parsed | None:
        """Take the end of the connection; return the answer if that is what completes it."""
        # Neither a length nor chunks were announced: the body ends where the connection does (RFC 9112, 6.3).
        if self._status and not self._announced:
            self._reusable = False
            return self._finish()
        return None

    def release(self) -> None:
        """Let go of the parser, which holds our methods: without a garbage collector such a cycle stays for ever."""
        del self._parser

    def _finish(self) -> Parsed:
        if self._surplus:
            raise Malformed("more than one answer to one request")
        parsed = Parsed(self._status, b"".join(self._body), self._reusable)
        if self._head:
            # The old one may wait for the body that was announced.
            self._new()
        else:
            self._rest()
        return parsed

    # -- httptools' callbacks

    def on_message_begin(self) -> None:
        """Begin an answer, or note that it is one too many."""
        if self._complete:
            self._surplus = True
            return
        self._body = []
        self._body_bytes = 0
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
        if self._head and self._status >= 200:
            self._complete = True

    def on_body(self, body: bytes) -> None:
        """Keep a piece of the body."""
        if self._complete:
            self._surplus = True
        self._body.append(body)
        self._body_bytes += len(body)

    def on_message_complete(self) -> None:
        """Note the end of the answer; interim answers (1xx) are not the answer."""
        if self._status < 200:
            self._status = 0
        else:
            self._complete = True
