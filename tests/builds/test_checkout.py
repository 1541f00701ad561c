"""The state of a checkout, asked of a real git."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_gpuserve.builds import checkout as environment
from pytest_gpuserve.builds.checkout import Revision, read_revision
from tests.support.plain_git import commit, git, write


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with one commit: code and a baseline."""
    root, made = tmp_path / "checkout", tmp_path.parent / "one commit"
    if not made.exists():  # once, for all tests
        write(made, {"baselines/cpu/test_y.json": "{}", "suites/app.py": "1"})
        git(tmp_path, "init", "--quiet", str(made))
        commit(made)
    shutil.copytree(made, root, symlinks=True)
    return root


def edit(root: Path, *names: str) -> None:
    """Change files, or make them."""
    write(root, dict.fromkeys(names, "changed"))


def read(root: Path, baselines: str = "baselines") -> Revision:
    """The state of a checkout whose baselines are in this folder."""
    return read_revision(root, root / baselines)


def content(root: Path) -> str | None:
    """The content hash of a checkout."""
    return read(root).content


def test_committing_baselines_leaves_the_code(root: Path) -> None:
    """The code's hash stays when only baselines are committed, and changes with any other file."""
    before = read(root)
    assert (before.commit, before.clean) == (git(root, "rev-parse", "HEAD"), True)
    edit(root, "baselines/cpu/test_y.json")
    commit(root)
    after = read(root)
    assert before.commit != after.commit
    assert before.content == after.content is not None
    edit(root, "suites/app.py")
    commit(root)
    assert content(root) != before.content


@pytest.mark.parametrize(
    ("file", "baselines", "clean"),
    [
        ("suites/app.py", "baselines", False),
        ("new.py", "baselines", False),
        ("baselines-old/x.json", "baselines", False),
        # A name that is no UTF-8 is neither overlooked nor an error.
        (os.fsdecode(b"caf\xe9.py"), "baselines", False),
        ("baselines/cpu/test_y.json", "baselines", True),
        # The folder's name is no pattern, and the whole checkout is no folder of baselines.
        ("base [1]*/cpu/test_y.json", "base [1]*", True),
        ("base:lines/cpu/test_y.json", "base:lines", True),
        ("suites/app.py", "s*", False),
        ("suites/app.py", ".", False),
    ],
)
def test_any_change_but_of_baselines_is_dirty(root: Path, file: str, baselines: str, *, clean: bool) -> None:
    """A changed file and a new one; recording one test does not make the next one's code another."""
    git(root, "config", "core.quotePath", "false")
    edit(root, file)
    found = read(root, baselines)
    assert (found.commit, found.clean) == (git(root, "rev-parse", "HEAD"), clean)


def test_staged_hidden_and_unknown_changes_are_dirty(root: Path) -> None:
    """Staged changes, new files that the configuration hides, and a damaged index make a checkout dirty."""
    git(root, "config", "status.showUntrackedFiles", "no")
    (root / "new.py").write_text("2")
    assert not read(root).clean
    (root / "new.py").unlink()
    assert read(root).clean
    git(root, "rm", "--quiet", "suites/app.py")
    assert not read(root).clean
    # Nor where git knows the commit but not the state.
    git(root, "reset", "--quiet", "--hard")
    assert read(root).clean
    (root / ".git" / "index").write_bytes(b"damage")
    assert not read(root).clean


@pytest.mark.parametrize("flag", ["--skip-worktree", "--assume-unchanged"])
def test_a_change_that_git_is_told_to_overlook_counts(root: Path, flag: str) -> None:
    """A file that git is told to overlook makes the checkout dirty if it changes, because the server runs it."""
    before = read(root)
    git(root, "update-index", flag, "suites/app.py", "baselines/cpu/test_y.json")
    edit(root, "baselines/cpu/test_y.json")
    assert read(root) == before
    edit(root, "suites/app.py")
    assert not read(root).clean
    assert content(root) not in {before.content, None}


def test_a_sparse_checkout_is_its_commit(root: Path) -> None:
    """Files that a sparse checkout leaves out are not removed."""
    before = read(root)
    git(root, "reset", "--quiet", "--hard")
    git(root, "sparse-checkout", "set", "baselines")
    assert not (root / "suites").exists()
    assert read(root) == before


def test_the_checkout_is_found_from_anywhere(root: Path, tmp_path: Path) -> None:
    """A checkout is the same from a folder in it and by a link; changed baselines do not make it dirty."""
    (tmp_path / "link").symlink_to(root)
    assert read_revision(root, tmp_path / "elsewhere").clean
    (root / "baselines" / "cpu" / "test_y.json").write_text("changed")
    assert read_revision(root / "suites", root / "baselines").clean
    assert read(tmp_path / "link").clean
    (root / "model.py").write_text("2")
    below = read_revision(root / "suites", root / "baselines")
    assert not below.clean
    assert below.content == content(root)


@pytest.mark.parametrize("where", ["", "nowhere", "empty", "checkout"], ids=["none", "no folder", "empty", "no git"])
def test_where_git_knows_nothing_nothing_is_known(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Outside of git, before the first commit, and without git, where one measures, but never pools."""
    git(tmp_path, "init", "--quiet", "empty")
    if where == root.name:
        monkeypatch.setenv("PATH", str(tmp_path))
    found = read(tmp_path / where)
    assert (found.commit, found.clean, found.content) == (None, False, None)


# -- what would run


def test_content_is_that_of_the_disk(root: Path) -> None:
    """Each way to change what would run changes it; undoing the change brings it back."""
    seen = {content(root)}
    app, new = root / "suites" / "app.py", root / "suites" / "new.py"

    def become_a_folder() -> None:
        app.unlink()
        app.mkdir()
        (app / "inner.py").write_text("1")

    changes: tuple[Callable[[], object], ...] = (
        lambda: app.write_text("2"),
        lambda: app.write_text("3"),
        lambda: app.chmod(0o755),
        lambda: git(root, "add", "."),
        lambda: new.write_text("1"),
        lambda: new.write_text("2"),
        lambda: new.rename(root / "suites" / "moved.py"),
        (root / "suites" / "moved.py").unlink,
        app.unlink,
        lambda: app.symlink_to("elsewhere"),
        become_a_folder,
    )
    different = []
    for change in changes:
        change()
        different.append(content(root) not in seen)
        seen.add(content(root))
    # Staging changes nothing on the disk; removing the new file brings back what was before it.
    assert different == [True, True, True, False, True, True, True, False, True, True, True]
    assert None not in seen
    git(root, "reset", "--quiet")
    (app / "inner.py").unlink()
    app.rmdir()
    git(root, "checkout", "--", ".")
    assert content(root) in seen


def test_content_stays_when_it_is_committed(root: Path) -> None:
    """The same files are the same candidate, before and after they are committed, modes, links and names included."""
    (root / "folder").write_text("not yet")
    commit(root)
    (root / "folder").unlink()
    edit(root, "folder/inner.py", "suites/app.py", "café.py", os.fsdecode(b"caf\xe9.py"), "new\nline")
    (root / "suites" / "app.py").chmod(0o755)
    (root / "link").symlink_to("suites")
    before = content(root)
    commit(root)
    assert before == content(root) is not None
    assert read(root).clean


def test_what_is_not_the_code_leaves_content(root: Path) -> None:
    """Baselines, committed or not, ignored files, bytecode and a user's ways to show a difference do not count."""
    before = content(root)
    for setting in ("diff.external=false", "diff.noprefix=true", "color.ui=always"):
        git(root, "config", *setting.split("="))
    write(root, {".git/info/exclude": "*.bin\n"})
    edit(root, "baselines/cpu/test_y.json", "baselines/cpu/new.json", "suites/__pycache__/app.pyc", "weights.bin")
    assert content(root) == before
    git(root, "add", "baselines")
    git(root, "commit", "--quiet", "--message=baselines")
    assert content(root) == before


def test_to_ask_for_the_content_writes_nothing(root: Path) -> None:
    """A file that was only touched has not changed, and the repository's own files are what they were."""
    before = content(root)
    os.utime(root / "suites" / "app.py", (1, 1))
    assert content(root) == before is not None
    os.utime(root / "suites" / "app.py", (2, 2))
    edit(root, "new.py")
    files = {path: path.read_bytes() for path in (root / ".git").rglob("*") if path.is_file()}
    assert content(root) is not None
    assert {path: path.read_bytes() for path in (root / ".git").rglob("*") if path.is_file()} == files


def test_a_huge_file_is_known_by_size_and_time(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not read, but another size or a later change is another content."""
    monkeypatch.setattr(environment, "LARGEST_READ_BYTES", 3)
    seen = []
    for text, changed in (("1234", 1), ("4321", 1), ("4321", 2), ("54321", 2)):
        (root / "huge").write_text(text)
        os.utime(root / "huge", (changed, changed))
        seen.append(content(root))
    assert seen[0] == seen[1]
    assert len(set(seen)) == 3


def test_a_file_that_cannot_be_read_makes_it_unknown(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unreadable file makes the content unknown."""

    def refuse(path: Path) -> bytes:
        raise PermissionError(path)

    (root / "secret.py").write_text("1")
    assert content(root) is not None
    monkeypatch.setattr(type(root), "read_bytes", refuse)
    assert content(root) is None


def test_a_repository_within_counts(root: Path, tmp_path: Path) -> None:
    """A submodule, or a clone that is not added, counts by its commit and its changes."""
    git(tmp_path, "clone", "--quiet", str(root), str(tmp_path / "part"))
    git(root, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(tmp_path / "part"), "part")
    commit(root)
    changes: tuple[Callable[[], object], ...] = (
        lambda: (root / "part" / "suites" / "app.py").write_text("2"),
        lambda: (root / "part" / "suites" / "app.py").write_text("3"),
        lambda: git(root / "part", "commit", "--quiet", "--all", "--message=3"),
        lambda: git(tmp_path, "clone", "--quiet", str(tmp_path / "part"), str(root / "clone")),
        lambda: (root / "clone" / "suites" / "app.py").write_text("2"),
    )
    seen = {content(root)}
    for change in changes:
        change()
        seen.add(content(root))
    assert len(seen) == 6
    assert None not in seen
