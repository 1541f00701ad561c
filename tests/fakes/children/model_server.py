"""A small HTTP server with counters and bad habits. Arguments: PORT HABIT...

It answers GET /health, GET /metrics (items, batches, requests as Prometheus text), POST /infer, which upper-cases, and
POST /chat, also as /v1/chat/completions: three tokens in two events, after 10 and 15 ms. For chats it has llama.cpp's
counters (tokens: their number; executions: how many of them differ), and /v1/models shows the first one's
``max_tokens`` as ``n_ctx``.
Habits: ``never`` (always 503, with what it knows), ``exit=CODE`` (before it listens), ``chatter=MIB`` (printed first),
``immortal`` (ignores SIGTERM), ``breed`` (workers in sessions of their own that ignore SIGTERM), ``die=N`` (kills
itself at request N), ``hollow=N`` (healthy, but fails every request from number N on), ``loading=N`` (the first N get
status 503), ``broken`` (its model fails with status 500, and what it knows), ``wide`` (listens on all addresses),
``segment`` (leaves a segment of shared memory), ``says=TEXT``, ``ms=N`` (time of an answer), ``moved=URL`` (a post is
redirected there), ``wrong=N`` (every Nth answer is wrong), ``worked=FILE`` (gets a line, by the monotonic clock, when
an answer begins).
"""

import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import resource_tracker, shared_memory

port = int(sys.argv[1])
habits = dict(word.partition("=")[::2] for word in sys.argv[2:])
counting = threading.Lock()
counts = Counter[str]()
chats: list[bytes] = []


class Handler(BaseHTTPRequestHandler):
    """Answers."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """Tell how it is."""
        if self.path == "/health":
            self.tell(200, b"ok")
            return
        if self.path == "/v1/models":
            model = {"id": "/models/a.gguf", "meta": {"n_ctx": json.loads(chats[0])["max_tokens"]}}
            self.tell(200, json.dumps({"data": [model]}).encode())
            return
        with counting:
            counted = {f"{name}_total": counts["all"] for name in ("items", "batches", "requests")}
            counted |= {"llamacpp:tokens_predicted_total": len(chats), "llamacpp:n_decode_total": len(set(chats))}
        self.tell(200, "".join(f"{name} {count}\n" for name, count in counted.items()).encode())

    def do_POST(self) -> None:
        """Do the model's work."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path in {"/chat", "/v1/chat/completions"}:
            chats.append(body)
            if body and not json.loads(body)["stream"]:
                self.tell(200, b'{"choices": [], "usage": {"completion_tokens": 3}}')
            else:
                self.chat()
            return
        if self.path != "/infer":
            self.tell(404, b"not here")
            return
        with counting:
            counts["all"] += 1
            number = counts["all"]
        if number == int(habits.get("die", -1)):
            os.kill(os.getpid(), signal.SIGKILL)
        if "moved" in habits:
            self.tell(307, b"")
            return
        seen = f"{os.environ.get('SOME_TOKEN', '')} {self.headers.get('Authorization', '')}"
        if "broken" in habits:
            self.tell(500, f"ValueError: {seen}".encode())
            return
        if "never" in habits or not int(habits.get("loading", 0)) < number < int(habits.get("hollow", 1 << 60)):
            self.tell(503, f"no worker {seen}".encode())
            return
        if "worked" in habits:
            with open(habits["worked"], "a") as log:  # noqa: PTH123 -- one write, in appending mode
                log.write(f"{time.monotonic_ns()}\n")
        time.sleep(float(habits.get("ms", 10)) / 1000)
        self.tell(200, b"nonsense" if number % int(habits.get("wrong", 1 << 60)) == 0 else body.upper())

    def chat(self) -> None:
        """Send the tokens of a stream."""
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for wait, event in (
            (0.01, '"choices": [{"delta": {"content": "two words"}}]'),
            (0.005, '"choices": [{"text": " and one", "finish_reason": "stop"}], "usage": {"completion_tokens": 3}'),
            (0, ""),
        ):
            time.sleep(wait)
            data = f"data: {{{event}}}\n\n" if event else ""
            self.wfile.write(f"{len(data):x}\r\n{data}\r\n".encode())

    def tell(self, status: int, body: bytes) -> None:
        """Send an answer in one piece."""
        self.send_response(status)
        if status == 307:
            self.send_header("Location", habits["moved"])
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


for _ in range(int(habits.get("chatter", 0)) << 10):
    sys.stdout.write("x" * 1023 + "\n")
sys.stdout.flush()
if "says" in habits:
    print(habits["says"], flush=True)  # noqa: T201 -- into its log
if "exit" in habits:
    sys.exit(int(habits["exit"]))
if "immortal" in habits:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "segment" in habits:
    segment = shared_memory.SharedMemory(create=True, size=4096)
    resource_tracker.unregister(f"/{segment.name}", "shared_memory")
for _ in range(2 if "breed" in habits else 0):
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            signal.pause()
ThreadingHTTPServer(("" if "wide" in habits else "127.0.0.1", port), Handler).serve_forever()
