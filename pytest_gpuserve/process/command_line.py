"""This process as a command that people run: what it tells them, and its exit status whatever ends it."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.process.secrets import without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpuserve.errors import GpuserveError

FAILED: Final = 1
"""Exit status of what was tried and did not succeed."""

REFUSED: Final = 2
"""Exit status of a wrong argument, or of a file that cannot be used; argparse has the same."""

INTERRUPTED: Final = 130
"""Exit status of what Ctrl-C ended, as shells count."""


def run_command(command: Callable[[Sequence[str]], int]) -> int:
    """Run a command on this process's arguments.

    Whoever ends it, reads only its head, or has a terminal that does not know a sign, gets no traceback.

    Args:
        command: Takes the arguments, returns the exit status.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        status = command(sys.argv[1:])
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Python would try again at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


def refused(problem: GpuserveError) -> int:
    """Tell on standard error what cannot be used, without secrets, and return the exit status that says so."""
    print(masked(str(problem)), file=sys.stderr)  # noqa: T201 -- a command
    return REFUSED


def failed(problem: GpuserveError) -> int:
    """Tell on standard error what did not succeed, without secrets, and return the exit status that says so."""
    print(masked(str(problem)), file=sys.stderr)  # noqa: T201 -- a command
    return FAILED


def masked(text: str) -> str:
    """A text without the values of this process's secret variables; to be asked before the text is laid out."""
    return without_secrets(text, os.environ)
