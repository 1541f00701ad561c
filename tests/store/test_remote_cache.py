"""The copy of baselines in shared storage: equal to it after a refresh, and asking for no more than has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.store.remote.folder import RemoteFile, StorageProblem
from pytest_gpuserve.store.remote.shared import BaselineCache
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
def cache(tmp_path: Path) -> BaselineCache:
    """An empty copy."""
    return BaselineCache(tmp_path / "copy")


def held(cache: BaselineCache) -> dict[str, bytes]:
    """What a copy holds."""
    paths = [path for path in cache.files.rglob("*") if path.is_file()]
    return {path.relative_to(cache.files).as_posix(): path.read_bytes() for path in paths}


def test_the_first_refresh_fetches_what_a_device_needs(remote: MemoryRemote, cache: BaselineCache) -> None:
    """Its baselines, and what was published of any device."""
    assert cache.refreshed_at("cpu") is None
    cache.refresh(remote, "cpu")
    assert held(cache) == {name: data for name, data in remote.files.items() if name != "T4/a.json"}
    assert cache.refreshed_at("cpu") is not None
    assert cache.refreshed_at("T4") is None


def test_only_what_has_changed_is_fetched_again(remote: MemoryRemote, cache: BaselineCache) -> None:
    """One listing tells it; another process's copy counts as well, and so does what a session has itself written."""
    cache.refresh(remote, "cpu")
    remote.fetched.clear()
    remote.files.update({"cpu/a.json": b"other", "cpu/new.json": b"new", "cpu/mine.json": b"mine"})
    del remote.files["cpu/b/c.json"]
    cache.keep("cpu/mine.json", RemoteFile(b"mine", version_of(b"mine")))
    again = BaselineCache(cache.files.parent)
    again.refresh(remote, "cpu")
    assert sorted(remote.fetched) == ["cpu/a.json", "cpu/new.json"]
    assert held(again) == {name: data for name, data in remote.files.items() if name != "T4/a.json"}


def test_a_damaged_copy_is_fetched_again(remote: MemoryRemote, cache: BaselineCache) -> None:
    """A copy that does not have the checksum noted with its version is none, whatever came in between."""
    cache.refresh(remote, "cpu")
    (cache.files / "cpu" / "a.json").write_bytes(b"tampered")
    (cache.files / "cpu" / "b" / "c.json").unlink()
    (cache.files.parent / "versions" / "T4" / "published" / "p.json").write_bytes(b"\xff")
    remote.fetched.clear()
    cache.refresh(remote, "cpu")
    assert len(remote.fetched) == 3
    assert held(cache) == {name: data for name, data in remote.files.items() if name != "T4/a.json"}


def test_a_storage_without_versions_is_fetched_whole(
    remote: MemoryRemote, cache: BaselineCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing tells whether a file has changed, it may have."""
    monkeypatch.setattr("tests.fakes.memory_remote.version_of", lambda _: "")
    cache.refresh(remote, "cpu")
    cache.refresh(remote, "cpu")
    assert len(remote.fetched) == 6


def test_a_refresh_of_one_device_leaves_the_others(remote: MemoryRemote, cache: BaselineCache) -> None:
    """Two sessions on one machine may have different cards, and one copy."""
    cache.refresh(remote, "T4")
    cache.refresh(remote, "cpu")
    assert held(cache) == remote.files
    assert cache.refreshed_at("T4") is not None
    remote.fetched.clear()
    cache.refresh(remote, "T4")
    assert remote.fetched == []


def test_a_refresh_that_fails_changes_nothing(remote: MemoryRemote, cache: BaselineCache) -> None:
    """Half of a new state is no state: a copy is taken over once all of it was fetched."""
    cache.refresh(remote, "cpu")
    before, at = held(cache), cache.refreshed_at("cpu")
    remote.files.update({"cpu/a.json": b"other", "cpu/b/c.json": b"other"})
    remote.fails_after = 2
    with pytest.raises(StorageProblem):
        cache.refresh(remote, "cpu")
    assert (held(cache), cache.refreshed_at("cpu")) == (before, at)
    assert len(remote.fetched) == 3 + 1


def test_a_file_that_is_gone_since_the_listing_is_none(remote: MemoryRemote, cache: BaselineCache) -> None:
    """Another runner may remove one at any moment."""
    cache.refresh(remote, "cpu")
    remote.files["cpu/a.json"] = b"other"
    remote.after_listing.append(lambda: remote.files.pop("cpu/a.json"))
    cache.refresh(remote, "cpu")
    assert sorted(held(cache)) == ["T4/published/p.json", "cpu/b/c.json"]


def test_a_folder_that_cannot_be_written_is_told(remote: MemoryRemote, tmp_path: Path) -> None:
    """It names the variable that names another; what was just written to the storage is fetched again later."""
    (tmp_path / "file").write_text("")
    cache = BaselineCache(tmp_path / "file")
    with pytest.raises(StorageProblem, match="XDG_CACHE_HOME"):
        cache.refresh(remote, "cpu")
    cache.keep("cpu/a.json", RemoteFile(b"one", version_of(b"one")))
