"""GPT-J's architecture with a key-value cache, and seeded weights for it.

Parameters have the names of transformers' ``GPTJForCausalLM``, so that a checkpoint of it fits. The modules are our
own, because an import of transformers would take longer than the whole start of the server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from pathlib import Path

DEFAULT_SEED = 0
"""Seed of the random weights."""

CHECKPOINT_FILE = "pytorch_model.bin"
"""The file with the weights in a checkpoint's folder."""

PRECISIONS = {"fp32": torch.float32, "fp16": torch.float16}
"""Types of the weights; with fp16, rounding makes texts depend on the batch."""


@dataclass(frozen=True)
class Shape:
    """Dimensions of one model size.

    Args:
        layers: Transformer blocks.
        dim: Width of the hidden state; a multiple of ``heads``.
        heads: Attention heads of each block.
        rotary: Dimensions of each head whose rotation encodes positions.
        context: Most tokens of prompt and answer together.
        vocabulary: Rows of the word embedding.
        initializer_range: Standard deviation of the random weights. The usual 0.02 gives tokens that are about equally
            likely. With these, differences of logits are far above the rounding between batches of different sizes.
    """

    layers: int
    dim: int
    heads: int
    rotary: int
    context: int
    vocabulary: int
    initializer_range: float


SIZES = {
    # CodeGen-350M-mono as GPT-J: 356 712 448 parameters.
    "full": Shape(layers=20, dim=1024, heads=16, rotary=32, context=2048, vocabulary=51_200, initializer_range=0.06),
    # 8 tokens for 16 prompts take 10-20 ms on one core. The heads are as wide as those of `full` (64).
    "small": Shape(layers=2, dim=128, heads=2, rotary=32, context=2048, vocabulary=512, initializer_range=0.14),
}
"""Model sizes by name."""


class Cache:
    """Keys and values of all tokens so far, in slots; all sequences of the batch have the same number of slots.

    Args:
        shape: Shape of the model.
        rows: Sequences.
        slots: Most tokens of a sequence.
        like: A tensor with the device and data type of the cache.
    """

    def __init__(self, shape: Shape, rows: int, slots: int, like: torch.Tensor) -> None:
        size = (shape.layers, 2, rows, shape.heads, slots, shape.dim // shape.heads)
        self._held = like.new_empty(size)
        self.used = 0
        """Slots of the tokens so far, without the current ones."""

    def extended(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Put keys and values of new tokens into the next slots; return those of all slots so far.

        Args:
            layer: The layer.
            keys: Of shape (rows, heads, new tokens, width of a head).
            values: Of the same shape.
        """
        end = self.used + keys.shape[2]
        held = self._held[layer]
        held[0, :, :, self.used : end] = keys
        held[1, :, :, self.used : end] = values
        return held[0, :, :, :end], held[1, :, :, :end]


class Linear(nn.Module):
    """A linear layer whose weights are not drawn at its creation, but drawn by seed, or loaded, all at once."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Apply it."""
        return nn.functional.linear(hidden, self.weight, self.bias)


class Attention(nn.Module):
    """Self-attention with rotated queries and keys."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self._heads, self._rotary = shape.heads, shape.rotary
        self.q_proj = Linear(shape.dim, shape.dim, bias=False)
        self.k_proj = Linear(shape.dim, shape.dim, bias=False)
        self.v_proj = Linear(shape.dim, shape.dim, bias=False)
        self.out_proj = Linear(shape.dim, shape.dim, bias=False)

    def forward(
        self, hidden: torch.Tensor, rotation: torch.Tensor, mask: torch.Tensor, cache: Cache, layer: int
    ) -> torch.Tensor:
        """Attend; arguments as for ``GptJ.forward``."""
        rows, new, dim = hidden.shape
        heads = (rows, new, self._heads, dim // self._heads)
        queries = self._rotated(self.q_proj(hidden).view(heads), rotation).transpose(1, 2)
        keys = self._rotated(self.k_proj(hidden).view(heads), rotation).transpose(1, 2)
        values = self.v_proj(hidden).view(heads).transpose(1, 2)
        keys, values = cache.extended(layer, keys, values)
        attended = nn.functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        return self.out_proj(attended.transpose(1, 2).reshape(rows, new, dim))

    def _rotated(self, tensor: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
        """Rotate each pair of neighbouring dimensions by its token's position (GPT-J's way, not LLaMA's)."""
        turned, rest = tensor[..., : self._rotary], tensor[..., self._rotary :]
        cosine, sine = rotation
        even, odd = turned[..., ::2], turned[..., 1::2]
        pairs = torch.stack((even * cosine - odd * sine, odd * cosine + even * sine), dim=-1)
        return torch.cat((pairs.flatten(-2), rest), dim=-1)


class FeedForward(nn.Module):
    """Two layers with GELU between them."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.fc_in = Linear(shape.dim, 4 * shape.dim)
        self.fc_out = Linear(4 * shape.dim, shape.dim)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Apply them."""
        return self.fc_out(nn.functional.gelu(self.fc_in(hidden), approximate="tanh"))


class Block(nn.Module):
    """A layer: attention and feed-forward in parallel on the same normalised input."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(shape.dim)
        self.attn = Attention(shape)
        self.mlp = FeedForward(shape)

    def forward(
        self, hidden: torch.Tensor, rotation: torch.Tensor, mask: torch.Tensor, cache: Cache, layer: int
    ) -> torch.Tensor:
        """Add the results of both; arguments as for ``GptJ.forward``."""
        normalised = self.ln_1(hidden)
        return hidden + self.attn(normalised, rotation, mask, cache, layer) + self.mlp(normalised)


class GptJ(nn.Module):
    """The network."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.transformer = nn.Module()
        self.transformer.wte = nn.Embedding.from_pretrained(torch.empty(shape.vocabulary, shape.dim), freeze=False)
        self.transformer.h = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.transformer.ln_f = nn.LayerNorm(shape.dim)
        self.lm_head = Linear(shape.dim, shape.vocabulary)
        self.register_buffer("rotations", _rotations(shape), persistent=False)

    def new_cache(self, rows: int, slots: int) -> Cache:
        """Make an empty cache for this number of sequences and most tokens of each."""
        return Cache(self.shape, rows, slots, self.lm_head.weight)

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor, cache: Cache) -> torch.Tensor:
        """Run new tokens of a batch.

        Args:
            ids: Token ids, of shape (rows, new tokens).
            positions: Position of each token in its sequence, of the same shape.
            mask: Slots that each token may attend to, its own among them, of shape (rows, 1, new tokens, slots); the
                second last dimension may be 1 for all new tokens.
            cache: Keys and values of earlier tokens; the new ones are added.

        Returns:
            The hidden states, of shape (rows, new tokens, dim); ``lm_head`` turns them into logits.
        """
        hidden = self.transformer.wte(ids)
        rotation = self.rotations[:, positions].unsqueeze(-2)
        for layer, block in enumerate(self.transformer.h):
            hidden = block(hidden, rotation, mask, cache, layer)
        cache.used += ids.shape[1]
        return self.transformer.ln_f(hidden)


def build_model(
    size: str, *, seed: int = DEFAULT_SEED, checkpoint: Path | None = None, precision: str = "fp32"
) -> GptJ:
    """Build the network in eval mode, on torch's default device.

    Args:
        size: A key of ``SIZES``.
        seed: Seed of the random weights. Equal seeds give equal weights in every process and on every device; torch's
            own random state does not change.
        checkpoint: Folder with the real weights of this size in transformers' form. The function never downloads files.
        precision: A key of ``PRECISIONS``.

    Raises:
        FileNotFoundError: The checkpoint has no weights.
        RuntimeError: The weights have another size.
    """
    model = GptJ(SIZES[size])
    if checkpoint is not None:
        weights = torch.load(checkpoint / CHECKPOINT_FILE, map_location="cpu", weights_only=True, mmap=True)
        # Masks, which older versions of transformers saved with the weights.
        masks = (".attn.bias", ".attn.masked_bias")
        model.load_state_dict({name: tensor for name, tensor in weights.items() if not name.endswith(masks)})
    elif torch.get_default_device().type != "meta":
        _draw_weights(model, seed)
    model.eval().to(PRECISIONS[precision])
    return model


def _draw_weights(model: GptJ, seed: int) -> None:
    # On the CPU, because a CUDA generator gives other numbers for the same seed.
    generator = torch.Generator("cpu").manual_seed(seed)
    deviation = model.shape.initializer_range
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
            elif parameter.dim() > 1:
                parameter.normal_(0.0, deviation, generator=generator)


def _rotations(shape: Shape) -> torch.Tensor:
    """Cosines and sines of every position and pair of dimensions, of shape (2, context, rotary / 2)."""
    frequencies = 10_000 ** -(torch.arange(0, shape.rotary, 2, dtype=torch.float32) / shape.rotary)
    angles = torch.arange(shape.context, dtype=torch.float32)[:, None] * frequencies
    return torch.stack((angles.cos(), angles.sin()))
