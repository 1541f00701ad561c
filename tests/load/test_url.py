"""Endpoints from URLs, and refusals of invalid ones."""

from __future__ import annotations

import pytest

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.load.request import Request
from pytest_gpuserve.load.url import authority_of, endpoint_of
from pytest_gpuserve.load.wire import Endpoint, Tls

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
        (f"grpc://h{RPC}", Endpoint("grpc", "h", 8001, rpc=RPC, authority="h:8001"), RPC),
        (f"grpc://[::1]:9{RPC}", Endpoint("grpc", "::1", 9, rpc=RPC, authority="[::1]:9"), RPC),
        (f"grpcs://h:9{RPC}", Endpoint("grpc", "h", 9, Tls("h"), rpc=RPC, authority="h:9"), RPC),
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
    assert authority_of(host, 80) == authority
    assert Request("GET", "/").to_bytes(host, 80) == f"GET / HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode()
