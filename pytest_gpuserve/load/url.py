"""Endpoints from URLs."""

from __future__ import annotations

import re
from typing import Final, Literal
from urllib.parse import SplitResult, urlsplit

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.load.wire import Endpoint, Tls

DEFAULT_PORTS: Final = {"http": 80, "https": 443, "grpc": 8001, "grpcs": 8001}

_METHOD: Final = re.compile(r"/[^/?]+/[^/?]+")


def authority_of(host: str, port: int) -> str:
    """Return a server's name in a request: ``host:port``, an IPv6 address in brackets (RFC 3986, 3.2.2)."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def endpoint_of(url: str, *, stream: bool = False) -> tuple[Endpoint, str]:
    """Return the endpoint of a URL, and the path with its query.

    ``http`` and ``https`` are HTTP/1.1; ``grpc`` and ``grpcs`` unary calls whose method is the path, such as
    ``grpc://127.0.0.1:8001/inference.GRPCInferenceService/ModelInfer``.

    Args:
        url: The URL.
        stream: Whether answers are server-sent events.

    Raises:
        UsageProblem: The URL is not of this form.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as problem:
        raise UsageProblem(f"{url!r} is no URL", found=str(problem)) from problem
    if not url.isascii() or not url.isprintable() or " " in url:
        raise UsageProblem(
            f"{url!r} is no URL",
            found="a space, a control character or one beyond ASCII",
            remedies=["quote what is not plain ASCII with urllib.parse.quote; write a host's name in its xn-- form"],
        )
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
        raise UsageProblem(
            f"{url!r} is not a URL that can be loaded",
            remedies=[
                "http://HOST:PORT/PATH or https://...",
                "grpc://HOST:PORT/SERVICE/METHOD or grpcs://...",
            ],
        )
    _check_server(url, parts)
    tls = Tls(parts.hostname) if parts.scheme in {"https", "grpcs"} else None
    port = port or DEFAULT_PORTS[parts.scheme]
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if parts.scheme.startswith("grpc"):
        if not _METHOD.fullmatch(path):
            raise UsageProblem(
                f"{url!r}: the path of a gRPC URL is /SERVICE/METHOD",
                remedies=["Triton's is /inference.GRPCInferenceService/ModelInfer"],
            )
        authority = authority_of(parts.hostname, port)
        return Endpoint("grpc", parts.hostname, port, tls, rpc=path, authority=authority), path
    protocol: Literal["http", "sse"] = "sse" if stream else "http"
    return Endpoint(protocol, parts.hostname, port, tls), path


def _check_server(url: str, parts: SplitResult) -> None:
    """Refuse parts that would be silently ignored, or cannot be a server."""
    if parts.username is not None or parts.fragment:
        raise UsageProblem(
            f"{url!r}: a user or a fragment in a URL is not sent",
            remedies=["a user is a header: Authorization: ..."],
        )
    if "%" in (parts.hostname or ""):
        raise UsageProblem(f"{url!r}: an address with a zone cannot be loaded", found=repr(parts.hostname))
    if parts.port == 0:
        raise UsageProblem(f"{url!r}: nothing listens on port 0")
