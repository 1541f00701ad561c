"""The machine-readable results: JSON, a contract field by field, properties in JUnit, and pytest-benchmark's file."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import NormalDist
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_benchmark.stats import Stats

from pytest_gpuserve.measure.histogram import Histogram, bucket_of
from pytest_gpuserve.measure.points import total_of
from pytest_gpuserve.measure.window import GpuUse, Session
from pytest_gpuserve.plugin import DOCS
from pytest_gpuserve.report.benchmark_json import document as benchmarks
from pytest_gpuserve.report.benchmark_json import statistics_of
from pytest_gpuserve.report.result_json import document, properties
from pytest_gpuserve.report.results import RunResult, SessionResult, TestResult
from pytest_gpuserve.verdict.metric import METRICS
from pytest_gpuserve.verdict.verdict import Judgement, ReferenceKind, Verdict
from tests.support.builders import because, judgement, result_of, run_of, session, start, streamed, window
from tests.support.markdown_results import HOSTILE


def read(*tests: TestResult) -> Any:  # noqa: ANN401 -- plain JSON
    """The document of these tests, read back strictly."""
    result = SessionResult({"name": "cpu", "product": None}, {"id": "host-a"}, tests)
    return json.loads(document(result), parse_constant=pytest.fail)  # of NaN, which only Python's JSON would read


def test_the_page_describes_every_field_of_the_file() -> None:
    """Each table of the page has the fields of one object of the file, in their order."""
    test = result_of("t", judgement())
    test.runs *= 2
    plain = read(test)
    written = (plain, plain["tests"][0], plain["tests"][0]["verdicts"][0], plain["tests"][0]["run"])
    tables = (DOCS / "reference" / "json.md").read_text(encoding="utf-8").split("| field | meaning |")[1:]
    assert [re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) for table in tables] == [list(each) for each in written]


def test_a_run_has_the_totals_of_its_sessions() -> None:
    """Totals over all windows of all sessions; latencies in seconds."""
    one = session(start(window((0.01,) * 90)), start(window((0.02,) * 10, items=None, batches=None)))
    other = session(start(window((0.04,) * 100, errors={"timeout": 2})), start(window((), errors={"timeout": 1})))
    plain = read(result_of("t", sessions=(one, other)))["tests"][0]["run"]
    assert (plain["requests"], plain["errors"], plain["seconds"]) == (200, {"timeout": 3}, 2.0)
    assert plain["throughput"] == pytest.approx(100.0)
    latency = {"p50": 0.02, "p90": 0.04, "p95": 0.04, "p99": 0.04}
    assert list(plain["latency"]) == ["mean", *latency, "max"]
    assert plain["latency"].pop("mean") == pytest.approx((0.9 + 0.2 + 4.0) / 200)
    assert plain["latency"].pop("max") == 0.04
    assert plain["latency"] == pytest.approx(latency, rel=0.0006)
    assert plain["batching_ratio"] is None
    assert plain["batch_sizes"] == {}
    assert (plain["sessions"], plain["starts"], plain["cold_start_seconds"]) == (2, 4, [1.5] * 4)
    assert (plain["answers"], plain["answers_checked"]) == (160, 160)


def test_a_run_of_streams_has_their_metrics() -> None:
    """Unknown values are null: quantiles with too many gaps within one read, tokens without ``usage``."""
    whole = streamed(window(), good=8)
    assert whole.streams is not None
    gaps = Histogram({0: 5, bucket_of(2_000_000): 95})
    blurred = msgspec.structs.replace(whole, streams=replace(whole.streams, itl=gaps, with_usage=9))
    for each, tokens in ((whole, 220), (blurred, None)):
        plain = read(result_of("t", sessions=(session(start(*[each] * 4)),)))["tests"][0]["run"]
        assert (plain["output_tokens_per_second"], plain["goodput"]) == (tokens, 16)
        assert plain["ttft"] == pytest.approx(dict.fromkeys(("p50", "p90", "p95", "p99"), 4e-3), rel=6e-4)
        assert (plain["tpot"] is None) is (tokens is None)
    assert plain["itl"].pop("p50") == pytest.approx(2e-3, rel=6e-4)
    assert plain["itl"] == {"p90": None, "p95": None, "p99": None}
    plain = read(result_of("t", sessions=(session(),)))["tests"][0]["run"]
    assert [plain[name] for name in ("ttft", "itl", "tpot", "output_tokens_per_second", "goodput")] == [None] * 5


def test_telemetry_is_that_of_all_windows() -> None:
    """Energy is added up; a value that a window lacks is null, not zero, and without a GPU all of it is."""
    windows = [window(gpus=GpuUse(joules, 7, sm_clock_mhz=1500)) for joules in (3.0, 4.0)]
    plain = read(result_of("t", sessions=(session(start(*windows)),)))["tests"][0]["run"]["telemetry"]
    assert plain == {"joules": 7.0, "memory_bytes": 7, "utilisation": None, "sm_clock_mhz": 1500}
    assert read(result_of("t", sessions=(session(start(window())),)))["tests"][0]["run"]["telemetry"] is None


@pytest.mark.parametrize(
    "sessions",
    [
        pytest.param((), id="no session"),
        pytest.param((Session((), "2025-01-02T03:04:05+00:00", because("the server died")),), id="no start"),
        pytest.param((session(*[start(window((), items=0, batches=0))] * 2),), id="no answer"),
    ],
)
def test_a_run_of_nothing_has_no_numbers(sessions: tuple[Session, ...]) -> None:
    """A server that died before its first answer has null for every value, and its problems."""
    plain = read(result_of("t", sessions=sessions))["tests"][0]["run"]
    assert (plain["requests"], plain["throughput"], plain["batching_ratio"]) == (0, None, None)
    assert set(plain["latency"].values()) == {None}
    assert plain["problems"] == [str(problem) for each in sessions for problem in each.problems]


def test_a_number_that_is_none_is_refused() -> None:
    """NaN is a mistake of ours that must show, not a document that no other reader can read."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        read(result_of("t", sessions=(session(start(cold_start_seconds=float("nan")), start()),)))


def run(*judgements: Judgement, label: str = "") -> RunResult:
    """A load with these judgements."""
    return RunResult(label, (), judgements, {}, {})


def of(*judgements: Judgement, label: str = "") -> dict[str, str]:
    """The properties of that load; no name is there twice."""
    named = properties([run(*judgements, label=label)])
    assert len(dict(named)) == len(named)
    return dict(named)


def test_a_metric_has_all_that_is_known_of_it() -> None:
    """Numbers are those of the JSON result, in its units; unknown ones are absent."""
    assert of(judgement(reasons=("slower", "much"))) == {
        "gpuserve.throughput.verdict": "REGRESSED",
        "gpuserve.throughput.value": "1432.0",
        "gpuserve.throughput.unit": "1/s",
        "gpuserve.throughput.reference": "2047.0",
        "gpuserve.throughput.reference_kind": "baseline",
        "gpuserve.throughput.change": "-0.301",
        "gpuserve.throughput.interval": "[-0.341, -0.262]",
        "gpuserve.throughput.tolerance": "0.05",
        "gpuserve.throughput.rounds": "2",
        "gpuserve.throughput.reasons": "slower\nmuch",
    }
    assert of(judgement(Verdict.MISSING, "batching_ratio")) == {
        "gpuserve.batching_ratio.verdict": "MISSING",
        "gpuserve.batching_ratio.reference_kind": "baseline",
        "gpuserve.batching_ratio.reasons": "a reason",
    }
    assert of(replace(judgement(Verdict.PASS), change=0.0))["gpuserve.throughput.change"] == "0.0"
    assert properties([]) == properties([run()]) == []


@pytest.mark.parametrize(
    ("kinds", "plain", "others"),
    [
        (["baseline", "limit"], "baseline", ["limit"]),
        (["limit", "baseline"], "baseline", ["limit"]),
        (["limit"], "limit", []),
    ],
)
def test_a_metric_with_several_references(kinds: Sequence[ReferenceKind], plain: str, others: Sequence[str]) -> None:
    """The plain name is that of the one which counts for most; each has a name of its own."""
    named = of(*[judgement(kind=kind) for kind in kinds])
    assert named["gpuserve.throughput.reference_kind"] == plain
    verdicts = {name for name in named if name.endswith(".verdict")}
    assert verdicts == {f"gpuserve.throughput{other}.verdict" for other in ("", *(f".{other}" for other in others))}


def test_loads_are_told_apart() -> None:
    """The first one needs no name."""
    named = properties([run(judgement()), run(judgement(), label="warm")])
    assert {"gpuserve.throughput.value", "gpuserve.warm.throughput.value"} <= set(dict(named))
    assert len(dict(named)) == len(named)


@given(text=st.text(alphabet=st.characters(), max_size=20), metric=st.sampled_from(sorted(METRICS)))
def test_any_text_can_be_written(text: str, metric: str) -> None:
    """Names and values pass through XML and a worker's pipe, which do not accept all characters."""
    named = properties([run(judgement(Verdict.INVALID, metric, reasons=(text or "a",)), label=text)])
    for name, value in named:
        assert all(sign.isprintable() for sign in name)
        assert all(sign.isprintable() or sign == "\n" for sign in value)
        (name + value).encode()


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


def read_benchmarks(text: str) -> dict[str, Any]:
    """The document; its fields are those that pytest-benchmark writes."""
    file: dict[str, Any] = json.loads(text)
    assert set(file) <= {"machine_info", "commit_info", "benchmarks", "version", "datetime"}
    for benchmark in file["benchmarks"]:
        assert set(benchmark) == {"group", "name", "fullname", "params", "param", "extra_info", "options", "stats"}
    return file


def test_statistics_are_those_of_pytest_benchmark() -> None:
    """For the same latencies pytest-benchmark's own code gives the same numbers; sums are exact."""
    normal = NormalDist(0, 0.3)
    random = Random(1)
    latencies = [round(0.010 * 2.718281828 ** normal.inv_cdf((i + 0.5) / 2000), 9) for i in range(2000)]
    random.shuffle(latencies)
    theirs = UntypedStats()
    for latency in latencies:
        theirs.update(latency)
    ours = statistics_of(total_of([window(latencies)]))
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
    (benchmark,) = read_benchmarks(benchmarks(run_of(one_test(run, outcome="failed"))))["benchmarks"]
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
    (benchmark,) = read_benchmarks(benchmarks(run_of(one_test(bad, fine))))["benchmarks"]
    assert benchmark["fullname"] == f"{NODEID} load 2"


@given(NAMES)
def test_no_name_breaks_the_file(nodeids: list[str]) -> None:
    """Each load is a benchmark of its own in ASCII, with one printable line as its name."""
    text = benchmarks(run_of(*(one_test(load_of(), nodeid=nodeid) for nodeid in nodeids)))
    assert text.isascii()
    names = {benchmark["fullname"] for benchmark in read_benchmarks(text)["benchmarks"]}
    assert len(names) == len(nodeids)
    assert all(name and name.isprintable() for name in names)


def test_pytest_benchmark_compares_two_files(tmp_path: Path) -> None:
    """``pytest-benchmark compare A.json B.json`` shows each load of the one below that of the other, twice as slow."""
    nodeids = (NODEID, 'suites/perf/test_perf.py::test_it["{b}\n, =c"]')
    for name, latencies in (("before", (0.010,) * 40), ("after", (0.020,) * 20)):
        load = load_of(sessions=[session(start(window(latencies)))])
        result = run_of(*(one_test(load, nodeid=nodeid) for nodeid in nodeids))
        (tmp_path / f"{name}.json").write_text(benchmarks(result), encoding="utf-8")
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
