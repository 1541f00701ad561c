"""Rows that suites gather over the points of a sweep."""

from __future__ import annotations

import csv
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from pytest_gpuserve.experiment.observed import Observed
from pytest_gpuserve.measure.points import NotMeasured
from suites.sweep import Sweep, known, measured
from tests.support.builders import session

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpuserve.compare.assertions import Run


class _Unknown:
    """A metric that was not measured."""

    @property
    def value(self) -> float:
        """Nothing."""
        raise NotMeasured("nobody counts")


class _Seen(Observed):
    """A run with a batching ratio, without a GPU."""

    label = ""
    batching_ratio = SimpleNamespace(value=4.0)
    gpu_utilisation = _Unknown()
    gpu_memory = _Unknown()


def run() -> Run:
    """A run of two starts, each of four windows with ten answers of 10 ms."""
    return cast("Run", _Seen([session()]))


def test_a_row_has_what_was_measured_and_nothing_else() -> None:
    """An unknown value is None, not zero; a mistake is not taken for a missing measurement."""
    row = measured(run())
    assert (row["requests"], row["throughput"], row["batching_ratio"]) == (80, 20.0, 4.0)
    assert row["mean_seconds"] == pytest.approx(0.010)
    assert row["cpu_share"] is row["gpu_memory_bytes"] is row["gpu_utilisation"] is None
    with pytest.raises(ZeroDivisionError):
        known(lambda: 1 / 0)


def test_what_needs_all_points_is_skipped_without_them() -> None:
    """A statement about several points is skipped if one was not measured, and names that one.

    A load that is measured again has one row.
    """
    sweep = Sweep(cast("Any", None))
    for _ in range(2):
        sweep.add(run(), concurrency=8)
    assert [row["concurrency"] for row in sweep.rows] == [8]
    assert [row["concurrency"] for row in sweep.points([{"concurrency": 8}])] == [8]
    with pytest.raises(pytest.skip.Exception, match=r"1 of 2 points.*16"):
        sweep.points([{"concurrency": 8}, {"concurrency": 16}])


def test_a_table_is_sorted(tmp_path: Path) -> None:
    """By numbers, not by their digits, with the columns that tell points apart first; without rows there is no file."""
    sweep = Sweep(tmp_path / "a" / "table.csv")
    sweep.save("batch")
    assert not sweep.file.exists()
    for name, batch in (("traffic", 16), ("traffic", 2), ("electricity", 16), ("electricity", 2)):
        sweep.rows.append({"dataset": name, "batch": batch, "more": None})
    sweep.save("dataset", "batch")
    with sweep.file.open(newline="", encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    assert list(found[0]) == ["dataset", "batch", "more"]
    order = [("electricity", "2"), ("electricity", "16"), ("traffic", "2"), ("traffic", "16")]
    assert [(row["dataset"], row["batch"]) for row in found] == order
