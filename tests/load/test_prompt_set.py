"""Prompts: the same by the same seed, and as long as they should be."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.load import LogNormal, Uniform, prompts

if TYPE_CHECKING:
    from pathlib import Path

UNTYPED: Any = prompts


def test_the_same_seed_makes_the_same_prompts() -> None:
    """And another one others."""
    made = prompts(5, seed=1)
    assert made == prompts(5, seed=1)
    assert made != prompts(5, seed=2)
    assert len({prompt.text for prompt in made.each}) == 5


def test_lengths_are_as_asked_for() -> None:
    """Words and the four tokens of a number; the shared prefix comes on top, and is one for all."""
    made = prompts(400, input_tokens=Uniform(20, 40), output_tokens=LogNormal(mean=200, sd=100), shared_prefix=11)
    words = [len(prompt.text.split()) + 4 for prompt in made.each]
    assert (min(words), max(words)) == (20, 40)
    outputs = [prompt.output_tokens for prompt in made.each]
    assert statistics.fmean(outputs) == pytest.approx(200, rel=0.1)
    assert statistics.stdev(outputs) == pytest.approx(100, rel=0.25)
    assert len(made.shared_prefix.split()) == 11
    assert made.text(made.each[0]).startswith(f"{made.shared_prefix} 0000000000 ")


def test_a_tokenizer_counts(tmp_path: Path) -> None:
    """By the model's own file, or its folder, whole inputs have the requested numbers of tokens."""
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.WordLevel({"[UNK]": 0, "the": 1}, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    # Words take from two tokens, with the space before them, to several.
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split(
        tokenizers.Regex(r"[a-e]|[0-9]|[^a-e0-9 ]+| "), "isolated"
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    made = prompts(20, input_tokens=100, tokenizer=tmp_path)
    assert made == prompts(20, input_tokens=100, tokenizer=tmp_path / "tokenizer.json")
    lengths = {len(tokenizer.encode(f"4827306915 {prompt.text}").ids) for prompt in made.each}
    assert max(lengths) <= 100
    assert min(lengths) >= 97


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"n": 0}, "prompts(n) must be a whole number from 1"),
        ({"n": 1, "input_tokens": 15}, "input_tokens=...) must be a whole number from 16"),
        ({"n": 1, "input_tokens": Uniform(1, 20)}, "from 16 to 1000000, not 1"),
        ({"n": 1, "output_tokens": 0}, "from 1"),
        ({"n": 1, "output_tokens": Uniform(1, 20.5)}, "from 1 to 1000000, not 20.5"),
        ({"n": 1, "turns": 0}, "turns"),
        ({"n": 1, "think": -1}, "think"),
        ({"n": 1, "think": "2"}, "think=LogNormal(mean=5"),
        ({"n": 1, "output_tokens": "10"}, "not '10'"),
        ({"n": 1, "shared_prefix": -1}, "shared_prefix"),
        ({"n": 1, "tokenizer": "nowhere.json"}, "the model's tokenizer.json"),
    ],
)
def test_what_cannot_be_a_prompt_is_told(arguments: dict[str, Any], said: str) -> None:
    """With the range, or what helps."""
    with pytest.raises(UsageProblem) as caught:
        UNTYPED(**arguments)
    assert said in str(caught.value)


def test_turns_are_sent_with_all_that_was_said_before_them() -> None:
    """Turns come with answers of random words of the requested length, each after its pause."""
    made = prompts(30, input_tokens=20, output_tokens=7, turns=3, think=Uniform(0.5, 2.0))
    assert made == prompts(30, input_tokens=20, output_tokens=7, turns=3, think=Uniform(0.5, 2.0))
    first, second, third = made.each[:3]
    assert third.before[:3] == (first.text, second.before[1], second.text)
    assert [len(text.split()) for text in (*third.before, third.text)] == [16, 7, 20, 7, 20]
    assert [message["role"] for message in made.messages(third)] == ["user", "assistant", "user", "assistant", "user"]
    assert [message["content"] for message in made.messages(third)] == [
        f"0000000000 {first.text}",
        *third.before[1:],
        third.text,
    ]
    assert made.pauses[::3] == (None,) * 30
    pauses = [pause for pause in made.pauses if pause is not None]
    assert 0.5 <= min(pauses) < 0.7
    assert 1.8 < max(pauses) <= 2.0
    assert len(pauses) == 60
    assert prompts(2).pauses == ()
