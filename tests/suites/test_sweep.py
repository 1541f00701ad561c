"""Common helpers of the suites: rows of a sweep, published numbers, and apps that refuse wrong arguments."""

from __future__ import annotations

import csv
import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_gpuserve.compare.assertions import Run
from pytest_gpuserve.experiment.observed import Observed
from pytest_gpuserve.measure.points import NotMeasured
from suites.published import BASELINES, NAMELESS, published, records_of
from suites.sweep import Sweep, known, measured
from tests.plugin.conftest import REPOSITORY
from tests.support.builders import session


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
    return cast("Run", _Seen(lambda: [session()]))


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


def test_a_record_is_found_by_its_keys() -> None:
    """Every record is found by its keys and device; a record without a named device is a reference for none."""
    suites = {path.stem for path in BASELINES.glob("*/published/*.json")}
    assert suites == {"catdog", "codegen", "distilbert", "resnet", "tft"}
    known = {suite: records_of(suite) for suite in suites}
    assert sum(len(records) for devices in known.values() for records in devices.values()) == 799
    for suite, devices in known.items():
        for device, records in devices.items():
            for record in records[:20]:
                if device == NAMELESS:
                    with pytest.raises(pytest.skip.Exception):
                        published(device, suite, **record["keys"])
                else:
                    assert published(device, suite, **record["keys"]) == record.get("values", {})


def test_a_wrong_or_an_open_question_is_an_error() -> None:
    """A wrong keyword, and keys of several records, are errors; another GPU skips the test."""
    with pytest.raises(ValueError, match="no record of distilbert has sytem"):
        published("T4", "distilbert", sytem="mosec")
    with pytest.raises(ValueError, match="describes"):
        published("T4", "distilbert", system="mosec")
    with pytest.raises(pytest.skip.Exception, match="no number was published for A30"):
        published("A30", "distilbert", system="mosec", concurrency=50)


APPS = [str(REPOSITORY / "suites" / suite / "apps") for suite in ("distilbert", "catdog")]


@pytest.mark.parametrize(
    ("app", "argument", "message"),
    [
        ("distilbert_mosec", "--inference-worker=2", "unrecognized arguments"),
        ("distilbert_mosec", "--slowdown=nan", "not a number of 0 or more"),
        ("distilbert_mosec", "--checkpoint=/nonexistent", "no folder"),
        ("distilbert_pytriton", "--max-queue-delay=10", "unrecognized arguments"),
        ("catdog_litserve", "--max-batch=8", "unrecognized arguments"),
        ("catdog_litserve", "--weights=/nonexistent", "no file"),
        ("catdog_model_only", "--size=huge", "invalid choice"),
    ],
)
def test_wrong_arguments_end_an_app_before_it_serves(
    app: str, argument: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An app ends with exit status 2 and names the wrong or misspelt argument."""
    library = {"model_only": "torch"}.get(name := app.partition("_")[2], name)
    pytest.importorskip(library)
    for folder in APPS:
        monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(sys, "argv", [f"{app}.py", argument])
    with pytest.raises(SystemExit) as end:
        importlib.import_module(app).main()
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert argument.partition("=")[0] in said
