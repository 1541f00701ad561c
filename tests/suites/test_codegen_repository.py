"""The codegen suite's model repository, its request, and what its models read of their environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuserve.load.kserve import HEADER_LENGTH, Inference, http_request, tensors_of
from pytest_gpuserve.servers.triton_config import Repository
from suites.codegen.apps import serving
from suites.codegen.apps.byte_tokenizer import load_tokenizer
from suites.codegen.repository import ENSEMBLE, FOLDER, STEPS
from suites.codegen.request import BINARY_BYTES, JSON_BYTES, request_tensors

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpuserve.servers.triton_config import ModelConfig


def config(name: str) -> ModelConfig:
    """A model's."""
    pytest.importorskip("tritonclient.grpc")
    return Repository(FOLDER).config(name)


def datatype(tensor: Any) -> str:  # noqa: ANN401 -- a generated class
    """As requests name it."""
    name: str = tensor.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number[tensor.data_type].name
    return {"TYPE_STRING": "BYTES"}.get(name, name.removeprefix("TYPE_"))


def test_the_repository_has_the_published_models() -> None:
    """Each model is named like its folder and has a version; there is no other model."""
    for name in (*STEPS, ENSEMBLE):
        assert config(name).name == name
        assert (FOLDER / name / "1").is_dir()
    assert {folder.name for folder in FOLDER.iterdir()} == {*STEPS, ENSEMBLE}


def test_request_has_the_published_bytes() -> None:
    """Its tensors take 78 bytes, and what tritonclient makes of them 1521 in all."""
    request = http_request(Inference(ENSEMBLE, tensors_of("input", request_tensors())))
    assert len(request.body) - int(request.headers[HEADER_LENGTH]) == BINARY_BYTES == 78
    client = pytest.importorskip("tritonclient.http")
    inputs = []
    for name, array in request_tensors().items():
        taken = next(each for each in config(ENSEMBLE).input if each.name == name)
        inputs.append(client.InferInput(name, list(array.shape), datatype(taken)))
        inputs[-1].set_data_from_numpy(array)
    body, json_bytes = client.InferenceServerClient.generate_request_body(inputs)
    assert (json_bytes, len(body)) == (JSON_BYTES, 1521)


def test_a_checkpoint_brings_its_vocabulary(tmp_path: Path) -> None:
    """Its ``tokenizer.json`` is taken; a folder without one is refused by name."""
    tokenizers = pytest.importorskip("tokenizers")
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"fox": 0, "?": 1}, unk_token="?"))
    made.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path).encode("fox") == [0]
    assert load_tokenizer(tmp_path).decode([0]) == "fox"


def test_variables_are_checked_and_have_defaults(tmp_path: Path) -> None:
    """Without any the full model is served, with random weights and no slowdown; with a folder, that of it.

    A value that is none of the known ones names the variable, so that no other model is served quietly.
    """
    assert serving.chosen(serving.SIZE, ("full", "small"), {}) == "full"
    assert serving.slowdown({}) == 0
    assert serving.checkpoint({}) is None
    assert serving.checkpoint({serving.CHECKPOINT: str(tmp_path)}) == tmp_path.resolve()
    with pytest.raises(ValueError, match=r"CODEGEN_[A-Z]+ is 'huge'"):
        serving.chosen(serving.SIZE, ("full", "small"), {serving.SIZE: "huge"})
    for value in ("nan", "-1", "much"):
        with pytest.raises(ValueError, match=rf"CODEGEN_[A-Z]+ is '{value}'"):
            serving.slowdown({serving.SLOWDOWN: value})
    with pytest.raises(ValueError, match=r"CODEGEN_[A-Z]+ is '/nonexistent'"):
        serving.checkpoint({serving.CHECKPOINT: "/nonexistent"})
