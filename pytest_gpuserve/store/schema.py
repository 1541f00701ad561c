"""Content of a baseline file: a start is one line, and host, device and software are stored once an entry."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import msgspec

from pytest_gpuserve.measure.counters import Counters, ServerSetting, StageTime
from pytest_gpuserve.measure.histogram import Histogram
from pytest_gpuserve.measure.window import GpuUse, Session, Start, Streams, Window

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA = 5

Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
Positive = Annotated[float, msgspec.Meta(ge=1e-9, lt=1e12)]
NotNegative = Annotated[float, msgspec.Meta(ge=0, lt=1e12)]
Value = Annotated[float, msgspec.Meta(gt=0, lt=1e15)]
"""Value of a metric in its unit; the memory of eight GPUs in bytes may exceed ``Positive``."""

Moment = Annotated[
    str, msgspec.Meta(pattern=r"^[0-9]{4}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-5][0-9]\+00:00\Z")
]
Hash = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{7,64}\Z")]


def rounded(value: float) -> float:
    """A number to six digits: finer than any clock's precision, and short in diffs."""
    return float(f"{value:.6g}")


class FileHead(msgspec.Struct):
    """The schema of any file of ours, read before the rest of it."""

    schema: int


class StartRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A ``Start`` with its windows added up; unknown and empty values are left out.

    Args:
        latency: Result of ``Histogram.to_text``, at the ranks that `Histogram.thinned` keeps.
        stages: Seconds and count of each.
        gpus: The fields of a ``GpuUse``.
        ttft: Together with the fields up to ``silent_chunks`` a ``Streams``; times as for ``latency``.
    """

    seconds: Positive
    requests: Count
    latency: str
    cold_start_seconds: Positive | None = None
    client_cpu_seconds: NotNegative = 0.0
    items: Count | None = None
    batches: Count | None = None
    stages: dict[str, tuple[NotNegative, Count]] = {}
    gpus: dict[str, Annotated[float, msgspec.Meta(ge=0, lt=1e15)]] = {}
    ttft: str = ""
    itl: str = ""
    tpot: str = ""
    tokens: Annotated[int, msgspec.Meta(gt=-(2**53), lt=2**53)] = 0
    with_usage: Count = 0
    usage_tokens: Count = 0
    silent_chunks: Count = 0
    good: Count | None = None
    unjudged: Count = 0
    tallies: dict[str, Count] = {}


def start_record(start: Start) -> StartRecord:
    """Turn a start into its record."""
    total = start.total
    streams, counters = total.streams or Streams(), total.counters or Counters(0, 0, counts_batches=False)
    gpus = {} if total.gpus is None else asdict(total.gpus)
    return StartRecord(
        seconds=rounded(total.seconds),
        requests=total.requests,
        latency=total.latency.thinned().to_text(),
        cold_start_seconds=None if start.cold_start_seconds is None else rounded(start.cold_start_seconds),
        client_cpu_seconds=rounded(total.cpu_seconds),
        items=counters.items if counters.counts_batches else None,
        batches=counters.batches if counters.counts_batches else None,
        stages={name: (rounded(time.seconds), time.count) for name, time in counters.stages.items()},
        gpus={name: rounded(value) for name, value in gpus.items() if value is not None},
        ttft=streams.ttft.thinned().to_text(),
        itl=streams.itl.thinned().to_text(),
        tpot=streams.tpot.thinned().to_text(),
        tokens=streams.tokens,
        with_usage=streams.with_usage,
        usage_tokens=streams.usage_tokens,
        silent_chunks=streams.silent_chunks,
        good=total.good,
        unjudged=total.unjudged,
        tallies=dict(counters.tallies),
    )


def start_of(record: StartRecord, settings: Mapping[str, ServerSetting], path: str) -> Start:
    """Read a start back, with one window.

    Raises:
        ValueError: Times cannot be read, or do not fit the counts; the text begins with the field's path.
    """
    latency, ttft, itl, tpot = (_times_of(record, field, path) for field in ("latency", "ttft", "itl", "tpot"))
    if latency.total != record.requests:
        raise ValueError(f"{path}.latency holds {latency.total} latencies, but .requests is {record.requests}")
    if record.ttft and ttft.total != record.requests:
        raise ValueError(f"{path}.ttft holds {ttft.total} times, but .requests is {record.requests}")
    if not tpot.total <= record.with_usage <= record.requests:
        raise ValueError(f"{path}.tpot, .with_usage and .requests do not rise")
    if (record.good or 0) + record.unjudged > record.requests:
        raise ValueError(f"{path}.good and .unjudged are more than .requests")
    try:
        gpus = GpuUse(**record.gpus) if record.gpus else None
    except TypeError:
        raise ValueError(f"{path}.gpus has an unknown field besides {', '.join(asdict(GpuUse()))}") from None
    streams = Streams(ttft, itl, tpot, record.tokens, record.with_usage, record.usage_tokens, record.silent_chunks)
    counters = Counters(
        record.items or 0,
        record.batches or 0,
        stages={name: StageTime(seconds, count) for name, (seconds, count) in record.stages.items()},
        counts_batches=record.items is not None and record.batches is not None,
        tallies=record.tallies,
    )
    window = Window(
        end_ns=round(record.seconds * 1e9),
        requests=record.requests,
        latency=latency,
        counters=counters if counters.counts_batches or counters.stages or counters.tallies else None,
        cpu_ns=round(record.client_cpu_seconds * 1e9),
        gpus=gpus,
        streams=None if streams == Streams() else streams,
        good=record.good,
        unjudged=record.unjudged,
    )
    return Start((window,), record.cold_start_seconds, settings=settings)


def _times_of(record: StartRecord, field: str, path: str) -> Histogram:
    try:
        return Histogram.from_text(getattr(record, field))
    except ValueError as problem:
        raise ValueError(f"{path}.{field}: {problem}") from None


class HostRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The machine without its name, because baseline files are public. Unknown values of the last two are left out."""

    id: Annotated[str, msgspec.Meta(min_length=1)]
    cpu: str
    cores: Annotated[int, msgspec.Meta(ge=1)]
    memory_gib: NotNegative
    system: str
    kernel: str
    numa_nodes: Annotated[int, msgspec.Meta(ge=1)] | None = None
    governor: str | None = None


class DeviceRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The device; values that a CPU does not have, and unknown ones, are left out.

    For the meaning of each field, and of a difference in it, see `device.rules`.
    """

    name: Annotated[str, msgspec.Meta(min_length=1)]
    product: str | None = None
    memory_gib: NotNegative | None = None
    driver: str | None = None
    cuda: str | None = None
    power_limit_watts: NotNegative | None = None
    gpu_id: str | None = None
    mig_profile: str | None = None
    compute_capability: str | None = None
    ecc: bool | None = None
    persistence: bool | None = None
    max_sm_clock_mhz: Count | None = None
    max_memory_clock_mhz: Count | None = None
    application_clock_mhz: Count | None = None
    application_memory_clock_mhz: Count | None = None
    power_default_watts: NotNegative | None = None


class SessionRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The part of a ``Session`` that verdicts need.

    Args:
        occasion: Begin of the run of pytest that measured it, which its other sessions share.
        at: Begin of the session. An entry with the same begins is the same recording, in any form.
        host_reading: Speed of the host: log of the seconds of fixed work; left out if it was not read.
    """

    occasion: Moment
    at: Moment
    starts: Annotated[list[StartRecord], msgspec.Meta(min_length=2)]
    host_reading: Annotated[float, msgspec.Meta(gt=-100, lt=100)] | None = None


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The baseline of one load of one test.

    Args:
        workload: Facts that a run must have in common with it.
        information: Useful facts that may change.
        host: The machine of all its sessions, as the last one found it; likewise the next two fields.
        settings: Actual settings of the server; left out if it does not report them.
        sessions: Measurements, oldest first.
        commit: The measured commit; left out outside git, or with uncommitted changes of its files.
        content: The measured `Revision.content`, which all sessions of an entry share.
        reason: Reason of a loosening, if any.
    """

    workload: dict[str, str]
    information: dict[str, str]
    host: HostRecord
    device: DeviceRecord
    software: dict[str, str]
    sessions: Annotated[list[SessionRecord], msgspec.Meta(min_length=1)]
    settings: dict[str, str] = {}
    commit: Hash | None = None
    content: Hash | None = None
    reason: str | None = None


Summary = dict[str, dict[str, Value]]
"""Values of the metrics of each entry, for readers of a diff; checked against the samples when read."""


def session_record(session: Session, occasion: str) -> SessionRecord:
    """Turn a session into its record.

    Args:
        session: The measured session.
        occasion: Begin of the run of pytest that measured it.
    """
    return SessionRecord(
        occasion=occasion,
        at=session.at,
        starts=[start_record(start) for start in session.starts],
        host_reading=None if session.host_reading is None else rounded(session.host_reading),
    )


def sessions_of(entry: Entry) -> tuple[Session, ...]:
    """Read the sessions of an entry back.

    Raises:
        ValueError: Times cannot be read, or do not fit the counts; the text begins with the field's path.
    """
    settings = {name: ServerSetting(used) for name, used in entry.settings.items()}
    return tuple(
        Session(
            starts=tuple(
                start_of(start, settings, f"sessions[{number}].starts[{i}]") for i, start in enumerate(record.starts)
            ),
            at=record.at,
            host_reading=record.host_reading,
        )
        for number, record in enumerate(entry.sessions)
    )
