"""What a request says of whom it is for, where a load goes to several servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from pytest_gpuserve.load.url import authority_of

if TYPE_CHECKING:
    from pytest_gpuserve.load.wire import Endpoint, Plan


def addressed(plan: Plan) -> Plan:
    """Return a worker's plan with requests that name the server which they go to.

    Requests are serialised once for all workers, with the ``Host`` of ``plan.endpoint``; a server that answers to
    several names, or a proxy before it, goes by that (RFC 9110, 7.2). A gRPC connection names its server by itself.
    """
    own = plan.own_endpoint()
    if own == plan.endpoint or own.protocol not in {"http", "sse"}:
        return plan
    said, right = _host_line(plan.endpoint), _host_line(own)
    payloads = tuple(tuple(_with_host(form, said, right) for form in forms) for forms in plan.payloads)
    return msgspec.structs.replace(plan, payloads=payloads)


def _host_line(endpoint: Endpoint) -> bytes:
    return f"\r\nHost: {authority_of(endpoint.host, endpoint.port)}\r\n".encode("ascii")


def _with_host(form: bytes, said: bytes, right: bytes) -> bytes:
    """The same request with another host in its second line, where ``Request.to_bytes`` writes it."""
    first = form.find(b"\r\n")
    return form[:first] + right + form[first + len(said) :] if form.startswith(said, first) else form
