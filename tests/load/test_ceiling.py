"""What the engine reaches on this host is measured once and remembered."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import msgspec
import psutil
import pytest

from pytest_gpuserve.device.host import read_host
from pytest_gpuserve.errors import LoadFailed, UsageProblem
from pytest_gpuserve.load import ceiling
from pytest_gpuserve.load.ceiling import client_ceiling, load_ceiling, measure_ceiling
from pytest_gpuserve.load.driver import Engines
from pytest_gpuserve.load.schedule import Closed
from pytest_gpuserve.load.totals import Totals
from pytest_gpuserve.load.wire import Endpoint, Plan, Tick, Tls
from pytest_gpuserve.process.command_line import module_command
from tests.fakes.children.toolkit import ROOT, alive, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator


SAFETY_SECONDS = 60.0


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Remember below a folder of the test, which does not exist yet; returns the file."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "pytest-gpuserve" / "client-ceilings.json"


def measuring(monkeypatch: pytest.MonkeyPatch, *results: float | Exception) -> mock.Mock:
    """Let the measurement give these numbers one after the other; returns it."""
    measure = mock.Mock(side_effect=results)
    monkeypatch.setattr(ceiling, "measure_ceiling", measure)
    return measure


def test_it_is_measured_once(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """The second time it is remembered, by a file for this user alone to write."""
    measured = measuring(monkeypatch, 1000.0)
    assert client_ceiling(100, 100) == client_ceiling(100, 100) == 1000.0
    assert [call.args for call in measured.call_args_list] == [(128, 128)]
    assert list(json.loads(cache.read_text()).values()) == [1000.0]
    assert not cache.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    assert [file.name for file in cache.parent.iterdir()] == [cache.name]


def test_sizes_that_the_kernel_cannot_tell_apart_share_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The next power of two, from 64 bytes to 16 MB; the file may be anywhere, and keeps all."""
    file = tmp_path / "elsewhere.json"
    measured = measuring(monkeypatch, 1.0, 2.0, 3.0, 4.0)
    sizes = [(65, 0), (128, 64), (129, 0), (65, 65), (10**12, 10**12)]
    assert [client_ceiling(*size, cache=file) for size in sizes] == [1.0, 1.0, 2.0, 3.0, 4.0]
    assert [call.args for call in measured.call_args_list] == [(128, 64), (256, 64), (128, 128), (1 << 24, 1 << 24)]
    assert sorted(json.loads(file.read_text()).values()) == [1.0, 2.0, 3.0, 4.0]


def test_another_host_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A home folder may be shared by many machines; one that is no name is the user's to mend, and not passed over."""
    measured = measuring(monkeypatch, 1000.0, 2000.0)
    found = []
    for host in ("runner-a", "runner-b", "runner-a"):
        monkeypatch.setenv("GPUSERVE_HOST", host)
        found.append(client_ceiling(100, 100))
    assert (found, measured.call_count) == ([1000.0, 2000.0, 1000.0], 2)
    monkeypatch.setenv("GPUSERVE_HOST", "not / a name")
    with pytest.raises(UsageProblem, match="GPUSERVE_HOST"):
        client_ceiling(100, 100)


@pytest.mark.parametrize(("processes", "cores", "together"), [(1, 2, 1000.0), (2, 4, 2000.0), (8, 2, 2000.0)])
def test_the_ceiling_of_a_load(monkeypatch: pytest.MonkeyPatch, processes: int, cores: int, together: float) -> None:
    """What one engine reaches, once for each core at most; of any but plain HTTP/1.1 it is unknown, not measured."""
    measuring(monkeypatch, 1000.0)
    host = dataclasses.replace(read_host(), cores=cores)
    monkeypatch.setattr(ceiling, "read_host", lambda: host)
    plan = Plan(Endpoint("http", "127.0.0.1", 80), ((b"x" * 100,),), Closed(1), 1, 1)
    assert load_ceiling(plan, processes, Totals(requests=500)) == together
    assert load_ceiling(plan, processes, Totals()) is None
    for other in (Endpoint("grpc", "h", 80), Endpoint("sse", "h", 80), Endpoint("http", "h", 443, Tls("h"))):
        unknown = msgspec.structs.replace(plan, endpoint=other)
        assert load_ceiling(unknown, processes, Totals(requests=500, cpu_ns=1)) is None


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"\0" * 100, b"[]", b"null", b"{", b"\xff\xfe", b"[" * 100_000),
        *(b'{"a": "b"}', b'{"a": {}}', b'{"a": 1e999}'),
        # A ceiling of 0 or less would end the load's verdict in an error, or divide by nothing.
        *(b"{KEY: 0}", b"{KEY: -5}", b"{KEY: 0.0}", b"{KEY: -1e-9}"),
    ],
)
def test_a_damaged_memory_is_measured_anew(monkeypatch: pytest.MonkeyPatch, cache: Path, content: bytes) -> None:
    """And is whole again after that."""
    measured = measuring(monkeypatch, 1000.0, 2000.0)
    client_ceiling(100, 100)
    (key,) = json.loads(cache.read_text())
    cache.write_bytes(content.replace(b"KEY", json.dumps(key).encode()))
    assert client_ceiling(100, 100) == client_ceiling(100, 100) == 2000.0
    assert measured.call_count == 2
    assert list(json.loads(cache.read_text()).values()) == [2000.0]


@pytest.mark.parametrize("obstacle", ["a file for a folder", "no permission", "a folder for the file", "no home"])
def test_where_nothing_can_be_remembered_it_is_measured_every_time(
    monkeypatch: pytest.MonkeyPatch, cache: Path, tmp_path: Path, obstacle: str
) -> None:
    """That is no error, and nothing half-written is left."""
    if obstacle == "a file for a folder":
        (tmp_path / "cache").write_text("in the way")
    elif obstacle == "no permission":
        cache.parent.mkdir(parents=True)
        # Permissions stop nobody who is root, as the runner of a container is.
        monkeypatch.setattr(tempfile, "mkstemp", mock.Mock(side_effect=PermissionError))
    elif obstacle == "a folder for the file":
        cache.mkdir(parents=True)
    else:
        # As in a container that runs under a number.
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(Path, "home", mock.Mock(side_effect=RuntimeError("no home directory")))
    before = sorted(tmp_path.rglob("*"))
    measuring(monkeypatch, 1000.0, 2000.0)
    assert (client_ceiling(100, 100), client_ceiling(100, 100)) == (1000.0, 2000.0)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("problem", [LoadFailed("no"), OSError("no"), UsageProblem("no files left")])
def test_what_cannot_be_measured_is_not_known(monkeypatch: pytest.MonkeyPatch, cache: Path, problem: Exception) -> None:
    """And neither guessed nor remembered."""
    measuring(monkeypatch, problem)
    assert client_ceiling(100, 100) is None
    assert not cache.exists()


def descendants() -> set[int]:
    """Return the processes that live under this one."""
    return {child.pid for child in psutil.Process().children(recursive=True) if alive(child.pid)}


def test_it_is_measured_in_earnest() -> None:
    """A number of requests a second, of large ones too, and nothing is left running."""
    before = descendants()
    assert 10 < measure_ceiling(1 << 16, 1 << 20) < 1e6
    assert descendants() <= before


@pytest.mark.parametrize("port", [80, 1024, 9999, 10_000, 65_535])
@pytest.mark.parametrize("size", [1, 64, 128, 1000, 1100, 1 << 20])
def test_the_null_server_waits_for_just_what_is_sent(monkeypatch: pytest.MonkeyPatch, port: int, size: int) -> None:
    """Whatever its port, though a request names it, and whatever the size; what comes out is requests by CPU time."""
    server, engines = mock.MagicMock(), mock.MagicMock()
    server.return_value.__enter__.return_value = port
    # In 0.1 s each 100 requests in 0.01 s of CPU time.
    engines.return_value.__enter__.return_value.next_tick.side_effect = [
        Tick(number, number * 10**8, (number + 1) * 10**8, requests=100, cpu_ns=10**7) for number in range(100)
    ]
    monkeypatch.setattr(ceiling, "_null_server", server)
    monkeypatch.setattr(ceiling, "Engines", engines)
    assert measure_ceiling(size, 64) == 10_000.0
    plan = engines.call_args.args[0]
    waits_for = len(plan.payloads[0][0])
    assert (plan.endpoint.port, server.call_args.args) == (port, (waits_for, 64))
    assert waits_for < 128 if size < 128 else size - 1 <= waits_for <= size


def test_no_process_is_left_after_an_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever happens in mid-measurement, as Ctrl-C, ends the engine and the null server."""
    before = descendants()
    during: set[int] = set()

    class Interrupted(Engines):
        def next_tick(self) -> None:  # type: ignore[override]  # it never returns
            during.update(descendants() - before)
            raise KeyboardInterrupt

    monkeypatch.setattr(ceiling, "Engines", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        client_ceiling(128, 64)
    assert len(during) == 2
    assert descendants() <= before


def test_a_null_server_that_does_not_start_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The measurement fails; the ceiling is not known."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(LoadFailed, match="null server"):
        measure_ceiling(128, 64)
    assert client_ceiling(128, 64) is None


@contextmanager
def null_server(request_bytes: int, answer_bytes: int) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run one for the block; gives its process and port."""
    argv = module_command("pytest_gpuserve.load.null_server", str(request_bytes), str(answer_bytes))
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


def connect(port: int) -> socket.socket:
    """Connect to it."""
    client = socket.create_connection(("127.0.0.1", port), timeout=SAFETY_SECONDS)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def receive(client: socket.socket, answer_bytes: int) -> None:
    """Receive exactly one answer."""
    expected = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % answer_bytes + b"n" * answer_bytes
    data = bytearray()
    while len(data) < len(expected):
        piece = client.recv(len(expected) - len(data))
        assert piece, f"the connection ended after {len(data)} bytes"
        data += piece
    assert data == expected


def nothing_more(client: socket.socket) -> None:
    """Find that the connection is open and silent: after the answer to another client nothing can still be coming."""
    client.settimeout(0.05)
    with pytest.raises(TimeoutError):
        client.recv(1)
    client.settimeout(SAFETY_SECONDS)


@pytest.mark.parametrize(("request_bytes", "answer_bytes"), [(1, 0), (1000, 70_000), (1 << 20, 1 << 20)])
def test_each_request_gets_exactly_one_answer(request_bytes: int, answer_bytes: int) -> None:
    """Whatever the sizes, request after request, and not before the request's last byte."""
    with null_server(request_bytes, answer_bytes) as (_, port), connect(port) as client:
        for _ in range(3):
            client.sendall(b"x" * (request_bytes - 1))
            nothing_more(client)
            client.sendall(b"x")
            receive(client, answer_bytes)
        nothing_more(client)


OWNER = """
import os, sys, time
from pytest_gpuserve.load.ceiling import _null_server
with _null_server(128, 64) as port:
    print(port, flush=True)
    time.sleep(600)
"""


def test_it_ends_with_an_owner_who_is_killed() -> None:
    """Nothing of ours runs on after ``kill -9``."""
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, cwd=ROOT) as owner:
        try:
            assert owner.stdout is not None
            port = int(owner.stdout.readline())
            (server,) = psutil.Process(owner.pid).children()
            with connect(port):
                os.kill(owner.pid, signal.SIGKILL)
                eventually(lambda: not alive(server.pid), "the null server is gone")
        finally:
            owner.kill()
