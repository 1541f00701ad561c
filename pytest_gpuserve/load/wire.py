"""Messages between the pytest process and an engine process: msgpack, with a length before each."""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit

import msgspec

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.load.schedule import Objectives, Schedule  # noqa: TC001 -- msgspec reads annotations at run time
from pytest_gpuserve.measure.window import Window

if TYPE_CHECKING:
    from urllib.parse import SplitResult

LENGTH: Final = struct.Struct("<I")

MAX_MESSAGE_BYTES: Final = 1 << 26
"""Longest message, several times the largest tick; a longer announced length is an error."""

BEAT_NS: Final = 5_000_000
"""Interval in which an engine reads the clock to notice its own pauses: one beat is 1 % of a window of half a
second."""

OPENS: Final = -1
"""Replaces a pause: the payload begins a conversation."""

UNWRITTEN: Final = b"\xed\xff"
"""Bytes of outputs in shared memory that were not written. As floats of any width they are NaN, as a string's length 4
GB, and as integers a value that models rarely return, unlike -1 or the largest one."""


class Tls(msgspec.Struct, frozen=True):
    """Settings of a TLS connection.

    Args:
        server_name: Name that the certificate must have, also sent by SNI.
        ca_file: Certificates to trust instead of the system's; empty for those.
    """

    server_name: str
    ca_file: str = ""


class Endpoint(msgspec.Struct, frozen=True):
    """Address of the server, and its protocol.

    Args:
        protocol: ``http`` (HTTP/1.1), ``sse`` (HTTP/1.1 with answers as server-sent events) or ``grpc`` (unary calls on
            HTTP/2).
        host: Name or address.
        port: Its port.
        tls: TLS settings; None for plain TCP.
        rpc: Full method for ``grpc``, such as ``/inference.GRPCInferenceService/ModelInfer``.
    """

    protocol: Literal["http", "sse", "grpc"]
    host: str
    port: int
    tls: Tls | None = None
    rpc: str = ""

    @property
    def authority(self) -> str:
        """The server's name in a request: ``host:port``, an IPv6 address in brackets (RFC 3986, 3.2.2)."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


DEFAULT_PORTS: Final = {"http": 80, "https": 443, "grpc": 8001, "grpcs": 8001}

_METHOD: Final = re.compile(r"/[^/?]+/[^/?]+")


def endpoint_of(url: str, *, stream: bool = False) -> tuple[Endpoint, str]:
    """Return the endpoint of a URL, and the path with its query.

    ``http`` and ``https`` are HTTP/1.1; ``grpc`` and ``grpcs`` unary calls whose method is the path, such as
    ``grpc://127.0.0.1:8001/inference.GRPCInferenceService/ModelInfer``.

    Args:
        url: The URL.
        stream: Whether answers are server-sent events.

    Raises:
        UsageProblem: The URL is not of this form.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as problem:
        raise UsageProblem(f"{url!r} is not a URL", found=str(problem)) from problem
    if not url.isascii() or not url.isprintable() or " " in url:
        raise UsageProblem(
            f"{url!r} is not a URL",
            found="a space, a control character or one beyond ASCII",
            remedies=["quote what is not plain ASCII with urllib.parse.quote; write a host's name in its xn-- form"],
        )
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
        raise UsageProblem(
            f"{url!r} is not a URL that can be loaded",
            remedies=[
                "http://HOST:PORT/PATH or https://...",
                "grpc://HOST:PORT/SERVICE/METHOD or grpcs://...",
            ],
        )
    _check_server(url, parts)
    tls = Tls(parts.hostname) if parts.scheme in {"https", "grpcs"} else None
    port = port or DEFAULT_PORTS[parts.scheme]
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if parts.scheme.startswith("grpc"):
        if not _METHOD.fullmatch(path):
            raise UsageProblem(
                f"{url!r}: the path of a gRPC URL is /SERVICE/METHOD",
                remedies=["Triton's is /inference.GRPCInferenceService/ModelInfer"],
            )
        return Endpoint("grpc", parts.hostname, port, tls, rpc=path), path
    protocol: Literal["http", "sse"] = "sse" if stream else "http"
    return Endpoint(protocol, parts.hostname, port, tls), path


def _check_server(url: str, parts: SplitResult) -> None:
    """Refuse parts that would be silently ignored, or cannot be a server."""
    if parts.username is not None or parts.fragment:
        raise UsageProblem(
            f"{url!r}: a user or a fragment in a URL is not sent",
            remedies=["a user is a header: Authorization: ..."],
        )
    if "%" in (parts.hostname or ""):
        raise UsageProblem(f"{url!r}: an address with a zone cannot be loaded", found=repr(parts.hostname))
    if parts.port == 0:
        raise UsageProblem(f"{url!r}: nothing listens on port 0")


class Plan(msgspec.Struct, frozen=True):
    """The load of an engine, as it is sent.

    Args:
        endpoint: Address of the server.
        payloads: The serialised requests, which rotate. Each has either one form, or one for every slot (requests in
            flight at the same time), if slots have their own places in shared memory for answers.
        schedule: When requests are sent.
        tick_ns: Interval of the engine's reports.
        timeout_ns: Age at which an unanswered request, or connection attempt, is an error.
        seed: Seed of the schedule and of the rotation.
        shuffled: Whether payloads rotate in a seeded order instead of in turn.
        requests: Number of requests, over all engines, that ends the load; None for no limit.
        nanoseconds: Time that ends the load; None for no limit.
        part: Number of this engine among those that share the load.
        parts: Number of engines.
        numbers_before_end: For each payload the distance of its number's place (``request.NUMBER_PLACE``) from its end,
            in bytes; 0 without a number. Empty if none has one.
        pauses_ns: For each payload the pause of its user after the previous answer of the conversation; ``OPENS`` for
            the first one of a conversation. Empty without conversations, which need a closed loop.
        keep_answers: Which answers are reported: ``all``, ``some`` (up to bounds that disturb nothing) or ``none``.
        outputs: Shared-memory file and layout of each slot's answer; None if answers carry their data.
        objectives: Objectives of good answers; None for no count.
    """

    endpoint: Endpoint
    payloads: tuple[tuple[bytes, ...], ...]
    schedule: Schedule
    tick_ns: int
    timeout_ns: int
    seed: int = 0
    shuffled: bool = False
    requests: int | None = None
    nanoseconds: int | None = None
    part: int = 0
    parts: int = 1
    keep_answers: Literal["all", "some", "none"] = "some"
    outputs: Outputs | None = None
    objectives: Objectives | None = None
    numbers_before_end: tuple[int, ...] = ()
    pauses_ns: tuple[int, ...] = ()


class Outputs(msgspec.Struct, frozen=True):
    """Place of the server's answers in shared memory.

    Args:
        file: Name under ``/dev/shm``.
        slot_bytes: Each slot's share, one after the other.
    """

    file: str
    slot_bytes: int


def unwritten(byte_size: int) -> bytes:
    """Content of this many bytes of a place that was not written."""
    return (UNWRITTEN * (byte_size // len(UNWRITTEN) + 1))[:byte_size]


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Report that the engine can begin."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """Report that the load has failed, with the reason in one line."""

    reason: str


class Begin(msgspec.Struct, frozen=True, tag=True):
    """Begin of all engines, by the monotonic clock, which all processes of a host share."""

    at_ns: int


class Again(msgspec.Struct, frozen=True, tag=True):
    """Order to end the load after the answers to requests in flight, and to begin anew with this seed."""

    seed: int


Report = Ready | Window | Failed

Order = Begin | Again


def frame(message: Plan | Order | Report) -> bytes:
    """Serialise a message with its length before it."""
    data = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(data)) + data
