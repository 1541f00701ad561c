"""The keeper ends the whole tree and removes its traces, above all when its owner is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuserve.process import keeper
from pytest_gpuserve.process.child import Process
from pytest_gpuserve.process.ports import free_port, port_owner
from tests.fakes.children.toolkit import HERE, SAFETY_SECONDS, alive, child, eventually, program, report

if TYPE_CHECKING:
    from collections.abc import Iterator

PROMISED_SECONDS = 5.0
"""All must be gone this long after the owner's death: a promise to users."""


@contextmanager
def owner(folder: Path, *commands: tuple[str, ...], owned: tuple[Path, ...] = (), fork: bool = False) -> Iterator[Any]:
    """Run an owner of these commands in a process of its own; yields its Popen and its report."""
    order = {"commands": commands, "folder": str(folder), "owned": list(map(str, owned)), "fork": fork}
    (folder / "order").write_text(json.dumps(order))
    argv = [sys.executable, str(HERE / "owner.py"), str(folder / "order"), str(folder / "owner_report")]
    with subprocess.Popen(argv, start_new_session=True) as running:
        try:
            yield running, report(folder / "owner_report")
        finally:
            running.kill()


def test_nothing_outlives_an_owner_that_is_killed(tmp_path: Path) -> None:
    """5 s after kill -9 of the owner of four servers no process, port, shared memory or folder of them is left."""
    port = free_port()
    folders = tuple(tmp_path / f"owned{index}" for index in range(4))
    for folder in folders:
        folder.mkdir()
    commands = (
        child("web", port, folder=tmp_path).argv,
        child("family", tmp_path / "family", "stay", folder=tmp_path).argv,
        child("stubborn", tmp_path / "stubborn", folder=tmp_path).argv,
        child("semaphore", tmp_path / "semaphore", folder=tmp_path).argv,
    )
    with owner(tmp_path, *commands, owned=folders) as (running, started):
        family, held = report(tmp_path / "family"), report(tmp_path / "semaphore")
        report(tmp_path / "stubborn")
        eventually(lambda: port_owner(port) is not None, "the server listens")
        pids = {*started["children"], *started["keepers"], *family.values(), *held["pids"]}
        files = list(map(Path, held["files"]))
        assert all(map(alive, pids))
        assert all(file.exists() for file in files)
        running.send_signal(signal.SIGKILL)

        def clean() -> bool:
            left = any(map(alive, pids)) or any(path.exists() for path in (*files, *folders))
            return not left and port_owner(port) is None

        eventually(clean, "everything of the killed owner's is gone", PROMISED_SECONDS)


def test_a_fork_of_the_owner_that_outlives_it_keeps_nothing_alive(tmp_path: Path) -> None:
    """The tree ends with its owner even where a forked copy of the owner still holds the link open."""
    with owner(tmp_path, ("sleep", "600"), fork=True) as (running, started):
        try:
            running.send_signal(signal.SIGKILL)
            eventually(lambda: not any(map(alive, started["children"])), "the tree is gone", PROMISED_SECONDS)
            assert alive(started["copy"])
        finally:
            os.kill(started["copy"], signal.SIGKILL)


def test_interrupting_the_owner_does_not_reach_the_server(tmp_path: Path) -> None:
    """After Ctrl-C, a SIGINT to the owner's group, the server still answers until its owner stops it."""
    port = free_port()
    with owner(tmp_path, child("web", port, folder=tmp_path).argv) as (running, started):
        eventually(lambda: port_owner(port) is not None, "the server listens")
        os.killpg(running.pid, signal.SIGINT)
        assert report(tmp_path / "owner_report.interrupted") == {"answered": True}
        assert running.wait(SAFETY_SECONDS) == 0
    assert not any(map(alive, started["children"]))
    assert "SIGINT" not in (tmp_path / "log0").read_text()


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
    eventually(lambda: not alive(pids["daemon"]), "what ignores SIGTERM is killed", PROMISED_SECONDS)
    assert process._keeper.wait(SAFETY_SECONDS) == 0


def test_sigterm_ends_the_tree_and_then_the_keeper(tmp_path: Path) -> None:
    """A keeper that is told to terminate ends its tree; the owner learns how the child ended, and stop agrees."""
    with Process.start(program("sleep", "600", folder=tmp_path)) as process:
        os.kill(process._keeper.pid, signal.SIGTERM)
        assert process.wait(SAFETY_SECONDS) == -signal.SIGTERM
        assert process._keeper.wait(SAFETY_SECONDS) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_stray_signals_do_not_disturb_the_keeper(number: signal.Signals, tmp_path: Path) -> None:
    """SIGINT and SIGHUP to the keeper change nothing: it still ends the tree when it is told to, and then itself."""
    with Process.start(program("sleep", "600", folder=tmp_path)) as process:
        os.kill(process._keeper.pid, number)
    assert process.exit_status() == -signal.SIGTERM
    assert process._keeper.returncode == 0
    assert process.tail() == ""


def test_children_that_keep_forking_are_ended(tmp_path: Path) -> None:
    """Processes that ignore SIGTERM and fork all the time, some into sessions of their own, are all ended by stop."""
    with Process.start(child("breeder", tmp_path / "report", folder=tmp_path)) as process:
        report(tmp_path / "report")
        process.stop(0.1)
    assert process._marked() == []


def test_resource_trackers_may_end_by_themselves(tmp_path: Path) -> None:
    """With children that die of SIGKILL the tracker still gets to unlink the semaphores, and says so in the log."""
    with Process.start(child("semaphore", tmp_path / "report", folder=tmp_path)) as process:
        held = report(tmp_path / "report")
        process.stop(0)
    assert not any(map(alive, held["pids"]))
    assert not any(Path(file).exists() for file in held["files"])
    assert "leaked semaphore" in process.tail()


def test_semaphores_without_a_tracker_are_unlinked(tmp_path: Path) -> None:
    """Named semaphores of a tree whose resource tracker was killed are removed by the keeper."""
    with Process.start(child("semaphore", tmp_path / "report", folder=tmp_path)) as process:
        held = report(tmp_path / "report")
        os.kill(held["tracker"], signal.SIGKILL)
        assert all(Path(file).exists() for file in held["files"])
        process.stop(0.1)
    assert not any(Path(file).exists() for file in held["files"])


def test_only_shared_memory_of_the_tree_alone_is_unlinked(tmp_path: Path) -> None:
    """What the tree made and nobody else uses goes; what was there before, or another process holds, stays."""
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
    """An entry of /dev/shm goes by the file that it is, not by its name."""
    name = f"gpuserve-test-{os.getpid()}-{time.monotonic_ns()}"
    file = Path("/dev/shm") / name
    file.touch()
    try:
        inode = file.stat().st_ino
        keeper.unlink_shared({inode + 1})
        assert file.exists()
        keeper.unlink_shared({inode})
        assert not file.exists()
    finally:
        file.unlink(missing_ok=True)


def test_a_process_name_with_parentheses_does_not_hide_descendants(tmp_path: Path) -> None:
    """A command named like the end of its own /proc entry is still found below its parent."""
    odd = tmp_path / ") S 1 1 ("
    odd.symlink_to("/bin/sleep")
    with subprocess.Popen([str(odd), "600"]) as running:
        try:
            eventually(lambda: Path(f"/proc/{running.pid}/comm").read_text() == ") S 1 1 (\n", "it is executed")
            assert running.pid in keeper.descendants(os.getpid())
        finally:
            running.kill()


def test_the_keeper_needs_nothing_but_a_bare_interpreter() -> None:
    """The script imports under -I -S, so no package or start-up file of the environment slows or breaks a start."""
    script = f"import runpy; runpy.run_path({keeper.__file__!r}, run_name='bare')"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", script], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("said", [b"", b'{"stop"'])
def test_an_owner_that_is_gone_before_its_order_starts_nothing(said: bytes, tmp_path: Path) -> None:
    """End of file in place of a whole order ends the keeper quietly."""
    reading, writing = os.pipe()
    os.write(writing, said)
    os.close(writing)
    argv = [sys.executable, "-I", "-S", str(keeper.__file__), str(reading)]
    done = subprocess.run(argv, pass_fds=[reading], check=False, capture_output=True, text=True, timeout=SAFETY_SECONDS)
    os.close(reading)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
