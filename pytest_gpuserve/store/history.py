"""What is remembered between runs of a paired comparison, so that a re-run goes on instead of trying its luck again.

One folder, which the caller names, holds two files for each pair that was compared::

    SUBJECT-PAIR.rounds.json   the rounds with all their windows, and each metric's looks: the sequence that goes on
    SUBJECT-PAIR.past.json     only the block differences, for the priors of later comparisons of the same subject

SUBJECT stands for the test, its load, the host and the device, PAIR for all of that with both builds and their
software; both are hashes, and the files say in full what they are of. How long they stay is said by ``KEPT``,
``ROUNDS_DAYS`` and ``PAST_DAYS``. Removing the folder forgets everything and harms nothing else.

Whatever is wrong with a file, it never counts as evidence and never breaks a run: `HistoryUnusable` says in one line
what is not used and what to remove. Runs at the same time may lose each other's rounds (the last writer's file stays),
but never mix them.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.store import write_whole
from pytest_gpuserve.store.checksummed import HistoryUnusable, read_checksummed, unusable
from pytest_gpuserve.store.sequence import (
    PAST_SCHEMA,
    ROUNDS_SCHEMA,
    PastFile,
    RoundsFile,
    checked_bytes,
    sequence_of,
)
from pytest_gpuserve.units import utc_now

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from pytest_gpuserve.store.sequence import KeptSequence, SequenceKey, Subject

ROUNDS_DAYS: Final = 30
"""How long a sequence may go on after its last round: longer than a pull request waits for its repair, shorter than a
machine stays the same. Eight whole rounds take from half a megabyte up, so that also bounds the folder."""

PAST_DAYS: Final = 365
"""How long the differences of a comparison serve as a prior: a year of a machine, then it is likely another one."""

KEPT: Final = 20
"""Comparisons of one subject that are kept: their rounds give more than the 20 degrees of freedom at which a learned
prior is capped, and every edit of a checkout is a new candidate, so something must bound their number."""

_FILE = re.compile(r"\.?(?P<subject>[0-9a-f]{16})-[0-9a-f]{32}\.(?P<kind>rounds|past)\.json(?P<unfinished>\..+)?")


@dataclass(frozen=True)
class PastComparison:
    """For each metric the block differences of log cost of each round of an earlier comparison."""

    at: str
    differences: dict[str, tuple[tuple[float, ...], ...]]


@dataclass(frozen=True)
class PastComparisons:
    """Earlier comparisons, newest first, and for each file that is not usable a line: why, and what to remove."""

    comparisons: tuple[PastComparison, ...] = ()
    notes: tuple[str, ...] = ()


class History:
    """The folder in which sequences are stored, made at the first save; ``now`` gives ISO 8601 in UTC."""

    def __init__(self, folder: Path, *, now: Callable[[], str] = utc_now) -> None:
        self.folder = folder
        self._now = now
        self._said_unwritable = False

    def load(self, key: SequenceKey) -> KeptSequence | None:
        """The sequence of a pair as it was last saved; None if there is none, or none of the last ``ROUNDS_DAYS``.

        Raises:
            HistoryUnusable: There is one that cannot be read or trusted. The comparison begins anew, which its result
                has to say; the next save replaces the file.
        """
        path = self._path(key, "rounds")
        file = read_checksummed(path, RoundsFile, schema=ROUNDS_SCHEMA)
        if file is None:
            return None
        if file.key != key:
            raise unusable(path, "it is of another comparison")
        try:
            sequence = sequence_of(file)
        except ValueError as problem:
            raise unusable(path, str(problem)) from None
        return None if self._days_since(file.added) > ROUNDS_DAYS else sequence

    def save(self, key: SequenceKey, sequence: KeptSequence) -> None:
        """Save a sequence as it is now, and remove what is too old or too much.

        Raises:
            HistoryUnusable: It cannot be remembered: a run goes on, but a re-run will begin anew. Of a folder that
                cannot be written that is said once; every save tries again.
        """
        added = self._now()
        rounds, past = checked_bytes(key, sequence, added)
        files = {self._path(key, "past"): past, self._path(key, "rounds"): rounds}
        try:
            for path, data in files.items():
                write_whole(path, data)
                # The clock's time, so that files are forgotten by the clock that wrote them.
                os.utime(path, (_seconds(added),) * 2)
            self._forget(files, key.subject.digest())
        except OSError as problem:
            if not self._said_unwritable:
                self._said_unwritable = True
                raise HistoryUnusable(
                    f"nothing is remembered for a re-run: {self.folder} cannot be written",
                    found=str(problem),
                    remedies=["make it writable, or every re-run begins anew"],
                ) from None

    def past_rounds(self, subject: Subject, *, excluding: SequenceKey | None = None) -> PastComparisons:
        """What earlier comparisons of a subject leave for the next prior, at most ``KEPT``, newest first.

        The pair itself is excluded: its rounds are its evidence and cannot be its prior too.
        """
        found, notes = [], []
        left_out = self._path(excluding, "past") if excluding else None
        try:
            paths = [path for path, name in self._files() if name["subject"] == subject.digest()]
        except OSError as problem:
            return PastComparisons(notes=(unusable(self.folder, str(problem)).line,))
        for path in paths:
            if path == left_out or not path.name.endswith(".past.json"):
                continue
            try:
                file = read_checksummed(path, PastFile, schema=PAST_SCHEMA)
                if file and file.key.subject != subject:
                    notes.append(unusable(path, "it is of another test").line)
                elif file and self._days_since(file.added) <= PAST_DAYS:
                    found.append(PastComparison(file.added, file.differences))
            except HistoryUnusable as problem:
                notes.append(problem.line)
        found.sort(key=lambda past: past.at, reverse=True)
        return PastComparisons(tuple(found[:KEPT]), tuple(notes))

    def _path(self, key: SequenceKey, kind: str) -> Path:
        return self.folder / f"{key.subject.digest()}-{key.digest()}.{kind}.json"

    def _files(self) -> list[tuple[Path, re.Match[str]]]:
        """Our files, finished and not, by name; none where there is no folder."""
        try:
            named = [(path, _FILE.fullmatch(path.name)) for path in sorted(self.folder.iterdir())]
        except FileNotFoundError:
            return []
        return [(path, name) for path, name in named if name]

    def _days_since(self, moment: str) -> float:
        return (_seconds(self._now()) - _seconds(moment)) / 86_400

    def _forget(self, saved: Collection[Path], subject: str) -> None:
        """Remove what is too old of any subject, and what is too much of the one that was saved."""
        now = _seconds(self._now())
        kept: dict[str, list[tuple[float, Path]]] = {"rounds": [], "past": []}
        for path, name in self._files():
            if path in saved:
                continue
            # Another run may be removing the same file.
            with suppress(OSError):
                written = path.stat().st_mtime
                if now - written > 86_400 * (PAST_DAYS if name["kind"] == "past" else ROUNDS_DAYS):
                    path.unlink()
                elif name["subject"] == subject and not name["unfinished"]:
                    kept[name["kind"]].append((written, path))
        for files in kept.values():
            for _, path in sorted(files)[: max(0, len(files) - (KEPT - 1))]:
                with suppress(OSError):
                    path.unlink()


def _seconds(moment: str) -> float:
    """Seconds since the epoch of a moment in ISO 8601."""
    return datetime.fromisoformat(moment).timestamp()
