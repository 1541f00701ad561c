"""A server of a language model that answers two words to everything, with llama.cpp's counters.

Its argument is PORT.

It counts as tokens its good answers, and as executions how many of them were to questions that nobody had asked before.
``/v1/models`` says how it was asked first: the ``max_tokens`` of that as ``n_ctx``.
"""

from __future__ import annotations

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

bodies: list[bytes] = []

THINKING_SECONDS = 0.02
"""Of each answer: beside it what a busy client adds is nothing."""

SAID: tuple[dict[str, str], ...] = ({"content": "well"}, {"content": " then"}, {})


class ChatHandler(BaseHTTPRequestHandler):
    """Answers on a connection that stays."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """Tell the models and the counters."""
        if self.path == "/metrics":
            counts = {"tokens_predicted_total": len(bodies), "n_decode_total": len(set(bodies))}
            self._answer("".join(f"llamacpp:{name} {count}\n" for name, count in counts.items()))
        else:
            first = json.loads(bodies[0])["max_tokens"]
            self._answer(json.dumps({"data": [{"id": "/models/a.gguf", "meta": {"n_ctx": first}}]}))

    def do_POST(self) -> None:
        """Answer a chat."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        bodies.append(body)
        time.sleep(THINKING_SECONDS)
        usage = {"usage": {"completion_tokens": 2}}
        if json.loads(body)["stream"]:
            chunks: list[dict[str, Any]] = [{"choices": [{"delta": delta}]} for delta in SAID]
            chunks += [{"choices": [{"delta": {}, "finish_reason": "stop"}]}, {"choices": [], **usage}]
            self._answer("".join(f"data: {json.dumps(each)}\n\n" for each in chunks))
        else:
            self._answer(json.dumps({"choices": [], **usage}))

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _answer(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), ChatHandler).serve_forever()
