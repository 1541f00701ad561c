"""Moving a server to another checkout of the project, and to another interpreter."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuserve.builds.git import git_text
from pytest_gpuserve.builds.interpreter import find_modules, import_roots
from pytest_gpuserve.errors import NotInRevision

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

PYTHONPATH = "PYTHONPATH"

SITES = frozenset({"site-packages", "dist-packages"})
"""Where packages are installed; never the project's own code."""

_BEGIN = r"""(?:(?<![^\s=:,;"'(){}<>|@\[\]])|(?<=://)|(?<=^-[A-Za-z]))"""
"""What stands before a path in a text; a letter may not, for then it is the middle of another path."""

_NEXT = r"""(?=[/\s:,;"'(){}<>|\[\]]|$)"""
"""What follows the name of a folder that is named to its end."""

_ENDS = re.compile(r"""[\s:,;"'(){}<>|\[\]]|$""")
"""What may end a path in a text; most of it may also stand in one, so longer readings are tried first."""


@dataclass(frozen=True)
class Relocation:
    """From this checkout and interpreter to another checkout, another interpreter, or both.

    What git ignores (weights, data, ``.env``) is linked into the other checkout, and is the same for both; what is not
    there, such as a virtual environment, stays where it is. Python files that git ignores are imported by both servers,
    so a change in them is not seen. What is built into the first checkout, such as compiled extensions, the other one
    does not have: a server that needs them does not start there.

    Args:
        checkout: Top folder of the project's checkout.
        worktree: Top folder of the other revision's; None to stay in the first.
        python: The other interpreter, an absolute path; None to stay with the test's own.
        revision: What people call the other side, such as ``origin/main (0123456789ab)``.
    """

    checkout: Path
    worktree: Path | None = None
    python: str | None = None
    revision: str = "the other revision"

    def path(self, path: Path) -> Path:
        """Where a file or folder is on the other side; what is outside of the checkout or untracked stays in place."""
        inside = self._inside(path)
        if self.worktree is None or inside is None:
            return path
        moved = self.worktree / inside
        return moved if moved.exists() or not path.exists() or self._tracked(inside) else path

    def source(self, path: Path) -> Path:
        """Where a file of code is on the other side, untracked ones too.

        Raises:
            NotInRevision: The other revision does not have it.
        """
        inside = self._inside(path)
        if self.worktree is None or inside is None:
            return path
        moved = self.worktree / inside
        # What is linked there, because git ignores it, is this checkout's.
        if not moved.is_file() or moved.resolve().is_relative_to(self.checkout.resolve()):
            raise NotInRevision(
                f"{self.revision} has no {inside.as_posix()}",
                looked=[str(moved)],
                remedies=["a server that is new, or that git ignores, has nothing to be compared with there"],
            )
        return moved

    def interpreter(self, python: str) -> str:
        """The interpreter on the other side: one that a server asked for itself is kept, but for its place."""
        if self.python is not None and python == sys.executable:
            return self.python
        return self.text(python)

    def text(self, value: str) -> str:
        """An argument or a variable on the other side: every path in it that begins with the checkout is moved.

        A path begins the text, or follows white space, ``=``, ``:``, ``,``, ``;``, a quote or bracket, ``://``, or an
        option of one letter (``-I``). Where it ends is told by what there is on the disk, for names may have spaces.
        """
        if self.worktree is None:
            return value
        for top in self._tops():
            found = re.compile(_BEGIN + re.escape(top) + _NEXT)
            moved, at = "", 0
            while match := found.search(value, at):
                path = self._longest(value[match.start() :], len(top))
                moved += value[at : match.start()] + _with_slash(path, self.path(Path(path)))
                at = match.start() + len(path)
            value = moved + value[at:]
        return value

    def argument(self, value: str, cwd: Path) -> str:
        """The same for an argument that may also be a path relative to a folder, such as ``data/weights.bin``.

        Relative paths move by themselves, because the working folder does; one that is untracked becomes absolute. A
        word without a slash is no path.
        """
        if "/" in value and not Path(value).is_absolute():
            place = cwd / value
            if place.exists() and self.path(place) == place and self.path(cwd) != cwd:
                return str(place)
        return self.text(value)

    def environment(
        self, own: Mapping[str, str], *, inherited: Mapping[str, str], python: str, cwd: Path
    ) -> dict[str, str]:
        """A server's variables on the other side, so that it imports that side's code.

        Whatever the server's interpreter imports from within the checkout, because of ``PYTHONPATH``, of a ``.pth``
        file or of an editable install, stands first on the ``PYTHONPATH`` as its place in the worktree. With another
        interpreter alone, which may lack that install, it stands there as it is.

        Args:
            own: The server's own variables.
            inherited: The ones that it is started with besides.
            python: Its interpreter on this side.
            cwd: Its working folder on this side.

        Returns:
            Its own variables, and those inherited ones that are others there.

        Raises:
            NotInRevision: It would import code of this checkout all the same.
            ServerFailed: An interpreter does not answer.
        """
        if self.worktree is None and self.interpreter(python) == python:
            return dict(own)
        here = {**inherited, **own}
        there = {name: self.text(value) for name, value in here.items()}
        searched = [cwd / entry for entry in here[PYTHONPATH].split(os.pathsep)] if here.get(PYTHONPATH) else []
        pythons = dict.fromkeys((python, self.interpreter(python)))
        installed = [root for each in pythons for root in import_roots(each, here, cwd) if self._is_code(root)]
        places = list(dict.fromkeys(map(self.path, (*searched, *installed))))
        if places != searched:
            there[PYTHONPATH] = os.pathsep.join(map(str, places))
        if self.worktree is not None:
            moved = [place for place in places if place.is_relative_to(self.worktree) and place.is_dir()]
            self._check(moved, self.interpreter(python), there, self.path(cwd))
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

    def _check(self, places: Iterable[Path], python: str, environment: Mapping[str, str], cwd: Path) -> None:
        """See that the modules of these folders are imported from there: an install may come before any path."""
        for name, origin in find_modules(places, python, environment, cwd).items():
            inside = self._inside(origin)
            if inside is not None and self._tracked(inside):
                raise NotInRevision(
                    f"the server of {self.revision} would import {name} from this checkout, not from its own",
                    found=str(origin),
                    looked=[environment.get(PYTHONPATH, "")],
                    remedies=[
                        "install the project without --editable, or with setuptools' editable_mode=compat",
                        "or put the project's folder on the PYTHONPATH",
                        "or compare with an interpreter that has the other revision installed: --against-python=EXE",
                    ],
                )

    def _is_code(self, folder: Path) -> bool:
        """Whether a folder is the project's own: the site-packages of a .venv in the checkout is not."""
        inside = self._inside(folder)
        if inside is None or SITES.intersection(inside.parts) or not folder.is_dir():
            return False
        return self._tracked(inside)

    def _inside(self, path: Path) -> Path | None:
        """The path relative to the checkout, by its name or by what that is a link to; None outside of it."""
        for seen in (Path(os.path.normpath(path)), path.resolve()):
            if self.worktree is not None and seen.is_relative_to(self.worktree):
                return None
            for top in self._tops():
                if seen.is_relative_to(top):
                    return seen.relative_to(top)
        return None

    def _tracked(self, inside: Path) -> bool:
        """Whether git tracks it, or anything in it; what is in a submodule counts, for that is code of a commit."""
        if inside == Path():
            return True
        place = f":(literal,top){inside.as_posix()}"
        # Where git does not answer, nothing is taken for data that both sides may share.
        return git_text(self.checkout, "ls-files", "--recurse-submodules", "--", place) != ""

    def _tops(self) -> Sequence[str]:
        return tuple(dict.fromkeys((str(self.checkout), str(self.checkout.resolve()))))

    def _longest(self, text: str, least: int) -> str:
        """The path at the front of a text: the longest that exists on either side, else up to the first end."""
        ends = [match.start() for match in _ENDS.finditer(text, least)]
        for end in reversed(ends):
            path = Path(text[:end])
            if path.exists() or self.path(path).exists():
                return text[:end]
        return text[: ends[0]]


def _with_slash(before: str, path: Path) -> str:
    return f"{path}/" if before.endswith("/") else str(path)
