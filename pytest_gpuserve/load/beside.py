"""Processes of this host that make a load for us and are not below us: workers that a cluster's node here runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.device.cpu import parse_stat
from pytest_gpuserve.load.wire import HostProcess

if TYPE_CHECKING:
    from collections.abc import Iterable

_heard: Final[dict[int, tuple[HostProcess, ...]]] = {}
"""By the pid of who told of them, for as long as that one is ours."""


def host_process(pid: int) -> HostProcess | None:
    """Say which process has a number now; None where none has that we can see."""
    try:
        return HostProcess(pid, parse_stat(Path(f"/proc/{pid}/stat").read_bytes()).began_ticks)
    except OSError:
        return None


def hear(teller: int, processes: Iterable[HostProcess]) -> None:
    """Hear from one of our own processes which ones work for it, in place of those that it told of before."""
    _heard[teller] = tuple(processes)


def forget(teller: int) -> None:
    """Hear that it has ended, and what it told of works for us no more."""
    _heard.pop(teller, None)


def pids(teller: int | None = None) -> list[int]:
    """Pids of those that are still there, that one process told of, or all.

    A number that has become another process's is left out.
    """
    told = list(_heard.values()) if teller is None else [_heard.get(teller, ())]
    return [process.pid for each in told for process in each if host_process(process.pid) == process]
