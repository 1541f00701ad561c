"""Addresses of baselines in shared storage: what is one, what it never tells, and which files belong to it."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path, PurePosixPath
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.store.elsewhere.address import Address, copy_folder, is_address, parse_address, unsent_folder
from pytest_gpuserve.store.elsewhere.causes import cause_of, storage_problem
from pytest_gpuserve.store.elsewhere.filesystem import MOST_BYTES, open_remote
from pytest_gpuserve.store.elsewhere.names import MOST_FILES, is_baseline_name, is_for, versions_below
from pytest_gpuserve.store.elsewhere.remote import StorageProblem


@pytest.mark.parametrize(
    ("text", "scheme", "url"),
    [
        ("s3://bucket/folder", "s3", "s3://bucket/folder"),
        ("S3://bucket/Folder/", "s3", "s3://bucket/Folder"),
        ("s3://bucket", "s3", "s3://bucket"),
        ("abfs://container@account.dfs.core.windows.net/x", "abfs", "abfs://container@account.dfs.core.windows.net/x"),
        ("gs://bucket/a b/ü", "gs", "gs://bucket/a b/ü"),
    ],
)
def test_an_address_is_read(text: str, scheme: str, url: str) -> None:
    """The scheme is in lower case, the rest is as it was typed but for slashes at its end."""
    assert is_address(text)
    assert parse_address(text) == Address(scheme, url)
    assert Address(scheme, url).of("cpu/x.json") == f"{url}/cpu/x.json"


@pytest.mark.parametrize("text", ["file:///data/baselines", "file:///data/baselines/", "FILE:///data/baselines"])
def test_a_file_address_is_a_folder(text: str) -> None:
    """``file://`` is no storage: it is read and written as any folder."""
    assert parse_address(text) == Path("/data/baselines")


@pytest.mark.parametrize("text", ["baselines", "/data/baselines", "a:b", "s3:/bucket", "C:\\x", ""])
def test_a_folder_is_no_address(text: str) -> None:
    """What has no ``://`` is a path, as before."""
    assert not is_address(text)


@pytest.mark.parametrize(
    "text",
    [
        "://bucket",
        "s3://",
        "s3:///",
        "3s://bucket",
        "simplecache::s3://bucket/x",
        "s3://bucket/x::zip://y",
        "s3://bucket/x?versionId=1",
        "s3://bucket/x#y",
        "s3://bucket\\x",
        "s3://bucket/\x07",
        "s3://bucket/a\nb",
        "s3://bucket/../x",
        "s3://bucket/./x",
        "file://data/baselines",
        "file://~/x",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    """It says what an address looks like."""
    with pytest.raises(UsageProblem, match=r"--baseline-dir(.|\n)*s3://bucket/baselines"):
        parse_address(text)


@given(
    user=st.text(st.characters(exclude_characters="/@:"), max_size=20),
    password=st.text(st.characters(codec="utf-8", exclude_characters="/@"), min_size=1, max_size=20).map(
        "pw~{}".format
    ),
)
def test_a_password_is_refused_and_not_told(user: str, password: str) -> None:
    """An address stands in logs, on the terminal and in result files."""
    with pytest.raises(UsageProblem) as problem:
        parse_address(f"ftp://{user}:{password}@host/folder")
    assert password not in str(problem.value)


def test_copies_of_different_stores_are_apart() -> None:
    """The same address means another store with another endpoint or profile, and never shares its copy."""
    address, other = Address("s3", "s3://bucket/folder"), Address("s3", "s3://bucket-folder")
    home = {"XDG_CACHE_HOME": "/caches"}
    folders = [
        copy_folder(address, home),
        copy_folder(other, home),
        copy_folder(address, {**home, "AWS_ENDPOINT_URL": "http://127.0.0.1:9000"}),
        copy_folder(address, {**home, "AWS_PROFILE": "other"}),
        unsent_folder(address, home),
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
        copy_folder(Address("s3", "s3://bucket"), {})


@pytest.mark.parametrize("name", ["cpu/x.json", "T4/x/test_y.json", "T4/published/x.json", "T4/.hidden/x.json"])
def test_baseline_files_are_known_by_their_names(name: str) -> None:
    """They lie below a device's folder, at any depth."""
    assert is_baseline_name(name)


@pytest.mark.parametrize(
    "name",
    ["x.json", "cpu/x.txt", "cpu/../x.json", "../x.json", "/x.json", "cpu//x.json", "cpu/./x.json", "cpu/\0.json"],
)
def test_other_files_are_left_alone(name: str) -> None:
    """Whatever else is in a bucket is none of ours."""
    assert not is_baseline_name(name)


@given(st.text(max_size=30).map("{}.json".format) | st.lists(st.sampled_from(["..", ".", "", "a"])).map("/".join))
def test_no_name_leads_out_of_the_copy(name: str) -> None:
    """Keys of a bucket are whatever others have made them."""
    if is_baseline_name(name):
        parts = PurePosixPath("/copy", name).parts
        assert parts[:2] == ("/", "copy")
        assert ".." not in parts


def test_a_session_needs_its_device_and_what_was_published() -> None:
    """Baselines of other devices are not fetched."""
    names = ["cpu/x.json", "T4/x.json", "T4/published/x.json"]
    assert [name for name in names if is_for(name, "cpu")] == ["cpu/x.json", "T4/published/x.json"]


def test_a_folder_with_too_much_in_it_is_refused() -> None:
    """Who names a whole bucket of data is told, and nothing is fetched."""
    found: dict[str, dict[str, object]] = {f"bucket/cpu/{number}.json": {} for number in range(MOST_FILES + 1)}
    with pytest.raises(UsageProblem, match="no folder of baselines"):
        versions_below(found, "bucket", "s3://bucket")


def test_secrets_are_kept_out_of_causes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Backends put URLs with users, and values of variables, into their errors."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret-value")
    problem = OSError("cannot reach http://me:hunter22@host/x with very-secret-value\nat all")
    assert cause_of(problem) == "OSError: cannot reach http://...@host/x with <AWS_SECRET_ACCESS_KEY> at all"
    denied = storage_problem(Address("s3", "s3://b"), "cannot be listed", PermissionError("Forbidden"))
    assert "s3:PutObject" in str(denied)


@pytest.fixture
def memory() -> Address:
    """An empty folder in fsspec's memory, which has no writes with a condition."""
    return Address("memory", f"memory://{uuid4().hex}")


def test_any_scheme_of_fsspec_is_read(memory: Address) -> None:
    """Listing and content come through fsspec; a file that is not there is none."""
    import fsspec

    filesystem = fsspec.filesystem("memory")
    root = f"/{memory.url.removeprefix('memory://')}"
    filesystem.pipe({f"{root}/cpu/x.json": b"one", f"{root}/T4/published/y.json": b"two", f"{root}/readme.txt": b""})
    with closing(open_remote(memory)) as remote:
        assert sorted(remote.listing()) == ["T4/published/y.json", "cpu/x.json"]
        held = remote.fetch("cpu/x.json")
        assert held is not None
        assert held.data == b"one"
        assert remote.fetch("cpu/y.json") is None
    filesystem.rm(root, recursive=True)


def test_a_scheme_without_conditions_is_not_written(memory: Address) -> None:
    """It is refused with the reason, and nothing is there afterwards."""
    with closing(open_remote(memory)) as remote:
        with pytest.raises(UsageProblem, match="two runners could overwrite"):
            remote.check_writable()
        with pytest.raises(UsageProblem, match="memory://"):
            remote.put("cpu/x.json", b"one", over=None)
        assert remote.listing() == {}


def test_a_file_that_is_too_large_is_no_baseline(memory: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused by its size, before anybody tries to read it."""
    import fsspec

    from pytest_gpuserve.store.elsewhere import filesystem as ours

    assert MOST_BYTES > 2**24
    monkeypatch.setattr(ours, "MOST_BYTES", 3)
    path = f"/{memory.url.removeprefix('memory://')}/cpu/x.json"
    fsspec.filesystem("memory").pipe({path: b"four"})
    with closing(open_remote(memory)) as remote, pytest.raises(StorageProblem, match="too large: 4 bytes"):
        remote.fetch("cpu/x.json")
    fsspec.filesystem("memory").rm(path)


def test_an_unknown_scheme_is_told() -> None:
    """It is a usage problem that names the address."""
    with pytest.raises(UsageProblem, match="nosuchthing://x"):
        open_remote(Address("nosuchthing", "nosuchthing://x/y"))


@pytest.mark.parametrize(
    ("module", "scheme", "command"),
    [
        ("fsspec.core", "s3", "pip install 'pytest-gpuserve[s3]'"),
        ("fsspec.core", "memory", "pip install 'pytest-gpuserve[storage]'"),
        ("s3fs", "s3", "pip install 'pytest-gpuserve[s3]'"),
    ],
)
def test_a_library_that_is_absent_is_named(
    monkeypatch: pytest.MonkeyPatch, module: str, scheme: str, command: str
) -> None:
    """The error has the command that installs it."""
    from fsspec.registry import _registry

    monkeypatch.setitem(sys.modules, module, None)
    # What was imported before is known to fsspec by its class.
    monkeypatch.delitem(_registry, scheme, raising=False)
    with pytest.raises(UsageProblem) as problem:
        open_remote(Address(scheme, f"{scheme}://bucket/folder"))
    assert command in str(problem.value)
    assert f"{scheme}://bucket/folder" in str(problem.value)
