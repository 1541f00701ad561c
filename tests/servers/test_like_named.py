"""Where else a file of a name is, for one that is not where it was named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.servers.app import like_named

if TYPE_CHECKING:
    from pathlib import Path


def made(root: Path, *files: str) -> Path:
    """A tree with these files, all of them empty."""
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()
    return root


def found(root: Path, name: str = "app.py", *, folder: bool = False, most: int = 3, entries: int = 1000) -> list[str]:
    """What is found, relative to the root."""
    there = like_named(root, name, folder=folder, most=most, entries=entries)
    return [path.relative_to(root).as_posix() for path in there]


def test_the_least_deep_come_first_and_no_more_than_wanted(tmp_path: Path) -> None:
    """In the order of their depth, then of their names; a folder of the name is no file."""
    root = made(tmp_path, "a/b/app.py", "c/app.py", "b/app.py", "app.py/inside", "d/e/app.py")
    assert found(root) == ["b/app.py", "c/app.py", "a/b/app.py"]
    assert found(root, most=1) == ["b/app.py"]
    assert found(root, folder=True) == ["app.py"]
    assert found(root, "other.py") == []


@pytest.mark.parametrize("folder", [".git", "node_modules", "__pycache__", "lib/site-packages", "env/lib"])
def test_nothing_is_found_where_nobody_puts_files(tmp_path: Path, folder: str) -> None:
    """Hidden folders, installed packages and virtual environments, whatever they are called, are left out."""
    assert found(made(tmp_path, f"{folder}/app.py", "env/pyvenv.cfg")) == []


def test_a_huge_tree_is_not_searched_to_its_end(tmp_path: Path) -> None:
    """After so many entries the search is given up, in the middle of a folder, too."""
    root = made(tmp_path, *(f"{number}/app.py" for number in range(10)))
    assert found(root, most=100, entries=10) == []
    assert len(found(root, most=100, entries=15)) == 5


def test_a_link_back_is_no_endless_way(tmp_path: Path) -> None:
    """Links to folders are not followed, so that each file is found once; what cannot be read is passed over."""
    root = made(tmp_path, "a/app.py", "shut/app.py")
    (root / "a" / "up").symlink_to(root)
    (root / "gone").symlink_to(root / "nowhere")
    (root / "a" / "b").mkdir()
    (root / "a" / "b" / "app.py").symlink_to(root / "nowhere")
    assert found(root) == ["a/app.py", "shut/app.py"]
    assert found(root / "no such folder") == []
