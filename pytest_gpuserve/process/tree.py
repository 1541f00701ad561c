"""Which processes belong together: all of one child's tree, and all of one run of pytest."""

from __future__ import annotations

from dataclasses import dataclass

import psutil

TREE_VARIABLE = "PYTEST_GPUSERVE_TREE"
"""Environment variable, unique to each start, by which a tree is still known after the loss of its supervisor."""


def marked(mark: str) -> list[psutil.Process]:
    """All live processes in whose environment the variable has this value, as far as we may look at it."""
    return [process for process in psutil.process_iter() if is_alive(process) and _mark_of(process) == mark]


def is_alive(process: psutil.Process) -> bool:
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


@dataclass
class _Run:
    controller: psutil.Process | None = None


_run = _Run()


def belong_to(controller_pid: int | None) -> None:
    """Make this process part of its controller's run; None, or one that is not above it, is no such run.

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
