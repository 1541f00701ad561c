"""Lock on a device for one pytest run at a time: of two runs, each would call the other's load a regression."""

from __future__ import annotations

import getpass
import json
import math
import os
import re
import shlex
import stat
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

import filelock
import psutil

from pytest_gpuserve.errors import DeviceProblem, UsageProblem
from pytest_gpuserve.process.secrets import masked, without_secret_values
from pytest_gpuserve.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

_SHARED_MODE = 0o666
"""Mode of both files: every user of the machine must be able to wait for the device, and then own it."""

_POLL_SECONDS = 0.2
_LONGEST_RECORD = 8192
_LONGEST_COMMAND = 500


@dataclass(frozen=True)
class Holder:
    """The owner of a device, as far as known; unknown numbers are None.

    Attributes:
        command: Its command line, or its own description of its work.
        since_epoch: When it took the device, in seconds since 1970.
        started_epoch: Start of the process, which distinguishes it from a later one with the same pid.
    """

    pid: int | None = None
    command: str = ""
    since_epoch: float | None = None
    user: str = ""
    started_epoch: float | None = None

    def __str__(self) -> str:
        if self.pid is None or self.since_epoch is None:
            return "an unknown process"
        # The other session may use another time zone (this is a date for people; nothing is decided by it).
        age_seconds = max(0.0, time.time() - self.since_epoch)
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since_epoch))
        return f"process {self.pid} of {self.user} ({self.command}), since {since}, {format_seconds(age_seconds)} ago"


@final
class DeviceLock:
    """The right to measure on one device of this machine, for one session at a time.

    The kernel holds the lock (``flock`` on a file in the machine's folder for locks). It ends with the process in any
    case, and a leftover file blocks no session. Child processes do not inherit the lock. Sessions in containers with
    folders of their own do not see each other.

    Args:
        key: ``cpu``, or the GPU's uuid.
        command: Description of this session for those who wait for it: usually its command line by ``shlex.join``.
            Every user can read it, so it is stored without secrets.
        folder: Folder of the two files; by default ``/run/lock``, or ``/tmp`` if that is not writable for all.
    """

    def __init__(self, key: str, *, command: str, folder: Path | None = None) -> None:
        base = _machine_folder() if folder is None else folder
        safe_key = re.sub(r"[^A-Za-z0-9._-]", "-", key)
        self.key = key
        self._command = command
        self.path = base / f"pytest-gpuserve-{safe_key}.lock"
        self.record_path = self.path.with_suffix(".json")
        self._lock = filelock.FileLock(self.path, mode=_SHARED_MODE, thread_local=False)

    @property
    def held(self) -> bool:
        """Whether this object owns the device now."""
        return self._lock.is_locked

    def acquire(self, *, wait_seconds: float, on_wait: Callable[[Holder, float], None]) -> DeviceLock:
        """Take the device; wait for another session if necessary.

        Args:
            wait_seconds: The longest wait; 0 tries once.
            on_wait: Called once, with the holder of the device and ``wait_seconds``, when a wait begins.

        Raises:
            DeviceProblem: The device is still taken after that time, or its lock file cannot be used.
            UsageProblem: ``wait_seconds`` is not a duration.
        """
        if not math.isfinite(wait_seconds) or wait_seconds < 0:
            raise UsageProblem(
                "The longest wait for a device must be a number of seconds, 0 or more.",
                found=str(wait_seconds),
                remedies=("set the ini option gpuserve_lock_wait to a number such as 600",),
            )
        began = time.monotonic()
        told = False
        while not self._try_acquire():
            waited_seconds = time.monotonic() - began
            if waited_seconds >= wait_seconds:
                raise self._taken(waited_seconds)
            if not told:
                on_wait(self.holder(), wait_seconds)
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
        try:
            self._write_record()
        except BaseException:
            self.release()
            raise
        return True

    def release(self) -> None:
        """Release the device; does nothing if it is not held."""
        if self.held:
            # Before the lock is released, so that the next holder's record is never removed.
            self._remove_record()
            self._lock.release()

    def holder(self) -> Holder:
        """Read the holder of the device; an unknown process if no living one has left its name."""
        holder = _parse_record(_read_record(self.record_path))
        # A killed session leaves its record; the next one has the lock before it has written its own.
        return holder if _is_alive(holder) else Holder()

    def __enter__(self) -> DeviceLock:
        if not self.held:
            raise RuntimeError("call acquire(), which takes the longest wait, before `with`")
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    def _taken(self, waited_seconds: float) -> DeviceProblem:
        holder = self.holder()
        end_it = f"end that session: kill {holder.pid}" if holder.pid else f"find that session: fuser -v {self.path}"
        return DeviceProblem(
            f"Device {self.key} is in use by another session, and two measurements at once would spoil each other.",
            found=f"{holder}; waited {format_seconds(waited_seconds)}",
            looked=(str(self.path),),
            remedies=(
                "wait until that session ends",
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

    def _write_record(self) -> None:
        record = Holder(
            pid=os.getpid(),
            command=_without_secrets(self._command)[:_LONGEST_COMMAND],
            since_epoch=time.time(),
            user=_user_name(),
            started_epoch=psutil.Process().create_time(),
        )
        # The record only informs; a full disk or another user's file is not a reason to refuse a device.
        with suppress(OSError):
            descriptor = self._open_record()
            with os.fdopen(descriptor, "wb") as file:
                file.write(json.dumps(asdict(record)).encode())

    def _open_record(self) -> int:
        flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        # Written in place: in a sticky folder one cannot replace another user's file, and with fs.protected_regular one
        # cannot even open it with O_CREAT.
        try:
            return os.open(self.record_path, flags | os.O_TRUNC)
        except FileNotFoundError:
            descriptor = os.open(self.record_path, flags | os.O_CREAT | os.O_EXCL, _SHARED_MODE)
            os.fchmod(descriptor, _SHARED_MODE)
            return descriptor

    def _remove_record(self) -> None:
        try:
            self.record_path.unlink(missing_ok=True)
        except OSError:
            with suppress(OSError):
                os.close(self._open_record())


def _machine_folder() -> Path:
    """Folder that all users and jobs of the machine share, with any TMPDIR."""
    for folder in (Path("/run/lock"), Path("/var/lock"), Path("/tmp")):  # noqa: S108 -- no secret is kept there
        with suppress(OSError):
            if folder.stat().st_mode & (stat.S_ISVTX | stat.S_IWOTH) == stat.S_ISVTX | stat.S_IWOTH:
                return folder
    return Path(tempfile.gettempdir())


def _read_record(path: Path) -> bytes:
    # A link, a pipe or a folder in its place must not lead elsewhere, and must not block.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return os.read(descriptor, _LONGEST_RECORD)
        finally:
            os.close(descriptor)
    except OSError:
        return b""


def _parse_record(raw: bytes) -> Holder:
    try:
        record = json.loads(raw)
        return Holder(
            pid=int(record["pid"]),
            command=_printable(str(record["command"])),
            since_epoch=float(record["since_epoch"]),
            user=_printable(str(record["user"])),
            started_epoch=float(record["started_epoch"]),
        )
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return Holder()


def _printable(text: str) -> str:
    # Any user can write the record, and it is shown on other users' terminals.
    return "".join(character if character.isprintable() else "?" for character in text[:_LONGEST_COMMAND])


def _without_secrets(command: str) -> str:
    words = [command]
    with suppress(ValueError):
        words = shlex.split(command)
    if shlex.join(words) != command:
        # The text is not a command line.
        return masked(command)
    # Word by word, because a quotation mark in a secret is escaped on a command line.
    return shlex.join(masked(word) for word in without_secret_values(words))


def _is_alive(holder: Holder) -> bool:
    if holder.pid is None or holder.started_epoch is None or holder.since_epoch is None:
        return False
    if not math.isfinite(holder.since_epoch):
        return False
    try:
        # The start is kept in clock ticks since boot, and the time of boot changes a little with the clock's steps.
        return abs(psutil.Process(holder.pid).create_time() - holder.started_epoch) < 2.0
    except (psutil.Error, ValueError, OverflowError):
        return False


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return str(os.getuid())
