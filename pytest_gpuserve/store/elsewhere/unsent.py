"""Measurements that could not be written where they belong: kept on this machine, with what they were judged against.

A folder of them is made for each session that needs one. `send` brings it to the storage later.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
from typing import TYPE_CHECKING, Final

import msgspec

from pytest_gpuserve.errors import BaselineUnusable, UsageProblem
from pytest_gpuserve.store.atomic import write_whole
from pytest_gpuserve.store.baseline import Origin, checked_bytes, read, write
from pytest_gpuserve.units import utc_now

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pytest_gpuserve.store.baseline import Stored
    from pytest_gpuserve.store.schema import Entry

BASELINES: Final = "baselines"
NOTES: Final = "unsent.json"

Digests = dict[str, str]
"""Of the entries of a file, by their names."""


class Notes(msgspec.Struct, forbid_unknown_fields=True):
    """What is known of a folder of unsent measurements.

    Args:
        url: Where they belong.
        based_on: For each file the entries that they were judged against; those that were not there have none.
    """

    url: str
    based_on: dict[str, Digests] = {}


class Unsent:
    """The unsent measurements of a session.

    Args:
        above: The folder that such folders are made in.
        url: Where they belong.
    """

    def __init__(self, above: Path, url: str) -> None:
        self._folder = above / f"{utc_now().replace(':', '')[:17]}-{os.getpid()}"
        self._notes = Notes(url)

    def keep(self, name: str, entries: Mapping[str, Entry], based_on: Digests) -> tuple[Path, str]:
        """Keep what was measured; returns the file, and the command that sends all of this session's.

        Args:
            name: Of the file in the storage.
            entries: That could not be written.
            based_on: The entries that they were judged against.

        Raises:
            OSError: It cannot be kept.
            BaselineUnusable: It cannot be kept.
        """
        path = self._folder / BASELINES / name
        kept = {key: stored.entry for key, stored in read(path).items()}
        write(path, {**kept, **entries})
        self._notes.based_on.setdefault(name, {}).update(
            {key: based_on[key] for key in entries if key in based_on},
        )
        write_whole(self._folder / NOTES, msgspec.json.format(msgspec.json.encode(self._notes)))
        return path, f"python -m pytest_gpuserve.store.elsewhere {shlex.quote(str(self._folder))}"


def read_notes(folder: Path) -> Notes:
    """Read what is known of a folder of unsent measurements.

    Raises:
        UsageProblem: It is none.
    """
    try:
        return msgspec.json.decode((folder / NOTES).read_bytes(), type=Notes)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as problem:
        raise UsageProblem(
            f"{folder} holds no measurements that are to be sent",
            found=str(problem),
            remedies=["the error of the run that could not write them names the folder"],
        ) from None


def read_unsent(folder: Path, name: str) -> dict[str, Stored]:
    """The entries of one file in such a folder.

    Raises:
        BaselineUnusable: It is not there, or cannot be trusted.
    """
    path = folder / BASELINES / name
    if not path.is_file():
        raise BaselineUnusable(f"baseline file {path} is gone", remedies=[f"remove {folder}, if it was sent"])
    return read(path)


def forget_entry(folder: Path, name: str, key: str) -> None:
    """Remove an entry that was sent from such a folder, so that it is not sent again over what others record.

    Raises:
        BaselineUnusable: It cannot be removed.
    """
    path = folder / BASELINES / name
    left = {other: stored.entry for other, stored in read(path).items() if other != key}
    try:
        # A file without entries stays: one that is gone is an error.
        write_whole(path, checked_bytes(left, Origin.of(path)))
    except OSError as problem:
        raise BaselineUnusable(
            f"{key} was sent, but cannot be removed from {path}",
            found=str(problem),
            remedies=["remove it before --replace sends it again"],
        ) from None


def forget(folder: Path) -> None:
    """Remove such a folder, all of which was sent.

    Raises:
        OSError: It cannot be removed.
    """
    shutil.rmtree(folder)


def digests(entries: Mapping[str, Stored]) -> Digests:
    """What tells the states of entries apart."""
    return {key: digest_of(stored.entry) for key, stored in entries.items()}


def digest_of(entry: Entry) -> str:
    """What tells one state of an entry from any other."""
    return hashlib.sha256(msgspec.json.encode(entry, order="deterministic")).hexdigest()
