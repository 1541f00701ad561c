"""Processes of a child's tree."""

from __future__ import annotations

import psutil

TREE_VARIABLE = "PYTEST_GPUSERVE_TREE"
"""Environment variable, unique to each start, that identifies a tree after the loss of its supervisor."""


def marked(mark: str) -> list[psutil.Process]:
    """All live processes whose environment has this value of the variable, as far as it may be read."""
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
