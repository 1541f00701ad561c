"""Loads of a real gRPC server, over real sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from pytest_gpuserve.load.driver import Engines
from pytest_gpuserve.load.wire import Endpoint
from tests.fakes.grpc_server import serving_grpc
from tests.fakes.http_server import Totals, plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpuserve.load.wire import Plan

BIG = b"0123456789abcdef" * (1 << 16)


def echo(port: int, payload: bytes = b"x", **more: Any) -> Plan:  # noqa: ANN401 -- of the plan
    """Plan a load with calls that are answered with what was sent."""
    endpoint = Endpoint("grpc", "127.0.0.1", port, rpc="/fake.Fake/Echo")
    return msgspec.structs.replace(plan(port, **more), endpoint=endpoint, payloads=((payload,),))


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Port of a server for all tests of this file that do not kill it."""
    with serving_grpc() as serving:
        yield serving.port


@pytest.mark.parametrize(
    ("users", "requests", "payload"), [(1, 600, b"ping"), (40, 600, b"ping"), (1, 2, b""), (8, 24, BIG)]
)
def test_every_request_is_answered(port: int, users: int, requests: int, payload: bytes) -> None:
    """All are answered with what was sent, on any number of connections: if empty, or 1 MB in many frames."""
    with Engines(echo(port, payload, connections=users, requests=requests)) as engine:
        totals = Totals(engine).take_to_end()
    assert totals.answers == {payload: requests}
    assert not totals.errors


@pytest.mark.parametrize("killed", [True, False])
def test_a_server_that_ends_ends_every_request_once(*, killed: bool) -> None:
    """Killed, or shut down in order: each request ends as an answer or a failure of a known kind."""
    with serving_grpc() as serving, Engines(echo(serving.port, connections=16)) as engine:
        totals = Totals(engine).take_until(lambda totals, _: totals.requests > 100, "load")
        assert serving.process.stdin is not None
        (serving.process.kill if killed else serving.process.stdin.close)()
        totals.take_until(lambda _, tick: "connection refused" in tick.errors, "its end is noticed")
        totals.take_waiting(0)
    kinds = {"connection refused", "connection closed", "connection reset", "incomplete answer"}
    assert {kind for kind in totals.errors if not kind.startswith(("grpc status", "stream reset"))} <= kinds
    assert totals.sent == totals.ended - totals.errors["connection refused"]
