"""Which commit is the base of a baseline entry, in histories as teams make them; asked of a real git."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_gpuserve.builds.base import HistoryCut, NotCommitted, NotInGit, find_base
from pytest_gpuserve.errors import GpuserveError
from pytest_gpuserve.store.baseline import same_recording
from tests.support.plain_git import commit, git, run

FILE = "baselines/cpu/test_a.json"


@dataclass
class Project:
    """A project with code and one baseline file.

    Args:
        root: Its checkout.
        entries: What the file is written with, by the name of the test: what was measured.
    """

    root: Path
    entries: dict[str, int]
    name: str = FILE

    @property
    def path(self) -> Path:
        """The baseline file."""
        return self.root / self.name

    def record(self, **measured: int) -> None:
        """Record tests, as `--baseline-update` does."""
        self.entries |= measured
        entries = {
            name: {"sessions": [{"at": f"2025-01-01T00:00:{value:02d}+00:00"}]} for name, value in self.entries.items()
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps({"schema": 2, "summary": {}, "entries": entries}))

    def code(self, text: str) -> None:
        """Change the code."""
        (self.root / "app.py").write_text(text)

    def commit(self) -> str:
        """Commit all that is there; the hash."""
        return commit(self.root)

    @property
    def head(self) -> str:
        """The hash of HEAD."""
        return git(self.root, "rev-parse", "HEAD")

    def base(self, test: str = "a", root: Path | None = None) -> str:
        """The base of a test's entry."""
        path = (root or self.root) / self.name
        return find_base(root or self.root, path, same_recording(path.read_bytes(), test))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project whose baseline was recorded beside its first code."""
    root = tmp_path / "project"
    root.mkdir()
    git(root, "init", "--quiet", "--initial-branch=main")
    made = Project(root, {})
    made.code("1")
    made.record(a=1)
    made.commit()
    return made


def test_the_commit_that_brought_the_entry_is_the_base(project: Project) -> None:
    """Code that is changed later moves no base, and code that is committed together with the entry is part of it."""
    first = project.head
    project.code("2")
    project.commit()
    assert project.base() == first
    project.code("3")
    project.record(a=3)
    together = project.commit()
    project.code("4")
    project.commit()
    assert project.base() == together


def test_entries_of_a_file_have_bases_of_their_own(project: Project) -> None:
    """An entry keeps its base if another entry is recorded, or the file is rewritten, also for another schema."""
    first = project.head
    project.record(b=1)
    second = project.commit()
    file = json.loads(project.path.read_text())
    file["schema"], file["entries"]["a"]["reason"] = 3, "worth it"
    project.path.write_text(json.dumps(file, indent=4, sort_keys=True))
    project.commit()
    assert (project.base("a"), project.base("b")) == (first, second)


def test_an_entry_that_came_back_counts_from_its_return(project: Project) -> None:
    """A revert brings the old numbers together with the code of its own time."""
    project.code("2")
    project.record(a=2)
    project.commit()
    git(project.root, "revert", "--no-edit", "HEAD")
    assert project.base() == project.head


def test_a_squashed_branch_is_one_commit(project: Project, tmp_path: Path) -> None:
    """The branch, with the commit at which was recorded, may be gone; a fresh clone finds the squashed commit."""
    git(project.root, "checkout", "--quiet", "-b", "work")
    project.code("2")
    project.commit()
    project.record(a=2)
    project.commit()
    git(project.root, "checkout", "--quiet", "main")
    git(project.root, "merge", "--quiet", "--squash", "work")
    squashed = project.commit()
    git(project.root, "branch", "--quiet", "-D", "work")
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", f"file://{project.root}", str(clone))
    assert project.base(root=clone) == squashed


def test_a_rebased_branch_counts_from_its_new_commit(project: Project) -> None:
    """The base of a rebased recording is the new commit, with what main got meanwhile."""
    git(project.root, "checkout", "--quiet", "-b", "work")
    project.record(a=2)
    project.commit()
    git(project.root, "checkout", "--quiet", "main")
    project.code("2")
    project.commit()
    git(project.root, "rebase", "--quiet", "main", "work")
    assert project.base() == project.head


def test_a_merge_is_followed_to_the_side_that_recorded(project: Project) -> None:
    """Two branches record two entries of one file: each entry counts from its own branch, not from the merge."""
    first = project.head
    git(project.root, "checkout", "--quiet", "-b", "work")
    project.record(b=1)
    on_work = project.commit()
    git(project.root, "checkout", "--quiet", "main")
    project.entries = {"a": 1}
    project.record(c=1)
    project.code("2")
    on_main = project.commit()
    git(project.root, "merge", "--quiet", "--no-commit", "--no-ff", "--strategy=ours", "work")
    project.record(b=1)
    merge = project.commit()
    assert merge not in {project.base(test) for test in "abc"}
    assert [project.base(test) for test in "abc"] == [first, on_work, on_main]


def test_a_conflict_that_was_solved_by_recording_counts_from_the_merge(project: Project) -> None:
    """The merge is the base of an entry that neither side has."""
    git(project.root, "checkout", "--quiet", "-b", "work")
    project.record(a=2)
    project.commit()
    git(project.root, "checkout", "--quiet", "main")
    project.record(a=3)
    project.commit()
    git(project.root, "merge", "--quiet", "--no-commit", "--no-ff", "--strategy=ours", "work")
    project.record(a=4)
    assert project.commit() == project.base()


def test_a_moved_folder_is_followed(project: Project) -> None:
    """A renamed folder or file, also twice, does not move the base."""
    first = project.head
    for name in ("perf/baselines/cpu/test_a.json", "perf/baselines/cpu/test_b.json"):
        (project.root / name).parent.mkdir(parents=True, exist_ok=True)
        git(project.root, "mv", project.name, name)
        project.name = name
        project.code(name)
        project.commit()
    assert project.base() == first
    project.record(a=2)
    assert project.commit() == project.base()


def test_a_version_that_cannot_be_read_is_another_one(project: Project) -> None:
    """Conflict markers that were committed and repaired hide what was before them, and stop nothing."""
    whole = project.path.read_text()
    project.path.write_text(f"<<<<<<< HEAD\n{whole}=======\n")
    project.commit()
    project.path.write_text(whole)
    assert project.commit() == project.base()


def test_a_version_that_git_has_lost_is_an_error(project: Project) -> None:
    """It may have the entry, so that no later commit can be called the base."""
    lost = git(project.root, "rev-parse", f"HEAD:{project.name}")
    project.record(b=1)
    project.commit()
    (project.root / ".git" / "objects" / lost[:2] / lost[2:]).unlink()
    with pytest.raises(GpuserveError, match="could not read a version"):
        project.base("a")


@pytest.mark.parametrize("name", [FILE, "baselines/cpu/sub/it's new.json"], ids=["staged", "new"])
def test_what_is_not_committed_has_no_base(project: Project, name: str) -> None:
    """The command that the message names commits it, and then there is a base."""
    project.name = name
    project.record(a=2)
    if name == FILE:
        git(project.root, "add", "--all")
    with pytest.raises(NotCommitted) as caught:
        project.base()
    command = caught.value.remedies[0].split("`")[1].replace("git ", "git -c user.name=A -c user.email=a@b ")
    run(f"{command} --quiet --message=accept", project.root.parent)
    assert project.base() == project.head


def test_files_that_are_not_gits_are_told_apart(project: Project) -> None:
    """An ignored file, and one outside of the checkout, will never be committed with the code."""
    for name in ("ignored/test_a.json", "../elsewhere/test_a.json"):
        project.name = name
        (project.root / ".gitignore").write_text("ignored/\n")
        project.record(a=1)
        with pytest.raises(NotInGit):
            project.base()


def test_a_shallow_clone_knows_what_it_has(project: Project, tmp_path: Path) -> None:
    """A shallow clone finds a base within its depth; beyond it, the named command fetches the history."""
    first = project.head
    project.record(b=1)
    second = project.commit()
    project.code("2")
    project.commit()
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", "--depth=3", f"file://{project.root}", str(clone))
    assert (project.base("a", clone), project.base("b", clone)) == (first, second)
    git(tmp_path, "clone", "--quiet", "--depth=2", f"file://{project.root}", f"{clone}2")
    with pytest.raises(HistoryCut) as caught:
        project.base("b", tmp_path / "clone2")
    run(caught.value.remedies[0].split("`")[1], tmp_path / "clone2")
    assert project.base("b", tmp_path / "clone2") == second
