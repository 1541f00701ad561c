"""An HTTP server on 127.0.0.1 whose answers are right, or wrong in the way that the path asks for.

Run as a program (arguments: PORT, and a certificate file for TLS) it prints its port, and ends when its standard input
is closed; ``serving`` does that for a test. Query parameters of every path: ``ms`` the service time, ``idle`` what
happens to a connection that stays idle after an answer (``close``, ``reset``, or ``talk``: bytes that nobody asked
for). ``/seen`` tells what was seen, by path. ``plan`` and ``Totals`` are the other side: a load on it, and what the
engine says came of it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import ssl
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
    from pathlib import Path

    from pytest_gpuserve.load.driver import Engines
    from pytest_gpuserve.load.schedule import Schedule
    from pytest_gpuserve.load.wire import Plan, Tls
    from pytest_gpuserve.measure.window import Window


SAFETY_SECONDS: Final = 60.0
"""How long a fact may take to come true on a busy machine before the test is given up."""

BODY: Final = b"right"
BIG: Final = b"0123456789abcdef" * (1 << 16)
"""One MB."""


@dataclass
class Seen:
    """Record of one path.

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
"""What is answered to each path; ``/never``, ``/numbered``, ``/wrong``, ``/digest`` (the SHA-256 of the request's body)
and ``/echo`` (that body, with any ``status``) are made for each request; ``/drip`` may ``pause`` between its bytes."""

EARLY: Final[Mapping[str, bytes]] = {"/too-large": ok(b"", status="413 Content Too Large")}
"""Answered before the request's body is read, which never happens; the connection stays."""

IDLE_SECONDS: Final = 0.03
"""After so long an idle connection gets its ``idle``."""

CLOSING: Final = frozenset({"/close", "/until-close", "/half-header", "/cut-body", "/cut-chunk", "/hang-up"})
RESETTING: Final = frozenset({"/reset"})


@dataclass
class FakeServer:
    """State of the server."""

    seen: defaultdict[str, Seen] = field(default_factory=lambda: defaultdict(Seen))
    in_service: Counter[str] = field(default_factory=Counter)
    # One for all, and kept: a task that waits for what nobody holds is taken by the garbage collector.
    never: asyncio.Event = field(default_factory=asyncio.Event)

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection, one after the other."""
        first = True
        idle = ""
        try:
            while True:
                request = await _read(reader, idle, writer)
                if request is None:
                    break
                path, query, body = request
                idle = query.get("idle", "")
                if path == "/seen":
                    writer.write(ok(json.dumps({name: asdict(seen) for name, seen in self.seen.items()}).encode()))
                    continue
                self.seen[path].connections += first
                first = False
                if not await self._serve(path, query, body, writer):
                    break
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()

    async def _serve(self, path: str, query: Mapping[str, str], body: bytes, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; whether the connection goes on."""
        begin_ns = time.perf_counter_ns()
        seen = self.seen[path]
        number = seen.requests
        seen.requests += 1
        self.in_service[path] += 1
        seen.most_at_once = max(seen.most_at_once, self.in_service[path])
        try:
            if path == "/never":
                await self.never.wait()
            if "ms" in query:
                await asyncio.sleep(float(query["ms"]) / 1000)
            await _write(path, _answer(path, query, body, number), writer, float(query.get("pause", "0")))
            if path in EARLY:
                await self.never.wait()
        finally:
            self.in_service[path] -= 1
        seen.service_ns += time.perf_counter_ns() - begin_ns
        return path not in CLOSING | RESETTING


async def _read(
    reader: asyncio.StreamReader, idle: str, writer: asyncio.StreamWriter
) -> tuple[str, dict[str, str], bytes] | None:
    """Read a request: path, query and body; None if it was not there in time and the connection is to end."""
    try:
        head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), IDLE_SECONDS if idle else None)).decode()
    except asyncio.TimeoutError:
        if idle == "talk":
            writer.write(ok())
        if idle == "reset":
            _reset(writer)
        return None
    target = urlsplit(head.split(" ")[1])
    query = dict(parse_qsl(target.query))
    if target.path in EARLY:
        return target.path, query, b""
    length = next((int(line[15:]) for line in head.split("\r\n") if line.lower().startswith("content-length:")), 0)
    return target.path, query, await reader.readexactly(length)


def _answer(path: str, query: Mapping[str, str], body: bytes, number: int) -> bytes:
    if path == "/numbered":
        return ok(b"%d" % (number % int(query["distinct"])) + b"." * int(query.get("bytes", "0")))
    if path == "/wrong":
        return ok(b"wrong" if number % int(query["every"]) == 0 else BODY)
    if path == "/digest":
        return ok(hashlib.sha256(body).hexdigest().encode())
    if path == "/echo":
        return ok(body, status=f"{query.get('status', '200')} Said")
    return EARLY[path] if path in EARLY else ANSWERS[path]


async def _write(path: str, answer: bytes, writer: asyncio.StreamWriter, pause_seconds: float) -> None:
    if path == "/drip":
        for position in range(len(answer)):
            writer.write(answer[position : position + 1])
            await asyncio.sleep(pause_seconds)
        return
    writer.write(answer)
    if path in RESETTING:
        _reset(writer)


def _reset(writer: asyncio.StreamWriter) -> None:
    # Closed with data unsent or a linger time of zero, a connection is reset instead of ended.
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def main(port: int, certificate: str) -> None:
    """Serve until standard input ends."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), ended.set)
    context = None
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
    server = await asyncio.start_server(FakeServer().connection, "127.0.0.1", port, backlog=1024, ssl=context)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await ended.wait()


@dataclass(frozen=True)
class Serving:
    """A running server, as its test sees it."""

    process: subprocess.Popen[str]
    port: int
    context: ssl.SSLContext | None = None

    def seen(self, path: str) -> Seen:
        """Ask the server for its record of a path."""
        scheme = "https" if self.context else "http"
        url = f"{scheme}://127.0.0.1:{self.port}/seen"
        with urllib.request.urlopen(url, timeout=30, context=self.context) as answer:
            return Seen(**json.load(answer).get(path, {}))


@contextmanager
def serving(port: int = 0, certificate: str = "") -> Iterator[Serving]:
    """Run a server for the block, on this port or any; with TLS if it gets a file of certificate and key."""
    context = None
    if certificate:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    argv = [sys.executable, __file__, str(port), certificate]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Serving(process, int(process.stdout.readline()), context)
        finally:
            process.kill()


def plan(
    port: int,
    target: str = "/ok",
    *,
    connections: int = 4,
    schedule: Schedule | None = None,
    requests: int | None = None,
    seconds: float | None = None,
    timeout_seconds: float = SAFETY_SECONDS,
    body: bytes = b"input",
    tls: Tls | None = None,
) -> Plan:
    """Plan a load of a server; by default a closed loop of ``connections`` users that nothing ends.

    For what has no argument here use ``msgspec.structs.replace``. By default nothing times out before the test does.
    """
    # The server side of this file must start fast, and without the package on its path.
    from pytest_gpuserve.load.request import Request
    from pytest_gpuserve.load.schedule import Closed
    from pytest_gpuserve.load.wire import Endpoint, Plan

    payload = Request("POST", target, body).to_bytes(f"127.0.0.1:{port}")
    return Plan(
        endpoint=Endpoint("http", "127.0.0.1", port, tls),
        payloads=((payload,),),
        schedule=schedule or Closed(connections),
        tick_ns=20_000_000,
        timeout_ns=round(timeout_seconds * 1e9),
        requests=requests,
        nanoseconds=None if seconds is None else round(seconds * 1e9),
    )


@dataclass
class Totals:
    """The ticks of an engine, added up as far as they were taken."""

    engine: Engines
    ticks: list[Window] = field(default_factory=list)
    requests: int = 0
    sent: int = 0
    resent: int = 0
    due: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    samples: dict[str, str] = field(default_factory=dict)
    answers: Counter[bytes] = field(default_factory=Counter)
    unchecked: int = 0

    def take(self) -> Window:
        """Take one tick."""
        tick = self.engine.next_tick()
        self.ticks.append(tick)
        self.requests += tick.requests
        self.sent += tick.sent
        self.resent += tick.resent
        self.due += tick.due
        self.errors.update(tick.errors)
        self.samples = {**tick.error_samples, **self.samples}
        for answers in tick.answers:
            self.answers[answers.body] += answers.count
        self.unchecked += tick.unchecked
        return tick

    def take_until(self, fact: Callable[[Totals, Window], bool], what: str) -> Totals:
        """Take ticks until the fact is true of them and the last one, or fail naming it."""
        end = time.monotonic() + SAFETY_SECONDS
        while not fact(self, tick := self.take()):
            assert not tick.last, f"the load ended before: {what}; {self.requests} {self.errors}"
            assert time.monotonic() < end, f"not in {SAFETY_SECONDS} s: {what}; {self.requests} {self.errors}"
        return self

    def take_waiting(self, in_flight: int) -> Totals:
        """Take ticks until so many requests are waiting."""
        return self.take_until(lambda _, tick: tick.under_way == in_flight, f"{in_flight} requests wait")

    def take_to_end(self) -> Totals:
        """Take ticks up to the last one, of a load that ends by itself."""
        return self.take_until(lambda _, tick: tick.last, "the load's end")

    @property
    def ended(self) -> int:
        """Requests answered or failed."""
        return self.requests + self.errors.total()

    @property
    def in_flight(self) -> int:
        """Requests under way when the last tick ended."""
        return self.ticks[-1].under_way


@dataclass(frozen=True)
class Certificates:
    """Files of an authority and a server.

    Args:
        ca_file: The authority's certificate, which is signed by itself and which a client has to trust.
        server_file: The server's certificate and key, for the name ``localhost`` and the address 127.0.0.1.
    """

    ca_file: str
    server_file: str


def make_certificates(folder: Path) -> Certificates:
    """Make an authority and a server's certificate in this folder; they are good for two days."""
    ca, ca_key, server = (str(folder / name) for name in ("ca.pem", "ca.key", "server.pem"))
    _openssl("-keyout", ca_key, "-out", ca, "-subj", "/CN=Authority of a test", "-addext", "keyUsage=keyCertSign")
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    leaf = ["-CA", ca, "-CAkey", ca_key, "-addext", "basicConstraints=critical,CA:FALSE", "-addext", names]
    key = str(folder / "server.key")
    _openssl("-keyout", key, "-out", server, "-subj", "/CN=localhost", *leaf)
    with (folder / "server.pem").open("ab") as file:
        file.write((folder / "server.key").read_bytes())
    return Certificates(ca, server)


def _openssl(*options: str) -> None:
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run(["openssl", "req", "-x509", "-days", "2", *key, *options], check=True, capture_output=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), *sys.argv[2:3] or [""]))
