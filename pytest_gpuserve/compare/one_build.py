"""A build compared with itself: its code is the same, so differences come from outside git."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.units import format_change
from pytest_gpuserve.verdict.reason import Reason, ReasonKind
from pytest_gpuserve.verdict.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.verdict.verdict import Judgement

MOST_NAMED: Final = 3


def judge_one_build(judgement: Judgement, left_out: Sequence[str]) -> Judgement:
    """Judgement of two builds that are the same in git: neither worse nor better, but not to be trusted.

    Args:
        judgement: The judgement of their measurements.
        left_out: Ignored files that the base does not have, the most likely cause of a difference.
    """
    if not judgement.verdict.is_claim or judgement.change is None:
        return judgement
    more = len(left_out) - MOST_NAMED
    named = ", ".join(left_out[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    return outside_git(
        judgement, "both builds are the same in git", *([f"the base does not have {named}"] if left_out else [])
    )


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
