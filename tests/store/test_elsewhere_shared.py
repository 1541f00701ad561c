"""Baselines that several runners write: none loses another's, and what cannot be written is kept and can be sent."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.comparison.baseline_store import BaselineStore, Place, Workload
from pytest_gpuserve.errors import BaselineUnusable
from pytest_gpuserve.store.baseline import render
from pytest_gpuserve.store.elsewhere import __main__ as sending
from pytest_gpuserve.store.elsewhere.address import Address
from pytest_gpuserve.store.elsewhere.mirror import BaselineCache
from pytest_gpuserve.store.elsewhere.shared import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    MOST_FAILURES,
    MOST_TRIES,
    SharedFiles,
)
from pytest_gpuserve.store.elsewhere.unsent import NOTES, Unsent
from tests.fakes.memory_remote import MemoryRemote
from tests.support.builders import COMMIT, OTHER_COMMIT, here, session

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpuserve.store.elsewhere.remote import Held

ADDRESS = Address("s3", "s3://bucket/folder")
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
        mirror = BaselineCache(self.folder / "copy")
        mirror.refresh(self.remote, "cpu")
        self.unsent = self.folder / "unsent"
        self.paused: list[float] = []
        self.files = SharedFiles(
            ADDRESS, mirror, lambda: self.remote, Unsent(self.unsent, ADDRESS.url), sleep=self.paused.append
        )
        self.baseline_store = BaselineStore(mirror.files / "cpu", here(self.host, commit=self.commit), self.files)

    def beside(self, name: str, host: str = "host-b", commit: str = OTHER_COMMIT) -> Runner:
        """Another run, which begins now: on its own machine, by default of another commit."""
        return Runner(self.remote, self.folder.parent / name, host, commit)

    def place(self, test: str = "test_z") -> Place:
        """Where a test's baseline is."""
        return self.baseline_store.place(f"suites/x/test_y.py::{test}", "")

    def judges(self, test: str = "test_z") -> bool:
        """Look at the baseline of a test, as before a recording; whether there is one."""
        return self.baseline_store.find(self.place(test)) is not None

    def records(self, day: int, test: str = "test_z", reason: str | None = None) -> str:
        """Record a session of that day of January; what was said."""
        measured = [session(at=f"2025-01-{day:02d}T00:00:00+00:00")]
        return self.baseline_store.record(self.place(test), WORKLOAD, measured, reason).done

    def fails(self, day: int = 1, test: str = "test_z") -> str:
        """Record a session while the storage does not answer; what is said."""
        self.remote.fails = True
        with pytest.raises(BaselineUnusable) as problem:
            self.records(day, test)
        self.remote.fails = False
        return str(problem.value)

    def kept_tests(self) -> list[str]:
        """The tests whose measurements could not be written."""
        return sorted(json.loads((self.kept() / "baselines" / FILE).read_text())["entries"])

    def kept(self) -> Path:
        """The one folder of measurements that could not be written."""
        (folder,) = self.unsent.iterdir()
        return folder


@pytest.fixture
def remote() -> MemoryRemote:
    """An empty storage."""
    return MemoryRemote()


@pytest.fixture
def one(remote: MemoryRemote, tmp_path: Path) -> Runner:
    """A runner."""
    return Runner(remote, tmp_path / "one")


@pytest.fixture
def other(one: Runner) -> Runner:
    """Another one, on another machine, of another commit."""
    return one.beside("other")


def full(*_: object) -> None:
    """A disk that takes no more."""
    raise OSError(28, "No space left on device")


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
    kept = one.kept() / "baselines" / FILE
    assert str(kept) in text
    assert f"to put it in the place of theirs: python -m pytest_gpuserve.store.elsewhere {one.kept()} --replace" in text
    assert json.loads(kept.read_text())["entries"]["test_z"]["sessions"][0]["at"].startswith("2025-01-01")


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
    remote.loses = True
    assert one.records(1, "test_a") == "recorded (1 session)"
    assert days(remote, "test_a") == [1]
    other.judges("test_b")
    real, remote.loses = remote.fetch, True

    def fetch(name: str) -> Held | None:
        if "test_z" in remote.files[FILE].decode() and "test_b" not in remote.files[FILE].decode():
            remote.fetch = real  # type: ignore[method-assign]
            other.records(2, "test_b")
        return real(name)

    remote.fetch = fetch  # type: ignore[method-assign]
    one.records(1)
    assert (days(remote), days(remote, "test_b")) == ([1], [2])


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
    assert not second.unsent.exists()


def test_a_busy_file_is_given_up(one: Runner, other: Runner, remote: MemoryRemote) -> None:
    """After so many tries in vain, with random pauses, it says so, and keeps what was measured."""
    remote.before_put = [partial(remote.files.update, {FILE: rewritten(number)}) for number in range(MOST_TRIES)]
    with pytest.raises(BaselineUnusable, match=f"between each of {MOST_TRIES} tries"):
        one.records(1, "test_a")
    assert one.kept().is_dir()
    assert len(set(one.paused)) == MOST_TRIES
    assert 0 <= min(one.paused) <= max(one.paused) <= LONGEST_PAUSE_SECONDS
    assert one.paused[0] <= FIRST_PAUSE_SECONDS


def rewritten(number: int) -> bytes:
    """A file without entries, each time another one."""
    return render({}).encode() + b" " * number


def test_a_storage_that_fails_is_told_and_nothing_is_lost(one: Runner) -> None:
    """The error names the storage, its cause, the file with what was measured, and the command that sends it."""
    one.judges()
    text = one.fails()
    assert "TimeoutError" in text
    assert f"to send it later: python -m pytest_gpuserve.store.elsewhere {one.kept()}" in text
    assert "--replace" not in text
    assert one.kept_tests() == ["test_z"]


def test_a_storage_that_fails_is_not_asked_for_ever(one: Runner, remote: MemoryRemote) -> None:
    """Each failure may take minutes: after a few in a row the other tests of a run are kept here at once."""
    remote.asked = 0
    tests = [f"test_{number}" for number in range(MOST_FAILURES + 3)]
    for test in tests:
        one.fails(test=test)
    assert remote.asked == MOST_FAILURES
    assert one.kept_tests() == tests


def test_what_is_measured_outlives_an_interrupt(
    one: Runner, remote: MemoryRemote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while a storage hangs says where the measurement is kept, and the storage is not waited for again."""
    one.judges()
    remote.asked = 0

    def hangs(_: str) -> Held:
        remote.asked += 1
        raise KeyboardInterrupt

    monkeypatch.setattr(remote, "fetch", hangs)
    with pytest.raises(KeyboardInterrupt) as interrupt:
        one.records(1)
    assert f"to send it later: python -m pytest_gpuserve.store.elsewhere {one.kept()}" in str(interrupt.value)
    with pytest.raises(BaselineUnusable, match="it was interrupted"):
        one.records(1, "test_other")
    assert remote.asked == 1
    assert one.kept_tests() == ["test_other", "test_z"]


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
    assert one.kept().is_dir()


def test_a_copy_that_cannot_be_written_does_not_fail_a_write(
    one: Runner, remote: MemoryRemote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storage has it; the copy is fetched again by the next run."""
    monkeypatch.setattr("pytest_gpuserve.store.elsewhere.mirror.write_whole", full)
    assert one.records(1) == "recorded (1 session)"
    assert days(remote) == [1]


def test_what_cannot_be_kept_is_said(one: Runner, remote: MemoryRemote) -> None:
    """The worst case is told as what it is; what a session opened it closes once, and it may have opened nothing."""
    one.files.close()
    assert remote.closed == 0
    one.unsent.write_text("")
    assert "what was measured is lost" in one.fails()
    one.files.close()
    one.files.close()
    assert remote.closed == 1


@pytest.fixture
def send(remote: MemoryRemote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command find this storage."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sending, "open_remote", lambda _: remote)


@pytest.mark.usefixtures("send")
def test_what_was_kept_is_sent_later(one: Runner, remote: MemoryRemote, capsys: pytest.CaptureFixture[str]) -> None:
    """It is added to, or of another build replaces, what it was judged against; the folder is removed."""
    one.records(1, "test_a")
    one.records(1, "test_z")
    second = one.beside("second")
    assert second.judges("test_z")
    second.fails(2)
    for test in ("test_a", "test_b"):
        one.fails(2, test)
    folder = one.kept()
    assert sending.main([str(folder)]) == 0
    assert f"test_a: sent to {ADDRESS}/{FILE}" in capsys.readouterr().out
    assert (days(remote, "test_a"), days(remote, "test_b")) == ([1, 2], [2])
    assert not folder.exists()
    assert remote.closed == 1
    assert sending.main([str(second.kept())]) == 0
    assert days(remote) == [2]


@pytest.mark.usefixtures("send")
def test_what_others_recorded_meanwhile_is_replaced_only_when_asked(
    one: Runner, other: Runner, remote: MemoryRemote, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sent later it is as careful as at once; the other entries are sent all the same."""
    one.judges()
    other.judges()
    other.records(2)
    with pytest.raises(BaselineUnusable):
        one.records(1)
    one.fails(1, "test_b")
    folder = one.kept()
    assert sending.main([str(folder)]) == 1
    said = capsys.readouterr()
    assert "another runner has recorded it" in said.err
    assert "test_b: sent" in said.out
    assert (days(remote), days(remote, "test_b"), folder.exists()) == ([2], [1], True)
    # Of what was sent the storage may hold another's by now.
    one.beside("third", commit="c" * 40).records(3, "test_b")
    assert sending.main([str(folder), "--replace"]) == 0
    assert (days(remote), days(remote, "test_b"), folder.exists()) == ([1], [3], False)


@pytest.mark.usefixtures("send")
def test_what_cannot_be_removed_is_said(
    one: Runner, remote: MemoryRemote, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An entry that was sent and stays, or a folder that does, is told, without a traceback."""
    one.fails()
    with monkeypatch.context() as disk:
        disk.setattr("pytest_gpuserve.store.elsewhere.unsent.write_whole", full)
        assert sending.main([str(one.kept())]) == 1
    assert "test_z was sent, but cannot be removed" in capsys.readouterr().err
    monkeypatch.setattr("pytest_gpuserve.store.elsewhere.unsent.shutil.rmtree", full)
    assert sending.main([str(one.kept())]) == 1
    assert "all was sent, but" in capsys.readouterr().err
    assert days(remote) == [1]


@pytest.mark.usefixtures("send")
@pytest.mark.parametrize("notes", [None, b"", b"{}", b'{"url": "s3://me:secret7@bucket", "based_on": {}}'])
def test_a_folder_that_is_none_of_ours_is_refused(
    tmp_path: Path, notes: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says so without a traceback, and sends nothing."""
    if notes is not None:
        (tmp_path / NOTES).write_bytes(notes)
    assert sending.main([str(tmp_path)]) == 2
    assert "secret7" not in capsys.readouterr().err


@pytest.mark.usefixtures("send")
def test_a_storage_that_still_fails_keeps_the_folder(
    one: Runner, remote: MemoryRemote, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is removed before it was sent."""
    one.fails()
    remote.fails = True
    assert sending.main([str(one.kept())]) == 1
    assert "does not answer" in capsys.readouterr().err
    assert one.kept().is_dir()
