"""The worker's end of its queue: requests of load engines come in order, answers go out in any order.

To be used in the process that runs the model, as the back end of a server would be::

    with QueueServer(path) as requests:
        while batch := requests.get_batch(max_size=8, max_wait_seconds=0.002):
            rows = [torch.frombuffer(bytearray(item.body), dtype=torch.float32) for item in batch]
            outputs = model(torch.stack(rows))
            for item, output in zip(batch, outputs):
                requests.answer(item, output.numpy().tobytes())
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import shutil
import socket
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.process.queue_format import ERROR, GOOD, MAX_BODY_BYTES, NUMBER_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

MAX_CONNECTIONS: Final = 64
"""Engines at the same time; who comes later is sent away."""

MAX_WAITING: Final = 4096
"""Requests in the queue; then nothing more is read, so that the engines' sockets fill."""

FOLDER_PREFIX: Final = "gpuserve-queue-"

_BACKLOG: Final = 128
_PAUSE_SECONDS: Final = 0.001


class QueuedRequest(NamedTuple):
    """A request.

    Args:
        body: As it was serialised by whoever sent it.
        number: Its number on its connection.
        sender: The engine that waits for the answer.
    """

    body: bytes
    number: bytes
    sender: QueueClient


class QueueClient:
    """An engine's connection, and the thread that reads from it.

    Raises:
        OSError: There are too many open files.
    """

    def __init__(self, accepted: socket.socket, work: Callable[[QueueClient], None]) -> None:
        # Two descriptors of one socket: to hang up must be possible while someone waits in the other.
        self.connection: Connection[Any, Any] = Connection(os.dup(accepted.fileno()))
        self._socket = accepted
        self._lock = threading.Lock()
        self.thread = threading.Thread(target=work, args=(self,), name="gpuserve queue", daemon=True)

    def send(self, message: bytes) -> None:
        """Send a whole message; one to an engine that is gone is dropped."""
        with self._lock, contextlib.suppress(OSError):
            self.connection.send_bytes(message)

    def hang_up(self) -> None:
        """End all that waits for the connection."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Release its file descriptors."""
        self.hang_up()
        with self._lock:
            self.connection.close()
        self._socket.close()


@final
class QueueServer:
    """Listens for engines and queues their requests.

    Bodies are only passed on. Whoever may write to the socket may send what the worker deserialises, so it lies in a
    folder that is this user's alone; a ``path`` of your own should too.

    Args:
        path: Of the socket, where nothing is yet; empty for one in a private temporary folder. What a killed worker
            left of its folder is removed by the next one.
        max_waiting: How many requests are queued at most.

    Raises:
        UsageProblem: There can be no socket at the path.
    """

    def __init__(self, path: str | Path = "", *, max_waiting: int = MAX_WAITING) -> None:
        self._queue: queue.SimpleQueue[QueuedRequest | None] = queue.SimpleQueue()
        self._max_waiting = max_waiting
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._senders: set[QueueClient] = set()
        self._folder = None if path else _Folder()
        self.path = str(path) if self._folder is None else str(self._folder.path / "queue")
        """Where engines connect to."""
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.bind(self.path)
            self._socket.listen(_BACKLOG)
        except OSError as problem:
            self._socket.close()
            self._remove_folder()
            raise UsageProblem(
                "a worker's queue needs a Unix socket",
                found=str(problem),
                looked=[self.path],
                remedies=[
                    "give a path of less than 108 bytes: QueueServer(path=...), or a shorter TMPDIR",
                    "remove the socket of a worker that was killed, or end the one that is running",
                ],
            ) from problem
        self._acceptor = threading.Thread(target=self._accept, name="gpuserve queue", daemon=True)
        self._acceptor.start()

    def __enter__(self) -> QueueServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def get(self, timeout_seconds: float | None = None) -> QueuedRequest | None:
        """Return the next request; None if none came in time, or the queue is closed."""
        try:
            item = self._queue.get(timeout=timeout_seconds)
        except queue.Empty:
            return None
        if item is None or self._closing.is_set():
            # For the next one who asks.
            self._queue.put(None)
            return None
        return item

    def get_batch(
        self, max_size: int, max_wait_seconds: float, timeout_seconds: float | None = None
    ) -> list[QueuedRequest]:
        """Return the next requests.

        Args:
            max_size: How many at most.
            max_wait_seconds: How long the first one may wait for others; what is there already comes along in any case.
            timeout_seconds: How long to wait for the first one; None for as long as the queue is open.

        Returns:
            One or more, in the order of their arrival; none if none came in time, or the queue is closed.
        """
        first = self.get(timeout_seconds)
        if first is None:
            return []
        batch = [first]
        end = time.perf_counter() + max_wait_seconds
        while len(batch) < max_size:
            item = self.get(max(0.0, end - time.perf_counter()))
            if item is None:
                break
            batch.append(item)
        return batch

    def answer(self, item: QueuedRequest, body: bytes) -> None:
        """Answer a request, once; an engine that has gone meanwhile is no error.

        Raises:
            ValueError: The body is larger than ``MAX_BODY_BYTES``.
        """
        if len(body) > MAX_BODY_BYTES:
            raise ValueError(f"an answer has {MAX_BODY_BYTES} bytes at most, not {len(body)}")
        item.sender.send(b"%b%c%b" % (item.number, GOOD, body))

    def fail(self, item: QueuedRequest, text: str) -> None:
        """Answer a request, once, with what went wrong."""
        item.sender.send(b"%b%c%b" % (item.number, ERROR, text.encode(errors="replace")[:MAX_BODY_BYTES]))

    def close(self) -> None:
        """Hang up, end all threads and remove the socket; whoever waits for a request gets None."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._queue.put(None)
        # Closing alone would not wake the acceptor.
        self._socket.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._socket.close()
        with self._lock:
            senders = list(self._senders)
            for sender in senders:
                sender.hang_up()
        for sender in senders:
            sender.thread.join()
        Path(self.path).unlink(missing_ok=True)
        self._remove_folder()

    def _remove_folder(self) -> None:
        if self._folder is not None:
            self._folder.remove()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                accepted, _ = self._socket.accept()
            except OSError:
                # Such as too many open files, which may pass.
                self._closing.wait(_PAUSE_SECONDS)
                continue
            with self._lock:
                if self._closing.is_set() or len(self._senders) >= MAX_CONNECTIONS:
                    accepted.close()
                    continue
                self._take(accepted)

    def _take(self, accepted: socket.socket) -> None:
        """Serve an engine; one for whom there is no file or thread left is sent away, and the queue goes on."""
        try:
            sender = QueueClient(accepted, self._receive)
        except OSError:
            accepted.close()
            return
        try:
            sender.thread.start()
        except RuntimeError:
            sender.close()
            return
        self._senders.add(sender)

    def _receive(self, sender: QueueClient) -> None:
        try:
            while not self._closing.is_set():
                message = sender.connection.recv_bytes(NUMBER_BYTES + MAX_BODY_BYTES)
                if len(message) < NUMBER_BYTES:
                    break
                while self._queue.qsize() >= self._max_waiting and not self._closing.wait(_PAUSE_SECONDS):
                    pass
                self._queue.put(QueuedRequest(message[NUMBER_BYTES:], message[:NUMBER_BYTES], sender))
        except (EOFError, OSError):
            # The engine is gone, or is none.
            pass
        finally:
            with self._lock:
                self._senders.discard(sender)
                sender.close()


class _Folder:
    """A private temporary folder, locked as long as its owner lives: one whose lock is free is a leftover."""

    def __init__(self) -> None:
        sweep()
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
            # Another's sweep may take it before it is locked: then again.
            with contextlib.suppress(FileNotFoundError):
                self._lock = _open_folder(self.path)
                if _lock(self._lock) and self.path.exists():
                    return
                os.close(self._lock)

    def remove(self) -> None:
        """Remove it, if it is empty."""
        with contextlib.suppress(OSError):
            self.path.rmdir()
        os.close(self._lock)


def sweep() -> list[str]:
    """Remove what killed workers left; returns the paths. Folders of living ones, and of other users, stay."""
    removed = []
    for path in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        try:
            descriptor = _open_folder(path)
        except OSError:
            continue
        try:
            if _lock(descriptor):
                shutil.rmtree(path)
                removed.append(str(path))
        except OSError:
            continue
        finally:
            os.close(descriptor)
    return removed


def _open_folder(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _lock(descriptor: int) -> bool:
    """Lock a file or folder for as long as it is open; whether it was free."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
