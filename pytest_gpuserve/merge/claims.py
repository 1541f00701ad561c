"""Claims of REGRESSED among the comparisons of all shards: one that each shard upholds may be none among them all.

A shard counts its own comparisons (``gate/sequential.py``), and with N of them each shard may be wrong in alpha of
its runs, all together in up to N times as many. So here M is the sum over all shards:

- a claim stands that its shard has upheld among at least M comparisons, as one does that knows of the others' tests;
- of the others those stand that Holm's step-down upholds, by the p-value that the file has of each, adjusted for looks;
- one without a p-value does not stand.

The second starts from the claims of the first as upheld ones. Those are all in Holm's set for M, as a shard never
reckons with more upheld claims than there are in all, so what stands is never more than what Holm upholds of all.

What does not stand is INCONCLUSIVE: in a run by itself it would have been measured on. It is no pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_gpuserve.gate.metric import METRICS
from pytest_gpuserve.gate.sequential import ALPHA, Family
from pytest_gpuserve.gate.verdict import Verdict

if TYPE_CHECKING:
    from pytest_gpuserve.merge.joining import Joined
    from pytest_gpuserve.merge.shard import Shard, ShownTest

UPHELD: Final = frozenset({"baseline", "against"})
"""Kinds of references of which a run's claims are upheld; of a limit nothing is claimed beyond it."""

PLANNED: Final = UPHELD | {"duel"}
"""Kinds of references that are reckoned with."""

USUAL: Final = sum(not metric.on_request for metric in METRICS.values())
"""Comparisons of a test of which nothing is known, as `pytest_gpuserve.plugin.collection` counts them."""

Reasons = dict[tuple[str, int], str]
"""Why verdicts do not stand, by the id of the test and the place of the verdict in it."""


def planned_of(shard: Shard) -> int:
    """How many comparisons a shard has made, or would have made."""
    return _counted(shard) + _not_made(shard)


def planned_of_all(joined: Joined) -> int:
    """Among how many comparisons a claim has to stand."""
    made = sum(_compared(measured.test.shown) for measured in joined.tests)
    return max(1, made + sum(map(_not_made, joined.shards)))


def claims_that_do_not_stand(joined: Joined) -> Reasons:
    """Why verdicts of REGRESSED do not stand among the comparisons of all shards."""
    planned = planned_of_all(joined)
    upheld = 0
    open_claims: list[tuple[float, tuple[str, int]]] = []
    refused: Reasons = {}
    for measured in joined.tests:
        test, among = measured.test.shown, _among(joined.shards[measured.shard])
        for place, verdict in enumerate(test.verdicts):
            if not (verdict.counts and verdict.verdict is Verdict.REGRESSED and verdict.reference_kind in UPHELD):
                continue
            if among >= planned:
                upheld += 1
            elif verdict.adjusted_p is not None:
                open_claims.append((verdict.adjusted_p, (test.nodeid, place)))
            else:
                refused[test.nodeid, place] = (
                    f"REGRESSED among the {among} comparisons of its own run, but there are {planned} in all, and its"
                    " p-value is not in the file: one of so many looks like that by chance"
                )
    family = Family(planned, min(upheld, planned))
    for p, where in sorted(open_claims):
        if family.upholds(p):
            family = family.with_claim()
        else:
            refused[where] = (
                f"REGRESSED by itself (p = {p:.2g} of {ALPHA:g}), but not among the {planned} comparisons of all"
                " shards: one of so many looks like that by chance"
            )
    return refused


def _among(shard: Shard) -> int:
    """How many comparisons the shard has reckoned with when it upheld its claims, at least."""
    own = planned_of(shard)
    return own if shard.head.comparisons is None else shard.head.comparisons.among


def _counted(shard: Shard) -> int:
    return sum(_compared(test.shown) for test in shard.tests.values())


def _not_made(shard: Shard) -> int:
    """How many comparisons were planned and are in no test's result."""
    planned = 0 if shard.head.comparisons is None else shard.head.comparisons.planned
    return max(0, planned - _counted(shard))


def _compared(test: ShownTest) -> int:
    settled = {run.label: run.label if run.settles is None else run.settles for run in test.runs}
    found = {(settled[verdict.run], verdict.metric) for verdict in test.verdicts if verdict.reference_kind in PLANNED}
    if test.verdicts or test.outcome in {"passed", "skipped"}:
        return len(found)
    return USUAL
