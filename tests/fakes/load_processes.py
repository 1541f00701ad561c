"""The processes of a load: those that are alive, and one that owns an engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psutil

from tests.fakes.children.toolkit import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

ENGINE = "pytest_gpuserve.load.engine"
COORDINATOR = "pytest_gpuserve.load.ray"
ACTOR = "ray::Worker"


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


@contextmanager
def owner_of_engine(program: str, *, quiet: bool = False) -> Iterator[tuple[subprocess.Popen[str], int, int]]:
    """Run a process that owns an engine; yields it, the engine's pid and that of a fork of the owner (or 0).

    Args:
        program: Prints these two pids in a line.
        quiet: Whether what it writes to its standard error is not shown.
    """
    argv = [sys.executable, "-c", program]
    errors = subprocess.DEVNULL if quiet else None
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        engine, copy = map(int, process.stdout.readline().split())
        try:
            yield process, engine, copy
        finally:
            process.kill()
            if copy:
                os.kill(copy, signal.SIGKILL)
