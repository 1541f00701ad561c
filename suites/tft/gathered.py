"""The rows of one sweep of this suite: what is asserted of each, and the tables that they make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from suites.sweep import Sweep
from suites.tft.apps.tft.contract import DATASETS, INSTANCES
from suites.tft.knee import Point, knee
from suites.tft.table import (
    BATCH,
    COLUMNS,
    CONCURRENCY,
    LEAST_LITTLE,
    THROUGHPUT,
    check_row,
    littles_law,
    row_of,
    warning_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from _pytest.mark.structures import ParameterSet

    from pytest_gpuserve.compare.assertions import Run
    from pytest_gpuserve.measure.counters import Counters
    from suites.sweep import Row

Place = tuple[str, int]
"""A data set, and what is swept: a batch size or a concurrency."""

BACKENDS = (
    "PyTorch",
    pytest.param("NVIDIA TensorRT", marks=pytest.mark.skip(reason="the wheel's Triton has no TensorRT backend")),
)
"""As the published tables name them; TensorRT's numbers are of a program that is not run here."""


def wanted_points(values: Iterable[int], everywhere: Sequence[Place]) -> list[ParameterSet]:
    """Make the parameters of a sweep over both data sets; all but some carry the marker ``gpuserve_full``.

    Args:
        values: Values of the sweep.
        everywhere: Points that are measured without ``--gpuserve-full``.
    """
    places = dict.fromkeys([*everywhere, *((dataset, value) for dataset in DATASETS for value in values)])
    full = pytest.mark.gpuserve_full
    return [
        pytest.param(*place, marks=[] if place in everywhere else [full], id=f"{place[0]}-{place[1]}")
        for place in places
    ]


@dataclass
class Gathered:
    """Rows of a sweep.

    Args:
        folder: Folder of tables and charts.
        name: Name of the sweep, and of its files.
        swept: The column in which the points of one data set differ: `BATCH` or `CONCURRENCY`.
    """

    folder: Path
    name: str
    swept: str

    def __post_init__(self) -> None:
        self.sweep = Sweep(self.folder / f"{self.name}.csv")

    def add(self, run: Run, *, dataset: str, batch: int, concurrency: int) -> None:
        """Add what was measured; asserts nothing, so that a gate that fails leaves its row."""
        row = row_of(run.summary, run.breakdown, batch=batch, concurrency=concurrency)
        self.sweep.add(run, dataset=dataset, **row, littles_law=littles_law(row), warning=warning_of(row))

    def points(self, wanted: Iterable[Place]) -> dict[str, list[Point]]:
        """Return the points by data set, throughput in examples a second; skips the test when one is missing."""
        found: dict[str, list[Point]] = {}
        for row in self.sweep.points([{"dataset": dataset, self.swept: value} for dataset, value in wanted]):
            point = Point(int(_number(row, self.swept)), _number(row, THROUGHPUT), _number(row, "p99_seconds"))
            found.setdefault(str(row["dataset"]), []).append(point)
        return {dataset: sorted(points, key=lambda point: point.at) for dataset, points in found.items()}

    def table(self, dataset: str) -> list[dict[str, float]]:
        """Return the published columns of a data set's rows, in the order of what was swept."""
        rows = (row for row in self.sweep.rows if row["dataset"] == dataset)
        published = [{title: _number(row, title) for title in COLUMNS} for row in rows]
        return sorted(published, key=lambda row: row[self.swept])

    def save(self) -> None:
        """Write the table, sorted: the published columns, and all else that is known of each row."""
        self.sweep.save("dataset", BATCH, CONCURRENCY)

    def save_knees(self, found: Mapping[str, list[Point]]) -> None:
        """Write the most that was done within each latency budget, for the budgets that were reached."""
        lines = ["dataset,budget_seconds,at,inferences_per_second"]
        for dataset, points in found.items():
            for budget in sorted(point.p99_seconds for point in points):
                best = knee(points, budget)
                assert best is not None, "each budget is a point's own p99"
                lines.append(f"{dataset},{budget:.6f},{best.at},{best.throughput:.1f}")
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / f"{self.name}_knees.csv").write_text("\n".join([*lines, ""]), encoding="utf-8")


def check_identities(run: Run, *, batch: int, concurrency: int) -> None:
    """Assert what holds of any run, however fast it was.

    Components make up the average, percentiles rise, throughput and latency agree, and server and client have counted
    the same requests.

    Args:
        run: The measurement, with those of its comparisons.
        batch: Examples of each request.
        concurrency: Users of the closed loop.
    """
    row = row_of(run.summary, run.breakdown, batch=batch, concurrency=concurrency)
    check_row(row)
    starts = [start for session in run.sessions for start in session.starts]
    # At its ends a start may have lost what one period of each user takes.
    lost = 2 * run.summary.mean / min(start.total.seconds for start in starts)
    assert littles_law(row) > LEAST_LITTLE - lost, warning_of(row)
    check_counts(run.counters, run.summary.requests, row, loads=run.loads)


def check_counts(counters: Counters, answered: int, row: dict[str, float], *, loads: int) -> None:
    """Assert that the server's counts agree with each other and with the client's.

    Args:
        counters: Counters of the server, over the measured windows.
        answered: Requests with an answer for the client, in the same windows.
        row: Row of the published table.
        loads: Number of loads in the sum: at both ends of each, server and client count requests in flight differently.
    """
    batch, users = int(row[BATCH]), int(row[CONCURRENCY])
    assert counters.requests is not None
    # Triton tells its counters while it counts: some have a batch already that has just ended, and others not yet.
    torn = 2 * INSTANCES * loads
    assert abs(sum(counters.batch_sizes.values()) - counters.batches) <= torn
    sized = sum(int(size) * count for size, count in counters.batch_sizes.items())
    assert abs(sized - counters.items) <= batch * users * torn
    # A request is counted when it has been executed, a batch of several users at once.
    assert abs(counters.items - batch * counters.requests) <= 2 * batch * users * loads
    assert abs(counters.requests - answered) <= 2 * users * loads + 0.02 * answered
    assert batch * (counters.batches - torn) <= counters.items <= batch * users * (counters.batches + torn)


def _number(row: Row, name: str) -> float:
    value = row[name]
    assert isinstance(value, (int, float))
    return float(value)
