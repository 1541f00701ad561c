"""Triton's statistics, the models of which they are read, and configurations in the words of used settings."""

from __future__ import annotations

import copy
import json
import sys
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pytest_gpuserve.errors import ServerFailed, UsageProblem
from pytest_gpuserve.measure.counters import Counters
from pytest_gpuserve.measure.window import COMPUTE, OTHER_COMPUTE, QUEUE, SERVER
from pytest_gpuserve.servers.triton_api import Roles, Statistics, choose_roles, counters_of
from pytest_gpuserve.servers.triton_config import Repository, ServedConfig, parse_config, used_settings

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


def read(answer: object, roles: Roles) -> Counters:
    """Counters of a server with this answer."""
    return counters_of(msgspec.json.decode(json.dumps(answer), type=Statistics, strict=False), roles)


def served_config(config: object) -> ServedConfig:
    """A configuration as it is read from a server."""
    return msgspec.json.decode(json.dumps(config), type=ServedConfig, strict=False)


def test_an_ensemble() -> None:
    """Batches are the counted model's, requests and whole times the ensemble's; failures count in neither."""
    counters = read(ENSEMBLE, CHAIN)
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
    # Every model is there by itself, without parts.
    parts = counters.parts
    assert {name: (part.items, part.batches, part.requests) for name, part in parts.items()} == {
        "chain": (20, 20, 20),
        "core": (24, 5, 24),
        "pre": (20, 20, 20),
    }
    assert not any(part.parts for part in parts.values())
    assert parts["pre"].stages[SERVER].count == 20


def test_a_model_that_is_not_loaded_has_no_statistics() -> None:
    """It is an error that names it."""
    for roles in (Roles("chain", "other", ()), Roles("other", "core", ())):
        with pytest.raises(ServerFailed, match="no statistics of model other"):
            read(ENSEMBLE, roles)


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
    with pytest.raises((msgspec.DecodeError, ServerFailed)):
        read(broken, CHAIN)


def test_versions_of_a_model_are_added() -> None:
    """Executions, items and times are summed over sizes and versions; a size that never came is not there."""
    one = model("m", requests=3, queue=3, batches={1: 2, 4: 1, 8: 0})
    two = {**model("m", requests=4, queue=2, batches={4: 3}), "version": "2"}
    counters = read(answer(one, two), Roles("m", "m", ("m",)))
    assert (counters.batch_sizes, counters.batches, counters.items) == ({"1": 2, "4": 4}, 6, 18)
    assert (counters.requests, counters.stages[QUEUE].count, counters.stages[COMPUTE].count) == (7, 7, 6)
    assert counters.stages[COMPUTE].seconds == pytest.approx(0.013 * 6)
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
    with pytest.raises(ServerFailed) as problem:
        choose_roles(served(configs), model=model, asked=asked)
    assert message in str(problem.value)
    assert "model=" in str(problem.value) or "asked=" in str(problem.value)


pytest.importorskip("tritonclient.grpc.model_config_pb2")
json_format = pytest.importorskip("google.protobuf.json_format")

ORIGIN = "models/m/config.pbtxt"
BATCHED = "max_batch_size: 8 dynamic_batching { preferred_batch_size: [4, 8] max_queue_delay_microseconds: 3000 }"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('name: "m"\nmax_batch_size: "x"', r"m/config\.pbtxt: line 2 does not fit[\s\S]*2:17[\s\S]*parse integer"),
        ("input { data_type: TYPE_FP7 }", r"line 1 does not fit[\s\S]*no value named TYPE_FP7[\s\S]*--upgrade"),
        ('name: "m', r"line 1 does not fit[\s\S]*missing ending quote"),
    ],
)
def test_what_does_not_fit_names_its_line(text: str, message: str) -> None:
    """An error has the file, the line, what was expected there, and what helps."""
    with pytest.raises(UsageProblem, match=message):
        parse_config(text, ORIGIN)


def test_fields_of_a_newer_triton_are_passed_over() -> None:
    """Unknown fields do not hide the known ones, wherever they stand."""
    config = parse_config('new { a: [1, 2] b { c: FOO } } name: "m" instance_group { count: 2 new: "x" }', ORIGIN)
    assert (config.name, config.instance_group[0].count) == ("m", 2)


def test_a_configuration_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    """Only a missing configuration is empty; a step without a model is allowed."""
    repository = Repository(tmp_path)
    assert not repository.config("m").backend
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.pbtxt").write_bytes(b"# caf\xe9\nbackend: 'python'")
    with pytest.raises(UsageProblem, match=r"config\.pbtxt cannot be read[\s\S]*UTF-8"):
        repository.config("m")
    (tmp_path / "m" / "config.pbtxt").write_text("ensemble_scheduling { step { } }")
    assert repository.models(["m"]) == ["m"]


def test_a_missing_tritonclient_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The remedy is the extra that brings tritonclient."""
    monkeypatch.setitem(sys.modules, "tritonclient.grpc.model_config_pb2", None)
    with pytest.raises(UsageProblem, match=r"needs tritonclient\n(.*\n)*.*pip install 'pytest-gpuserve\[triton\]'"):
        parse_config("", ORIGIN)


def test_a_configuration_that_makes_no_sense_is_an_error() -> None:
    """A malformed configuration is an error, not one with other settings."""
    batches: dict[str, object] = {"max_batch_size": 1}
    for config in (
        {},
        {"max_batch_size": "many"},
        {"max_batch_size": True},
        {**batches, "dynamic_batching": []},
        {**batches, "instance_group": [{"kind": "KIND_CPU"}]},
        {**batches, "instance_group": {}},
    ):
        with pytest.raises(ValueError, match=r"Expected|missing"):
            served_config(config)


def used(text: str) -> dict[str, str]:
    """Settings that a server reports with just this configuration."""
    answer: dict[str, Any] = json_format.MessageToDict(
        parse_config(text, ORIGIN), preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return used_settings(served_config(answer))


TWO_GROUPS = "instance_group { kind: KIND_GPU count: 1 gpus: [0, 2] } instance_group { kind: KIND_MODEL count: 1 }"


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("", ["0", "no dynamic batching", "no dynamic batching", ""]),
        (f"{BATCHED} instance_group [ {{ count: 3, kind: KIND_CPU }} ]", ["8", "4 8", "3000", "3 x CPU"]),
        (
            f"max_batch_size: 2 dynamic_batching {{}} {TWO_GROUPS}",
            ["2", "any", "0", "1 x GPU 0 2, 1 x MODEL"],
        ),
        ('max_batch_size: 2 ensemble_scheduling { step { model_name: "a" } }', ["2"]),
    ],
)
def test_settings_of_a_running_model(text: str, settings: list[str]) -> None:
    """Limits, preferred sizes, delay and instances are told as text; an ensemble has only its limit."""
    names = ["max_batch_size", "preferred_batch_size", "max_queue_delay_us", "instances"]
    assert used(text) == dict(zip(names, settings, strict=False))
