"""The supervisor script between the test session and a server; it ends the server's whole tree in any case.

It is run as ``python -I -S supervisor.py FD [FOLDER...]``. FD is its end of a socket pair; only the owner
(`pytest_gpuserve.process.child.Process`) has the other end. The folders are removed at its end, even if it never gets
an order. One JSON object a line travels each way:

* owner to supervisor: an order ``{"argv", "env", "cwd", "owner"}``, and at last ``{"stop": GRACE_SECONDS}``;
* supervisor to owner: ``{"started": PID}`` or ``{"failed": TEXT}``, ``{"exited": STATUS}`` as soon as the started child
  ended (negative: killed by that signal), and last ``{"gone": true, "left": [FOLDER, ...]}``.

The supervisor has a session of its own, out of reach of Ctrl-C, and starts the child in another one. It is a child
subreaper, so all processes that the child forks stay below it, even daemons and orphans. It ends the tree on a stop
line, on SIGTERM, and when the owner has ended. It notices that end by the end of file on the link, or by a new parent
process, which works even if a fork of the owner keeps the link open. After the tree it removes the POSIX shared memory
and semaphores that the tree left behind, and the owned folders. Processes that an outside daemon (docker, systemd)
starts are not descendants, and are not ended.

Not covered: SIGKILL of the supervisor itself. The kernel then kills the direct child too (PR_SET_PDEATHSIG). The
child's own children and the owned folders are left to the owner's ``stop()``, and shared memory to its creators. If the
owner dies as well, these stay.

Only a few modules of the standard library are imported, because every server start waits for this.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import select
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterable

OWNERLESS_GRACE_SECONDS = 1.5
"""Longest time from SIGTERM to SIGKILL after the owner's death: all processes must be gone within 5 s of it."""

TRACKER_GRACE_SECONDS = 1.0
"""Time before SIGKILL for multiprocessing's resource trackers, which end by themselves. They unlink shared memory that
no process has open now, such as data in a queue."""

SHARED_MEMORY = "/dev/shm/"  # noqa: S108 - where shm_open and sem_open put their names; nothing is created there
"""The folder of POSIX shared memory and named semaphores, whose names are flat."""

_OF_ALL_CONTAINERS = "libpod_"
"""Prefix of podman's locks in /dev/shm: made by its first command, and used by all commands of this user."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PASS_SECONDS = 0.02
_OWNER_CHECK_SECONDS = 1.0  # only matters where a fork of the owner outlives it and so keeps the link open


class Owner:
    """The link to the owner of the server; neither its silence nor its death blocks the supervisor."""

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)  # noqa: FBT003 - takes no keyword
        self.fd = fd
        self.gone = False
        self.grace_seconds: float | None = None
        self._unread = b""
        self._pid = 0

    def order(self) -> dict[str, Any] | None:
        """Wait for the first line: the command, and its owner; None if the owner orders the end, or ends."""
        while b"\n" not in self._unread:
            received = os.read(self.fd, 1 << 16)
            if not received:
                return None
            self._unread += received
        line, _, self._unread = self._unread.partition(b"\n")
        order: dict[str, Any] = json.loads(line)
        if "stop" in order:
            return None
        os.set_blocking(self.fd, False)
        self._pid = order["owner"]
        return order

    def listen(self) -> None:
        """Read the owner's messages, or note its end, without a wait."""
        while not self.gone:
            try:
                received = os.read(self.fd, 1 << 16)
            except BlockingIOError:
                break
            except OSError:
                received = b""
            self.gone = not received
            self._unread += received
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            self.grace_seconds = json.loads(line)["stop"]
        self.gone = self.gone or os.getppid() != self._pid

    def tell(self, **message: object) -> None:
        """Send one message; an owner that has ended or does not read must not prevent the end of the tree."""
        with contextlib.suppress(OSError):
            os.write(self.fd, json.dumps(message).encode() + b"\n")


class Supervisor:
    """A child process with all its descendants, from its start to its end."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._child = 0
        self._told_to_end = False
        self._shared: set[int] = set()
        for number in (signal.SIGTERM, signal.SIGCHLD):
            # Without a Python handler the wake-up descriptor is not written.
            signal.signal(number, lambda *_: None)
        self._signals, wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        # Files from before the server's start may be a user's data.
        self._known_before = {entry.inode() for entry in _entries(SHARED_MEMORY)}

    def start(self, argv: list[str], env: dict[str, str], cwd: str) -> None:
        """Start the child and report that it runs; OSError if that folder or program cannot be used."""
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        reading, writing = os.pipe()
        supervisor, pid = os.getpid(), os.fork()
        if pid == 0:
            _become(argv, env, cwd, supervisor, writing)
        os.close(writing)
        with os.fdopen(reading, "rb") as report:
            failure = report.read()
        if failure:
            raise OSError(failure.decode(errors="replace"))
        self._child = pid
        self._owner.tell(started=pid)

    def watch(self) -> float:
        """Wait until the tree has to end; return the seconds from SIGTERM to SIGKILL."""
        while True:
            self._wait(_OWNER_CHECK_SECONDS)
            self._reap()
            if self._owner.gone or self._told_to_end:
                return OWNERLESS_GRACE_SECONDS
            if self._owner.grace_seconds is not None:
                return self._owner.grace_seconds

    def end(self, grace_seconds: float) -> None:
        """End every descendant, with SIGTERM first; return when none is left, dead or alive."""
        deadline = time.monotonic() + grace_seconds
        self._ask(deadline)
        self._kill()
        unlink_shared(self._shared - self._known_before)

    def _ask(self, deadline: float) -> None:
        members = descendants(os.getpid())
        self._note_shared(members)
        for pid in members:
            # Only once, so that a server's forked clean-up process can finish.
            _send(pid, signal.SIGTERM)
        # Trackers end by themselves; one that does not must not use up the grace.
        while self._reap() and not all(is_tracker(pid) for pid in descendants(os.getpid())):
            if self._owner.gone:
                deadline = min(deadline, time.monotonic() + OWNERLESS_GRACE_SECONDS)
            left = deadline - time.monotonic()
            if left <= 0:
                return
            self._wait(min(left, 5 * _PASS_SECONDS))

    def _kill(self) -> None:
        # Not repeated below: later forks have only what their parents have, and time counts there.
        self._note_shared(descendants(os.getpid()))
        spared_until = time.monotonic() + TRACKER_GRACE_SECONDS
        while self._reap():
            members = descendants(os.getpid())
            spared = {pid for pid in members if time.monotonic() < spared_until and is_tracker(pid)}
            # The kernel excludes a signal to a group and a fork in it from each other, so even a fork bomb ends.
            for group in set(members.values()) - {members[pid] for pid in spared} - {os.getpgrp(), 0, 1}:
                _send(-group, signal.SIGKILL)
            for pid in members.keys() - spared:
                _send(pid, signal.SIGKILL)
            self._wait(_PASS_SECONDS)

    def _reap(self) -> bool:
        """Collect dead processes; False if no descendant is left, because orphans among them become our children."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._child:
                self._child = 0
                self._owner.tell(exited=os.waitstatus_to_exitcode(status))

    def _wait(self, seconds: float) -> None:
        """Sleep until a signal, a message of the owner, or the time is up."""
        poller = select.poll()
        poller.register(self._signals, select.POLLIN)
        if not self._owner.gone:
            poller.register(self._owner.fd, select.POLLIN)
        poller.poll(math.ceil(seconds * 1000))
        with contextlib.suppress(BlockingIOError):
            self._told_to_end |= signal.SIGTERM in os.read(self._signals, 1 << 16)
        self._owner.listen()

    def _note_shared(self, pids: Iterable[int]) -> None:
        for pid in pids:
            self._shared |= shared_of(pid)


def descendants(root: int) -> dict[int, int]:
    """All processes below ``root``, including zombies: pid to process group (0: of another namespace)."""
    children: dict[int, dict[int, int]] = {}
    for pid in _pids():
        # The command name before the last parenthesis may contain anything, even spaces and parentheses.
        fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        if fields:
            children.setdefault(int(fields[1]), {})[pid] = int(fields[2])
    found: dict[int, int] = {}
    level = {root: 0}
    while level:
        level = {child: group for pid in level for child, group in children.get(pid, {}).items()}
        found |= level
    return found


def is_tracker(pid: int) -> bool:
    """Whether this is a resource tracker of Python's multiprocessing."""
    return b"multiprocessing.resource_tracker import main" in _read(f"/proc/{pid}/cmdline")


def shared_of(pid: int) -> set[int]:
    """Inodes of the files below /dev/shm that the process has open or mapped; empty if it may not be read.

    By inode, because the creator of a named semaphore maps it under a temporary name that is deleted at once.
    """
    try:
        device = os.stat(SHARED_MEMORY).st_dev  # noqa: PTH116 - as in _read
    except OSError:
        return set()
    shown = f"{os.major(device):02x}:{os.minor(device):02x}".encode()
    mapped = (line.split(None, 5) for line in _read(f"/proc/{pid}/maps").splitlines())
    found = {int(fields[4]) for fields in mapped if fields[3] == shown}
    for entry in _entries(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            # The name first, because stat of an arbitrary file may hang, for example on a network folder.
            if os.readlink(entry.path).startswith(SHARED_MEMORY):  # noqa: PTH115 - as in _read
                status = entry.stat()
                found |= {status.st_ino} if status.st_dev == device else set()
    return found


def unlink_shared(inodes: set[int]) -> None:
    """Remove these files from /dev/shm, as far as they are this user's and unused by all visible processes.

    podman's locks stay: this tree was only the first to need them since the machine's start.
    """
    left = [
        entry
        for entry in _entries(SHARED_MEMORY)
        if entry.inode() in inodes and not entry.name.startswith(_OF_ALL_CONTAINERS) and _is_own_file(entry)
    ]
    used = {inode for pid in _pids() for inode in shared_of(pid)} if left else set()
    for entry in left:
        if entry.inode() not in used:
            with contextlib.suppress(OSError):
                os.unlink(entry.path)  # noqa: PTH108 - as in _read


def remove_folders(folders: list[str]) -> list[str]:
    """Remove the folders with their contents; return those that could not be removed."""
    import shutil  # noqa: PLC0415 - takes as long to import as all the rest, and the start of a server would wait for it

    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    return [folder for folder in folders if os.path.lexists(folder)]


def _become(argv: list[str], env: dict[str, str], cwd: str, supervisor: int, failure: int) -> NoReturn:
    """Turn the forked copy of the supervisor into the child; a failure is written to the pipe."""
    trouble = "cannot prepare the new process"
    try:
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            # Ignored signals stay ignored through exec; the supervisor, Python and a shell's `&` ignore some.
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:
            os._exit(127)
        trouble = f"cannot enter the folder {cwd!r}"
        os.chdir(cwd)
        trouble = f"cannot execute {argv[0]!r}"
        os.execvpe(argv[0], argv, env)  # noqa: S606 - starting a program without a shell is the purpose
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        os.write(failure, f"{trouble}: {reason}".encode(errors="replace"))
    finally:
        os._exit(127)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value)) != 0:
        raise OSError(ctypes.get_errno(), f"processes cannot be supervised here: prctl({option}) was refused")


def _pids() -> list[int]:
    return [int(entry.name) for entry in _entries("/proc") if entry.name.isdigit()]


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - importing pathlib would double the time that a start takes
            return file.read()
    except OSError:
        return b""


def _is_own_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file(follow_symlinks=False) and entry.stat().st_uid == os.geteuid()
    except OSError:
        return False


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def main() -> None:
    """Serve one owner; remove the folders at the end."""
    owner, folders = Owner(int(sys.argv[1])), sys.argv[2:]
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    try:
        order = owner.order()
        if order is not None:
            serve(owner, order)
    finally:
        left = remove_folders(folders)
    # Not after an exception: then the owner looks for processes itself.
    owner.tell(gone=True, left=left)


def serve(owner: Owner, order: dict[str, Any]) -> None:
    """Start the child, watch, end the tree."""
    supervisor = Supervisor(owner)
    grace_seconds = 0.0
    try:
        supervisor.start(order["argv"], order["env"], order["cwd"])
        grace_seconds = supervisor.watch()
    except OSError as error:
        owner.tell(failed=str(error))
    finally:
        supervisor.end(grace_seconds)


if __name__ == "__main__":
    main()
