"""Queries to a running server besides its inferences: metrics, statistics, settings."""

from __future__ import annotations

import http.client
import os
from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.process.logs import excerpt
from pytest_gpuserve.process.ready import redirected, verified_tls
from pytest_gpuserve.process.secrets import secret_headers
from pytest_gpuserve.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpuserve.servers.base import Site

START_SHARE: Final = 0.25
"""Share of the start timeout that one answer may take."""


class Reply(NamedTuple):
    """A server's answer."""

    status: int
    body: bytes
    location: str


def fetch(site: Site, path: str, *, what: str, method: str = "GET", headers: Mapping[str, str] | None = None) -> bytes:
    """Query a server, and return the body of its answer; see `query`.

    Raises:
        ServerFailed: No complete answer came in time, or its status is not 200.
    """
    reply = query(site, path, what=what, method=method, headers=headers)
    if reply.status != http.client.OK:
        said = excerpt(reply.body.decode(errors="replace"), {**os.environ, **secret_headers(headers or {})})
        raise ServerFailed(what, found=f"status {reply.status}{redirected(reply.location)}: {said}")
    return reply.body


def query(
    site: Site,
    path: str,
    *,
    what: str,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
) -> Reply:
    """Query a server; an answer of any status is returned.

    Args:
        site: Place of the server; the limit is a quarter of its start timeout.
        path: Path of the query.
        what: Error text if the answer is missing.
        method: HTTP method.
        headers: Headers, such as a token.
        body: Body.

    Raises:
        ServerFailed: No complete answer came in time.
    """
    seconds = START_SHARE * site.start_timeout_seconds
    connection = (
        http.client.HTTPSConnection(site.host, site.port, timeout=seconds, context=verified_tls(site.ca_file))
        if site.tls
        else http.client.HTTPConnection(site.host, site.port, timeout=seconds)
    )
    try:
        connection.request(method, path, body or None, dict(headers or {}))
        answer = connection.getresponse()
        return Reply(answer.status, answer.read(), answer.headers.get("Location", ""))
    except TimeoutError:
        raise ServerFailed(
            what,
            found=f"no answer in {format_seconds(seconds)}, a quarter of the start timeout",
            remedies=[f"if the server only needs longer, allow more: start_timeout={2 * site.start_timeout_seconds:g}"],
        ) from None
    except (OSError, http.client.HTTPException) as problem:
        raise ServerFailed(what, found=str(problem) or repr(problem)) from None
    finally:
        connection.close()
