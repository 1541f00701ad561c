"""The small server of the self-test: it queues requests, forms batches, works on them with the CPU, and counts.

The work is a fixed number of turns of a loop in C, so that it takes what this machine takes for it, noise and all, and
leaves Python free to receive meanwhile. It does not depend on the size of the batch, as on a GPU that is not full.

Run as ``python -m pytest_gpuserve.selftest.server --port=... --turns=...`` it serves on 127.0.0.1 until it is killed:
``POST /infer`` answers with its body in upper case, ``GET /metrics`` with Prometheus text.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import re
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field, fields
from typing import Final

INFER: Final = "/infer"
METRICS_PATH: Final = "/metrics"

PREFIX: Final = "gpuserve_selftest"
"""What the names of all counters begin with."""

WRONG_ANSWER: Final = b"this is not the answer"

CALIBRATION_TURNS: Final = 10_000
CALIBRATION_TIMES: Final = 10

_SIXTEEN_BYTES: Final = b"gpuserve selftes"
"""As the password and the salt; OpenSSL in FIPS mode refuses shorter ones."""

_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)


def work(turns: int) -> None:
    """Keep one core busy for so many turns of a loop; the interpreter is free meanwhile."""
    hashlib.pbkdf2_hmac("sha256", _SIXTEEN_BYTES, _SIXTEEN_BYTES, turns)


def turns_of(seconds: float) -> int:
    """Calibrate: how many turns take so long on this machine where nothing disturbs them."""
    fastest = float("inf")
    for _ in range(CALIBRATION_TIMES):
        began = time.perf_counter()
        work(CALIBRATION_TURNS)
        fastest = min(fastest, time.perf_counter() - began)
    return max(1, round(seconds / fastest * CALIBRATION_TURNS))


@dataclass(frozen=True)
class Options:
    """What the server does.

    Args:
        turns: Work on a batch; the same number for all servers that are compared, so that calibration makes no
            difference between them.
        slower: Share by which the work is more: 0.05 is 5 %.
        tail_every: Every so many batches one takes longer; 0 for none.
        tail_factor: How many times as long.
        max_batch: Most requests of a batch.
        max_wait_seconds: From the first request of a batch on, how long others are waited for.
        wrong_every: Every so many answers one is wrong; 0 for none.
    """

    turns: int
    slower: float = 0.0
    tail_every: int = 0
    tail_factor: float = 1.0
    max_batch: int = 16
    max_wait_seconds: float = 0.002
    wrong_every: int = 0

    def flags(self) -> list[str]:
        """These options as command line arguments."""
        return [f"--{one.name.replace('_', '-')}={getattr(self, one.name)!r}" for one in fields(self)]

    def turns_of_batch(self, number: int) -> int:
        """Work on the batch of that number, from 1."""
        tail = self.tail_every and number % self.tail_every == 0
        return round(self.turns * (1 + self.slower) * (self.tail_factor if tail else 1.0))


@dataclass
class Counts:
    """What has happened since the server started; stages are named as in ``measure/window.py``."""

    items: int = 0
    sizes: Counter[int] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    timed: Counter[str] = field(default_factory=Counter)

    def time(self, stage: str, seconds: float) -> None:
        """Add a duration to a stage."""
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds
        self.timed[stage] += 1

    def text(self) -> str:
        """All of it as Prometheus text."""
        lines = [f"{PREFIX}_items_total {self.items}", f"{PREFIX}_batches_total {self.sizes.total()}"]
        lines += [f'{PREFIX}_batch_size_total{{size="{size}"}} {count}' for size, count in sorted(self.sizes.items())]
        for stage, seconds in self.seconds.items():
            lines.append(f'{PREFIX}_stage_seconds_total{{stage="{stage}"}} {seconds!r}')
            lines.append(f'{PREFIX}_stage_count_total{{stage="{stage}"}} {self.timed[stage]}')
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class _Waiting:
    """A request that waits for its batch."""

    body: bytes
    transport: asyncio.Transport
    at_seconds: float


@dataclass(frozen=True)
class _FinishedBatch:
    """A batch whose work is done."""

    batch: list[_Waiting]
    complete_seconds: float
    begin_seconds: float
    end_seconds: float


class Server:
    """Queue, batches and counts; a thread works, the event loop does all the rest."""

    def __init__(self, options: Options, loop: asyncio.AbstractEventLoop) -> None:
        self._options = options
        self._loop = loop
        self._queue: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        self._counts = Counts()
        self._answers = 0

    def submit(self, waiting: _Waiting) -> None:
        """Put a request into the queue."""
        with self._changed:
            self._queue.append(waiting)
            self._changed.notify()

    def metrics(self) -> bytes:
        """The counters as text."""
        return self._counts.text().encode()

    def work_forever(self) -> None:
        """Form batches and work on them, on a thread of its own."""
        number = 0
        while True:
            batch, complete = self._next_batch()
            number += 1
            begin = time.perf_counter()
            work(self._options.turns_of_batch(number))
            self._loop.call_soon_threadsafe(self._finish, _FinishedBatch(batch, complete, begin, time.perf_counter()))

    def _next_batch(self) -> tuple[list[_Waiting], float]:
        most = self._options.max_batch
        with self._changed:
            self._changed.wait_for(lambda: self._queue)
            left = self._queue[0].at_seconds + self._options.max_wait_seconds - time.perf_counter()
            full = self._changed.wait_for(lambda: len(self._queue) >= most, timeout=max(0.0, left))
            batch = [self._queue.popleft() for _ in range(min(most, len(self._queue)))]
        # A full batch may have been complete long before there was time for it.
        return batch, batch[-1].at_seconds if full else time.perf_counter()

    def _finish(self, done: _FinishedBatch) -> None:
        counts = self._counts
        counts.items += len(done.batch)
        counts.sizes[len(done.batch)] += 1
        counts.time("formation", done.complete_seconds - done.batch[0].at_seconds)
        counts.time("compute", done.end_seconds - done.begin_seconds)
        for waiting in done.batch:
            self._answers += 1
            every = self._options.wrong_every
            wrong = every and self._answers % every == 0
            waiting.transport.write(response(200, WRONG_ANSWER if wrong else waiting.body.upper()))
            counts.time("queue", done.begin_seconds - waiting.at_seconds)
            counts.time("server", time.perf_counter() - waiting.at_seconds)


class _ConnectionHandler(asyncio.Protocol):
    """One client's connection: requests with a known length, one after the other."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while True:
            head, end, rest = self._received.partition(b"\r\n\r\n")
            if not end:
                return
            length = _LENGTH.search(head)
            size = int(length[1]) if length else 0
            if len(rest) < size:
                return
            self._received = rest[size:]
            self._handle(head.partition(b"\r\n")[0].decode("latin-1").split(" "), rest[:size])

    def _handle(self, request_line: list[str], body: bytes) -> None:
        if request_line[:2] == ["POST", INFER]:
            self._server.submit(_Waiting(body, self._transport, time.perf_counter()))
        elif request_line[:2] == ["GET", METRICS_PATH]:
            self._transport.write(response(200, self._server.metrics()))
        else:
            self._transport.write(response(404, b"POST /infer or GET /metrics\n"))


def response(status: int, body: bytes) -> bytes:
    """An HTTP/1.1 response on a connection that goes on."""
    reason = {200: b"OK", 404: b"Not Found"}[status]
    return b"HTTP/1.1 %d %b\r\nContent-Length: %d\r\n\r\n%b" % (status, reason, len(body), body)


async def serve(port: int, options: Options) -> None:
    """Serve on a port of 127.0.0.1."""
    loop = asyncio.get_running_loop()
    server = Server(options, loop)
    threading.Thread(target=server.work_forever, daemon=True).start()
    listener = await loop.create_server(lambda: _ConnectionHandler(server), "127.0.0.1", port)
    await listener.serve_forever()


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    kinds = {"int": int, "float": float}
    for one in fields(Options):
        parser.add_argument(f"--{one.name.replace('_', '-')}", type=kinds[str(one.type)], required=True)
    given = vars(parser.parse_args())
    asyncio.run(serve(given.pop("port"), Options(**given)))


if __name__ == "__main__":
    main()
