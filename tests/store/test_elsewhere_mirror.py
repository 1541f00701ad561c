"""The copy of baselines in shared storage: equal to it after a refresh, and asking for no more than has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.store.elsewhere.mirror import BaselineCache
from pytest_gpuserve.store.elsewhere.remote import Held, StorageProblem
from tests.fakes.memory_remote import MemoryRemote, version_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def remote() -> MemoryRemote:
    """A storage with baselines of two devices, and published numbers."""
    return MemoryRemote(
        {"cpu/a.json": b"one", "cpu/b/c.json": b"two", "T4/a.json": b"three", "T4/published/p.json": b"four"}
    )


@pytest.fixture
def mirror(tmp_path: Path) -> BaselineCache:
    """An empty copy."""
    return BaselineCache(tmp_path / "copy")


def held(mirror: BaselineCache) -> dict[str, bytes]:
    """What a copy holds."""
    paths = [path for path in mirror.files.rglob("*") if path.is_file()]
    return {path.relative_to(mirror.files).as_posix(): path.read_bytes() for path in paths}


def test_the_first_refresh_fetches_what_a_device_needs(remote: MemoryRemote, mirror: BaselineCache) -> None:
    """Its baselines, and what was published of any device."""
    assert mirror.refreshed_at("cpu") is None
    mirror.refresh(remote, "cpu")
    assert held(mirror) == {name: data for name, data in remote.files.items() if name != "T4/a.json"}
    assert mirror.refreshed_at("cpu") is not None
    assert mirror.refreshed_at("T4") is None


def test_only_what_has_changed_is_fetched_again(remote: MemoryRemote, mirror: BaselineCache) -> None:
    """One listing tells it; another process's copy counts as well, and so does what a session has itself written."""
    mirror.refresh(remote, "cpu")
    remote.fetched.clear()
    remote.files.update({"cpu/a.json": b"other", "cpu/new.json": b"new", "cpu/mine.json": b"mine"})
    del remote.files["cpu/b/c.json"]
    mirror.keep("cpu/mine.json", Held(b"mine", version_of(b"mine")))
    again = BaselineCache(mirror.files.parent)
    again.refresh(remote, "cpu")
    assert sorted(remote.fetched) == ["cpu/a.json", "cpu/new.json"]
    assert held(again) == {name: data for name, data in remote.files.items() if name != "T4/a.json"}


def test_a_damaged_copy_is_fetched_again(remote: MemoryRemote, mirror: BaselineCache) -> None:
    """A copy that does not have the checksum noted with its version is none, whatever came in between."""
    mirror.refresh(remote, "cpu")
    (mirror.files / "cpu" / "a.json").write_bytes(b"tampered")
    (mirror.files / "cpu" / "b" / "c.json").unlink()
    remote.fetched.clear()
    mirror.refresh(remote, "cpu")
    assert sorted(remote.fetched) == ["cpu/a.json", "cpu/b/c.json"]
    assert held(mirror)["cpu/a.json"] == b"one"


@pytest.mark.parametrize("notes", [b"", b"{", b'{"files": 1}', b"\xff", None])
def test_without_its_notes_a_copy_is_fetched_whole(
    remote: MemoryRemote, mirror: BaselineCache, notes: bytes | None
) -> None:
    """Notes that are damaged or gone cost a transfer, and say of no file that it is the newest."""
    mirror.refresh(remote, "cpu")
    path = mirror.files.parent / "notes.json"
    path.unlink() if notes is None else path.write_bytes(notes)
    remote.fetched.clear()
    assert mirror.refreshed_at("cpu") is None
    mirror.refresh(remote, "cpu")
    assert len(remote.fetched) == 3


def test_a_storage_without_versions_is_fetched_whole(
    remote: MemoryRemote, mirror: BaselineCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing tells whether a file has changed, it may have."""
    monkeypatch.setattr("tests.fakes.memory_remote.version_of", lambda _: "")
    mirror.refresh(remote, "cpu")
    mirror.refresh(remote, "cpu")
    assert len(remote.fetched) == 6


def test_a_refresh_of_one_device_leaves_the_others(remote: MemoryRemote, mirror: BaselineCache) -> None:
    """Two sessions on one machine may have different cards, and one copy."""
    mirror.refresh(remote, "T4")
    mirror.refresh(remote, "cpu")
    assert held(mirror) == remote.files
    assert mirror.refreshed_at("T4") is not None
    remote.fetched.clear()
    mirror.refresh(remote, "T4")
    assert remote.fetched == []


def test_a_refresh_that_fails_changes_nothing(remote: MemoryRemote, mirror: BaselineCache) -> None:
    """Half of a new state is no state: a copy is taken over once all of it was fetched."""
    mirror.refresh(remote, "cpu")
    before, at = held(mirror), mirror.refreshed_at("cpu")
    remote.files.update({"cpu/a.json": b"other", "cpu/b/c.json": b"other"})
    remote.fails_after = 2
    with pytest.raises(StorageProblem):
        mirror.refresh(remote, "cpu")
    assert (held(mirror), mirror.refreshed_at("cpu")) == (before, at)
    assert len(remote.fetched) == 3 + 1


def test_a_file_that_is_gone_since_the_listing_is_none(remote: MemoryRemote, mirror: BaselineCache) -> None:
    """Another runner may remove one at any moment."""
    mirror.refresh(remote, "cpu")
    remote.files["cpu/a.json"] = b"other"
    remote.after_listing.append(lambda: remote.files.pop("cpu/a.json"))
    mirror.refresh(remote, "cpu")
    assert sorted(held(mirror)) == ["T4/published/p.json", "cpu/b/c.json"]


def test_a_folder_that_cannot_be_written_is_told(remote: MemoryRemote, tmp_path: Path) -> None:
    """It names the folder, and the variable that names another."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageProblem, match="XDG_CACHE_HOME"):
        BaselineCache(tmp_path / "file").refresh(remote, "cpu")
