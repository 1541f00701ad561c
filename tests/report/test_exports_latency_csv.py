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
from tests.report.exported import NAMES, NODEID, load_of, named, one_test, result_of, triton_start
from tests.support.builders import judgement, session, start

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


def test_a_batch_is_what_a_request_carries() -> None:
    """A few requests on the edge make no odd number of a batch; where one start was not counted, there is none."""
    counted = triton_start()
    assert counted.counters is not None
    for items, batch in ((400, "4"), (403, "4"), (250, "2.5"), (0, "")):
        run = load_of(sessions=[session(replace(counted, counters=replace(counted.counters, items=items)))])
        (row,) = rows_of(document(one_test(run)))
        assert row["Batch"] == batch
    (row,) = rows_of(document(one_test(load_of(sessions=[session(counted, start())]))))
    assert (row["Batch"], row["Server Queue (ms)"]) == ("", "")


def test_what_is_not_sound_keeps_its_row_without_numbers() -> None:
    """The row says that it is INVALID, and nothing that one could draw."""
    run = load_of(judgement(Verdict.INVALID), sessions=[session(problems=("late",))])
    (row,) = rows_of(document(one_test(run)))
    known = {name: value for name, value in row.items() if value}
    assert known == {"Concurrency": "8", "Test": NODEID, "Verdicts": "throughput=INVALID"}


def test_no_cell_is_a_formula() -> None:
    """A text that a spreadsheet would compute is marked as a text; so is one behind a semicolon, where some split."""
    for name in FORMULAS:
        (row,) = rows_of(document(one_test(load_of(label=name), nodeid=name)))
        for cell in (row["Test"], row["Load"]):
            assert all(re.match(r"\s*[^=+\-@\s＝＋－＠]", part) for part in cell.split(";")), name


@given(NAMES | st.lists(st.sampled_from(FORMULAS), min_size=1, max_size=3))
def test_no_name_breaks_the_table(nodeids: list[str]) -> None:
    """Whatever tests are called, each has its row, on one line, with all columns."""
    text = document(named(*nodeids))
    rows = rows_of(text)
    assert len(rows) == len(nodeids) == text.count("\n") - 1
    assert len({row["Test"] for row in rows}) == len(nodeids)
