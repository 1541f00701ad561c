"""Baselines that several runners have recorded, put into one folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from pytest_gpuserve.device import lock as locks
from pytest_gpuserve.errors import BaselineUnusable, UsageProblem
from pytest_gpuserve.merge import baselines
from pytest_gpuserve.merge.__main__ import main
from pytest_gpuserve.merge.baselines import merge_baselines
from pytest_gpuserve.store.baseline import read, write
from tests.support.baseline_repository import anchored_on, entry_of, on_device

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pytest_gpuserve.store.schema import Entry

FILE = "T4/x/test_y.json"
OTHER = "T4/z.json"

OLD = on_device(entry_of(), name="T4")
NEW_A = anchored_on(on_device(entry_of((1.1, 1.101), day=2), name="T4"), "throughput")
NEW_B = on_device(entry_of((0.9, 0.901), day=3), name="T4")


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, on a machine with locks of its own."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "locks"
    folder.mkdir()
    monkeypatch.setattr(locks, "_machine_folder", lambda: folder)
    return tmp_path


def store(folder: Path, entries: Mapping[str, Entry], file: str = FILE) -> Path:
    """Write a baseline file."""
    write(folder / file, entries)
    return folder / file


def entries(folder: Path, file: str = FILE) -> dict[str, Entry]:
    """The entries of a file; none where it is not there."""
    return {key: stored.entry for key, stored in read(folder / file).items()}


def test_each_runners_recordings_are_taken(project: Path) -> None:
    """Entries are taken whole, with their anchors; merged again, what a runner has as before is named and not taken."""
    store(project / "into", {"a": OLD, "b": OLD, "c": OLD})
    store(project / "one", {"a": NEW_A, "b": OLD, "c": OLD})
    store(project / "two", {"a": OLD, "b": NEW_B, "c": OLD})
    said = merge_baselines(["one", "two"], "into")
    assert said == [f"{FILE}: a of one", f"{FILE}: b of two", "2 entries merged into into"]
    assert entries(project / "into") == {"a": NEW_A, "b": NEW_B, "c": OLD}
    assert entries(project / "into")["a"].anchors == NEW_A.anchors != []
    before = (project / "into" / FILE).read_bytes()
    a_of_two, b_of_one = (
        f"{FILE}: {key} of {folder} is not taken: --into has a newer one"
        for key, folder in (("a", "two"), ("b", "one"))
    )
    for folders, passed_over in ((["one", "two"], [b_of_one, a_of_two]), (["one"], [b_of_one]), (["into"], [])):
        assert merge_baselines(folders, "into") == [*passed_over, "nothing is new"]
    assert (project / "into" / FILE).read_bytes() == before


def test_new_files_are_taken(project: Path) -> None:
    """A folder that is not there yet is made; one entry in two folders is no conflict; published numbers stay."""
    store(project / "one", {"a": NEW_A})
    store(project / "two", {"a": NEW_A, "b": NEW_B})
    store(project / "two", {"b": NEW_B}, OTHER)
    (project / "one" / "T4" / "published").mkdir()
    (project / "one" / "T4" / "published" / "paper.json").write_text("{}")
    merge_baselines(["one", "two"], "into")
    assert entries(project / "into") == {"a": NEW_A, "b": NEW_B}
    assert entries(project / "into", OTHER) == {"b": NEW_B}
    assert not (project / "into" / "T4" / "published").exists()


@pytest.mark.parametrize(
    ("began_with", "two", "says"),
    [
        ({"a": OLD}, NEW_B, f"{FILE}: a of one and of two"),
        ({}, NEW_B, f"{FILE}: a of one and of two"),
        # What was measured at the same time and is not the same was changed, here or there.
        ({"a": NEW_A}, msgspec.structs.replace(NEW_A, anchors=[]), "a of --into and of two"),
    ],
)
def test_two_recordings_of_one_entry_are_a_conflict(
    project: Path, began_with: dict[str, Entry], two: Entry, says: str
) -> None:
    """Both folders and the entry are named, and nothing is written, of other entries neither."""
    if began_with:
        store(project / "into", began_with)
    store(project / "one", {"a": NEW_A, "other": NEW_A})
    store(project / "two", {"a": two})
    with pytest.raises(UsageProblem, match="recorded differently") as problem:
        merge_baselines(["one", "two"], "into")
    assert says in str(problem.value)
    assert entries(project / "into") == began_with


@pytest.mark.parametrize("problem", [BaselineUnusable("the disk is full"), KeyboardInterrupt()])
def test_all_or_nothing(project: Path, monkeypatch: pytest.MonkeyPatch, problem: BaseException) -> None:
    """Where the second file is not written, by Ctrl-C too, the first is as it was, and a new one is not there."""
    store(project / "into", {"a": OLD})
    before = (project / "into" / FILE).read_bytes()
    store(project / "one", {"a": NEW_A})
    for name in ("T4/new.json", OTHER):
        store(project / "one", {"b": NEW_B}, name)

    def write_until(path: Path, found: Mapping[str, Entry]) -> None:
        if path.name == "z.json":
            raise problem
        write(path, found)

    monkeypatch.setattr(baselines, "write", write_until)
    with pytest.raises(type(problem)):
        merge_baselines(["one"], "into")
    assert (project / "into" / FILE).read_bytes() == before
    assert not (project / "into" / "T4" / "new.json").exists()


def test_what_is_no_folder_of_baselines_is_refused(project: Path) -> None:
    """A mistyped name, an address, the folder above and a damaged file are told; nothing is written."""
    store(project / "one", {"a": NEW_A})
    store(project / "part-1" / "baselines", {"a": NEW_A})
    path = store(project / "two", {"b": NEW_B}, OTHER)
    path.write_text(path.read_text()[:-100])
    address = "s3://bucket/baselines"
    for folders, into, says in (
        (["one", "absent"], "into", "absent has no baselines"),
        (["one", "locks"], "into", "locks has no baselines"),
        (["one"], address, f"{address} is an address"),
        (["one", address], "into", f"{address} is an address"),
        (["part-1"], "into", "part-1/baselines"),
        (["part-1"], "into", "baselines of T4 at baselines/T4/x/test_y.json"),
        (["one", "two"], "into", "two/T4/z.json"),
    ):
        with pytest.raises((UsageProblem, BaselineUnusable)) as problem:
            merge_baselines(folders, into)
        assert says in str(problem.value)
        assert not list(project.glob("s3*"))
        assert not (project / "into").exists()
    assert merge_baselines(["part-1/baselines"], "into")[-1] == "1 entry merged into into"


def test_the_command(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 0 with what was taken, 2 with what contradicts."""
    store(project / "one", {"a": NEW_A})
    store(project / "two", {"a": NEW_B})
    assert main(["--baselines", "one", "--into", "into"]) == 0
    assert capsys.readouterr().out == f"{FILE}: a of one\n1 entry merged into into\n"
    assert main(["--baselines", "one", "two", "--into", "elsewhere"]) == 2
    assert "a of one and of two" in capsys.readouterr().err
