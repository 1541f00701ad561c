"""A real gRPC server on 127.0.0.1 (grpcio's) whose methods take and give bytes.

Run as a program (arguments: [PORT]) it prints its port, and ends when its standard input is closed; ``serving_grpc``
does that for a test. Methods of ``/fake.Fake/``: ``Echo`` gives back what it got, ``Fail`` fails with NOT_FOUND,
``Slow`` answers after a minute.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import grpc

if TYPE_CHECKING:
    from collections.abc import Iterator

MESSAGE: Final = "no model «größer» 100 %"
"""Message of ``Fail``."""

SLOW_SECONDS: Final = 60.0


class Service(grpc.GenericRpcHandler):
    """All methods."""

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        """Find a method."""
        method = getattr(self, f"_{details.method.rpartition('/')[2].lower()}", None)
        return None if method is None else grpc.unary_unary_rpc_method_handler(method)

    def _echo(self, request: bytes, _context: grpc.ServicerContext) -> bytes:
        return request

    def _fail(self, _request: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.NOT_FOUND, MESSAGE)
        raise AssertionError

    def _slow(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        given_up = threading.Event()
        context.add_callback(given_up.set)
        given_up.wait(SLOW_SECONDS)
        return request


@dataclass(frozen=True)
class ServingGrpc:
    """A running server, as its test sees it."""

    process: subprocess.Popen[str]
    port: int


@contextmanager
def serving_grpc() -> Iterator[ServingGrpc]:
    """Run a server for the block."""
    argv = [sys.executable, __file__]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield ServingGrpc(process, int(process.stdout.readline()))
        finally:
            process.kill()


def main() -> None:
    """Serve until standard input ends."""
    options = [("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0)]
    server = grpc.server(ThreadPoolExecutor(8), handlers=[Service()], options=options)
    bound = server.add_insecure_port("127.0.0.1:0")
    server.start()
    sys.stdout.write(f"{bound}\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.stop(0).wait()


if __name__ == "__main__":
    main()
