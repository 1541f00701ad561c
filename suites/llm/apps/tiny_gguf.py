"""Writes the tiny language model with its weights as a GGUF file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gguf
import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from suites.llm.apps.tiny_model import BEGIN_OF_MESSAGE, CHATML, END_OF_MESSAGE, END_OF_TEXT, Size, vocabulary
else:
    # Apps import their neighbours by their bare names.
    from tiny_model import BEGIN_OF_MESSAGE, CHATML, END_OF_MESSAGE, END_OF_TEXT, Size, vocabulary


def write_model(path: Path, size: Size, *, seed: int = 1) -> None:
    """Write the model; the same size and seed make the same file with one version of Python and gguf."""
    tokens, merges = vocabulary(size.vocabulary)
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
