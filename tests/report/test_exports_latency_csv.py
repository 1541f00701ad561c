"""CSV in the published columns: as they are there, empty where nothing is known, and nothing that computes."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.report.exports.latency_csv import COMPONENTS, OURS, PERCENTILES, PUBLISHED, document
from pytest_gpuserve.report.results import TestResult
from tests.report.exported import (
    NAMES,
    NODEID,
    UNHURRIED,
    load_of,
    named,
    one_test,
    overruled_and_last_word,
    result_of,
    triton_start,
)
from tests.support.builders import judgement, session, start, window

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
    header, _, rest = document(result_of()).partition("\n")
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
    (row,) = rows_of(document(one_test(run)))
    assert (row["Batch"], row["Concurrency"]) == ("4", "2")
    assert float(row["Inferences/Second"]) == 4 * float(row["Requests/Second"]) == 800
    assert float(row["avg latency (ms)"]) == pytest.approx(10)
    assert sum(float(row[title]) for title in COMPONENTS.values()) == pytest.approx(10)
    assert [float(row[title]) for title in COMPONENTS.values()] == pytest.approx([1, 0.5, 2, 1, 4, 1, 0.5])
    percentiles = [float(row[title]) for title in PERCENTILES.values()]
    assert percentiles == sorted(percentiles)
    assert (row["Requests"], row["Errors"], row["Test"], row["Verdicts"]) == ("200", "0", NODEID, "throughput=PASS")


def test_what_is_unknown_is_empty() -> None:
    """A server that counts nothing by request has no components, no batch and no inferences: empty, not 0."""
    (row,) = rows_of(document(one_test(load_of(users=None))))
    unknown = ("Batch", "Concurrency", "Inferences/Second", *COMPONENTS.values())
    assert {row[title] for title in unknown} == {""}
    assert float(row["Requests/Second"]) == 20
    assert float(row["avg latency (ms)"]) == pytest.approx(10)


def test_counts_of_some_starts_are_none() -> None:
    """Where one start was not counted, the counts of the others are not those of its requests."""
    (row,) = rows_of(document(one_test(load_of(sessions=[session(triton_start(), start())]))))
    assert (row["Batch"], row["Server Queue (ms)"]) == ("", "")


@pytest.mark.parametrize(("items", "batch"), [(400, "4"), (403, "4"), (250, "2.5"), (0, "")])
def test_a_batch_is_what_a_request_carries(items: int, batch: str) -> None:
    """A few requests on the edge make no odd number of a batch; requests of different size have their mean."""
    counted = triton_start()
    assert counted.counters is not None
    run = load_of(sessions=[session(replace(counted, counters=replace(counted.counters, items=items)))])
    (row,) = rows_of(document(one_test(run)))
    assert row["Batch"] == batch


def test_what_is_not_sound_keeps_its_row_without_numbers() -> None:
    """The row says that it is INVALID, and nothing that one could draw."""
    run = load_of(judgement(Verdict.INVALID), sessions=[session(problems=("late",))])
    (row,) = rows_of(document(one_test(run)))
    known = {name: value for name, value in row.items() if value}
    assert known == {"Concurrency": "8", "Test": NODEID, "Verdicts": "throughput=INVALID"}


def test_what_was_overruled_is_no_verdict() -> None:
    """The cell has one verdict for the metric: the last word."""
    (row,) = rows_of(document(one_test(load_of(*overruled_and_last_word()))))
    assert row["Verdicts"] == "throughput=PASS"


def test_rows_are_sorted_by_batch_and_concurrency() -> None:
    """As numbers, as in the published tables; what has none comes last, in the order in which it ran."""

    def test_at(batch: int, users: int) -> TestResult:
        run = load_of(sessions=[session(triton_start(batch=batch))], users=users)
        return TestResult(f"t::{batch}-{users}", "passed", [run])

    plain = [TestResult(f"t::{name}", "passed", [load_of(users=None)]) for name in "ba"]
    tests = [*plain, test_at(16, 8), test_at(16, 256), test_at(2, 64), test_at(16, 16)]
    rows = rows_of(document(result_of(*tests)))
    assert [row["Test"] for row in rows] == ["t::2-64", "t::16-8", "t::16-16", "t::16-256", "t::b", "t::a"]


def test_stepped_users_are_no_concurrency() -> None:
    """A load whose users change has no one number of them."""
    run = replace(load_of(), load={"load": "stepped users", "steps": "1 for 10 s"})
    (row,) = rows_of(document(one_test(run)))
    assert row["Concurrency"] == ""


@pytest.mark.parametrize("name", FORMULAS)
def test_no_cell_is_a_formula(name: str) -> None:
    """A text that a spreadsheet would compute is marked as a text; so is one behind a semicolon, where some split."""
    (row,) = rows_of(document(one_test(load_of(label=name), nodeid=name)))
    for cell in (row["Test"], row["Load"]):
        assert all(re.match(r"\s*[^=+\-@\s＝＋－＠]", part) for part in cell.split(";"))


@UNHURRIED
@given(NAMES | st.lists(st.sampled_from(FORMULAS), min_size=1, max_size=3))
def test_no_name_breaks_the_table(nodeids: list[str]) -> None:
    """Whatever tests are called, each has its row, on one line, with all columns."""
    text = document(named(*nodeids))
    rows = rows_of(text)
    assert len(rows) == len(nodeids) == text.count("\n") - 1
    assert len({row["Test"] for row in rows}) == len(nodeids)


def test_an_ordinary_name_is_left_as_it_is() -> None:
    """Signs that begin no cell are no formula."""
    nodeid = "suites/x.py::test_y[-1, a=b, c@d]"
    (row,) = rows_of(document(one_test(load_of(), nodeid=nodeid)))
    assert row["Test"] == nodeid


def test_texts_are_shown_fit() -> None:
    """Names go through what masks secrets."""
    text = document(named("t::a[hunter2]"), lambda text: text.replace("hunter2", "<X>"))
    assert "hunter2" not in text
    assert "t::a[<X>]" in text


def test_a_row_of_thin_data_is_still_a_row() -> None:
    """One request has all its percentiles in one place."""
    (row,) = rows_of(document(one_test(load_of(sessions=[session(start(window((0.02,))))]))))
    (only,) = {float(row[title]) for title in PERCENTILES.values()}
    assert only == pytest.approx(20, rel=1e-3)
