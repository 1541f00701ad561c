"""Baseline files of a session that are kept in shared storage: read from a copy, written only over what was read.

A change fetches the file again, so that no entry that others have written meanwhile is lost. Of the entry that
changes this session has judged one state; if another runner has replaced it since, the change is refused, but where
both have measured the same build and the new entry holds the sessions of both. What is not written is not kept.

Of the copy on this machine only what has changed is fetched again. fsspec's ``filecache`` cannot take its place. It
lists nothing without asking the storage, names files by hashes, and writes them in place: another session, or a run
offline after a transfer that was cut off, reads half a file. Sessions may share a copy: files are written whole, and a
version counts only for the content that was noted with it.
"""

from __future__ import annotations

import hashlib
import os
import random
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.errors import BaselineUnusable, GpuserveError, UsageProblem
from pytest_gpuserve.store import write_whole
from pytest_gpuserve.store.baseline import Origin, checked_bytes, parse
from pytest_gpuserve.store.files import changed
from pytest_gpuserve.store.remote import FILES, copy_folder
from pytest_gpuserve.store.remote.folder import (
    SUFFIX,
    RemoteFile,
    StorageProblem,
    VersionConflict,
    is_baseline_name,
    is_for,
    open_remote,
)
from pytest_gpuserve.units import utc_now

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from pytest_gpuserve.store.baseline import Stored
    from pytest_gpuserve.store.files import Decide
    from pytest_gpuserve.store.remote import StorageAddress
    from pytest_gpuserve.store.remote.folder import RemoteFolder
    from pytest_gpuserve.store.schema import Entry


class BaselineCache:
    """The copy of a folder of baselines on this machine."""

    def __init__(self, folder: Path) -> None:
        self.files = folder / FILES
        self._versions = folder / "versions"
        self._as_of = folder / "as-of"

    def refresh(self, remote: RemoteFolder, device: str) -> None:
        """Make the copy of what a session on a device may need equal to the storage.

        Raises:
            StorageProblem: The storage cannot be read or holds other files, or the copy cannot be written.
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

    def keep(self, name: str, held: RemoteFile) -> None:
        """Take over a file that was just written to the storage; where it cannot, it is fetched again."""
        with suppress(OSError):
            self._write(name, held)

    def refreshed_at(self, device: str) -> str | None:
        """When what a device needs was last equal to the storage, ISO 8601 in UTC; None if it never was."""
        try:
            return (self._as_of / device).read_text("utf-8", "replace")
        except OSError:
            return None

    def _write(self, name: str, held: RemoteFile) -> None:
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


MOST_TRIES: Final = 12
"""Each is lost to another runner that wrote the same file in the second that a try takes."""

FIRST_PAUSE_SECONDS: Final = 0.2
LONGEST_PAUSE_SECONDS: Final = 5.0
"""Longest pauses after the first try and after any: they double, and each is random, so that the same runner does not
lose every time. Source: M. Brooker, "Exponential Backoff And Jitter" (2015), its "full jitter"."""

NOT_KEPT: Final = "what was to be written is not kept: run it again, so that it is judged against what is there then"

_SHOWN_DIGITS: Final = 12


def shared_files(address: StorageAddress, device: str, *, needed: bool, updates: bool, offline: bool) -> SharedFiles:
    """Fetch what a session needs, or take what was fetched before.

    Args:
        needed: Whether baselines will be read or written; else the storage is not asked, and the copy is as it was.
        updates: Whether it will write.
        offline: Whether the storage is not asked, and what an earlier session fetched is read as it is.

    Raises:
        UsageProblem: The storage does not let it be read, or written, or has nothing that does so safely; or nothing
            was fetched before.
    """
    cache = BaselineCache(copy_folder(address, os.environ))
    before = cache.refreshed_at(device)
    if needed and offline:
        if before is None:
            raise UsageProblem(
                f"--baseline-offline: nothing was ever fetched from {address} for {device} on this machine",
                looked=[str(cache.files)],
                remedies=["run once without --baseline-offline"],
            )
        return SharedFiles(address, cache, as_of=before)
    try:
        if needed:
            with closing(open_remote(address)) as remote:
                if updates:
                    remote.check_writable()
                cache.refresh(remote, device)
    except StorageProblem as problem:
        stale = [f"--baseline-offline takes what was fetched at {before}"] if before and not updates else []
        raise UsageProblem(
            f"--baseline-dir: {problem.summary}",
            found=problem.found,
            remedies=[*problem.remedies, *stale, "--baseline-dir=DIR names a folder instead"],
        ) from None
    return SharedFiles(address, cache)


class SharedFiles:
    """Baseline files in shared storage; ``as_of`` says how old the copy is, where it was not refreshed."""

    def __init__(self, address: StorageAddress, cache: BaselineCache, *, as_of: str = "") -> None:
        self._address = address
        self._cache = cache
        self._random = random.SystemRandom()
        self.as_of = as_of

    def shown(self, path: Path) -> str:
        """See `BaselineFiles`."""
        return self._address.of(self._name(path))

    def read(self, path: Path) -> dict[str, Stored]:
        """See `BaselineFiles`."""
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as problem:
            raise BaselineUnusable(f"the copy of {self.shown(path)} cannot be read", found=str(problem)) from None
        return self._parsed(data, path)

    def change(self, path: Path, known: Mapping[str, Stored] | None, decide: Decide) -> dict[str, Stored]:
        """See `BaselineFiles`; it may be written all the same where the storage's answer was lost."""
        judged = self.read(path) if known is None else known
        try:
            with closing(open_remote(self._address)) as remote:
                return self._change(remote, path, judged, decide)
        except KeyboardInterrupt:
            # The one line that pytest shows of it.
            raise KeyboardInterrupt(f"while {self.shown(path)} was written: it may be there, or not") from None
        except GpuserveError as problem:
            raise BaselineUnusable(
                problem.summary, found=problem.found, looked=problem.looked, remedies=[*problem.remedies, NOT_KEPT]
            ) from None

    def _change(
        self, remote: RemoteFolder, path: Path, judged: Mapping[str, Stored], decide: Decide
    ) -> dict[str, Stored]:
        name, origin = self._name(path), self._origin(path)
        tried: dict[str, Entry | None] = {}
        for number in range(MOST_TRIES):
            held = remote.fetch(name)
            there = {} if held is None else self._parsed(held.data, path)
            # Where the answer to a write was lost, the next try finds what that has written.
            if held is None or not tried or tried != _of(there, tried):
                changes = decide(there)
                self._refuse_conflicts(path, judged, there, changes)
                data = checked_bytes(changed(there, changes), origin)
                then = parse(data, origin)
                tried = _of(then, changes)
                try:
                    version = remote.put(name, data, over=None if held is None else held.version)
                except VersionConflict:
                    longest = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2**number)
                    time.sleep(self._random.uniform(0.0, longest))
                    continue
                held, there = RemoteFile(data, version), then
            self._cache.keep(name, held)
            return there
        raise BaselineUnusable(
            f"baseline file {origin.name} is not written", found=f"others wrote it between each of {MOST_TRIES} tries"
        )

    def _refuse_conflicts(
        self,
        path: Path,
        judged: Mapping[str, Stored],
        there: Mapping[str, Stored],
        changes: Mapping[str, Entry | None],
    ) -> None:
        for key, entry in changes.items():
            other = _of(there, [key])[key]
            if other in (entry, _of(judged, [key])[key]):
                continue
            # Of one build, to whose sessions this run's were added.
            if other is not None and entry is not None and other.sessions[-1] in entry.sessions:
                continue
            raise BaselineUnusable(
                f"{key} in {self.shown(path)} is not {'removed' if entry is None else 'recorded'}:"
                " it is no longer what this run was judged against",
                found="it was removed meanwhile" if other is None else _by_whom(other),
            )

    def _name(self, path: Path) -> str:
        return path.relative_to(self._cache.files).as_posix()

    def _origin(self, path: Path) -> Origin:
        return Origin(
            self.shown(path),
            "put an older version of it back, where the storage keeps them, or remove it and record it again with"
            " --baseline-update",
        )

    def _parsed(self, data: bytes, path: Path) -> dict[str, Stored]:
        return parse(data, self._origin(path))


def _of(entries: Mapping[str, Stored], keys: Iterable[str]) -> dict[str, Entry | None]:
    return {key: entries[key].entry if key in entries else None for key in keys}


def _by_whom(entry: Entry) -> str:
    """The commit and host that recorded an entry."""
    last = entry.sessions[-1]
    of = f"of commit {entry.commit[:_SHOWN_DIGITS]}" if entry.commit else "of no commit"
    why = f", because: {' '.join(entry.reason.split())}" if entry.reason else ""
    return f"another runner has recorded it {of}, at {last.at} on host {last.host.id!r}{why}"
