"""Bencher Metric Format, and github-action-benchmark's two lists of numbers, one for each direction."""

from __future__ import annotations

from typing import Annotated

import msgspec
import pytest
from hypothesis import given

from pytest_gpuserve.gate.metric import METRICS
from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.report.exports.bencher import document as bencher
from pytest_gpuserve.report.exports.github_action_benchmark import bigger_is_better, smaller_is_better
from tests.report.exported import NAMES, NODEID, UNHURRIED, load_of, named, one_test
from tests.support.builders import judgement, session

Name = Annotated[str, msgspec.Meta(min_length=1)]
Slug = Annotated[str, msgspec.Meta(pattern="^[a-z0-9]+(-[a-z0-9]+)*$", max_length=64)]


class Metric(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A metric by the JSON schema of Bencher Metric Format (draft 7, ``bmf.json``), with nothing beside it."""

    value: float
    lower_value: float | msgspec.UnsetType = msgspec.UNSET
    upper_value: float | msgspec.UnsetType = msgspec.UNSET


def read_bencher(text: str) -> dict[str, dict[str, Metric]]:
    """Read a document as strictly as its schema and Bencher's limits of names."""
    found: dict[str, dict[str, Metric]] = msgspec.json.decode(text, type=dict[Name, dict[Slug, Metric]])
    assert all(len(name.encode()) <= 1024 for name in found)
    return found


class Entry(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A benchmark result, as the action's README describes it and its ``extract`` reads it."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    unit: str
    value: float
    range: str | msgspec.UnsetType = msgspec.UNSET
    extra: str | msgspec.UnsetType = msgspec.UNSET


def read(text: str) -> dict[str, Entry]:
    """Read a document as strictly as it is described; the action takes entries of one name for one benchmark."""
    entries = msgspec.json.decode(text, type=list[Entry])
    found = {entry.name: entry for entry in entries}
    assert len(found) == len(entries)
    return found


def test_each_metric_stands_in_the_list_of_its_direction() -> None:
    """What is better when bigger is in the one list, what is better when smaller in the other, and none in both."""
    result = one_test(load_of(*(judgement(metric=name) for name in METRICS)))
    bigger, smaller = read(bigger_is_better(result)), read(smaller_is_better(result))
    assert set(bigger) == {f"{NODEID} throughput", f"{NODEID} batching_ratio"}
    assert set(smaller) == {
        f"{NODEID} {name}" for name in ("latency.p50", "latency.p90", "latency.p95", "latency.p99", "cold_start")
    }


def test_an_entry_has_its_value_in_its_unit() -> None:
    """Values are those of the run, latencies in milliseconds; none is an inverse."""
    result = one_test(load_of())
    throughput = read(bigger_is_better(result))[f"{NODEID} throughput"]
    assert (throughput.value, throughput.unit, throughput.range) == (20, "requests/s", "20.0/s .. 20.0/s")
    assert throughput.extra is msgspec.UNSET
    p99 = read(smaller_is_better(result))[f"{NODEID} latency.p99"]
    assert p99.unit == "ms"
    assert p99.value == pytest.approx(10, rel=1e-3)


def test_an_entry_tells_the_verdicts_on_its_metric() -> None:
    """Below a chart's point stands what the gate says of it, and of it alone."""
    result = one_test(
        load_of(
            judgement(),
            judgement(Verdict.MISSING, kind="published"),
            judgement(Verdict.PASS, "batching_ratio").unasserted(),
        )
    )
    entries = read(bigger_is_better(result))
    assert entries[f"{NODEID} throughput"].extra == "REGRESSED (baseline): -30.1 %\nMISSING (published)"
    assert entries[f"{NODEID} batching_ratio"].extra == "PASS (baseline, not asserted): -30.1 %"


def test_what_is_not_sound_is_in_no_chart() -> None:
    """A load without numbers that can be trusted is left out; the action refuses an empty list, which shows."""
    bad = load_of(judgement(Verdict.INVALID), sessions=[session(problems=("late",))])
    assert bigger_is_better(one_test(bad)) == smaller_is_better(one_test(bad)) == "[]\n"
    assert list(read_bencher(bencher(one_test(bad, load_of(label="load 2"))))) == [f"{NODEID} load 2"]


@UNHURRIED
@given(NAMES)
def test_no_name_breaks_the_file_or_the_comment(nodeids: list[str]) -> None:
    """Names stay apart, on their line and within limits; none ends the code or cell that the action writes it into."""
    result = named(*nodeids)
    assert len(read_bencher(bencher(result))) == len(nodeids)
    for document in (bigger_is_better, smaller_is_better):
        names = list(read(document(result)))
        assert len(names) % len(nodeids) == 0
        assert all(name.isprintable() and not set("`|") & set(name) for name in names)


def test_texts_are_shown_fit() -> None:
    """Names go through what masks secrets."""
    text = bigger_is_better(named("t::a[hunter2]"), lambda text: text.replace("hunter2", "<X>"))
    assert next(iter(read(text))) == "t::a[<X>] throughput"
    assert "hunter2" not in text
