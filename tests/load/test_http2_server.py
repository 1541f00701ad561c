"""The gRPC transport against a real gRPC server, over real sockets."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.load.engine.http2 import Http2
from pytest_gpuserve.load.engine.reactor import Reactor
from pytest_gpuserve.load.wire import Endpoint
from tests.fakes.grpc_server import serving_grpc
from tests.fakes.http2_peer import Recorder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpuserve.load.engine.transport import Slot

BIG = b"0123456789abcdef" * (1 << 16)
SECOND_NS = 1_000_000_000


class Load(Recorder):
    """A closed loop that ends its reactor when so many requests have ended, or all slots are gone."""

    def __init__(self, port: int, method: str, *, payload: bytes = b"x", requests: int = 1, slots: int = 1) -> None:
        super().__init__()
        self.payload = payload
        self.left = requests
        self.open_slots = slots
        self.ended_at_ns: list[int] = []
        self.reactor = Reactor()
        endpoint = Endpoint("grpc", "127.0.0.1", port, rpc=f"/fake.Fake/{method}")
        self.transport = Http2(endpoint, self.reactor, self, SECOND_NS)
        self.then = self._after
        for place in range(slots):
            self.transport.open(place)

    def ready(self, slot: Slot) -> None:
        """Send at once."""
        super().ready(slot)
        self._next(slot)

    def _after(self, slot: Slot) -> None:
        if slot in self.gone:
            self.open_slots -= 1
        else:
            self._next(slot)
        if not self.busy and (not self.left or not self.open_slots):
            self.reactor.stop()

    def _next(self, slot: Slot) -> None:
        if self.left:
            self.left -= 1
            self.send(slot, self.payload)


def run(load: Load) -> Load:
    """Run it until it ends by itself; a test that would hang fails instead."""

    def hung() -> None:
        raise AssertionError(f"{len(load.busy)} requests are still under way")

    load.reactor.at(time.perf_counter_ns() + 60 * SECOND_NS, hung)
    try:
        load.reactor.run()
    finally:
        load.transport.close()
        load.reactor.close()
    return load


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Port of a server for all tests of this file that do not kill it."""
    with serving_grpc() as serving:
        yield serving.port


@pytest.mark.parametrize(
    ("slots", "requests", "payload"), [(1, 600, b"ping"), (40, 600, b"ping"), (1, 2, b""), (8, 24, BIG)]
)
def test_every_request_is_answered(port: int, slots: int, requests: int, payload: bytes) -> None:
    """On any number of slots all are answered with what was sent, if empty, or 1 MB in many frames side by side."""
    load = run(Load(port, "Echo", payload=payload, requests=requests, slots=slots))
    assert [body for _, body, _ in load.answers] == [payload] * requests
    assert load.failures == []


@pytest.mark.parametrize("killed", [True, False])
def test_a_server_that_ends_ends_every_request_once(*, killed: bool) -> None:
    """Killed, or shut down, in order or not: all end, as answers or failures of known kinds, and no slot is left."""
    with serving_grpc() as serving:
        load = Load(serving.port, "Echo", requests=1 << 30, slots=16)
        assert serving.process.stdin is not None
        end = serving.process.kill if killed else serving.process.stdin.close
        load.reactor.at(time.perf_counter_ns() + SECOND_NS // 2, end)
        run(load)
    assert load.answers
    if killed:
        assert set(load.kinds) <= {"connection closed", "connection reset", "incomplete answer"}
    assert len(load.answers) + len(load.failures) == load.sent
    assert len(load.gone) == 16
