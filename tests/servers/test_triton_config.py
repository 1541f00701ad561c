"""Configurations are read by Triton's own schema, and requested settings have the words of used ones."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.servers.triton_config import (
    Repository,
    parse_config,
    requested_settings,
    served_config,
    used_settings,
)
from tests.servers.triton_server import write_model

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("tritonclient.grpc.model_config_pb2")
json_format = pytest.importorskip("google.protobuf.json_format")

ORIGIN = "models/m/config.pbtxt"
BATCHED = "max_batch_size: 8 dynamic_batching { preferred_batch_size: [4, 8] max_queue_delay_microseconds: 3000 }"


def used(text: str) -> dict[str, str]:
    """Settings that a server reports with just this configuration."""
    answer: dict[str, Any] = json_format.MessageToDict(
        parse_config(text, ORIGIN), preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return used_settings(served_config(answer))


def asked(text: str) -> dict[str, str]:
    """Settings that this configuration requests."""
    return requested_settings(parse_config(text, ORIGIN))


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
    """Only a missing configuration is empty; a step without a model and an unknown kind are allowed."""
    repository = Repository(tmp_path)
    assert not repository.config("m").backend
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.pbtxt").write_bytes(b"# caf\xe9\nbackend: 'python'")
    with pytest.raises(UsageProblem, match=r"config\.pbtxt cannot be read[\s\S]*UTF-8"):
        repository.config("m")
    (tmp_path / "m" / "config.pbtxt").write_text("ensemble_scheduling { step { } }")
    assert repository.models(["m"]) == ["m"]
    assert requested_settings(parse_config("instance_group { count: 1 kind: 17 }", "it"))["instances"]


def test_a_missing_tritonclient_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The remedy is the extra that brings tritonclient."""
    monkeypatch.setitem(sys.modules, "tritonclient.grpc.model_config_pb2", None)
    with pytest.raises(UsageProblem, match=r"needs tritonclient\n(.*\n)*.*pip install 'pytest-gpuserve\[triton\]'"):
        parse_config("", ORIGIN)


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"{BATCHED} instance_group [ {{ count: 3, kind: KIND_CPU }} ]",
        "max_batch_size: 8 dynamic_batching {}",
        "max_batch_size: 2 instance_group [ { kind: KIND_GPU count: 1 gpus: [0, 2] }, { kind: KIND_MODEL count: 1 } ]",
        'max_batch_size: 2 ensemble_scheduling { step { model_name: "a" } }',
    ],
)
def test_asked_and_used_are_the_same_words(text: str) -> None:
    """Requested settings equal those that a server with just this file reports."""
    assert asked(text).items() <= used(text).items()


def test_what_is_left_to_triton_is_not_asked_for() -> None:
    """A setting that the file leaves out is not requested, nor instances and GPUs that Triton chooses."""
    assert asked("") == {}
    assert asked("max_batch_size: 8 dynamic_batching {}") == {"max_batch_size": "8", "max_queue_delay_us": "0"}
    for group in ("count: 2", "kind: KIND_CPU", "kind: KIND_GPU count: 1"):
        assert "instances" not in asked(f"instance_group {{ {group} }}")
    assert asked(f"{BATCHED} instance_group {{ kind: KIND_CPU count: 2 }}") == {
        "max_batch_size": "8",
        "preferred_batch_size": "4 8",
        "max_queue_delay_us": "3000",
        "instances": "2 x CPU",
    }


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


@pytest.mark.parametrize(
    ("policy", "folders", "versions"),
    [
        ("", "1 2", [2]),
        ("", "9 10", [10]),
        ("all {}", "1 2", [1, 2]),
        ("latest { num_versions: 2 }", "1 2 3", [3, 2]),
        ("latest {}", "1", []),
        ("specific { versions: [1, 7] }", "1 2", [1]),
        ("", "01", []),
        ("", "007 1", [1]),
        ("", "0", [0]),
        ("all {}", "configs warmup notes .git 1", [1]),
        ("all {}", "1_old 2", [1, 2]),
        ("", "-3 1", [1]),
        ("", "\u0663 1", [1]),
        ("", "", []),
    ],
)
def test_versions_are_those_that_triton_loads(tmp_path: Path, policy: str, folders: str, versions: list[int]) -> None:
    """Versions follow from the policy and the names of folders, empty ones too; a file is not a version."""
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "11").touch()
    (tmp_path / "m" / "config.pbtxt").write_text(f"version_policy {{ {policy} }}" if policy else "")
    for name in folders.split():
        (tmp_path / "m" / name).mkdir()
    assert Repository(tmp_path).versions("m") == versions


def test_a_named_configuration_goes_before_the_common_one(tmp_path: Path) -> None:
    """A configuration of the chosen name precedes the common one of its model."""
    write_model(tmp_path, 'name: "a" max_batch_size: 1')
    write_model(tmp_path, 'name: "b" max_batch_size: 1')
    (tmp_path / "a" / "configs").mkdir()
    (tmp_path / "a" / "configs" / "big.pbtxt").write_text("max_batch_size: 64")
    big = Repository(tmp_path, "big")
    assert [big.config(name).max_batch_size for name in ("a", "b")] == [64, 1]
    assert Repository(tmp_path, "small").config("a").max_batch_size == 1
