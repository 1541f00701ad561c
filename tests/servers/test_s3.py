"""S3 as the storage of baselines, by its real protocol: conditions on writes, and every way in which it can fail."""

from __future__ import annotations

import gc
import json
import os
import socket
import time
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from pytest_gpuserve.comparison.baseline_store import BaselineStore, Workload
from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.store.remote import StorageAddress
from pytest_gpuserve.store.remote.folder import MARKER, RemoteFolder, StorageProblem, VersionConflict, open_remote
from pytest_gpuserve.store.remote.shared import BaselineCache, SharedFiles, shared_files
from tests.fakes.s3_server import S3, SECRET, s3_server
from tests.support.builders import COMMIT, here, session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

FILE = "cpu/x/test_y.json"

QUICK = {"connect_timeout": 0.5, "read_timeout": 0.5, "retries": {"mode": "standard", "total_max_attempts": 1}}
"""So that a test need not wait as long as a run would."""


@pytest.fixture
def address(s3: S3) -> StorageAddress:
    """A folder in a bucket of its own."""
    bucket = f"bucket-{uuid4().hex}"
    s3.put(bucket)
    return StorageAddress("s3", f"s3://{bucket}/team/baselines")


@pytest.fixture(scope="module")
def running() -> Iterator[S3]:
    """An S3, once for all tests of this file."""
    with s3_server() as running:
        yield running


@pytest.fixture
def s3(running: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    """It, as AWS's libraries in this process find it, without faults."""
    running.faults()
    for name in [name for name in os.environ if name.startswith(("AWS_", "FSSPEC_"))]:
        monkeypatch.delenv(name)
    for name, value in running.environment.items():
        monkeypatch.setenv(name, value)
    return running


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up soon."""
    from fsspec.config import conf

    monkeypatch.setitem(conf, "s3", {"config_kwargs": QUICK})


def key(address: StorageAddress, name: str) -> str:
    """Where a file is in the server."""
    return address.of(name).removeprefix("s3://")


@contextmanager
def opened(address: StorageAddress) -> Iterator[RemoteFolder]:
    """A folder, closed in the end."""
    remote = open_remote(address)
    with closing(remote):
        yield remote


def test_files_are_listed_and_fetched(s3: S3, address: StorageAddress) -> None:
    """A listing has the version of each file, and one that is fetched has the same; other files are none of ours."""
    with opened(address) as remote:
        assert remote.listing() == {}
    for name, data in {"cpu/a.json": b"one", "T4/x/b.json": b"two", "readme.txt": b"", "top.json": b""}.items():
        s3.put(key(address, name), data)
    with opened(address) as remote:
        listing = remote.listing()
        assert sorted(listing) == ["T4/x/b.json", "cpu/a.json"]
        held = remote.fetch("cpu/a.json")
        assert held is not None
        assert (held.data, held.version) == (b"one", listing["cpu/a.json"])
        assert remote.fetch("cpu/c.json") is None
        s3.put(key(address, "cpu/a.json"), b"three")
        assert remote.listing()["cpu/a.json"] != held.version


def test_a_whole_bucket_may_be_the_folder(s3: S3, address: StorageAddress) -> None:
    """An address without a folder is that of the bucket; connections are closed at once, without a later warning."""
    bucket = StorageAddress("s3", address.url.removesuffix("/team/baselines"))
    s3.put(key(bucket, "cpu/a.json"), b"one")
    with opened(bucket) as remote:
        assert list(remote.listing()) == ["cpu/a.json"]
        assert remote.put("cpu/b.json", b"two", over=None)
        # As s3fs itself looks whether a session is still open.
        connections = remote.filesystem.s3._endpoint.http_session
        assert connections._sessions
        remote.close()
        assert connections._sessions is None
    gc.collect()
    assert s3.get(key(bucket, "cpu/b.json")) == b"two"


def test_a_write_replaces_only_what_was_read(s3: S3, address: StorageAddress) -> None:
    """Compare and set: by the version that was read, or by there being none; what tells no version is not written."""
    with opened(address) as remote:
        with pytest.raises(StorageProblem, match="tells no ETag"):
            remote.put("cpu/a.json", b"mine", over="")
        first = remote.put("cpu/a.json", b"one", over=None)
        with pytest.raises(VersionConflict):
            remote.put("cpu/a.json", b"mine", over=None)
        second = remote.put("cpu/a.json", b"two", over=first)
        assert second != first
        with pytest.raises(VersionConflict):
            remote.put("cpu/a.json", b"mine", over=first)
        with pytest.raises(VersionConflict):
            remote.put("cpu/b.json", b"mine", over=first)
        assert (s3.get(key(address, "cpu/a.json")), s3.get(key(address, "cpu/b.json"))) == (b"two", None)
        held = remote.fetch("cpu/a.json")
        assert held is not None
        assert held.version == second


def test_writes_are_tried_before_anything_is_measured(s3: S3, address: StorageAddress) -> None:
    """Once its marker is there, nothing is written to find out; a storage that drops conditions silently is refused."""
    s3.faults(unconditional=True)
    with opened(address) as remote:
        for _ in range(2):
            with pytest.raises(UsageProblem, match="does not honour If-Match"):
                remote.check_writable()
        s3.faults()
        remote.check_writable()
        written = s3.get(key(address, MARKER))
        assert written is not None
        assert b"pytest-gpuserve" in written
        remote.check_writable()
        assert remote.listing() == {}
    assert s3.get(key(address, MARKER)) == written


def test_a_file_is_read_whole_or_not_at_all(s3: S3, address: StorageAddress, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is cut off is an error after two tries; one that is too large by its size, before it is asked for.

    Nor is a folder read that has too many of them.
    """
    s3.put(key(address, "cpu/a.json"), b"0123456789" * 100)
    with opened(address) as remote:
        s3.faults(cut="a.json")
        with pytest.raises(StorageProblem, match=r"cpu/a\.json"):
            remote.fetch("cpu/a.json")
        assert sum(each.startswith("GET") for each in s3.faults(cut="a.json")) == 2
        monkeypatch.setattr("pytest_gpuserve.store.remote.folder.MOST_BYTES", 3)
        with pytest.raises(StorageProblem, match="too large: 1000 bytes"):
            remote.fetch("cpu/a.json")
        assert sum("a.json" in each for each in s3.faults()) == 1
        monkeypatch.setattr("pytest_gpuserve.store.remote.folder.MOST_ITEMS", 0)
        with pytest.raises(StorageProblem, match="no folder of baselines alone"):
            remote.listing()


def refusal(address: StorageAddress, call: Callable[[RemoteFolder], object] = RemoteFolder.listing) -> str:
    """What is said of what cannot be done."""
    with opened(address) as remote, pytest.raises(StorageProblem) as problem:
        call(remote)
    assert SECRET not in str(problem.value)
    return str(problem.value)


def put(remote: RemoteFolder) -> object:
    """Write a new file."""
    return remote.put("cpu/a.json", b"", over=None)


def test_a_wrong_bucket_is_told(s3: S3) -> None:
    """Reading and writing name the bucket; none is made."""
    address = StorageAddress("s3", "s3://no-such-bucket-here/x")
    for call in (RemoteFolder.listing, lambda remote: remote.fetch("cpu/a.json"), put):
        said = refusal(address, call)
        assert "s3://no-such-bucket-here/x" in said
        assert "a bucket is never made here" in said
    assert s3.get("no-such-bucket-here") is None


def test_denied_access_is_told(s3: S3, address: StorageAddress, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the rights that are needed, or where credentials are looked for; and nothing of the credentials."""
    s3.faults(denied=["GET", "HEAD"])
    assert "PermissionError" in refusal(address)
    s3.faults(denied=["PUT"])
    assert "s3:GetObject" in refusal(address, put)
    s3.faults()
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert "AWS_PROFILE" in refusal(address)


@pytest.mark.usefixtures("quick")
def test_a_storage_that_never_answers_is_given_up(
    s3: S3, address: StorageAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it takes requests and is silent, or does not even take connections, it ends and is told."""
    s3.faults(silent=True)
    began = time.monotonic()
    said = refusal(address)
    assert time.monotonic() - began < 30
    assert "Timeout" in said
    assert "AWS_ENDPOINT_URL" in said
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{nobody.getsockname()[1]}")
        assert "127.0.0.1" in refusal(address)


def test_a_write_whose_answer_was_lost_is_found(s3: S3, address: StorageAddress, tmp_path: Path) -> None:
    """The library tries again and is refused by its own write, which is then found to be there; once."""
    cache = BaselineCache(tmp_path / "copy")
    baseline_store = BaselineStore(cache.files / "cpu", here(commit=COMMIT), SharedFiles(address, cache))
    place = baseline_store.key_of("suites/x/test_y.py::test_z", "")
    s3.faults(lost=1)
    baseline_store.record(place, Workload({"server": "mosec"}, {}), [session(at="2025-01-01T00:00:00+00:00")], None)
    assert sum(each.startswith("PUT") for each in s3.faults()) == 2
    (entry,) = json.loads(s3.get(key(address, FILE)) or b"")["entries"].values()
    assert len(entry["sessions"]) == 1


@pytest.mark.usefixtures("quick")
def test_a_session_begins_with_what_it_needs(
    s3: S3, address: StorageAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fetches, or takes what it has when it is asked to; else it does not begin."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    s3.put(key(address, "cpu/a.json"), b"one")
    begin = partial(shared_files, address, "cpu")
    with pytest.raises(UsageProblem, match="run once without --baseline-offline"):
        begin(needed=True, updates=False, offline=True)
    assert begin(needed=True, updates=True, offline=False).as_of == ""
    s3.faults(denied=["GET", "PUT"])
    with pytest.raises(UsageProblem, match="--baseline-offline takes what was fetched at 20"):
        begin(needed=True, updates=False, offline=False)
    with pytest.raises(UsageProblem, match=r"^(?![\s\S]*--baseline-offline)"):
        begin(needed=True, updates=True, offline=False)
    s3.faults(silent=True)
    assert begin(needed=False, updates=True, offline=False).as_of == ""
    assert not s3.faults(silent=True)
    assert begin(needed=True, updates=False, offline=True).as_of.startswith("20")
    (copied,) = tmp_path.rglob("files/cpu/a.json")
    assert copied.read_bytes() == b"one"
