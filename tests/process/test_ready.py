"""Waiting for a server: what ends the wait, and what its errors say."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.process import ready
from pytest_gpuserve.process.child import Process
from pytest_gpuserve.process.deadline import Deadline
from pytest_gpuserve.process.ports import free_port, free_ports
from pytest_gpuserve.process.ready import Ask, NotReady, Patience
from tests.fakes.children.toolkit import SAFETY_SECONDS, child, eventually, program

if TYPE_CHECKING:
    from pathlib import Path


def patience() -> Patience:
    """More than any of these answers takes."""
    return Patience(Deadline.after(SAFETY_SECONDS))


def unanswered() -> ready.Probe:
    """A probe of a port without a listener."""
    return ready.http_probe("127.0.0.1", free_port(), Ask("GET", "/"), patience=patience())


def test_a_server_is_ready_when_its_own_tree_answers_as_it_should(tmp_path: Path) -> None:
    """The wait lasts through refused connections and refused answers until the right one comes."""
    port = free_port()
    refused = []

    def accept(status: int, body: bytes, _: str) -> str | None:
        refused.append(status)
        return None if status == 200 and body == b"HELLO" else "the model is not loaded"

    request = Ask("POST", "/infer", b"hello", {"Content-Type": "text/plain"})
    with Process.start(child("model_server", port, "loading=3", folder=tmp_path)) as process:
        probe = ready.all_of(
            ready.owned_port_probe(process, port),
            ready.http_probe("127.0.0.1", port, request, accept, patience=patience()),
        )
        ready.wait(probe, process, Deadline.after(SAFETY_SECONDS), what="echo server")
    assert refused == [503, 503, 503, 200]


@pytest.mark.parametrize(("code", "advice"), [(0, "keep the server in the foreground"), (3, "run it by hand")])
def test_an_exit_with_any_code_ends_the_wait_at_once(code: int, advice: str, tmp_path: Path) -> None:
    """An exit is an error with the code, the log's tail and advice, after any observation of the probe."""
    script = f"echo loading; echo no such model >&2; exit {code}"
    began = time.monotonic()
    with Process.start(program("sh", "-c", script, folder=tmp_path)) as process:
        with pytest.raises(ServerFailed) as failure:
            ready.wait(unanswered(), process, Deadline.after(600), what="mosec server echo.py")
        assert time.monotonic() - began < SAFETY_SECONDS
        with pytest.raises(ServerFailed, match="ended before it was ready"):
            ready.wait(lambda: None, process, Deadline.after(600), what="server")
    text = str(failure.value)
    assert text.startswith("mosec server echo.py ended before it was ready")
    assert f"exit code {code} after" in text
    assert "    | loading\n    | no such model" in text
    assert advice in text
    assert str(tmp_path / "log") in text


def test_a_passed_deadline_tells_the_last_reason_and_the_remedy(tmp_path: Path) -> None:
    """A deadline's error has the allowance, what was seen last, the log's tail and the argument that allows more."""
    port = free_port()
    with Process.start(child("model_server", port, "never", "says=loading", folder=tmp_path)) as process:
        eventually(lambda: port in process.listening_ports(), "the server listens")
        probe = ready.http_probe("127.0.0.1", port, Ask("POST", "/infer"), patience=patience())
        with pytest.raises(ServerFailed) as failure:
            ready.wait(probe, process, Deadline.after(0.5), what="slow server")
        assert process.exit_status() is None
    text = str(failure.value)
    assert "slow server was not ready in 500 ms" in text
    assert f"POST http://127.0.0.1:{port}/infer answered status 503, body b'no worker  '" in text
    assert "status 200 is needed" in text
    assert "start_timeout=1" in text
    assert "    | loading" in text


def test_a_foreign_server_on_the_port_is_refused_by_name(tmp_path: Path) -> None:
    """When a stranger listens on the port, the wait ends with its pid and command line instead of using it."""
    port = free_port()
    stranger = child("model_server", port, folder=tmp_path)
    with Process.start(stranger) as foreign, Process.start(program("sleep", "600", folder=tmp_path)) as process:
        eventually(lambda: port in foreign.listening_ports(), "the stranger listens")
        probe = ready.all_of(
            ready.owned_port_probe(process, port),
            ready.http_probe("127.0.0.1", port, Ask("GET", "/"), patience=patience()),
        )
        with pytest.raises(ServerFailed, match=f"a foreign server answers on port {port}") as failure:
            ready.wait(probe, process, Deadline.after(600), what="server")
        assert f"pid {foreign.pid} ({stranger}" in str(failure.value)
        assert "run again" in str(failure.value)


def test_a_silent_server_is_not_ready_and_holds_nobody_up() -> None:
    """A connection that is accepted but never answered counts as not ready after the wait's deadline."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        seen = ready.http_probe("127.0.0.1", port, Ask("GET", "/"), patience=Patience(Deadline.after(0.1)))()
    assert seen == NotReady(f"GET http://127.0.0.1:{port}/ was not answered in 100 ms")


def test_a_server_on_another_port_is_told(tmp_path: Path) -> None:
    """A server that listens elsewhere does not know its port, which helps more than a longer wait."""
    port, other = free_ports(2)
    with Process.start(child("model_server", other, folder=tmp_path)) as process:
        eventually(lambda: other in process.listening_ports(), "it listens")
        seen = ready.owned_port_probe(process, port)()
    assert seen is not None
    assert seen.reason.endswith(f"; it listens on 127.0.0.1:{other}: has it been told its port?")


def test_a_port_without_a_server_is_not_ready(tmp_path: Path) -> None:
    """Each probe has words for it; success is accepted after the deadline."""
    port = free_port()
    with Process.start(program("sleep", "600", folder=tmp_path)) as process:
        seen = ready.owned_port_probe(process, port)()
        assert seen == NotReady(f"the server does not listen on port {port} yet")
        ready.wait(lambda: None, process, Deadline.after(0), what="server")
    seen = ready.http_probe("127.0.0.1", port, Ask("GET", "/"), patience=patience())()
    assert seen is not None
    assert "Connection refused" in seen.reason


def test_half_of_what_is_left_is_for_one_answer() -> None:
    """An answer may take long, and a lost request is sent again; short waits are not cut into many tries."""
    for left, seconds in ((120.0, 60.0), (8.0, 5.0), (3.0, 3.0), (0.0, 0.05)):
        assert Patience(Deadline.after(left)).seconds() == pytest.approx(seconds, abs=0.01)


def test_a_server_that_ends_is_not_waited_for() -> None:
    """Its end is seen while its answer is waited for, also where a process that it left behind holds the socket."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        alive = iter([True, False])
        began = time.monotonic()
        seen = ready.http_probe(
            "127.0.0.1", port, Ask("GET", "/"), patience=Patience(Deadline.after(600), lambda: next(alive))
        )()
    assert seen is not None
    assert "it has ended" in seen.reason
    assert time.monotonic() - began < SAFETY_SECONDS
