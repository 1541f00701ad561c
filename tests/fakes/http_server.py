"""An HTTP server on 127.0.0.1 whose answers are right, or wrong in the way that the path asks for.

Run as a program (arguments: [PORT]) it prints its port, and ends when its standard input is closed; ``serving`` does
that for a test. Query parameters of every path: ``ms`` the service time, ``total`` how many requests of this path are
answered before it falls silent (all by default). ``/seen`` tells what was seen, by path. ``plan`` and ``Totals`` are
the other side: a load on it, and what the engine says came of it.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections import Counter, defaultdict
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pytest_gpuserve.load.driver import Engine
    from pytest_gpuserve.load.wire import Plan, Tick

SAFETY_SECONDS: Final = 60.0
"""How long a fact may take to come true on a busy machine before the test is given up."""

BODY: Final = b"right"
BIG: Final = b"0123456789abcdef" * (1 << 16)
"""One MB."""


@dataclass
class Seen:
    """What the server saw of one path.

    Args:
        requests: Requests read to their end.
        connections: Connections whose first request was for this path.
        most_at_once: Most requests in service at the same time.
        service_ns: Time in service of the answered ones, from the end of reading to the end of writing.
    """

    requests: int = 0
    connections: int = 0
    most_at_once: int = 0
    service_ns: int = 0


def ok(body: bytes = BODY, *headers: str, status: str = "200 OK", announced: int | None = None) -> bytes:
    """Serialise an answer; ``announced`` is its Content-Length where that is a lie."""
    length = len(body) if announced is None else announced
    return "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {length}", *headers, "", ""]).encode() + body


CHUNKED: Final = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nri\r\n3;note=x\r\nght\r\n0\r\nAfter: all\r\n\r\n"
)

ANSWERS: Final[Mapping[str, bytes]] = {
    "/ok": ok(),
    "/chunked": CHUNKED,
    "/drip": CHUNKED,
    "/continue": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n" + ok(),
    "/close": ok(BODY, "Connection: close"),
    "/until-close": b"HTTP/1.1 200 OK\r\n\r\n" + BODY,
    "/big": ok(BIG),
    "/empty": b"HTTP/1.1 204 No Content\r\n\r\n",
    "/headers-only": ok(BODY)[: -len(BODY)],
    "/unavailable": ok(b"busy", "Retry-After: 1", status="503 Service Unavailable"),
    "/moved": ok(b"", "Location: /ok", status="302 Found"),
    "/half-header": b"HTTP/1.1 200 OK\r\nContent-Le",
    "/cut-body": ok(BODY, announced=1000),
    "/cut-chunk": CHUNKED[:-30],
    "/reset": ok(BODY, announced=1000),
    "/hang-up": b"",
    "/overlong": ok(BODY, announced=2),
    "/twice": ok() + ok(),
    "/garbage": b"\x16\x03\x01\x00garbage\x00\xff\r\n\r\n",
    "/switch": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    "/smuggled": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nright",
}
"""What is answered to each path; ``/never``, ``/numbered`` and ``/wrong`` are made for each request."""

CLOSING: Final = frozenset({"/close", "/until-close", "/half-header", "/cut-body", "/cut-chunk", "/hang-up"})
RESETTING: Final = frozenset({"/reset"})


@dataclass
class FakeServer:
    """Everything that the server knows."""

    seen: defaultdict[str, Seen] = field(default_factory=lambda: defaultdict(Seen))
    in_service: Counter[str] = field(default_factory=Counter)

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection, one after the other."""
        first = True
        try:
            while True:
                path, query = await self._read(reader)
                if path == "/seen":
                    writer.write(ok(json.dumps({name: asdict(seen) for name, seen in self.seen.items()}).encode()))
                    continue
                self.seen[path].connections += first
                first = False
                if not await self._serve(path, query, writer):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> tuple[str, dict[str, str]]:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next((int(line[15:]) for line in head.split("\r\n") if line.lower().startswith("content-length:")), 0)
        await reader.readexactly(length)
        target = urlsplit(head.split(" ")[1])
        return target.path, dict(parse_qsl(target.query))

    async def _serve(self, path: str, query: Mapping[str, str], writer: asyncio.StreamWriter) -> bool:
        """Answer one request; whether the connection goes on."""
        begin_ns = time.perf_counter_ns()
        seen = self.seen[path]
        number = seen.requests
        seen.requests += 1
        self.in_service[path] += 1
        seen.most_at_once = max(seen.most_at_once, self.in_service[path])
        try:
            if path == "/never" or number >= int(query.get("total", sys.maxsize)):
                await asyncio.Event().wait()
            if "ms" in query:
                await asyncio.sleep(float(query["ms"]) / 1000)
            await _write(path, _answer(path, query, number), writer)
        finally:
            self.in_service[path] -= 1
        seen.service_ns += time.perf_counter_ns() - begin_ns
        return path not in CLOSING | RESETTING


def _answer(path: str, query: Mapping[str, str], number: int) -> bytes:
    if path == "/numbered":
        return ok(b"%d" % (number % int(query["distinct"])) + b"." * int(query.get("bytes", "0")))
    if path == "/wrong":
        return ok(b"wrong" if number % int(query["every"]) == 0 else BODY)
    return ANSWERS[path]


async def _write(path: str, answer: bytes, writer: asyncio.StreamWriter) -> None:
    if path == "/drip":
        for position in range(len(answer)):
            writer.write(answer[position : position + 1])
            await asyncio.sleep(0)
        return
    writer.write(answer)
    if path in RESETTING:
        # Closed with data unsent or a linger time of zero, a connection is reset instead of ended.
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()


async def main(port: int) -> None:
    """Serve until standard input ends."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), ended.set)
    server = await asyncio.start_server(FakeServer().connection, "127.0.0.1", port, backlog=1024)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await ended.wait()


@dataclass(frozen=True)
class Serving:
    """A running server, as its test sees it."""

    process: subprocess.Popen[str]
    port: int

    def seen(self, path: str) -> Seen:
        """Ask what it saw of a path."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/seen", timeout=30) as answer:
            return Seen(**json.load(answer).get(path, {}))


@contextmanager
def serving(port: int = 0) -> Iterator[Serving]:
    """Run a server for the block, on this port or any."""
    argv = [sys.executable, __file__, str(port)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Serving(process, int(process.stdout.readline()))
        finally:
            process.kill()


def plan(
    port: int, target: str, *, connections: int = 4, timeout_seconds: float = SAFETY_SECONDS, method: str = "POST"
) -> Plan:
    """Plan a load of a server; by default nothing times out before the test does."""
    # The server side of this file must start fast, and without the package on its path.
    from pytest_gpuserve.load.request import Request
    from pytest_gpuserve.load.wire import Plan

    return Plan(
        host="127.0.0.1",
        port=port,
        payload=Request(method, target, b"input" if method == "POST" else b"").to_bytes("127.0.0.1", port),
        head=method == "HEAD",
        connections=connections,
        tick_ns=20_000_000,
        timeout_ns=round(timeout_seconds * 1e9),
    )


@dataclass
class Totals:
    """The ticks of an engine, added up as far as they were taken."""

    engine: Engine
    ticks: list[Tick] = field(default_factory=list)
    requests: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    samples: dict[str, str] = field(default_factory=dict)
    answers: Counter[bytes] = field(default_factory=Counter)
    unchecked: int = 0
    latency_sum_ns: int = 0

    def take(self) -> Tick:
        """Take one tick."""
        tick = self.engine.next_tick()
        self.ticks.append(tick)
        self.requests += tick.requests
        self.errors.update(tick.errors)
        self.samples = {**tick.error_samples, **self.samples}
        self.answers.update({answers.body: answers.count for answers in tick.answers})
        self.unchecked += tick.unchecked
        self.latency_sum_ns += tick.latency_sum_ns
        return tick

    def take_until(self, fact: Callable[[Totals, Tick], bool], what: str) -> Totals:
        """Take ticks until the fact is true of them and the last one, or fail naming it."""
        end = time.monotonic() + SAFETY_SECONDS
        while not fact(self, self.take()):
            assert time.monotonic() < end, f"not in {SAFETY_SECONDS} s: {what}; {self.requests} {self.errors}"
        return self

    def take_all(self, total: int, in_flight: int) -> Totals:
        """Take ticks until so many requests have come to an end and so many are waiting."""
        return self.take_until(
            lambda totals, tick: totals.ended >= total and tick.in_flight == in_flight, f"{total} requests ended"
        )

    @property
    def ended(self) -> int:
        """Requests answered or failed."""
        return self.requests + self.errors.total()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
