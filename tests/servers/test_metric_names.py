"""The counters of a server by the names of its Prometheus metrics."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpuserve.errors import ServerFailed, UsageProblem
from pytest_gpuserve.measure.counters import Counters, StageTime, counted_between
from pytest_gpuserve.measure.window import COMPUTE
from pytest_gpuserve.process.ports import free_port
from pytest_gpuserve.servers.metric_names import MetricNames, read_samples

PAGE = """
# TYPE go_gc_duration_seconds summary
go_gc_duration_seconds{quantile="0.5"} NaN
go_gc_duration_seconds_sum 0
go_gc_duration_seconds_count 0
# TYPE process_limit gauge
process_limit -1
# TYPE items_total counter
items_total{model="a",replica="0"} 30
items_total{model="a",replica="1"} 10
items_total{model="b",replica="0"} 5
# TYPE items gauge
items 7
# TYPE runs counter
runs_total{model="a"} 12
# TYPE size histogram
size_bucket{model="a",le="1"} 2
size_bucket{model="a",le="8"} 12
size_bucket{model="a",le="+Inf"} 12
size_sum{model="a"} 40
size_count{model="a"} 12
# TYPE took summary
took_sum{model="a"} 1.5
took_count{model="a"} 12
# TYPE waiting gauge
waiting{model="a"} 3
# TYPE broken gauge
broken{model="a"} NaN
"""


def read(names: MetricNames) -> Counters:
    """What is made of the page."""
    return names.read(read_samples(PAGE))


def test_counters_are_found_by_their_names() -> None:
    """Summed over what no label fixes; with or without the suffix that a library adds."""
    of_a = {"model": "a"}
    names = MetricNames(items="items_total", batches="runs", requests="runs_total", pending="waiting", labels=of_a)
    assert read(names) == Counters(items=40, batches=12, requests=12, pending=3)
    # A histogram tells items, batches and sizes, each bucket without those below; times are a sum and a count too.
    names = MetricNames(batch_size="size", stages={COMPUTE: "took"}, labels=of_a)
    stages = {COMPUTE: StageTime(1.5, 12)}
    assert read(names) == Counters(items=40, batches=12, batch_sizes={"1": 2, "8": 10}, stages=stages)


def test_the_exact_name_goes_first() -> None:
    """A gauge beside the counter of its name is not added to it; what is not named may have any value."""
    assert read(MetricNames(items="items", batches="runs")).items == 7
    assert read(MetricNames(items="items_total", batches="runs")).items == 45
    assert {sample.name for sample in read_samples(PAGE)} >= {"go_gc_duration_seconds", "process_limit"}


@pytest.mark.parametrize(
    ("name", "said", "help_"),
    [
        ("broken", "metric broken is no count", ""),
        ("process_limit", "metric process_limit is no count", ""),
        ("took_sum", r"metric took_sum counts, and yet is 1\.5", "name a counter"),
    ],
)
def test_what_is_named_has_to_be_a_count(name: str, said: str, help_: str) -> None:
    """What is not a number, less than nothing, or seconds, is told and not rounded."""
    with pytest.raises(ServerFailed, match=said) as caught:
        read(MetricNames(items=name, batches="runs"))
    assert caught.value.remedies
    assert help_ in str(caught.value)


def test_a_name_that_is_not_there_is_told_with_those_that_are() -> None:
    """Of the samples with the labels; a label that none has leaves nothing."""
    with pytest.raises(ServerFailed, match="no metric item") as caught:
        read(MetricNames(items="item", batches="runs", labels={"model": "a"}))
    assert "items_total" in caught.value.found
    assert "process_limit" not in caught.value.found
    with pytest.raises(ServerFailed, match="no metric items") as caught:
        read(MetricNames(items="items", batches="runs", labels={"model": "c"}))
    assert caught.value.found == "no metric with these labels"


def test_a_server_that_counts_no_executions_has_none() -> None:
    """Its requests and times are known, and no batches: that is not the same as none executed."""
    names = MetricNames(requests="runs", stages={COMPUTE: "took"})
    assert read(names) == Counters(0, 0, stages={COMPUTE: StageTime(1.5, 12)}, requests=12, counts_batches=False)
    assert not counted_between(read(names), read(names)).counts_batches


@pytest.mark.parametrize("given", [{}, {"items": "a"}, {"batches": "b", "requests": "c"}, {"pending": "d"}])
def test_names_that_tell_nothing_are_told(given: dict[str, Any]) -> None:
    """Items need batches, and something has to be counted."""
    with pytest.raises(UsageProblem, match="items= and batches="):
        MetricNames(**given)


def test_counters_that_cannot_be_read_are_told_with_what_helps() -> None:
    """Where nobody answers, the argument that says where they are is named."""
    with pytest.raises(ServerFailed, match="could not be read") as caught:
        MetricNames(batch_size="size").fetch(free_port())
    assert "path=" in str(caught.value)
    assert "leave out counters" in str(caught.value)
