"""A build compared with itself: its code is the same, so differences come from outside git."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.builds.relocation import PYTHONPATH
from pytest_gpuserve.process.seen import look_at
from pytest_gpuserve.process.tree import TREE_VARIABLE
from pytest_gpuserve.units import format_change
from pytest_gpuserve.verdict.reason import Reason, ReasonKind
from pytest_gpuserve.verdict.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pytest_gpuserve.builds.relocation import Relocation
    from pytest_gpuserve.measure.rounds import Arm
    from pytest_gpuserve.verdict.verdict import Judgement

OF_EACH_START: Final = frozenset({TREE_VARIABLE, "PWD", "OLDPWD", PYTHONPATH})
"""Variables that differ between any two starts, or that let a base find its own code."""

_PORT: Final = re.compile(r"\b[0-9]{4,5}\b")
_FOLDER: Final = re.compile(r"gpuserve-[A-Za-z0-9_]+")

MOST_NAMED: Final = 3


@dataclass
class OneBuild:
    """Two servers of a comparison whose builds are the same in git.

    Args:
        relocation: From the candidate's folder to the base's.
        left_out: Ignored files that the base does not have.
    """

    relocation: Relocation
    left_out: Sequence[str]
    _found: list[str] = field(default_factory=list)

    def look(self, pids: Mapping[Arm, Collection[int]]) -> None:
        """Read both servers' processes while they run."""
        base, candidate = look_at(pids["base"]), look_at(pids["candidate"])
        self._found = []
        for whose, (variables, commands, files) in (
            ("candidate", candidate.beyond(base, self._said)),
            ("base", base.beyond(candidate, self._said)),
        ):
            temporary = tempfile.gettempdir()
            shown = [name for name in map(self._said, files) if not name.startswith(temporary)]
            names = [name for name in variables if name not in OF_EACH_START]
            self._found += [f"only the {whose} has {_some(shown)} open"] if shown else []
            self._found += [f"the {whose} has a different {_some(names)} in its environment"] if names else []
            self._found += [f"the {whose} runs {commands[0]}"] if commands else []

    def judged(self, judgement: Judgement) -> Judgement:
        """Judgement of two equal builds: neither worse nor better, but not to be trusted."""
        if not judgement.verdict.is_claim or judgement.change is None:
            return judgement
        found = [*([f"the base does not have {_some(self.left_out)}"] if self.left_out else []), *self._found]
        return outside_git(
            judgement, "both builds are the same in git", *(found or ["the difference could not be seen"])
        )

    def _said(self, text: str) -> str:
        """A text without the parts that differ between any two starts."""
        if self.relocation.worktree is not None:
            text = text.replace(str(self.relocation.worktree), str(self.relocation.checkout))
        return _PORT.sub("PORT", _FOLDER.sub("FOLDER", text))


def outside_git(judgement: Judgement, same: str, *found: str) -> Judgement:
    """Turn a claim about two equal builds into INVALID.

    Args:
        judgement: REGRESSED or IMPROVED, with its change.
        same: Sentence on the equal builds.
        found: Differences between them.
    """
    assert judgement.change is not None
    text = (
        f"{same}, but differ by {format_change(judgement.change)}: something outside git differs (environment"
        " variables, files outside the checkout, warm caches)"
    )
    reason = Reason(ReasonKind.OUTSIDE_GIT, "; ".join([text, *found]))
    return replace(judgement, verdict=Verdict.INVALID, reasons=(reason,))


def _some(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
