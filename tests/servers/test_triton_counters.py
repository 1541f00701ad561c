"""Triton's statistics, and the models of which they are read."""

from __future__ import annotations

import copy
from functools import reduce
from operator import getitem
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.errors import ServerFailed, UsageProblem
from pytest_gpuserve.measure.counters import StageTime
from pytest_gpuserve.measure.window import COMPUTE, OTHER_COMPUTE, QUEUE, SERVER
from pytest_gpuserve.servers.triton_api import Roles, choose_roles, counters_of
from pytest_gpuserve.servers.triton_config import ServedConfig, served_config

MS = 1_000_000
CHAIN = Roles(asked="chain", counted="core", pipeline=("pre", "core"))


def spent(count: int, milliseconds: int) -> dict[str, int]:
    """A duration as Triton reports it."""
    return {"count": count, "ns": milliseconds * MS}


def model(name: str, *, requests: int, queue: int = 0, batches: dict[int, int], each: int = 10) -> dict[str, Any]:
    """A model's statistics: ``batches`` by size, each of which computes for ``each`` ms, plus 1 in and 2 out."""

    def computed(count: int) -> dict[str, Any]:
        milliseconds = {"compute_input": 1, "compute_infer": each, "compute_output": 2}
        return {part: spent(count, time * count) for part, time in milliseconds.items()}

    return {
        "name": name,
        "version": "1",
        "last_inference": 1,
        "inference_count": sum(size * count for size, count in batches.items()),
        "execution_count": sum(batches.values()),
        "inference_stats": {
            "success": spent(requests, 100 * requests),
            "fail": spent(7, 7),
            "queue": spent(requests, queue),
            **computed(requests),
            "cache_hit": spent(0, 0),
            "cache_miss": spent(0, 0),
        },
        "response_stats": {},
        "batch_stats": [{"batch_size": size, **computed(count)} for size, count in batches.items()],
        "memory_usage": [],
    }


def answer(*models: dict[str, Any]) -> dict[str, Any]:
    """A whole answer."""
    return {"model_stats": list(models)}


ENSEMBLE = answer(
    model("chain", requests=20, batches={1: 20}, each=30),
    # It was asked by itself four times, too.
    model("core", requests=24, queue=40, batches={4: 4, 8: 1}),
    model("pre", requests=20, batches={1: 20}, each=5),
)


def test_an_ensemble() -> None:
    """Batches are the counted model's, requests and whole times the ensemble's; failures count in neither."""
    counters = counters_of(ENSEMBLE, CHAIN)
    assert (counters.items, counters.batches, counters.requests) == (24, 5, 20)
    assert counters.batch_sizes == {"4": 4, "8": 1}
    assert {name: (round(time.seconds, 9), time.count) for name, time in counters.stages.items()} == {
        SERVER: (2.0, 20),
        QUEUE: (0.04, 24),
        COMPUTE: (0.065, 5),
        OTHER_COMPUTE + "pre": (0.16, 20),
        "request.input": (0.024, 24),
        "request.infer": (0.24, 24),
        "request.output": (0.048, 24),
    }
    assert counters.pending is None
    # Every model is there by itself, without parts.
    parts = counters.parts
    assert {name: (part.items, part.batches, part.requests) for name, part in parts.items()} == {
        "chain": (20, 20, 20),
        "core": (24, 5, 24),
        "pre": (20, 20, 20),
    }
    assert not any(part.parts for part in parts.values())
    assert parts["pre"].stages[SERVER].count == 20


def test_before_the_first_request() -> None:
    """A loaded model has zeros before its first request; an unloaded one is an error."""
    counters = counters_of(answer(model("core", requests=0, batches={})), Roles("core", "core", ("core",)))
    assert (counters.items, counters.batches, counters.requests, counters.batch_sizes) == (0, 0, 0, {})
    assert counters.stages[COMPUTE] == StageTime(0.0, 0)
    for roles in (Roles("chain", "other", ()), Roles("other", "core", ())):
        with pytest.raises(ServerFailed, match="no statistics of model other"):
            counters_of(ENSEMBLE, roles)


@pytest.mark.parametrize("value", [None, -1, 1.5, "x", True, float("nan"), [1], {"a": 1}])
@pytest.mark.parametrize(
    "path",
    [
        ("model_stats",),
        ("model_stats", 0),
        ("model_stats", 2, "name"),
        ("model_stats", 1, "inference_stats"),
        ("model_stats", 1, "inference_stats", "success", "count"),
        ("model_stats", 1, "inference_stats", "queue", "ns"),
        ("model_stats", 1, "batch_stats", 0),
        ("model_stats", 1, "batch_stats", 0, "batch_size"),
        ("model_stats", 1, "batch_stats", 0, "compute_infer", "count"),
    ],
)
def test_nonsense_is_an_error(path: tuple[str | int, ...], value: object) -> None:
    """A wrong number, name, list or object anywhere is an error, never a number."""
    broken: Any = copy.deepcopy(ENSEMBLE)
    inner = reduce(getitem, path[:-1], broken)
    inner[path[-1]] = 5 if path[-1] == "name" and value == "x" else value
    with pytest.raises(ServerFailed):
        counters_of(broken, CHAIN)


@given(*[st.dictionaries(st.integers(1, 64), st.integers(0, 9), max_size=6)] * 2)
def test_versions_of_a_model_are_added(first: dict[int, int], second: dict[int, int]) -> None:
    """Executions, items and times are summed over sizes and versions."""
    one, two = model("m", requests=3, queue=3, batches=first), model("m", requests=4, queue=2, batches=second)
    counters = counters_of(answer(one, {**two, "version": "2"}), Roles("m", "m", ("m",)))
    both = {str(size): first.get(size, 0) + second.get(size, 0) for size in {*first, *second}}
    assert counters.batch_sizes == {size: count for size, count in both.items() if count}
    assert counters.batches == counters.stages[COMPUTE].count == sum(both.values())
    assert counters.items == sum(int(size) * count for size, count in both.items())
    assert counters.stages[COMPUTE].seconds == pytest.approx(0.013 * counters.batches)
    assert (counters.requests, counters.stages[QUEUE].count) == (7, 7)
    assert counters.stages[QUEUE].seconds == pytest.approx(0.005)


def served(configs: dict[str, Any]) -> dict[str, ServedConfig]:
    """These configurations, as they are read from a server."""
    return {name: served_config(config) for name, config in configs.items()}


BATCHING = {"max_batch_size": 8, "dynamic_batching": {}}
PLAIN = {"max_batch_size": 8}
SINGLE = {"max_batch_size": 0}


def ensemble(*steps: str) -> dict[str, Any]:
    """An ensemble of these models."""
    return {"max_batch_size": 8, "ensemble_scheduling": {"step": [{"model_name": step} for step in steps]}}


OF_AB = {"e": ensemble("a", "b")}
BOTH = {"a": BATCHING, "b": BATCHING}


@pytest.mark.parametrize(
    ("configs", "model", "asked", "roles"),
    [
        ({"m": SINGLE}, None, None, Roles("m", "m", ("m",))),
        ({"a": PLAIN, "b": BATCHING}, None, None, Roles("b", "b", ("b",))),
        ({"a": PLAIN, "b": {"max_batch_size": 4, "sequence_batching": {}}}, None, None, Roles("b", "b", ("b",))),
        ({**OF_AB, "a": PLAIN, "b": BATCHING}, None, None, Roles("e", "b", ("a", "b"))),
        # A model beside the ensemble batches too, but the ensemble's requests do not reach it.
        ({**OF_AB, "a": PLAIN, "b": BATCHING, "c": BATCHING}, None, None, Roles("e", "b", ("a", "b"))),
        ({"e": ensemble("a"), "a": PLAIN}, None, None, Roles("e", "a", ("a",))),
        (BOTH, "a", None, Roles("a", "a", ("a",))),
        (BOTH, None, "b", Roles("b", "b", ("b",))),
        ({**OF_AB, **BOTH}, "a", None, Roles("e", "a", ("a", "b"))),
        ({"e": ensemble("a"), "f": ensemble("b"), **BOTH}, None, "f", Roles("f", "b", ("b",))),
        (
            {"e": ensemble("a", "f"), "f": ensemble("b", "a"), "a": PLAIN, "b": BATCHING},
            None,
            "e",
            Roles("e", "b", ("a", "b")),
        ),
        # A model that calls others by itself: what it calls is counted.
        ({"caller": PLAIN, "b": BATCHING}, None, "caller", Roles("caller", "b", ("b",))),
        ({"a": {"max_batch_size": 1, "dynamic_batching": {}}, "b": BATCHING}, None, None, Roles("b", "b", ("b",))),
    ],
)
def test_what_is_counted(configs: dict[str, Any], model: str | None, asked: str | None, roles: Roles) -> None:
    """The configurations alone tell the requested model from the one that batches."""
    assert choose_roles(served(configs), model=model, asked=asked) == roles


@pytest.mark.parametrize(
    ("configs", "model", "asked", "message"),
    [
        (BOTH, None, None, "these batch: a, b"),
        ({"a": PLAIN, "b": PLAIN}, None, None, "none of a, b has dynamic batching"),
        ({**OF_AB, **BOTH}, None, None, "these batch: a, b"),
        ({}, None, None, "no model is loaded"),
        ({"a": PLAIN}, "x", None, "model='x' is not one of the loaded models"),
        ({"a": PLAIN}, None, "x", "asked='x' is not one of the loaded models"),
        ({"e": ensemble("a"), "a": PLAIN}, "e", None, "is an ensemble, which does not batch itself"),
    ],
)
def test_what_cannot_be_told_is_asked_for(
    configs: dict[str, Any], model: str | None, asked: str | None, message: str
) -> None:
    """If several models may be meant, the error names ``model=`` or ``asked=``."""
    with pytest.raises(UsageProblem) as problem:
        choose_roles(served(configs), model=model, asked=asked)
    assert message in str(problem.value)
    assert "model=" in str(problem.value) or "asked=" in str(problem.value)
