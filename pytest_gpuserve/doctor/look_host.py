"""Looks at the host: what it is, and who uses it while nothing is measured."""

from __future__ import annotations

import os
import resource
import tempfile
import time
import warnings
from math import inf
from typing import TYPE_CHECKING, Final

import psutil

from pytest_gpuserve.device.contention import cores_taken_by_others, read_cpu
from pytest_gpuserve.device.host import is_virtual, read_boost, read_core_limit, read_host
from pytest_gpuserve.device.host_probe import cores_used, read_host_counters, read_processes
from pytest_gpuserve.doctor.attempt import attempt, words
from pytest_gpuserve.doctor.facts import BusyProcess, CpuUse, HostNow, Space, Swap
from pytest_gpuserve.doctor.host_conditions import SHARED_MEMORY
from pytest_gpuserve.errors import GpuserveError
from pytest_gpuserve.process.logs import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpuserve.device.contention import CpuReading
    from pytest_gpuserve.device.host import Host
    from pytest_gpuserve.device.host_probe import Stat

LOOK_SECONDS: Final = 1.0
"""How long is looked at what changes."""

MOST_PROCESSES: Final = 5
"""That are named."""

LEAST_CORES: Final = 0.05
"""That a process must have used to be named."""


class HostLook:
    """A look at the host.

    Args:
        environ: The environment, which may hold GPUSERVE_HOST.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._unknown: dict[str, str] = {}
        self._cpu: CpuUse | None = None
        self._swap: Swap | None = None

    def watch(self) -> None:
        """Watch what changes, for `LOOK_SECONDS`."""
        swap = attempt(self._unknown, "swap", _swap)
        before = attempt(self._unknown, "cpu", _readings)
        time.sleep(LOOK_SECONDS)
        after = attempt(self._unknown, "cpu", _readings)
        if before is not None and after is not None:
            self._cpu = attempt(self._unknown, "cpu", lambda: _cpu_use(before, after))
        now = attempt(self._unknown, "swap", _swap)
        if swap is not None and now is not None:
            self._swap = Swap(now.used_bytes, max(0, now.moved_bytes - swap.moved_bytes))

    def now(self) -> HostNow:
        """All that is known of the host."""
        unknown = self._unknown
        host, problem = self._host()
        return HostNow(
            host=host,
            host_problem=problem[0],
            host_remedy=problem[1],
            boost=attempt(unknown, "boost", read_boost),
            core_limit=attempt(unknown, "core_limit", read_core_limit),
            is_virtual=attempt(unknown, "is_virtual", is_virtual),
            sees_all=attempt(unknown, "sees_all", _sees_all) or False,
            cpu=self._cpu,
            swap=self._swap,
            shared_memory=attempt(unknown, "shared_memory", lambda: _space(SHARED_MEMORY)),
            open_files=attempt(unknown, "open_files", _open_files),
            temp=attempt(unknown, "temp", lambda: _space(tempfile.gettempdir())),
            unknown=unknown,
        )

    def _host(self) -> tuple[Host | None, tuple[str, str]]:
        try:
            return attempt(self._unknown, "host", lambda: read_host(environ=self._environ)), ("", "")
        except GpuserveError as problem:
            return None, words(problem)


def _readings() -> tuple[CpuReading, dict[int, Stat]]:
    return read_cpu([psutil.Process()]), read_processes()


def _cpu_use(before: tuple[CpuReading, dict[int, Stat]], after: tuple[CpuReading, dict[int, Stat]]) -> CpuUse:
    first, last = before[0], after[0]
    worked = last.busy_seconds + last.stolen_seconds
    if worked <= 0:
        raise OSError("the kernel's counters of CPU time stand still")
    seconds = last.at_seconds - first.at_seconds
    stolen = max(0.0, last.stolen_seconds - first.stolen_seconds) / seconds
    used = cores_used(before[1], after[1], seconds)
    others = [(cores, pid) for pid, cores in used.items() if cores >= LEAST_CORES and pid != os.getpid()]
    return CpuUse(
        seconds=seconds,
        by_others=max(0.0, cores_taken_by_others(first, last) - stolen),
        stolen=stolen,
        stolen_since_boot=last.stolen_seconds / worked,
        processes=tuple(
            BusyProcess(pid, _program(pid), cores) for cores, pid in sorted(others, reverse=True)[:MOST_PROCESSES]
        ),
    )


def _program(pid: int) -> str:
    # Never its arguments: there may be a token among them.
    try:
        return printable(psutil.Process(pid).name())
    except psutil.Error:
        return "a process that has ended"


def _swap() -> Swap:
    with warnings.catch_warnings():
        # It warns, and gives zeros, where the kernel does not tell.
        warnings.simplefilter("error")
        seen = read_host_counters()
    return Swap(seen.swap_used_bytes, seen.swapped_bytes)


def _sees_all() -> bool:
    # This thread of the kernel has that pid on every Linux, and none in a container that has pids of its own.
    try:
        return psutil.Process(2).name() == "kthreadd"
    except psutil.Error:
        return False


def _space(folder: str) -> Space:
    left = os.statvfs(folder)
    return Space(folder, left.f_blocks * left.f_frsize, left.f_bavail * left.f_frsize)


def _open_files() -> tuple[float, float]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return inf if soft == resource.RLIM_INFINITY else soft, inf if hard == resource.RLIM_INFINITY else hard
