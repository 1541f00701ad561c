"""The baselines of one device: found, compared by workload, recorded, and counted as used."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pytest_gpuserve.device import DeviceLock
from pytest_gpuserve.errors import BaselineUnusable, DeviceProblem
from pytest_gpuserve.store.anchor import is_same_device
from pytest_gpuserve.store.baseline import Stored, read, write
from pytest_gpuserve.store.schema import Entry, SessionRecord
from pytest_gpuserve.trial.anchoring import Gated, Renewing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pytest_gpuserve.measure.window import Session
    from pytest_gpuserve.trial.here import Here

MOST_SESSIONS_A_HOST = 12
"""Recording again at the same commit adds sessions; beyond so many of one host the oldest go."""

LONGEST_WAIT_SECONDS = 120.0
"""Beyond all that a few other workers can take to write their files, each well within a second."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the baseline of a load is kept.

    Args:
        path: The file.
        key: The entry in it: the test's id after the file's name, and the load's label if it has one.
    """

    path: Path
    key: str


@dataclass(frozen=True, slots=True)
class Workload:
    """What a run was.

    Args:
        must_match: What a baseline must have in common with it.
        information: What may change.
    """

    must_match: Mapping[str, str]
    information: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a recording wrote, in words.

    Args:
        done: With the sessions.
        changes: With each metric that the test compares, a line each.
    """

    done: str
    changes: tuple[str, ...] = ()


class Ledger:
    """Reads and writes the baseline files of one device.

    Args:
        folder: ``baselines/<device>``.
        here: The circumstances of this session.

    Attributes:
        here: See above.
    """

    def __init__(self, folder: Path, here: Here) -> None:
        self.here = here
        self._folder = folder
        self._files: dict[Path, dict[str, Stored]] = {}

    def place(self, nodeid: str, label: str) -> Place:
        """Where a test's baseline is: ``suites/x/test_y.py::test_z[1]`` in ``x/test_y.json`` as ``test_z[1]``."""
        file, _, name = nodeid.partition("::")
        # A test outside of the root folder must not lead out of the baselines.
        relative = Path(*[part for part in Path(file).parts if part not in {"/", ".."}])
        if len(relative.parts) > 1 and relative.parts[0] == "suites":
            relative = Path(*relative.parts[1:])
        return Place(self._folder / relative.with_suffix(".json"), f"{name} {label}" if label else name)

    def find(self, place: Place) -> Stored | None:
        """The entry of a load, whatever its workload.

        Raises:
            BaselineUnusable: Its file cannot be read or trusted.
        """
        return self._read(place.path).get(place.key)

    def record(
        self,
        place: Place,
        workload: Workload,
        sessions: Iterable[Session],
        reason: str | None,
        gated: Sequence[Gated] = (),
    ) -> Recorded:
        """Write the sessions of a load into its file, at once and atomically; says in words what it did.

        Sessions are added to those that are there if they measured the same: same workload, same committed code, same
        software. Else they replace them: sessions of different code are no sample of anything. The anchors of what is
        gated are set, moved or left as `Renewing` decides.

        Args:
            place: Where.
            workload: What was measured.
            sessions: What came of it.
            reason: Why a metric may be loosened; None where none may.
            gated: The metrics that the test compares.

        Raises:
            BaselineUnusable: The file cannot be read or written; it is as it was.
        """
        with self._alone(place.path):
            return self._record(place, workload, sessions, reason, gated)

    def _record(
        self,
        place: Place,
        workload: Workload,
        sessions: Iterable[Session],
        reason: str | None,
        gated: Sequence[Gated],
    ) -> Recorded:
        old = self.find(place)
        records = [self.here.session_record(session) for session in sessions]
        revision = self.here.revision
        entry = Entry(
            workload=dict(workload.must_match),
            information=dict(workload.information),
            commit=revision.commit,
            clean=revision.clean,
            code=revision.code,
            reason=reason,
            sessions=records,
        )
        done = "recorded" if old is None else "replaced"
        pooled = old is not None and _same_build(old.entry, entry)
        if old is not None and pooled:
            entry = msgspec.structs.replace(
                entry,
                reason=reason or old.entry.reason,
                sessions=_newest([*old.entry.sessions, *records]),
            )
            done = "added to"
        try:
            renewal = Renewing(old, entry, self.here, reason=reason, pooled=pooled).renew(gated)
        except (ValueError, ArithmeticError) as problem:
            raise BaselineUnusable(
                f"baseline file {place.path} is not written, because it could not be read again", found=str(problem)
            ) from None
        entry = msgspec.structs.replace(entry, anchors=renewal.anchors, moves=renewal.moves)
        self._change(place.path, {place.key: entry})
        count = len(entry.sessions)
        return Recorded(f"{done} ({count} session{'s' if count > 1 else ''})", renewal.lines)

    def unused(self, path: Path, used: set[str]) -> list[str]:
        """Entries of a file that no test of it asked for.

        Raises:
            BaselineUnusable: The file cannot be read or trusted.
        """
        return sorted(set(self._read(path)) - used)

    def remove(self, path: Path, keys: Iterable[str]) -> None:
        """Remove entries from a file.

        Raises:
            BaselineUnusable: The file cannot be read or written; it is as it was.
        """
        with self._alone(path):
            self._change(path, dict.fromkeys(keys))

    @contextmanager
    def _alone(self, path: Path) -> Iterator[None]:
        """Change a file as it is by then, while no other process changes one: another worker may record beside it.

        One lock for all baselines of the machine: a change takes a moment, and no lock files are left in projects.
        """
        lock = DeviceLock("baselines", command="writes baselines")
        try:
            held = lock.acquire(wait_seconds=LONGEST_WAIT_SECONDS, on_wait=lambda *_: None)
        except DeviceProblem as problem:
            raise BaselineUnusable(
                f"baseline file {path} is not written: {problem.summary}",
                found=problem.found,
                looked=problem.looked,
            ) from None
        with held:
            self._files.pop(path, None)
            yield

    def _read(self, path: Path) -> dict[str, Stored]:
        if path not in self._files:
            self._files[path] = read(path)
        return self._files[path]

    def _change(self, path: Path, changes: Mapping[str, Entry | None]) -> None:
        entries: dict[str, Entry | None] = {key: stored.entry for key, stored in self._read(path).items()}
        entries.update(changes)
        write(path, {key: entry for key, entry in entries.items() if entry is not None})
        # Read back what was written, checks and all: a file that we could not read tomorrow must fail today.
        self._files[path] = read(path)


def differences(stored: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What differs between two workloads, in words."""
    return [
        f"{name}: baseline has {_shown(stored.get(name))}, this run has {_shown(now.get(name))}"
        for name in sorted(set(stored) | set(now))
        if stored.get(name) != now.get(name)
    ]


def _shown(value: str | None) -> str:
    return "nothing" if value is None else repr(value)


def _same_build(old: Entry, new: Entry) -> bool:
    last = old.sessions[-1]
    return (
        old.clean
        and new.clean
        and old.code is not None
        and old.code == new.code
        and old.workload == new.workload
        and all(each.software == last.software and is_same_device(last.device, each.device) for each in new.sessions)
    )


def _newest(records: list[SessionRecord]) -> list[SessionRecord]:
    kept: list[SessionRecord] = []
    by_host: dict[str, int] = {}
    for record in reversed(records):
        by_host[record.host.id] = by_host.get(record.host.id, 0) + 1
        if by_host[record.host.id] <= MOST_SESSIONS_A_HOST:
            kept.append(record)
    return kept[::-1]
