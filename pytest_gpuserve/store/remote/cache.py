"""The copy of a folder of baselines on this machine: only what has changed is fetched again.

fsspec's ``filecache`` cannot take its place. It lists nothing without asking the storage, names files by hashes, and
writes them in place: another session, or a run offline after a transfer that was cut off, reads half a file.

Sessions may share a copy: files are written whole, and a version counts only for the content that was noted with it.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import TYPE_CHECKING

from pytest_gpuserve.store.atomic import write_whole
from pytest_gpuserve.store.remote.address import FILES
from pytest_gpuserve.store.remote.folder import SUFFIX, StorageProblem, is_baseline_name, is_for
from pytest_gpuserve.units import utc_now

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpuserve.store.remote.folder import Held, RemoteFolder


class BaselineCache:
    """A copy of a folder.

    Args:
        folder: Where it is kept.
    """

    def __init__(self, folder: Path) -> None:
        self.files = folder / FILES
        self._versions = folder / "versions"
        self._as_of = folder / "as-of"

    def refresh(self, remote: RemoteFolder, device: str) -> None:
        """Make the copy of what a session on a device may need equal to the storage.

        Raises:
            StorageProblem: The storage cannot be read, holds something else than baselines, or nothing can be
                written here.
        """
        versions = {name: version for name, version in remote.listing().items() if is_for(name, device)}
        stale = {name: version for name, version in versions.items() if not self._has(name, version)}
        # All of it before anything is replaced. Others may remove one after it was listed.
        found = {name: remote.fetch(name, version) for name, version in stale.items()}
        gone = {name for name, held in found.items() if held is None}
        try:
            for path in self.files.rglob(f"*{SUFFIX}"):
                name = path.relative_to(self.files).as_posix()
                if is_baseline_name(name) and is_for(name, device) and (name not in versions or name in gone):
                    path.unlink(missing_ok=True)
            for name, held in found.items():
                if held is not None:
                    self._write(name, held)
            write_whole(self._as_of / device, utc_now().encode())
        except OSError as problem:
            raise StorageProblem(
                f"the copy of the baselines in {self.files} cannot be written",
                found=f"{type(problem).__name__}: {problem}",
                remedies=["name another folder for caches with the variable XDG_CACHE_HOME"],
            ) from None

    def keep(self, name: str, held: Held) -> None:
        """Take over a file that was just written to the storage; where it cannot, it is fetched again."""
        with suppress(OSError):
            self._write(name, held)

    def refreshed_at(self, device: str) -> str | None:
        """When what a device needs was last equal to the storage, ISO 8601 in UTC; None if it never was."""
        try:
            return (self._as_of / device).read_text("utf-8", "replace")
        except OSError:
            return None

    def _write(self, name: str, held: Held) -> None:
        write_whole(self.files / name, held.data)
        write_whole(self._versions / name, _noted(held.version, held.data))

    def _has(self, name: str, version: str) -> bool:
        """Whether the copy of a file is of a version, and whole."""
        try:
            noted = _noted(version, (self.files / name).read_bytes())
            return version != "" and (self._versions / name).read_bytes() == noted
        except OSError:
            return False


def _noted(version: str, data: bytes) -> bytes:
    return f"{version} {hashlib.sha256(data).hexdigest()}".encode()
