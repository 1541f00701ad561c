"""An HTTP server on 127.0.0.1 that says 503 at first. Arguments: PORT [UNREADY_ANSWERS [BYTES_OF_CHATTER]].

Chatter goes to its standard output before it listens. SIGINT is noted in its log and otherwise ignored.
"""

import signal
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

port, unready, chatter = [*map(int, sys.argv[1:]), 0, 0][:3]
signal.signal(signal.SIGINT, lambda *_: sys.stdout.write("got SIGINT\n") and sys.stdout.flush())


class Handler(BaseHTTPRequestHandler):
    """Answers 503 until it has done so often enough, then 200; echoes the method and the body."""

    left = unready

    def do_GET(self) -> None:
        """Answer."""
        ready = Handler.left <= 0
        Handler.left -= 1
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200 if ready else 503)
        self.end_headers()
        self.wfile.write(b"ready " if ready else b"loading the model ")
        self.wfile.write(self.command.encode() + b" " + body)

    do_POST = do_GET  # noqa: N815 - the name that http.server looks for


for _ in range(chatter // 1024):
    sys.stdout.write("x" * 1023 + "\n")
sys.stdout.flush()
HTTPServer(("127.0.0.1", port), Handler).serve_forever()
