"""A request is what the test says, byte for byte, or it is refused."""

from __future__ import annotations

import re
from typing import Any

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.load.request import BODY_CHARACTERS, Expect, Request, check_answer, is_right

KNOWN_METHODS = st.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"])
# Rich in what could break out of its place in a request.
NASTY = st.text(st.one_of(st.sampled_from("\r\n\t\0 :;/?#%\x7f\x85\u2028é"), st.characters(codec="utf-8")), max_size=12)
PATHS = st.one_of(NASTY, NASTY.map(lambda text: f"/{text}"), st.just("/v2/models/m/infer?x=1"))
HEADERS = st.dictionaries(st.one_of(NASTY, st.from_regex(r"\A[A-Za-z-]{1,8}\Z")), NASTY, max_size=4)


class Reader:
    """An independent reader of requests; several in one stream are told apart."""

    def __init__(self, data: bytes) -> None:
        self.urls: list[bytes] = []
        self.headers: list[tuple[str, str]] = []
        self.body = b""
        self.ends = 0
        self.parser = httptools.HttpRequestParser(self)
        self.parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        """Keep the target."""
        self.urls.append(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header."""
        self.headers.append((name.decode(), value.decode()))

    def on_body(self, body: bytes) -> None:
        """Keep a piece of the body."""
        self.body += body

    def on_message_complete(self) -> None:
        """Count the requests."""
        self.ends += 1


@given(method=st.one_of(KNOWN_METHODS, NASTY), path=PATHS, headers=HEADERS, body=st.binary(max_size=64))
def test_a_request_is_refused_or_read_as_it_was_meant(
    method: str, path: str, headers: dict[str, str], body: bytes
) -> None:
    """Whatever the parts contain, the bytes are one request of exactly these parts: nothing can be injected."""
    try:
        request = Request(method, path, body, headers)
    except UsageProblem:
        return
    data = request.to_bytes("127.0.0.1", 8000)
    ours = [("Host", "127.0.0.1:8000")]
    if body or method in {"POST", "PUT", "PATCH"}:
        ours.append(("Content-Length", str(len(body))))
    # Spaces around a value are no part of it (RFC 9110, 5.5).
    meant = sorted([*ours, *((name, value.strip(" ")) for name, value in headers.items())])
    try:
        reader = Reader(data)
    except httptools.HttpParserInvalidMethodError:
        # The reader knows only registered methods; the first line shows where an own one ends.
        assert data.split(b"\r\n")[0] == f"{method} {path} HTTP/1.1".encode()
        return
    assert reader.parser.get_method() == method.encode()
    assert reader.urls == [path.encode()]
    assert sorted(reader.headers) == meant
    assert (reader.body, reader.ends) == (body, 1)


@pytest.mark.parametrize("name", ["Host", "content-length", "Transfer-Encoding", "CONNECTION"])
def test_headers_of_the_connection_are_refused(name: str) -> None:
    """Headers on which the engine's own reading of answers depends cannot be set, in whatever case."""
    with pytest.raises(UsageProblem, match="set by the load engine"):
        Request("GET", "/", headers={name: "x"})


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("", "/", {}),
        ("GET /other", "/", {}),
        ("GET\r\n", "/", {}),
        ("GET", "", {}),
        ("GET", "inference", {}),
        ("GET", "http://127.0.0.1/", {}),
        ("GET", "/a b", {}),
        ("GET", "/é", {}),
        ("GET", "/\r\nX: y", {}),
        ("GET", "/", {"": "x"}),
        ("GET", "/", {"A B": "x"}),
        ("GET", "/", {"A:": "x"}),
        ("GET", "/", {"A": "x\r\nB: y"}),
        ("GET", "/", {"A": "é"}),
        ("GET", "/", {"A": 1}),
    ],
)
def test_what_cannot_stand_in_a_request_is_a_usage_problem(method: str, path: str, headers: dict[str, Any]) -> None:
    """Each of these is refused when the request is described, not when it is sent."""
    with pytest.raises(UsageProblem):
        Request(method, path, headers=headers)


def test_the_fingerprint_knows_every_part_but_not_the_order_of_headers() -> None:
    """Another method, path, header or body is another fingerprint; the same headers in another order are the same."""
    base = Request("POST", "/a", b"x", {"A": "1", "B": "2"})
    others = [
        Request("PUT", "/a", b"x", {"A": "1", "B": "2"}),
        Request("POST", "/b", b"x", {"A": "1", "B": "2"}),
        Request("POST", "/a", b"y", {"A": "1", "B": "2"}),
        Request("POST", "/a", b"x", {"A": "1"}),
    ]
    prints = [request.fingerprint() for request in (base, *others)]
    assert all(prints.count(fingerprint) == 1 for fingerprint in prints)
    assert base.fingerprint() == Request("POST", "/a", b"x", {"B": "2", "A": "1"}).fingerprint()


def _says_no(body: bytes) -> None:
    raise AssertionError(f"no label in {body!r}\nsecond line")


def _fails(body: bytes) -> object:
    raise KeyError


@pytest.mark.parametrize(
    ("expect", "complaint"),
    [
        (None, None),
        (b"cat", None),
        (b"dog", "expected b'dog', got b'cat'"),
        (lambda body: None, "returned None for b'cat'"),
        (lambda body: 0, "returned 0 for b'cat'"),
        (lambda body: re.search(b"at", body), None),
        (lambda body: body == b"cat", None),
        (lambda body: body == b"dog", "returned False for b'cat'"),
        (_says_no, "AssertionError: no label in b'cat' for answer b'cat'"),
        (_fails, "KeyError for answer b'cat'"),
    ],
)
def test_an_answer_is_right_unless_the_check_says_no(expect: Expect | None, complaint: str | None) -> None:
    """Only the right body, or something true, is a yes; the complaint is one line that shows the answer."""
    found = check_answer(expect, b"cat")
    if complaint is None:
        assert found is None
    else:
        assert found is not None
        assert complaint in found
        assert "\n" not in found


@pytest.mark.parametrize("expect", [b"cat", b"dog", lambda body: None, lambda body: body == b"cat", _says_no, _fails])
def test_right_is_what_has_no_complaint(expect: Expect) -> None:
    """Both say the same of every answer."""
    assert is_right(expect, b"cat") == (check_answer(expect, b"cat") is None)


@pytest.mark.parametrize("before", range(BODY_CHARACTERS - 20, BODY_CHARACTERS + 2))
def test_a_complaint_shows_no_secret_nor_the_half_of_one(monkeypatch: pytest.MonkeyPatch, before: int) -> None:
    """Of the answer and of what was expected, wherever the end of what is shown falls."""
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijkl")
    body = b"x" * (before % 2) + b" x" * (before // 2) + b" hf_abcdefghijkl" + b" x" * 50
    for found in (check_answer(b"x", body), check_answer(body, b"x"), check_answer(_fails, body)):
        assert found is not None
        assert "hf_" not in found
        assert f"({len(body)} bytes)" in found


def test_a_complaint_about_a_long_answer_is_short() -> None:
    """Of a long answer only the beginning and the length are shown."""
    found = check_answer(b"x", b"y" * 100_000)
    assert found is not None
    assert "100000 bytes" in found
    assert len(found) < 200


@pytest.mark.parametrize("letters", [b"0123456789", b"deadbeef", b"Zm9v+b/y"])
def test_a_complaint_about_one_long_word_shows_its_begin(letters: bytes) -> None:
    """Numbers, hex digits and base64 have no gap at which a body could be cut; it is seen what came all the same."""
    body = letters * 700
    begin = repr(body)[:BODY_CHARACTERS]
    assert check_answer(b"x", body) == f"expected b'x', got {begin}… ({len(body)} bytes)"
