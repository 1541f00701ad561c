"""How many baselines a device has and how old they are, at a glance: nothing of them is checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from pytest_gpuserve.store.published import FOLDER
from pytest_gpuserve.store.schema import Moment  # noqa: TC001 -- msgspec reads it

if TYPE_CHECKING:
    from pathlib import Path

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


# Fields that are not named here are passed over, which is quick: the windows are nearly all of a file.
class _Session(msgspec.Struct):
    at: Moment


class _Entry(msgspec.Struct):
    commit: str | None
    sessions: list[_Session]


class _FileOutline(msgspec.Struct):
    entries: dict[str, _Entry]


def stock_of(folder: Path) -> Stock:
    """Count the baselines in ``baselines/<device>``, which may not exist; published numbers below it are none."""
    entries = unreadable = 0
    newest, commit = "", None
    for path in sorted(folder.rglob("*.json")):
        if path.relative_to(folder).parts[0] == FOLDER:
            continue
        try:
            found = msgspec.json.decode(path.read_bytes(), type=_FileOutline).entries.values()
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            unreadable += 1
            continue
        entries += len(found)
        for entry in found:
            at = max((session.at for session in entry.sessions), default="")
            if at > newest:
                newest, commit = at, entry.commit
    return Stock(entries, newest, commit, unreadable)
