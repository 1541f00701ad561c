"""The DistilBERT suite's model, tokenizer and reference, without a load."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from suites.distilbert import payload
from suites.distilbert.apps import distilbert_model
from suites.distilbert.apps.distilbert_model import MAX_TOKENS, PAD_ID, SIZES, Classifier, build_model, load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable

APPS = Path(distilbert_model.__file__).parent
FOX = payload.FOX.decode()
SENTENCES = [text.decode() for text in payload.SENTENCES]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def encode() -> Callable[[str], list[int]]:
    """The tokenizer with the shipped vocabulary."""
    return load_tokenizer()


@pytest.fixture(scope="module")
def small() -> Classifier:
    """The small model on the CPU."""
    return Classifier("small", device="cpu")


def test_fox_sentence_is_eleven_tokens(encode: Callable[[str], list[int]]) -> None:
    """The nine words are whole tokens between [CLS] and [SEP], whatever their case: 11 ids, as in the source.

    A made-up ASCII word needs no [UNK], and no text is longer than the model's positions.
    """
    vocabulary = (APPS / "vocab.txt").read_text(encoding="utf-8").splitlines()
    tokens = [vocabulary[index] for index in encode(FOX)]
    assert tokens == ["[CLS]", *FOX.lower().split(), "[SEP]"]
    assert len(tokens) == 11
    assert vocabulary.index("[UNK]") not in encode("Zyqwlm 4711!")
    assert len(encode("word " * 2000)) == MAX_TOKENS
    # Every size has a row for every token, each of which stands there once.
    assert len(set(vocabulary)) == len(vocabulary) <= min(shape.vocabulary for shape in SIZES.values())
    assert vocabulary[PAD_ID] == "[PAD]"


def test_full_size_has_the_published_number_of_parameters() -> None:
    """The full configuration is distilbert-base with two labels: 66 955 010 parameters."""
    import torch

    with torch.device("meta"):
        model = build_model("full")
    assert sum(parameter.numel() for parameter in model.parameters()) == 66_955_010


@pytest.mark.parametrize("size", SIZES)
def test_both_labels_occur_and_the_fox_is_decided(size: str, encode: Callable[[str], list[int]]) -> None:
    """A constant answer cannot pass for a right one, and rounding cannot turn a label that the suite expects."""
    classifier = Classifier(size, device="cpu")
    logits = classifier.logits([encode(text) for text in SENTENCES])
    margins = logits[:, 1] - logits[:, 0]
    assert margins.abs().min().item() > 0.1
    assert margins.min().item() < 0 < margins.max().item()


def test_checkpoint_brings_its_own_weights_and_vocabulary(tmp_path: Path) -> None:
    """A saved folder is served as it is, and one without a vocabulary is refused by name."""
    from torch.nn.utils import parameters_to_vector

    model = build_model("small", 3)
    model.save_pretrained(tmp_path)
    loaded, own = (parameters_to_vector(each.parameters()) for each in (build_model("full", 0, tmp_path), model))
    assert loaded.equal(own)
    with pytest.raises(FileNotFoundError, match=r"vocab\.txt"):
        load_tokenizer(tmp_path)
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nfox\n", encoding="utf-8")
    assert load_tokenizer(tmp_path)("the fox") == [2, 1, 5, 3]
