"""Addresses of baselines in shared storage: what is one, what it never tells, and which files belong to it."""

from __future__ import annotations

import gc
import socket
import sys
from contextlib import closing
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO, ClassVar
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.store.remote import StorageAddress, copy_folder, is_address, parse_address
from pytest_gpuserve.store.remote import folder as ours
from pytest_gpuserve.store.remote.folder import (
    StorageProblem,
    cause_of,
    is_baseline_name,
    is_for,
    open_remote,
    storage_problem,
)
from tests.fakes.threads import in_a_thread

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Iterator


@pytest.mark.parametrize(
    ("text", "scheme", "url"),
    [
        ("S3://bucket/Folder/", "s3", "s3://bucket/Folder"),
        ("s3://bucket", "s3", "s3://bucket"),
        ("abfs://container@account.dfs.core.windows.net/x", "abfs", "abfs://container@account.dfs.core.windows.net/x"),
        ("gs://bucket/a b/ü", "gs", "gs://bucket/a b/ü"),
        ("sftp://user@host/x", "sftp", "sftp://user@host/x"),
        ("https://host/%40team/x", "https", "https://host/%40team/x"),
        ("gs://bucket/x@2/y", "gs", "gs://bucket/x@2/y"),
    ],
)
def test_an_address_is_read(text: str, scheme: str, url: str) -> None:
    """The scheme is in lower case, the rest is as it was typed but for slashes at its end."""
    assert is_address(text)
    assert parse_address(text) == StorageAddress(scheme, url)
    assert StorageAddress(scheme, url).of("cpu/x.json") == f"{url}/cpu/x.json"


@pytest.mark.parametrize("text", ["file:///data/baselines", "file:///data/baselines/", "FILE:///data/baselines"])
def test_a_file_address_is_a_folder(text: str) -> None:
    """``file://`` is no storage: it is read and written as any folder, and what has no ``://`` is a path."""
    assert parse_address(text) == Path("/data/baselines")
    assert not any(map(is_address, ("baselines", "/data/baselines", "a:b", "s3:/bucket", "C:\\x", "")))


NO_ADDRESSES = """
    ://bucket s3:// s3:/// 3s://bucket simplecache::s3://bucket/x s3://bucket/x::zip://y s3://bucket/x?versionId=1
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
        parse_address(f"ftp://{user}:{password}@host/folder")
    assert password not in str(problem.value)


WITH_TOKEN = """
    https://{}@host/x s3://{}@bucket/x http://{}@host/../x file://{}@host/x https://ab/{}@host/x https://ab/{}/@host/x
    HTTP://{}/ab/c@host webdavs://ab/{}@host/x
"""


@pytest.mark.parametrize("address", WITH_TOKEN.split())
def test_a_token_is_refused_and_not_told(address: str) -> None:
    """Where an address has no users, what stands before an @ may be a secret; for pages it may have slashes in it."""
    for called in ("--baseline-dir=", ""):
        with pytest.raises(UsageProblem, match="which would be seen in logs") as problem:
            parse_address(address.format("ghp-token77"), called=called)
        assert "token77" not in str(problem.value)
        assert ("--baseline-dir" in str(problem.value)) is bool(called)
        assert ("%40" in str(problem.value)) is address.lower().startswith(("http", "webdav"))


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
    denied = storage_problem(StorageAddress("s3", "s3://b"), "", PermissionError("Forbidden"))
    assert "s3:PutObject" in str(denied)


@pytest.fixture
def memory() -> StorageAddress:
    """An empty folder in fsspec's memory, which has no writes with a condition."""
    return StorageAddress("memory", f"memory://{uuid4().hex}")


def test_any_scheme_of_fsspec_is_read(memory: StorageAddress, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listing and content come through fsspec; a file that is not there is none; too large or too many are refused."""
    import fsspec

    filesystem = fsspec.filesystem("memory")
    root = f"/{memory.url.removeprefix('memory://')}"
    filesystem.pipe({f"{root}/cpu/x.json": b"four", f"{root}/T4/published/y.json": b"two", f"{root}/readme.txt": b""})
    with closing(open_remote(memory)) as remote:
        assert sorted(remote.listing()) == ["T4/published/y.json", "cpu/x.json"]
        held = remote.fetch("cpu/x.json")
        assert held is not None
        assert held.data == b"four"
        assert remote.fetch("cpu/y.json") is None
        monkeypatch.setattr(ours, "MOST_BYTES", 3)
        for ask in (partial(remote.fetch, "cpu/x.json"), partial(remote.fetch, "cpu/x.json", "")):
            with pytest.raises(StorageProblem, match="too large: 4 bytes"):
                ask()
        monkeypatch.undo()
        monkeypatch.setattr(ours, "MOST_ITEMS", 1)
        with pytest.raises(StorageProblem, match="no folder of baselines"):
            remote.listing()
    filesystem.rm(root, recursive=True)


def test_a_scheme_without_conditions_is_not_written(memory: StorageAddress) -> None:
    """It is refused with the reason, and nothing is there afterwards; an unknown scheme is told by its address."""
    with closing(open_remote(memory)) as remote:
        with pytest.raises(UsageProblem, match="two runners could overwrite"):
            remote.check_writable()
        with pytest.raises(UsageProblem, match="memory://"):
            remote.put("cpu/x.json", b"one", over=None)
        assert remote.listing() == {}
    with pytest.raises(UsageProblem, match="nosuchthing://x"):
        open_remote(StorageAddress("nosuchthing", "nosuchthing://x/y"))


class Pages(SimpleHTTPRequestHandler):
    """Lists the folder that its server has, without a log; a path with a word in ``failing`` is answered by that."""

    failing: ClassVar[dict[str, int]] = {}

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def send_head(self) -> io.BytesIO | BinaryIO | None:
        """See `SimpleHTTPRequestHandler`."""
        status = next((status for word, status in self.failing.items() if word in self.path), None)
        if status is None:
            return super().send_head()
        self.send_error(status)
        return None


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StorageAddress]:
    """A folder with two baselines and one of published numbers, behind a web server."""
    for name in ("cpu/x.json", "cpu/deep/y.json", "T4/published/z.json", "readme.txt"):
        path = tmp_path / "served" / "baselines" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    monkeypatch.setattr(Pages, "failing", {})
    with in_a_thread(
        ThreadingHTTPServer(("127.0.0.1", 0), partial(Pages, directory=str(tmp_path / "served")))
    ) as server:
        yield StorageAddress("http", f"http://127.0.0.1:{server.server_port}/baselines")
        gc.collect()


def test_a_web_server_is_read(pages: StorageAddress) -> None:
    """Its pages are walked as folders, and a file that is gone is none."""
    with closing(open_remote(pages)) as remote:
        assert sorted(remote.listing()) == ["T4/published/z.json", "cpu/deep/y.json", "cpu/x.json"]
        held = remote.fetch("cpu/deep/y.json")
        assert held is not None
        assert held.data == b"cpu/deep/y.json"
        assert remote.fetch("cpu/gone.json") is None


@pytest.mark.parametrize(("word", "status"), [("baselines", 404), ("baselines", 500), ("deep", 403), ("deep", 404)])
def test_a_web_server_that_does_not_list_a_folder_is_told(pages: StorageAddress, word: str, status: int) -> None:
    """Neither of the folder nor of one in it an error is taken for there being nothing."""
    Pages.failing[word] = status
    with closing(open_remote(pages)) as remote, pytest.raises(StorageProblem, match="cannot be listed"):
        remote.listing()


def test_a_page_without_baselines_is_no_folder(pages: StorageAddress) -> None:
    """It may be that of a login; nor is a server that is gone, and an error is no file that was removed."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        gone = f"http://127.0.0.1:{nobody.getsockname()[1]}/baselines"
        for url in (pages.of("cpu/deep/none"), pages.of("cpu/deep"), gone):
            page = StorageAddress("http", url)
            with closing(open_remote(page)) as remote, pytest.raises(StorageProblem, match="cannot be listed"):
                remote.listing()
    Pages.failing["x.json"] = 503
    with closing(open_remote(pages)) as remote, pytest.raises(StorageProblem, match="cannot be read"):
        remote.fetch("cpu/x.json")


def gone_with_a_cause(_: object, path: str, **__: object) -> list[dict[str, str]]:
    """Every error is called not found, and what it was is its cause."""
    raise FileNotFoundError(path) from ConnectionResetError("by peer")


def vanishing(_: object, path: str, **__: object) -> list[dict[str, str]]:
    """A folder that is gone while it is listed."""
    if path.endswith("/cpu"):
        raise FileNotFoundError(path)
    return [{"name": f"{path}/cpu", "type": "directory"}]


def endless(_: object, path: str, **__: object) -> list[dict[str, str]]:
    """A link that leads back to its folder."""
    return [{"name": f"{path}/again", "type": "directory"}]


@pytest.mark.parametrize(
    ("ls", "said"),
    [
        (gone_with_a_cause, "cannot be listed"),
        (vanishing, "cannot be listed"),
        (endless, "more than 10 folders"),
    ],
)
def test_a_listing_that_is_not_whole_is_told(
    memory: StorageAddress, monkeypatch: pytest.MonkeyPatch, ls: Callable[..., object], said: str
) -> None:
    """Only the folder that was named may be absent, and only where the backend says no more than that."""
    from fsspec.implementations.memory import MemoryFileSystem

    with closing(open_remote(memory)) as remote:
        assert remote.listing() == {}
        monkeypatch.setattr(MemoryFileSystem, "ls", ls)
        monkeypatch.setattr(ours, "MOST_ITEMS", 10)
        with pytest.raises(StorageProblem, match=said):
            remote.listing()


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
        open_remote(StorageAddress(scheme, f"{scheme}://bucket/folder"))
    assert command in str(problem.value)
    assert f"{scheme}://bucket/folder" in str(problem.value)
