"""A tiny language model behind mosec, in chunks of OpenAI's API: chats of a batch are answered together.

``python chat_mosec.py --port 8000`` serves ``/v1/chat/completions``, always as a stream, because mosec has one kind of
answer for each route.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from mosec import Server, SSEWorker, ValidationError
from mosec.args import build_arguments_parser

if TYPE_CHECKING:
    from suites.llm.apps.tiny_llama import Chat, TinyLlama, chat_of, usage_of
else:
    # A script imports its neighbours by their bare names.
    from tiny_llama import TinyLlama, chat_of, usage_of


class ChatWorker(SSEWorker):
    """The model."""

    def __init__(self) -> None:
        super().__init__()
        self._model = TinyLlama()

    def deserialize(self, data: bytes) -> Chat:
        """Take the chat out of a request.

        Raises:
            ValidationError: The body is not a chat; the client gets status 422.
        """
        try:
            asked = json.loads(data)
            return chat_of(asked["messages"], asked.get("max_tokens"))
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise ValidationError(f"no chat: {problem!r}") from problem

    def forward(self, data: list[Chat]) -> list[str]:
        """Answer a batch: at each step a piece of each answer, then its usage."""
        for texts in self._model.answers(data):
            for index, text in enumerate(texts):
                if text:
                    self._send(index, {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]})
        for index, chat in enumerate(data):
            end = {"index": 0, "delta": {}, "finish_reason": "length"}
            self._send(index, {"choices": [end], "usage": usage_of(chat, chat.tokens)})
            self.send_stream_event("[DONE]", index)
        return [""] * len(data)

    def _send(self, index: int, chunk: dict[str, object]) -> None:
        self.send_stream_event(json.dumps({"object": "chat.completion.chunk", "model": "tiny", **chunk}), index)


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(
        description=__doc__, parents=[build_arguments_parser()], add_help=False, allow_abbrev=False
    )
    parser.add_argument("--max-batch-size", type=int, default=4, help="chats that are answered together (default 4)")
    parser.add_argument("--max-wait-ms", type=int, default=10, help="longest wait for a full batch (default 10)")
    options = parser.parse_args()
    server = Server()
    server.append_worker(
        ChatWorker,
        max_batch_size=options.max_batch_size,
        max_wait_time=options.max_wait_ms,
        route="/v1/chat/completions",
    )
    server.run()


if __name__ == "__main__":
    main()
