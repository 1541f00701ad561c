"""Commands of this package: execution in a process of their own, output, and exit status."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.process.secrets import masked

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpuserve.errors import GpuserveError

FAILED: Final = 1
"""Exit status of a failure."""

REFUSED: Final = 2
"""Exit status of a wrong argument, or of an unusable file; the same as argparse's."""

INTERRUPTED: Final = 130
"""Exit status after Ctrl-C, as in shells."""

_BOOTSTRAP: Final = """\
import sys
root = sys.argv.pop(1)
sys.path[:] = [entry for entry in sys.path if entry]
if root not in sys.path:
    sys.path.append(root)
import runpy
from importlib import util
if "pytest_gpuserve" not in sys.modules:
    spec = util.spec_from_file_location("pytest_gpuserve", root + "/pytest_gpuserve/__init__.py")
    sys.modules[spec.name] = package = util.module_from_spec(spec)
    spec.loader.exec_module(package)
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


def run_command(command: Callable[[Sequence[str]], int]) -> int:
    """Run a command on this process's arguments.

    Ctrl-C, a reader that closes the pipe, a full disk, and a terminal without some character do not cause a traceback.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        status = command(sys.argv[1:])
        # Python has none if a shell closed it.
        if sys.stdout is not None:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as problem:
        if problem.errno == errno.ENOSPC:
            print(problem, file=sys.stderr)  # noqa: T201 -- a command
        elif problem.errno != errno.EPIPE:
            raise
        # Python would try again at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    return status


def refused(problem: GpuserveError) -> int:
    """Print an unusable argument or file to standard error, without secrets, and return `REFUSED`."""
    print(masked(str(problem)), file=sys.stderr)  # noqa: T201 -- a command
    return REFUSED


def failed(problem: GpuserveError) -> int:
    """Print a failure to standard error, without secrets, and return `FAILED`."""
    print(masked(str(problem)), file=sys.stderr)  # noqa: T201 -- a command
    return FAILED


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of this package, installed or as a bare checkout.

    Unlike ``python -m`` it does not search the working folder, or any other folder before the standard library, because
    a project may have a ``select.py``.
    """
    return [sys.executable, "-c", _BOOTSTRAP, _root(), module, *arguments]


def _root() -> str:
    """Return the folder of this package; a bare checkout is on sys.path but not installed."""
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120 -- no symlinks resolved, as the import was
