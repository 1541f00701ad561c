"""Commands for the awkward children beside this file, and waiting for facts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import psutil

from pytest_gpuserve.process.child import Command
from pytest_gpuserve.process.supervisor import shared_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
SAFETY_SECONDS = 60.0
"""How long a fact may take to come true on a busy machine before the test is given up."""


def child(name: str, *arguments: object, folder: Path) -> Command:
    """Make the command that runs one of the children with this interpreter; its log is ``folder/log``."""
    argv = (sys.executable, "-I", str(HERE / f"{name}.py"), *map(str, arguments))
    return Command(argv, os.environ, folder, folder / "log")


def program(*argv: str, folder: Path) -> Command:
    """Make the command of any program, with this environment."""
    return Command(argv, os.environ, folder, folder / "log")


def printed(code: str, *arguments: str, env: Mapping[str, str], seconds: float = 60) -> str:
    """Output of a piece of Python in a process of its own; a word on its standard error is a failure."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def stay() -> NoReturn:
    """Wait until a signal ends this process or its handler raises.

    In short naps: Python misses a signal that comes just before one long sleep until that sleep is over.
    """
    while True:
        time.sleep(0.05)


@contextmanager
def busy(*arguments: str) -> Iterator[int]:
    """A process that uses all that it gets of a core; yields its pid."""
    command = [sys.executable, "-c", "print(flush=True)\nwhile True: pass", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            yield child.pid
        finally:
            child.kill()


def eventually(fact: Callable[[], bool], what: str, seconds: float = SAFETY_SECONDS) -> None:
    """Wait until the fact is true, or fail naming it."""
    end = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < end, f"not in {seconds} s: {what}"
        time.sleep(0.01)


def segments_of(processes: Iterable[psutil.Process]) -> list[Path]:
    """Files in /dev/shm that these processes use now; other sessions on this machine use others."""
    used = {inode for process in processes for inode in shared_of(process.pid)}
    with os.scandir("/dev/shm") as entries:
        return [Path(entry.path) for entry in entries if entry.inode() in used]


def report(path: Path) -> Any:  # noqa: ANN401 - whatever the child wrote
    """Wait for the JSON file that a child puts in place when it is set up."""
    eventually(path.exists, f"{path} is written")
    return json.loads(path.read_text())


def put_report(path: str, content: object) -> None:
    """Write a report that is never seen half-written."""
    draft = Path(f"{path}.{os.getpid()}")
    draft.write_text(json.dumps(content))
    draft.rename(path)


def alive(pid: int) -> bool:
    """Say whether the process exists and is no zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
