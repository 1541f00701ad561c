"""pytest-benchmark's JSON: the statistics that it would have computed, in files that its own commands read."""

from __future__ import annotations

import os
import subprocess
import sys
from random import Random
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_benchmark.stats import Stats

from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.measure.summary import Summary, summary_of
from pytest_gpuserve.report.exports.pytest_benchmark import document, statistics_of
from tests.report.exported import NAMES, NODEID, load_of, named, one_test, overruled_and_last_word, result_of
from tests.support.builders import COMMIT, judgement, session, start, window

if TYPE_CHECKING:
    from pathlib import Path


UntypedStats: Any = Stats
"""pytest-benchmark has no types."""

WITHIN = 0.002
"""A latency is known within 0.05 %; differences of them a little less well."""


STATISTICS = {*Stats.fields, "iterations"}
"""What pytest-benchmark writes of a benchmark, all of it needed by one of its readers."""


class Benchmark(msgspec.Struct, forbid_unknown_fields=True):
    """A benchmark of its files."""

    group: str | None
    name: str
    fullname: str
    params: dict[str, Any] | None
    param: str | None
    extra_info: dict[str, Any]
    options: dict[str, Any]
    stats: dict[str, float | str]


class File(msgspec.Struct, forbid_unknown_fields=True):
    """A file of pytest-benchmark's; Bencher and github-action-benchmark read a part of it."""

    machine_info: dict[str, Any]
    commit_info: dict[str, Any]
    benchmarks: list[Benchmark]
    version: str
    datetime: str = ""


def read(text: str) -> File:
    """Read a document as strictly as it is written by pytest-benchmark."""
    return msgspec.json.decode(text, type=File)


def summary(latencies: list[float]) -> Summary:
    """The summary of latencies in seconds."""
    return summary_of([window(latencies)])


def test_statistics_are_those_of_pytest_benchmark() -> None:
    """Of the same latencies, pytest-benchmark's own code comes to the same numbers; sums are exact."""
    normal = NormalDist(0, 0.3)
    random = Random(1)
    latencies = [0.010 * 2.718281828 ** normal.inv_cdf((i + 0.5) / 2000) for i in range(2000)]
    random.shuffle(latencies)
    theirs = UntypedStats()
    for latency in latencies:
        theirs.update(latency)
    ours = statistics_of(summary(latencies))
    assert set(ours) == STATISTICS
    for name in ("min", "stddev", "median", "q1", "q3", "iqr", "ld15iqr", "hd15iqr"):
        assert ours[name] == pytest.approx(getattr(theirs, name), rel=WITHIN), name
    for name in ("max", "mean", "total"):
        assert ours[name] == pytest.approx(getattr(theirs, name), rel=1e-12), name
    assert (ours["rounds"], ours["iterations"]) == (2000, 1)
    for name in ("iqr_outliers", "stddev_outliers"):
        # A latency near the fence may be on its other side.
        assert abs(int(ours[name]) - getattr(theirs, name)) <= 3, name
    assert ours["outliers"] == f"{ours['stddev_outliers']};{ours['iqr_outliers']}"


@given(st.lists(st.floats(1e-6, 100), min_size=1, max_size=50))
def test_statistics_are_in_order(latencies: list[float]) -> None:
    """However few latencies there are, quantiles rise, and whiskers and outliers are of the latencies."""
    ours: dict[str, Any] = {**statistics_of(summary(latencies))}
    assert ours["min"] <= ours["q1"] <= ours["median"] <= ours["q3"] <= ours["max"]
    assert ours["min"] <= ours["mean"] <= ours["max"] * (1 + 1e-9)
    assert ours["min"] <= ours["ld15iqr"] <= ours["hd15iqr"] <= ours["max"]
    assert ours["stddev"] >= 0
    assert 0 <= ours["iqr_outliers"] < ours["rounds"]
    assert 0 <= ours["stddev_outliers"] <= ours["rounds"] == len(latencies)


def test_a_load_is_a_benchmark() -> None:
    """It has the test's name, its parameters, and beside its latencies what pytest-benchmark has no place for."""
    run = load_of(*overruled_and_last_word(), judgement(Verdict.MISSING, "batching_ratio"))
    (benchmark,) = read(document(one_test(run, outcome="failed"))).benchmarks
    assert (benchmark.fullname, benchmark.name, benchmark.param) == (NODEID, "test_it[8]", "8")
    assert set(benchmark.stats) == STATISTICS
    assert benchmark.stats["rounds"] == 80
    info = benchmark.extra_info
    assert info["outcome"] == "failed"
    assert (info["metrics"]["throughput"], info["metrics"]["cold_start"]) == (20, 1.5)
    assert "gpu_memory" not in info["metrics"]
    overruled, last, missing = info["verdicts"]
    assert [overruled[name] for name in ("metric", "verdict", "change")] == ["throughput", "REGRESSED", -0.301]
    assert (overruled["overruled"], last["verdict"], last["overruled"]) == (True, "PASS", False)
    told = {"verdict": "MISSING", "reference_kind": "baseline", "asserted": True, "overruled": False}
    assert missing == {"metric": "batching_ratio", **told}
    assert (info["load"], info["server"]) == ({"load": "closed loop", "concurrency": "8"}, {"server": "mosec"})


def test_machine_and_commit_are_told_as_far_as_they_are_known() -> None:
    """Card, host and software are in the machine's facts; what is unknown is not there."""
    file = read(document(result_of()))
    assert file.machine_info["gpu"] == {"name": "T4", "product": "Tesla T4", "driver": "550.54", "ecc": True}
    assert file.machine_info["cpu"] == {"brand_raw": "A CPU", "count": 2}
    assert (file.machine_info["node"], file.machine_info["python_version"]) == ("host-a", "3.11.9")
    assert file.commit_info == {"id": COMMIT, "dirty": False}
    assert file.datetime == "2025-01-02T03:00:00+00:00"
    assert read(document(result_of(commit=None))).commit_info == {"id": "unknown"}


def test_what_is_not_sound_is_no_benchmark() -> None:
    """Neither what cannot be trusted nor what was not answered is there."""
    silent = load_of(label="load 2", sessions=[session(start(window(())))])
    assert read(document(one_test(load_of(sessions=[session(problems=("late",))]), silent))).benchmarks == []


@given(NAMES)
def test_no_name_breaks_the_file(nodeids: list[str]) -> None:
    """Each load is a benchmark of its own, whatever its test is called, with a name that Bencher takes."""
    names = {benchmark.fullname for benchmark in read(document(named(*nodeids))).benchmarks}
    assert len(names) == len(nodeids)
    assert all(0 < len(name.encode()) <= 1024 for name in names)


def test_pytest_benchmark_compares_two_files(tmp_path: Path) -> None:
    """``pytest-benchmark compare A.json B.json`` shows each load of the one below that of the other, twice as slow."""
    nodeids = (NODEID, 'suites/perf/test_perf.py::test_it["{b}\n, =c"]')
    for name, latencies in (("before", (0.010,) * 40), ("after", (0.020,) * 20)):
        load = load_of(sessions=[session(start(window(latencies)))])
        result = result_of(*(test for nodeid in nodeids for test in one_test(load, nodeid=nodeid).tests))
        (tmp_path / f"{name}.json").write_text(document(result), encoding="utf-8")
    command = [sys.executable, "-m", "pytest_benchmark", "compare", "before.json", "after.json", "--csv=out.csv"]
    # Where it knows of pytest-xdist, pytest-benchmark leaves the table to a controller.
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_XDIST_WORKER"}
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", "COLUMNS": "200"}
    done = subprocess.run(
        command, cwd=tmp_path, env={**environment, **alone}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("tests ---") == done.stdout.count(": 2 tests") == 2
    lines = [line for line in done.stdout.splitlines() if line.startswith("test_it[8] (")]
    assert [line.split()[1] for line in lines] == ["(before)", "(after)"]
    assert [" 80.0000 (1.0)" in line for line in lines] == [True, False]
    assert "(2.00)" in lines[1]
    assert "20.0000 (2.0" in lines[1]
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 1 + 2 * 2
