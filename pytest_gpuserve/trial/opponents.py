"""Whom a build is compared with: another revision, another interpreter, or both; each made ready once in a run."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpuserve.servers.relocation import Relocation
from pytest_gpuserve.trial.worktree import Worktree, checkout_of, resolve_revision

if TYPE_CHECKING:
    from pathlib import Path

SHOWN_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Opponent:
    """What stands on the base's side.

    Args:
        name: What people call it: ``origin/main (0123456789ab)``.
        identity: Tells it apart from any other: its commit and interpreter.
        relocation: Moves a server to it.
        options: What compares with it again, on the command line.
    """

    name: str
    identity: str
    relocation: Relocation
    options: tuple[str, ...] = ()


class Opponents:
    """Makes worktrees when they are first needed, and removes them at the end; whoever makes it closes it.

    Args:
        root: A folder of the checkout.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._stack = ExitStack()
        self._worktrees: dict[str, Path] = {}

    def name_of(self, *, revision: str | None, python: str | None, called: str = "") -> str:
        """What people call an opponent: ``origin/main (0123456789ab) with the packages of /old/bin/python``.

        Args:
            revision: As for `find`.
            python: As for `find`.
            called: As for `find`.

        Raises:
            UsageProblem: git does not know the revision.
        """
        parts = []
        if revision is not None:
            shown, short = called or revision, resolve_revision(self._root, revision)[:SHOWN_DIGITS]
            parts.append(shown if shown.startswith(short) else f"{shown} ({short})")
        if python is not None:
            parts.append(f"the packages of {python}")
        return " with ".join(parts)

    def find(self, *, revision: str | None, python: str | None, called: str = "") -> Opponent:
        """Make an opponent ready.

        Args:
            revision: As git knows it; None for this checkout.
            python: Absolute path of an interpreter; None for the test's own.
            called: How people call the revision, if not so.

        Raises:
            UsageProblem: git does not know the revision.
            GpuserveError: A worktree could not be made.
        """
        commit = None if revision is None else resolve_revision(self._root, revision)
        name = self.name_of(revision=revision, python=python, called=called)
        relocation = Relocation(
            checkout=self._root if commit is None else checkout_of(self._root),
            worktree=None if commit is None else self._worktree(commit),
            python=python,
            revision=name,
        )
        options = [] if commit is None else [f"--against={commit[:SHOWN_DIGITS] if called else revision}"]
        options += [] if python is None else [f"--against-python={python}"]
        return Opponent(name, f"{commit or 'this checkout'} {python or ''}".strip(), relocation, tuple(options))

    def close(self) -> None:
        """Remove the worktrees."""
        self._worktrees.clear()
        self._stack.close()

    def _worktree(self, commit: str) -> Path:
        if commit not in self._worktrees:
            self._worktrees[commit] = self._stack.enter_context(Worktree(self._root, commit)).path
        return self._worktrees[commit]
