"""A request is what the test says, byte for byte, or it is refused; so is the endpoint of a URL."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.load.request import BODY_CHARACTERS, Expect, Request, check_answer, choices_of
from pytest_gpuserve.load.wire import Endpoint, Tls, endpoint_of

KNOWN_METHODS = st.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"])
# Rich in what could break out of its place in a request.
NASTY = st.text(st.one_of(st.sampled_from("\r\n\t\0 :;/?#%\x7f\x85\u2028é"), st.characters(codec="utf-8")), max_size=12)
PATHS = st.one_of(NASTY, NASTY.map(lambda text: f"/{text}"), st.just("/v2/models/m/infer?x=1"))
HEADERS = st.dictionaries(st.one_of(NASTY, st.from_regex(r"\A[A-Za-z-]{1,8}\Z")), NASTY, max_size=4)


@given(method=st.one_of(KNOWN_METHODS, NASTY), path=PATHS, headers=HEADERS, body=st.binary(max_size=64))
def test_a_request_is_refused_or_read_as_it_was_meant(
    method: str, path: str, headers: dict[str, str], body: bytes
) -> None:
    """For any parts, the bytes are one request of exactly these parts: injection is impossible."""
    try:
        request = Request(method, path, body, headers)
    except UsageProblem:
        return
    data = request.to_bytes("127.0.0.1:8000")
    ours = [("Host", "127.0.0.1:8000")]
    if body or method in {"POST", "PUT", "PATCH"}:
        ours.append(("Content-Length", str(len(body))))
    # Spaces around a value are no part of it (RFC 9110, 5.5).
    meant = sorted([*ours, *((name, value.strip(" ")) for name, value in headers.items())])
    # An independent reader of requests, which separates several in one stream.
    urls: list[bytes] = []
    fields: list[tuple[bytes, bytes]] = []
    bodies: list[bytes] = []
    ends: list[None] = []
    reader = httptools.HttpRequestParser(
        SimpleNamespace(
            on_url=urls.append,
            on_header=lambda *field: fields.append(field),
            on_body=bodies.append,
            on_message_complete=lambda: ends.append(None),
        )
    )
    try:
        reader.feed_data(data)
    except httptools.HttpParserInvalidMethodError:
        # The reader knows only registered methods; the first line shows where an own one ends.
        assert data.split(b"\r\n")[0] == f"{method} {path} HTTP/1.1".encode()
        return
    assert (reader.get_method(), urls) == (method.encode(), [path.encode()])
    assert sorted((name.decode(), value.decode()) for name, value in fields) == meant
    assert (b"".join(bodies), len(ends)) == (body, 1)


OURS = "set by the load engine"


@pytest.mark.parametrize(
    ("part", "values", "words"),
    [
        ("method", ["", "GET /other", "GET\r\n"], "method"),
        ("path", ["", "inference", "http://127.0.0.1/", "/a b", "/é", "/\r\nX: y"], "path"),
        ("headers", [{"": "x"}, {"A B": "x"}, {"A:": "x"}, {"A": "x\r\nB: y"}, {"A": "é"}, {"A": 1}], "header"),
        # The engine's own reading of answers depends on these.
        ("headers", [{"Host": "x"}, {"content-length": "1"}, {"Transfer-Encoding": "x"}, {"CONNECTION": "x"}], OURS),
        ("headers", [{"Connection": "keep-alive"}, {"Connection": "close, x"}], OURS),
    ],
)
def test_what_cannot_stand_in_a_request_is_a_usage_problem(part: str, values: list[Any], words: str) -> None:
    """Each of these is refused when the request is described, not when it is sent."""
    for value in values:
        with pytest.raises(UsageProblem, match=words):
            Request(**{"method": "GET", "path": "/", part: value})


def test_the_fingerprint_knows_every_part_but_not_the_order_of_headers() -> None:
    """Another method, path, header or body is another fingerprint; the same headers in another order are the same."""
    base = Request("POST", "/a", b"x", {"A": "1", "B": "2"})
    changes: list[dict[str, Any]] = [{}, {"method": "PUT"}, {"path": "/b"}, {"body": b"y"}, {"headers": {"A": "1"}}]
    prints = [replace(base, **change).fingerprint() for change in changes]
    assert all(prints.count(each) == 1 for each in prints)
    assert base.fingerprint() == replace(base, headers={"B": "2", "A": "1"}).fingerprint()


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


def test_a_difference_that_is_not_shown_has_its_place() -> None:
    """Two long bodies with one begin are shown alike, so the complaint says how many bytes are equal."""
    found = check_answer(b"x " * 100 + b"right", b"x " * 100 + b"wrong")
    assert found is not None
    assert found.endswith("(205 bytes); the first 200 bytes are equal")


@pytest.mark.parametrize("before", range(BODY_CHARACTERS - 20, BODY_CHARACTERS + 2))
def test_a_complaint_shows_no_secret_nor_the_half_of_one(monkeypatch: pytest.MonkeyPatch, before: int) -> None:
    """It holds for the answer and the expectation, at any cut."""
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijkl")
    body = b"x" * (before % 2) + b" x" * (before // 2) + b" hf_abcdefghijkl" + b" x" * 50
    for found in (check_answer(b"x", body), check_answer(body, b"x"), check_answer(_fails, body)):
        assert found is not None
        assert "hf_" not in found
        assert f"({len(body)} bytes)" in found


@pytest.mark.parametrize(
    ("body", "choices"),
    [
        (b"", 1),
        (b"not JSON", 1),
        (b"[1]", 1),
        (b'{"messages": [], "stream": true}', 1),
        (b'{"n": 2}', 2),
        (b'{"n": null}', 1),
        (b'{"n": 0}', 1),
        (b'{"prompt": ["a", "b", "c"], "n": 2}', 6),
        (b'{"prompt": [[1, 2], [3]]}', 2),
        (b'{"prompt": [1, 2, 3]}', 1),
        (b'{"prompt": "say \\"n\\": 2", "n": 1}', 1),
    ],
)
def test_a_request_for_several_answers_says_how_many(body: bytes, choices: int) -> None:
    """Each prompt has ``n`` answers in OpenAI's API; any other request has one."""
    assert choices_of(Request("POST", "/v1/completions", body).to_bytes("host:80")) == choices


RPC = "/inference.GRPCInferenceService/ModelInfer"


@pytest.mark.parametrize(
    ("url", "endpoint", "path"),
    [
        ("http://127.0.0.1:8000/infer?x=1&y=/", Endpoint("http", "127.0.0.1", 8000), "/infer?x=1&y=/"),
        ("http://localhost", Endpoint("http", "localhost", 80), "/"),
        ("HTTP://LocalHost:81?x", Endpoint("http", "localhost", 81), "/?x"),
        ("http://[::1]:80/", Endpoint("http", "::1", 80), "/"),
        ("https://[::1]/", Endpoint("http", "::1", 443, Tls("::1")), "/"),
        ("https://a-b.example/x", Endpoint("http", "a-b.example", 443, Tls("a-b.example")), "/x"),
        (f"grpc://h{RPC}", Endpoint("grpc", "h", 8001, rpc=RPC), RPC),
        (f"grpc://[::1]:9{RPC}", Endpoint("grpc", "::1", 9, rpc=RPC), RPC),
        (f"grpcs://h:9{RPC}", Endpoint("grpc", "h", 9, Tls("h"), rpc=RPC), RPC),
    ],
)
def test_a_url_says_where_and_what(url: str, endpoint: Endpoint, path: str) -> None:
    """Scheme, host, port with its default, and the path with its query."""
    assert endpoint_of(url) == (endpoint, path)


@pytest.mark.parametrize(
    "url",
    [
        *("", "127.0.0.1:8000/infer", "localhost", "ftp://h/"),
        *("http://", "http:///path", "http://:80/", "http://h:0/", "http://h:65536/", "http://h:x/"),
        *("http://[::1/", "http://[::1%25eth0]/", "http://[fe80::1%eth0]/"),
        *("http://a b/", "http://h/a b", "http://h/\r\nX: y", "http://h/é", "http://é/"),
        *("http://user@h/", "http://user:word@h/", "http://h/#part"),
        *("grpc://h", "grpc://h/service", "grpc://h/service/", "grpc://h//method", "grpc://h/a/b/c"),
        *("grpc://h/a?b/c", "grpc://h/a/b?c=d"),
        "worker:///queue.sock",
    ],
)
def test_what_cannot_be_loaded_is_refused(url: str) -> None:
    """Each of these is refused with the URL in the text: no part of it is silently ignored."""
    with pytest.raises(UsageProblem) as raised:
        endpoint_of(url)
    assert repr(url) in str(raised.value)


@pytest.mark.parametrize(
    ("host", "authority"), [("127.0.0.1", "127.0.0.1:80"), ("a.example", "a.example:80"), ("::1", "[::1]:80")]
)
def test_an_ipv6_address_stands_in_brackets_in_the_host_header(host: str, authority: str) -> None:
    """Otherwise its last group would look like the port."""
    assert Endpoint("http", host, 80).authority == authority
    assert Request("GET", "/").to_bytes(authority) == f"GET / HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode()
