"""What a baseline file holds.

Schema history (an older file names the way to this one, a newer one asks for a newer pytest-gpuserve):

1. First: per test the workload, and sessions of server starts with every window and its latency histogram, so that
   any later statistic can be computed from it.
2. Sessions have yardsticks, by which a number is known to be of a machine as fast as this one.
3. Entries have no anchors.
4. Sessions on a GPU have one reading of the host, and no yardstick.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import msgspec

from pytest_gpuserve.measure.counters import ServerSetting, StageTime
from pytest_gpuserve.measure.histogram import Histogram
from pytest_gpuserve.measure.streams import Streams
from pytest_gpuserve.measure.window import GpuUse, Session, Start, Window

if TYPE_CHECKING:
    from collections.abc import Mapping

Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
Positive = Annotated[float, msgspec.Meta(gt=0, lt=1e12)]
NotNegative = Annotated[float, msgspec.Meta(ge=0, lt=1e12)]
Value = Annotated[float, msgspec.Meta(gt=0, lt=1e15)]
"""Of a metric in its unit; the memory of eight GPUs in bytes is more than ``Positive`` may be."""

Moment = Annotated[
    str, msgspec.Meta(pattern=r"^[0-9]{4}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-5][0-9]\+00:00\Z")
]
Hash = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{7,64}\Z")]


def rounded(value: float) -> float:
    """A number to six digits: finer than any clock's meaning here, and short in diffs."""
    return float(f"{value:.6g}")


_STAGE = re.compile(r"([^\s=]{1,200})=([0-9][0-9.e+-]{0,11})/([1-9][0-9]{0,14})")
_TALLY = re.compile(r"([a-z_]{1,40})=([0-9]{1,15})")
_GPU_VALUE = re.compile(r"([a-z_]{1,20})=([0-9][0-9.e+-]{0,11})")
_GPU_FIELDS = {
    "joules": "joules",
    "memory": "memory_bytes",
    "utilisation": "utilisation",
    "sm_clock": "sm_clock_mhz",
}
"""Names in the file, in its order, and those of `GpuUse`."""


class WindowRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A ``Window``; the histogram as ``Histogram.to_text`` writes it.

    Args:
        stages: ``name=seconds/count`` of each stage in the order of their names, so that a window stays one line; left
            out where the server counts none.
        cards: ``joules=12.5 memory=1.2e+09 utilisation=0.8 sm_clock=1350`` in this order, a ``GpuUse`` in joules,
            bytes, a share and MHz; without what is not known, and left out where nothing is.
        ttft: With the fields up to ``usage_tokens``, the histograms and counts of a ``Streams``; left out where there
            was none.
        good: Left out where the load has no objectives, as ``unjudged``.
        tallies: ``name=count`` of each, as ``stages``.
    """

    seconds: Positive
    requests: Count
    errors: dict[str, Count]
    latency: str
    latency_sum_seconds: NotNegative
    latency_max_seconds: NotNegative
    client_cpu_seconds: NotNegative
    items: Count | None
    batches: Count | None
    stages: str = ""
    cards: str = ""
    ttft: str = ""
    itl: str = ""
    tpot: str = ""
    tokens: Annotated[int, msgspec.Meta(gt=-(2**53), lt=2**53)] = 0
    with_usage: Count = 0
    usage_tokens: Count = 0
    good: Count | None = None
    unjudged: Count = 0
    tallies: str = ""


def window_record(window: Window) -> WindowRecord:
    """Turn a window into its record."""
    streams = window.streams or Streams()
    return WindowRecord(
        seconds=rounded(window.seconds),
        requests=window.requests,
        errors=dict(window.errors),
        latency=window.latency.to_text(),
        latency_sum_seconds=rounded(window.latency.sum_seconds),
        latency_max_seconds=rounded(window.latency.max_seconds),
        client_cpu_seconds=rounded(window.client_cpu_seconds),
        items=window.items,
        batches=window.batches,
        stages=_stages_text(window.stages),
        cards=_gpus_text(window.gpus),
        ttft=streams.ttft.to_text(),
        itl=streams.itl.to_text(),
        tpot=streams.tpot.to_text(),
        tokens=streams.tokens,
        with_usage=streams.with_usage,
        usage_tokens=streams.usage_tokens,
        good=window.good,
        unjudged=window.unjudged,
        tallies=_tallies_text(window.tallies),
    )


def window_of(record: WindowRecord, path: str) -> Window:
    """Read a window back.

    Raises:
        ValueError: A histogram, its stages or GPUs cannot be read, or do not fit it; the text begins with the field's
            path.
    """
    latency = _histogram_of(record, "latency", path)
    if latency.total != record.requests:
        raise ValueError(f"{path}.latency holds {latency.total} latencies, but .requests is {record.requests}")
    if any(record.errors.values()):
        raise ValueError(f"{path}.errors holds failed requests; such a window is never recorded")
    try:
        stages = _stages_of(record.stages)
    except ValueError as problem:
        raise ValueError(f"{path}.stages: {problem}") from None
    try:
        gpus = _gpus_of(record.cards)
    except ValueError as problem:
        raise ValueError(f"{path}.cards: {problem}") from None
    try:
        tallies = _tallies_of(record.tallies)
    except ValueError as problem:
        raise ValueError(f"{path}.tallies: {problem}") from None
    return Window(
        seconds=record.seconds,
        requests=record.requests,
        errors=record.errors,
        latency=Histogram(latency.counts, record.latency_sum_seconds, record.latency_max_seconds),
        items=record.items,
        batches=record.batches,
        client_cpu_seconds=record.client_cpu_seconds,
        stages=stages,
        gpus=gpus,
        streams=_streams_of(record, path),
        good=record.good,
        unjudged=record.unjudged,
        tallies=tallies,
    )


def _histogram_of(record: WindowRecord, field: str, path: str) -> Histogram:
    try:
        return Histogram.from_text(getattr(record, field))
    except ValueError as problem:
        raise ValueError(f"{path}.{field}: {problem}") from None


def _streams_of(record: WindowRecord, path: str) -> Streams | None:
    """Those of a window; None where it had none."""
    ttft, itl, tpot = (_histogram_of(record, field, path) for field in ("ttft", "itl", "tpot"))
    found = Streams(ttft, itl, tpot, record.tokens, record.with_usage, record.usage_tokens)
    is_empty = found == Streams()
    if not is_empty and ttft.total != record.requests:
        raise ValueError(f"{path}.ttft holds {ttft.total} times, but .requests is {record.requests}")
    if not tpot.total <= record.with_usage <= record.requests:
        raise ValueError(f"{path}.tpot, .with_usage and .requests do not rise")
    if (record.good or 0) + record.unjudged > record.requests:
        raise ValueError(f"{path}.good and .unjudged are more than .requests")
    return None if is_empty else found


def _stages_text(stages: Mapping[str, StageTime]) -> str:
    return " ".join(f"{name}={stages[name].seconds:g}/{stages[name].count}" for name in sorted(stages))


def _stages_of(text: str) -> dict[str, StageTime]:
    """Read what ``_stages_text`` wrote, and nothing else."""
    stages = {}
    for token in text.split(" ") if text else ():
        found = _STAGE.fullmatch(token)
        if found is None:
            raise ValueError(f"{token[:60]!r} is not NAME=SECONDS/COUNT")
        stages[found[1]] = StageTime(float(found[2]), int(found[3]))
    if _stages_text(stages) != text:
        raise ValueError(f"{text[:60]!r} is not written as this version writes it")
    return stages


def _tallies_text(tallies: Mapping[str, int]) -> str:
    return " ".join(f"{name}={tallies[name]}" for name in sorted(tallies))


def _tallies_of(text: str) -> dict[str, int]:
    """Read what ``_tallies_text`` wrote, and nothing else."""
    found = {}
    for token in text.split(" ") if text else ():
        tally = _TALLY.fullmatch(token)
        if tally is None:
            raise ValueError(f"{token[:60]!r} is not NAME=COUNT")
        found[tally[1]] = int(tally[2])
    if _tallies_text(found) != text:
        raise ValueError(f"{text[:60]!r} is not written as this version writes it")
    return found


def _gpus_text(gpus: GpuUse | None) -> str:
    known = {} if gpus is None else {name: getattr(gpus, field) for name, field in _GPU_FIELDS.items()}
    return " ".join(f"{name}={value:g}" for name, value in known.items() if value is not None)


def _gpus_of(text: str) -> GpuUse | None:
    """Read what ``_gpus_text`` wrote, and nothing else."""
    if not text:
        return None
    found = {}
    for token in text.split(" "):
        value = _GPU_VALUE.fullmatch(token)
        if value is None or value[1] not in _GPU_FIELDS:
            raise ValueError(f"{token[:60]!r} is not NAME=NUMBER, where NAME is one of {', '.join(_GPU_FIELDS)}")
        found[_GPU_FIELDS[value[1]]] = float(value[2])
    gpus = GpuUse(**found)
    if _gpus_text(gpus) != text:
        raise ValueError(f"{text[:60]!r} is not written as this version writes it")
    return gpus


class FileHead(msgspec.Struct):
    """The schema of any file of ours, read before the rest of it."""

    schema: int


SCHEMA = 4


class StartRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A ``Start``."""

    cold_start_seconds: Positive | None
    discarded: Count
    foreign_cores: NotNegative
    windows: Annotated[list[WindowRecord], msgspec.Meta(min_length=1)]


class HostRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The machine, without its name: baseline files are public. What is unknown of the last two is left out."""

    id: Annotated[str, msgspec.Meta(min_length=1)]
    cpu: str
    cores: Annotated[int, msgspec.Meta(ge=1)]
    memory_gib: NotNegative
    system: str
    kernel: str
    numa_nodes: Annotated[int, msgspec.Meta(ge=1)] | None = None
    governor: str | None = None


class DeviceRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The device; what a CPU has not, or is unknown, is null.

    What it has from ``card_id`` on was added later: it is left out of a CPU's record and of older ones, which is not
    the same as null. The meaning of each field, and of a difference in it, is in `device.rules`.
    """

    name: Annotated[str, msgspec.Meta(min_length=1)]
    product: str | None
    memory_gib: NotNegative | None
    driver: str | None
    cuda: str | None
    power_limit_watts: NotNegative | None
    card_id: str | msgspec.UnsetType | None = msgspec.UNSET
    pci_bus_id: str | msgspec.UnsetType | None = msgspec.UNSET
    mig_profile: str | msgspec.UnsetType | None = msgspec.UNSET
    compute_capability: str | msgspec.UnsetType | None = msgspec.UNSET
    ecc: bool | msgspec.UnsetType | None = msgspec.UNSET
    persistence: bool | msgspec.UnsetType | None = msgspec.UNSET
    max_sm_clock_mhz: Count | msgspec.UnsetType | None = msgspec.UNSET
    max_memory_clock_mhz: Count | msgspec.UnsetType | None = msgspec.UNSET
    application_clock_mhz: Count | msgspec.UnsetType | None = msgspec.UNSET
    application_memory_clock_mhz: Count | msgspec.UnsetType | None = msgspec.UNSET
    application_clocks_set: bool | msgspec.UnsetType | None = msgspec.UNSET
    power_default_watts: NotNegative | msgspec.UnsetType | None = msgspec.UNSET
    power_most_watts: NotNegative | msgspec.UnsetType | None = msgspec.UNSET


class SessionRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A ``Session`` with where, when and on what it was measured.

    Args:
        occasion: Begin of the run of pytest that measured it, which its other sessions share.
        settings: How the server was really set up; left out where it does not tell.
        host_reading: How fast the host was: the log of the seconds of fixed work; left out where nobody has looked.
    """

    occasion: Moment
    at: Moment
    host: HostRecord
    device: DeviceRecord
    software: dict[str, str]
    batch_sizes: dict[str, Count]
    answers: Count
    answers_checked: Count
    starts: Annotated[list[StartRecord], msgspec.Meta(min_length=2)]
    settings: dict[str, str] = {}
    host_reading: Annotated[float, msgspec.Meta(gt=-100, lt=100)] | None = None


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The baseline of one load of one test.

    Args:
        workload: What a run must have in common with it.
        information: Good to know, but free to change.
        commit: The commit that was measured; None outside of git.
        clean: Whether the checkout was that commit, unchanged but for baselines.
        code: Hash of the commit's files but the baselines; sessions of one code are one sample.
        reason: Why it was loosened, if it was.
        sessions: What was measured, oldest first.
    """

    workload: dict[str, str]
    information: dict[str, str]
    commit: Hash | None
    clean: bool
    code: Hash | None
    reason: str | None
    sessions: Annotated[list[SessionRecord], msgspec.Meta(min_length=1)]


Summary = dict[str, dict[str, Value]]
"""For each entry the metrics' values, for the reader of a diff; checked against the samples when read."""


def start_record(start: Start) -> StartRecord:
    """Turn a start into its record."""
    return StartRecord(
        cold_start_seconds=None if start.cold_start_seconds is None else rounded(start.cold_start_seconds),
        discarded=start.discarded,
        foreign_cores=rounded(start.foreign_cores),
        windows=[window_record(window) for window in start.windows],
    )


def session_of(record: SessionRecord) -> Session:
    """Read a session back.

    Raises:
        ValueError: A histogram cannot be read, or does not hold as many latencies as its window has requests;
            the text begins with the field's path within the session.
    """
    return Session(
        starts=tuple(
            Start(
                windows=tuple(window_of(window, f"starts[{i}].windows[{j}]") for j, window in enumerate(start.windows)),
                cold_start_seconds=start.cold_start_seconds,
                discarded=start.discarded,
                foreign_cores=start.foreign_cores,
                settings={name: ServerSetting(used) for name, used in record.settings.items()},
            )
            for i, start in enumerate(record.starts)
        ),
        at=record.at,
        batch_sizes=record.batch_sizes,
        answers=record.answers,
        answers_checked=record.answers_checked,
        host_reading=record.host_reading,
    )
