"""A storage in memory, in the place of a `RemoteFolder`, to which a test can do what others would."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_gpuserve.store.remote.folder import RemoteFile, RemoteFolder, StorageProblem, VersionConflict

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class MemoryRemote(RemoteFolder):
    """A storage.

    Args:
        files: What it holds.
        before_put: Called, once each, before the writes to come: what another runner does in that moment.
        after_listing: The same, after the listings to come.
        fails: Whether it does not answer.
        fails_after: How many requests it answers before that, if so.
        loses: Called, once each, after writes that are done, and then not known to be.
        fetched: Names of what was fetched.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    before_put: list[Callable[[], object]] = field(default_factory=list)
    after_listing: list[Callable[[], object]] = field(default_factory=list)
    fails: bool = False
    fails_after: int | None = None
    loses: list[Callable[[], object]] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)

    def listing(self) -> dict[str, str]:
        """See `RemoteFolder`."""
        self._answer()
        found = {name: version_of(data) for name, data in self.files.items()}
        while self.after_listing:
            self.after_listing.pop()()
        return found

    def fetch(self, name: str, version: str | None = None) -> RemoteFile | None:
        """See `RemoteFolder`."""
        self._answer()
        self.fetched.append(name)
        data = self.files.get(name)
        return None if data is None else RemoteFile(data, version_of(data) if version is None else version)

    def check_writable(self) -> None:
        """See `RemoteFolder`: they may be."""
        self._answer()

    def put(self, name: str, data: bytes, *, over: str | None) -> str:
        """See `RemoteFolder`."""
        self._answer()
        if self.before_put:
            self.before_put.pop(0)()
        there = self.files.get(name)
        if (None if there is None else version_of(there)) != over:
            raise VersionConflict
        self.files[name] = data
        if self.loses:
            self.loses.pop(0)()
            raise VersionConflict
        return version_of(data)

    def close(self) -> None:
        """See `RemoteFolder`."""

    def _answer(self) -> None:
        if self.fails_after is not None:
            self.fails, self.fails_after = self.fails_after <= 0, self.fails_after - 1
        if self.fails:
            raise StorageProblem("s3://bucket/folder does not answer", found="TimeoutError", remedies=["wait"])


def version_of(data: bytes) -> str:
    """The version of a content."""
    return f"v{hash(data)}"
