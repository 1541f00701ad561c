"""What goes over the queue of an in-process worker: messages of Python's own ``multiprocessing.connection``.

A request is an 8-byte number and its body; an answer is the same number, a status byte and its body.
"""

from __future__ import annotations

from multiprocessing.connection import Client
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

GOOD: Final = 0
ERROR: Final = 1

NUMBER_BYTES: Final = 8

MAX_BODY_BYTES: Final = 1 << 28
"""A greater announced length is taken for garbage, and not waited for."""


def ask_queue(path: Path, body: bytes, timeout_seconds: float) -> tuple[int, bytes]:
    """Ask a worker once.

    Args:
        path: Of its socket.
        body: What is sent.
        timeout_seconds: Longest wait for the answer.

    Returns:
        The status and the body of the answer.

    Raises:
        TimeoutError: It did not answer in time.
        OSError: There is no worker, it hung up, or what it answered is no answer.
    """
    with Client(str(path), "AF_UNIX") as connection:
        connection.send_bytes(bytes(NUMBER_BYTES) + body)
        if not connection.poll(timeout_seconds):
            raise TimeoutError
        try:
            answer = connection.recv_bytes(NUMBER_BYTES + 1 + MAX_BODY_BYTES)
        except EOFError:
            raise ConnectionResetError("the worker hung up") from None
    if len(answer) <= NUMBER_BYTES or answer[:NUMBER_BYTES] != bytes(NUMBER_BYTES):
        raise ConnectionError(f"no answer of a worker: {answer[:40]!r}")
    return answer[NUMBER_BYTES], answer[NUMBER_BYTES + 1 :]
