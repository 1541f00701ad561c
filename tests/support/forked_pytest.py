"""Runs of pytest in a user's project, each a process of its own, forked from one that has imported what they need.

To import pytest and the plugin takes longer than most of these runs do. What is forked is multiprocessing's fork
server, in which no test has run.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from _pytest.config import default_plugins

from tests.fakes.nvml.gpus import LIBRARY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from multiprocessing.context import ForkServerProcess


IMPORTED: Final = (
    *(f"_pytest.{name}" for name in default_plugins),
    "pytest_gpuserve.plugin.server_factory",
    "pytest_gpuserve.servers.command",
    "pytest_gpuserve.servers.mosec",
    "pytest_gpuserve.plugin.session",
    "pytest_gpuserve.compare.assertions",
)
"""Modules that are not imported anew. The plugins' own are: pytest rewrites their assertions."""


class Run:
    """A run that has begun.

    Args:
        process: Its process.
        outputs: Where it writes its standard output and its standard error.
    """

    def __init__(self, process: ForkServerProcess, outputs: tuple[Path, Path]) -> None:
        self.process = process
        self._outputs = outputs
        self._began = time.monotonic()

    @property
    def pid(self) -> int:
        """Of pytest's own process."""
        assert self.process.pid is not None
        return self.process.pid

    @property
    def ended(self) -> bool:
        """Whether it has."""
        return self.process.exitcode is not None

    def interrupt(self) -> None:
        """Ctrl-C."""
        os.kill(self.pid, signal.SIGINT)

    def kill(self) -> None:
        """End it as ``kill -9`` does, unless it has ended."""
        self.process.kill()
        self.process.join()

    def result(self, seconds: float) -> pytest.RunResult:
        """Wait for its end, so many seconds at most, after which it is killed."""
        self.process.join(max(0.0, seconds))
        late = not self.ended
        self.kill()
        printed, errors = (output.read_text(encoding="utf-8", errors="replace") for output in self._outputs)
        sys.stdout.write(printed)
        sys.stderr.write(errors)
        assert not late, f"killed after {seconds:g} s"
        assert self.process.exitcode is not None
        lasted = time.monotonic() - self._began
        return pytest.RunResult(self.process.exitcode, printed.splitlines(), errors.splitlines(), lasted)


class ForkedPytest:
    """Starts the fork server, and forks runs of pytest."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(IMPORTED))
        self._runs = 0
        # From now on it is there, and for as long as this process is.
        first = self._context.Process(target=os.getpid)
        first.start()
        first.join()

    def start(self, arguments: Sequence[str], *, folder: Path, environment: Mapping[str, str]) -> Run:
        """Begin a run of pytest as ``python -m pytest`` would be one.

        Args:
            arguments: Of pytest.
            folder: In which it runs; what it prints is left there, in the files ``stdout-*`` and ``stderr-*``.
            environment: All its variables.
        """
        self._runs += 1
        outputs = (folder / f"stdout-{self._runs}", folder / f"stderr-{self._runs}")
        for output in outputs:
            output.touch()
        files = (os.devnull, *map(str, outputs))
        process = self._context.Process(target=_run, args=(tuple(arguments), folder, dict(environment), files))
        process.start()
        return Run(process, outputs)


def _run(arguments: tuple[str, ...], folder: Path, environment: dict[str, str], files: tuple[str, ...]) -> None:
    for number, file in enumerate(files):
        _take(number, os.open(file, os.O_RDWR | os.O_NOCTTY))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    searched = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [
        str(folder),
        *searched,
        *(path for path in sys.path if path.startswith((sys.prefix, sys.base_prefix))),
    ]
    _load_fake_nvml(environment)
    sys.argv = [str(Path(pytest.__file__).with_name("__main__.py")), *arguments]
    sys.exit(pytest.console_main())


def _take(number: int, file: int) -> None:
    """Let a standard stream be this file; Python's own object for it is made anew."""
    if file != number:
        os.dup2(file, number)
        os.close(file)
    name, mode = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))[number]
    stream = open(number, mode, closefd=False, buffering=1, encoding="utf-8")  # noqa: SIM115 -- a descriptor
    setattr(sys, name, stream)
    setattr(sys, f"__{name}__", stream)


def _load_fake_nvml(environment: Mapping[str, str]) -> None:
    # Where libraries lie the loader reads but once, as a program begins.
    for folder in environment.get("LD_LIBRARY_PATH", "").split(os.pathsep):
        library = Path(folder, LIBRARY)
        if folder and library.exists() and any(name.startswith("FAKE_NVML_") for name in environment):
            import pynvml

            pynvml.nvmlLib = ctypes.CDLL(str(library))
