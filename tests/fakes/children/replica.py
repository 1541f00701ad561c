"""One of several servers alike, which tells what it saw. Arguments: PORT HABIT...

It upper-cases what is posted, counts that at GET /metrics (items, batches, requests as Prometheus text), and tells at
GET /seen, as JSON, which ``Host`` and which bodies it was sent, and how often. Habits: ``ms=N`` (how long an answer
takes), ``refuse=STATUS`` (its answer to every post).
"""

import json
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

port = int(sys.argv[1])
habits = {name: int(value) for name, _, value in (word.partition("=") for word in sys.argv[2:])}
seeing = threading.Lock()
hosts: Counter[str] = Counter()
bodies: Counter[str] = Counter()
posts: Counter[str] = Counter()


class Handler(BaseHTTPRequestHandler):
    """Answers."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """Tell what was seen."""
        with seeing:
            counts = "".join(f"{name}_total {posts['answered']}\n" for name in ("items", "batches", "requests"))
            seen = json.dumps({"hosts": hosts, "bodies": bodies})
        self.tell(200, (counts if self.path == "/metrics" else seen).encode())

    def do_POST(self) -> None:
        """Do the model's work."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with seeing:
            hosts[str(self.headers.get("Host"))] += 1
            bodies[body.decode()] += 1
        if "refuse" in habits:
            self.tell(habits["refuse"], b"no")
            return
        time.sleep(habits.get("ms", 2) / 1000)
        with seeing:
            posts["answered"] += 1
        self.tell(200, body.upper())

    def tell(self, status: int, body: bytes) -> None:
        """Send an answer in one piece."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
