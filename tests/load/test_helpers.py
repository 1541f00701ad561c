"""Processes of this host that work for us and are not below us."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest

from pytest_gpuserve.experiment.watch import our_processes
from pytest_gpuserve.load.driver import Engines, forget_helpers, helper_pids, host_process, note_helpers
from pytest_gpuserve.load.source import EngineLaunch
from pytest_gpuserve.load.wire import HostProcess, Ready, frame
from tests.fakes.children.toolkit import alive, eventually
from tests.fakes.http_server import plan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BEYOND = "import os, time; pid = os.fork(); pid and (print(pid, flush=True), os._exit(0)); os.setsid(); time.sleep(600)"
"""Leaves a process that is below nobody of ours."""


@contextmanager
def orphan() -> Iterator[HostProcess]:
    """Give a process that is not below this one."""
    with subprocess.Popen([sys.executable, "-c", BEYOND], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
    try:
        eventually(lambda: psutil.Process(pid).ppid() not in {os.getpid(), parent.pid}, "it is somebody else's")
        found = host_process(pid)
        assert found is not None
        yield found
    finally:
        os.kill(pid, 9)
        eventually(lambda: not alive(pid), "it ends")


@pytest.fixture(autouse=True)
def nobody_else() -> Iterator[None]:
    """Leave nothing behind for other tests."""
    yield
    forget_helpers(1)
    assert helper_pids() == []


def test_a_process_is_known_by_its_number_and_its_begin() -> None:
    """Two looks at it see the same; of one that is not there nothing is known."""
    assert host_process(os.getpid()) == host_process(os.getpid())
    assert host_process(os.getpid()) != host_process(os.getppid())
    assert host_process(1 << 30) is None


def test_processes_that_were_told_of_are_ours_until_who_told_of_them_ends() -> None:
    """They count as below us do, but not where the number is now another's, that began at another time."""
    with orphan() as orphaned:
        pid = orphaned.pid
        assert pid not in ours()
        note_helpers(1, [orphaned])
        assert helper_pids() == helper_pids(1) == [pid]
        assert helper_pids(2) == []
        assert pid in ours()
        note_helpers(1, [])
        assert pid not in ours()
        note_helpers(1, [orphaned])
        forget_helpers(1)
        assert pid not in ours()
        note_helpers(1, [msgspec.structs.replace(orphaned, began_ticks=orphaned.began_ticks + 1)])
        assert helper_pids() == []


def ours() -> set[int]:
    """Which processes are ours, for whoever asks."""
    return {process.pid for process in our_processes()}


SAYS = "import sys; sys.stdout.buffer.write(bytes.fromhex(sys.argv[1])); sys.stdout.flush(); sys.stdin.buffer.read()"


@dataclass(frozen=True)
class Saying:
    """An engine that says one thing, whatever it is told; see ``EngineSource``."""

    said: bytes
    name: str = "saying"
    is_here: bool = False
    ready_seconds: float = 20.0

    def launches(self, workers: int) -> Sequence[EngineLaunch]:
        """See ``EngineSource``."""
        del workers
        return [EngineLaunch([sys.executable, "-c", SAYS, self.said.hex()], self.name, 0)]


def test_an_engine_that_tells_of_others_with_its_readiness_is_heard() -> None:
    """They stand behind its own pid among those of the load, once, and are forgotten with its end."""
    with orphan() as orphaned:
        with Engines(plan(1), source=Saying(frame(Ready((orphaned, orphaned))))) as engines:
            assert engines.pids[1:] == (orphaned.pid,)
            assert orphaned.pid in ours()
        assert len(engines.pids) == 1
        assert orphaned.pid not in ours()
