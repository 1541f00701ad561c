"""A plugin of the run that finds out which tests come to which line, and how long they take."""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import coverage
import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

_seconds: defaultdict[str, float] = defaultdict(float)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Attribute lines to the test function, whatever its parameters."""
    name = item.nodeid.partition("[")[0]
    measured = coverage.Coverage.current()
    assert measured is not None
    measured.switch_context(name)
    began = time.perf_counter()
    try:
        return (yield)
    finally:
        _seconds[name] += time.perf_counter() - began
        measured.switch_context("")


def pytest_sessionfinish() -> None:
    """Leave the times where the run's owner asked for them."""
    Path(os.environ["TESTS_SECONDS"]).write_text(json.dumps(_seconds), encoding="utf-8")
