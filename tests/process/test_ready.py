"""Waiting for a server: what ends the wait, and what its errors say."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.process import ready
from pytest_gpuserve.process.child import Process
from pytest_gpuserve.process.ports import claimed_ports, free_port
from pytest_gpuserve.process.ready import Ask
from pytest_gpuserve.units import Deadline
from tests.fakes.children.toolkit import SAFETY_SECONDS, child, eventually, program


def long() -> Deadline:
    """More than any of these answers takes."""
    return Deadline.after(SAFETY_SECONDS)


def test_a_server_is_ready_when_its_own_tree_answers_as_it_should(tmp_path: Path) -> None:
    """The wait lasts through refused connections and refused answers until the right one comes."""
    port = free_port()
    refused = []

    def accept(status: int, body: bytes, _: str) -> str | None:
        refused.append(status)
        return None if status == 200 and body == b"HELLO" else "the model is not loaded"

    request = Ask("POST", "/infer", b"hello", {"Content-Type": "text/plain"})
    with Process.start(child("model_server", port, "loading=3", folder=tmp_path)) as process:
        probes = [
            ready.owned_port_probe(process, port),
            ready.http_probe("127.0.0.1", port, request, accept, deadline=long()),
        ]
        ready.wait(probes, process, Deadline.after(SAFETY_SECONDS), what="echo server")
    assert refused == [503, 503, 503, 200]


def test_a_silent_server_is_not_ready_and_holds_nobody_up() -> None:
    """A connection that is accepted but never answered counts as not ready after the wait's deadline."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        seen = ready.http_probe("127.0.0.1", port, Ask("GET", "/"), deadline=Deadline.after(0.1))()
    assert seen == f"GET http://127.0.0.1:{port}/ was not answered in 100 ms"


def test_a_server_on_another_port_is_told(tmp_path: Path) -> None:
    """A server that listens elsewhere does not know its port, which helps more than a longer wait."""
    with claimed_ports(2) as ports:
        port, other = ports
    with Process.start(child("model_server", other, folder=tmp_path)) as process:
        eventually(lambda: bool(process.listening_addresses()), "it listens")
        seen = ready.owned_port_probe(process, port)()
    assert seen is not None
    assert seen.endswith(f"; it listens on 127.0.0.1:{other}: has it been told its port?")


def test_a_port_without_a_server_is_not_ready(tmp_path: Path) -> None:
    """Each probe names a port without a server; success is accepted after the deadline."""
    port = free_port()
    with Process.start(program("sleep", "600", folder=tmp_path)) as process:
        seen = ready.owned_port_probe(process, port)()
        assert seen == f"the server does not listen on port {port} yet"
        ready.wait([lambda: None], process, Deadline.after(0), what="server")
    seen = ready.http_probe("127.0.0.1", port, Ask("GET", "/"), deadline=long())()
    assert seen is not None
    assert "Connection refused" in seen


def test_half_of_what_is_left_is_for_one_answer() -> None:
    """An answer may take long, and a lost request is sent again; short waits are not cut into many tries."""
    for left, seconds in ((120.0, 60.0), (8.0, 5.0), (3.0, 3.0), (0.0, 0.05)):
        assert ready.answer_seconds(Deadline.after(left)) == pytest.approx(seconds, abs=0.01)


def test_a_server_that_ends_is_not_waited_for(tmp_path: Path) -> None:
    """A server's end is seen while its answer is awaited, even if its remains hold the socket or answer."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        statuses = iter([None, 0])
        ending: Any = SimpleNamespace(command=SimpleNamespace(env={}), exit_status=lambda: next(statuses))
        began = time.monotonic()
        seen = ready.http_probe("127.0.0.1", port, Ask("GET", "/"), deadline=Deadline.after(600), process=ending)()
    assert seen is not None
    assert "it has ended" in seen
    assert time.monotonic() - began < SAFETY_SECONDS
    with Process.start(program("true", folder=tmp_path)) as process:
        process.wait(SAFETY_SECONDS)
        with pytest.raises(ServerFailed, match="ended before it was ready") as caught:
            ready.wait([lambda: None], process, Deadline.after(600), what="server")
    # Not the time of the wait, which begins only when both servers of a comparison have been launched.
    assert caught.value.found == "exit code 0"


def test_a_foreign_server_on_the_port_is_refused_by_name(tmp_path: Path) -> None:
    """A stranger that listens on the port ends the wait with its pid and command line."""
    port = free_port()
    stranger = child("model_server", port, folder=tmp_path)
    with Process.start(stranger) as foreign, Process.start(program("sleep", "600", folder=tmp_path)) as process:
        eventually(lambda: bool(foreign.listening_addresses()), "the stranger listens")
        with pytest.raises(ServerFailed, match=f"a foreign server answers on port {port}") as failure:
            ready.owned_port_probe(process, port)()
        assert f"pid {foreign.pid} ({stranger}" in str(failure.value)
        assert "run again" in str(failure.value)
