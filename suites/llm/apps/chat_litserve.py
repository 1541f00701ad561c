"""A tiny language model behind LitServe's OpenAI-compatible API: chats of a batch are answered together.

``python chat_litserve.py --port 8000`` serves ``/v1/chat/completions``.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import litserve as ls

if TYPE_CHECKING:
    from collections.abc import Iterator

    from litserve.specs.openai import ChatCompletionRequest

    from suites.llm.apps.tiny_llama import Chat, TinyLlama, chat_of, usage_of
else:
    # A script imports its neighbours by their bare names.
    from tiny_llama import TinyLlama, chat_of, usage_of


class ChatApi(ls.LitAPI):
    """The model behind the API.

    LitServe finds the arguments of these methods by their names, which have to be ``request``, ``x`` and ``output``.
    """

    def setup(self, device: str) -> None:
        """Build the model in a worker."""
        del device
        self._model = TinyLlama()

    def decode_request(self, request: ChatCompletionRequest) -> Chat:
        """Take the chat out of a request."""
        return chat_of([message.model_dump() for message in request.messages], request.max_tokens)

    def batch(self, inputs: list[Chat]) -> list[Chat]:
        """Return the chats unchanged."""
        return inputs

    def predict(self, x: list[Chat]) -> Iterator[list[dict[str, object]]]:
        """Answer a batch: at each step a piece of each answer, with its usage so far."""
        for step, texts in enumerate(self._model.answers(x), 1):
            yield [
                {"role": "assistant", "content": text, **usage_of(chat, min(step, chat.tokens))}
                for chat, text in zip(x, texts, strict=True)
            ]

    def unbatch(self, output: Iterator[list[dict[str, object]]]) -> Iterator[list[dict[str, object]]]:
        """Return the pieces unchanged."""
        return output

    def encode_response(self, output: Iterator[list[dict[str, object]]]) -> Iterator[list[dict[str, object]]]:
        """Send each piece; the API's own method would send the last piece of a batch to all requests."""
        yield from output


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--max-batch-size", type=int, default=4, help="chats that are answered together (default 4)")
    parser.add_argument("--batch-timeout", type=float, default=0.01, help="seconds to wait for others (default 0.01)")
    options = parser.parse_args()
    api = ChatApi(max_batch_size=options.max_batch_size, batch_timeout=options.batch_timeout, spec=ls.OpenAISpec())
    ls.LitServer(api, accelerator="cpu").run(port=options.port)


if __name__ == "__main__":
    main()
