"""A real mosec under pytest, and pytest killed: nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.fakes.children.toolkit import eventually, segments_of_nobody
from tests.fakes.own_locks import LOCKS_VARIABLE, OWN_LOCKS
from tests.plugin.conftest import APP, REPOSITORY, TEST

if TYPE_CHECKING:
    from collections.abc import Iterator

NOTHING_LEFT_SECONDS = 5.0
UP_SECONDS = 60.0


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose measurement takes so long that it is certainly killed in it."""
    folder = tmp_path / "suites" / "perf"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(APP.read_text())
    test = TEST.format(arguments={}, assertion="pass", expect='b"FOX"', marker="")
    (folder / "test_perf.py").write_text(test.replace("seconds=2,", "seconds=300,"))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for the project's temporary files, short enough for Unix sockets in it."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as folder:
        yield Path(folder)


def descendants(process: psutil.Process) -> list[psutil.Process]:
    """All below a process."""
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def listening(processes: list[psutil.Process]) -> set[int]:
    """TCP ports on which they listen."""
    ports = set()
    for process in processes:
        try:
            ports |= {c.laddr.port for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
        except psutil.Error:
            continue
    return ports


def running(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that are neither gone nor only waiting to be collected."""
    found = []
    for process in processes:
        try:
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def command_lines(processes: list[psutil.Process]) -> str:
    """What they run."""
    lines = []
    for process in processes:
        try:
            lines.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return "\n".join(lines)


@contextmanager
def measuring(project: Path, temporary: Path) -> Iterator[psutil.Process]:
    """Pytest in the project, in its own process group."""
    environment = {name: value for name, value in os.environ.items() if name not in {"CI", "PYTEST_ADDOPTS"}}
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "pytest_gpuserve.plugin", *OWN_LOCKS, "-p", "no:cacheprovider"],
        cwd=project,
        env={**environment, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(temporary), LOCKS_VARIABLE: str(project)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            yield psutil.Process(process.pid)
        finally:
            process.kill()


def wait_for(words: str, pytest_process: psutil.Process) -> list[psutil.Process]:
    """Wait until something below pytest runs a command with these words; return all that is below it then."""
    deadline = time.monotonic() + UP_SECONDS
    while time.monotonic() < deadline:
        below = descendants(pytest_process)
        if words in command_lines(below):
            return below
        time.sleep(0.02)
    raise AssertionError(f"nothing below pytest ran {words!r} within {UP_SECONDS:.0f} s")


@pytest.mark.parametrize("moment", ["start-up", "load"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_of_a_killed_pytest(project: Path, temporary: Path, moment: str, how: signal.Signals) -> None:
    """Five seconds after the end of pytest there is no process, no port, no shared memory and no folder of it."""
    memory = segments_of_nobody()
    with measuring(project, temporary) as pytest_process:
        below = wait_for("app.py" if moment == "start-up" else "pytest_gpuserve.load.engine", pytest_process)
        if moment == "load":
            # The engine runs once the server has answered: now it is under load, all its workers are up.
            time.sleep(0.5)
            below = descendants(pytest_process)
            assert listening(below)
        ports = listening(below)
        pytest_process.send_signal(how)
        pytest_process.wait(UP_SECONDS)
        deadline = time.monotonic() + NOTHING_LEFT_SECONDS
        while running(below) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not running(below), command_lines(running(below))
        assert not ports & listening(list(psutil.process_iter()))
        eventually(lambda: not segments_of_nobody() - memory, "no shared memory is left")
        assert not list(temporary.glob("gpuserve-*"))


def test_a_long_temporary_folder_is_told(project: Path) -> None:
    """Where mosec's sockets would not fit into TMPDIR, that is said, with what helps, before mosec fails on it."""
    long = project / ("x" * 60)
    long.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "pytest_gpuserve.plugin", *OWN_LOCKS, "-p", "no:cacheprovider"],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(long), LOCKS_VARIABLE: str(project)},
        capture_output=True,
        text=True,
        timeout=UP_SECONDS,
        check=False,
    )
    assert done.returncode == 1
    assert "TMPDIR=/tmp" in done.stdout
    assert "Traceback" not in done.stdout
    assert not list(long.glob("gpuserve-*"))
