"""A language model of random weights, small enough for a CPU: its dimensions, its vocabulary and its chat template.

The architecture is Llama's, with a vocabulary of bytes. The dimensions decide the cost of a token. Its texts have no
meaning.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

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
"""Template of a chat, as in many models."""


@dataclass(frozen=True)
class Size:
    """Dimensions of the model.

        By default a step takes longer than sending its tokens. If a step were faster, whole answers would arrive at
        once on busy cores, and the time of a token would be unknown.

    Args:
        vocabulary: Tokens.
        layers: Blocks of attention and feed-forward network.
        width: Width of the hidden state.
        heads: Heads of the attention.
        feed_forward: Inner width of the feed-forward network.
        context: Most tokens of a sequence.
    """

    vocabulary: int = 2048
    layers: int = 3
    width: int = 192
    heads: int = 6
    feed_forward: int = 576
    context: int = 4096


def write_folder(folder: Path, size: Size) -> None:
    """Write configuration and tokenizer in the format of Hugging Face, without weights: the server draws them."""
    tokens, merges = vocabulary(size.vocabulary)
    numbers = {token: number for number, token in enumerate(tokens)}
    special = {name: numbers[name] for name in (END_OF_TEXT, BEGIN_OF_MESSAGE, END_OF_MESSAGE)}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    files = {
        "config": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": len(tokens),
            "hidden_size": size.width,
            "intermediate_size": size.feed_forward,
            "num_hidden_layers": size.layers,
            "num_attention_heads": size.heads,
            "max_position_embeddings": size.context,
            "bos_token_id": special[END_OF_TEXT],
            "eos_token_id": special[END_OF_MESSAGE],
            "torch_dtype": "float32",
        },
        "tokenizer": {
            "version": "1.0",
            "added_tokens": [
                {"id": number, "content": name, "special": True, **flags} for name, number in special.items()
            ],
            "pre_tokenizer": byte_level,
            "decoder": byte_level,
            "model": {"type": "BPE", "vocab": numbers, "merges": merges},
        },
        "tokenizer_config": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END_OF_MESSAGE,
            "chat_template": CHATML,
        },
    }
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")


def vocabulary(size: int) -> tuple[list[str], list[str]]:
    """Tokens and merges: all bytes, then words of prompts, each by its beginnings.

    All merges begin with the space before a word, so that a merge does not take letters of another one. Numbers fill
    the rest.
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
    """Character of each byte in the vocabulary of GPT-2: itself if it is printable."""
    printed = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printed]
    return {byte: chr(byte) for byte in printed} | {byte: chr(256 + place) for place, byte in enumerate(others)}
