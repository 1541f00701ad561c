"""An HTTP server on 127.0.0.1 with a worker, made for a container. Arguments: PORT polite|stubborn.

The first process of a container is spared by SIGTERM unless it handles it, so the polite one does: it says so in its
log and ends with 0. The stubborn one ignores it. The worker ignores it in a session of its own.
"""

import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import NoReturn


def leave(number: int, frame: object) -> NoReturn:
    """End as a good server does."""
    sys.stdout.write("told to end\n")
    sys.stdout.flush()
    os._exit(0)


class Handler(BaseHTTPRequestHandler):
    """Answers with the variable GREETING."""

    def do_GET(self) -> None:
        """Answer."""
        self.send_response(200)
        self.end_headers()
        self.wfile.write(os.environ.get("GREETING", "").encode())


signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    while True:
        signal.pause()
if sys.argv[2] == "polite":
    signal.signal(signal.SIGTERM, leave)
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
