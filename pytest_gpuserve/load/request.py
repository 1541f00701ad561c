"""HTTP requests as bytes, with their headers, and the checks of their answers."""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.process.logs import begin_of, excerpt
from pytest_gpuserve.units import digest

Expect = bytes | Callable[[bytes], object]
"""The exact body of a right answer, or a function of the body.

A function accepts an answer by a true result. It refuses one by raising (``AssertionError`` with a text is best), or by
any other result: a forgotten ``return`` and a search without a match give ``None``. It runs in the pytest process,
outside the timed path.
"""

NUMBER_PLACE: Final = b"0" * 10
"""Place in a body for a number of this many digits, which is unique to each send."""

BODY_CHARACTERS: Final = 80
"""Longest part of a body, as Python writes it, in the text on a wrong answer."""

_TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")


_WITHOUT_BODY: Final = frozenset({"HEAD", "CONNECT"})
"""Methods whose answers have no body, whatever they announce."""


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP/1.1 request and the check of its answer.

    Args:
        method: For example ``POST``.
        path: Path with its query, beginning with a slash.
        body: Body of the request.
        headers: Headers besides ``Host`` and ``Content-Length``, which the plugin sets.
        expect: See ``Expect``; None checks the status alone (2xx).
        number_at: Position of a ``NUMBER_PLACE`` in the body; None without one, if all sends are the same.

    Raises:
        UsageProblem: A part is not valid in an HTTP request.
    """

    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    expect: Expect | None = None
    number_at: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.body, bytes):
            raise UsageProblem(
                f"a request's body must be bytes or text, not {type(self.body).__name__}",
                remedies=["for JSON give body=json.dumps(...)"],
            )
        for name in ("method", "path"):
            value = getattr(self, name)
            if not isinstance(value, str):
                raise UsageProblem(f"a request's {name} must be text, not {value!r}")
        if not self.method or not set(self.method) <= _TOKEN or self.method in _WITHOUT_BODY:
            raise UsageProblem(
                f"a request's method must be a word such as POST, whose answer may have a body, not {self.method!r}"
            )
        if not self.path.startswith("/") or not self.path.isascii() or not self.path.isprintable() or " " in self.path:
            raise UsageProblem(
                f"a request's path must begin with a slash and be plain ASCII without spaces, not {self.path!r}",
                remedies=["quote other characters with urllib.parse.quote"],
            )
        for name, value in self.headers.items():
            _check_header(name, value)

    def to_bytes(self, authority: str) -> bytes:
        """Serialise the request once, for this server; the engine sends these bytes repeatedly."""
        lines = [f"{self.method} {self.path} HTTP/1.1", f"Host: {authority}"]
        lines.extend(f"{name}: {value}" for name, value in self.headers.items())
        if self.body or self.method in {"POST", "PUT", "PATCH"}:
            lines.append(f"Content-Length: {len(self.body)}")
        return "\r\n".join([*lines, "", ""]).encode("ascii") + self.body

    def fingerprint(self) -> dict[str, str]:
        """Identity of this payload, for a baseline; body and header values by their SHA-256."""
        return {
            "method": self.method,
            "path": self.path,
            "headers": "; ".join(f"{name}: {digest(self.headers[name])}" for name in sorted(self.headers)),
            "body_sha256": hashlib.sha256(self.body).hexdigest(),
            "body_bytes": str(len(self.body)),
        }


def _check_header(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise UsageProblem(f"header {name!r} must have a text as its value, not {value!r}")
    if not name or not set(name) <= _TOKEN or not value.isprintable() or not value.isascii():
        raise UsageProblem(f"header {name!r}: {value!r} is not allowed in an HTTP request")
    lowered = name.lower()
    if lowered in {"host", "content-length", "transfer-encoding"} or (
        lowered == "connection" and value.lower() != "close"
    ):
        raise UsageProblem(f"header {name!r} is set by the load engine", remedies=["leave it out of headers={...}"])


class _Body(msgspec.Struct):
    n: Any = 1
    prompt: Any = None


def choices_of(payload: bytes) -> int:
    """Number of answers that a serialised request of OpenAI's API wants; 1 for any other request."""
    try:
        body = msgspec.json.decode(payload.partition(b"\r\n\r\n")[2], type=_Body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return 1
    prompts = body.prompt if isinstance(body.prompt, list) and body.prompt else [""]
    # A list of numbers is one prompt, by its tokens.
    several = len(prompts) if all(isinstance(prompt, (str, list)) for prompt in prompts) else 1
    return max(1, several * body.n) if isinstance(body.n, int) else several


def check_answer(expect: Expect | None, body: bytes) -> str | None:
    """Return None if an answer is right, else its fault in one line."""
    if expect is None:
        return None
    if isinstance(expect, bytes):
        if body == expect:
            return None
        sizes = range(1, min(len(body), len(expect)) + 1)
        same = bisect_left(sizes, True, key=lambda size: body[:size] != expect[:size])  # noqa: FBT003 -- a value to find
        # The excerpts may end before the first difference.
        where = f"; the first {same} bytes are equal" if same > BODY_CHARACTERS // 2 else ""
        return f"expected {_short(expect)}, got {_short(body)}{where}"
    try:
        verdict = expect(body)
        right = bool(verdict)
    except Exception as problem:  # noqa: BLE001 -- the check is the user's code: whatever it raises is its "no"
        text = str(problem).splitlines()
        return f"{type(problem).__name__}{': ' + text[0] if text else ''} for answer {_short(body)}"
    return None if right else f"{getattr(expect, '__name__', expect)} returned {verdict!r} for {_short(body)}"


def _short(body: bytes) -> str:
    text = repr(begin_of(body))
    if len(text) <= BODY_CHARACTERS:
        return text
    return f"{excerpt(text, os.environ, most=BODY_CHARACTERS)} ({len(body)} bytes)"
