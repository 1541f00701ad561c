"""Addresses of baselines in shared storage: what is one, what it never tells, and which files belong to it."""

from __future__ import annotations

import sys
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.store.remote import StorageAddress, copy_folder, is_address, parse_address
from pytest_gpuserve.store.remote.folder import (
    cause_of,
    is_baseline_name,
    is_for,
    open_remote,
    storage_problem,
)


@pytest.mark.parametrize(
    ("text", "scheme", "url"),
    [
        ("S3://bucket/Folder/", "s3", "s3://bucket/Folder"),
        ("s3://bucket", "s3", "s3://bucket"),
        ("s3a://bucket/a b/ü", "s3a", "s3a://bucket/a b/ü"),
        ("s3://bucket/x@2/y", "s3", "s3://bucket/x@2/y"),
    ],
)
def test_an_address_is_read(text: str, scheme: str, url: str) -> None:
    """The scheme is in lower case, the rest is as it was typed but for slashes at its end."""
    assert is_address(text)
    assert parse_address(text) == StorageAddress(scheme, url)
    assert StorageAddress(scheme, url).of("cpu/x.json") == f"{url}/cpu/x.json"


@pytest.mark.parametrize("text", ["file:///data/base@2", "file:///data/base@2/", "FILE:///data/base@2"])
def test_a_file_address_is_a_folder(text: str) -> None:
    """``file://`` is no storage: it is read and written as any folder, and what has no ``://`` is a path."""
    assert parse_address(text) == Path("/data/base@2")
    assert not any(map(is_address, ("baselines", "/data/baselines", "a:b", "s3:/bucket", "C:\\x", "")))


NO_ADDRESSES = """
    gs://bucket/x https://host/x ://bucket s3:// s3:/// 3s://bucket simplecache::s3://bucket/x s3://bucket/x::zip://y s3://bucket/x?versionId=1
    s3://bucket/x#y s3://bucket\\x s3://bucket/../x s3://bucket/./x file://data/baselines file://~/x
"""


@pytest.mark.parametrize("text", [*NO_ADDRESSES.split(), "s3://bucket/\x07", "s3://bucket/a\nb"])
def test_what_is_no_address_is_refused(text: str) -> None:
    """It says what an address looks like."""
    with pytest.raises(UsageProblem, match=r"--baseline-dir(.|\n)*s3://bucket/baselines"):
        parse_address(text)


@given(
    user=st.text(st.characters(exclude_characters="/@:"), max_size=20),
    password=st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).map("pw~{}".format),
)
def test_a_password_is_refused_and_not_told(user: str, password: str) -> None:
    """An address stands in logs, on the terminal and in result files; a password may have slashes in it."""
    with pytest.raises(UsageProblem) as problem:
        parse_address(f"s3://{user}:{password}@bucket/folder")
    assert password not in str(problem.value)


WITH_TOKEN = """
    https://{}@host/x s3://{}@bucket/x http://{}@host/../x file://{}@host/x https://ab/{}@host/x https://ab/{}/@host/x
    HTTP://{}/ab/c@host s3://user:ab/{}@bucket/x webdavs://ab/{}@host/x
"""


@pytest.mark.parametrize("address", WITH_TOKEN.split())
def test_a_token_is_refused_and_not_told(address: str) -> None:
    """Where an address has no users, what stands before an @ may be a secret; for pages it may have slashes in it."""
    for called in ("--baseline-dir=", ""):
        with pytest.raises(UsageProblem, match="which would be seen in logs") as problem:
            parse_address(address.format("ghp-token77"), called=called)
        assert "token77" not in str(problem.value)
        assert ("--baseline-dir" in str(problem.value)) is bool(called)


def test_copies_of_different_stores_are_apart() -> None:
    """The same address means another store with another endpoint or profile, and never shares its copy."""
    address, other = StorageAddress("s3", "s3://bucket/folder"), StorageAddress("s3", "s3://bucket-folder")
    home = {"XDG_CACHE_HOME": "/caches"}
    folders = [
        copy_folder(address, home),
        copy_folder(other, home),
        copy_folder(address, {**home, "AWS_ENDPOINT_URL": "http://127.0.0.1:9000"}),
        copy_folder(address, {**home, "AWS_PROFILE": "other"}),
    ]
    assert len(set(folders)) == len(folders)
    assert all(folder.is_relative_to("/caches/pytest-gpuserve") for folder in folders)
    assert "s3-bucket-folder" in folders[0].name
    assert copy_folder(address, home) == folders[0]


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in containers: there must be somewhere to keep a copy."""

    def home() -> Path:
        raise RuntimeError

    monkeypatch.setattr(Path, "home", home)
    with pytest.raises(UsageProblem, match="XDG_CACHE_HOME"):
        copy_folder(StorageAddress("s3", "s3://bucket"), {})


def test_baseline_files_are_known_by_their_names() -> None:
    """They lie below a device's folder, at any depth; what else is in a bucket is none of ours, or not needed here."""
    ours = ["cpu/x.json", "T4/x/test_y.json", "T4/published/x.json", "T4/.hidden/x.json"]
    others = ["x.json", "cpu/x.txt", "cpu/../x.json", "../x.json", "/x.json", "cpu//x.json", "cpu/./x.json"]
    assert [name for name in (*ours, *others, "cpu/\0.json") if is_baseline_name(name)] == ours
    assert [name for name in ours if is_for(name, "cpu")] == ["cpu/x.json", "T4/published/x.json"]


@given(st.text(max_size=30).map("{}.json".format) | st.lists(st.sampled_from(["..", ".", "", "a"])).map("/".join))
def test_no_name_leads_out_of_the_copy(name: str) -> None:
    """Keys of a bucket are whatever others have made them."""
    if is_baseline_name(name):
        parts = PurePosixPath("/copy", name).parts
        assert parts[:2] == ("/", "copy")
        assert ".." not in parts


def test_secrets_are_kept_out_of_causes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Backends put URLs with users, and values of variables, into their errors."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret-value")
    problem = OSError("cannot reach http://me:hunter22@host/x with very-secret-value\nat all")
    assert cause_of(problem) == "OSError: cannot reach http://...@host/x with <AWS_SECRET_ACCESS_KEY> at all"
    slashes = OSError("proxy http://to/ken77@proxy:3128, then http://me:hunt@er/22@host/x, not http://host/y")
    assert cause_of(slashes) == "OSError: proxy http://...@proxy:3128, then http://...@host/x, not http://host/y"
    denied = storage_problem("", PermissionError("Forbidden"))
    assert "s3:PutObject" in str(denied)


@pytest.mark.parametrize("module", ["fsspec.core", "s3fs"])
def test_a_library_that_is_absent_is_named(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """The error has the command that installs it."""
    from fsspec.registry import _registry

    monkeypatch.setitem(sys.modules, module, None)
    # What was imported before is known to fsspec by its class.
    monkeypatch.delitem(_registry, "s3", raising=False)
    with pytest.raises(UsageProblem, match=r"s3://bucket/folder(.|\n)*pip install 'pytest-gpuserve\[s3\]'"):
        open_remote(StorageAddress("s3", "s3://bucket/folder"))
