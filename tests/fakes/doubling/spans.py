"""A pytest plugin that notes between which readings of its counters a server was measured."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuserve.experiment.loaded import LoadedStart
from pytest_gpuserve.experiment.watch import Watch

if TYPE_CHECKING:
    from pytest_gpuserve.experiment.another_client import Reading
    from pytest_gpuserve.measure.counters import Counters
    from pytest_gpuserve.measure.window import Start

SPANS_VARIABLE = "DOUBLING_SPANS"
"""Names the file that gets a JSON line for each window: the test, and the window's begin and end in seconds."""

_counted, _measure = Watch.counted, LoadedStart.measure
_spans: list[tuple[float, float]] = []


def _noted(self: Watch, before: Reading | None, after: Reading | None) -> Counters | None:
    if before is not None and after is not None:
        _spans.append((before.at_seconds, after.at_seconds))
    return _counted(self, before, after)


def _written(self: LoadedStart) -> Start:
    _spans.clear()
    start = _measure(self)
    test = os.environ["PYTEST_CURRENT_TEST"].partition(" ")[0]
    with Path(os.environ[SPANS_VARIABLE]).open("a") as file:
        # The first ones were cut off as not steady yet.
        file.writelines(
            json.dumps({"test": test, "begin": begin, "end": end}) + "\n" for begin, end in _spans[start.discarded :]
        )
    return start


def pytest_configure() -> None:
    """Stand between the load and the counters."""
    Watch.counted = _noted  # type: ignore[method-assign]
    LoadedStart.measure = _written  # type: ignore[method-assign]
