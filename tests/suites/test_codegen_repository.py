"""The codegen suite's model repository, its request, and what its models read of their environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.load.kserve import HEADER_LENGTH, Inference, datatype_of, http_request, tensors_of
from pytest_gpuserve.servers.triton_config import Repository
from suites.codegen.apps import serving
from suites.codegen.apps.byte_tokenizer import END_ID, ByteTokenizer, load_tokenizer
from suites.codegen.apps.word_lists import from_array, to_arrays
from suites.codegen.repository import ENSEMBLE, FOLDER, GENERATION, STEPS
from suites.codegen.request import BINARY_BYTES, HELLO, JSON_BYTES, OPTION_NAMES, OUTPUTS, START_ID, request_tensors

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


def test_steps_fit_together() -> None:
    """Each input of each step is an input of the ensemble or an output of a step before it, of the same type.

    The generating model alone batches, as in the published counters, where the others' executions are their requests.
    """
    ensemble = config(ENSEMBLE)
    known = {tensor.name: tensor.data_type for tensor in ensemble.input}
    for step in ensemble.ensemble_scheduling.step:
        model = config(step.model_name)
        for tensor in model.input:
            assert known[step.input_map[tensor.name]] == tensor.data_type
        known |= {step.output_map[tensor.name]: tensor.data_type for tensor in model.output}
    for tensor in ensemble.output:
        assert known[tensor.name] == tensor.data_type
    assert tuple(step.model_name for step in ensemble.ensemble_scheduling.step) == STEPS
    assert [name for name in (*STEPS, ENSEMBLE) if config(name).HasField("dynamic_batching")] == [GENERATION]
    assert {config(name).max_batch_size for name in (*STEPS, ENSEMBLE)} == {1024}


def test_request_is_the_ensembles_contract() -> None:
    """Fifteen tensors by the names and types of the ensemble, eleven of which it may be asked without.

    Of five prompts every tensor has five rows, with the same options in each.
    """
    ensemble, inputs = config(ENSEMBLE), tensors_of("input", request_tensors())
    assert len(inputs) == 15
    assert {name: datatype_of(each) for name, each in inputs.items()} == {
        each.name: datatype(each) for each in ensemble.input
    }
    assert tuple(each.name for each in ensemble.input if each.optional) == OPTION_NAMES
    assert tuple(each.name for each in ensemble.output) == OUTPUTS
    tensors = request_tensors([HELLO] * 5, top_k=9)
    assert {array.shape for array in tensors.values()} == {(5, 1)}
    assert tensors["runtime_top_k"].tolist() == [[9]] * 5


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


def test_start_is_a_space_and_the_prompt_four_tokens() -> None:
    """Bytes have GPT-2's ids, in which the published start is the space; the published prompt is as long as there.

    The end of text is nothing, half a character a replacement, and a token of the real vocabulary its number.
    """
    tokenizer = ByteTokenizer()
    assert len(tokenizer) == 512
    assert tokenizer.encode(" ~ ") == [START_ID, 93, START_ID]
    assert [tokenizer.decode([token]) for token in tokenizer.encode(HELLO)] == ["def", " hello", "world", "():"]
    half = tokenizer.encode("é")[:1]
    assert tokenizer.decode([*half, 51_199, END_ID, END_ID]) == "�<51199>"


@given(st.text())
def test_any_text_survives_the_tokenizer(text: str) -> None:
    """What is encoded is decoded to the same text, and its ids are those of the small model."""
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert all(0 <= token < 512 for token in ids)


def test_a_checkpoint_brings_its_vocabulary(tmp_path: Path) -> None:
    """Its ``tokenizer.json`` is taken; a folder without one is refused by name."""
    tokenizers = pytest.importorskip("tokenizers")
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"fox": 0, "?": 1}, unk_token="?"))
    made.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path).encode("fox") == [0]
    assert load_tokenizer(tmp_path).decode([0]) == "fox"


def test_word_lists_have_fastertransformers_layout() -> None:
    """Ids of all words, and where each ends, padded with 0 and -1 to the longest list of the batch."""
    array = to_arrays(["ab,c", "", '"a,b"'], lambda word: [ord(letter) for letter in word])
    assert array.dtype == np.int32
    ids = [[97, 98, 99], [0, 0, 0], [97, 44, 98]]
    ends = [[2, 3, -1], [-1, -1, -1], [3, -1, -1]]
    assert array.tolist() == [list(pair) for pair in zip(ids, ends, strict=True)]
    assert [from_array(row) for row in array] == [((97, 98), (99,)), (), ((97, 44, 98),)]
    assert to_arrays([""], lambda _: []).shape == (1, 2, 1)


@given(st.lists(st.lists(st.text("abc ,", min_size=1, max_size=4), max_size=4), min_size=1, max_size=4))
def test_words_survive_their_arrays(rows: list[list[str]]) -> None:
    """Any lists of words, quoted where they have commas, come back as they were."""
    encode = ByteTokenizer().encode
    array = to_arrays([",".join(f'"{word}"' for word in words) for words in rows], encode)
    assert [from_array(row) for row in array] == [tuple(tuple(encode(word)) for word in words) for words in rows]


def test_word_lists_that_make_no_sense_are_refused() -> None:
    """Ends that fall, stay, or are beyond the ids name themselves."""
    for ends in ([2, 1], [4, -1], [1, 1]):
        with pytest.raises(ValueError, match="words end at"):
            from_array(np.array([[5, 6], ends]))


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
