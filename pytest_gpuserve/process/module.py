"""The command that runs a module of this very package in a process of its own."""

from __future__ import annotations

import os
import sys
from typing import Final

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


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of this very package, be it installed or a bare checkout.

    Unlike ``python -m`` it does not look into the working folder, nor anywhere else before the standard library: a
    project may have a ``select.py``.
    """
    return [sys.executable, "-c", _BOOTSTRAP, _root(), module, *arguments]


def _root() -> str:
    """Where this package lies; a bare checkout is on sys.path but not installed."""
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120 -- no symlinks resolved, as the import was
