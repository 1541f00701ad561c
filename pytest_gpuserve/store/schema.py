"""What a baseline file holds.

Schema history (an older file names the way to this one, a newer one asks for a newer pytest-gpuserve):

1. First: per test the workload, and sessions of server starts with every window and its latency histogram, so that
   any later statistic can be computed from it. A window may say where the server's time went, and a device and a host
   more than they did at first; later also what its cards did, what the summary says of those, of cold starts and of
   capacities, the rates that a start was searched by, and the anchors of an entry with their moves, which older files
   leave out.
2. Sessions and anchors have yardsticks, by which a number is known to be of a machine as fast as this one. A file of
   schema 1 is read, and for want of them each comparison with it is settled side by side; whatever is recorded into it
   makes it one of schema 2.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from pytest_gpuserve.measure.settings import Setting
from pytest_gpuserve.measure.window import Session, Start
from pytest_gpuserve.measure.yardstick import Yardstick
from pytest_gpuserve.store.fields import Count, Hash, Moment, NotNegative, Positive, Value, rounded
from pytest_gpuserve.store.search_schema import SearchRecord, search_of, search_record
from pytest_gpuserve.store.window_schema import WindowRecord, window_of, window_record

SCHEMA = 2

READ_SCHEMAS = (1, SCHEMA)
"""Those that can be read."""

Rates = dict[str, Annotated[list[Value], msgspec.Meta(min_length=1)]]
"""A yardstick: by the kind of work how often a second it was done, one for each reading."""

How = Literal["recorded", "tightened", "loosened"]
"""How an anchor came to its number: as the first one, as a better one, or as a worse one that has a reason."""


class StartRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A ``Start``; the search is left out where there was none."""

    cold_start_seconds: Positive | None
    discarded: Count
    foreign_cores: NotNegative
    windows: Annotated[list[WindowRecord], msgspec.Meta(min_length=1)]
    search: SearchRecord | None = None


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
        yardstick: How fast the machine was meanwhile; left out where nobody has looked, as in files of schema 1.
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
    yardstick: Rates = {}


class AnchoredRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What one metric was when it was last accepted deliberately; a line of the file.

    Args:
        metric: Its name.
        value: In ``unit``, the metric's own: that of the mean log cost of the sessions behind it.
        sessions: Behind it.
        occasions: Runs of pytest that measured them.
        how: How it came to this number.
        seal: Checksum over this line and all that the anchor says of where it was measured; ``store.anchor`` makes it.
        sd: Standard deviation of log cost between those sessions; left out where there is only one.
        reason: Why it was accepted; left out where nobody had to say.
    """

    metric: str
    value: Value
    unit: str
    sessions: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
    occasions: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
    how: How
    seal: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{12}\Z")]
    sd: Annotated[float, msgspec.Meta(ge=0, lt=1e3)] | None = None
    reason: str = ""


class AnchorRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The metrics that one recording accepted deliberately, and where and of what code that was.

    Args:
        at: Begin of the run of pytest that recorded it.
        commit: As in `Entry`.
        clean: As in `Entry`.
        code: As in `Entry`.
        host: On which it was measured, and for which alone it counts.
        device: As ``host``.
        software: Versions that it was measured with.
        metrics: In the order of their names.
        yardstick: As in `SessionRecord`, of the sessions that they rest on.
    """

    at: Moment
    commit: Hash | None
    clean: bool
    code: Hash | None
    host: HostRecord
    device: DeviceRecord
    software: dict[str, str]
    metrics: Annotated[list[AnchoredRecord], msgspec.Meta(min_length=1)]
    yardstick: Rates = {}


class MoveRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """That a metric's anchor on one host was given another number; a line of the file."""

    at: Moment
    commit: Hash | None
    host: Annotated[str, msgspec.Meta(min_length=1)]
    how: How
    metric: str
    new: Value
    old: Value
    old_commit: Hash | None
    reason: str = ""


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
        anchors: What its metrics were when they were last accepted deliberately: on each host a metric has one. Older
            files have none.
        moves: Of these anchors, the last ones, oldest first.
    """

    workload: dict[str, str]
    information: dict[str, str]
    commit: Hash | None
    clean: bool
    code: Hash | None
    reason: str | None
    sessions: Annotated[list[SessionRecord], msgspec.Meta(min_length=1)]
    anchors: list[AnchorRecord] = []
    moves: list[MoveRecord] = []


Summary = dict[str, dict[str, Value]]
"""For each entry the metrics' values, for the reader of a diff; checked against the samples when read."""


def start_record(start: Start) -> StartRecord:
    """Turn a start into its record."""
    return StartRecord(
        cold_start_seconds=None if start.cold_start_seconds is None else rounded(start.cold_start_seconds),
        discarded=start.discarded,
        foreign_cores=rounded(start.foreign_cores),
        windows=[window_record(window) for window in start.windows],
        search=search_record(start.search),
    )


def yardstick_record(yardstick: Yardstick) -> Rates:
    """Turn a yardstick into its record."""
    return {kind: [rounded(rate) for rate in rates] for kind, rates in yardstick.rates.items()}


def yardstick_of(rates: Rates) -> Yardstick:
    """Read a yardstick back."""
    return Yardstick({kind: tuple(values) for kind, values in rates.items()})


def session_of(record: SessionRecord) -> Session:
    """Read a session back.

    Raises:
        ValueError: A histogram cannot be read, or does not hold as many latencies as its window has requests, or a
            search does not fit itself; the text begins with the field's path within the session.
    """
    return Session(
        starts=tuple(
            Start(
                windows=tuple(window_of(window, f"starts[{i}].windows[{j}]") for j, window in enumerate(start.windows)),
                cold_start_seconds=start.cold_start_seconds,
                discarded=start.discarded,
                foreign_cores=start.foreign_cores,
                settings={name: Setting(used) for name, used in record.settings.items()},
                search=search_of(start.search, f"starts[{i}].search"),
            )
            for i, start in enumerate(record.starts)
        ),
        at=record.at,
        batch_sizes=record.batch_sizes,
        answers=record.answers,
        answers_checked=record.answers_checked,
        yardstick=yardstick_of(record.yardstick),
    )
