"""Bencher Metric Format: benchmarks of measures, each a number with its bounds."""

from __future__ import annotations

from typing import Annotated

import msgspec
import pytest
from hypothesis import given

from pytest_gpuserve.gate.metric import METRICS
from pytest_gpuserve.report.exports.bencher import LATENCY, MEASURES, document
from tests.report.exported import NAMES, NODEID, UNHURRIED, load_of, named, one_test
from tests.support.builders import judgement, session, start, window

Name = Annotated[str, msgspec.Meta(min_length=1)]
Slug = Annotated[str, msgspec.Meta(pattern="^[a-z0-9]+(-[a-z0-9]+)*$", max_length=64)]


class Metric(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A metric by the JSON schema of Bencher Metric Format (draft 7, ``bmf.json``), with nothing beside it."""

    value: float
    lower_value: float | msgspec.UnsetType = msgspec.UNSET
    upper_value: float | msgspec.UnsetType = msgspec.UNSET


def read(text: str) -> dict[str, dict[str, Metric]]:
    """Read a document as strictly as its schema and Bencher's limits of names."""
    found: dict[str, dict[str, Metric]] = msgspec.json.decode(text, type=dict[Name, dict[Slug, Metric]])
    assert all(len(name.encode()) <= 1024 for name in found)
    return found


def test_a_load_is_a_benchmark_of_its_metrics() -> None:
    """Throughput is in operations a second and latency in nanoseconds, as Bencher defines its own two measures."""
    measures = read(document(one_test(load_of())))[NODEID]
    assert measures["throughput"] == Metric(20.0, 20.0, 20.0)
    assert measures[LATENCY].value == pytest.approx(10e6)
    assert measures["latency-p99-nanoseconds"].value == pytest.approx(10e6, rel=1e-3)
    assert measures["batching-ratio"].value == 4
    assert "cold-start-nanoseconds" not in measures


def test_bounds_are_those_of_the_starts() -> None:
    """The lowest and the highest start enclose the value; of one start there are none."""
    two = session(start(window((0.020,) * 40)), start(window((0.010,) * 50)))
    both = read(document(one_test(load_of(sessions=[two]))))[NODEID]
    assert both["throughput"] == Metric(90.0, 80.0, 100.0)
    one = read(document(one_test(load_of(sessions=[session(start())]))))[NODEID]
    assert one["throughput"] == Metric(20.0)


def test_every_metric_is_a_measure() -> None:
    """No metric that a test can gate is without a name of its own in Bencher."""
    assert set(MEASURES) == set(METRICS)
    slugs = [slug for slug, _ in MEASURES.values()]
    assert len({*slugs, LATENCY}) == len(METRICS) + 1
    result = one_test(load_of(judgement(metric="cold_start")))
    assert read(document(result))[NODEID]["cold-start-nanoseconds"].value == 1.5e9


def test_what_is_not_sound_is_no_benchmark() -> None:
    """A load without numbers that can be trusted is not there at all."""
    result = one_test(load_of(sessions=[session(problems=("late",))]), load_of(label="load 2"))
    assert list(read(document(result))) == [f"{NODEID} load 2"]


@UNHURRIED
@given(NAMES)
def test_no_name_breaks_the_file(nodeids: list[str]) -> None:
    """Each load is a benchmark of its own, whatever its test is called, within Bencher's limits."""
    assert len(read(document(named(*nodeids)))) == len(nodeids)


def test_texts_are_shown_fit() -> None:
    """Names go through what masks secrets."""
    text = document(named("t::a[hunter2]"), lambda text: text.replace("hunter2", "<X>"))
    assert list(read(text)) == ["t::a[<X>]"]
