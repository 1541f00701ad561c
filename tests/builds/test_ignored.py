"""What git ignores and the base has all the same: linked, and never written or removed through the links."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pytest_gpuserve.builds.ignored import MOST_LOOKED_AT
from pytest_gpuserve.builds.worktree import ReferenceBuilds
from pytest_gpuserve.errors import GpuserveError, NotInRevision
from tests.support.plain_git import commit, git, write

IGNORED = ".env\n*.bin\n*.so\n/weights/\n.venv/\nbuild/\n*.log\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with an app, some folders with tracked files, and what git ignores beside them."""
    root = tmp_path / "project"
    root.mkdir()
    (root / ".gitignore").write_text(IGNORED)
    make(root, "app/server.py", "app/_fast.so", "models/ens/config.pbtxt", ".env", "app/weights.bin")
    make(root, "weights/a.safetensors", "weights/deep/b", "data/only/w.bin", "build/lib/app.py", "build/lib/x.so")
    make(root, ".venv/pyvenv.cfg", ".venv/bin/python", "app/__pycache__/server.pyc")
    (root / "models" / "ens" / "1").mkdir()
    git(root, "init", "--quiet", "--initial-branch=main")
    commit(root)
    return root


def make(root: Path, *names: str) -> None:
    """Write files, each with its name as its content."""
    write(root, {name: name for name in names})


class Base:
    """The base's folder of a checkout.

    Args:
        root: The checkout.
        patterns: Of the ini setting.
    """

    def __init__(self, root: Path, *patterns: str, revision: str = "HEAD") -> None:
        self.builds = ReferenceBuilds(root, patterns)
        place = self.builds.find(revision=revision, python=None).relocation.worktree
        assert place is not None
        self.place = place

    def links(self) -> dict[str, Path]:
        """All links in it, with where they lead."""
        return {path.relative_to(self.place).as_posix(): path.readlink() for path in self._walk() if path.is_symlink()}

    def _walk(self) -> Iterator[Path]:
        for folder, folders, files in os.walk(self.place):
            yield from (Path(folder, name) for name in (*folders, *files))


def linked(root: Path, *patterns: str, revision: str = "HEAD") -> set[str]:
    """The names of what is linked."""
    base = Base(root, *patterns, revision=revision)
    with closing(base.builds):
        links = base.links()
        assert all(target == root / name for name, target in links.items())
        return set(links)


def test_what_an_app_reads_is_linked_and_what_is_built_is_not(root: Path) -> None:
    """Ignored settings, weights, data and empty folders are in the base; environments and caches are not."""
    assert linked(root) == {".env", "app/weights.bin", "weights", "data/only/w.bin"}
    base = Base(root)
    with closing(base.builds):
        assert (base.place / "models" / "ens" / "1").is_dir()


def test_odd_links_are_linked(root: Path) -> None:
    """A link to itself, to nowhere, or to its own folder is a link like any other."""
    targets = {"data/itself": "itself", "data/nowhere": "/no/such", "data/folder": "../data"}
    for name, target in targets.items():
        (root / name).symlink_to(target)
    with (root / ".gitignore").open("a") as ignored:
        ignored.writelines(f"/{name}\n" for name in targets)
    assert set(targets) < linked(root)


def test_a_base_without_its_ignored_files_is_not_made(root: Path) -> None:
    """If git cannot list the files of the checkout, making the base is an error, instead of a base without settings."""
    (root / ".git" / "index").write_bytes(b"damage")
    with pytest.raises(GpuserveError, match=r"could not list the files of the checkout[\s\S]*index"):
        linked(root)


def test_what_is_untracked_is_the_candidates(root: Path) -> None:
    """New files, and ignored or empty folders beside them, belong to the candidate alone."""
    make(root, "new.py", "models/new/config.pbtxt", "models/new/1/w.bin")
    (root / "models" / "new" / "2").mkdir()
    base = Base(root)
    with closing(base.builds):
        assert not (base.place / "new.py").exists()
        assert not (base.place / "models" / "new").exists()
    commit(root)
    assert "models/new/1/w.bin" not in linked(root, revision="HEAD~1")


def test_what_the_base_has_stays_its_own(root: Path, tmp_path: Path) -> None:
    """A file that the base tracks is not replaced, and through a link that it tracks nothing is made outside."""
    git(root, "add", "--force", "weights/a.safetensors", ".env")
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / "data" / "only" / "w.bin").unlink()
    (root / "data" / "only").rmdir()
    (root / "data" / "only").symlink_to(outside)
    commit(root)
    git(root, "rm", "--quiet", "--cached", "weights/a.safetensors", ".env", "data/only")
    (root / "data" / "only").unlink()
    make(root, "data/only/w.bin")
    commit(root)
    base = Base(root, revision="HEAD~1")
    with closing(base.builds):
        links = base.links()
    assert links.pop("data/only") == outside
    assert links.keys() == {"app/weights.bin", "weights/deep"}
    assert list(outside.iterdir()) == []


def test_what_is_linked_is_not_the_revisions_code(root: Path) -> None:
    """A program that git ignores would be one and the same on both sides: there is nothing to compare it with."""
    with closing(ReferenceBuilds(root)) as builds:
        relocation = builds.find(revision="HEAD", python=None).relocation
        assert relocation.path(root / "weights" / "deep") != root / "weights" / "deep", "data is read through the link"
        with pytest.raises(NotInRevision):
            relocation.source(root / "weights" / "deep" / "b")


@pytest.mark.parametrize(
    ("patterns", "more", "less"),
    [
        (["!.env"], set(), {".env"}),
        (["!weights/"], set(), {"weights"}),
        (["!weights/deep"], {"weights/a.safetensors"}, {"weights"}),
        (["!data/*"], set(), {"data/only/w.bin"}),
        (["*.so"], {"app/_fast.so"}, set()),
        (["build/lib/x.so"], {"build/lib/x.so"}, set()),
        (["*.bin", "!app/*.bin"], set(), {"app/weights.bin"}),
        ([".venv/"], {".venv"}, set()),
    ],
)
def test_patterns_add_and_leave_out(root: Path, patterns: list[str], more: set[str], less: set[str]) -> None:
    """The last pattern that matches decides, also inside of a folder that is ignored as a whole."""
    assert linked(root, *patterns) == (linked(root) | more) - less


def test_nothing_is_removed_through_a_link(root: Path) -> None:
    """The base's folder ends, and what its links lead to stays as it was."""
    with closing(Base(root).builds):
        pass
    assert (root / "weights" / "deep" / "b").read_text() == "weights/deep/b"
    assert (root / ".env").read_text() == ".env"


def test_what_changed_meanwhile_is_told(root: Path) -> None:
    """Both builds share what is linked: a file that was written there is named, with how to keep it apart."""
    base = Base(root)
    with closing(base.builds):
        told = base.builds.remarks()
        assert len(told) == 1, "only that something compiled was left out"
        make(root, "weights/__pycache__/m.pyc")
        assert base.builds.remarks() == told
        (base.place / "weights" / "cache").write_text("written by a server")
        (_, changed) = base.builds.remarks()
    assert changed.startswith("weights changed during the run, and both builds share it")
    assert "gpuserve_base_files = !weights" in changed


def test_of_a_large_folder_nothing_is_said(root: Path) -> None:
    """Changes in a folder of very many files are not looked for, because that takes too long."""
    make(root, *[f"weights/{number}" for number in range(MOST_LOOKED_AT + 1)])
    base = Base(root, "!*.so")
    with closing(base.builds):
        (base.place / "weights" / "more").write_text("")
        assert not any("changed" in line for line in base.builds.remarks())


def test_what_is_compiled_is_told(root: Path) -> None:
    """A compiled file that is left out among the app's own is named with what helps; a shared one is not."""
    for patterns, words in (([], ["the base does not have app/_fast.so"]), (["*.so"], [])):
        base = Base(root, *patterns)
        with closing(base.builds):
            assert [line.partition(",")[0] for line in base.builds.remarks()] == words
