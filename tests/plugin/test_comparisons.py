"""What a test will compare, as far as its code tells: too much is careful, too little would be wrong."""

from __future__ import annotations

import functools
import operator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_gpuserve.plugin.collection import MEASURING, compared_metrics

USUAL = frozenset({"throughput", "batching_ratio", *(f"latency.p{percent}" for percent in (50, 90, 95, 99))})


def item(function: object, *, fixtures: tuple[str, ...] = (MEASURING,), is_skipped: bool = False) -> pytest.Item:
    """A collected test of this function."""
    marks = {"skip": pytest.mark.skip} if is_skipped else {}
    return cast("pytest.Item", SimpleNamespace(function=function, fixturenames=fixtures, get_closest_marker=marks.get))


def plain(run: Any, baseline: Any) -> None:  # noqa: ANN401, D103 -- a test's fixtures
    assert run.throughput >= baseline.throughput
    assert run.latency.p99 <= baseline.latency.p99


def of_the_card(run: Any, baseline: Any) -> None:  # noqa: ANN401, D103
    assert run.gpu_memory <= baseline.gpu_memory
    assert run.cold_start <= 20


def of_streams(run: Any, baseline: Any) -> None:  # noqa: ANN401, D103
    assert run.ttft.p50 <= baseline.ttft.p50
    assert run.latency.p99 <= baseline.latency.p99
    assert run.goodput >= 3


def of_a_variable(run: Any, baseline: Any) -> None:  # noqa: ANN401, D103
    first, then = run.ttft, baseline.ttft
    assert first.p90 <= then.p90


def of_a_scope_of_its_own(run: Any, baseline: Any) -> None:  # noqa: ANN401, D103
    assert all(now.p95 <= then.p95 for now, then in [(run.ttft, baseline.ttft)])


def nested(run: Any, baseline: Any) -> None:  # noqa: ANN401, D103
    def inner() -> None:
        assert run.latency.p90 <= baseline.latency.p90

    inner()
    assert max((run, baseline), key=lambda side: side.batching_ratio) is run
    assert all(side.latency.p50 for side in (run, baseline))


def through_a_helper(run: Any, baseline: Any) -> None:  # noqa: ANN401, D103
    plain(run, baseline)


def by_text(run: Any, baseline: Any) -> None:  # noqa: ANN401, D103
    get = operator.attrgetter("latency.p95")
    assert get(run) <= get(baseline)


@functools.wraps(plain)
def decorated(run: Any, baseline: Any) -> None:  # noqa: ANN401, D103
    assert run.latency.p95 <= baseline.latency.p95
    plain(run, baseline)


class Group:
    """Tests in a class."""

    def method(self, run: Any, baseline: Any) -> None:  # noqa: ANN401, D102
        assert run.latency.p95 <= baseline.latency.p95

    def __call__(self, run: Any, baseline: Any) -> None:  # noqa: ANN401, D102
        assert run.throughput >= baseline.throughput


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (plain, {"throughput", "latency.p99"}),
        (of_streams, {"ttft.p50", "latency.p99", "goodput"}),
        (of_a_variable, {"ttft.p90"}),
        (of_a_scope_of_its_own, {"ttft.p95"}),
        (nested, {"latency.p90", "latency.p50", "batching_ratio"}),
        (of_the_card, {"gpu_memory", "cold_start"}),
        (Group.method, {"latency.p95"}),
        (Group().method, {"latency.p95"}),
        (decorated, {"throughput", "latency.p99", "latency.p95"}),
    ],
)
def test_the_metrics_that_the_code_names(function: object, expected: set[str]) -> None:
    """Nested functions, lambdas, comprehensions, methods and what a decorator wraps are looked through."""
    assert compared_metrics(item(function)) == expected


@pytest.mark.parametrize(
    "function",
    [through_a_helper, by_text, functools.partial(plain, None), print, Group(), lambda: None, None],
    ids=["helper", "text", "partial", "builtin", "object", "nothing", "no function"],
)
def test_code_that_names_none_may_compare_all_usual_ones(function: object) -> None:
    """A helper, a name made at run time, or what has no code that could be read: what all loads have is counted."""
    assert compared_metrics(item(function)) == USUAL
    assert compared_metrics(cast("pytest.Item", SimpleNamespace())) == USUAL, "an item of another plugin"


@pytest.mark.parametrize("number", [1, 2])
def test_a_parametrized_test_counts_with_each_of_its_items(number: int, request: pytest.FixtureRequest) -> None:
    """The items that pytest itself makes of one function are told apart by nothing, and each has its metrics."""
    run: Any = SimpleNamespace(latency=SimpleNamespace(p90=number))
    assert run.latency.p90 == number
    assert compared_metrics(request.node) == {"latency.p90"}
    siblings = [each for each in request.session.items if getattr(each, "function", None) is request.node.function]
    assert {compared_metrics(each) for each in siblings} == {frozenset({"latency.p90"})}
