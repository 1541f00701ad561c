"""A request names the server that it goes to, also where one plan is for the workers of several."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuserve.load.request import Request
from pytest_gpuserve.load.schedule import Closed
from pytest_gpuserve.load.url import addressed
from pytest_gpuserve.load.wire import Endpoint, Plan

HOSTS = ("127.0.0.1", "one.example", "two.example", "::1")


def plan_of(*endpoints: Endpoint, requests: tuple[Request, ...], part: int = 0) -> Plan:
    """The plan of a worker whose requests were serialised for the first of these."""
    first, *others = endpoints
    return Plan(
        endpoint=first,
        replicas=tuple(others),
        payloads=tuple((request.to_bytes(first.host, first.port),) for request in requests),
        schedule=Closed(4),
        tick_ns=1,
        timeout_ns=1,
        part=part,
        parts=4,
    )


@settings(deadline=None)
@given(
    endpoints=st.lists(
        st.builds(Endpoint, st.sampled_from(["http", "sse"]), st.sampled_from(HOSTS), st.integers(1, 65535)),
        min_size=1,
        max_size=4,
    ),
    body=st.binary(max_size=40) | st.sampled_from([b"\r\nHost: 127.0.0.1:1\r\n", b"\r\n\r\n"]),
    part=st.integers(0, 9),
)
def test_it_is_what_it_would_be_if_it_were_made_for_that_server(
    endpoints: list[Endpoint], body: bytes, part: int
) -> None:
    """To the letter, whatever its body is: those that rotate, and of each all forms."""
    request = Request("POST", "/infer", body, {"X-Host": "Host: 127.0.0.1:1"})
    plan = plan_of(*endpoints, requests=(request, Request("GET", "/")), part=part)
    plan = msgspec.structs.replace(plan, payloads=tuple(forms * 2 for forms in plan.payloads))
    own = plan.own_endpoint()
    made = [(each.to_bytes(own.host, own.port),) * 2 for each in (request, Request("GET", "/"))]
    assert addressed(plan).payloads == tuple(made)


def test_what_names_no_server_is_left_alone() -> None:
    """Messages of other protocols, where gRPC's connection does, and a payload that somebody else wrote."""
    get = (Request("GET", "/"),)
    first = Endpoint("grpc", "a", 1)
    plan = plan_of(first, msgspec.structs.replace(first, host="b"), requests=get, part=1)
    assert addressed(plan) is plan
    plan = plan_of(Endpoint("http", "a", 1), Endpoint("http", "b", 2), requests=get, part=1)
    odd = msgspec.structs.replace(plan, payloads=((b"GET / HTTP/1.1\r\nX: y\r\nHost: a:1\r\n\r\n", b"raw"),))
    assert addressed(odd).payloads == odd.payloads
