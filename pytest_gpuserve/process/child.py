"""A child process with all its descendants; it ends after ``stop()``, or when this process dies.

This module does not depend on pytest or any server. ``supervisor`` does the work that must outlive this process.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.process.logs import read_tail
from pytest_gpuserve.process.ports import describe_process
from pytest_gpuserve.process.secrets import without_secret_values, without_secrets
from pytest_gpuserve.units import Deadline, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

    from typing_extensions import Self


START_ALLOWANCE_SECONDS = 30.0
"""Longest wait for the supervisor to start the child; usual are some 30 ms."""

GRACE_SECONDS = 5.0
"""Default time from SIGTERM to the SIGKILL of remaining processes."""

END_ALLOWANCE_SECONDS = 30.0
"""Longest wait, beyond the grace, for the end of a killed tree (a GPU driver may hold a process for seconds)."""

TREE_VARIABLE = "PYTEST_GPUSERVE_TREE"
"""Environment variable, unique to each start, that identifies a tree after the loss of its supervisor."""

_MESSAGE_BYTES = 1 << 16

_SUPERVISOR_SCRIPT = Path(__file__).with_name("supervisor.py")


@dataclass(frozen=True)
class Command:
    """A command to start.

    Args:
        argv: Program and arguments; the program is looked up along the PATH of ``env``.
        env: The full environment of the child; only `TREE_VARIABLE` is added.
        cwd: Working folder of the child.
        log: File to which its standard output and error are appended, because a full pipe without a reader would stop
            it. It must be outside owned folders if it is to be read after the end.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    log: Path

    def __str__(self) -> str:
        return shlex.join(without_secret_values(self.argv))


@dataclass
class _Reports:
    """The supervisor's reports so far."""

    unread: bytes = b""
    started: int = 0
    failed: str = ""
    exited: int | None = None
    gone: bool = False
    severed: bool = False
    left: list[str] = field(default_factory=list)

    def add(self, received: bytes) -> None:
        self.severed = self.severed or not received
        *lines, self.unread = (self.unread + received).split(b"\n")
        for line in lines:
            for name, value in json.loads(line).items():
                setattr(self, name, value)


class Process:
    """A command with its tree, and folders, in the care of a supervisor; used as a context manager.

    The supervisor exists before the command and the folders. It ends the tree and then removes the folders: with
    ``stop()`` (called at the end of a ``with`` block), and also with this process in any case, even after SIGKILL.
    Methods may be called from several threads; no thread is started.

    Args:
        folders: Absolute folders, which need not exist yet.
        log: File of the supervisor's and the command's output, outside the folders if it is to be read after their end.

    Raises:
        ServerFailed: The log cannot be written, or no more processes are possible.
        ValueError: A folder is relative, or is or contains the home folder or the working folder.
    """

    def __init__(self, folders: Sequence[Path], *, log: Path) -> None:
        for folder in folders:
            if not folder.is_absolute() or any(place.is_relative_to(folder) for place in (Path.home(), Path.cwd())):
                raise ValueError(f"{folder} cannot be owned by a server, because it would be removed with its contents")
        # Without a program until `run`.
        self.command = Command((), {}, Path("/"), log)
        self.pid = 0
        self._folders = tuple(folders)
        self._mark = uuid.uuid4().hex
        self._reports = _Reports()
        self._reading = threading.Lock()
        self._stopped = False
        self._link, theirs = socket.socketpair()
        with theirs:
            try:
                with log.open("ab") as opened:
                    self._log_start = opened.tell()
                    self._supervisor = subprocess.Popen(
                        [sys.executable, "-I", "-S", str(_SUPERVISOR_SCRIPT), str(theirs.fileno()), *map(str, folders)],
                        stdin=subprocess.DEVNULL,
                        stdout=opened,
                        stderr=opened,
                        cwd="/",
                        pass_fds=[theirs.fileno()],
                        start_new_session=True,
                    )
            except OSError as error:
                self._link.close()
                raise ServerFailed(
                    "the supervisor process could not be started", found=str(error), looked=[str(log)]
                ) from error
        self._supervisor_identity = psutil.Process(self._supervisor.pid)

    @classmethod
    def start(cls, command: Command, *, owned_folders: Sequence[Path] = ()) -> Process:
        """Start a command, as the owner of folders; raises like ``Process`` and ``run``."""
        process = cls(owned_folders, log=command.log)
        process.run(command)
        return process

    def run(self, command: Command) -> None:
        """Start the command, once. Its program has then been executed, but may be far from ready (see ``ready``).

        Args:
            command: The command, with the log of this process.

        Raises:
            ServerFailed: The program or its folder cannot be used; no process is left.
        """
        self.command = command
        try:
            self._order()
        except BaseException:
            self.stop(0)
            raise

    def exit_status(self) -> int | None:
        """Exit status of the child: None while it runs, negative after a signal (as for ``Popen``)."""
        self._listen(0)
        if self._reports.exited is None and self._reports.severed:
            # The kernel kills the child together with its supervisor, which then cannot report it.
            return -signal.SIGKILL
        return self._reports.exited

    def wait(self, timeout_seconds: float) -> int | None:
        """Wait for the exit of the child, at most this long; return `exit_status`."""
        deadline = Deadline.after(timeout_seconds)
        while self.exit_status() is None and not deadline.expired():
            self._listen(deadline.remaining())
        return self.exit_status()

    def describe_exit(self) -> str:
        """Describe the child's end: ``exit code 3``, ``killed by SIGKILL``, or ``still running``."""
        status = self.exit_status()
        if status is None:
            return "still running"
        if status >= 0:
            return f"exit code {status}"
        names = {number.value: number.name for number in signal.Signals}
        return f"killed by {names.get(-status, f'signal {-status}')}"

    def tail(self, lines: int = 30) -> str:
        """Last lines of its log from this start, printable and without secrets; may be empty."""
        return read_tail(self.command.log, start=self._log_start, lines=lines, shown=self._shown)

    def tree(self) -> list[psutil.Process]:
        """All live processes of the tree, the child first, including daemons and orphans."""
        self._listen(0)
        if self._reports.severed and not self._reports.gone:
            return marked(self._mark)
        try:
            members = self._supervisor_identity.children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        return sorted(filter(_is_alive, members), key=lambda member: (member.pid != self.pid, member.pid))

    def listening_addresses(self) -> set[tuple[str, int]]:
        """Addresses and TCP ports on which the tree listens."""
        addresses: set[tuple[str, int]] = set()
        for member in self.tree():
            with contextlib.suppress(psutil.Error):
                addresses |= {
                    (connection.laddr.ip, connection.laddr.port)
                    for connection in member.net_connections("tcp")
                    if connection.status == psutil.CONN_LISTEN
                }
        return addresses

    def ask_to_end(self, grace_seconds: float = GRACE_SECONDS) -> None:
        """Order the end of the tree without a wait, which ``stop`` does: several can end at the same time."""
        if not self._stopped:
            self._say(stop=grace_seconds)

    def stop(self, grace_seconds: float = GRACE_SECONDS) -> None:
        """End the tree, and remove the owned folders; later calls do nothing.

        Args:
            grace_seconds: Time from SIGTERM to the SIGKILL of remaining processes.

        Raises:
            ServerFailed: A process survives SIGKILL, or an owned folder cannot be removed.
        """
        if self._stopped:
            return
        deadline = Deadline.after(grace_seconds + END_ALLOWANCE_SECONDS)
        self._say(stop=grace_seconds)
        while not (self._reports.gone or self._reports.severed):
            if deadline.expired():
                raise self._immortal(self.tree(), deadline)
            self._listen(deadline.remaining())
        if not self._reports.gone:
            self._sweep(deadline)
        self._supervisor.wait()
        self._stopped = True
        with self._reading:
            self._link.close()
        if self._reports.left:
            raise ServerFailed(
                f"{self.command} has ended, but its folders could not be removed",
                found=", ".join(self._reports.left),
                remedies=["remove them by hand: another user's files, or a mount, may be in them"],
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _shown(self, text: str) -> str:
        return without_secrets(text, self.command.env)

    def _order(self) -> None:
        """Order the supervisor to start the child, and wait until it has."""
        command = self.command
        deadline = Deadline.after(START_ALLOWANCE_SECONDS)
        self._say(
            argv=command.argv,
            env={**command.env, TREE_VARIABLE: self._mark},
            cwd=str(command.cwd),
            owner=os.getpid(),
        )
        reports = self._reports
        while not (reports.started or reports.failed or reports.severed or deadline.expired()):
            self._listen(deadline.remaining())
        if reports.started:
            self.pid = reports.started
            return
        program = command.argv[0]
        raise ServerFailed(
            f"{command} could not be started",
            found=reports.failed or f"its supervisor did not start it in {format_seconds(deadline.seconds)}",
            looked=[str(command.cwd / program)] if "/" in program else [f"PATH={command.env.get('PATH', '')}"],
            remedies=[
                f"make sure that {program} is installed and executable (a script: its interpreter, too)",
                "or give its full path, or the interpreter that has it: python=",
            ],
            log_tail=self.tail(),
        )

    def _say(self, **message: object) -> None:
        try:
            self._link.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self._reports.severed = True

    def _listen(self, seconds: float) -> None:
        """Read the supervisor's reports; wait at most this long for one."""
        with self._reading:
            descriptor = self._link.fileno()
        if descriptor < 0 or self._reports.severed:
            return
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        poller.poll(seconds * 1000)
        with self._reading:
            try:
                self._reports.add(self._link.recv(_MESSAGE_BYTES, socket.MSG_DONTWAIT))
            except BlockingIOError:
                return
            except OSError:
                self._reports.severed = True

    def _sweep(self, deadline: Deadline) -> None:
        """Do the work of a dead supervisor: end processes with our mark, and remove the folders."""
        while members := marked(self._mark):
            if deadline.expired():
                raise self._immortal(members, deadline)
            for member in members:
                with contextlib.suppress(psutil.Error):
                    member.kill()
            psutil.wait_procs(members, timeout=min(1.0, deadline.remaining()))
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)
        self._reports.left = [str(folder) for folder in self._folders if folder.exists()]

    def _immortal(self, members: Sequence[psutil.Process], deadline: Deadline) -> ServerFailed:
        return ServerFailed(
            f"{self.command} could not be ended in {format_seconds(deadline.seconds)}",
            found="; ".join(describe_process(member.pid) for member in members) or "its supervisor does not answer",
            remedies=[
                "a process in state D waits for a driver: see `dmesg`; one of another user needs that user's kill"
            ],
            log_tail=self.tail(),
        )


def marked(mark: str) -> list[psutil.Process]:
    """All live processes whose environment has this value of `TREE_VARIABLE`, as far as it may be read."""
    return [process for process in psutil.process_iter() if _is_alive(process) and _mark_of(process) == mark]


def _is_alive(process: psutil.Process) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _mark_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(TREE_VARIABLE)
    except (psutil.Error, OSError):
        return None


@contextlib.contextmanager
def owned_folder(prefix: str, *, log: Path = Path("/dev/null")) -> Iterator[tuple[Path, Process]]:
    """Make a private temporary folder that is removed after the block, or with this process, even after SIGKILL.

    Args:
        log: As for `Process`.

    Yields:
        The folder, and the process that owns it, which may run a command.
    """
    folder = Path(tempfile.gettempdir()) / f"{prefix}{uuid.uuid4().hex[:12]}"
    with Process([folder], log=log) as process:
        try:
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise ServerFailed(
                "no temporary file can be created", found=str(error), remedies=["name another folder: TMPDIR=DIR"]
            ) from error
        yield folder, process
