"""The baseline files of a folder: changed one at a time, and counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from pytest_gpuserve.device import DeviceLock
from pytest_gpuserve.errors import BaselineUnusable, DeviceProblem
from pytest_gpuserve.store.baseline import Stored, read, write
from pytest_gpuserve.store.schema import (
    Entry,
    Moment,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


LONGEST_WAIT_SECONDS: Final = 120.0
"""Beyond all that a few other workers can take to write their files, each well within a second."""

Decide = Callable[[Mapping[str, Stored]], Mapping[str, Entry | None]]
"""From the entries that a file has by now to those that change; None removes one."""


def change(path: Path, decide: Decide) -> dict[str, Stored]:
    """Change a baseline file as it is by then, and return its entries as they are read back.

    Raises:
        BaselineUnusable: It cannot be read or written; it is as it was.
    """
    with alone(path):
        there = read(path)
        entries = {**{key: stored.entry for key, stored in there.items()}, **decide(there)}
        write(path, {key: entry for key, entry in entries.items() if entry is not None})
        # Read back what was written, checks and all: a file that we could not read tomorrow must fail today.
        return read(path)


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Change baselines while no other process changes any: another worker may record beside it.

    One lock for all baselines of the machine: a change takes a moment, and no lock files are left in projects.

    Raises:
        BaselineUnusable: Others were at it for too long.
    """
    lock = DeviceLock("baselines", command="writes baselines")
    try:
        held = lock.acquire(wait_seconds=LONGEST_WAIT_SECONDS, on_wait=lambda *_: None)
    except DeviceProblem as problem:
        raise BaselineUnusable(
            f"baseline file {path} is not written: {problem.summary}", found=problem.found, looked=problem.looked
        ) from None
    with held:
        yield


SHOWN_DIGITS: Final = 12


@dataclass(frozen=True, slots=True)
class Stock:
    """The baselines in a folder.

    Args:
        newest: When the newest session of all was measured, ISO 8601 in UTC; empty where there is none.
        commit: Of the entry that it is in; None where that has none.
        unreadable: Number of files that could not be read.
    """

    entries: int = 0
    newest: str = ""
    commit: str | None = None
    unreadable: int = 0

    def __str__(self) -> str:
        """``12 entries, the newest of 2025-01-02 at 0123456789ab``."""
        text = f"{self.entries or 'no'} entr{'y' if self.entries == 1 else 'ies'}"
        if self.newest:
            commit = f" at {self.commit[:SHOWN_DIGITS]}" if self.commit else ""
            text += f", the newest of {self.newest[:10]}{commit}"
        if self.unreadable:
            text += f", {self.unreadable} file{'s' if self.unreadable > 1 else ''} that cannot be read"
        return text


# Fields that are not named here are passed over, which is quick.
class _Session(msgspec.Struct):
    at: Moment


class _Entry(msgspec.Struct):
    sessions: list[_Session]
    commit: str | None = None


class _FileOutline(msgspec.Struct):
    entries: msgspec.Raw = msgspec.Raw(b"{}")
    summary: msgspec.Raw = msgspec.Raw()


def _outline(data: bytes) -> dict[str, _Entry]:
    """The entries of a baseline file; none of a file of another kind, which has no summary. Raises msgspec's errors."""
    outline = msgspec.json.decode(data, type=_FileOutline)
    return msgspec.json.decode(outline.entries, type=dict[str, _Entry]) if bytes(outline.summary) else {}


def same_recording(data: bytes, key: str) -> Callable[[bytes], bool]:
    """Make what tells whether another version of a baseline file has an entry as this version has it.

    An entry is the same while its sessions began at the same times. How they are written, and what else an entry says,
    may change: a file that is rewritten for another schema brings no recording.

    Args:
        data: The bytes of the file.
        key: Names the entry, which the file has.
    """
    now = _began(data, key)
    return lambda other: bool(now) and _began(other, key) == now


def _began(data: bytes, key: str) -> list[str]:
    """When the sessions of an entry began; empty where the file cannot be read, or has no such entry."""
    try:
        entry = _outline(data).get(key)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return []
    return [] if entry is None else [session.at for session in entry.sessions]


def stock_of(folder: Path) -> Stock:
    """Count the baselines in ``baselines/<device>``, which may not exist; files of another kind are none."""
    entries = unreadable = 0
    newest, commit = "", None
    for path in sorted(folder.rglob("*.json")):
        try:
            found = _outline(path.read_bytes()).values()
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            unreadable += 1
            continue
        entries += len(found)
        for entry in found:
            at = max((session.at for session in entry.sessions), default="")
            if at > newest:
                newest, commit = at, entry.commit
    return Stock(entries, newest, commit, unreadable)
