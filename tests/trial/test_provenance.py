"""The state of a checkout, asked of a real git."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.experiment import provenance
from pytest_gpuserve.experiment.provenance import Revision, read_revision
from tests.support.plain_git import git, only_below

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(autouse=True)
def only_this_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No configuration of the machine, and no repository around the temporary folder."""
    only_below(tmp_path, monkeypatch)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with one commit: code and a baseline."""
    root = tmp_path / "checkout"
    (root / "baselines" / "cpu").mkdir(parents=True)
    (root / "baselines" / "cpu" / "test_y.json").write_text("{}")
    (root / "suites").mkdir()
    (root / "suites" / "app.py").write_text("1")
    git(tmp_path, "init", "--quiet", str(root))
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message=first")
    return root


def state(revision: Revision) -> tuple[str | None, bool]:
    """Commit, and whether the checkout is clean."""
    return revision.commit, revision.clean


def test_committing_baselines_leaves_the_code(root: Path) -> None:
    """The code's hash stays when only baselines are committed, and changes with any other file."""
    before = read_revision(root, root / "baselines")
    (root / "baselines" / "cpu" / "test_y.json").write_text("{ }")
    git(root, "commit", "--quiet", "--all", "--message=baselines")
    after = read_revision(root, root / "baselines")
    assert before.commit != after.commit
    assert before.code == after.code is not None
    (root / "suites" / "app.py").write_text("2")
    git(root, "commit", "--quiet", "--all", "--message=code")
    assert read_revision(root, root / "baselines").code != before.code


def test_an_unchanged_checkout_is_its_commit(root: Path) -> None:
    """The full hash, and clean."""
    assert state(read_revision(root, root / "baselines")) == (git(root, "rev-parse", "HEAD"), True)


@pytest.mark.parametrize("file", ["suites/app.py", "new.py", "baselines.py", "baselines-old/x.json"])
def test_any_other_change_is_dirty(root: Path, file: str) -> None:
    """A changed file and a new one, one that is named like the baselines too."""
    (root / file).parent.mkdir(exist_ok=True)
    (root / file).write_text("2")
    assert state(read_revision(root, root / "baselines")) == (git(root, "rev-parse", "HEAD"), False)


def test_a_staged_or_removed_file_is_dirty(root: Path) -> None:
    """What the next commit would change is not this commit."""
    git(root, "rm", "--quiet", "suites/app.py")
    assert not read_revision(root, root / "baselines").clean


@pytest.mark.parametrize("name", ["baselines", "base [1]*", "base:lines"])
def test_changed_baselines_are_still_clean(root: Path, name: str) -> None:
    """Recording one test does not make the next one's code another; the folder's name is no pattern."""
    folder = root / name / "cpu"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "test_y.json").write_text("changed")
    (folder / "test_new.json").write_text("new")
    assert read_revision(root, root / name).clean


def test_a_folder_name_is_no_pattern(root: Path) -> None:
    """Baselines in ``s*`` do not hide changes in ``suites``."""
    (root / "suites" / "app.py").write_text("2")
    assert not read_revision(root, root / "s*").clean


def test_the_whole_checkout_is_no_baseline_folder(root: Path) -> None:
    """``--baseline-dir=.`` does not make every change a change of baselines."""
    (root / "suites" / "app.py").write_text("2")
    assert not read_revision(root, root).clean


def test_code_beside_the_root_folder_counts(root: Path) -> None:
    """Where pytest's root is a folder of the checkout, changes elsewhere in it are changes."""
    assert read_revision(root / "suites", root / "baselines").clean
    (root / "baselines" / "cpu" / "test_y.json").write_text("changed")
    assert read_revision(root / "suites", root / "baselines").clean
    (root / "model.py").write_text("2")
    assert not read_revision(root / "suites", root / "baselines").clean


def test_hidden_untracked_files_count(root: Path) -> None:
    """A user's configuration that hides new files does not hide them from us."""
    git(root, "config", "status.showUntrackedFiles", "no")
    (root / "new.py").write_text("2")
    assert not read_revision(root, root / "baselines").clean


def test_a_link_to_the_checkout_is_the_checkout(root: Path, tmp_path: Path) -> None:
    """The baselines are told apart by the real folder, not by the way to it."""
    link = tmp_path / "link"
    link.symlink_to(root)
    (root / "baselines" / "cpu" / "test_y.json").write_text("changed")
    assert read_revision(link, link / "baselines").clean


def test_a_file_name_in_another_encoding_is_a_change(root: Path) -> None:
    """A name that is no UTF-8 is neither overlooked nor an error."""
    git(root, "config", "core.quotePath", "false")
    (root / os.fsdecode(b"caf\xe9.py")).write_text("2")
    assert not read_revision(root, root / "baselines").clean


def test_baselines_elsewhere_do_not_matter(root: Path, tmp_path: Path) -> None:
    """A folder outside of the checkout is no part of its state."""
    assert read_revision(root, tmp_path / "elsewhere").clean


def test_before_the_first_commit_nothing_is_known(tmp_path: Path) -> None:
    """An empty repository has no commit and is not clean."""
    git(tmp_path, "init", "--quiet", "empty")
    assert state(read_revision(tmp_path / "empty", tmp_path / "empty" / "baselines")) == (None, False)


@pytest.mark.parametrize("where", ["", "nowhere"])
def test_outside_of_git_nothing_is_known(tmp_path: Path, where: str) -> None:
    """No repository, or no folder at all."""
    assert state(read_revision(tmp_path / where, tmp_path / "baselines")) == (None, False)


def test_without_git_nothing_is_known(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without git measures as well, but never pools."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert state(read_revision(root, root / "baselines")) == (None, False)


def test_a_broken_repository_is_not_clean(root: Path) -> None:
    """Where git knows the commit but not the state, the state is not clean."""
    (root / ".git" / "index").write_bytes(b"damage")
    assert not read_revision(root, root / "baselines").clean


def content(root: Path) -> str | None:
    """What would run from a checkout."""
    return read_revision(root, root / "baselines").content


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
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message=a file")
    (root / "folder").unlink()
    (root / "folder").mkdir()
    (root / "folder" / "inner.py").write_text("1")
    (root / "suites" / "app.py").write_text("2")
    (root / "suites" / "app.py").chmod(0o755)
    (root / "café.py").write_text("2")
    (root / os.fsdecode(b"caf\xe9.py")).write_text("2")
    (root / "new\nline").write_text("")
    (root / "link").symlink_to("suites")
    before = content(root)
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message=all")
    assert before == content(root) is not None
    assert read_revision(root, root / "baselines").clean


def test_what_is_not_the_code_leaves_content(root: Path) -> None:
    """Baselines, committed or not, ignored files, bytecode and a user's ways to show a difference do not count."""
    before = content(root)
    git(root, "config", "diff.external", "false")
    git(root, "config", "diff.noprefix", "true")
    git(root, "config", "color.ui", "always")
    (root / "baselines" / "cpu" / "test_y.json").write_text("changed")
    (root / "baselines" / "cpu" / "new.json").write_text("new")
    (root / "suites" / "__pycache__").mkdir()
    (root / "suites" / "__pycache__" / "app.pyc").write_text("")
    (root / ".git" / "info").mkdir(exist_ok=True)
    (root / ".git" / "info" / "exclude").write_text("*.bin\n")
    (root / "weights.bin").write_text("1")
    assert content(root) == before
    git(root, "add", "baselines")
    git(root, "commit", "--quiet", "--message=baselines")
    assert content(root) == before


def test_content_is_of_the_whole_checkout(root: Path) -> None:
    """From a folder of the checkout it is the same as from its top."""
    (root / "model.py").write_text("2")
    assert read_revision(root / "suites", root / "baselines").content == content(root)


def test_content_of_a_touched_file(root: Path) -> None:
    """A file that was only touched has not changed."""
    before = content(root)
    os.utime(root / "suites" / "app.py", (1, 1))
    assert content(root) == before


def test_nothing_is_written_for_the_content(root: Path) -> None:
    """The repository's own files are what they were."""
    os.utime(root / "suites" / "app.py", (1, 1))
    (root / "new.py").write_text("1")

    def files() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in sorted((root / ".git").rglob("*")) if path.is_file()}

    before = files()
    assert content(root) is not None
    assert files() == before


def test_a_huge_file_is_known_by_size_and_time(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not read, but another size or a later change is another content."""
    monkeypatch.setattr(provenance, "LARGEST_READ_BYTES", 3)
    huge = root / "huge"
    huge.write_text("1234")
    os.utime(huge, (1, 1))
    before = content(root)
    huge.write_text("4321")
    os.utime(huge, (1, 1))
    assert content(root) == before
    os.utime(huge, (2, 2))
    assert content(root) != before


def test_a_file_that_cannot_be_read_makes_it_unknown(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not known is never the same."""

    def refuse(path: Path) -> bytes:
        raise PermissionError(path)

    assert content(root) is not None
    (root / "secret.py").write_text("1")
    monkeypatch.setattr(type(root), "read_bytes", refuse)
    assert content(root) is None


def test_a_repository_within_counts(root: Path, tmp_path: Path) -> None:
    """A submodule counts by its commit and by what was changed in it; so does a clone that nobody added."""
    git(tmp_path, "clone", "--quiet", str(root), str(tmp_path / "part"))
    git(root, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(tmp_path / "part"), "part")
    git(root, "commit", "--quiet", "--message=part")
    seen = {content(root)}
    (root / "part" / "suites" / "app.py").write_text("2")
    seen.add(content(root))
    (root / "part" / "suites" / "app.py").write_text("3")
    dirty = content(root)
    seen.add(dirty)
    git(root / "part", "commit", "--quiet", "--all", "--message=3")
    seen.add(content(root))
    git(tmp_path, "clone", "--quiet", str(tmp_path / "part"), str(root / "clone"))
    cloned = content(root)
    seen.add(cloned)
    (root / "clone" / "suites" / "app.py").write_text("2")
    seen.add(content(root))
    assert len(seen) == 6
    assert None not in seen


@pytest.mark.parametrize("where", ["", "empty"])
def test_without_a_commit_the_content_is_unknown(tmp_path: Path, where: str) -> None:
    """Outside of git, and before the first commit."""
    git(tmp_path, "init", "--quiet", "empty")
    assert read_revision(tmp_path / where, tmp_path / "baselines").content is None


def test_variables_of_a_hook_name_no_other_repository(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a hook git names its repository and index to every git below it; the state is that of the checkout."""
    before = read_revision(root, root / "baselines")
    git(tmp_path, "init", "--quiet", "other")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "other" / ".git" / "index"))
    monkeypatch.setenv("GIT_LITERAL_PATHSPECS", "1")
    assert read_revision(root, root / "baselines") == before
