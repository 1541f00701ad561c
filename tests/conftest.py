"""What holds for every test: it leaves no process, and what needs minutes or a GPU runs only by name."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from hypothesis import settings

from tests.fakes.nvml.gpus import build_fake_nvml

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

BY_NAME = ("slow", "gpu")

LONGEST = {"servers": 0, "plugin": 1, "load": 2}
"""Folders of the tests that take longest, in this order."""

settings.register_profile("busy machine", deadline=None)
settings.load_profile("busy machine")

END_SECONDS = 5.0
"""By then whatever a test started must have ended."""


def pytest_configure() -> None:
    """Make the same of every way to start these tests, also for what they start.

    A shell has what it starts in the background ignore Ctrl-C, which many a test sends; and some environments have
    Python keep no bytecode, with which each of a thousand processes compiles the package for itself.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what `-m` does not name; begin with what takes longest, so that no worker is left with it at the end.

    pytest-xdist gives each worker a stretch of the tests. Files are dealt out, so that each begins with long ones. What
    has to be alone comes last, when nobody has to be waited for.
    """
    items.sort(key=lambda item: min(LONGEST.get(folder.name, len(LONGEST)) for folder in item.path.parents))
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    dealt = {path: number % workers for number, path in enumerate(dict.fromkeys(item.path for item in items))}
    items.sort(key=lambda item: (item.get_closest_marker("alone") is not None, dealt[item.path]))
    asked = config.getoption("-m", default="")
    for item in items:
        for marker in BY_NAME:
            if item.get_closest_marker(marker) and marker not in asked:
                item.add_marker(pytest.mark.skip(reason=f"runs by name: -m {marker}"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let no test of another worker run beside one that is marked ``alone``."""
    if not hasattr(item.config, "workerinput"):
        return (yield)
    alone = item.get_closest_marker("alone") is not None and item.get_closest_marker("skip") is None
    with ExitStack() as stack:
        # Whoever waits for the machine keeps others from beginning, so that it becomes free.
        with _locked("next", fcntl.LOCK_EX, item.config):
            stack.enter_context(_locked("machine", fcntl.LOCK_EX if alone else fcntl.LOCK_SH, item.config))
        return (yield)


@contextmanager
def _locked(name: str, operation: int, config: pytest.Config) -> Iterator[None]:
    folder = config._tmp_path_factory.getbasetemp().parent  # type: ignore[attr-defined]  # of all workers
    with (folder / f"{name}.lock").open("w") as file:
        fcntl.flock(file, operation)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # also where a child has the file


@pytest.fixture(scope="module", autouse=True)
def no_process_is_left_of_a_module() -> Iterator[None]:
    """Fail a module whose own fixtures leave a child behind."""
    with _none_left():
        yield


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    """Fail a test that leaves a child behind; what belongs to its module was there before it, and is not looked at."""
    with _none_left():
        yield


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the fake of NVML's C library; scripts for it belong elsewhere, for all tests share it."""
    folder = tmp_path_factory.mktemp("nvml")
    build_fake_nvml(folder)
    return folder


@contextmanager
def _none_left() -> Iterator[None]:
    """Children that are left, dead or alive, would fail another test much later."""
    before = _children()
    yield
    deadline = time.monotonic() + END_SECONDS
    # Python's own tracker of shared memory ends with this process.
    while (left := {pid for pid in _children() - before if "resource_tracker" not in _described(pid)}) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.05)
    assert not left, [_described(pid) for pid in left]


def _children() -> set[int]:
    # psutil looks through all processes of the machine for this, which is much for each of five thousand tests.
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            found.update(map(int, (task / "children").read_text().split()))
    return found


def _described(pid: int) -> str:
    try:
        process = psutil.Process(pid)
        return f"{pid} ({process.status()}): {' '.join(process.cmdline())}"
    except psutil.Error as problem:
        return str(problem)
