"""The codegen suite's network, and how it generates."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from suites.codegen.reference import RightAnswer, expected, right_answer

if TYPE_CHECKING:
    from suites.codegen.apps.generation import Prompt
    from suites.codegen.apps.gptj import GptJ

torch = pytest.importorskip("torch")

from suites.codegen.apps import generation  # noqa: E402 -- they need torch
from suites.codegen.apps.generation import generate  # noqa: E402
from suites.codegen.apps.gptj import SIZES, build_model  # noqa: E402

Torch: TypeAlias = Any
"""A tensor, whose type a checker does not see."""


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def model() -> GptJ:
    """The small model."""
    return build_model("small")


def prompt(*ids: int, output_len: int = 12, **options: object) -> Prompt:
    """A prompt that is sampled as the published request is, unless said otherwise."""
    published = generation.Prompt(
        ids, output_len, top_k=3, top_p=0.92, temperature=0.5, repetition_penalty=1.1, seed=42
    )
    return replace(published, **options)  # type: ignore[arg-type] # of any of its fields


def hidden_of(model: GptJ, ids: Torch) -> Torch:
    """Hidden states of all tokens, each of which sees those before it."""
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
    """What is generated with the cache is what a run over all tokens at once says, each time, is the likeliest."""
    (answer,) = generate(model, [prompt(5, 6, 7, output_len=20, top_k=1, temperature=1.0, repetition_penalty=1.0)])
    with torch.inference_mode():
        log_probs = model.lm_head(hidden_of(model, torch.tensor([answer.ids]))).log_softmax(dim=-1)[0, 2:-1]
    best = log_probs.max(dim=-1)
    assert tuple(best.indices.tolist()) == answer.ids[3:]
    assert answer.log_probs == pytest.approx(best.values.tolist(), abs=1e-4)


def test_an_answer_that_ends_with_the_context_does_not_fail_its_batch(model: GptJ) -> None:
    """A prompt whose answer just fits gets it beside one whose answer is longer, and so goes on behind the context."""
    full = prompt(*(number % 100 for number in range(model.shape.context - 4)), output_len=4)
    long = prompt(5, output_len=12)
    together = generate(model, [full, long])
    assert [each.ids for each in together] == [generate(model, [each])[0].ids for each in (full, long)]


def test_right_answer_tells_wrong_ones() -> None:
    """A whole answer has to be exactly it; of the full model's it is enough to begin right, within the length."""
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
