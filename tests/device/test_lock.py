"""The lock on a device, between real processes."""

from __future__ import annotations

import json
import os
import shlex
import stat
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from pytest_gpuserve.device import DeviceLock, Holder
from pytest_gpuserve.errors import DeviceProblem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
DEADLINE_SECONDS = 60.0

# A session that takes the lock, says so, does what `then` says, and ends when its standard input does.
SESSION = """
import os, pathlib, subprocess, sys
from pytest_gpuserve.device import DeviceLock
folder, command, first, then = sys.argv[1:]
lock = DeviceLock("GPU-1", command=command, folder=pathlib.Path(folder))
exec(first)
with lock.acquire(wait_seconds=60, on_wait=lambda holder, seconds: print("waiting", flush=True)):
    exec(then)
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def session(folder: Path, *, first: str = "", then: str = "") -> Iterator[subprocess.Popen[str]]:
    """Start another session on the same device; it is killed on leaving, if it has not ended."""
    command = [sys.executable, "-c", SESSION, str(folder), "pytest other", first, then]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


@contextmanager
def holding(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another session that has the device."""
    with session(folder) as other:
        assert next_line(other) == "held"
        yield other


def next_line(child: subprocess.Popen[str]) -> str:
    """Wait for the child's next line."""
    assert child.stdout is not None
    return child.stdout.readline().strip()


def our_lock(folder: Path, key: str = "GPU-1") -> DeviceLock:
    """Return this process's own lock, by default on the device of `session`."""
    return DeviceLock(key, command="pytest suites --gpu=T4", folder=folder)


def unexpected_wait(holders: object, seconds: float) -> None:
    """Fail, because a device should be free."""
    pytest.fail(f"waited {seconds} s for {holders}")


def take(lock: DeviceLock, *, wait_seconds: float = 0.0) -> DeviceLock:
    """Take a lock that should be free."""
    return lock.acquire(wait_seconds=wait_seconds, on_wait=unexpected_wait)


def test_a_free_device_is_taken_at_once_and_given_back(tmp_path: Path) -> None:
    """While held, the record names this process; afterwards, even after an exception, it names none."""
    lock = our_lock(tmp_path)
    began = time.time()
    with take(lock, wait_seconds=60):
        assert lock.held
        holder = our_lock(tmp_path).holder()
        assert (holder.pid, holder.command) == (os.getpid(), "pytest suites --gpu=T4")
        assert holder.since_epoch is not None
        assert abs(holder.since_epoch - began) < DEADLINE_SECONDS
        assert f"process {os.getpid()} of " in str(holder)
    assert not lock.held
    assert not lock.record_path.exists()
    with pytest.raises(ZeroDivisionError), take(lock):
        _ = 1 / 0
    assert not lock.held
    take(our_lock(tmp_path)).release()


def test_a_taken_device_is_refused_by_name(tmp_path: Path) -> None:
    """After one notice and the wait, or at once without a wait, by who holds it, since when, and what helps."""
    notices: list[tuple[Holder, float]] = []
    with holding(tmp_path) as other:
        with pytest.raises(DeviceProblem, match="in use"):
            take(our_lock(tmp_path), wait_seconds=0)
        with pytest.raises(DeviceProblem) as caught:
            our_lock(tmp_path).acquire(wait_seconds=0.3, on_wait=lambda *notice: notices.append(notice))
    ((holder, announced_seconds),) = notices
    assert (holder.pid, holder.command, announced_seconds) == (other.pid, "pytest other", 0.3)
    text = str(caught.value)
    for part in (f"process {other.pid} of ", "(pytest other)", "since 20", "waited ", f"kill {other.pid}"):
        assert part in text
    assert "gpuserve_lock_wait" in text


def test_a_wait_ends_when_the_other_session_does(tmp_path: Path) -> None:
    """A waiting session gets the device as soon as the holder ends, and its own record replaces the other's."""
    with holding(tmp_path) as other:

        def end_it(holder: Holder, seconds: float) -> None:
            assert other.stdin is not None
            other.stdin.close()

        with our_lock(tmp_path).acquire(wait_seconds=DEADLINE_SECONDS, on_wait=end_it) as lock:
            assert lock.holder().pid == os.getpid()
        assert other.wait(DEADLINE_SECONDS) == 0


def test_a_killed_holder_blocks_nobody(tmp_path: Path) -> None:
    """After kill -9 the device is free at once; the leftover record names no process, even if the pid is reused."""
    with holding(tmp_path) as other:
        other.kill()
        other.wait(DEADLINE_SECONDS)
    lock = our_lock(tmp_path)
    assert json.loads(lock.record_path.read_bytes())["pid"] == other.pid
    assert lock.holder() == Holder()
    with take(lock):
        record = asdict(lock.holder())
        assert record["pid"] == os.getpid()
        lock.record_path.write_text(json.dumps({**record, "started_epoch": record["started_epoch"] - 3600}))
        assert lock.holder() == Holder()


@pytest.mark.parametrize(
    "damage",
    [
        Path.unlink,
        lambda path: path.write_bytes(b"\xff\x00{"),
        lambda path: path.write_text('{"pid": "x", "command": 1}'),
        lambda path: (path.unlink(), subprocess.run(["mkfifo", path], check=True)),
        lambda path: (path.unlink(), path.symlink_to("/etc/passwd")),
    ],
    ids=["missing", "bytes", "types", "fifo", "link"],
)
def test_a_damaged_record_names_an_unknown_process(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    """For any content of the record the refusal comes, with an unknown holder."""
    lock = our_lock(tmp_path)
    with holding(tmp_path):
        damage(lock.record_path)
        with pytest.raises(DeviceProblem, match="an unknown process"):
            take(lock)


def test_a_server_that_outlives_its_session_does_not_keep_the_device(tmp_path: Path) -> None:
    """A child process started with every descriptor open inherits no lock: killing the session frees the device."""
    start_server = "print(subprocess.Popen(['sleep', '300'], close_fds=False, stdout=subprocess.DEVNULL).pid)"
    with session(tmp_path, then=start_server) as other:
        server = psutil.Process(int(next_line(other)))
        try:
            assert next_line(other) == "held"
            other.kill()
            other.wait(DEADLINE_SECONDS)
            with take(our_lock(tmp_path)):
                assert server.is_running()
        finally:
            server.kill()


def test_devices_do_not_wait_for_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each GPU has its own lock in the same folder, by default a folder for all users, not TMPDIR."""
    with take(our_lock(tmp_path)), take(our_lock(tmp_path, "../GPU-2")) as other:
        assert other.path.parent == tmp_path
    ordinary = DeviceLock("cpu", command="").path
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert DeviceLock("cpu", command="").path == ordinary
    assert ordinary.name == "pytest-gpuserve-cpu.lock"
    assert ordinary.parent.stat().st_mode & stat.S_IWOTH


def test_a_lock_file_that_cannot_be_made_is_refused_in_words(tmp_path: Path) -> None:
    """With its path and a way out; a symbolic link is not followed: what it points at is not even created."""
    lock = our_lock(tmp_path)
    lock.path.symlink_to(tmp_path / "target")
    with pytest.raises(DeviceProblem, match="symbolic link") as caught:
        take(lock)
    assert str(lock.path) in str(caught.value)
    assert not (tmp_path / "target").exists()
    (tmp_path / "file").touch()
    with pytest.raises(DeviceProblem, match="cannot be used") as caught:
        take(our_lock(tmp_path / "file"))
    assert "TMPDIR" in str(caught.value)


# The second user may have no right to read the interpreter's files: what a lock imports late is imported before.
BECOME_ANOTHER_USER = """
import codecs, tempfile
with tempfile.TemporaryDirectory() as name:
    elsewhere = DeviceLock("GPU-1", command=command, folder=pathlib.Path(name))
    with elsewhere.acquire(wait_seconds=60, on_wait=print):
        elsewhere.holder()
codecs.lookup("ascii")
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")
def test_another_user_can_follow_a_killed_session() -> None:
    """In a sticky folder like /tmp a second user takes over lock and record that belong to the first."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o1777)
        with holding(folder):
            pass
        with session(folder, first=BECOME_ANOTHER_USER) as second:
            assert next_line(second) == "held", second.communicate()[0]
            assert our_lock(folder).holder().pid == second.pid
            second.communicate(timeout=DEADLINE_SECONDS)
            assert second.returncode == 0
        # It may not remove the first user's file, but it has taken its own name off it.
        assert our_lock(folder).record_path.read_bytes() == b""


SECRET = "hf_abcdefghijkl"
QUOTED = 'it\'s a "secret"'


@pytest.mark.parametrize(
    ("command", "secret", "shown"),
    [
        (f"pytest --api-key={SECRET} --api-key {SECRET} x", "", "pytest --api-key=... --api-key ... x"),
        (f"pytest -o env=T={SECRET} {SECRET}", SECRET, "pytest -o 'env=T=<HF_TOKEN>' '<HF_TOKEN>'"),
        (shlex.join(["pytest", QUOTED, f"T={QUOTED}"]), QUOTED, "pytest '<HF_TOKEN>' 'T=<HF_TOKEN>'"),
        (f"it's no  command, with {SECRET}", SECRET, "it's no  command, with <HF_TOKEN>"),
        # Only its begin is kept, cut when it is without secrets.
        (f"{'x' * 495} {SECRET}", SECRET, f"{'x' * 495} '<HF"),
    ],
)
def test_a_record_tells_everybody_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, secret: str, shown: str
) -> None:
    """Values of secret variables and options are left out of a command line, all else stands as it was typed."""
    monkeypatch.setenv("HF_TOKEN", secret)
    with take(DeviceLock("GPU-1", command=command, folder=tmp_path)) as lock:
        assert json.loads(lock.record_path.read_bytes())["command"] == shown
