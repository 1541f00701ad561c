"""Rows of a parametrised test, gathered over its module, for tables and for what can be said of several points only."""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.measure.points import NotMeasured

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from pytest_gpuserve.compare.assertions import Run

    Value = str | int | float | bool | None
    Row = Mapping[str, Value]


@dataclass
class Sweep:
    """The rows of one sweep, in the order of measuring.

    Args:
        file: Where ``save`` leaves the table: a CSV under the fixture ``artifacts``.
        rows: The rows measured so far.
    """

    file: Path
    rows: list[Row] = field(default_factory=list)
    _added: dict[tuple[str, str], Row] = field(default_factory=dict, init=False, repr=False)

    def add(self, run: Run, **columns: Value) -> Row:
        """Add a row: the given columns first, what was measured of the run after them (see ``measured``).

        A load that is measured again, because its test waits for the next start of its servers, has its last row only.

        Args:
            run: The measurement.
            **columns: The point, such as ``concurrency=8``, and values that the suite computed of it.
        """
        row = {**columns, **measured(run)}
        load = (os.environ.get("PYTEST_CURRENT_TEST", ""), run.label)
        earlier = self._added.get(load)
        self.rows[:] = [*(old for old in self.rows if old is not earlier), row]
        self._added[load] = row
        return row

    def points(self, wanted: Iterable[Row]) -> list[Row]:
        """Return one row for each wanted point, in that order; skips the test when one was not measured in this run.

        Args:
            wanted: Of each point the columns that tell it apart.
        """
        asked = list(wanted)
        found = [next((row for row in self.rows if point.items() <= row.items()), None) for point in asked]
        missing = [str(dict(point)) for point, row in zip(asked, found, strict=True) if row is None]
        if missing:
            pytest.skip(f"{len(missing)} of {len(asked)} points were not measured in this run: {', '.join(missing)}")
        return [row for row in found if row is not None]

    def save(self, *order: str) -> None:
        """Write the table, sorted by these columns; nothing where nothing was measured."""
        if not self.rows:
            return
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, names, lineterminator="\n")
            writer.writeheader()
            writer.writerows(sorted(self.rows, key=lambda row: [_sortable(row.get(name)) for name in order]))


def measured(run: Run) -> dict[str, Value]:
    """Common columns of every row; latencies in seconds, None for unknown values."""
    summary = run.summary
    return {
        "throughput": summary.throughput,
        "mean_seconds": summary.mean,
        "p50_seconds": summary.quantile(0.50),
        "p90_seconds": summary.quantile(0.90),
        "p95_seconds": summary.quantile(0.95),
        "p99_seconds": summary.quantile(0.99),
        "max_seconds": summary.max,
        "requests": summary.requests,
        "errors": summary.error_count,
        "in_flight": summary.in_flight,
        "batching_ratio": known(lambda: run.batching_ratio.value),
        "cpu_share": known(lambda: run.cpu_share),
        "gpu_utilisation": known(lambda: run.gpu_utilisation.value),
        "gpu_memory_bytes": known(lambda: run.gpu_memory.value),
    }


def known(read: Callable[[], float]) -> float | None:
    """Result of ``read``; None if it was not measured."""
    try:
        return read()
    except NotMeasured:
        return None


def _sortable(value: Value) -> tuple[int, float, str]:
    """Order numbers before texts, and what is absent last."""
    if value is None:
        return (2, 0.0, "")
    return (1, 0.0, value) if isinstance(value, str) else (0, float(value), "")
