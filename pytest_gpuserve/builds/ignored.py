"""Files that git ignores in the checkout: they are linked into the base's folder, except built and cached ones."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.builds.git import query_git
from pytest_gpuserve.errors import GpuserveError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

COMPILED: Final = ("*.so", "*.so.*", "*.pyd", "*.dylib")
"""Names of compiled files, which belong to the candidate."""

CACHES: Final = (
    *(".git", "__pycache__", "*.pyc", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".tox", ".nox"),
    *(".eggs", ".ipynb_checkpoints", ".coverage", ".coverage.*", "htmlcov", "node_modules"),
)
"""Files that are not linked, because servers do not need them, or make them anew."""

BUILT: Final = ("build/", "dist/", "target/", "cmake-build-*/", "*.egg-info", "*.o", *COMPILED)
"""Files that are not linked, because they are built from the candidate's code."""

ENVIRONMENTS: Final = ("pyvenv.cfg", "conda-meta")
"""Marker files of a virtual environment, which is not moved, so that both builds run the same one."""

MOST_LOOKED_AT: Final = 5_000
"""Most files of a linked folder whose changes are watched; a larger folder is not watched."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Choice of the ignored files to link: the last pattern that matches a path, or else its folder, decides.

    Args:
        patterns: Values of the ini setting ``gpuserve_base_files``, after `CACHES` and `BUILT`. ``!PATTERN`` leaves
            out. A pattern with a slash, except at its end, matches the path from the top of the checkout, any other a
            name.
    """

    patterns: tuple[str, ...]

    def wants(self, top: Path, name: str) -> bool:
        """Whether a path is linked.

        Args:
            top: Top folder of the checkout.
            name: The path relative to it, which exists.
        """
        wanted = True
        parts = name.split("/")
        for depth in range(1, len(parts) + 1):
            path = "/".join(parts[:depth])
            said = self._said(path)
            if said is None and is_environment(top / path):
                said = False
            wanted = wanted if said is None else said
        return wanted

    def reaches_below(self, name: str) -> bool:
        """Whether a pattern matches a file in a folder, which then cannot be linked, or left out, as a whole."""
        depth = name.count("/") + 1
        for pattern in self.patterns:
            parts = pattern.removeprefix("!").strip("/").split("/")
            if len(parts) > depth and fnmatchcase(name, "/".join(parts[:depth])):
                return True
        return False

    def _said(self, path: str) -> bool | None:
        for pattern in (*reversed(self.patterns), *(f"!{each}" for each in (*CACHES, *BUILT))):
            if _matches(pattern.removeprefix("!"), path):
                return not pattern.startswith("!")
        return None


def _matches(pattern: str, path: str) -> bool:
    pattern = pattern.rstrip("/")
    return fnmatchcase(path, pattern.lstrip("/")) if "/" in pattern else fnmatchcase(path.rpartition("/")[2], pattern)


@lru_cache(maxsize=4096)
def is_environment(folder: Path) -> bool:
    """Whether a folder is a virtual or conda environment."""
    return any((folder / name).exists() for name in ENVIRONMENTS)


class LinkedFiles:
    """Links from a base's folder to ignored files and folders of the checkout, and to its empty folders.

    A folder that is ignored as a whole is one link. The base's own files stay. A folder whose files only the candidate
    has belongs to the candidate, with all ignored files in it.

    Args:
        top: Top folder of the checkout.
        base: Top folder of the base, with the files of its commit.
        rules: Choice of the linked files.

    Attributes:
        base: Top folder of the base.
        left_out: Ignored files that are not linked, besides caches and virtual environments.

    Raises:
        GpuserveError: A link cannot be made, or git does not list the files.
    """

    def __init__(self, top: Path, base: Path, rules: Rules) -> None:
        self._top = top
        self.base = base
        self._rules = rules
        self._linked: dict[str, tuple[int, int]] = {}
        self.left_out: list[str] = []
        # A folder that is ignored as a whole is listed alone.
        kinds = ("--no-renames", "--untracked-files=all", "--ignored=matching", "--ignore-submodules=all")
        status = _listed(top, "status", "--porcelain", "-z", *kinds)
        untracked = (line[3:] for line in status if line.startswith("?? "))
        self._candidates = _folders_of([*_listed(top, "ls-files", "-z"), *untracked])
        try:
            for line in status:
                if line.startswith("!! "):
                    self._add(line[3:].rstrip("/"))
            for name in _listed(top, "ls-files", "--others", "--exclude-standard", "--directory", "-z"):
                if name.endswith("/"):
                    self._add_empty(name.rstrip("/"))
        except OSError as problem:
            raise GpuserveError(
                "ignored files could not be linked into the base's folder", found=str(problem), looked=[str(base)]
            ) from problem

    def remarks(self) -> Iterator[str]:
        """Remarks for a report: files that are not linked although a server may need them, and changes meanwhile."""
        compiled = [name for name in self.left_out if _is_compiled(name) and self._is_among_others(name)]
        if compiled:
            yield (
                f"the base does not have {_some(compiled)}, which git ignores because it is compiled;"
                " `gpuserve_base_files = *.so` lets both builds run the candidate's, --against-python=EXE compares"
                " builds that are installed"
            )
        changed = [name for name, state in self._linked.items() if _state_of(self._top / name) != state]
        if changed:
            yield (
                f"{_some(changed)} changed during the run, and both builds share it, because git ignores it. Let the"
                f" server write elsewhere, or keep it from the base with `gpuserve_base_files = !{changed[0]}`"
            )

    def _add(self, name: str) -> None:
        source, place = self._top / name, self.base / name
        wanted = self._rules.wants(self._top, name)
        is_folder = source.is_dir() and not source.is_symlink()
        if is_folder and (self._rules.reaches_below(name) or (wanted and _is_folder(place))):
            for entry in sorted(source.iterdir()):
                self._add(f"{name}/{entry.name}")
            return
        # A base inside an ignored folder must not contain itself. Path.resolve raises an error for a link to itself.
        if os.path.lexists(place) or self.base.is_relative_to(os.path.realpath(source)):
            return
        if wanted and self._has_parent(name):
            place.symlink_to(source)
            self._linked[name] = _state_of(source)
        elif not wanted and not self._is_cache(name):
            self.left_out.append(name)

    def _is_cache(self, name: str) -> bool:
        """Whether the path is a cache or is in one, or is in a virtual environment, which stays in its place."""
        folders = [name, *map(str, Path(name).parents)]
        return any(is_environment(self._top / each) for each in folders[:-1]) or any(
            fnmatchcase(part, pattern) for part in name.split("/") for pattern in CACHES
        )

    def _is_among_others(self, name: str) -> bool:
        """Whether a file is in a folder that the base has, and not in a built one."""
        folder = name.rpartition("/")[0] or "."
        return _is_folder(self.base / folder) and self._rules.wants(self._top, folder)

    def _add_empty(self, name: str) -> None:
        for folder, _, files in os.walk(self._top / name):
            if files:
                return
            # It would be empty without its ignored files too, but these are linked separately.
            below = Path(folder).relative_to(self._top).as_posix()
            if not os.path.lexists(self.base / below) and self._has_parent(below):
                (self.base / below).mkdir()

    def _has_parent(self, name: str) -> bool:
        """Whether the base has, or gets, the parent folder of a path; it does not get a new one of the candidate."""
        place = self.base
        parts = name.split("/")[:-1]
        for depth, part in enumerate(parts, start=1):
            place /= part
            if _is_folder(place):
                continue
            if os.path.lexists(place) or "/".join(parts[:depth]) in self._candidates:
                return False
            place.mkdir()
        return True


def _listed(top: Path, *arguments: str) -> list[str]:
    answer = query_git(top, *arguments)
    if not answer.done:
        raise GpuserveError("git could not list the files of the checkout", found=answer.text, looked=[str(top)])
    return [each for each in answer.text.split("\0") if each]


def _folders_of(names: Iterable[str]) -> set[str]:
    """All folders of these files."""
    nearest = {name.rstrip("/").rpartition("/")[0] for name in names}
    return {str(folder) for each in map(PurePosixPath, nearest) for folder in (each, *each.parents)}


def _is_folder(place: Path) -> bool:
    """Whether it is a folder, not a link to one, through which files must not be made."""
    return place.is_dir() and not place.is_symlink()


def _is_compiled(name: str) -> bool:
    return any(fnmatchcase(name.rpartition("/")[2], pattern) for pattern in COMPILED)


def _some(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} (and {len(names) - 1} more)"


def _state_of(source: Path) -> tuple[int, int]:
    """Number of the files of a linked file or folder, and their last change; zeros for a folder with too many."""
    files = list(islice(_below(source), MOST_LOOKED_AT + 1)) if _is_folder(source) else [source]
    latest_ns = 0
    for path in files if len(files) <= MOST_LOOKED_AT else ():
        with suppress(OSError):
            latest_ns = max(latest_ns, path.lstat().st_mtime_ns)
    return (len(files), latest_ns) if latest_ns else (0, 0)


def _below(source: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(source):
        # Bytecode is not a change of the sources.
        folders[:] = [name for name in folders if name != "__pycache__"]
        yield from (Path(folder, name) for name in files)
