"""The gRPC transport against a real gRPC server, over real sockets."""

from __future__ import annotations

import json
import socket
import time
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.load.engine.http2 import Http2
from pytest_gpuserve.load.engine.reactor import Reactor
from pytest_gpuserve.load.wire import Endpoint
from tests.fakes.grpc_server import MESSAGE, serving_grpc
from tests.fakes.http2_peer import Recorder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpuserve.load.engine.lane import Lane

BIG = b"0123456789abcdef" * (1 << 16)
SECOND_NS = 1_000_000_000
SAFETY_NS = 60 * SECOND_NS


class Load(Recorder):
    """A closed loop that ends its reactor when so many requests have ended, or all lanes are gone.

    Args:
        port: Of the server.
        method: Which it calls.
        payload: What it sends.
        requests: How many.
        lanes: On how many lanes.
    """

    def __init__(self, port: int, method: str, *, payload: bytes = b"x", requests: int = 1, lanes: int = 1) -> None:
        super().__init__()
        self.payload = payload
        self.left = requests
        self.open_lanes = lanes
        self.ended_at_ns: list[int] = []
        self.reactor = Reactor()
        endpoint = Endpoint("grpc", "127.0.0.1", port, rpc=f"/fake.Fake/{method}")
        self.transport = Http2(endpoint, self.reactor, self, SECOND_NS)
        self.then = self._after
        for place in range(lanes):
            self.transport.open(place)

    def __enter__(self) -> Load:  # noqa: PYI034 -- Python 3.10 has no ``Self``
        return self

    def __exit__(self, *_: object) -> None:
        self.transport.close()
        self.reactor.close()

    def run(self) -> Load:
        """Run until it ends by itself; a test that would hang fails instead."""
        self.reactor.at(time.perf_counter_ns() + SAFETY_NS, self._hung)
        self.reactor.run()
        return self

    def _hung(self) -> None:
        raise AssertionError(f"after {SAFETY_NS / SECOND_NS:g} s, {len(self.busy)} requests are still under way")

    def ready(self, lane: Lane) -> None:
        """Send at once."""
        super().ready(lane)
        self._next(lane)

    def _after(self, lane: Lane) -> None:
        if lane in self.gone:
            self.open_lanes -= 1
        else:
            self._next(lane)
        if not self.busy and (not self.left or not self.open_lanes):
            self.reactor.stop()

    def _next(self, lane: Lane) -> None:
        if self.left:
            self.left -= 1
            self.send(lane, self.payload)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Port of a server for all tests of this file that do not kill it."""
    with serving_grpc() as serving:
        yield serving.port


@pytest.mark.parametrize("lanes", [1, 6, 40])
def test_every_request_is_answered(port: int, lanes: int) -> None:
    """Many requests on any number of seats are all answered with what was sent."""
    with Load(port, "Echo", payload=b"ping", requests=600, lanes=lanes) as load:
        load.run()
    assert [body for _, body, _ in load.answers] == [b"ping"] * 600
    assert load.failures == []


def test_an_empty_message_is_a_message(port: int) -> None:
    """A message of no bytes is sent and answered."""
    with Load(port, "Echo", payload=b"", requests=2) as load:
        assert [body for _, body, _ in load.run().answers] == [b"", b""]


def test_long_messages_go_both_ways(port: int) -> None:
    """Messages of 1 MB, which need many frames and window updates, arrive whole, also side by side."""
    with Load(port, "Echo", payload=BIG, requests=24, lanes=8) as load:
        load.run()
    assert len(load.answers) == 24
    assert {body for _, body, _ in load.answers} == {BIG}


def test_a_status_is_told_in_the_servers_words(port: int) -> None:
    """An error status is a failure by its name, with the decoded message, and the lane goes on."""
    with Load(port, "Fail", requests=3) as load:
        load.run()
    assert load.failures == [(0, "grpc status NOT_FOUND", MESSAGE, True)] * 3


def test_an_unknown_method_is_unimplemented(port: int) -> None:
    """GRPC's answer without a body, of trailers only, is understood."""
    with Load(port, "Nothing") as load:
        assert load.run().kinds == ["grpc status UNIMPLEMENTED"]


def test_a_timed_out_request_leaves_its_connection_usable(port: int) -> None:
    """A slow request is given up; the same seat's next one, and the other seats, are not disturbed."""
    with Load(port, "Slow", requests=2, lanes=2) as load:

        def expire() -> None:
            for lane in list(load.busy):
                lane.expire(0.2)

        load.reactor.at(time.perf_counter_ns() + SECOND_NS // 5, expire)
        load.run()
        assert load.kinds == ["timeout", "timeout"]
        assert not load.gone
    with Load(port, "Count") as load:
        [(_, body, _)] = load.run().answers
    assert json.loads(body)["Slow"] == 2


def test_a_killed_server_ends_every_request_once() -> None:
    """The requests under way are failures of known kinds, no lane is left, and nothing hangs."""
    with serving_grpc() as serving, Load(serving.port, "Echo", requests=1 << 30, lanes=16) as load:
        load.reactor.at(time.perf_counter_ns() + SECOND_NS // 2, serving.process.kill)
        load.run()
    assert load.answers
    assert set(load.kinds) <= {"connection closed", "connection reset", "incomplete answer"}
    assert len(load.answers) + len(load.failures) == load.sent
    assert len(load.gone) == 16


def test_a_stopped_server_says_goodbye() -> None:
    """A server that is shut down closes in order or breaks off: every request ends, as an answer or a known failure."""
    with serving_grpc() as serving, Load(serving.port, "Echo", requests=1 << 30, lanes=8) as load:
        assert serving.process.stdin is not None
        load.reactor.at(time.perf_counter_ns() + SECOND_NS // 2, serving.process.stdin.close)
        load.run()
    assert len(load.answers) + len(load.failures) == load.sent
    assert len(load.gone) == 8


def test_a_port_without_a_server_refuses() -> None:
    """Every lane is told so, and none becomes ready."""
    with socket.socket() as bound:
        # Bound but not listening: nobody else gets the port, and connections are refused.
        bound.bind(("127.0.0.1", 0))
        with Load(bound.getsockname()[1], "Echo", lanes=8) as load:
            load.run()
    assert load.lost_idle == [(place, "connection refused") for place in range(8)]
    assert load.lanes == []


def test_a_server_that_says_nothing_is_a_connect_timeout() -> None:
    """A connection that only the kernel has accepted is given up after the time-out."""
    with socket.create_server(("127.0.0.1", 0)) as silent, Load(silent.getsockname()[1], "Echo") as load:
        load.run()
    assert load.lost_idle == [(0, "connect timeout")]
