"""Baselines that several runners write: none loses another's, and what is not written is told."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from pytest_gpuserve.comparison.baseline_store import BaselineKey, BaselineStore, Workload
from pytest_gpuserve.errors import BaselineUnusable
from pytest_gpuserve.store.baseline import render
from pytest_gpuserve.store.remote import StorageAddress, shared
from pytest_gpuserve.store.remote.shared import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    MOST_TRIES,
    NOT_KEPT,
    BaselineCache,
    SharedFiles,
)
from tests.fakes.memory_remote import MemoryRemote
from tests.support.builders import COMMIT, OTHER_COMMIT, here, session

if TYPE_CHECKING:
    from pathlib import Path

ADDRESS = StorageAddress("s3", "s3://bucket/folder")
FILE = "cpu/x/test_y.json"
WORKLOAD = Workload({"server": "mosec", "concurrency": "50"}, {"app_sha256": "ab"})


@dataclass
class Runner:
    """A run of pytest, as far as it reads and writes baselines.

    Args:
        remote: The storage.
        folder: On its own machine.
        host: That machine.
        commit: What it measures.
    """

    remote: MemoryRemote
    folder: Path
    host: str = "host-a"
    commit: str = COMMIT

    def __post_init__(self) -> None:
        cache = BaselineCache(self.folder / "copy")
        cache.refresh(self.remote, "cpu")
        self.files = SharedFiles(ADDRESS, cache)
        self.baseline_store = BaselineStore(cache.files / "cpu", here(self.host, commit=self.commit), self.files)

    def beside(self, name: str, host: str = "host-b", commit: str = OTHER_COMMIT) -> Runner:
        """Another run, which begins now: on its own machine, by default of another commit."""
        return Runner(self.remote, self.folder.parent / name, host, commit)

    def place(self, test: str = "test_z") -> BaselineKey:
        """Where a test's baseline is."""
        return self.baseline_store.key_of(f"suites/x/test_y.py::{test}", "")

    def judges(self, test: str = "test_z") -> bool:
        """Look at the baseline of a test, as before a recording; whether there is one."""
        return self.baseline_store.find(self.place(test)) is not None

    def records(self, day: int, test: str = "test_z", reason: str | None = None) -> str:
        """Record a session of that day of January; what was said."""
        measured = [session(at=f"2025-01-{day:02d}T00:00:00+00:00")]
        return self.baseline_store.record(self.place(test), WORKLOAD, measured, reason).done


@pytest.fixture
def paused(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long runners have waited."""
    paused: list[float] = []
    monkeypatch.setattr("pytest_gpuserve.store.remote.shared.time.sleep", paused.append)
    return paused


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch, paused: list[float]) -> MemoryRemote:
    """An empty storage, at every address."""
    remote = MemoryRemote()
    monkeypatch.setattr(shared, "open_remote", lambda _: remote)
    return remote


@pytest.fixture
def one(remote: MemoryRemote, tmp_path: Path) -> Runner:
    """A runner."""
    return Runner(remote, tmp_path / "one")


@pytest.fixture
def other(one: Runner) -> Runner:
    """Another one, on another machine, of another commit."""
    return one.beside("other")


def days(remote: MemoryRemote, test: str = "test_z") -> list[int]:
    """The days whose sessions are stored of a test."""
    entry = json.loads(remote.files[FILE])["entries"][test]
    return [int(record["at"][8:10]) for record in entry["sessions"]]


def test_what_is_recorded_is_read_by_the_next_run(one: Runner, remote: MemoryRemote) -> None:
    """It is in the storage and at once in the run's own copy; its own write is no conflict with itself."""
    assert not one.judges()
    assert one.records(1) == "recorded (1 session)"
    assert one.judges()
    assert one.place().shown == f"{ADDRESS}/{FILE}"
    following = one.beside("next")
    assert following.judges()
    assert (following.files.read(following.place().path)["test_z"].entry.commit, days(remote)) == (COMMIT, [1])
    assert one.records(2) == "added to (2 sessions)"
    assert days(remote) == [1, 2]


def test_a_write_in_between_is_not_lost(one: Runner, other: Runner, remote: MemoryRemote) -> None:
    """What another runner writes between our reading and our writing makes us read again."""
    other.judges("test_b")
    remote.before_put.append(lambda: other.records(2, "test_b"))
    assert one.records(1, "test_a") == "recorded (1 session)"
    assert (days(remote, "test_a"), days(remote, "test_b")) == ([1], [2])


def test_the_same_entry_is_not_overwritten(one: Runner, other: Runner, remote: MemoryRemote) -> None:
    """Of two that judged the same state and measured different code the second is refused, and told by whom."""
    one.judges()
    other.judges()
    other.records(2, reason="a slower, right tokenizer")
    before = dict(remote.files)
    with pytest.raises(BaselineUnusable) as problem:
        one.records(1)
    assert remote.files == before
    text = str(problem.value)
    assert f"test_z in {ADDRESS}/{FILE} is not recorded" in text
    assert f"commit {OTHER_COMMIT[:12]}, at 2025-01-02T00:00:00+00:00 on host 'host-b'" in text
    assert "a slower, right tokenizer" in text
    assert text.endswith(f"help: {NOT_KEPT}")


def test_an_entry_that_was_replaced_or_removed_is_not_written(one: Runner, remote: MemoryRemote) -> None:
    """The same where there was a baseline that all have judged; somebody may have removed it for a reason."""
    one.records(1)
    second, third = one.beside("second"), one.beside("third", "host-c", "c" * 40)
    assert second.judges()
    assert third.judges()
    assert second.records(2) == "replaced (1 session)"
    with pytest.raises(BaselineUnusable, match="no longer what this run was judged against"):
        third.records(3)
    assert days(remote) == [2]
    fourth = one.beside("fourth")
    fourth.judges()
    second.baseline_store.remove(second.place().path, ["test_z"])
    with pytest.raises(BaselineUnusable, match="removed meanwhile"):
        fourth.records(2)


def test_sessions_of_one_build_are_pooled(one: Runner, remote: MemoryRemote) -> None:
    """Two runners that measure the same clean commit each add theirs: nothing is overwritten."""
    second = one.beside("second", commit=COMMIT)
    one.judges()
    second.judges()
    one.records(1)
    assert second.records(2) == "added to (2 sessions)"
    assert days(remote) == [1, 2]


def test_a_write_whose_answer_was_lost_counts_once(one: Runner, other: Runner, remote: MemoryRemote) -> None:
    """Tried again by a library, it fails on what it has itself written; the sessions are not there twice.

    Nor where somebody else has written the file again before we look.
    """
    remote.loses.append(lambda: None)
    assert one.records(1, "test_a") == "recorded (1 session)"
    other.judges("test_b")
    remote.loses.append(lambda: other.records(2, "test_b"))
    assert one.records(1) == "recorded (1 session)"
    assert [days(remote, test) for test in ("test_a", "test_b", "test_z")] == [[1], [2], [1]]


def test_unused_entries_are_removed(one: Runner, remote: MemoryRemote) -> None:
    """A file that is empty then stays: to remove it takes a right of its own, and may hit another's write."""
    one.records(1, "test_a")
    one.records(2, "test_b")
    one.baseline_store.remove(one.place().path, ["test_a"])
    assert list(json.loads(remote.files[FILE])["entries"]) == ["test_b"]
    one.baseline_store.remove(one.place().path, ["test_b"])
    assert json.loads(remote.files[FILE])["entries"] == {}
    assert not one.judges("test_b")


def test_an_entry_that_was_recorded_meanwhile_is_not_removed(one: Runner, remote: MemoryRemote) -> None:
    """What is unused here may be somebody else's new test."""
    one.records(1)
    second = one.beside("second")
    second.judges()
    one.records(2)
    with pytest.raises(BaselineUnusable, match="is not removed"):
        second.baseline_store.remove(second.place().path, ["test_z"])
    assert days(remote) == [1, 2]


def test_a_busy_file_is_given_up(one: Runner, remote: MemoryRemote, paused: list[float]) -> None:
    """After so many tries in vain, with random pauses, it says so."""
    remote.before_put = [partial(remote.files.update, {FILE: rewritten(number)}) for number in range(MOST_TRIES)]
    with pytest.raises(BaselineUnusable, match=f"between each of {MOST_TRIES} tries"):
        one.records(1, "test_a")
    assert len(set(paused)) == MOST_TRIES
    assert 0 <= min(paused) <= max(paused) <= LONGEST_PAUSE_SECONDS
    assert paused[0] <= FIRST_PAUSE_SECONDS


def rewritten(number: int) -> bytes:
    """A file without entries, each time another one."""
    return render({}).encode() + b" " * number


def test_a_storage_that_fails_is_told(one: Runner, remote: MemoryRemote, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the cause and what helps, each time that it is asked; Ctrl-C while it is waited for names the file."""
    remote.fails = True
    for test in ("test_a", "test_b"):
        with pytest.raises(BaselineUnusable, match="found: TimeoutError\n  help: wait") as problem:
            one.records(1, test)
        assert str(problem.value).endswith(f"help: {NOT_KEPT}")
    remote.fails = False
    assert one.records(1) == "recorded (1 session)"
    monkeypatch.setattr(remote, "fetch", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt, match=f"while {ADDRESS}/{FILE} was written"):
        one.records(2)


@pytest.mark.parametrize("cut", [0, 1, 100, -20, -2])
def test_a_half_written_file_is_an_error(one: Runner, remote: MemoryRemote, cut: int) -> None:
    """It is neither a baseline nor none; to record over it is refused too, and says whose bytes they are."""
    one.records(1)
    remote.files[FILE] = remote.files[FILE][:cut]
    with pytest.raises(BaselineUnusable, match=re.escape(f"{ADDRESS}/{FILE}")) as problem:
        one.beside("second").judges()
    assert "git checkout" not in str(problem.value)
    before = dict(remote.files)
    with pytest.raises(BaselineUnusable, match=re.escape(f"{ADDRESS}/{FILE}")):
        one.records(2)
    assert remote.files == before
