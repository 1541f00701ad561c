"""What holds for every test: it leaves no process, and what needs minutes or a card runs only by name."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BY_NAME = ("slow", "gpu")

END_SECONDS = 5.0
"""By then whatever a test started must have ended."""


def pytest_collection_modifyitems(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Skip what `-m` does not name."""
    asked = config.getoption("-m", default="")
    for item in items:
        for marker in BY_NAME:
            if item.get_closest_marker(marker) and marker not in asked:
                item.add_marker(pytest.mark.skip(reason=f"runs by name: -m {marker}"))


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    """Fail a test that leaves a child behind, dead or alive, which would else fail another one much later.

    What belongs to a module was there before the test, and is not looked at.
    """
    before = _children()
    yield
    deadline = time.monotonic() + END_SECONDS
    while (left := _children() - before) and time.monotonic() < deadline:
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
