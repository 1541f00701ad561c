"""The codegen suite's analyses of counters, its model repository, its request and its network, without a server."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_gpuserve.load.kserve import HEADER_LENGTH, Inference, http_request, tensors_of
from pytest_gpuserve.measure.counters import Counters, StageTime
from pytest_gpuserve.measure.window import QUEUE
from pytest_gpuserve.servers.triton_config import ModelConfig, Repository
from suites.codegen.analysis import (
    INFER,
    mean_batch,
    mean_queue_us,
    share_by_request,
    unexplained_seconds,
)
from suites.codegen.apps import generation, serving
from suites.codegen.apps.byte_tokenizer import load_tokenizer
from suites.codegen.apps.generation import Prompt, generate
from suites.codegen.apps.gptj import SIZES, GptJ, build_model
from suites.codegen.reference import RightAnswer, expected, right_answer
from suites.codegen.repository import ENSEMBLE, FOLDER, GENERATION, POSTPROCESSING, PREPROCESSING, STEPS
from suites.codegen.request import BINARY_BYTES, JSON_BYTES, request_tensors
from suites.published import records_of

pytestmark = pytest.mark.usefixtures("one_thread")

PRINTED = {
    8: ("2.73", "0.83", 19.1677),
    32: ("0.76", "0.26", 19.7297),
    128: ("0.16", "0.08", 12.7440),
    512: ("0.06", "0.06", 15.4473),
}
"""By output length: shares of pre- and postprocessing in percent, and what count / exec_count comes to."""


def published_parts(output_len: int) -> dict[str, Counters]:
    """The counters that were printed for an output length."""
    parts = {}
    for entry in records_of("codegen")["A100-SXM4-80GB"]:
        keys, counted = entry["keys"], entry["counters"]
        if keys["record_kind"] == "triton_metrics" and keys["output_len"] == output_len:
            requests = counted["nv_inference_count"]
            seconds = counted["nv_inference_compute_infer_duration_us"] / 1e6
            parts[keys["model"]] = Counters(
                items=requests,
                batches=counted["nv_inference_exec_count"],
                stages={INFER: StageTime(seconds, requests)},
                requests=requests,
            )
    return parts


def printed_as(percent: float) -> set[str]:
    """Forms in which a percentage may be printed with two digits: rounded, or cut off as some published ones are."""
    return {f"{percent:.2f}", f"{math.floor(percent * 100) / 100:.2f}"}


@pytest.mark.parametrize("output_len", PRINTED)
def test_published_counters_give_the_published_shares(output_len: int) -> None:
    """Each of the eight published percentages is the share by request, rounded or cut off.

    The generating model alone batches; all but about a microsecond of each request of the ensemble is its steps'.
    """
    parts = published_parts(output_len)
    assert set(parts) == {*STEPS, ENSEMBLE}
    preprocessing, postprocessing, batch = PRINTED[output_len]
    assert preprocessing in printed_as(100 * share_by_request(parts, PREPROCESSING))
    assert postprocessing in printed_as(100 * share_by_request(parts, POSTPROCESSING))
    assert mean_batch(parts[GENERATION]) == pytest.approx(batch, abs=1e-4)
    assert {mean_batch(part) for name, part in parts.items() if name != GENERATION} == {1.0}
    assert unexplained_seconds(parts) == pytest.approx(1.0e-6, rel=0.02)


def test_queue_time_is_the_autoscalers_formula() -> None:
    """The mean over the four models of 440 000 us / (1 + 10) and three zeros; without any request it is finite."""
    queues = {PREPROCESSING: (10, 0.0), GENERATION: (10, 0.44), POSTPROCESSING: (10, 0.0), ENSEMBLE: (10, 0.0)}
    for parts, microseconds in ((queues, 440_000 / 11 / 4), ({"m": (0, 0.002)}, 2000)):
        counted = {
            name: Counters(count, count, stages={QUEUE: StageTime(seconds, count)}, requests=count)
            for name, (count, seconds) in parts.items()
        }
        assert mean_queue_us(counted) == pytest.approx(microseconds)


def config(name: str) -> ModelConfig:
    """Configuration of a model."""
    pytest.importorskip("tritonclient.grpc")
    return Repository(FOLDER).config(name)


def datatype(tensor: Any) -> str:  # noqa: ANN401 -- a generated class
    """Datatype by the name that requests use."""
    name: str = tensor.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number[tensor.data_type].name
    return {"TYPE_STRING": "BYTES"}.get(name, name.removeprefix("TYPE_"))


def test_the_repository_has_the_published_models() -> None:
    """Each model is named like its folder and has a version; there is no other model."""
    for name in (*STEPS, ENSEMBLE):
        assert config(name).name == name
        assert (FOLDER / name / "1").is_dir()
    assert {folder.name for folder in FOLDER.iterdir()} == {*STEPS, ENSEMBLE}


def test_request_has_the_published_bytes() -> None:
    """The request's tensors take 78 bytes, and tritonclient's form of them 1521."""
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
    """A checkpoint's ``tokenizer.json`` is used; a folder without one is refused by name."""
    tokenizers = pytest.importorskip("tokenizers")
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"fox": 0, "?": 1}, unk_token="?"))
    made.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path).encode("fox") == [0]
    assert load_tokenizer(tmp_path).decode([0]) == "fox"


def test_variables_are_checked_and_have_defaults(tmp_path: Path) -> None:
    """Without variables the full model is served with random weights; a folder's model is served if one is named.

    An unknown value is an error that names the variable, so no other model is served unnoticed.
    """
    assert serving.chosen(serving.SIZE, ("full", "small"), {}) == "full"
    assert serving.slowdown({}) == 0
    assert serving.checkpoint({}) is None
    assert serving.checkpoint({serving.CHECKPOINT: str(tmp_path)}) == tmp_path.resolve()
    with pytest.raises(ValueError, match=r"CODEGEN_[A-Z]+ is 'huge'"):
        serving.chosen(serving.SIZE, ("full", "small"), {serving.SIZE: "huge"})
    with pytest.raises(ValueError, match=r"CODEGEN_[A-Z]+ is 'nan'"):
        serving.slowdown({serving.SLOWDOWN: "nan"})
    with pytest.raises(ValueError, match=r"CODEGEN_[A-Z]+ is '/nonexistent'"):
        serving.checkpoint({serving.CHECKPOINT: "/nonexistent"})


@pytest.fixture(scope="module")
def model() -> GptJ:
    """The small model."""
    return build_model("small")


def prompt(*ids: int, output_len: int = 12, **options: object) -> Prompt:
    """A prompt with the published request's sampling, and the given changes."""
    published = generation.Prompt(
        ids, output_len, top_k=3, top_p=0.92, temperature=0.5, repetition_penalty=1.1, seed=42
    )
    return replace(published, **options)  # type: ignore[arg-type] # of any of its fields


def hidden_of(model: GptJ, ids: torch.Tensor) -> torch.Tensor:
    """Hidden states of all tokens; each sees the ones before it."""
    count = ids.shape[1]
    places = torch.arange(count)
    mask = (places[None, :] <= places[:, None])[None, None]
    return model(ids, places.expand(*ids.shape), mask, model.new_cache(ids.shape[0], count))


def test_full_size_has_the_published_number_of_parameters() -> None:
    """CodeGen-350M as GPT-J has 356 712 448 parameters, and the dimensions of the published model."""
    with torch.device("meta"):
        full = build_model("full")
    assert sum(parameter.numel() for parameter in full.parameters()) == 356_712_448
    shape = SIZES["full"]
    assert (shape.layers, shape.dim, shape.heads, shape.rotary, shape.context) == (20, 1024, 16, 32, 2048)
    assert shape.vocabulary == 51_200


def test_network_is_gptj(model: GptJ) -> None:
    """With the same weights, transformers' GPTJForCausalLM gives the same logits for the same tokens."""
    transformers = pytest.importorskip("transformers")
    shape = SIZES["small"]
    config = transformers.GPTJConfig(
        vocab_size=shape.vocabulary,
        n_positions=shape.context,
        n_embd=shape.dim,
        n_layer=shape.layers,
        n_head=shape.heads,
        rotary_dim=shape.rotary,
        activation_function="gelu_new",
    )
    theirs = transformers.GPTJForCausalLM(config).eval()
    left = theirs.load_state_dict(model.state_dict(), strict=False)
    assert not left.unexpected_keys
    assert not [name for name in left.missing_keys if "attn" not in name or "proj" in name]
    ids = torch.arange(3, 63).reshape(2, 30)
    with torch.inference_mode():
        ours = model.lm_head(hidden_of(model, ids))
        assert (ours - theirs(ids).logits).abs().max().item() < 1e-4
    assert ours.std().item() > 0.5


def test_cache_changes_nothing(model: GptJ) -> None:
    """Tokens generated with the cache are the likeliest ones of a run over all tokens at once."""
    (answer,) = generate(model, [prompt(5, 6, 7, output_len=20, top_k=1, temperature=1.0, repetition_penalty=1.0)])
    with torch.inference_mode():
        log_probs = model.lm_head(hidden_of(model, torch.tensor([answer.ids]))).log_softmax(dim=-1)[0, 2:-1]
    best = log_probs.max(dim=-1)
    assert tuple(best.indices.tolist()) == answer.ids[3:]
    assert answer.log_probs == pytest.approx(best.values.tolist(), abs=1e-4)


def test_right_answer_tells_wrong_ones() -> None:
    """A whole answer must be exact; for the full model it is enough to begin right, within the length."""
    from pytest_gpuserve.load.kserve import datatype_of, raw_bytes

    np = pytest.importorskip("numpy")

    def body(text: str, tokens: int) -> bytes:
        texts, lengths = np.array([[[text]]], dtype=object), np.array([[tokens]], dtype=np.uint32)
        outputs, binary = [], b""
        for name, each in {"OUTPUT_0": texts, "sequence_length": lengths}.items():
            size = {"binary_data_size": len(raw_bytes(each))}
            outputs.append({"name": name, "datatype": datatype_of(each), "shape": each.shape, "parameters": size})
            binary += raw_bytes(each)
        return json.dumps({"outputs": outputs}).encode() + binary

    right = right_answer(8, size="small")
    known = expected(size="small").text
    assert right.whole
    assert right(body(known, 12))
    begins = RightAnswer("def", 12, whole=False)
    assert begins(body("defg", 11))
    for check, text, tokens in ((right, known + "x", 12), (right, known, 11), (begins, "de", 11), (begins, "def", 13)):
        with pytest.raises(AssertionError):
            check(body(text, tokens))
