"""The supervisor ends the whole tree and removes its traces, above all when its owner is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuserve.process import supervisor
from pytest_gpuserve.process.child import Process, marked, owned_folder
from pytest_gpuserve.process.ports import free_port, port_owner
from tests.fakes.children.toolkit import HERE, SAFETY_SECONDS, alive, child, eventually, program, report

PROMISED_SECONDS = 5.0
"""All must be gone this long after the owner's death: a promise to users."""


@contextmanager
def owner(folder: Path, *commands: tuple[str, ...], fork: bool = False, **order: Any) -> Iterator[Any]:  # noqa: ANN401
    """Run an owner of these commands in a process of its own; yield its Popen and its report.

    Of its order there are folders that it owns (``owned``).
    """
    order = {"owned": (), **order, "commands": commands, "folder": str(folder), "fork": fork}
    (folder / "order").write_text(json.dumps(order, default=str))
    argv = [sys.executable, str(HERE / "owner.py"), str(folder / "order"), str(folder / "owner_report")]
    with subprocess.Popen(argv, start_new_session=True) as running:
        try:
            yield running, report(folder / "owner_report")
        finally:
            running.kill()


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(SAFETY_SECONDS, id="at all"),
        pytest.param(PROMISED_SECONDS, marks=[pytest.mark.slow, pytest.mark.alone], id="as promised"),
    ],
)
def test_nothing_outlives_an_owner_that_is_killed(tmp_path: Path, seconds: float) -> None:
    """5 s after kill -9 of the owner of three servers no process, port, shared memory or folder of them is left."""
    port = free_port()
    folders = tuple(tmp_path / f"owned{index}" for index in range(3))
    for folder in folders:
        folder.mkdir()
    commands = (
        child("model_server", port, folder=tmp_path).argv,
        child("family", tmp_path / "family", "stay", folder=tmp_path).argv,
        child("semaphore", tmp_path / "semaphore", folder=tmp_path).argv,
    )
    with owner(tmp_path, *commands, owned=folders) as (running, started):
        family, held = report(tmp_path / "family"), report(tmp_path / "semaphore")
        eventually(lambda: port_owner(port) is not None, "the server listens")
        pids = {*started["children"], *started["supervisors"], *family.values(), *held["pids"]}
        files = list(map(Path, held["files"]))
        assert all(map(alive, pids))
        assert all(file.exists() for file in files)
        running.send_signal(signal.SIGKILL)

        def clean() -> bool:
            left = any(map(alive, pids)) or any(path.exists() for path in (*files, *folders))
            return not left and port_owner(port) is None

        eventually(clean, "everything of the killed owner's is gone", seconds)


def test_a_fork_of_the_owner_that_outlives_it_keeps_nothing_alive(tmp_path: Path) -> None:
    """The tree ends with its owner even where a forked copy of the owner still holds the link open."""
    with owner(tmp_path, ("sleep", "600"), fork=True) as (running, started):
        try:
            running.send_signal(signal.SIGKILL)
            eventually(lambda: not any(map(alive, started["children"])), "the tree is gone")
            assert alive(started["copy"])
        finally:
            os.kill(started["copy"], signal.SIGKILL)


def test_interrupting_the_owner_does_not_reach_the_server(tmp_path: Path) -> None:
    """After Ctrl-C, a SIGINT to the owner's group, the server still answers until its owner stops it."""
    port = free_port()
    with owner(tmp_path, child("model_server", port, folder=tmp_path).argv) as (running, started):
        eventually(lambda: port_owner(port) is not None, "the server listens")
        os.killpg(running.pid, signal.SIGINT)
        assert report(tmp_path / "owner_report.interrupted") == {"answered": True}
        assert running.wait(SAFETY_SECONDS) == 0
    assert not any(map(alive, started["children"]))


def test_an_interrupt_right_after_the_start_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C within the start itself ends the process that was started."""
    started: list[Process] = []
    order = Process._order

    def interrupted(process: Process) -> None:
        order(process)
        started.append(process)
        raise KeyboardInterrupt

    monkeypatch.setattr(Process, "_order", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Process.start(program("sleep", "600", folder=tmp_path))
    assert not alive(started[0].pid)


def test_sigterm_ends_the_tree_and_then_the_supervisor(tmp_path: Path) -> None:
    """SIGTERM to a supervisor ends its tree; the owner learns how the child ended."""
    with Process.start(program("sleep", "600", folder=tmp_path)) as process:
        os.kill(process._supervisor.pid, signal.SIGTERM)
        assert process.wait(SAFETY_SECONDS) == -signal.SIGTERM
        assert process._supervisor.wait(SAFETY_SECONDS) == 0


def test_a_grace_under_way_is_cut_short_by_the_death_of_the_owner(tmp_path: Path) -> None:
    """An owner that is killed while it grants a long grace does not leave the server that grace."""
    process = Process.start(child("family", tmp_path / "report", "stay", folder=tmp_path))
    try:
        pids = report(tmp_path / "report")
        process._say(stop=600.0)
        eventually(lambda: not alive(pids["plain"]), "SIGTERM has been sent")
        assert alive(pids["daemon"])
    finally:
        process._link.close()
    eventually(lambda: not alive(pids["daemon"]), "what ignores SIGTERM is killed")
    assert process._supervisor.wait(SAFETY_SECONDS) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_stray_signals_do_not_disturb_the_supervisor(number: signal.Signals, tmp_path: Path) -> None:
    """After a stray signal a supervisor still ends its tree on an order, and then itself."""
    with Process.start(program("sleep", "600", folder=tmp_path)) as process:
        os.kill(process._supervisor.pid, number)
    assert process.exit_status() == -signal.SIGTERM
    assert process._supervisor.returncode == 0
    assert process.tail() == ""


def test_a_supervisor_that_fails_does_not_report_the_end(tmp_path: Path) -> None:
    """It still removes its folders, but the owner does not hear that the tree has ended, and looks for it itself."""
    owned = tmp_path / "owned"
    owned.mkdir()
    with Process([owned], log=tmp_path / "log") as process:
        process._say(unknown=True)
        assert process._supervisor.wait(SAFETY_SECONDS) == 1
        process.wait(0)
        assert process._reports.severed
        assert not process._reports.gone
        assert not owned.exists()


def test_children_that_keep_forking_are_ended(tmp_path: Path) -> None:
    """Processes that ignore SIGTERM and fork all the time, some into sessions of their own, are all ended by stop."""
    with Process.start(child("breeder", tmp_path / "report", folder=tmp_path)) as process:
        report(tmp_path / "report")
        process.stop(0.1)
    assert marked(process._mark) == []


@pytest.mark.parametrize("tracker", ["left", "killed"])
def test_semaphores_of_a_tree_are_unlinked(tracker: str, tmp_path: Path) -> None:
    """Semaphores go with the resource tracker, which outlives killed children, or else with the supervisor."""
    with Process.start(child("semaphore", tmp_path / "report", folder=tmp_path)) as process:
        held = report(tmp_path / "report")
        if tracker == "killed":
            os.kill(held["tracker"], signal.SIGKILL)
        assert all(Path(file).exists() for file in held["files"])
        process.stop(0)
    assert not any(map(alive, held["pids"]))
    assert not any(Path(file).exists() for file in held["files"])
    assert ("leaked semaphore" in process.tail()) is (tracker == "left")


def test_a_tracker_that_does_not_end_does_not_use_up_the_grace(tmp_path: Path) -> None:
    """A resource tracker whose pipe a stranger holds open is killed a second after the rest of the tree has ended."""
    main = "from signal import *; from time import sleep; signal(SIGTERM, SIG_IGN); print('up', flush=True); sleep(600)"
    code = f"{main} # multiprocessing.resource_tracker import main"
    with Process.start(program(sys.executable, "-c", code, folder=tmp_path)) as process:
        eventually(lambda: "up" in process.tail(), "the tracker ignores SIGTERM")
        began = time.monotonic()
        process.stop(2 * SAFETY_SECONDS)
        assert time.monotonic() - began < SAFETY_SECONDS
    assert process.exit_status() == -signal.SIGKILL


def test_only_shared_memory_of_the_tree_alone_is_unlinked(tmp_path: Path) -> None:
    """Memory that only the tree uses is removed; older memory, and that of other processes, stays."""
    unique = f"/dev/shm/gpuserve-test-{os.getpid()}-{time.monotonic_ns()}"
    before, held, left = (Path(f"{unique}-{name}") for name in ("before", "held", "left"))
    before.touch()
    try:
        with Process.start(child("segment", tmp_path / "report", before, held, left, folder=tmp_path)) as process:
            report(tmp_path / "report")
            with held.open("rb"):
                process.stop()
        assert before.exists()
        assert held.exists()
        assert not left.exists()
    finally:
        for file in (before, held, left):
            file.unlink(missing_ok=True)


def test_shared_memory_is_known_by_inode() -> None:
    """Not by its name; but podman's locks of all containers, though a tree's first one made them, are not unlinked."""
    unique = f"gpuserve_test_{os.getpid()}-{time.monotonic_ns()}"
    own, podman = Path(f"/dev/shm/{unique}"), Path(f"/dev/shm/libpod_{unique}")
    for file in (own, podman):
        file.touch()
    inodes = {own.stat().st_ino, podman.stat().st_ino}
    try:
        supervisor.unlink_shared({max(inodes) + 1})
        assert own.exists()
        supervisor.unlink_shared(inodes)
        assert not own.exists()
        assert podman.exists()
    finally:
        for file in (own, podman):
            file.unlink(missing_ok=True)


def test_a_process_name_with_parentheses_does_not_hide_descendants(tmp_path: Path) -> None:
    """A command named like the end of its own /proc entry is still found below its parent."""
    odd = tmp_path / ") S 1 1 ("
    odd.symlink_to("/bin/sleep")
    with subprocess.Popen([str(odd), "600"]) as running:
        try:
            eventually(lambda: Path(f"/proc/{running.pid}/comm").read_text() == ") S 1 1 (\n", "it is executed")
            assert running.pid in supervisor.descendants(os.getpid())
        finally:
            running.kill()


@pytest.mark.parametrize("said", [b"", b'{"stop"'])
def test_an_owner_that_is_gone_before_its_order_starts_nothing(said: bytes, tmp_path: Path) -> None:
    """End of file in place of a whole order ends the supervisor quietly, and its folders are gone."""
    folder = tmp_path / "owned"
    folder.mkdir()
    reading, writing = os.pipe()
    os.write(writing, said)
    os.close(writing)
    argv = [sys.executable, "-I", "-S", str(supervisor.__file__), str(reading), str(folder)]
    done = subprocess.run(argv, pass_fds=[reading], check=False, capture_output=True, text=True, timeout=SAFETY_SECONDS)
    os.close(reading)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not folder.exists()


KILLED_EARLY = """
import os, signal, sys
from pytest_gpuserve.process.child import owned_folder

with owned_folder("gpuserve-") as (folder, process):
    (folder / "file").write_text("")
    print(folder, flush=True)
    os.kill(os.getpid(), getattr(signal, sys.argv[1]))
    sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM"])
def test_a_folder_is_owned_before_it_is_made(how: str, tmp_path: Path) -> None:
    """A process killed between a folder's creation and the start of its owner leaves no folder, nor does its block."""
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(supervisor.__file__).parents[2])}
    argv = [sys.executable, "-c", KILLED_EARLY, how]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=SAFETY_SECONDS, check=False)
    folder = Path(done.stdout.strip())
    assert folder.parent == tmp_path, done.stderr
    eventually(lambda: not folder.exists(), "the folder is gone")
    with owned_folder("gpuserve-") as (folder, owner):
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()
    assert owner._supervisor.poll() == 0
