"""Estimated duration of a run, from the durations of its tests in earlier runs on this device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pytest

COMPARES: Final = frozenset({"baseline", "duel"})
"""Fixtures of a test that compares."""

WORTH_KEEPING_SECONDS: Final = 0.1
"""A test without a comparison is remembered only if it takes longer than this."""

UNKNOWN_SECONDS: Final = 30.0
"""Assumed duration of a new comparing test on two cores, with its share of the others."""


class Durations:
    """Seconds of tests, kept in pytest's cache.

    Args:
        config: Configuration of the run.
        mode: Key of runs that take the same time, such as ``cpu NOTHING``.
    """

    def __init__(self, config: pytest.Config, mode: str) -> None:
        # Absent under `-p no:cacheprovider`.
        self._cache: pytest.Cache | None = getattr(config, "cache", None)
        self._key = f"gpuserve/durations/{mode}"
        kept = {} if self._cache is None else self._cache.get(self._key, {})
        self._kept: dict[str, float] = kept if isinstance(kept, dict) else {}
        self._now: dict[str, float] = {}
        self._comparing: set[str] = set()

    def add(self, report: pytest.TestReport) -> None:
        """Add a phase of a test."""
        self._now[report.nodeid] = self._now.get(report.nodeid, 0.0) + report.duration

    def keep(self) -> None:
        """Write the durations for the next run; a test that was not run keeps its own."""
        if self._cache is not None and self._now:
            now = {nodeid: round(seconds, 1) for nodeid, seconds in self._now.items()}
            known = {**self._kept, **now}
            worth = {
                name: took for name, took in known.items() if took >= WORTH_KEEPING_SECONDS or name in self._comparing
            }
            self._cache.set(self._key, worth)

    def line(self, items: Iterable[pytest.Item]) -> str:
        """``comparisons of 11 tests, about 4 min``; empty if no test compares."""
        known, seconds = 0, 0.0
        for item in items:
            compares = bool(COMPARES.intersection(getattr(item, "fixturenames", ())))
            if compares:
                self._comparing.add(item.nodeid)
            if item.nodeid in self._kept:
                seconds += self._kept[item.nodeid]
                known += compares
            elif compares:
                seconds += UNKNOWN_SECONDS
        compare = len(self._comparing)
        if not compare:
            return ""
        about = f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
        guess = "" if known else " (a guess, without an earlier run on this device)"
        return f"comparisons of {compare} test{'' if compare == 1 else 's'}, about {about}{guess}"
