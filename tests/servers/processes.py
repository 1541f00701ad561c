"""Processes of servers: where they listen, and that nothing is left of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from tests.fakes.children.toolkit import eventually, segments_of

if TYPE_CHECKING:
    from collections.abc import Iterable

REPOSITORY = Path(__file__).parents[2]
GONE_SECONDS = 20.0


def descendants(pid: int) -> list[psutil.Process]:
    """All processes below one."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def listening(processes: Iterable[psutil.Process], kind: str = "tcp") -> set[tuple[str, int]]:
    """Addresses and ports at which processes listen."""
    found = set()
    for process in processes:
        with suppress(psutil.Error):
            connections = [each for each in process.net_connections(kind) if each.status == psutil.CONN_LISTEN]
            found |= {(each.laddr.ip.removeprefix("::ffff:"), each.laddr.port) for each in connections}
    return found


def running(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Processes that are neither gone nor only waiting to be collected."""
    found = []
    for process in processes:
        with suppress(psutil.Error):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def command_lines(processes: Iterable[psutil.Process]) -> str:
    """Command lines of processes."""
    lines = []
    for process in processes:
        with suppress(psutil.Error):
            lines.append(" ".join(process.cmdline()))
    return "\n".join(lines)


def check_all_end(processes: Iterable[psutil.Process], seconds: float = GONE_SECONDS) -> None:
    """Fail if processes run on after so long."""
    deadline = time.monotonic() + seconds
    while (left := running(processes)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left, command_lines(left)


def owner_killed(test: str, folder: Path, **arguments: object) -> list[int]:
    """Kill a process that runs a test module's ``Project``, and return the pids of the server's processes.

    Neither they, nor their shared memory, nor anything in their folder for temporary files may be left.
    """
    program = f"""
import sys, time
from pathlib import Path
from {test} import Project
with Project(Path(sys.argv[1])).running(**{arguments!r}) as instance:
    print(*[member.pid for member in instance.process.tree()], flush=True)
    time.sleep(600)
"""
    command = [sys.executable, "-c", program, str(folder)]
    # Short enough for Unix sockets in it, and nobody else's.
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as place:
        environment = {**os.environ, "TMPDIR": place}
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPOSITORY, env=environment) as owner:
            try:
                assert owner.stdout is not None
                pids = [int(pid) for pid in owner.stdout.readline().split()]
                assert list(Path(place).iterdir())
                family = [psutil.Process(pid) for pid in pids]
                memory = segments_of(family)
            finally:
                owner.send_signal(signal.SIGKILL)
        check_all_end(family)
        eventually(lambda: not any(each.exists() for each in memory), "no shared memory is left")
        eventually(lambda: not list(Path(place).iterdir()), "nothing of its start is left")
    return pids
