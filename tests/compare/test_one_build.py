"""A build beside itself is never worse or better."""

from __future__ import annotations

import pytest

from pytest_gpuserve.compare.one_build import judge_one_build
from pytest_gpuserve.verdict.reason import ReasonKind
from pytest_gpuserve.verdict.verdict import Verdict
from tests.support.builders import judgement


@pytest.mark.parametrize("verdict", Verdict)
def test_no_claim_is_made_of_one_build(verdict: Verdict) -> None:
    """REGRESSED and IMPROVED become INVALID; other verdicts stay."""
    judged = judge_one_build(judgement(verdict), ())
    assert judged.verdict is (Verdict.INVALID if verdict.is_claim else verdict)


@pytest.mark.parametrize(
    ("left_out", "end"), [((), "warm caches)"), (("a", "b", "c", "d"), "the base does not have a, b, c and 1 more")]
)
def test_what_was_left_out_is_named(left_out: tuple[str, ...], end: str) -> None:
    """Files that the base lacks are the most likely cause, and at most three of them are named."""
    (reason,) = judge_one_build(judgement(Verdict.REGRESSED), left_out).reasons
    assert reason.kind is ReasonKind.OUTSIDE_GIT
    assert str(reason).endswith(end)
