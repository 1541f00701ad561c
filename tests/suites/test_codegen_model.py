"""The codegen suite's network, and how it generates."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from suites.codegen.reference import RightAnswer, expected, right_answer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from suites.codegen.apps.generation import Prompt
    from suites.codegen.apps.gptj import GptJ

torch = pytest.importorskip("torch")

from suites.codegen.apps import generation, gptj  # noqa: E402 -- they need torch
from suites.codegen.apps.generation import check_prompt, generate  # noqa: E402
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


def test_answer_does_not_depend_on_the_batch(model: GptJ) -> None:
    """Prompts of any lengths, lengths of answers and ways to choose get together what they get alone."""
    ways: list[dict[str, Any]] = [{"seed": 7}, {"repetition_penalty": 2.0}]
    ways += [{"top_k": 0, "top_p": 0.5, "temperature": 2.0}, {"top_k": 0, "top_p": 0.0}]
    prompts = [prompt(1, 2, 3, 4), prompt(9, output_len=30), prompt(), prompt(*range(40), output_len=1)]
    prompts += [*(prompt(7, 8, **way) for way in ways), prompt(1, 2, 3, 4)]
    together = generate(model, prompts)
    alone = [generate(model, [each])[0] for each in prompts]
    assert [each.ids for each in together] == [each.ids for each in alone]
    for ours, theirs in zip(together, alone, strict=True):
        assert ours.log_probs == pytest.approx(theirs.log_probs, abs=1e-4)
    assert together[0].ids == together[-1].ids
    assert len({each.ids for each in together}) == len(prompts) - 1


def test_an_answer_that_ends_with_the_context_does_not_fail_its_batch(model: GptJ) -> None:
    """A prompt whose answer just fits gets it beside one whose answer is longer, and so goes on behind the context."""
    full = prompt(*(number % 100 for number in range(model.shape.context - 4)), output_len=4)
    long = prompt(5, output_len=12)
    together = generate(model, [full, long])
    assert [each.ids for each in together] == [generate(model, [each])[0].ids for each in (full, long)]


def test_a_seed_is_repeatable_and_its_beginning_the_same_at_any_length(model: GptJ) -> None:
    """A seed gives its text, longer answers begin as shorter ones do, and seeds differ."""
    short, long = (generate(model, [prompt(1, 2, output_len=length)])[0].ids for length in (8, 80))
    assert long[: len(short)] == short
    assert len({generate(model, [prompt(1, 2, seed=seed)])[0].ids for seed in range(10)}) > 5


def test_sampling_has_the_right_probabilities(model: GptJ) -> None:
    """Of 3000 seeds the first tokens are the top three, as often as their probabilities say (chi-squared)."""
    draws = 3000
    answers = generate(model, [prompt(1, 2, output_len=1, seed=seed, top_p=1.0) for seed in range(draws)])
    seen = Counter(answer.ids[-1] for answer in answers)
    probability = {answer.ids[-1]: math.exp(answer.log_probs[0]) for answer in answers}
    assert len(probability) == 3
    due = {token: draws * each / sum(probability.values()) for token, each in probability.items()}
    # With two degrees of freedom 27.6 is passed once in a million; the seeds are always the same.
    assert sum((seen[token] - each) ** 2 / each for token, each in due.items()) < 27.6


def test_top_p_cuts_the_tail(model: GptJ) -> None:
    """With a small top_p only the likeliest token is ever drawn; with 1 others are."""
    for top_p, several in ((0.01, False), (1.0, True)):
        answers = generate(model, [prompt(1, output_len=1, top_p=top_p, seed=seed) for seed in range(40)])
        assert (len({answer.ids for answer in answers}) > 1) is several


def test_repetition_penalty_is_the_usual_one(model: GptJ) -> None:
    """Of tokens that occurred, scores above 0 are divided and scores below it multiplied, as transformers does.

    With a strong penalty no token comes twice where without one some do.
    """
    transformers = pytest.importorskip("transformers")
    ids = torch.arange(200)[None]
    with torch.inference_mode():
        logits = model.lm_head(hidden_of(model, ids))[:, -1] / 0.5
        wanted = transformers.RepetitionPenaltyLogitsProcessor(3.0)(ids, logits).log_softmax(dim=-1)
    (answer,) = generate(model, [prompt(*range(200), output_len=1, top_k=1, repetition_penalty=3.0)])
    assert answer.log_probs[0] == pytest.approx(wanted[0, answer.ids[-1]].item(), abs=1e-4)
    free, bound = (
        generate(model, [prompt(1, output_len=100, temperature=0.1, repetition_penalty=penalty)])[0].ids
        for penalty in (1.0, 100.0)
    )
    assert len(set(free)) < len(free)
    assert len(set(bound)) == len(bound)


def test_answer_ends_with_the_end_and_with_stop_words(model: GptJ) -> None:
    """The end token or the last of a stop word is an answer's last token; others of the batch go on."""
    (whole,) = generate(model, [prompt(1, 2, output_len=20)])
    new = whole.ids[2:]
    ends: list[dict[str, object]] = [{"end_id": new[4]}, {"stop_words": ((0,), new[5:8])}, {"stop_words": ((1, 2),)}]
    ended, stopped, untouched = generate(model, [prompt(1, 2, output_len=20, **end) for end in ends])
    assert ended.ids == whole.ids[: 2 + new.index(new[4]) + 1]
    assert stopped.ids == whole.ids[:10]
    assert len(stopped.log_probs) == 8
    assert untouched.ids == whole.ids


def test_bad_words_are_not_generated(model: GptJ) -> None:
    """Neither a single token nor two in a row that would have come; the second alone may."""
    (whole,) = generate(model, [prompt(1, 2)])
    single, pair = whole.ids[4:5], whole.ids[4:6]
    one, two = generate(model, [prompt(1, 2, bad_words=(single,)), prompt(1, 2, bad_words=(pair,))])
    assert single[0] not in one.ids[2:]
    assert two.ids[:5] == whole.ids[:5]
    assert two.ids[5] != pair[1]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (prompt(512), "not within the model's 512"),
        (prompt(start_id=600), "not within the model's 512"),
        (prompt(1, output_len=0), "below 1"),
        (prompt(1, output_len=2048), "2049 tokens, above 2048"),
        (prompt(1, temperature=0.0), "above 0"),
        (prompt(1, temperature=math.nan), "above 0"),
        (prompt(1, repetition_penalty=-1.0), "above 0"),
        (prompt(1, top_p=1.1), "not within 0..1"),
    ],
)
def test_what_cannot_be_answered_is_told(wrong: Prompt, message: str) -> None:
    """Each mistake is named before it reaches the model."""
    shape = SIZES["small"]
    check_prompt(prompt(1), shape.vocabulary, shape.context)
    with pytest.raises(ValueError, match=message):
        check_prompt(wrong, shape.vocabulary, shape.context)


def test_saved_weights_are_served_as_they_are(tmp_path: Path, digest: Callable[[Any], str]) -> None:
    """Without the masks that old files have; those of another size are refused."""
    other, file = build_model("small", seed=3), tmp_path / gptj.CHECKPOINT_FILE
    weights = other.state_dict()
    torch.save({**weights, "transformer.h.0.attn.bias": torch.ones(1)}, file)
    assert digest(build_model("small", checkpoint=tmp_path)) == digest(other)
    del weights["lm_head.bias"]
    torch.save(weights, file)
    with pytest.raises(RuntimeError, match=r"lm_head\.bias"):
        build_model("small", checkpoint=tmp_path)


def test_half_precision_is_served(model: GptJ) -> None:
    """With fp16 an answer comes, and its first log probability is that of fp32 within the rounding."""
    half = build_model("small", precision="fp16")
    assert {parameter.dtype for parameter in half.parameters()} == {torch.float16}
    (ours,), (theirs,) = (generate(each, [prompt(1, 2, top_k=1)]) for each in (half, model))
    assert ours.log_probs[0] == pytest.approx(theirs.log_probs[0], abs=0.05)


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
