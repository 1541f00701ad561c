"""The results in the forms of other tools: what all forms share, and each of them read back by the tool itself."""

from __future__ import annotations

import csv
import io
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from random import Random
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from pytest_benchmark.stats import Stats

from pytest_gpuserve.gate.metric import METRICS
from pytest_gpuserve.gate.verdict import Judgement, Verdict
from pytest_gpuserve.measure.counters import Counters, StageTime
from pytest_gpuserve.measure.summary import Summary, summary_of
from pytest_gpuserve.measure.window import PER_REQUEST, QUEUE, Client, Session, Start
from pytest_gpuserve.measure.yardstick import Yardstick
from pytest_gpuserve.report.exports import (
    LONGEST_NAME_BYTES,
    json_text,
    latency_csv,
    loads_of,
    plain,
    prometheus,
    pytest_benchmark,
)
from pytest_gpuserve.report.exports.latency_csv import COMPONENTS, OURS, PERCENTILES, PUBLISHED
from pytest_gpuserve.report.exports.prometheus import FAMILIES, LATENCY, YARDSTICK
from pytest_gpuserve.report.exports.pytest_benchmark import statistics_of
from pytest_gpuserve.report.results import RunResult, SessionResult, TestResult
from tests.support.builders import COMMIT, judgement, session, start, streamed, window

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


NODEID = "suites/perf/test_perf.py::test_it[8]"

HOSTILE = (
    'test_z[a"b\\]',
    "test_z[a\nb\r\tc]",
    "test_z[{a},=b}]",
    "test_z[</script><b>]",
    "test_z[`@everyone`|x|]",
    "test_z[\x1b[31mred\x00]",
    "test_z[\u202eabc\u2028]",
    "test_z[\ud800]",
    "test_z[漢字]",
    "=cmd|' /C calc'!A0",
    "test_z[a; =1+1]",
    "# HELP x y",
    " ",
    "test_" + "ü" * 1000,
)

NAMES = st.lists(st.sampled_from(HOSTILE) | st.text(min_size=1, max_size=30), min_size=1, max_size=4)
"""Names of tests; two of them may be the same."""

GPU = {"name": "T4", "product": "Tesla T4", "driver": "550.54", "cuda": None, "ecc": True}
HOST = {"id": "host-a", "cpu": "A CPU", "cores": 2, "memory_gib": 4.0, "system": "Debian 12", "kernel": "6.1"}


def load_of(
    *judgements: Judgement, label: str = "", sessions: Sequence[Session] | None = None, users: int | None = 8
) -> RunResult:
    """A closed loop, or an open one without users, of sound sessions; two starts without any."""
    load = {"load": "open loop, constant"} if users is None else {"load": "closed loop", "concurrency": str(users)}
    measured = (session(),) if sessions is None else tuple(sessions)
    return RunResult(label, measured, judgements, load, {"server": "mosec"}, users=users)


def overruled_and_last_word() -> tuple[Judgement, Judgement]:
    """What a baseline said of a throughput, and what counts: that of its commit side by side, which let it pass."""
    paired = replace(judgement(Verdict.PASS, kind="against", reasons=("that counts",)), change=-0.01, interval=None)
    return judgement(Verdict.REGRESSED).overrule(), paired


def result_of(*tests: TestResult, commit: str | None = COMMIT) -> SessionResult:
    """A session of these tests on a card."""
    return SessionResult(
        gpu=GPU,
        host=HOST,
        tests=tests,
        at="2025-01-02T03:00:00+00:00",
        commit=commit,
        clean=True,
        software={"python": "3.11.9", "mosec": "0.9.6"},
    )


def one_test(*loads: RunResult, nodeid: str = NODEID, outcome: str = "passed") -> SessionResult:
    """A session of one test."""
    return result_of(TestResult(nodeid, outcome, list(loads)))


def named(*nodeids: str) -> SessionResult:
    """A session of tests of these names, each of one load."""
    return result_of(*(TestResult(nodeid, "passed", [load_of()]) for nodeid in nodeids))


def triton_start(*, batch: int = 4, requests: int = 100) -> Start:
    """A start of a server that counts by request: of 10 ms a request waits 2 ms, and 6 ms are its batch's."""
    times = {QUEUE: 2e-3, f"{PER_REQUEST}input": 1e-3, f"{PER_REQUEST}infer": 4e-3, f"{PER_REQUEST}output": 1e-3}
    return replace(
        start(window((0.010,) * requests)),
        counters=Counters(
            items=batch * requests,
            batches=requests,
            stages={name: StageTime(seconds * requests, requests) for name, seconds in times.items()},
            requests=requests,
        ),
        client=Client(sending_seconds=1e-3 * requests, receiving_seconds=0.5e-3 * requests),
    )


def test_names_that_masking_makes_alike_are_told_apart() -> None:
    """Two tests, or two loads, whose names differed in a secret alone do not become one."""
    result = result_of(
        TestResult("t::a[<X>]", "passed", [load_of(label="<X>"), load_of(label="<X>")]),
        TestResult("t::a[<X>]", "passed", [load_of()]),
    )
    loads = list(loads_of(result))
    assert [(load.test, load.label) for load in loads] == [
        ("t::a[<X>]", "<X>"),
        ("t::a[<X>]", "<X> #2"),
        ("t::a[<X>] #2", ""),
    ]
    assert len({load.name for load in loads}) == 3


@given(NAMES)
def test_names_are_printable_distinct_and_short_enough(nodeids: list[str]) -> None:
    """Whatever tests are called, each load has one printable line of its own, which UTF-8 can write."""
    names = [load.name for load in loads_of(named(*nodeids))]
    assert len(set(names)) == len(nodeids)
    assert all(name.isprintable() for name in names)
    assert all(len(name.encode()) <= LONGEST_NAME_BYTES for name in names)


UNSOUND = session(problems=("3 requests failed",))
SHARED = judgement(Verdict.INVALID, reasons=("the host was shared",))
SHARED_BATCHES = judgement(Verdict.INVALID, "batching_ratio", reasons=("the host was shared",))


@pytest.mark.parametrize(
    ("judgements", "sessions"),
    [
        pytest.param((judgement(),), (session(), UNSOUND), id="a session with a problem"),
        pytest.param((SHARED,), (session(),), id="others used the host, which the verdict alone says"),
        pytest.param((judgement(Verdict.PASS), SHARED_BATCHES), (session(),), id="one verdict of two says so"),
    ],
)
def test_what_is_not_sound_has_no_numbers(judgements: tuple[Judgement, ...], sessions: tuple[Session, ...]) -> None:
    """It takes the numbers of its load away, and leaves its verdicts and the other loads."""
    bad, fine = load_of(*judgements, sessions=sessions), load_of(judgement(Verdict.PASS), label="load 2")
    load, other = loads_of(one_test(bad, fine))
    assert (load.known(), load.summary) == ({}, None)
    assert len(load.rows) == len(judgements)
    assert other.summary is not None


@pytest.mark.parametrize("sessions", [(), (session(start(window((), items=None, batches=None))),)])
def test_a_load_without_an_answer_has_no_numbers(sessions: tuple[Session, ...]) -> None:
    """Nothing measured, or nothing answered, is nothing known: no zero stands for it."""
    (load,) = loads_of(one_test(load_of(sessions=sessions)))
    assert load.summary is None
    assert METRICS["throughput"] not in load.known()


def test_facts_are_printable() -> None:
    """At any depth; numbers stay, None goes, and NaN is refused."""
    facts = {"a": None, "b": {"c": ["x\n", None, 1.5, True]}, "d": 0}
    assert plain(facts) == {"b": {"c": ["x\\n", None, 1.5, True]}, "d": 0}
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_text([float("nan")])
    assert json_text(["ü"]).isascii()


HEADER = (
    "Batch,Concurrency,Inferences/Second,Client Send (ms),Network+Server Send/Recv (ms),Server Queue (ms),"
    "Server Compute Input (ms),Server Compute Infer (ms),Server Compute Output (ms),Client Recv (ms),"
    "p50 latency (ms),p90 latency (ms),p95 latency (ms),p99 latency (ms),avg latency (ms)"
)
"""Of the published tables, in their order."""

FORMULAS = ("=1+1", "+1", "-1", "@SUM(1)", " =1", "\uff1d1", "a;=1", "a; @b", "=cmd|' /C calc'!A0", "\t=1", "\n=1")


def rows_of(text: str) -> list[dict[str, str]]:
    """Read a table; every row has every column."""
    rows = list(csv.DictReader(io.StringIO(text, newline=""), strict=True))
    assert all(None not in row and None not in row.values() for row in rows)
    return rows


def test_columns_are_the_published_ones_and_ours_behind() -> None:
    """A reader that goes by names or by places finds the published columns."""
    header, _, rest = latency_csv.document(result_of()).partition("\n")
    assert header == ",".join((HEADER, *OURS))
    assert ",".join(PUBLISHED) == HEADER
    assert rest == ""


def test_a_row_of_a_server_that_counts_by_request() -> None:
    """All columns are filled, the components make up the average, and inferences are requests times batch."""
    run = load_of(
        judgement(Verdict.PASS),
        judgement(metric="latency.p99").unasserted(),
        sessions=[session(triton_start(), triton_start())],
        users=2,
    )
    (row,) = rows_of(latency_csv.document(one_test(run)))
    assert (row["Batch"], row["Concurrency"]) == ("4", "2")
    assert float(row["Inferences/Second"]) == 4 * float(row["Requests/Second"]) == 800
    assert float(row["avg latency (ms)"]) == pytest.approx(10)
    assert sum(float(row[title]) for title in COMPONENTS.values()) == pytest.approx(10)
    assert [float(row[title]) for title in COMPONENTS.values()] == pytest.approx([1, 0.5, 2, 1, 4, 1, 0.5])
    percentiles = [float(row[title]) for title in PERCENTILES.values()]
    assert percentiles == sorted(percentiles)
    assert (row["Requests"], row["Errors"], row["Test"], row["Verdicts"]) == ("200", "0", NODEID, "throughput=PASS")


def test_a_batch_is_what_a_request_carries() -> None:
    """A few requests on the edge make no odd number of a batch; where one start was not counted, there is none."""
    counted = triton_start()
    assert counted.counters is not None
    for items, batch in ((400, "4"), (403, "4"), (250, "2.5"), (0, "")):
        run = load_of(sessions=[session(replace(counted, counters=replace(counted.counters, items=items)))])
        (row,) = rows_of(latency_csv.document(one_test(run)))
        assert row["Batch"] == batch
    (row,) = rows_of(latency_csv.document(one_test(load_of(sessions=[session(counted, start())]))))
    assert (row["Batch"], row["Server Queue (ms)"]) == ("", "")


def test_what_is_not_sound_keeps_its_row_without_numbers() -> None:
    """The row says that it is INVALID, and nothing that one could draw."""
    run = load_of(judgement(Verdict.INVALID), sessions=[session(problems=("late",))])
    (row,) = rows_of(latency_csv.document(one_test(run)))
    known = {name: value for name, value in row.items() if value}
    assert known == {"Concurrency": "8", "Test": NODEID, "Verdicts": "throughput=INVALID"}


def test_no_cell_is_a_formula() -> None:
    """A text that a spreadsheet would compute is marked as a text; so is one behind a semicolon, where some split."""
    for name in FORMULAS:
        (row,) = rows_of(latency_csv.document(one_test(load_of(label=name), nodeid=name)))
        for cell in (row["Test"], row["Load"]):
            assert all(re.match(r"\s*[^=+\-@\s＝＋－＠]", part) for part in cell.split(";")), name


@given(NAMES | st.lists(st.sampled_from(FORMULAS), min_size=1, max_size=3))
def test_no_name_breaks_the_table(nodeids: list[str]) -> None:
    """Whatever tests are called, each has its row, on one line, with all columns."""
    text = latency_csv.document(named(*nodeids))
    rows = rows_of(text)
    assert len(rows) == len(nodeids) == text.count("\n") - 1
    assert len({row["Test"] for row in rows}) == len(nodeids)


NAME = "[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(rf"({NAME})\{{({LABEL}(?:,{LABEL})*)\}} (\S+)")
"""A sample without a timestamp; all of ours have labels."""

COMMENT = re.compile(rf"# (HELP|TYPE) ({NAME}) (\S.*)")

BASE_UNITS = ("_info", "_outcome", "_verdict", "_ratio", "_seconds", "_bytes", "_joules", "_per_second", "_requests")


def checked(text: str) -> dict[str, dict[frozenset[tuple[str, str]], float]]:
    """Read samples by family as strictly as a gateway, which is stricter than the Python parser.

    Each family is one block of HELP, TYPE and samples, no series is there twice, and no sample has a timestamp.
    """
    assert text.endswith("\n")
    blocks: list[tuple[str, str]] = []
    for line in text.removesuffix("\n").split("\n"):
        comment = COMMENT.fullmatch(line)
        if comment is not None and comment[1] == "HELP":
            blocks.append((comment[2], ""))
        elif comment is not None:
            assert blocks[-1] == (comment[2], "")
            blocks[-1] = comment[2], comment[3]
        else:
            sample = SAMPLE.fullmatch(line)
            assert sample is not None, line
            name, kind = blocks[-1]
            assert sample[1] in ({name, f"{name}_sum", f"{name}_count"} if kind == "summary" else {name})
            float(sample[3])
    assert all(kind in {"gauge", "summary"} for _, kind in blocks)
    assert max(Counter(name for name, _ in blocks).values()) == 1
    found: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample_read in family.samples:
            series = found.setdefault(sample_read.name, {})
            labels = frozenset(sample_read.labels.items())
            assert labels not in series
            series[labels] = sample_read.value
    return found


def labels(**more: str) -> frozenset[tuple[str, str]]:
    """The labels of a sample of the usual test's load."""
    return frozenset({"test": NODEID, "run": "", "gpu": "T4", **more}.items())


def test_latencies_are_a_summary() -> None:
    """Quantiles rise up to the exact maximum, and sum and count are those of all requests."""
    found = checked(prometheus.document(one_test(load_of(sessions=[session(start(window((0.010,) * 99 + (0.5,))))]))))
    quantiles = {dict(each)["quantile"]: value for each, value in found[LATENCY].items()}
    assert list(quantiles) == ["0.5", "0.9", "0.95", "0.99", "1"]
    assert list(quantiles.values()) == sorted(quantiles.values())
    assert quantiles["0.99"] == pytest.approx(0.010, rel=1e-3)
    assert quantiles["1"] == 0.5
    assert found[f"{LATENCY}_count"] == {labels(): 100}
    assert found[f"{LATENCY}_sum"][labels()] == pytest.approx(99 * 0.010 + 0.5)


def test_the_machines_own_speed_is_told() -> None:
    """The geometric mean of its readings, a series for each kind of fixed work."""
    load = replace(load_of(), yardstick=Yardstick({"memory": (100.0, 400.0)}))
    found = checked(prometheus.document(one_test(load)))
    assert found[YARDSTICK] == {labels(work="memory"): pytest.approx(200.0)}
    assert YARDSTICK not in checked(prometheus.document(one_test(load_of())))


def test_what_is_not_sound_has_a_verdict_and_no_numbers() -> None:
    """A number that cannot be trusted is no sample, and no zero; that it is so is one."""
    found = checked(prometheus.document(one_test(load_of(judgement(Verdict.INVALID)))))
    assert set(found) == {"gpuserve_session_info", "gpuserve_test_outcome", "gpuserve_verdict"}


def test_what_was_overruled_says_so_and_has_no_change() -> None:
    """An alert that leaves out what was overruled, or one of a change, goes by what was found side by side."""
    found = checked(prometheus.document(one_test(load_of(*overruled_and_last_word()))))
    verdicts = {
        (dict(each)["reference"], dict(each)["verdict"], dict(each)["asserted"], dict(each)["overruled"])
        for each in found["gpuserve_verdict"]
    }
    assert verdicts == {("baseline", "REGRESSED", "true", "true"), ("against", "PASS", "true", "false")}
    paired = labels(metric="throughput", reference="against")
    assert found["gpuserve_change_ratio"] == {paired: -0.01}
    assert "gpuserve_change_lower_ratio" not in found
    assert set(found["gpuserve_tolerance_ratio"]) == set(found["gpuserve_detectable_ratio"]) == {paired}


def test_two_comparisons_of_a_kind_are_one_series() -> None:
    """Of several comparisons of a metric with printed numbers the gravest is told, whichever came first.

    What was judged afterwards decides nothing: it is told as such, and hides no comparison that was asserted.
    """
    both = [judgement(verdict, kind="published") for verdict in (Verdict.PASS, Verdict.REGRESSED)]
    for loads in (both, both[::-1]):
        found = checked(prometheus.document(one_test(load_of(*loads))))
        assert [dict(each)["verdict"] for each in found["gpuserve_verdict"]] == ["REGRESSED"]
    late = judgement(Verdict.INCONCLUSIVE).unasserted()
    found = checked(
        prometheus.document(one_test(load_of(late), load_of(late, judgement(Verdict.PASS), late, label="load 2")))
    )
    verdicts = {
        (dict(each)["run"], dict(each)["verdict"], dict(each)["asserted"]) for each in found["gpuserve_verdict"]
    }
    assert verdicts == {("", "INCONCLUSIVE", "false"), ("load 2", "PASS", "true")}


def test_names_end_in_their_unit() -> None:
    """Whoever sees a name knows the unit; each metric is a quantile of the summary, or has a family of its own."""
    assert set(FAMILIES) == {metric.times or metric.name for metric in METRICS.values()} - {"latency"}
    whole = session(start(streamed(window(), good=8)))
    found = checked(prometheus.document(one_test(load_of(judgement(), sessions=(whole,)))))
    times = {dict(each)["quantile"]: value for each, value in found["gpuserve_ttft_seconds"].items()}
    assert times == pytest.approx(dict.fromkeys(("0.5", "0.9", "0.95", "0.99"), 0.004), rel=6e-4)
    assert all(name.startswith("gpuserve_") and name.endswith((*BASE_UNITS, "_sum", "_count")) for name in found)


@given(NAMES)
def test_no_name_breaks_a_line(nodeids: list[str]) -> None:
    """Whatever tests are called, each is read back as one line that can be printed."""
    found = checked(prometheus.document(named(*nodeids)))
    tests = [dict(each)["test"] for each in found["gpuserve_test_outcome"]]
    assert len(set(tests)) == len(nodeids)
    assert all(test.isprintable() for test in tests)


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
    (benchmark,) = read(pytest_benchmark.document(one_test(run, outcome="failed"))).benchmarks
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
    file = read(pytest_benchmark.document(result_of()))
    assert file.machine_info["gpu"] == {"name": "T4", "product": "Tesla T4", "driver": "550.54", "ecc": True}
    assert file.machine_info["cpu"] == {"brand_raw": "A CPU", "count": 2}
    assert (file.machine_info["node"], file.machine_info["python_version"]) == ("host-a", "3.11.9")
    assert file.commit_info == {"id": COMMIT, "dirty": False}
    assert file.datetime == "2025-01-02T03:00:00+00:00"
    assert read(pytest_benchmark.document(result_of(commit=None))).commit_info == {"id": "unknown"}


def test_what_is_not_sound_is_no_benchmark() -> None:
    """Neither what cannot be trusted nor what was not answered is there."""
    silent = load_of(label="load 2", sessions=[session(start(window(())))])
    assert (
        read(pytest_benchmark.document(one_test(load_of(sessions=[session(problems=("late",))]), silent))).benchmarks
        == []
    )


@given(NAMES)
def test_no_name_breaks_the_file(nodeids: list[str]) -> None:
    """Each load is a benchmark of its own, whatever its test is called, with a name that Bencher takes."""
    names = {benchmark.fullname for benchmark in read(pytest_benchmark.document(named(*nodeids))).benchmarks}
    assert len(names) == len(nodeids)
    assert all(0 < len(name.encode()) <= 1024 for name in names)


def test_pytest_benchmark_compares_two_files(tmp_path: Path) -> None:
    """``pytest-benchmark compare A.json B.json`` shows each load of the one below that of the other, twice as slow."""
    nodeids = (NODEID, 'suites/perf/test_perf.py::test_it["{b}\n, =c"]')
    for name, latencies in (("before", (0.010,) * 40), ("after", (0.020,) * 20)):
        load = load_of(sessions=[session(start(window(latencies)))])
        result = result_of(*(test for nodeid in nodeids for test in one_test(load, nodeid=nodeid).tests))
        (tmp_path / f"{name}.json").write_text(pytest_benchmark.document(result), encoding="utf-8")
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
