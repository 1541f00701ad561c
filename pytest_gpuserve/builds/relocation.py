"""Moves a server to another checkout of the project, and to another interpreter."""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuserve.builds.git import git_text, query_git
from pytest_gpuserve.builds.ignored import is_environment
from pytest_gpuserve.builds.interpreter import find_modules, import_roots, modules_in
from pytest_gpuserve.errors import NotInRevision

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

PYTHONPATH = "PYTHONPATH"

SITES = frozenset({"site-packages", "dist-packages"})
"""Folders of installed packages, which are never the project's own code."""

_BEGIN = r"""(?:(?<![^\s=:,;"'(){}<>|@\[\]])|(?<=://)|(?<=^-[A-Za-z]))"""
"""Characters before a path in a text; after a letter it would be the middle of another path."""

_END = r"""[\s:,;"'(){}<>|\[\]]|$"""
"""Characters after a path in a text, or its end."""

_MODULE = re.compile(r"\w+(?:\.\w+)*(?=:|$)")
"""The name of a module in a command line: ``shop.app`` of ``shop.app:main``."""


@dataclass(frozen=True)
class Relocation:
    """Mapping from this checkout and interpreter to another checkout, another interpreter, or both.

    Ignored files (weights, data, ``.env``) are linked into the other checkout, and are the same for both. Files without
    a link, such as a virtual environment, stay in place. Both servers import ignored Python files, so changes in them
    are not seen. The other checkout lacks files that are built into the first one, such as compiled extensions. A
    server that needs them does not start there.

    Args:
        checkout: Top folder of the project's checkout.
        worktree: Top folder of the other revision; None to stay in the first.
        python: The other interpreter, an absolute path; None to stay with the test's own.
        revision: Name of the other build for people, such as ``origin/main (0123456789ab)``.
    """

    checkout: Path
    worktree: Path | None = None
    python: str | None = None
    revision: str = "the other revision"

    def path(self, path: Path) -> Path:
        """Place of a file or folder in the other build; paths outside the checkout and untracked ones stay."""
        inside = self._inside(path)
        if self.worktree is None or inside is None:
            return path
        moved = self.worktree / inside
        return moved if _exists(moved) or not _exists(path) or self._tracked(inside) else path

    def folder(self, path: Path) -> Path:
        """Place of a working folder in the other build, which is made if only this one has it: with a new test."""
        moved = self.path(path)
        if moved != path:
            with suppress(OSError):
                moved.mkdir(parents=True, exist_ok=True)
        return moved

    def source(self, path: Path) -> Path:
        """Place of a file of code in the other build, even of an untracked one.

        Raises:
            NotInRevision: The other revision does not have the file.
        """
        inside = self._inside(path)
        if self.worktree is None or inside is None:
            return path
        moved = self.worktree / inside
        # A link there belongs to this checkout, because git ignores its target.
        if not moved.is_file() or moved.resolve().is_relative_to(self.checkout.resolve()):
            raise NotInRevision(
                f"{self.revision} has no {inside.as_posix()}",
                looked=[str(moved)],
                remedies=["a server that is new, or that git ignores, cannot be compared with another revision"],
            )
        return moved

    def interpreter(self, python: str) -> str:
        """Interpreter of the other build: a server's own one stays, except for its place."""
        if self.python is not None and python == sys.executable:
            return self.python
        return self.text(python)

    def text(self, value: str) -> str:
        """Argument or variable of the other build: every path in the text that begins with the checkout is moved.

        A path is the whole text; or it begins the text, or follows white space, ``=``, ``:``, ``,``, ``;``, a quote or
        bracket, ``://``, or an option of one letter (``-I``), and ends before the next of these characters, or before
        the last one up to which it exists.
        """
        if self.worktree is None:
            return value
        if Path(value).is_absolute() and _exists(Path(value)):
            return self._moved(value)
        begun = re.search(f"{_BEGIN}(?:{'|'.join(map(re.escape, self._tops()))})(?=/|{_END})", value)
        if begun is None:
            return value
        texts = [value[begun.start() : end.start()] for end in re.compile(_END).finditer(value, begun.end())]
        path = next((text for text in reversed(texts) if _exists(Path(text))), texts[0])
        rest = value[begun.start() + len(path) :]
        return value[: begun.start()] + self._moved(path) + self.text(rest)

    def _moved(self, path: str) -> str:
        moved = self.path(Path(path))
        if moved == Path(path):
            return path
        return f"{moved}/" if path.endswith("/") else str(moved)

    def argument(self, value: str, cwd: Path) -> str:
        """Argument of the other build, which may also be a path relative to a folder, such as ``data/weights.bin``.

        A relative path stays one if the other working folder has what it means there; else it becomes absolute. It may
        follow ``=``. A word without a slash is not a path.
        """
        option, mark, name = value.rpartition("=")
        if "/" in name and not Path(name).is_absolute() and _exists(cwd / name):
            moved = self.path(cwd / name)
            if os.path.normpath(moved) != os.path.normpath(self.path(cwd) / name):
                return f"{option}{mark}{moved}"
        return self.text(value)

    def environment(
        self,
        own: Mapping[str, str],
        *,
        inherited: Mapping[str, str],
        python: str,
        cwd: Path,
        words: Sequence[str] = (),
    ) -> dict[str, str]:
        """Variables of a server in the other build, so that it imports that build's code.

        The server's interpreter may import from within the checkout, because of ``PYTHONPATH``, a ``.pth`` file or an
        editable install, or import an installed copy of it. Such folders come first on the ``PYTHONPATH``, with their
        places in the worktree. With only another interpreter, which may lack an editable install, they come first
        unchanged.

        Args:
            own: The server's own variables.
            inherited: Variables that it inherits.
            python: Its interpreter in this build.
            cwd: Its working folder in this build.
            words: Its command line, which may name modules.

        Returns:
            Its own variables, and the inherited ones that change.

        Raises:
            NotInRevision: The server would still import code of this checkout.
            ServerFailed: An interpreter does not answer.
        """
        if self.worktree is None and self.interpreter(python) == python:
            return dict(own)
        here = {**inherited, **own}
        there = {name: self.text(value) for name, value in here.items()}
        searched = [cwd / entry for entry in here[PYTHONPATH].split(os.pathsep)] if here.get(PYTHONPATH) else []
        pythons = dict.fromkeys((python, self.interpreter(python)))
        copies = self.worktree is not None
        roots = [root for each in pythons for root in import_roots(each, here, cwd, copies=copies)]
        installed = [root for root in roots if self._is_code(root)]
        places = list(dict.fromkeys(map(self._root, (*searched, *installed))))
        if places != searched:
            there[PYTHONPATH] = os.pathsep.join(map(str, places))
        if self.worktree is not None:
            moved = [place for place in places if place.is_relative_to(self.worktree) and place.is_dir()]
            named = {match[0] for word in words for part in word.split("=") if (match := _MODULE.match(part))}
            needed = modules_in(moved) | named
            names = needed | modules_in(installed)
            self._check(find_modules(names, self.interpreter(python), there, self.path(cwd)), needed, there)
        return {name: value for name, value in there.items() if name in own or here.get(name) != value}

    def telling(self, environment: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
        """Those of a server's variables that may make another server of it.

        An inherited one that names the checkout, such as ``PWD``, does not. Nor does the ``PYTHONPATH`` that another
        interpreter is given alone.

        Args:
            environment: As `Relocation.environment` returns them.
            own: The server's own variables.
        """
        names = {*own, *([PYTHONPATH] if self.worktree is not None else [])}
        return {name: value for name, value in environment.items() if name in names}

    def _check(self, found: Mapping[str, Path], has: Container[str], environment: Mapping[str, str]) -> None:
        """Check that modules of the other build are imported from there.

        An install may precede any path, and provides what the other build has elsewhere or not at all.

        Args:
            found: Places of modules, for the interpreter there.
            has: Names of modules that the other build has, or needs.
            environment: All variables there.
        """
        for name, origin in found.items():
            inside = self._inside(origin)
            if inside is None or not self._is_own(inside):
                continue
            if name in has or self._has_package(name, origin):
                raise NotInRevision(
                    f"the server of {self.revision} would import {name} from this checkout, not from its own",
                    found=str(origin),
                    looked=[environment.get(PYTHONPATH, "")],
                    remedies=[
                        "install the project without --editable, or with setuptools' editable_mode=compat",
                        "or put the folder of its code on the PYTHONPATH; if it moved, both folders",
                        "or compare with an interpreter that has the other revision installed: --against-python=EXE",
                        "new code cannot be compared with another revision; what git ignores is shared by both builds",
                    ],
                )

    def _has_package(self, name: str, origin: Path) -> bool:
        """Whether the other revision has this package in a folder from which it was moved since."""
        assert self.worktree is not None
        places = git_text(self.worktree, "ls-files", "-z", "--", f":(glob)**/{name}/{origin.name}") or ""
        return origin.name == "__init__.py" and not all((self.checkout / each).exists() for each in places.split("\0"))

    def _root(self, folder: Path) -> Path:
        """Place of a folder of imports: new code belongs to this build alone, unless it was moved into ``src``."""
        inside = self._inside(folder)
        if self.worktree is None or inside is None or not self._is_code(folder):
            return self.path(folder)
        moved = self.worktree / inside
        return moved.parent if inside.name == "src" and not moved.exists() else moved

    def _is_code(self, folder: Path) -> bool:
        """Whether a folder is the project's own; the site-packages of a .venv in the checkout are not."""
        inside = self._inside(folder)
        return inside is not None and folder.is_dir() and self._is_own(inside)

    def _is_own(self, inside: Path) -> bool:
        """Whether the path is of a commit, or may be of the next one."""
        if SITES.intersection(inside.parts):
            return False
        if self._tracked(inside):
            return True
        *folders, top = (self.checkout / each for each in (inside, *inside.parents))
        is_ignored = query_git(self.checkout, "check-ignore", "--quiet", str(inside)).done
        # An untracked clone of another repository is a dependency, which both builds share.
        is_clone = any((folder / ".git").exists() for folder in folders)
        return not (is_ignored or is_clone or any(map(is_environment, (*folders, top))))

    def _inside(self, path: Path) -> Path | None:
        """Path relative to the checkout, by its name or through a link; None outside it."""
        # Path.resolve raises an error for a link to itself.
        for seen in (Path(os.path.normpath(path)), Path(os.path.realpath(path))):
            if self.worktree is not None and seen.is_relative_to(self.worktree):
                return None
            for top in self._tops():
                if seen.is_relative_to(top):
                    return seen.relative_to(top)
        return None

    def _tracked(self, inside: Path) -> bool:
        """Whether git tracks the path, or a file in it; a submodule counts, because it is code of a commit."""
        if inside == Path():
            return True
        place = f":(literal,top){inside.as_posix()}"
        # If git fails, no file is taken for data that both builds may share.
        return git_text(self.checkout, "ls-files", "--recurse-submodules", "--", place) != ""

    def _tops(self) -> Sequence[str]:
        return tuple(dict.fromkeys((str(self.checkout), str(self.checkout.resolve()))))


def _exists(path: Path) -> bool:
    """Whether it exists; a text that is too long for a path, such as JSON, does not."""
    return os.path.exists(path)  # noqa: PTH110 -- Path.exists raises an error for it
