"""Runs of pytest in a user's project, each a process of its own, forked from one that has imported what they need.

To import pytest and the plugin takes longer than most of these runs do. What is forked is multiprocessing's fork
server, in which no test has run.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from _pytest.config import default_plugins

if TYPE_CHECKING:
    from collections.abc import Sequence

IMPORTED: Final = (
    *(f"_pytest.{name}" for name in default_plugins),
    "pytest_gpuserve.plugin.server_factory",
    "pytest_gpuserve.servers.mosec",
    "pytest_gpuserve.plugin.session",
    "pytest_gpuserve.comparison.capacity_run",
    "pytest_gpuserve.plugin.xdist",
)
"""Modules that are not imported anew. The plugins' own are: pytest rewrites their assertions."""


class ForkedPytest:
    """Starts the fork server, and forks runs of pytest."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(IMPORTED))
        # From now on it is there, and for as long as this process is.
        first = self._context.Process(target=os.getpid)
        first.start()
        first.join()

    def run(self, arguments: Sequence[str], *, folder: Path, seconds: float) -> pytest.RunResult:
        """Run pytest as ``python -m pytest`` does, with this process's variables.

        Args:
            arguments: Of pytest.
            folder: In which it runs; what it prints is left there in the files ``stdout`` and ``stderr``.
            seconds: After which it is killed.
        """
        outputs = folder / "stdout", folder / "stderr"
        began = time.perf_counter()
        process = self._context.Process(target=_run, args=(tuple(arguments), folder, dict(os.environ), outputs))
        process.start()
        process.join(seconds)
        if process.exitcode is None:
            process.kill()
            process.join()
        printed, errors = (output.read_text(encoding="utf-8", errors="replace") for output in outputs)
        sys.stdout.write(printed)
        sys.stderr.write(errors)
        assert process.exitcode is not None
        assert time.perf_counter() - began < seconds, f"killed after {seconds:g} s"
        seconds = time.perf_counter() - began
        return pytest.RunResult(process.exitcode, printed.splitlines(), errors.splitlines(), seconds)


def _run(arguments: tuple[str, ...], folder: Path, environment: dict[str, str], outputs: tuple[Path, Path]) -> None:
    for number, output in enumerate(outputs, start=1):
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    searched = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [
        str(folder),
        *searched,
        *(path for path in sys.path if path.startswith((sys.prefix, sys.base_prefix))),
    ]
    sys.argv = [str(Path(pytest.__file__).with_name("__main__.py")), *arguments]
    sys.exit(pytest.console_main())
