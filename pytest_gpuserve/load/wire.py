"""Messages between the pytest process and an engine process: msgpack, with a length before each."""

from __future__ import annotations

import struct
from typing import Final, Literal

import msgspec

from pytest_gpuserve.load.schedule import Schedule  # noqa: TC001 -- msgspec reads the annotation at run time
from pytest_gpuserve.load.tick import Tick
from pytest_gpuserve.measure.objectives import Objectives  # noqa: TC001 -- as below

LENGTH: Final = struct.Struct("<I")

MAX_MESSAGE_BYTES: Final = 1 << 26
"""Several times what a tick can hold; a greater announced length is no tick, and not to be waited for."""

BEAT_NS: Final = 5_000_000
"""How often an engine looks whether it is still running: one beat is 1 % of a window of half a second."""

OPENS: Final = -1
"""In place of a pause: a payload begins a conversation."""

UNWRITTEN: Final = b"\xed\xff"
"""Fills outputs in shared memory that no server has written: as floats of any width it is NaN, as the length of a
string 4 GB, and as integers nothing that models like to say, such as -1 or the greatest."""


class Tls(msgspec.Struct, frozen=True):
    """How a TLS connection is made.

    Args:
        server_name: Whom the certificate must name, and what is asked for by SNI.
        ca_file: Certificates to trust instead of the system's; empty for those.
    """

    server_name: str
    ca_file: str = ""


class Endpoint(msgspec.Struct, frozen=True):
    """Where the server listens, and its protocol.

    Args:
        protocol: ``http`` (HTTP/1.1), ``sse`` (HTTP/1.1 whose answers are server-sent events) or ``grpc`` (unary
            calls on HTTP/2).
        host: Name or address, or the path of a Unix socket.
        port: Its port; 0 for a Unix socket.
        tls: None for plain TCP.
        rpc: Of ``grpc`` the full method, such as ``/inference.GRPCInferenceService/ModelInfer``.
        authority: Of ``grpc`` what the server is called.
    """

    protocol: Literal["http", "sse", "grpc"]
    host: str
    port: int = 0
    tls: Tls | None = None
    rpc: str = ""
    authority: str = ""


class Plan(msgspec.Struct, frozen=True):
    """The load, as it is sent to an engine.

    Args:
        endpoint: Where it goes.
        payloads: The serialised requests that rotate. Of each either one form, or one for every slot (requests under
            way at the same time), where a slot has a place of its own in shared memory for its answer.
        schedule: When they are sent.
        tick_ns: How often the engine reports.
        timeout_ns: After which an unanswered request, or connection attempt, is an error.
        head: Whether an answer has no body though it announces one (a HEAD request).
        seed: Of the schedule and of the rotation.
        shuffled: Whether payloads rotate in a seeded order instead of in turn.
        requests: After so many, over all engines, the load ends; None for no end.
        nanoseconds: After so long the load ends; None for no end.
        part: Which of the engines that share this load it is.
        parts: How many there are.
        numbers_before_end: Of each payload how many bytes before its end the place of its number begins
            (``request.NUMBER_PLACE``); 0 where it has none. Empty where none has one.
        pauses_ns: Of each payload how long its user pauses before it, after the answer to the payload before it in the
            same conversation; ``OPENS`` where it begins one. Empty where there are no conversations: a closed loop has.
        keep_answers: Whether answers are reported: ``all``, ``some`` (up to bounds that disturb nothing) or ``none``.
        outputs: A shared-memory file of which each slot's answer is read, and how; None where answers carry their data.
        objectives: By which answers are counted as good; None for no count.
    """

    endpoint: Endpoint
    payloads: tuple[tuple[bytes, ...], ...]
    schedule: Schedule
    tick_ns: int
    timeout_ns: int
    head: bool = False
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
    """Where the server leaves its answers in shared memory.

    Args:
        file: Under ``/dev/shm``.
        slot_bytes: Each slot's share, one after the other.
    """

    file: str
    slot_bytes: int


def unwritten(byte_size: int) -> bytes:
    """What so many bytes of a place hold that no server has written."""
    return (UNWRITTEN * (byte_size // len(UNWRITTEN) + 1))[:byte_size]


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The engine can begin."""


class Begin(msgspec.Struct, frozen=True, tag=True):
    """When all engines begin, by the monotonic clock, which is one for all processes of a host."""

    at_ns: int


class Again(msgspec.Struct, frozen=True, tag=True):
    """End the load with the answers to what is under way, and begin anew in the same process with this seed."""

    seed: int


Report = Ready | Tick

Order = Begin | Again


def frame(message: Plan | Order | Report) -> bytes:
    """Serialise a message with its length before it."""
    data = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(data)) + data
