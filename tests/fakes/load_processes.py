"""The processes of a load that are alive."""

from __future__ import annotations

import psutil

ENGINE = "pytest_gpuserve.load.engine"
COORDINATOR = "pytest_gpuserve.load.ray"
ACTOR = "ray::RayWorker"


def command_line(process: psutil.Process) -> str:
    """The command of a process; empty if it has ended."""
    try:
        return "" if process.status() == psutil.STATUS_ZOMBIE else " ".join(process.cmdline())
    except psutil.Error:
        return ""


def below(pid: int, *names: str) -> list[psutil.Process]:
    """Live processes below this one in whose command one of the names is, the oldest first."""
    found = psutil.Process(pid).children(recursive=True)
    named = [process for process in found if any(name in command_line(process) for name in names)]
    return sorted(named, key=psutil.Process.create_time)
