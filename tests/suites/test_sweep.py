"""The rows that suites gather over the points of a sweep."""

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

    batching_ratio = SimpleNamespace(value=4.0)
    gpu_utilisation = _Unknown()
    gpu_memory = _Unknown()


def run() -> Run:
    """A run of two starts, each of four windows with ten answers of 10 ms."""
    return cast("Run", _Seen([session()]))


def test_a_row_has_what_was_measured_and_nothing_else() -> None:
    """What is not known is None, not zero, the rest the run's own; a mistake is not taken for a missing measurement."""
    row = measured(run())
    assert (row["requests"], row["throughput"], row["batching_ratio"]) == (80, 20.0, 4.0)
    assert row["mean_seconds"] == pytest.approx(0.010)
    assert row["cpu_share"] is row["gpu_memory_bytes"] is row["gpu_utilisation"] is None
    with pytest.raises(ZeroDivisionError):
        known(lambda: 1 / 0)


def test_a_test_that_runs_again_has_its_last_rows_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run of its function has a judge of its own; rows of other tests stay."""
    sweep = Sweep(tmp_path / "table.csv")
    for test, judge, point in (("a", 1, 1), ("b", 2, 2), ("b", 2, 3), ("b", 4, 4), ("b", 4, 5), ("a", 5, 6)):
        monkeypatch.setenv("PYTEST_CURRENT_TEST", test)
        measured_now = run()
        measured_now.judge = cast("Any", judge)
        sweep.add(measured_now, point=point)
    assert [row["point"] for row in sweep.rows] == [4, 5, 6]


def test_tables_are_sorted_and_have_all_columns(tmp_path: Path) -> None:
    """Rows come in the order of their values, numbers as numbers; where every point was skipped there is no table."""
    Sweep(tmp_path / "table.csv").save("concurrency")
    assert not list(tmp_path.iterdir())
    sweep = Sweep(tmp_path / "deep" / "table.csv")
    for concurrency in (16, 4, 128):
        sweep.add(run(), concurrency=concurrency, **({"note": "x"} if concurrency == 4 else {}))
    sweep.save("concurrency")
    rows = list(csv.DictReader(sweep.file.read_text().splitlines()))
    assert [row["concurrency"] for row in rows] == ["4", "16", "128"]
    assert [row["note"] for row in rows] == ["x", "", ""]
    assert rows[0]["gpu_utilisation"] == ""


def test_what_needs_all_points_is_skipped_without_them() -> None:
    """A statement about several points is neither made nor passed when one was not measured, and says which."""
    sweep = Sweep(cast("Any", None))
    sweep.add(run(), concurrency=8)
    assert [row["concurrency"] for row in sweep.points([{"concurrency": 8}])] == [8]
    with pytest.raises(pytest.skip.Exception, match=r"1 of 2 points.*16"):
        sweep.points([{"concurrency": 8}, {"concurrency": 16}])
