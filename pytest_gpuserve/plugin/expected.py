"""How long the tests of a run will take, from what they took in the runs before."""

from __future__ import annotations

import statistics
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from pytest_gpuserve.store.atomic import write_whole
from pytest_gpuserve.units import format_about

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

FILE: Final = "durations.json"
KEPT: Final = 5
"""Runs of a test whose median counts."""

_Durations = dict[str, dict[str, list[float]]]
"""Seconds of the last runs, by mode and test."""


class ExpectedDurations:
    """What tests took, kept beside what comparisons remember.

    A file that cannot be read or written costs an estimate and nothing else, so that nobody is told of it.

    Args:
        folder: Where it is kept; None for nowhere.
        mode: How the run measures; runs of one mode take as long as each other.
    """

    def __init__(self, folder: Path | None, mode: str) -> None:
        self._path = None if folder is None else folder / FILE
        self._mode = mode
        self._taken: dict[str, float] = {}
        self._before = self._read()

    def text(self, nodeids: Collection[str]) -> str:
        """Say how long these tests will take, and how many of them are not known; empty where none is."""
        known = [self._before[nodeid] for nodeid in nodeids if self._before.get(nodeid)]
        if not known:
            return ""
        about = format_about(sum(map(statistics.median, known)))
        missing = len(nodeids) - len(known)
        return f"{about} without {missing} test{'s' if missing != 1 else ''} not timed before" if missing else about

    def add(self, nodeid: str, seconds: float) -> None:
        """Take in a phase of a test, or another run of it."""
        self._taken[nodeid] = self._taken.get(nodeid, 0.0) + seconds

    def save(self, nodeids: Collection[str]) -> None:
        """Keep what these tests took: those that measured, to their end."""
        if self._path is None:
            return
        added = {nodeid: seconds for nodeid, seconds in self._taken.items() if nodeid in nodeids}
        with suppress(OSError, msgspec.DecodeError):
            known = self._all()
            ours = known.setdefault(self._mode, {})
            for nodeid, seconds in added.items():
                ours[nodeid] = [*ours.get(nodeid, []), round(seconds, 1)][-KEPT:]
            write_whole(self._path, msgspec.json.encode(known))

    def _read(self) -> dict[str, list[float]]:
        with suppress(OSError, msgspec.DecodeError):
            return self._all().get(self._mode, {})
        return {}

    def _all(self) -> _Durations:
        if self._path is None or not self._path.exists():
            return {}
        return msgspec.json.decode(self._path.read_bytes(), type=_Durations)
