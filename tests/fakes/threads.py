"""A server of the standard library that answers in a thread of the test's own process."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator
    from socketserver import BaseServer

Server = TypeVar("Server", bound="BaseServer")

POLL_SECONDS = 0.01
"""How long its end may take to be seen."""


@contextmanager
def in_a_thread(server: Server) -> Iterator[Server]:
    """Let a server answer until the block ends, and close it then."""
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(POLL_SECONDS,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
