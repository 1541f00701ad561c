"""Lock on a device for one pytest run at a time: of two runs, each would call the other's load a regression."""

from __future__ import annotations

import os
import re
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, final

import filelock
import psutil

from pytest_gpuserve.errors import DeviceProblem
from pytest_gpuserve.process.ports import describe_process
from pytest_gpuserve.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

_SHARED_MODE = 0o666
"""Mode of the file: every user of the machine must be able to wait for the device, and then own it."""

_LOCKS = Path("/proc/locks")
"""The kernel's list of locks on files, for all users."""

_POLL_SECONDS = 0.2


@final
class DeviceLock:
    """The right to measure on one device of this machine, for one session at a time; a context after ``acquire``.

    The kernel holds the lock (``flock`` on a file in the machine's folder for locks). It ends with the process in any
    case, and a leftover file blocks no session. Child processes do not inherit the lock. Sessions in containers with
    folders of their own do not see each other.

    Args:
        key: ``cpu``, or the GPU's uuid.
        folder: Folder of the file; by default ``/run/lock``, or ``/tmp`` if that is not writable for all.
    """

    def __init__(self, key: str, *, folder: Path | None = None) -> None:
        base = _machine_folder() if folder is None else folder
        safe_key = re.sub(r"[^A-Za-z0-9._-]", "-", key)
        self.key = key
        self.path = base / f"pytest-gpuserve-{safe_key}.lock"
        self._lock = filelock.FileLock(self.path, mode=_SHARED_MODE, thread_local=False)

    @property
    def held(self) -> bool:
        """Whether this object owns the device now."""
        return self._lock.is_locked

    def acquire(self, *, wait_seconds: float, on_wait: Callable[[str, float], None]) -> DeviceLock:
        """Take the device; wait for another session if necessary.

        Args:
            wait_seconds: The longest wait; 0 tries once.
            on_wait: Called once, with the holder of the device and ``wait_seconds``, when a wait begins.

        Raises:
            DeviceProblem: The device is still taken after that time, or its lock file cannot be used.
        """
        began = time.monotonic()
        told = False
        while not self._try_acquire():
            waited_seconds = time.monotonic() - began
            if waited_seconds >= wait_seconds:
                raise self._taken(waited_seconds)
            if not told:
                on_wait(self.describe_holder(), wait_seconds)
                told = True
            time.sleep(min(_POLL_SECONDS, wait_seconds - waited_seconds))
        return self

    def _try_acquire(self) -> bool:
        # Every user may create files in the folder, so a link there could lead to any file.
        if self.path.is_symlink():
            raise self._unusable("the lock file is a symbolic link")
        try:
            self._lock.acquire(timeout=0.0)
        except filelock.Timeout:
            return False
        except OSError as error:
            raise self._unusable(error.strerror or str(error)) from error
        return True

    def release(self) -> None:
        """Release the device; does nothing if it is not held."""
        self._lock.release()

    def holder(self) -> int | None:
        """Pid of the process that holds the device; None if the kernel shows none, as for another container's."""
        try:
            status, listed = self.path.stat(), _LOCKS.read_text(encoding="ascii")
        except OSError:
            return None
        place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        # Each line is `NUMBER: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE START END`.
        for fields in map(str.split, listed.splitlines()):
            if fields[1:4] == ["FLOCK", "ADVISORY", "WRITE"] and fields[5] == place:
                return int(fields[4])
        return None

    def describe_holder(self) -> str:
        """Describe the process that holds the device: pid, command line without secrets, user, age."""
        pid = self.holder()
        shown = describe_process(pid)
        if pid is None:
            return shown
        try:
            process = psutil.Process(pid)
            # Only a text for people: a step of the clock may make it wrong.
            age_seconds = max(0.0, time.time() - process.create_time())
            return f"{shown} of {process.username()}, started {format_seconds(age_seconds)} ago"
        except psutil.Error:
            return shown

    def __enter__(self) -> DeviceLock:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    def _taken(self, waited_seconds: float) -> DeviceProblem:
        pid = self.holder()
        end_it = f"end that run: kill {pid}" if pid else f"find that run: fuser -v {self.path}"
        return DeviceProblem(
            f"Device {self.key} is in use by another pytest run, and two measurements at once would spoil each other.",
            found=f"{self.describe_holder()}; waited {format_seconds(waited_seconds)}",
            looked=(str(self.path),),
            remedies=(
                "wait until that run ends",
                end_it,
                "measure on another GPU: CUDA_VISIBLE_DEVICES",
                "wait longer: ini option gpuserve_lock_wait = SECONDS",
            ),
        )

    def _unusable(self, reason: str) -> DeviceProblem:
        return DeviceProblem(
            f"The lock file of device {self.key} cannot be used, so it is unknown whether the device is free.",
            found=f"{self.path}: {reason}",
            remedies=(
                f"have its owner or root remove it: rm {self.path}",
                "set TMPDIR to a folder that all users share",
            ),
        )


def _machine_folder() -> Path:
    """Folder that all users and jobs of the machine share, with any TMPDIR."""
    for folder in (Path("/run/lock"), Path("/var/lock"), Path("/tmp")):  # noqa: S108 -- no secret is kept there
        with suppress(OSError):
            if folder.stat().st_mode & (stat.S_ISVTX | stat.S_IWOTH) == stat.S_ISVTX | stat.S_IWOTH:
                return folder
    return Path(tempfile.gettempdir())
