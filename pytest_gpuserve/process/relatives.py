"""Which processes are this run of pytest: of pytest-xdist the controller and all below it, else this one."""

from __future__ import annotations

from dataclasses import dataclass

import psutil


@dataclass
class _Run:
    controller: psutil.Process | None = None


_run = _Run()


def belong_to(controller_pid: int | None) -> None:
    """Let this process be a part of the run of its controller; None, or one that is not above it, is no such run.

    A worker may be on another machine, where the number is somebody else's.
    """
    above = {process.pid: process for process in psutil.Process().parents()}
    _run.controller = None if controller_pid is None else above.get(controller_pid)


def run_processes() -> list[psutil.Process]:
    """All processes of this run: the topmost one and all below it."""
    top = _run.controller or psutil.Process()
    try:
        return [top, *top.children(recursive=True)]
    except psutil.NoSuchProcess:
        own = psutil.Process()
        return [own, *own.children(recursive=True)]
