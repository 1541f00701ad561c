"""The baseline files of a folder: changed one at a time, and counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import msgspec

from pytest_gpuserve.device import DeviceLock
from pytest_gpuserve.errors import BaselineUnusable, DeviceProblem
from pytest_gpuserve.store.baseline import Stored, read, write
from pytest_gpuserve.store.schema import Entry, Moment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


LONGEST_WAIT_SECONDS: Final = 120.0
"""Longest wait for other workers, each of which writes its file well within a second."""

Decide = Callable[[Mapping[str, Stored]], Mapping[str, Entry | None]]
"""Function from the present entries of a file to those that change; None removes one."""


def change(path: Path, decide: Decide) -> dict[str, Stored]:
    """Change a baseline file from its present entries, and return its entries as they are read back.

    Raises:
        BaselineUnusable: The file cannot be read or written; it is unchanged.
    """
    with alone(path):
        there = read(path)
        entries = {**{key: stored.entry for key, stored in there.items()}, **decide(there)}
        write(path, {key: entry for key, entry in entries.items() if entry is not None})
        # Read back with all checks: a file that could not be read tomorrow must fail today.
        return read(path)


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Change baselines while no other process changes any, because another worker may record too.

    One lock serves all baselines of the machine, because a change is short, and no lock files stay in projects.

    Raises:
        BaselineUnusable: Other processes held the lock for too long.
    """
    lock = DeviceLock("baselines")
    try:
        held = lock.acquire(wait_seconds=LONGEST_WAIT_SECONDS, on_wait=lambda *_: None)
    except DeviceProblem as problem:
        raise BaselineUnusable(
            f"baseline file {path} is not written: {problem.summary}", found=problem.found, looked=problem.looked
        ) from None
    with held:
        yield


# Fields that are not named here are skipped, which is fast.
class _Session(msgspec.Struct):
    at: Moment


class _Entry(msgspec.Struct):
    sessions: list[_Session]


class _FileOutline(msgspec.Struct):
    entries: msgspec.Raw = msgspec.Raw(b"{}")
    summary: msgspec.Raw = msgspec.Raw()


def _outline(data: bytes) -> dict[str, _Entry]:
    """The entries of a baseline file; empty for a file of another kind, without a summary. Raises msgspec's errors."""
    outline = msgspec.json.decode(data, type=_FileOutline)
    return msgspec.json.decode(outline.entries, type=dict[str, _Entry]) if bytes(outline.summary) else {}


def same_recording(data: bytes, key: str) -> Callable[[bytes], bool]:
    """Make a function that tells whether another version of a baseline file has the same recording of an entry.

    A recording is the same if its sessions began at the same times. Their form, and the rest of an entry, may change: a
    file that is rewritten for another schema has the same recordings.

    Args:
        data: The bytes of the file.
        key: Key of the entry, which the file has.
    """
    now = _began(data, key)
    return lambda other: bool(now) and _began(other, key) == now


def _began(data: bytes, key: str) -> list[str]:
    """Begin of each session of an entry; empty if the file cannot be read, or lacks the entry."""
    try:
        entry = _outline(data).get(key)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return []
    return [] if entry is None else [session.at for session in entry.sessions]


def stock_of(folder: Path) -> tuple[int, int]:
    """Count the entries in ``baselines/<device>``, which may not exist, and its files that cannot be read.

    Files of another kind do not count.
    """
    entries = unreadable = 0
    for path in folder.rglob("*.json"):
        try:
            entries += len(_outline(path.read_bytes()))
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            unreadable += 1
    return entries, unreadable
