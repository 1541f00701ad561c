"""The lock on a device, between real processes."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from pytest_gpuserve.device.lock import DeviceLock
from pytest_gpuserve.errors import DeviceProblem

ROOT = Path(__file__).parents[2]
DEADLINE_SECONDS = 60.0

# A session that takes the lock, says so, does what `then` says, and ends when its standard input does.
SESSION = """
import os, pathlib, subprocess, sys
from pytest_gpuserve.device.lock import DeviceLock
folder, first, then = sys.argv[1:]
lock = DeviceLock("GPU-1", folder=pathlib.Path(folder))
exec(first)
with lock.acquire(wait_seconds=60, on_wait=lambda holder, seconds: print("waiting", flush=True)):
    exec(then)
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def session(folder: Path, *, first: str = "", then: str = "") -> Iterator[subprocess.Popen[str]]:
    """Start another session on the same device; it is killed on leaving, if it has not ended."""
    command = [sys.executable, "-c", SESSION, str(folder), first, then]
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
    return DeviceLock(key, folder=folder)


def unexpected_wait(holders: object, seconds: float) -> None:
    """Fail, because a device should be free."""
    pytest.fail(f"waited {seconds} s for {holders}")


def take(lock: DeviceLock, *, wait_seconds: float = 0.0) -> DeviceLock:
    """Take a lock that should be free."""
    return lock.acquire(wait_seconds=wait_seconds, on_wait=unexpected_wait)


def test_a_free_device_is_taken_at_once_and_given_back(tmp_path: Path) -> None:
    """While held, the lock names this process; afterwards, even after an exception, it names none."""
    lock = our_lock(tmp_path)
    assert lock.holder() is None
    with take(lock, wait_seconds=60):
        assert lock.held
        assert our_lock(tmp_path).holder() == os.getpid()
    assert not lock.held
    assert lock.holder() is None
    with pytest.raises(ZeroDivisionError), take(lock):
        _ = 1 / 0
    assert not lock.held
    take(our_lock(tmp_path)).release()


def test_a_taken_device_is_refused_by_name(tmp_path: Path) -> None:
    """After one notice and the wait, or at once without a wait, by who holds it, since when, and what helps."""
    notices: list[tuple[str, float]] = []
    with holding(tmp_path) as other:
        with pytest.raises(DeviceProblem, match="in use"):
            take(our_lock(tmp_path), wait_seconds=0)
        with pytest.raises(DeviceProblem) as caught:
            our_lock(tmp_path).acquire(wait_seconds=0.3, on_wait=lambda *notice: notices.append(notice))
    ((holder, announced_seconds),) = notices
    assert holder.startswith(f"pid {other.pid} (")
    assert announced_seconds == 0.3
    text = str(caught.value)
    for part in (f"pid {other.pid} (", ") of ", ", started ", "waited ", f"kill {other.pid}"):
        assert part in text
    assert "gpuserve_lock_wait" in text


def test_a_holder_that_the_kernel_does_not_show_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of another container, or a kernel without its list of locks, is refused with a way to find it."""
    with holding(tmp_path):
        for listed in ("", "1: FLOCK  ADVISORY  WRITE 1 00:00:0 0 EOF\n", None):
            monkeypatch.setattr("pytest_gpuserve.device.lock._LOCKS", tmp_path / "locks")
            (tmp_path / "locks").unlink(missing_ok=True)
            if listed is not None:
                (tmp_path / "locks").write_text(listed)
            with pytest.raises(DeviceProblem, match=r"an unknown process[\s\S]*fuser -v"):
                take(our_lock(tmp_path))


def test_a_wait_ends_when_the_other_session_does(tmp_path: Path) -> None:
    """A waiting session gets the device as soon as the holder ends."""
    with holding(tmp_path) as other:

        def end_it(holder: str, seconds: float) -> None:
            assert other.stdin is not None
            other.stdin.close()

        with our_lock(tmp_path).acquire(wait_seconds=DEADLINE_SECONDS, on_wait=end_it) as lock:
            assert lock.holder() == os.getpid()
        assert other.wait(DEADLINE_SECONDS) == 0


def test_a_killed_holder_blocks_nobody(tmp_path: Path) -> None:
    """After kill -9 the device is free at once."""
    with holding(tmp_path) as other:
        other.kill()
        other.wait(DEADLINE_SECONDS)
        assert our_lock(tmp_path).holder() is None
        take(our_lock(tmp_path)).release()


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
    ordinary = DeviceLock("cpu").path
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert DeviceLock("cpu").path == ordinary
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
    with DeviceLock("GPU-1", folder=pathlib.Path(name)).acquire(wait_seconds=60, on_wait=print):
        pass
codecs.lookup("ascii")
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")
def test_another_user_can_follow_a_killed_session() -> None:
    """In a sticky folder like /tmp a second user takes over the lock that belongs to the first, and is named."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o1777)
        with holding(folder):
            pass
        with session(folder, first=BECOME_ANOTHER_USER) as second:
            assert next_line(second) == "held", second.communicate()[0]
            assert our_lock(folder).holder() == second.pid
            second.communicate(timeout=DEADLINE_SECONDS)
            assert second.returncode == 0
