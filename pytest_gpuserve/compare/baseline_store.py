"""The baselines of one device: found, compared by workload, recorded, and counted as used."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from pytest_gpuserve.device.rules import HOST_RULES, Compatibility, compare, kind_of
from pytest_gpuserve.store.baseline import changing, read
from pytest_gpuserve.store.schema import DeviceRecord, Entry, HostRecord, session_record
from pytest_gpuserve.units import digest
from pytest_gpuserve.verdict.reason import Reason, ReasonKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpuserve.builds.checkout import Revision
    from pytest_gpuserve.device import Device
    from pytest_gpuserve.device.host import Host
    from pytest_gpuserve.measure.window import Session
    from pytest_gpuserve.store.baseline import Stored


GIB = 2**30

R = TypeVar("R", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class RunEnvironment:
    """The circumstances of a measurement.

    Args:
        device: The measured device.
        software: Versions that matter.
        revision: The code under test.
        occasion: Begin of this run of pytest, ISO 8601 in UTC.
    """

    device: Device
    software: Mapping[str, str]
    revision: Revision
    occasion: str

    @property
    def host(self) -> Host:
        """The machine around the device."""
        return self.device.host

    def device_record(self) -> DeviceRecord:
        """The device, for a baseline and for the JSON result."""
        gpu = self.device.gpu
        if gpu is None:
            return DeviceRecord(self.device.name)
        return _as_record(
            DeviceRecord,
            gpu,
            name=self.device.name,
            memory_gib=None if gpu.memory_bytes is None else round(gpu.memory_bytes / GIB, 2),
            # Baselines are public, and the UUID identifies one physical GPU.
            gpu_id=digest(gpu.uuid),
            compute_capability=gpu.compute_capability and "{}.{}".format(*gpu.compute_capability),
        )

    @property
    def device_kind(self) -> str:
        """The device with the facts that must match: rounds with another power limit are not pooled with these."""
        return kind_of(msgspec.to_builtins(self.device_record()))

    def host_record(self) -> HostRecord:
        """The machine, for a baseline and for the JSON result."""
        return _as_record(HostRecord, self.host, memory_gib=round(self.host.memory_bytes / GIB, 2))


def _as_record(kind: type[R], facts: object, **other: object) -> R:
    """A record of these values, and for all its other fields of the facts with the same names."""
    same = {name: getattr(facts, name) for name in kind.__struct_fields__ if name not in other}
    return kind(**same, **other)


def comparability(here: RunEnvironment, entry: Entry) -> Compatibility:
    """Compare the device of a recording with this one, and the host if this one recorded it.

    Other facts of another host do not matter here.
    """
    found = compare(msgspec.to_builtins(entry.device), msgspec.to_builtins(here.device_record()))
    if entry.host.id != here.host.id:
        return found
    host = compare(msgspec.to_builtins(entry.host), msgspec.to_builtins(here.host_record()), HOST_RULES)
    return Compatibility((*found.incompatible, *host.incompatible), (*found.warnings, *host.warnings))


MOST_SESSIONS = 12
"""Most sessions of an entry: a repeated recording at the same commit and host adds sessions, and drops the oldest."""


@dataclass(frozen=True, slots=True)
class BaselineKey:
    """Place of a load's baseline.

    Args:
        path: The file.
        entry: The entry in it: the test's id after the file's name, and the load's label if it has one.
    """

    path: Path
    entry: str


@dataclass(frozen=True, slots=True)
class Workload:
    """Description of a run.

    Args:
        must_match: Facts that a baseline must have in common with it.
        information: Facts that may change.
    """

    must_match: Mapping[str, str]
    information: Mapping[str, str]


class BaselineStore:
    """Reads and writes the baseline files of one device.

    Args:
        folder: ``baselines/<device>``.
        here: The circumstances of this session.

    Attributes:
        here: See above.
    """

    def __init__(self, folder: Path, here: RunEnvironment) -> None:
        self.here = here
        self._folder = folder
        self._known: dict[Path, dict[str, Stored]] = {}

    def key_of(self, nodeid: str, label: str) -> BaselineKey:
        """Place of a test's baseline: ``suites/x/test_y.py::test_z[1]`` in ``x/test_y.json`` as ``test_z[1]``."""
        file, _, name = nodeid.partition("::")
        # A test outside the root folder must not lead out of the baselines.
        relative = Path(*[part for part in Path(file).parts if part not in {"/", ".."}])
        if len(relative.parts) > 1 and relative.parts[0] == "suites":
            relative = Path(*relative.parts[1:])
        return BaselineKey(self._folder / relative.with_suffix(".json"), f"{name} {label}" if label else name)

    def find(self, key: BaselineKey) -> Stored | None:
        """Entry of a load, with any workload.

        Raises:
            BaselineUnusable: Its file cannot be read or trusted.
        """
        return self._read(key.path).get(key.entry)

    def record(
        self,
        key: BaselineKey,
        workload: Workload,
        sessions: Iterable[Session],
        reason: str | None,
    ) -> str:
        """Write the sessions of a load into its file, at once and atomically; return a report.

        Sessions are added to existing ones if they measured the same on the same host: same workload, same code, same
        software. Else they replace them, because sessions of different code cannot be pooled.

        Args:
            key: Place of the baseline.
            workload: Description of the load.
            sessions: Its measurements.
            reason: Reason why a metric may be loosened, or None.

        Raises:
            BaselineUnusable: The file cannot be read or written; it is unchanged.
        """
        revision = self.here.revision
        recorded = list(sessions)
        new = Entry(
            workload=dict(workload.must_match),
            information=dict(workload.information),
            host=self.here.host_record(),
            device=self.here.device_record(),
            software=dict(self.here.software),
            settings=used_settings(recorded),
            sessions=[session_record(session, self.here.occasion) for session in recorded],
            commit=revision.commit if revision.clean else None,
            content=revision.content,
            reason=reason,
        )
        with changing(key.path) as entries:
            entries[key.entry], done = _together(entries.get(key.entry), new)
        self._known.pop(key.path, None)
        return done

    def unused(self, path: Path, used: set[str]) -> list[str]:
        """Entries of a file that its tests did not use.

        Raises:
            BaselineUnusable: The file cannot be read or trusted.
        """
        return sorted(set(self._read(path)) - used)

    def remove(self, path: Path, keys: Iterable[str]) -> None:
        """Remove entries from a file.

        Raises:
            BaselineUnusable: The file cannot be read or written; it is unchanged.
        """
        with changing(path) as entries:
            for key in keys:
                entries.pop(key, None)
        self._known.pop(path, None)

    def _read(self, path: Path) -> dict[str, Stored]:
        if path not in self._known:
            self._known[path] = read(path)
        return self._known[path]


def why_absent(here: RunEnvironment, key: BaselineKey, workload: Workload, stored: Stored | None) -> tuple[Reason, ...]:
    """Reason why a load has no reference to compare with; empty if it has one.

    Args:
        here: The circumstances of this session.
        key: Place of the load's baseline.
        workload: Description of the load.
        stored: The baseline, or None.
    """
    if stored is None:
        return (Reason(ReasonKind.NO_ENTRY, f"{key.path} has no entry {key.entry!r}", about=str(key.path)),)
    recorded_on = stored.entry.device.name
    if recorded_on != here.device.name:
        return _not_comparable(f"{key.path} was recorded on {recorded_on}, this device is {here.device.name}")
    incompatible = comparability(here, stored.entry).incompatible
    if incompatible:
        what = f"{key.path} was recorded on a device that cannot be compared with this one"
        return _not_comparable(what, *incompatible)
    different = differences(stored.entry.workload, workload.must_match)
    if different:
        what = f"{key.path} has another workload under {key.entry!r}"
        return (Reason(ReasonKind.NOT_COMPARABLE, what, about=str(key.path)), *_not_comparable(*different))
    return ()


def _not_comparable(*texts: str) -> tuple[Reason, ...]:
    return tuple(Reason(ReasonKind.NOT_COMPARABLE, text) for text in texts)


def differences(stored: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Differences between the workload of a baseline and that of this run, in words."""
    return [
        f"{name}: baseline has {_shown(stored.get(name))}, this run has {_shown(now.get(name))}"
        for name in sorted(set(stored) | set(now))
        if stored.get(name) != now.get(name)
    ]


def _shown(value: str | None) -> str:
    return "nothing" if value is None else repr(value)


def used_settings(sessions: Sequence[Session]) -> dict[str, str]:
    """Settings of the server in the last session, as it reports them; others are left out."""
    starts = [start for session in sessions for start in session.starts]
    settings = starts[-1].settings if starts else {}
    return {name: setting.used for name, setting in settings.items() if setting.used is not None}


def _together(old: Entry | None, new: Entry) -> tuple[Entry, str]:
    """Description of an entry's change."""
    entry, done = new, "recorded" if old is None else "replaced"
    if old is not None and _same_build(old, new):
        sessions = [*old.sessions, *new.sessions][-MOST_SESSIONS:]
        entry = msgspec.structs.replace(new, reason=new.reason or old.reason, sessions=sessions)
        done = "added to"
    count = len(entry.sessions)
    return entry, f"{done} ({count} session{'s' if count > 1 else ''})"


def _same_build(old: Entry, new: Entry) -> bool:
    """Whether the sessions of two entries are one sample."""
    return (
        old.content is not None
        and old.content == new.content
        and old.workload == new.workload
        and old.software == new.software
        and old.host.id == new.host.id
        and _is_same_device(old.device, new.device)
    )


def _is_same_device(old: DeviceRecord, new: DeviceRecord) -> bool:
    """Whether two devices have no difference that could move a number: two GPUs of a kind are the same."""
    found = compare(msgspec.to_builtins(old), msgspec.to_builtins(new))
    return not (found.incompatible or found.warnings)
