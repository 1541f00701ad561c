"""What helps with a baseline file that cannot be read, and what is said of a checkout before anything is measured."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.builds.checkout import NoCheckout, checkout_of
from pytest_gpuserve.builds.git import FULL_HISTORY, ask_git, git_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_SIDES: Final = {"2": "--ours", "3": "--theirs"}
"""The stages of an unmerged file, and what takes them."""

MOST_NAMED: Final = 3


def ways_to_restore(path: Path) -> list[str]:
    """What helps with a file that cannot be read, each with a command that works in its state.

    Args:
        path: The file, which exists.
    """
    git, name = f"git -C {shlex.quote(str(path.parent))}", shlex.quote(path.name)
    again = f"record it again: `rm {shlex.quote(str(path))}`, then run pytest with --baseline-update"
    stages = _stages(path.parent, "--stage", f":(literal){path.name}").get(path.name, [])
    sides = [_SIDES[stage] for stage in stages if stage in _SIDES]
    if sides:
        takes = " or ".join(f"`{git} checkout {side} -- {name}`" for side in sides)
        return [f"take the entries of one side: {takes}; then record what neither side measured", f"or {again}"]
    # What the index has may be whole, if it is another version.
    if stages and not ask_git(path.parent, "diff", "--quiet", "--", f":(literal){path.name}").done:
        return [f"take back what was changed in it: `{git} checkout -- {name}`", f"or {again}"]
    return [again]


def said_at_start(root: Path, *, gates: bool) -> Iterator[str]:
    """What keeps measurements from being compared, before anything is measured; a text each, of one or more lines.

    Args:
        root: A folder of the checkout.
        gates: Whether stored baselines are compared with, which takes their history.
    """
    try:
        top = checkout_of(root)
    except NoCheckout as problem:
        yield f"nothing can be settled side by side: {problem.summary}\n  help: {problem.remedies[0]}"
        return
    unmerged = list(_stages(top, "--unmerged", "."))
    if unmerged:
        more = f" and {len(unmerged) - MOST_NAMED} more" if len(unmerged) > MOST_NAMED else ""
        here = shlex.quote(str(top))
        yield (
            f"a merge is not finished: {', '.join(unmerged[:MOST_NAMED])}{more}\n"
            f"  help: take one side of a file with `git -C {here} checkout --ours -- FILE`, or --theirs, then"
            f" `git -C {here} add -- FILE`"
        )
    if gates and git_text(top, "rev-parse", "--is-shallow-repository") == "true":
        yield f"a baseline from before the end of this clone cannot be settled side by side\n  help: {FULL_HISTORY}"


def _stages(folder: Path, kind: str, only: str) -> dict[str, list[str]]:
    """The stages of files in git's index, by their names relative to the folder: of an unmerged file several."""
    found: dict[str, list[str]] = {}
    # Each is `mode hash stage TAB path`, ended by a NUL.
    for line in (git_text(folder, "ls-files", kind, "-z", "--", only) or "").split("\0"):
        head, _, path = line.partition("\t")
        if path:
            found.setdefault(path, []).append(head.rpartition(" ")[2])
    return found
