"""Commands of this package: how one runs in a process of its own, what it prints, and its exit status."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.process.secrets import masked

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpuserve.errors import GpuserveError

FAILED: Final = 1
"""Exit status of what was tried and did not succeed."""

REFUSED: Final = 2
"""Exit status of a wrong argument, or of a file that cannot be used; argparse has the same."""

INTERRUPTED: Final = 130
"""Exit status of what Ctrl-C ended, as shells count."""

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

    Whoever ends it, reads only its head, or has a terminal that does not know a sign, gets no traceback.
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
    """Print to standard error what cannot be used, without secrets, and return `REFUSED`."""
    print(masked(str(problem)), file=sys.stderr)  # noqa: T201 -- a command
    return REFUSED


def failed(problem: GpuserveError) -> int:
    """Print to standard error what did not succeed, without secrets, and return `FAILED`."""
    print(masked(str(problem)), file=sys.stderr)  # noqa: T201 -- a command
    return FAILED


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of this very package, be it installed or a bare checkout.

    Unlike ``python -m`` it does not look into the working folder, nor anywhere else before the standard library: a
    project may have a ``select.py``.
    """
    return [sys.executable, "-c", _BOOTSTRAP, _root(), module, *arguments]


def _root() -> str:
    """Return the folder of this package; a bare checkout is on sys.path but not installed."""
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120 -- no symlinks resolved, as the import was
