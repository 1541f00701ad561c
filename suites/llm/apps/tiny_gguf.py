"""Writes a language model of random weights as a GGUF file: the architecture of Llama, and a byte-level vocabulary.

The numbers of its size decide what a token costs. What it says means nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import gguf
import numpy as np

from pytest_gpuserve.load.prompt_set import WORDS

if TYPE_CHECKING:
    from pathlib import Path

END_OF_TEXT: Final = "<|endoftext|>"
BEGIN_OF_MESSAGE: Final = "<|im_start|>"
END_OF_MESSAGE: Final = "<|im_end|>"

CHATML: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The template of a chat, as many models have it."""


@dataclass(frozen=True)
class Size:
    """Dimensions of the model.

    Args:
        vocabulary: Tokens.
        layers: Blocks of attention and feed-forward network.
        width: Of the hidden state.
        heads: Of the attention.
        feed_forward: Inner width of the feed-forward network.
        context: Most tokens of a sequence.
    """

    vocabulary: int = 2048
    layers: int = 2
    width: int = 128
    heads: int = 4
    feed_forward: int = 384
    context: int = 4096


def write_model(path: Path, size: Size, *, seed: int = 1) -> None:
    """Write the model; the same size and seed make the same file with one version of Python and gguf."""
    tokens, merges = _vocabulary(size.vocabulary)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_vocab_size(len(tokens))
    writer.add_context_length(size.context)
    writer.add_embedding_length(size.width)
    writer.add_block_count(size.layers)
    writer.add_feed_forward_length(size.feed_forward)
    writer.add_head_count(size.heads)
    writer.add_head_count_kv(size.heads)
    writer.add_rope_dimension_count(size.width // size.heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    controls = {END_OF_TEXT, BEGIN_OF_MESSAGE, END_OF_MESSAGE}
    writer.add_token_types([gguf.TokenType.CONTROL if token in controls else gguf.TokenType.NORMAL for token in tokens])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(tokens.index(END_OF_TEXT))
    writer.add_eos_token_id(tokens.index(END_OF_MESSAGE))
    writer.add_add_bos_token(value=False)
    writer.add_chat_template(CHATML)
    random = np.random.default_rng(seed)

    def add(name: str, *shape: int) -> None:
        writer.add_tensor(name, (random.standard_normal(shape) * 0.08).astype(np.float32))

    def add_norm(name: str) -> None:
        writer.add_tensor(name, np.ones(size.width, np.float32))

    add("token_embd.weight", len(tokens), size.width)
    add("output.weight", len(tokens), size.width)
    add_norm("output_norm.weight")
    for layer in range(size.layers):
        add_norm(f"blk.{layer}.attn_norm.weight")
        add_norm(f"blk.{layer}.ffn_norm.weight")
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{layer}.{name}.weight", size.width, size.width)
        add(f"blk.{layer}.ffn_gate.weight", size.feed_forward, size.width)
        add(f"blk.{layer}.ffn_up.weight", size.feed_forward, size.width)
        add(f"blk.{layer}.ffn_down.weight", size.width, size.feed_forward)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _vocabulary(size: int) -> tuple[list[str], list[str]]:
    """Tokens and merges: all bytes, then words that prompts are made of, each by its beginnings.

    All merges begin with the space before a word, so that none takes another one's letters. Numbers fill the rest.
    """
    shown = _shown_bytes()
    special = [END_OF_TEXT, BEGIN_OF_MESSAGE, END_OF_MESSAGE]
    tokens, merges = dict.fromkeys(shown.values()), []
    for word in (*WORDS, *map(str, range(size))):
        letters = [shown[byte] for byte in f" {word}".encode()]
        for end in range(2, len(letters) + 1):
            begin, token = "".join(letters[: end - 1]), "".join(letters[:end])
            if token not in tokens and len(tokens) + len(special) < size:
                tokens[token] = None
                merges.append(f"{begin} {letters[end - 1]}")
    return [*tokens, *special], merges


def _shown_bytes() -> dict[int, str]:
    """The character that stands for each byte in the vocabulary of GPT-2: itself where it can be printed."""
    printed = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printed]
    return {byte: chr(byte) for byte in printed} | {byte: chr(256 + place) for place, byte in enumerate(others)}
