"""pytest-benchmark's JSON: read back strictly, and by pytest-benchmark itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import NormalDist
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_benchmark.stats import Stats

from pytest_gpuserve.measure.points import total_of
from pytest_gpuserve.measure.window import Session, Window
from pytest_gpuserve.report.benchmark_json import LONGEST_NAME_BYTES, document, statistics_of
from pytest_gpuserve.report.results import RunResult, TestResult
from pytest_gpuserve.verdict.verdict import Judgement, Verdict
from tests.support.builders import judgement, run_of, session, start, window
from tests.support.markdown_results import HOSTILE

NODEID = "suites/perf/test_perf.py::test_it[8]"

NAMES = st.lists(st.sampled_from([*filter(None, HOSTILE), "ü" * 1000]) | st.text(min_size=1), min_size=1, max_size=4)
"""Names of tests; two of them may be the same."""

LOAD = {"load": "closed loop", "concurrency": "8"}
SOUND = (session(),)


def load_of(*judgements: Judgement, label: str = "", sessions: Sequence[Session] = SOUND) -> RunResult:
    """A closed loop of these sessions; of a sound one without any."""
    return RunResult(label, tuple(sessions), judgements, LOAD, {"server": "mosec"})


def one_test(*loads: RunResult, nodeid: str = NODEID, outcome: str = "passed") -> TestResult:
    """A test of these loads."""
    return TestResult(nodeid, outcome, list(loads))


UntypedStats: Any = Stats
"""pytest-benchmark has no types."""

WITHIN = 0.002
"""A latency is known within 0.05 %; differences of them a little less well."""


STATISTICS = {*Stats.fields, "iterations"}
"""Fields that pytest-benchmark writes for a benchmark; each is needed by one of its readers."""


def read(text: str) -> dict[str, Any]:
    """The document; its fields are those that pytest-benchmark writes."""
    file: dict[str, Any] = json.loads(text)
    assert set(file) <= {"machine_info", "commit_info", "benchmarks", "version", "datetime"}
    for benchmark in file["benchmarks"]:
        assert set(benchmark) == {"group", "name", "fullname", "params", "param", "extra_info", "options", "stats"}
    return file


def summary(latencies: list[float]) -> Window:
    """The summary of latencies in seconds."""
    return total_of([window(latencies)])


def test_statistics_are_those_of_pytest_benchmark() -> None:
    """For the same latencies pytest-benchmark's own code gives the same numbers; sums are exact."""
    normal = NormalDist(0, 0.3)
    random = Random(1)
    latencies = [round(0.010 * 2.718281828 ** normal.inv_cdf((i + 0.5) / 2000), 9) for i in range(2000)]
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


def test_a_load_is_a_benchmark() -> None:
    """It has the test's name, its parameters, and beside its latencies what pytest-benchmark has no place for."""
    paired = replace(judgement(Verdict.PASS, kind="against", reasons=("that counts",)), change=-0.01, interval=None)
    run = load_of(judgement(), paired, judgement(Verdict.MISSING, "batching_ratio"))
    (benchmark,) = read(document(run_of(one_test(run, outcome="failed"))))["benchmarks"]
    assert (benchmark["fullname"], benchmark["name"], benchmark["param"]) == (NODEID, "test_it[8]", "8")
    assert set(benchmark["stats"]) == STATISTICS
    assert benchmark["stats"]["rounds"] == 80
    info = benchmark["extra_info"]
    assert info["outcome"] == "failed"
    assert (info["metrics"]["throughput"], info["metrics"]["cold_start"]) == (20, 1.5)
    assert "gpu_memory" not in info["metrics"]
    worse, last, missing = info["verdicts"]
    assert [worse[name] for name in ("metric", "verdict", "change")] == ["throughput", "REGRESSED", -0.301]
    assert last["verdict"] == "PASS"
    assert (missing["metric"], missing["verdict"]) == ("batching_ratio", "MISSING")
    assert "value" not in missing
    assert (info["load"], info["server"]) == (LOAD, {"server": "mosec"})


UNSOUND = session(problems=("3 requests failed",))
SHARED = judgement(Verdict.INVALID, reasons=("the host was shared",))
SHARED_BATCHES = judgement(Verdict.INVALID, "batching_ratio", reasons=("the host was shared",))
SILENT = session(start(window((), items=None, batches=None)))


@pytest.mark.parametrize(
    ("judgements", "sessions"),
    [
        pytest.param((judgement(),), (session(), UNSOUND), id="a session with a problem"),
        pytest.param((SHARED,), (session(),), id="others used the host, which the verdict alone says"),
        pytest.param((judgement(Verdict.PASS), SHARED_BATCHES), (session(),), id="one verdict of two says so"),
        pytest.param((), (SILENT,), id="nothing was answered"),
        pytest.param((), (), id="nothing was measured"),
    ],
)
def test_what_is_not_sound_is_no_benchmark(judgements: tuple[Judgement, ...], sessions: tuple[Session, ...]) -> None:
    """A load with problems or without answers is left out; another load of the test stays."""
    bad, fine = load_of(*judgements, sessions=sessions), load_of(judgement(Verdict.PASS), label="load 2")
    (benchmark,) = read(document(run_of(one_test(bad, fine))))["benchmarks"]
    assert benchmark["fullname"] == f"{NODEID} load 2"


@given(NAMES)
def test_no_name_breaks_the_file(nodeids: list[str]) -> None:
    """Each load is a benchmark of its own in ASCII, with one printable line as a name that Bencher takes."""
    text = document(run_of(*(one_test(load_of(), nodeid=nodeid) for nodeid in nodeids)))
    assert text.isascii()
    names = {benchmark["fullname"] for benchmark in read(text)["benchmarks"]}
    assert len(names) == len(nodeids)
    assert all(name.isprintable() and 0 < len(name.encode()) <= LONGEST_NAME_BYTES for name in names)


def test_pytest_benchmark_compares_two_files(tmp_path: Path) -> None:
    """``pytest-benchmark compare A.json B.json`` shows each load of the one below that of the other, twice as slow."""
    nodeids = (NODEID, 'suites/perf/test_perf.py::test_it["{b}\n, =c"]')
    for name, latencies in (("before", (0.010,) * 40), ("after", (0.020,) * 20)):
        load = load_of(sessions=[session(start(window(latencies)))])
        result = run_of(*(one_test(load, nodeid=nodeid) for nodeid in nodeids))
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
