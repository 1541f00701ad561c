"""The baselines as each commit left them, along the line of first parents."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING

import msgspec

from pytest_gpuserve.compare.repository import HASH_SHOWN
from pytest_gpuserve.experiment.worktree import FULL_HISTORY
from pytest_gpuserve.store.published import FOLDER as PUBLISHED
from pytest_gpuserve.store.schema import READ_SCHEMAS, SCHEMA, Entry

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_gpuserve.compare.repository import Commit, Repository


@dataclass(frozen=True, slots=True)
class Edition:
    """An entry as a commit left it, which was another before, or none.

    Args:
        commit: The commit.
        folder: The baselines, from the top of the checkout.
        path: The file, from there too, by the name that it has at last.
        name: The entry in it.
        entry: What it held.
    """

    commit: Commit
    folder: str
    path: str
    name: str
    entry: Entry


@dataclass
class Walk:
    """What was found.

    Args:
        editions: Oldest first.
        notes: What could not be read, and what is not known, a line each.
    """

    editions: list[Edition] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def walk(repository: Repository, folder: str, since: str | None) -> Walk:
    """Read the editions of all entries.

    A commit of a merge counts by what it brought into the line of first parents. A file that is given another name
    stays the same file if nothing else about it changed, or if it is the only one that went and came with the commit
    and has an entry in common.

    Args:
        repository: Where to look.
        folder: The baselines, from the top of the checkout.
        since: The full hash of a commit: only what it had, and what came after it.

    Raises:
        UsageProblem: Git cannot be asked.
    """
    walker = _Walker(repository, folder)
    if repository.is_shallow:
        walker.found.notes.append(f"older commits are not here: {FULL_HISTORY}")
    commits = repository.commits(folder, since)
    for commit in commits if since is None else [repository.commit(since), *commits]:
        walker.step(commit)
    return walker.found


class _File(msgspec.Struct):
    # Newer files may have more, but not what we read of them otherwise.
    schema: int
    entries: dict[str, msgspec.Raw]


class _Walker:
    def __init__(self, repository: Repository, folder: str) -> None:
        self.found = Walk()
        self._repository = repository
        self._folder = folder
        self._files: dict[str, str] = {}
        self._known: dict[tuple[str, str], bytes] = {}

    def step(self, commit: Commit) -> None:
        files = {
            path: blob
            for path, blob in self._repository.files(commit.hash, self._folder).items()
            if path.endswith(".json") and f"/{PUBLISHED}/" not in path
        }
        read = {path: self._read(commit, path, blob) for path, blob in files.items() if self._files.get(path) != blob}
        for old, new in self._renamed(files, read):
            self._rename(old, new)
        for path in self._files.keys() - files.keys():
            # What comes again later is read again.
            self._known = {place: raw for place, raw in self._known.items() if place[0] != path}
        for path, entries in read.items():
            for name, raw in entries.items():
                self._keep(commit, path, name, raw)
        self._files = files

    def _renamed(self, files: Mapping[str, str], read: Mapping[str, Mapping[str, bytes]]) -> Iterator[tuple[str, str]]:
        gone = sorted(self._files.keys() - files.keys())
        came = sorted(files.keys() - self._files.keys())
        for new in came:
            old = next((path for path in gone if self._files[path] == files[new]), None)
            if old is None and len(gone) == len(came) == 1 and self._names_of(gone[0]) & read[new].keys():
                old = gone[0]
            if old is not None:
                gone.remove(old)
                yield old, new

    def _names_of(self, path: str) -> set[str]:
        return {name for file, name in self._known if file == path}

    def _rename(self, old: str, new: str) -> None:
        editions = self.found.editions
        editions[:] = [replace(each, path=new) if each.path == old else each for each in editions]
        for name in self._names_of(old):
            self._known[new, name] = self._known.pop((old, name))

    def _read(self, commit: Commit, path: str, blob: str) -> dict[str, bytes]:
        """The entries of a file as they stand there; none where it cannot be read."""
        try:
            file = msgspec.json.decode(self._repository.content(blob), type=_File)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            self._note(commit, path, str(problem))
            return {}
        if file.schema not in READ_SCHEMAS:
            self._note(commit, path, f"schema {file.schema}; this version reads schema {SCHEMA}")
            return {}
        return {name: bytes(raw) for name, raw in file.entries.items()}

    def _keep(self, commit: Commit, path: str, name: str, raw: bytes) -> None:
        told = sha256(raw).digest()
        if self._known.get((path, name)) == told:
            return
        self._known[path, name] = told
        try:
            entry = msgspec.json.decode(raw, type=Entry)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            self._note(commit, f"{path} {name}", str(problem))
            return
        self.found.editions.append(Edition(commit, self._folder, path, name, entry))

    def _note(self, commit: Commit, what: str, problem: str) -> None:
        self.found.notes.append(f"{commit.hash[:HASH_SHOWN]}: {what} cannot be read and is left out: {problem}")
