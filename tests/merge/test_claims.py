"""Claims of REGRESSED among the comparisons of all shards."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuserve.gate.reason import ReasonKind
from pytest_gpuserve.gate.sequential import Family
from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.merge.claims import USUAL, claims_that_do_not_stand, planned_of_all
from pytest_gpuserve.merge.joining import Joined, Measured
from pytest_gpuserve.merge.shard import Head, Shard, ShownRun, ShownTest, ShownVerdict, Test
from tests.merge.merge_files import a_test, merged, regressed, shard, verdicts_of
from tests.support.builders import judgement
from tests.support.holm import holm

if TYPE_CHECKING:
    from collections.abc import Sequence


SHARDS, EACH, RUNS = 4, 16, 1000
"""A suite of 64 comparisons on four runners, run often."""


@pytest.mark.parametrize(
    ("p_values", "verdicts"),
    [
        # None is a test that passes.
        ([0.03, None], ["INCONCLUSIVE", "PASS"]),
        ([0.02, None], ["REGRESSED", "PASS"]),
        # Once the surest of three is upheld, the next one has to stand among two.
        ([0.024, 0.001, 0.049], ["REGRESSED"] * 3),
    ],
)
def test_a_claim_of_a_shard_has_to_stand_among_all(p_values: list[float | None], verdicts: list[str]) -> None:
    """What is upheld as the only comparison of its shard may be INCONCLUSIVE among all, which is no pass."""
    both = merged(
        *(
            shard(a_test(f"test_{place}"), began=place)
            if p is None
            else shard(regressed(f"test_{place}"), began=place, verdicts={0: {"adjusted_p": p}})
            for place, p in enumerate(p_values)
        )
    )
    assert list(verdicts_of(both).values()) == verdicts
    assert not both.has_passed
    if verdicts[0] == "INCONCLUSIVE":
        (reason,) = both.tests[0].runs[0].judgements[0].reasons
        assert reason.kind is ReasonKind.CHANCE
        assert "p = 0.03 of 0.05" in reason.text
        assert "2 comparisons of all shards" in reason.text


def test_a_claim_without_a_p_value_does_not_stand_among_more() -> None:
    """What the file does not say is not taken to be enough; alone, or where the shard knew of all, it is."""
    claim, other = shard(regressed("test_a")), shard(a_test("test_b"), began=1)
    both = merged(claim, other)
    assert verdicts_of(both)["test_a"] == "INCONCLUSIVE"
    last = both.tests[0].runs[0].judgements[0].reasons[-1]
    assert "not in the file" in last.text
    assert last.kind is ReasonKind.CHANCE
    assert verdicts_of(merged(claim)) == {"test_a": "REGRESSED"}
    knowing = shard(regressed("test_a"), comparisons={"planned": 1, "among": 2})
    assert verdicts_of(merged(knowing, other))["test_a"] == "REGRESSED"


@pytest.mark.parametrize("kind", ["limit", "published"])
def test_a_limit_is_no_claim_beyond_chance(kind: Any) -> None:  # noqa: ANN401 -- a kind of reference
    """A value that misses a plain limit has missed it; a stored verdict that was settled is not the last word."""
    both = merged(shard(regressed("test_a", kind=kind)), *(shard(a_test(f"test_{n}"), began=n) for n in range(1, 4)))
    assert verdicts_of(both)["test_a"] == "REGRESSED"
    settled = {0: {"overruled": True, "adjusted_p": 0.04}}
    overruled = shard(a_test("test_a", judgement(Verdict.REGRESSED)), verdicts=settled)
    both = merged(overruled, shard(a_test("test_b"), began=1))
    assert verdicts_of(both)["test_a"] == "REGRESSED"
    assert both.has_passed


def test_what_is_planned_is_counted_once() -> None:
    """A load that settles another is of the same comparison; of a test that broke off all usual ones may have been."""
    settled = shard(a_test("test_a", judgement(), judgement(Verdict.PASS, "latency.p99"), outcome="failed"))
    run = settled["tests"][0]["run"]
    settled["tests"][0]["more_runs"] = [{**run, "label": "beside", "settles": ""}]
    again_ = {**settled["tests"][0]["verdicts"][0], "run": "beside", "reference_kind": "against"}
    settled["tests"][0]["verdicts"].append(again_)
    assert merged(settled).planned == 2
    assert merged(shard(a_test("test_b", outcome="error"))).planned == USUAL
    assert merged(shard(a_test("test_b", outcome="skipped"))).planned == 1
    assert merged(shard(a_test("test_b"), comparisons={"planned": 7, "among": 7})).planned == 7


def joined(p_values: Sequence[Sequence[float | None]]) -> Joined:
    """Shards whose every comparison is a claim with this p-value; None: it passed."""
    shards = []
    tests = []
    for number, own in enumerate(p_values):
        shown = [
            ShownTest(
                f"{number}.{place}",
                "failed",
                [
                    ShownVerdict(
                        metric="throughput",
                        reference_kind="against",
                        value=1.0,
                        tolerance=0.05,
                        verdict=Verdict.PASS if p is None else Verdict.REGRESSED,
                        adjusted_p=p,
                    )
                ],
                ShownRun(label="", throughput=1.0, latency={}, batching_ratio=None),
            )
            for place, p in enumerate(own)
        ]
        found = {test.nodeid: Test(test, {}) for test in shown}
        shards.append(Shard(f"{number}.json", Head({"name": "T4"}, {}), {}, found))
        tests += [Measured(number, test) for test in found.values()]
    return Joined(tuple(shards), tuple(tests))


def standing(found: Joined) -> set[str]:
    """The claims that stand among all."""
    refused = {nodeid for nodeid, _ in claims_that_do_not_stand(found)}
    shown = [measured.test.shown for measured in found.tests]
    return {test.nodeid for test in shown if test.verdicts[0].verdict is Verdict.REGRESSED} - refused


@settings(max_examples=50)
@given(
    st.lists(
        st.lists(st.one_of(st.none(), st.floats(0, 1), st.floats(0, 0.02)), min_size=1, max_size=8),
        min_size=2,
        max_size=5,
    )
)
def test_what_stands_is_what_holm_upholds(p_values: list[list[float | None]]) -> None:
    """Over all shards, as if they were one run, whoever has measured what."""
    found = joined(p_values)
    every = {f"{n}.{i}": p for n, own in enumerate(p_values) for i, p in enumerate(own)}
    assert planned_of_all(found) == len(every)
    claimed = {nodeid for nodeid, p in every.items() if p is not None}
    assert standing(found) == holm({nodeid: 1.0 if p is None else p for nodeid, p in every.items()}) & claimed


def upheld(p_values: Sequence[float], among: int) -> list[float | None]:
    """What a shard calls REGRESSED of true null hypotheses, reckoning with so many comparisons; the rest passes."""
    family = Family(among)
    claims: list[float | None] = []
    for p in p_values:
        stands = family.upholds(p)
        family = family.with_claim() if stands else family
        claims.append(p if stands else None)
    return claims


def _any(claims: Sequence[Sequence[float | None]]) -> bool:
    return any(p is not None for own in claims for p in own)


def test_false_alarms_of_four_shards_are_those_of_one_run() -> None:
    """64 comparisons at the edge of what is nothing to talk about, on four runners: one of twenty runs may be wrong.

    Each runner by itself is wrong as often, so that of four one is in .185 of all runs. What stands after merging, and
    what is claimed by runners that know of all comparisons, is wrong in .05.
    """
    source = random.Random(7)
    apart = after = knowing = 0
    for _ in range(RUNS):
        p_values = [[source.random() for _ in range(EACH)] for _ in range(SHARDS)]
        by_itself = [upheld(own, EACH) for own in p_values]
        if _any(by_itself):
            apart += 1
            after += bool(standing(joined(by_itself)))
        knowing += _any([upheld(own, SHARDS * EACH) for own in p_values])
    assert apart / RUNS == pytest.approx(1 - 0.95**SHARDS, abs=0.02)
    assert 0.03 < after / RUNS < 0.06
    assert 0.03 < knowing / RUNS < 0.06
