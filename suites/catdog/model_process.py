"""The model by itself, in a process of its own, for the model-only benchmark."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

APP: Final = Path(__file__).parent / "apps" / "catdog_model_only.py"

END_SECONDS: Final = 20.0
"""Time after the end of its input in which the process has to end; then it is killed."""


class ModelProcess:
    """A process that runs batches.

    Args:
        lines: Its standard input.
        answers: Its standard output.
    """

    def __init__(self, lines: IO[str], answers: IO[str]) -> None:
        self._lines = lines
        self._answers = answers

    def prepare(self, pictures: int) -> None:
        """Create a batch of random pictures on the device."""
        self._say(f"batch {pictures}")

    def run(self) -> None:
        """Run the batch and wait for the device; some 0.1 ms of the time are the way there and back."""
        self._say("run")

    def _say(self, line: str) -> None:
        self._lines.write(f"{line}\n")
        self._lines.flush()
        answer = self._answers.readline()
        if answer != "done\n":
            raise RuntimeError(f"{APP.name} answered {answer!r} to {line!r}; see its output above")


@contextmanager
def model_process(environment: Mapping[str, str], **arguments: str) -> Iterator[ModelProcess]:
    """Start the process, and end it with the block.

    Args:
        environment: Variables on top of this process's.
        **arguments: Its command line options: ``size="tiny"`` becomes ``--size=tiny``.
    """
    flags = [f"--{name}={value}" for name, value in arguments.items()]
    process = subprocess.Popen(
        [sys.executable, str(APP), *flags],
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        try:
            yield ModelProcess(process.stdin, process.stdout)
        finally:
            process.stdin.close()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
