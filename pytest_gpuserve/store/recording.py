"""Which versions of a baseline file hold the same recording of a load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable


class _Session(msgspec.Struct, frozen=True):
    at: str
    starts: Any


class _Entry(msgspec.Struct, frozen=True):
    sessions: list[_Session]


class _File(msgspec.Struct):
    entries: dict[str, msgspec.Raw]


def same_recording(data: bytes, key: str) -> Callable[[bytes], bool]:
    """Make what tells whether another version of a baseline file has an entry as this version has it.

    An entry is the same while its sessions are, with all that was measured in them. How the file is written, and what
    else an entry says, may change: a file that is rewritten for another schema brings no recording.

    Args:
        data: The bytes of the file.
        key: Names the entry, which the file has.
    """
    now = _recording(data, key)

    def is_same(other: bytes) -> bool:
        return now is not None and _recording(other, key) == now

    return is_same


def _recording(data: bytes, key: str) -> _Entry | None:
    """What was measured; None where the file cannot be read, or has no such entry."""
    try:
        raw = msgspec.json.decode(data, type=_File).entries.get(key)
        return None if raw is None else msgspec.json.decode(raw, type=_Entry)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
