"""Configurations that are written are the ones that Triton's own schema reads back."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.servers.triton_config import (
    DATA_TYPES,
    DynamicBatching,
    InstanceGroup,
    ModelConfig,
    Step,
    Tensor,
    asked_settings,
    quoted,
    used_settings,
    write_model,
)

if TYPE_CHECKING:
    from pathlib import Path

model_config_pb2 = pytest.importorskip("tritonclient.grpc.model_config_pb2")
text_format = pytest.importorskip("google.protobuf.text_format")
json_format = pytest.importorskip("google.protobuf.json_format")

X = (Tensor("X", "FP32", (-1,)),)
Y = (Tensor("Y", "BYTES", (2, -1)),)
BATCHING = DynamicBatching(preferred_batch_size=(4, 8), max_queue_delay_us=3000)


def parsed(config: ModelConfig) -> Any:  # noqa: ANN401 -- a class that protobuf makes
    """What Triton's schema makes of it."""
    return text_format.Parse(config.to_pbtxt(), model_config_pb2.ModelConfig())


def told(config: ModelConfig) -> dict[str, Any]:
    """The same as the server tells it."""
    found: dict[str, Any] = json_format.MessageToDict(
        parsed(config), preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return found


def test_every_field_is_read_back() -> None:
    """Each argument ends up in the field of that name."""
    config = ModelConfig(
        "core",
        (Tensor("X", "FP32", (-1, 3), optional=True),),
        Y,
        max_batch_size=8,
        dynamic_batching=DynamicBatching((4, 8), 3000, preserve_ordering=True),
        instances=(InstanceGroup("CPU", 2), InstanceGroup("GPU", 1, (0, 1))),
        parameters={"a": "b"},
        text='version_policy { all {} }\nmodel_warmup { name: "w" }',
    )
    model = parsed(config)
    assert (model.name, model.backend, model.platform, model.max_batch_size) == ("core", "python", "", 8)
    taken = model.input[0]
    assert (taken.name, taken.data_type, list(taken.dims), taken.optional) == ("X", 11, [-1, 3], True)
    assert (model.output[0].data_type, list(model.output[0].dims)) == (13, [2, -1])
    batching = model.dynamic_batching
    assert (list(batching.preferred_batch_size), batching.max_queue_delay_microseconds) == ([4, 8], 3000)
    assert batching.preserve_ordering
    groups = [(group.Kind.Name(group.kind), group.count, list(group.gpus)) for group in model.instance_group]
    assert groups == [("KIND_CPU", 2, []), ("KIND_GPU", 1, [0, 1])]
    assert model.parameters["a"].string_value == "b"
    assert model.version_policy.HasField("all")
    assert model.model_warmup[0].name == "w"


def test_an_ensemble_is_read_back() -> None:
    """Its steps are there with their maps; it has a platform, beside which Triton refuses a backend."""
    model = parsed(ModelConfig("chain", X, Y, steps=(Step("pre", {"A": "X"}, {"B": "Y"}, version=2),)))
    (step,) = model.ensemble_scheduling.step
    assert (model.platform, model.backend, step.model_name, step.model_version) == ("ensemble", "", "pre", 2)
    assert (dict(step.input_map), dict(step.output_map)) == ({"A": "X"}, {"B": "Y"})
    model = parsed(ModelConfig("m", X, Y, platform="onnxruntime_onnx"))
    assert (model.platform, model.backend) == ("onnxruntime_onnx", "")


def test_every_data_type_is_one_of_tritons() -> None:
    """The names of the types are those of the schema; strings are called so there."""
    names = set(model_config_pb2.DataType.keys()) - {"TYPE_INVALID"}
    assert {f"TYPE_{name}".replace("BYTES", "STRING") for name in DATA_TYPES} == names


@given(st.text(), st.dictionaries(st.text(), st.text(), max_size=3))
def test_any_text_survives_the_quoting(tensor: str, parameters: dict[str, str]) -> None:
    """Names and values of any characters are read back, each on a line of its own; half a character is refused."""
    config = ModelConfig("m", (Tensor(tensor, "INT8", (1,)),), (), parameters=parameters)
    model = parsed(config)
    assert model.input[0].name == tensor
    assert {name: value.string_value for name, value in model.parameters.items()} == parameters
    assert len(config.to_pbtxt().splitlines()) == 5 + len(parameters)
    with pytest.raises(UsageProblem, match="no text that a configuration can hold"):
        quoted("\ud800")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": "a/b"}, "no slash"),
        ({"name": ".."}, "no slash"),
        ({"inputs": (Tensor("X", "FLOAT", (1,)),)}, "X has data type 'FLOAT'"),
        ({"max_batch_size": -1}, "below 0"),
        ({"dynamic_batching": BATCHING}, "needs max_batch_size="),
        ({"dynamic_batching": BATCHING, "max_batch_size": 7}, r"\(4, 8\) is not within 1..7"),
        ({"dynamic_batching": DynamicBatching((0,)), "max_batch_size": 7}, "is not within 1..7"),
        ({"dynamic_batching": DynamicBatching((), -1), "max_batch_size": 7}, "max_queue_delay_us=-1 is below 0"),
        ({"instances": (InstanceGroup("CPU", 0),)}, "at least one instance"),
        ({"steps": (Step("a", {}, {}),), "instances": (InstanceGroup(),)}, "an ensemble has no"),
        (
            {"steps": (Step("a", {}, {}),), "dynamic_batching": BATCHING, "max_batch_size": 8},
            "an ensemble has no",
        ),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any], message: str) -> None:
    """Contradictions are told when the configuration is made, not by a server that does not start."""
    with pytest.raises(UsageProblem, match=message):
        ModelConfig(**{"name": "m", "inputs": X, "outputs": Y, **wrong})


def test_a_model_is_laid_out(tmp_path: Path) -> None:
    """Configuration, code and copied weights are where Triton looks for them; no path leads out of their folder."""
    weights = tmp_path / "weights.bin"
    weights.write_bytes(b"\x00\x01")
    config = ModelConfig("m", X, Y)
    folder = write_model(tmp_path / "models", config, {"model.py": "# größer\n", "data/w.bin": weights}, version=3)
    assert folder == tmp_path / "models" / "m"
    assert (folder / "config.pbtxt").read_text() == config.to_pbtxt()
    assert (folder / "3" / "model.py").read_text(encoding="utf-8") == "# größer\n"
    assert (folder / "3" / "data" / "w.bin").read_bytes() == b"\x00\x01"
    assert not (folder / "3" / "data" / "w.bin").is_symlink()
    ensemble = ModelConfig("e", X, Y, steps=(Step("m", {}, {}),))
    assert (write_model(tmp_path / "models", ensemble) / "1").is_dir()
    for name in ("../model.py", "/model.py", "", "a/../../b"):
        with pytest.raises(UsageProblem, match="no path in the folder of its version"):
            write_model(tmp_path, config, {name: "x"})


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"max_batch_size": 8, "dynamic_batching": BATCHING, "instances": (InstanceGroup("CPU", 3),)},
        {"max_batch_size": 8, "dynamic_batching": DynamicBatching()},
        {"max_batch_size": 2, "instances": (InstanceGroup("GPU", 1, (0, 2)), InstanceGroup("MODEL"))},
        {"max_batch_size": 2, "steps": (Step("a", {}, {}),)},
    ],
)
def test_asked_and_used_are_the_same_words(given: dict[str, Any]) -> None:
    """What a file asks for equals what a server says that was given just that."""
    config = ModelConfig("m", X, Y, **given)
    used, asked = used_settings(told(config)), asked_settings(config.to_pbtxt())
    assert asked == config.asked()
    assert {name: used[name] for name in asked} == asked


def test_what_nobody_asked_for_is_not_asked_for() -> None:
    """Instances and GPUs of Triton's own choice; all of a file that was edited, or has lost our first line."""
    for instances in ((), (InstanceGroup("AUTO"),), (InstanceGroup("GPU"),)):
        assert "instances" not in ModelConfig("m", X, Y, instances=instances).asked()
    text = ModelConfig("m", X, Y, max_batch_size=8).to_pbtxt()
    assert asked_settings(text)["max_batch_size"] == "8"
    edited = text.replace("max_batch_size: 8", "max_batch_size: 4"), text.replace('"of"', "of")
    for other in (*edited, re.sub(r"^.*\n", "", text), "# asked for []\n", ""):
        assert asked_settings(other) == {}


def test_a_configuration_that_makes_no_sense_is_an_error() -> None:
    """What is no configuration is not taken for one with other settings."""
    batches: dict[str, object] = {"max_batch_size": 1}
    for config in (
        {},
        {"max_batch_size": "many"},
        {"max_batch_size": True},
        {**batches, "dynamic_batching": []},
        {**batches, "instance_group": [{"kind": "KIND_CPU"}]},
        {**batches, "instance_group": {}},
    ):
        with pytest.raises((LookupError, TypeError, ValueError)):
            used_settings(config)
