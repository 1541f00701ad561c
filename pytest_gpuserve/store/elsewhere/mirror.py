"""The copy of a folder of baselines on this machine: only what has changed is fetched again.

fsspec's own caching file systems name files by hashes and look each one up by itself; what reads baselines here lists
folders, and one listing of an S3 tells what has changed of all files.

Sessions may share a copy: files are written whole, and what is said of one counts only while its content has the
checksum that was noted with it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import filelock
import msgspec

from pytest_gpuserve.store.atomic import write_whole
from pytest_gpuserve.store.elsewhere.address import FILES
from pytest_gpuserve.store.elsewhere.names import SUFFIX, is_baseline_name, is_for
from pytest_gpuserve.store.elsewhere.remote import StorageProblem
from pytest_gpuserve.units import utc_now

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpuserve.store.elsewhere.remote import Held, Remote

_LOCK_SECONDS: Final = 30.0
"""What is noted takes a moment to write."""


class _Noted(msgspec.Struct, frozen=True):
    version: str
    sha256: str


class _Notes(msgspec.Struct):
    devices: dict[str, str] = {}
    files: dict[str, _Noted] = {}


class BaselineCache:
    """A copy of a folder.

    Args:
        folder: Where it is kept.
    """

    def __init__(self, folder: Path) -> None:
        self.files = folder / FILES
        self._notes = folder / "notes.json"
        self._lock = folder / "notes.lock"

    def refresh(self, remote: Remote, device: str) -> None:
        """Make the copy of what a session on a device may need equal to the storage.

        Raises:
            StorageProblem: The storage cannot be read, or nothing can be written here.
            UsageProblem: It holds something else than baselines.
        """
        versions = {name: version for name, version in remote.listing().items() if is_for(name, device)}
        noted = self._read_notes().files
        stale = [
            name
            for name, version in versions.items()
            if not version or noted.get(name) != _Noted(version, self._sha256(name))
        ]
        found = {name: remote.fetch(name) for name in stale}
        fetched = {name: held for name, held in found.items() if held is not None}
        # Others may remove one after it was listed.
        there = versions.keys() - (found.keys() - fetched.keys())
        try:
            for path in self.files.rglob(f"*{SUFFIX}"):
                name = path.relative_to(self.files).as_posix()
                if is_baseline_name(name) and is_for(name, device) and name not in there:
                    path.unlink(missing_ok=True)
            for name, held in fetched.items():
                write_whole(self.files / name, held.data)
            self._note(fetched, device)
        except OSError as problem:
            raise self._not_kept(problem) from None

    def keep(self, name: str, held: Held) -> None:
        """Take over a file that was just written to the storage.

        Raises:
            StorageProblem: Nothing can be written here.
        """
        try:
            write_whole(self.files / name, held.data)
            self._note({name: held})
        except OSError as problem:
            raise self._not_kept(problem) from None

    def refreshed_at(self, device: str) -> str | None:
        """When what a device needs was last equal to the storage, ISO 8601 in UTC; None if it never was."""
        return self._read_notes().devices.get(device)

    def _note(self, fetched: dict[str, Held], device: str | None = None) -> None:
        self._lock.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(self._lock, timeout=_LOCK_SECONDS):
            notes = self._read_notes()
            for name, held in fetched.items():
                notes.files[name] = _Noted(held.version, _digest(held.data))
            if device is not None:
                notes.devices[device] = utc_now()
            write_whole(self._notes, msgspec.json.encode(notes, order="deterministic"))

    def _read_notes(self) -> _Notes:
        try:
            return msgspec.json.decode(self._notes.read_bytes(), type=_Notes)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            # Without them all is fetched again.
            return _Notes()

    def _sha256(self, name: str) -> str:
        try:
            return _digest((self.files / name).read_bytes())
        except OSError:
            return ""

    def _not_kept(self, problem: OSError) -> StorageProblem:
        return StorageProblem(
            f"the copy of the baselines in {self.files} cannot be written",
            found=f"{type(problem).__name__}: {problem}",
            remedies=["name another folder for caches with the variable XDG_CACHE_HOME"],
        )


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
