"""Copies of the test's process, which write to the files that it reads."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def forked(work: Callable[[], object]) -> int:
    """Let a copy of this process do some work, and end; its id."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return pid


def ended(pid: int) -> int:
    """Wait for a copy's end: its exit status, or the negative number of what killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
