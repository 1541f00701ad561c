"""Messages between the pytest process and an engine process: msgpack, with a length before each."""

from __future__ import annotations

import struct
from typing import Final, Literal

import msgspec

from pytest_gpuserve.load.durations import Durations
from pytest_gpuserve.load.schedule import Schedule  # noqa: TC001 -- msgspec reads the annotation at run time
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


class AnswerCount(msgspec.Struct, frozen=True):
    """A distinct good answer of a tick, and how often it came.

    Args:
        index: Of the payload that it answers.
        body: What came.
        count: How often.
        number: The first request that it came to.
    """

    index: int
    body: bytes
    count: int
    number: int


class Tick(msgspec.Struct, frozen=True, tag=True):
    """What happened since the last tick.

    Args:
        number: From 0; ticks of the same number of several engines belong together.
        begin_ns: Its begin by the monotonic clock.
        end_ns: Its end, which is the next one's begin.
        requests: Requests answered well.
        latency: Their latencies: of a closed loop from the send, of an open loop from the intended send; of a stream to
            its last chunk with content.
        service: Of an open loop, their latencies from the actual send; of a closed loop empty, being the same.
        lag: How late requests were sent, counted when they are sent; waiting for ``max_in_flight`` is none of it.
        ttft: Of streams that ended well, time to the first chunk with content; to the end where there was none.
        itl: Of streams, the gaps between such chunks; those of chunks that came in one read are 0.
        tpot: Of streams that ended well and say that they have two tokens or more, the time from the first chunk with
            content to the last one, over the tokens but the first.
        chunks: Of streams, chunks with content that arrived.
        tokens_beyond_chunks: Of answers that ended, how many tokens they say that they have
            (``usage.completion_tokens``), less their chunks; it may be below 0.
        with_usage: Answers with ``usage.completion_tokens``.
        usage_tokens: The sum of these.
        good: Answers that met all of the plan's objectives; 0 where it has none.
        unjudged: Answers of which that is not known, for they do not say how many tokens they have.
        due: Requests that were due in it; of a closed loop those that were sent.
        sent: Requests that were sent in it.
        resent: Requests that were sent once more, on a new connection, for the server had closed the one that it had
            kept open; they are counted as sent once, and their clocks run from the first send.
        held: Requests that had to wait for ``max_in_flight`` before they were sent.
        errors: Failed requests by kind.
        error_samples: For each kind, the first sight of it in this tick, in words.
        answers: Distinct good answers, up to a bound.
        unchecked: Good answers beyond that bound, which are not among ``answers``.
        in_flight: Requests under way at its end.
        in_flight_ns: Sum over all requests of how long they were under way within the tick, so that divided by the
            tick's length it is the average number under way.
        untimed_ns: Of that sum, what no latency has: requests that failed in it, and of streams the time from the last
            chunk with content to the end.
        opening: Slots that were being opened at its end.
        oldest_opening_ns: How long the oldest of them had been.
        cpu_ns: CPU time that the engine used in it.
        oldest_ns: How long the oldest of the requests under way had waited at its end.
        bytes_received: Of all good answers' bodies.
        sending_ns: Sum over the requests whose last byte the kernel took in it, from the begin of their send until
            then; of a small request that it took at once (see ``engine.http1``) 0. None where the protocol's slots do
            not time it.
        receiving_ns: Sum over the answers that were complete in it, from their first bytes seen until their last; of
            one that came in one piece 0. None as above.
        late_beats: Of the engine's looks at the clock, one each ``BEAT_NS``, those that came later than its timers and
            its own work explain: for as large a share of the time it did not run, though it had something to do.
        late_beats_ns: By how much, in sum; an answer that comes at any time waits for the engine as long as a beat is
            late on average.
        users: Of a closed loop how many users there were at its end.
        host_cores: That the engine may use, with all others on its host; 0 where it does not say.
        last: Whether the load has ended with it.
        workers: Of a tick of several workers, what each of them did, in the order of their parts and without answers;
            see ``totals.together``.
        packed: Of a tick that is kept for long, ``workers`` as ``totals.packed`` writes it; never sent.
    """

    number: int
    begin_ns: int
    end_ns: int
    requests: int = 0
    latency: Durations = Durations()
    service: Durations = Durations()
    lag: Durations = Durations()
    ttft: Durations = Durations()
    itl: Durations = Durations()
    tpot: Durations = Durations()
    chunks: int = 0
    tokens_beyond_chunks: int = 0
    with_usage: int = 0
    usage_tokens: int = 0
    good: int = 0
    unjudged: int = 0
    due: int = 0
    sent: int = 0
    resent: int = 0
    held: int = 0
    errors: dict[str, int] = {}
    error_samples: dict[str, str] = {}
    answers: list[AnswerCount] = []
    unchecked: int = 0
    in_flight: int = 0
    in_flight_ns: int = 0
    untimed_ns: int = 0
    opening: int = 0
    oldest_opening_ns: int = 0
    cpu_ns: int = 0
    oldest_ns: int = 0
    bytes_received: int = 0
    sending_ns: int | None = 0
    receiving_ns: int | None = 0
    late_beats: int = 0
    late_beats_ns: int = 0
    users: int = 0
    host_cores: int = 0
    last: bool = False
    workers: dict[str, Tick] = {}
    packed: bytes = b""


Report = Ready | Tick

Order = Begin | Again


def frame(message: Plan | Order | Report) -> bytes:
    """Serialise a message with its length before it."""
    data = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(data)) + data
