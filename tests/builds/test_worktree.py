"""Another revision beside the checkout: found by name, there while it is needed, and gone whatever happens."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import pytest

from pytest_gpuserve.builds.checkout import checkout_of
from pytest_gpuserve.builds.worktree import SHOWN_DIGITS, ReferenceBuilds, resolve_revision, worktree_of
from pytest_gpuserve.errors import GpuserveError, UsageProblem
from tests.fakes.children.toolkit import ROOT, eventually, report
from tests.support.plain_git import commit, git, write

UNKNOWN = "0123456789abcdef0123456789abcdef01234567"

OWNER = """
import json, signal, sys
from pathlib import Path
from pytest_gpuserve.builds.worktree import worktree_of
from tests.fakes.children.toolkit import put_report, stay

# A test run in the background has Ctrl-C ignored, and what it starts as well.
signal.signal(signal.SIGINT, signal.default_int_handler)
with worktree_of(Path(sys.argv[1]), sys.argv[2]) as worktree:
    put_report(sys.argv[3], str(worktree))
    stay()
"""
"""Arguments: ROOT, COMMIT, REPORT. Holds a worktree until it is ended."""


def repository(root: Path) -> Path:
    """A repository of two commits on ``main``, with a staged, an unstaged and an untracked change on top."""
    made = root.parents[1] / "two commits"
    if not made.exists():  # once, for all tests
        made.mkdir()
        git(made, "init", "--quiet", "--initial-branch=main")
        for number in ("1", "2", "3"):
            write(made, {"suites/app.py": number, "staged": number})
            if number != "3":
                commit(made)
        git(made, "add", "staged")
        (made / "new").write_text("3")
    shutil.copytree(made, root, symlinks=True)
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The user's repository."""
    return repository(tmp_path / "checkout")


def state(root: Path) -> tuple[str, ...]:
    """Everything of a checkout that a user would miss."""
    common = Path(git(root, "rev-parse", "--absolute-git-dir"))
    return (
        git(root, "status", "--porcelain=v2", "--branch", "--untracked-files=all"),
        git(root, "diff", "HEAD"),
        git(root, "for-each-ref"),
        git(root, "worktree", "list", "--porcelain"),
        git(root, "config", "--local", "--list"),
        str((common / "HEAD").read_text()),
        git(root, "reflog"),
    )


def nothing_left(root: Path) -> bool:
    """Whether neither the folder for temporary files nor git knows of a worktree."""
    notes = root / ".git" / "worktrees"
    return not any(Path(os.environ["TMPDIR"]).iterdir()) and not (notes.is_dir() and any(notes.iterdir()))


@contextmanager
def owner(root: Path, told: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds a worktree of the first commit."""
    command = [sys.executable, "-c", OWNER, str(root), git(root, "rev-parse", "HEAD~1"), str(told)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as running:
        try:
            yield running
        finally:
            running.kill()


@pytest.fixture
def kept(root: Path) -> Iterator[Path]:
    """The user's repository, which is afterwards what it was, with nothing left."""
    before = state(root)
    yield root
    assert nothing_left(root)
    assert state(root) == before


def first_of(root: Path) -> AbstractContextManager[Path]:
    """A worktree of the first commit."""
    return worktree_of(root, git(root, "rev-parse", "HEAD~1"))


def test_a_worktree_is_the_commit_and_leaves_nothing(kept: Path) -> None:
    """The files are those of the commit, and all is gone after the block; a second one does not meet it."""
    with first_of(kept) as worktree:
        assert (worktree / "suites" / "app.py").read_text() == "1"
        assert not (worktree / "new").exists()
        assert git(worktree, "status", "--porcelain") == ""
        assert git(worktree, "branch", "--show-current") == ""
        with first_of(kept) as second:
            assert worktree != second
        assert not second.exists()
        assert (worktree / "staged").exists()
        assert git(worktree, "rev-parse", "HEAD") == git(kept, "rev-parse", "HEAD~1")
    assert not (kept / ".git" / "worktrees").exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_end_of_the_owner_leaves_nothing(kept: Path, tmp_path: Path, number: signal.Signals) -> None:
    """Kill -9 of the owner, SIGTERM and Ctrl-C leave neither the folder nor git's note of it."""
    with owner(kept, tmp_path / "told") as running:
        path = Path(report(tmp_path / "told"))
        assert (path / "suites" / "app.py").read_text() == "1"
        assert str(path) in git(kept, "worktree", "list")
        running.send_signal(number)
        running.wait(30)
        eventually(lambda: nothing_left(kept), "the worktree is gone")


@contextmanager
def filtered(root: Path, name: str, smudge: str) -> Iterator[None]:
    """Let git run a program whenever it writes one of the files."""
    attributes = root / ".git" / "info" / "attributes"
    attributes.parent.mkdir(exist_ok=True)
    attributes.write_text(f"staged filter={name}\n")
    git(root, "config", f"filter.{name}.smudge", smudge)
    git(root, "config", f"filter.{name}.required", "true")
    yield
    git(root, "config", "--remove-section", f"filter.{name}")
    attributes.unlink()


def test_kill_while_git_is_at_work_leaves_nothing(kept: Path, tmp_path: Path) -> None:
    """An owner that is killed before git has written all files leaves neither files nor a git that goes on."""
    begun = tmp_path / "begun"
    slow = f"sh -c 'echo $$ > \"{begun}\"; exec sleep 600'"
    with filtered(kept, "slow", slow), owner(kept, tmp_path / "told") as running:
        eventually(lambda: begun.exists() and begun.read_text().strip() != "", "git runs the filter")
        running.kill()
        running.wait(30)
        eventually(lambda: nothing_left(kept), "the worktree is gone")
        eventually(lambda: not Path("/proc", begun.read_text().strip()).exists(), "the filter has ended")


def test_a_linked_worktree_is_a_checkout(root: Path, tmp_path: Path) -> None:
    """A user's checkout may itself be a linked worktree, which stays when ours is removed."""
    linked = tmp_path / "linked"
    git(root, "worktree", "add", "--quiet", "-b", "side", str(linked))
    before = state(linked), state(root)
    with worktree_of(linked, git(root, "rev-parse", "HEAD~1")) as worktree:
        assert (worktree / "staged").read_text() == "1"
        assert git(root, "worktree", "list").count("\n") == 2
    assert (state(linked), state(root)) == before
    assert len(list((root / ".git" / "worktrees").iterdir())) == 1


@pytest.mark.parametrize("revision", ["HEAD~1", "HEAD^", "HEAD"])
def test_a_relative_revision_is_proposed_again_by_its_hash(kept: Path, revision: str) -> None:
    """``HEAD~1`` is proposed by its hash, because the next commit moves it; a name stays a name."""
    with closing(ReferenceBuilds(kept)) as builds:
        found = builds.find(revision=revision, python=None)
    named = revision if revision == "HEAD" else git(kept, "rev-parse", "HEAD~1")[:SHOWN_DIGITS]
    assert found.options == (f"--against={named}",)


@pytest.mark.parametrize("name", ["mit Umlaut ä", "q\"uote's", "-dash", "new\nline"])
def test_any_folder_name_will_do(tmp_path: Path, name: str) -> None:
    """The checkout's path is never read as anything else, and its top is found from any folder in it."""
    root = repository(tmp_path / name)
    before = state(root)
    assert checkout_of(root / "suites") == root
    with worktree_of(root / "suites", resolve_revision(root / "suites", "HEAD~1")) as worktree:
        assert (worktree / "staged").read_text() == "1"
    assert nothing_left(root)
    assert state(root) == before


def test_variables_of_a_hook_name_no_other_repository(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variables that git sets for a hook lead to no other repository, which stays unchanged."""
    other = repository(tmp_path / "other")
    before, first = state(other), git(kept, "rev-parse", "HEAD~1")
    index = (other / ".git" / "index").read_bytes()
    with monkeypatch.context() as hook:
        hook.setenv("GIT_DIR", str(other / ".git"))
        hook.setenv("GIT_WORK_TREE", str(other))
        hook.setenv("GIT_INDEX_FILE", str(other / ".git" / "index"))
        hook.setenv("GIT_PREFIX", "suites/")
        assert resolve_revision(kept, "HEAD~1") == first
        with worktree_of(kept, first) as worktree:
            assert (worktree / "staged").read_text() == "1"
    assert (other / ".git" / "index").read_bytes() == index
    assert state(other) == before


def test_no_hook_is_run(root: Path, tmp_path: Path) -> None:
    """A user's post-checkout hook, which may install things, is not run; an ordinary worktree would run it."""
    hook = root / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch '{tmp_path}/hooked'\n")
    hook.chmod(0o755)
    with first_of(root):
        assert not (tmp_path / "hooked").exists()
    git(root, "worktree", "add", "--quiet", "--detach", str(tmp_path / "ordinary"))
    assert (tmp_path / "hooked").exists()


def test_what_cannot_be_made_is_told(kept: Path) -> None:
    """A commit that git lacks, a filter that is not installed, as Git LFS; and no folder for temporary files."""
    with pytest.raises(GpuserveError, match="invalid reference") as told:
        worktree_of(kept, UNKNOWN).__enter__()
    assert UNKNOWN in str(told.value)
    with filtered(kept, "absent", "no-such-program"), pytest.raises(GpuserveError, match="no-such-program"):
        first_of(kept).__enter__()
    temporary, worktree = Path(os.environ["TMPDIR"]), first_of(kept)
    temporary.rmdir()
    with pytest.raises(GpuserveError, match="TMPDIR"):
        worktree.__enter__()
    temporary.mkdir()


# -- revisions by name


@pytest.mark.parametrize("name", ["nowhere", "HEAD~7", "-x", "--all", "^HEAD", "HEAD:staged", "main..main~1", ""])
def test_an_unknown_revision_is_a_usage_problem(root: Path, name: str) -> None:
    """The error names an unknown revision, which git never takes for an option."""
    with pytest.raises(UsageProblem) as told:
        resolve_revision(root, name)
    assert repr(name) in str(told.value)
    assert "git branch --all" in str(told.value)
    assert ("git log --oneline HEAD" in str(told.value)) is (name == "HEAD~7")


@pytest.mark.parametrize(
    ("typed", "meant"), [("orign/main", "origin/main"), ("featrue~1", "feature~1"), ("v1..0", "v1.0")]
)
def test_a_mistyped_revision_names_the_one_that_is_near(root: Path, tmp_path: Path, typed: str, meant: str) -> None:
    """The first remedy is the branch or tag that git has and whose name is near; a known one has none."""
    git(root, "branch", "feature")
    git(root, "tag", "v1.0")
    git(tmp_path, "clone", "--quiet", f"file://{root}", "clone")
    git(tmp_path / "clone", "branch", "feature", "origin/feature")
    with pytest.raises(UsageProblem) as told:
        resolve_revision(tmp_path / "clone", typed)
    assert told.value.remedies[0] == f"did you mean {meant}?"
    with pytest.raises(UsageProblem) as told:
        resolve_revision(tmp_path / "clone", "main~99")
    assert "did you mean" not in str(told.value)


@pytest.mark.parametrize("name", ["origin/main", "main"])
def test_what_was_never_fetched(root: Path, tmp_path: Path, name: str) -> None:
    """The command that is named makes a branch known, in a shallow clone of a single branch too, and a hash."""
    git(root, "branch", "feature")
    git(tmp_path, "clone", "--quiet", "--depth=1", "--branch=feature", f"file://{root}", "single")
    single = tmp_path / "single"
    with pytest.raises(UsageProblem) as told:
        resolve_revision(single, name)
    command = "git fetch origin main:refs/remotes/origin/main"
    assert f"`{command}`" in str(told.value)
    assert "`git fetch --unshallow`" in str(told.value)
    assert "--against=origin/main" in str(told.value) or name == "origin/main"
    git(single, *command.split()[1:])
    assert resolve_revision(single, "origin/main") == git(single, "rev-parse", "HEAD")
    with pytest.raises(UsageProblem, match=f"`git fetch origin {UNKNOWN}`"):
        resolve_revision(single, UNKNOWN)


def test_where_there_is_no_commit_it_is_told(tmp_path: Path) -> None:
    """Outside of git, with how to compare all the same; and before the first commit."""
    git(tmp_path, "init", "--quiet", "empty")
    with pytest.raises(UsageProblem, match=r"not a git repository[\s\S]*--against-python"):
        resolve_revision(tmp_path, "HEAD")
    with pytest.raises(UsageProblem, match="make the first commit"):
        resolve_revision(tmp_path / "empty", "HEAD")
