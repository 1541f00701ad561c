"""Chats with a Llama of random weights: a token is a byte, and every answer has the requested number of tokens.

Its texts have no meaning. torch and transformers are imported only where the model is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

CONTEXT: Final = 2048
"""Most tokens of a chat and its answer."""

FIRST_VISIBLE: Final = 32
VISIBLE: Final = 95
"""Characters of an answer: only ASCII, so that each token is a text."""

DEFAULT_TOKENS: Final = 32


@dataclass(frozen=True)
class Chat:
    """A requested chat.

    Args:
        ids: Tokens of all messages.
        tokens: Tokens of the answer.
    """

    ids: bytes
    tokens: int


def chat_of(messages: Sequence[Mapping[str, Any]], tokens: int | None) -> Chat:
    """Make the chat of a request's messages; surplus tokens are cut off at its begin."""
    wanted = min(tokens or DEFAULT_TOKENS, CONTEXT // 2)
    text = "".join(f"{message['role']}: {message['content']}\n" for message in messages)
    return Chat(text.encode()[wanted - CONTEXT :], wanted)


def usage_of(chat: Chat, tokens: int) -> dict[str, int]:
    """Usage of a chat with this number of answered tokens."""
    return {
        "prompt_tokens": len(chat.ids),
        "completion_tokens": tokens,
        "total_tokens": len(chat.ids) + tokens,
    }


class TinyLlama:
    """The model: 2 layers of width 128, on one thread."""

    def __init__(self) -> None:
        import torch  # noqa: PLC0415 -- see the module's docstring
        from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM  # noqa: PLC0415 -- as above

        torch.set_num_threads(1)
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=256,
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=CONTEXT,
            initializer_range=0.08,
        )
        self._torch = torch
        self._new_cache = DynamicCache
        self._model = LlamaForCausalLM(config).eval()

    def answers(self, chats: Sequence[Chat]) -> Iterator[list[str]]:
        """Generate the answers of a batch together, and yield each step's text of each; empty after its last one."""
        torch = self._torch
        width = max(len(chat.ids) for chat in chats)
        # Padded at the begin, so that all answers begin at the same position.
        ids = torch.tensor([[0] * (width - len(chat.ids)) + list(chat.ids) for chat in chats])
        mask = torch.tensor([[0] * (width - len(chat.ids)) + [1] * len(chat.ids) for chat in chats])
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        cache = self._new_cache()
        for step in range(max(chat.tokens for chat in chats)):
            with torch.inference_mode():
                logits = self._model(
                    input_ids=ids,
                    attention_mask=mask,
                    position_ids=positions,
                    past_key_values=cache,
                    logits_to_keep=1,
                ).logits[:, -1]
                ids = logits[:, FIRST_VISIBLE : FIRST_VISIBLE + VISIBLE].argmax(1, keepdim=True) + FIRST_VISIBLE
                mask = torch.cat((mask, torch.ones_like(ids)), 1)
                positions = positions[:, -1:] + 1
            yield [chr(token) if step < chat.tokens else "" for chat, (token,) in zip(chats, ids.tolist(), strict=True)]
