"""A side of a comparison that lies in shared storage: read from there, and every trouble of the storage is told."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from pytest_gpuserve.compare.command import main
from pytest_gpuserve.store.elsewhere.filesystem import ReadFolder
from tests.support.baseline_repository import FILE, STEADY, TEST, BaselineRepository, entry_of, result_text
from tests.support.plain_git import only_below

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pytest_gpuserve.store.elsewhere.remote import Held

    Said = Callable[..., tuple[int, str]]

fsspec = pytest.importorskip("fsspec")

SLOWER = tuple(0.6 * speed for speed in STEADY)
SAME = f"the same sessions in both: cpu {FILE}::{TEST}"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BaselineRepository:
    """A checkout whose baseline has become slower; it is the current folder."""
    only_below(tmp_path, monkeypatch)
    made = BaselineRepository(tmp_path / "project")
    made.record(entry_of(SLOWER, day=2), 1)
    monkeypatch.chdir(made.root)
    monkeypatch.setenv("COLUMNS", "160")
    return made


@pytest.fixture
def bucket(repository: BaselineRepository, tmp_path: Path) -> Iterator[str]:
    """The address of a folder, in memory, with the baseline as it was before, and with published numbers."""
    before = BaselineRepository(tmp_path / "before")
    place = uuid4().hex
    put(f"{place}/baselines/cpu/{FILE}", before.write({TEST: entry_of()}).read_bytes())
    put(f"{place}/baselines/T4/published/x.json", b"{}")
    yield f"memory://{place}/baselines"
    fsspec.filesystem("memory").rm(f"/{place}", recursive=True)


def put(path: str, data: bytes) -> None:
    """Let the storage hold a file."""
    fsspec.filesystem("memory").pipe_file(f"/{path}", data)


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    """Runs the command; its exit status and what it said."""

    def run(*arguments: str) -> tuple[int, str]:
        status = main(arguments)
        captured = capsys.readouterr()
        return status, captured.out + captured.err

    return run


def test_a_folder_in_a_storage_is_a_side(bucket: str, said: Said) -> None:
    """In either place, against a folder, a revision, and itself; published numbers are none of it."""
    for other in ("baselines", "HEAD:"):
        status, text = said(bucket, other)
        assert status == 1
        assert "REGRESSED" in text
        assert f"A, the reference: {bucket}" in text
        assert said(other, bucket)[0] == 0
    status, text = said(f"{bucket}/", bucket)
    assert (status, SAME in text) == (0, True)


def test_a_file_in_a_storage_is_a_side(bucket: str, said: Said) -> None:
    """A baseline, known by where it lies beside whole folders too; and a result, wherever it lies."""
    one = f"{bucket}/cpu/{FILE}"
    for other in (one, bucket):
        status, text = said(one, other)
        assert (status, SAME in text) == (0, True)
    assert said(one, f"baselines/cpu/{FILE}")[0] == 1
    put(f"{bucket.removeprefix('memory://')}/out.json", result_text(day=1).encode())
    status, text = said(f"{bucket}/out.json", f"{bucket}/out.json")
    assert (status, SAME in text) == (0, True)


def test_a_folder_of_this_machine_may_be_an_address(repository: BaselineRepository, said: Said) -> None:
    """As for ``--baseline-dir``; and what is not there is said in those words."""
    folder = f"file://{repository.root / 'baselines'}"
    assert said(folder, "baselines")[0] == 0
    status, text = said(f"{folder}/none", "baselines")
    assert status == 2
    assert f"there is no file or folder {folder}/none" in text


@pytest.mark.parametrize(
    ("below", "problem"),
    [
        ("/none", "there is no baseline in memory://"),
        ("/none.json", "there is no file memory://"),
        ("/cpu", "is a folder of one device's baselines"),
    ],
)
def test_what_a_storage_has_not_is_a_wrong_argument(bucket: str, said: Said, below: str, problem: str) -> None:
    """Exit status 2: there is nothing that could have been compared."""
    status, text = said(bucket + below, "baselines")
    assert status == 2
    assert problem in text


def test_a_storage_that_does_not_answer_is_told(bucket: str, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit status 2, and no word of an option that was not given."""

    def fails(*_: object, **__: object) -> None:
        raise ConnectionResetError("by peer")

    with monkeypatch.context() as patch:
        patch.setattr(type(fsspec.filesystem("memory")), "ls", fails)
        status, text = said("baselines", bucket)
    assert status == 2
    assert f"{bucket} cannot be listed\n  found: ConnectionResetError: by peer" in text


def test_a_file_that_vanishes_meanwhile_is_told(bucket: str, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it all that is left would be compared as if it were all there was."""

    def gone(_: ReadFolder, name: str) -> Held | None:
        return None

    monkeypatch.setattr(ReadFolder, "fetch", gone)
    status, text = said(bucket, "baselines")
    assert status == 2
    assert f"{bucket}/cpu/{FILE} was removed while {bucket} was read" in text


@pytest.mark.parametrize("address", ["https://to/ken77@host/x", "nosuchthing://x/y", "s3://bucket/../x"])
def test_an_address_that_cannot_be_used_is_a_wrong_argument(
    repository: BaselineRepository, said: Said, address: str
) -> None:
    """Said of the argument, not of an option of pytest; and a token in it is not told."""
    status, text = said(address, "baselines")
    assert status == 2
    assert "--baseline-dir" not in text
    assert "ken77" not in text
