"""Baseline files of a session that are kept in shared storage: read from a copy, written only over what was read.

A change fetches the file anew, so that of entries that others have written meanwhile none is lost. Of the entry that
changes this session has judged one state; if another runner has replaced it since, the change is refused, but where
both have measured the same build and the new entry holds the sessions of both.
"""

from __future__ import annotations

import random
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

from pytest_gpuserve.errors import BaselineUnusable, GpuserveError
from pytest_gpuserve.store.baseline import Origin, checked_bytes, parse
from pytest_gpuserve.store.elsewhere.remote import Changed, Held, StorageProblem
from pytest_gpuserve.store.elsewhere.unsent import digest_of, digests
from pytest_gpuserve.store.files import changed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from pytest_gpuserve.store.baseline import Stored
    from pytest_gpuserve.store.elsewhere.address import Address
    from pytest_gpuserve.store.elsewhere.mirror import BaselineCache
    from pytest_gpuserve.store.elsewhere.remote import Remote
    from pytest_gpuserve.store.elsewhere.unsent import Digests, Unsent
    from pytest_gpuserve.store.files import Decide
    from pytest_gpuserve.store.schema import Entry

MOST_TRIES: Final = 12
"""Each is lost to another runner that wrote the same file in the second that a try takes."""

FIRST_PAUSE_SECONDS: Final = 0.2
LONGEST_PAUSE_SECONDS: Final = 5.0
"""Longest pauses after the first try and after any: they double, and each is random, so that the same runner does not
lose every time. Source: M. Brooker, "Exponential Backoff And Jitter" (2015), its "full jitter"."""

MOST_FAILURES: Final = 2
"""After so many in a row a storage is not asked again: each may take minutes, and what is measured is kept here."""

_SHOWN_DIGITS: Final = 12

Answer = TypeVar("Answer")


class Conflict(BaselineUnusable):
    """An entry is no longer what this run was judged against; nothing was written."""


class SharedFiles:
    """See `BaselineFiles`.

    Args:
        address: Of the folder.
        mirror: Its copy, which has been refreshed.
        connect: Makes ready to ask the storage.
        unsent: Keeps what cannot be written.
        sleep: Waits so many seconds.
        as_of: Of when the copy is, where it was not refreshed for this session; empty else.
    """

    def __init__(
        self,
        address: Address,
        mirror: BaselineCache,
        connect: Callable[[], Remote],
        unsent: Unsent,
        *,
        as_of: str = "",
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._address = address
        self._mirror = mirror
        self._connect = connect
        self._unsent = unsent
        self._remote: Remote | None = None
        self._failures = 0
        self._given_up = ""
        self._sleep = sleep
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
        return parse(data, self._origin(self._name(path)))

    def change(self, path: Path, known: Mapping[str, Stored] | None, decide: Decide) -> dict[str, Stored]:
        """See `BaselineFiles`; what cannot be written is kept on this machine, and the error says where."""
        name = self._name(path)
        judged = self.read(path) if known is None else known
        based_on = digests(judged)
        try:
            return self.change_over(name, based_on, decide)
        except KeyboardInterrupt:
            # Whoever waits no longer for this file waits for no other one.
            self._given_up = "it was interrupted"
            kept = self._kept(name, _recorded(decide(judged)), based_on, replace=False)
            # The one text that pytest shows of it.
            raise KeyboardInterrupt("; ".join(kept)) from None
        except GpuserveError as problem:
            kept = self._kept(name, _recorded(decide(judged)), based_on, replace=isinstance(problem, Conflict))
            raise BaselineUnusable(
                problem.summary,
                found=problem.found,
                looked=problem.looked,
                remedies=[*kept, *problem.remedies],
            ) from None

    def change_over(self, name: str, based_on: Digests | None, decide: Decide) -> dict[str, Stored]:
        """Change a file in the storage, and return its entries.

        Args:
            name: Of the file.
            based_on: The entries that the change was judged against; None to change whatever is there.
            decide: Says what changes.

        Raises:
            StorageProblem: The storage did not do it; it may have done it all the same where its answer was lost.
            Conflict: An entry is another one by now.
            BaselineUnusable: The file cannot be trusted, or is written by others all the time; nothing was written.
        """
        tried: dict[str, Entry | None] = {}
        for number in range(MOST_TRIES):
            held = self._asked(lambda remote: remote.fetch(name))
            there = {} if held is None else parse(held.data, self._origin(name))
            # Where the answer to a write was lost, the next try finds what that has written.
            if held is not None and tried and tried == _of(there, tried):
                return self._taken_over(name, held, there)
            changes = decide(there)
            if based_on is not None:
                self._refuse_conflicts(name, based_on, there, changes)
            data = checked_bytes(changed(there, changes), self._origin(name))
            if held is not None and held.data == data:
                return self._taken_over(name, held, there)
            then = parse(data, self._origin(name))
            tried = _of(then, changes)
            try:
                return self._taken_over(name, self._put(name, held, data), then)
            except Changed:
                longest = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2**number)
                self._sleep(self._random.uniform(0.0, longest))
        raise BaselineUnusable(
            f"baseline file {self._address.of(name)} is not written",
            found=f"others wrote it between each of {MOST_TRIES} tries",
        )

    def close(self) -> None:
        """See `BaselineFiles`."""
        if self._remote is not None:
            self._remote.close()
            self._remote = None

    def _put(self, name: str, over: Held | None, data: bytes) -> Held:
        version = None if over is None else over.version
        return Held(data, self._asked(lambda remote: remote.put(name, data, over=version)))

    def _asked(self, ask: Callable[[Remote], Answer]) -> Answer:
        """What the storage answers, while it does."""
        if self._given_up:
            raise StorageProblem(f"{self._address} is not asked again", found=self._given_up)
        if self._remote is None:
            self._remote = self._connect()
        try:
            answer = ask(self._remote)
        except StorageProblem:
            self._failures += 1
            if self._failures >= MOST_FAILURES:
                self._given_up = f"it has failed {self._failures} times in a row"
            raise
        self._failures = 0
        return answer

    def _refuse_conflicts(
        self, name: str, based_on: Digests, there: Mapping[str, Stored], changes: Mapping[str, Entry | None]
    ) -> None:
        for key, entry in changes.items():
            other = _of(there, [key])[key]
            if other == entry or (None if other is None else digest_of(other)) == based_on.get(key):
                continue
            # Of one build, to whose sessions this run's were added.
            if other is not None and entry is not None and other.sessions[-1] in entry.sessions:
                continue
            raise Conflict(
                f"{key} in {self._address.of(name)} is not {'removed' if entry is None else 'recorded'}:"
                " it is no longer what this run was judged against",
                found="it was removed meanwhile" if other is None else _by_whom(other),
                remedies=["run it again, so that it is judged against what is there now"],
            )

    def _taken_over(self, name: str, held: Held, entries: dict[str, Stored]) -> dict[str, Stored]:
        """The entries of a file, of which the copy has become one."""
        # The storage has it, which counts; a copy that lags behind is fetched again.
        with suppress(StorageProblem):
            self._mirror.keep(name, held)
        return entries

    def _kept(self, name: str, entries: Mapping[str, Entry], based_on: Digests, *, replace: bool) -> list[str]:
        """Where what was measured is kept, and what can be done with it."""
        if not entries:
            return []
        try:
            path, command = self._unsent.keep(name, entries, based_on)
        except (OSError, GpuserveError) as problem:
            return [f"what was measured is lost: it could not be kept on this machine: {problem}"]
        how = f"to put it in the place of theirs: {command} --replace" if replace else f"to send it later: {command}"
        return [f"what was measured is kept in {path}", how]

    def _name(self, path: Path) -> str:
        return path.relative_to(self._mirror.files).as_posix()

    def _origin(self, name: str) -> Origin:
        restore = (
            "put an older version of it back, where the storage keeps them, or remove it and record it again with"
            " --baseline-update"
        )
        return Origin(self._address.of(name), restore)


def _recorded(changes: Mapping[str, Entry | None]) -> dict[str, Entry]:
    return {key: entry for key, entry in changes.items() if entry is not None}


def _of(entries: Mapping[str, Stored], keys: Iterable[str]) -> dict[str, Entry | None]:
    return {key: entries[key].entry if key in entries else None for key in keys}


def _by_whom(entry: Entry) -> str:
    """Who has recorded an entry, as far as it says."""
    last = entry.sessions[-1]
    of = f"of commit {entry.commit[:_SHOWN_DIGITS]}" if entry.commit else "of no commit"
    why = f", because: {' '.join(entry.reason.split())}" if entry.reason else ""
    return f"another runner has recorded it {of}, at {last.at} on host {last.host.id!r}{why}"
