"""DistilBERT for sequence classification with seeded weights, and its tokenizer.

The servers (``distilbert_mosec.py``, ``distilbert_pytriton.py``) and the in-process reference of the tests share this
module. It imports tokenizers, torch and transformers only where they are used. Otherwise each tokenizing process of
mosec's server would need seconds of start-up and 300 MiB for a library that it never calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

LABELS = ("NEGATIVE", "POSITIVE")
"""Index of a logit to the label: the order of ``distilbert-base-uncased-finetuned-sst-2-english``."""

MAX_TOKENS = 512
"""Longest input in tokens, [CLS] and [SEP] included; longer text is truncated."""

PAD_ID = 0
"""Id of [PAD], the first line of the vocabulary."""

GRAD_MODES = ("inference_mode", "no_grad", "enable_grad")
"""torch's contexts for a forward pass, the fastest first; the last one builds the graph of a backward pass."""

DEFAULT_SEED = 0
"""Seed of the random weights; see ``Shape.initializer_range``."""


@dataclass(frozen=True)
class Shape:
    """Dimensions of one model size.

    Args:
        layers: Transformer blocks.
        dim: Width of the hidden state; a multiple of ``heads``.
        heads: Attention heads of each block.
        ffn: Width of each block's feed-forward layer.
        vocabulary: Rows of the word embedding, not less than the lines of ``vocab.txt``.
        initializer_range: Standard deviation of the random weights. The usual 0.02 makes attention so weak that
            an untrained model gives every sentence the same label, and a test of labels would check nothing. The
            values here, with ``DEFAULT_SEED``, give both labels over ordinary sentences.
    """

    layers: int
    dim: int
    heads: int
    ffn: int
    vocabulary: int
    initializer_range: float


SIZES = {
    # The published architecture: 66 955 010 parameters.
    "full": Shape(layers=6, dim=768, heads=12, ffn=3072, vocabulary=30522, initializer_range=0.06),
    # A batch of 32 x 11 tokens takes 4-5 ms on one core. The heads are as wide as those of `full` (64).
    "small": Shape(layers=2, dim=128, heads=2, ffn=512, vocabulary=2048, initializer_range=0.1),
}
"""Model sizes by the name that ``--size`` takes."""


def load_tokenizer(checkpoint: Path | None = None) -> Callable[[str], list[int]]:
    """Make the function that turns text into token ids, [CLS] first and [SEP] last.

    Args:
        checkpoint: Folder of a real model; its ``vocab.txt`` replaces the vocabulary beside this file.

    Returns:
        A function from text to at most ``MAX_TOKENS`` ids.

    Raises:
        FileNotFoundError: ``checkpoint`` has no ``vocab.txt``.
    """
    from tokenizers import BertWordPieceTokenizer  # noqa: PLC0415 -- see the module's docstring

    vocabulary = (checkpoint or Path(__file__).parent) / "vocab.txt"
    if not vocabulary.is_file():
        raise FileNotFoundError(f"no vocabulary at {vocabulary}")
    tokenizer = BertWordPieceTokenizer(str(vocabulary), lowercase=True)
    tokenizer.enable_truncation(MAX_TOKENS)

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text).ids
        return ids

    return encode


def build_model(size: str, seed: int = DEFAULT_SEED, checkpoint: Path | None = None) -> torch.nn.Module:
    """Build the network in eval mode, on torch's default device and in fp32.

    Args:
        size: A key of ``SIZES``; not used with a checkpoint, which has its own.
        seed: Seed of the random weights. Equal seeds give equal weights in every process; torch's own random state
            does not change.
        checkpoint: Folder with real weights in the form of ``save_pretrained``. The function never downloads files.

    Returns:
        A ``DistilBertForSequenceClassification`` with two labels.

    Raises:
        OSError: The checkpoint cannot be read.
    """
    import torch  # noqa: PLC0415 -- see the module's docstring
    from transformers import DistilBertConfig, DistilBertForSequenceClassification  # noqa: PLC0415 -- as above

    if checkpoint is not None:
        return DistilBertForSequenceClassification.from_pretrained(
            str(checkpoint), local_files_only=True, dtype=torch.float32
        ).eval()
    shape = SIZES[size]
    config = DistilBertConfig(
        vocab_size=shape.vocabulary,
        max_position_embeddings=MAX_TOKENS,
        n_layers=shape.layers,
        dim=shape.dim,
        n_heads=shape.heads,
        hidden_dim=shape.ffn,
        initializer_range=shape.initializer_range,
        num_labels=len(LABELS),
        pad_token_id=PAD_ID,
    )
    # Weights are always drawn on the CPU, because a CUDA generator gives other numbers for the same seed.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return DistilBertForSequenceClassification(config).eval()


class Classifier:
    """The network on one device, from lists of token ids to labels.

    Args:
        size: A key of ``SIZES``.
        seed: Seed of the random weights.
        checkpoint: Folder with real weights instead.
        device: ``"cpu"`` or ``"cuda"``; by default CUDA if torch sees a GPU.
        grad_mode: One of ``GRAD_MODES``.
        masked: Whether attention ignores padding; without that a label depends on the rest of the batch.
    """

    def __init__(
        self,
        size: str,
        *,
        seed: int = DEFAULT_SEED,
        checkpoint: Path | None = None,
        device: str | None = None,
        grad_mode: str = GRAD_MODES[0],
        masked: bool = True,
    ) -> None:
        import torch  # noqa: PLC0415 -- see the module's docstring

        self._torch = torch
        self._grad_mode = getattr(torch, grad_mode)
        self._masked = masked
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.model = build_model(size, seed, checkpoint).to(self.device)

    def logits(self, batch: Sequence[Sequence[int]]) -> torch.Tensor:
        """Run one batch of sequences of any lengths.

        Args:
            batch: Token ids, one sequence an item, at least one item, each not empty.

        Returns:
            The logits on the device, of shape (items, 2); masked, row i does not depend on the other items.
        """
        torch = self._torch
        with self._grad_mode():
            rows = [torch.tensor(ids, dtype=torch.long) for ids in batch]
            lengths = torch.tensor([len(ids) for ids in batch])
            padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD_ID)
            if not self._masked:
                return self.model(input_ids=padded.to(self.device)).logits
            # From the lengths, not from `padded != PAD_ID`, because a [PAD] in the text is a token like any other.
            mask = (torch.arange(padded.shape[1])[None, :] < lengths[:, None]).long()
            return self.model(input_ids=padded.to(self.device), attention_mask=mask.to(self.device)).logits

    def labels(self, batch: Sequence[Sequence[int]]) -> list[str]:
        """Classify one batch; waits for the device. Arguments as for ``logits``."""
        return [LABELS[index] for index in self.logits(batch).argmax(dim=-1).tolist()]
