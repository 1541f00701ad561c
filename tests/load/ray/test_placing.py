"""Which workers may take part: versions, places, how many may be lost, and what Ray's errors come to."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.errors import LoadFailed, UsageProblem
from pytest_gpuserve.load.ray.cluster import MOST_CHARACTERS, not_importable, plain
from pytest_gpuserve.load.ray.placing import (
    NET,
    PIDS,
    WorkerLocation,
    identity,
    needed_here,
    processes_here,
    unreachable_problem,
)
from pytest_gpuserve.load.ray.worker import in_one_line
from pytest_gpuserve.load.wire import Endpoint, HostProcess, Outputs, Tls
from tests.fakes.http_server import plan

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpuserve.load.wire import Plan

DIED = """\
The actor died unexpectedly before finishing this task.
\tclass_name: Worker
\tactor_id: 0123456789abcdef
\tpid: 4711
\tnamespace: 8c0b
\tip: 10.0.0.2
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: End of file. \
Some common causes include: (1) the process was killed by the OOM killer due to high memory usage, (2) and others.
"""

NO_PACKAGE = """\
ray::RayWorker.versions() (pid=81, ip=10.0.0.7, actor_id=0123, repr=<unknown>)
RuntimeError: The actor with name Worker failed to import on the worker. This may be because needed library \
dependencies are not installed in the worker environment:

Traceback (most recent call last):
  File "function_manager.py", line 1, in _load_actor_class_from_gcs
ModuleNotFoundError: No module named 'pytest_gpuserve'
"""


def test_only_processes_whose_numbers_are_ours_are_here() -> None:
    """On another host, or in a container on this one, a number is another process's; and where that is not known."""
    process = HostProcess(os.getpid(), 7)
    assert processes_here(WorkerLocation(identity(PIDS), [process])) == (process,)
    for pids in (identity(NET), ""):
        assert processes_here(WorkerLocation(pids, [process])) == ()


def bound_for(host: str, **more: object) -> Plan:
    """A plan for a server on this host."""
    return msgspec.structs.replace(plan(1), **{"endpoint": Endpoint("http", host, 8000), **more})


# -- places


LOOPBACKS = ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1", "::ffff:0.0.0.0", "0.0.0.0", "::"]


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """What names lead to on this host; nobody else is asked."""
    known: dict[str, list[str]] = {}

    def getaddrinfo(host: str, _port: object, **_: object) -> list[tuple[object, ...]]:
        if host not in known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(0, 0, 0, "", (address, 0)) for address in known[host]]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return known


@pytest.mark.parametrize(
    ("host", "needed"),
    [
        *[(host, [NET]) for host in (*LOOPBACKS, "localhost", "a.localhost")],
        # One whose name is not known here may be known there.
        *[(host, []) for host in ("10.0.0.1", "::ffff:10.0.0.1", "fd00::1", "localhost.example", "localhosts")],
    ],
)
def test_a_loopback_server_is_reached_from_its_own_host_alone(host: str, needed: list[str]) -> None:
    """A worker elsewhere would load whatever listens on its own loopback."""
    assert list(needed_here(bound_for(host))) == needed


@pytest.mark.parametrize("address", LOOPBACKS)
def test_a_name_is_what_it_leads_to_here(names: dict[str, list[str]], address: str) -> None:
    """Also where only one of its addresses is this host's alone."""
    names.update({"server": [address], "both": ["10.0.0.1", address], "far": ["10.0.0.1", "fe80::1%2"]})
    assert list(needed_here(bound_for("server"))) == [NET]
    assert list(needed_here(bound_for("both"))) == [NET]
    assert needed_here(bound_for("far")) == {}


def test_certificates_bind_a_worker_to_this_host(tmp_path: Path) -> None:
    """A worker that has another file there, or none, would trust somebody else, or nobody."""
    file = tmp_path / "ca.pem"
    file.touch()
    with_file, without = (Endpoint("http", "10.0.0.1", 443, Tls("a", ca_file=path)) for path in (str(file), ""))
    needed = needed_here(bound_for("10.0.0.1", endpoint=with_file))
    assert list(needed) == [str(file)]
    assert unreachable_problem("n", needed, {str(file): identity(str(file))}) == ""
    assert "n runs on another host, and the certificates" in unreachable_problem("n", needed, {str(file): "other"})
    assert needed_here(bound_for("10.0.0.1", endpoint=without)) == {}


def test_what_binds_a_worker_to_this_host() -> None:
    """Shared memory and a queue by the very file."""
    assert list(needed_here(bound_for("10.0.0.1", outputs=Outputs("/dev/shm/x", 8)))) == ["/dev/shm/x"]
    assert list(needed_here(bound_for("10.0.0.1", endpoint=Endpoint("http", "/tmp/queue")))) == ["/tmp/queue"]


def test_a_file_is_itself_and_no_other(tmp_path: Path) -> None:
    """By its host's boot, its device and its place there; what is not there is nothing."""
    (tmp_path / "one").touch()
    (tmp_path / "other").touch()
    os.link(tmp_path / "one", tmp_path / "same")
    one, other, same = (identity(str(tmp_path / file)) for file in ("one", "other", "same"))
    assert one == same != other
    assert identity(str(tmp_path / "none")) == ""
    assert identity(NET) == identity(f"/proc/{os.getpid()}/ns/net") != ""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        assert identity(str(tmp_path / "socket")) not in {"", one, other}


@pytest.mark.parametrize("theirs", [{}, {NET: ""}, {NET: "another boot 4 4026531840"}])
def test_a_worker_elsewhere_is_named(theirs: dict[str, str]) -> None:
    """Also one that does not tell, with the server's address and what helps; one that sees the same is no problem."""
    needed = needed_here(bound_for("127.0.0.1"))
    text = unreachable_problem("10.0.0.2/worker-1", needed, theirs)
    assert text.startswith("10.0.0.2/worker-1 runs on another host, and the server listens on 127.0.0.1")
    assert "remote_server(" in text
    assert unreachable_problem("n", needed, {NET: identity(NET)}) == unreachable_problem("n", {}, {}) == ""
    # Two hosts that both lack a file do not share it.
    assert unreachable_problem("n", {"/dev/shm/no such file": "answers"}, {"/dev/shm/no such file": ""})


# -- what Ray says


def test_a_node_without_the_package_is_named() -> None:
    """With the module that is missing and what to install; a death has nothing to do with what is installed."""
    told = not_importable(RuntimeError(NO_PACKAGE), "0.1.0")
    assert told.startswith("the node 10.0.0.7 cannot import pytest-gpuserve")
    assert "No module named 'pytest_gpuserve'" in told
    assert told.endswith("pip install pytest-gpuserve==0.1.0")
    assert "\n" not in told
    assert not_importable(RuntimeError(DIED), "0.1.0") == ""


@given(st.text())
def test_whatever_ray_says_becomes_one_short_line(text: str) -> None:
    """Never empty, never with what a terminal would act on; of an actor's death what died, and how, is kept."""
    told = plain(RuntimeError(text))
    assert told
    assert told.isprintable()
    assert len(told) <= MOST_CHARACTERS + 1
    death = "worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: End of file."
    assert plain(RuntimeError(DIED)) == death


def test_an_error_in_one_line_has_its_cause_at_the_end() -> None:
    """Of an engine's log the last line, which says why it ended."""
    died = LoadFailed("the load engine died", found="exit status 1", log_tail="Traceback\nno.such: Name unknown\n")
    assert in_one_line(died) == "the load engine died (exit status 1): no.such: Name unknown"
    assert in_one_line(UsageProblem("too many\nusers")) == "too many users"
