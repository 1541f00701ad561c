"""The messages of an in-process worker's queue, framed as Python's ``multiprocessing.connection`` does.

A request is an 8-byte number and its body; an answer is the same number, a status byte and its body.
"""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.process.deadline import Deadline

if TYPE_CHECKING:
    from pathlib import Path

GOOD: Final = 0
ERROR: Final = 1

NUMBER_BYTES: Final = 8

MAX_BODY_BYTES: Final = 1 << 28
"""A greater announced length is taken for garbage, and not waited for."""

_LENGTH: Final = struct.Struct(">i")
_RECEIVED_BYTES: Final = 1 << 18


def ask_queue(path: Path, body: bytes, timeout_seconds: float) -> tuple[int, bytes]:
    """Ask a worker once.

    Args:
        path: Of its socket.
        body: What is sent.
        timeout_seconds: After which the whole answer must be there.

    Returns:
        The status and the body of the answer.

    Raises:
        TimeoutError: It did not answer in time.
        OSError: There is no worker, it hung up, or what it answered is no answer.
    """
    deadline = Deadline.after(timeout_seconds)
    # Not a `multiprocessing.connection.Client`, which waits without an end for the rest of what has begun to come.
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(deadline.allowed())
        link.connect(str(path))
        link.sendall(_LENGTH.pack(NUMBER_BYTES + len(body)) + bytes(NUMBER_BYTES) + body)
        (length,) = _LENGTH.unpack(_received(link, _LENGTH.size, deadline))
        if not NUMBER_BYTES < length <= NUMBER_BYTES + 1 + MAX_BODY_BYTES:
            raise ConnectionError(f"no answer of a worker: it announces {length} bytes")
        answer = _received(link, length, deadline)
    if answer[:NUMBER_BYTES] != bytes(NUMBER_BYTES):
        raise ConnectionError(f"no answer of a worker: {answer[:40]!r}")
    return answer[NUMBER_BYTES], answer[NUMBER_BYTES + 1 :]


def _received(link: socket.socket, size: int, deadline: Deadline) -> bytes:
    """Receive exactly so many bytes."""
    data = bytearray()
    while len(data) < size:
        link.settimeout(deadline.allowed())
        part = link.recv(min(size - len(data), _RECEIVED_BYTES))
        if not part:
            raise ConnectionResetError("the worker hung up")
        data += part
    return bytes(data)
