"""What the self-test compares: each kind as often as any other, the ones that decide first."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from pytest_gpuserve.selftest.server import Options
from pytest_gpuserve.selftest.trials import BATCH, CASES, Case, Truth, interleaved

BASE = Options(turns=1000, max_batch=BATCH)


def test_all_kinds_have_the_same_hours() -> None:
    """Each kind comes once in each turn, numbered; the first turn stands as it is listed, later ones vary."""
    plan = interleaved(5)
    turns = [plan[first : first + len(CASES)] for first in range(0, len(plan), len(CASES))]
    assert [planned.case for planned in turns[0]] == list(CASES)
    for number, turn in enumerate(turns, 1):
        assert {planned.case.name for planned in turn} == {case.name for case in CASES}
        assert {planned.number for planned in turn} == {number}
    assert len({tuple(planned.case.name for planned in turn) for turn in turns}) > 2
    assert interleaved(5) == plan
    assert interleaved(5, seed=1) != plan


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_candidate_differs_in_what_its_name_says(case: Case) -> None:
    """And in nothing else; only the identical one does not differ at all."""
    candidate = case.of(BASE)
    differs = {name for name, value in asdict(candidate).items() if value != asdict(BASE)[name]}
    assert differs == set(case.change)
    assert bool(differs) == (case.truth is not Truth.ALIKE)
    if "slower" in differs:
        assert case.name == f"{candidate.slower * 100:.0f} % slower"


def test_a_tail_is_not_a_slowdown() -> None:
    """Its mean stays within a quarter of the tolerance of 5 %, and it reaches more than one request in a hundred."""
    cases = {case.name: case.of(BASE) for case in CASES}
    candidate = cases["tail only"]
    turns = [candidate.turns_of_batch(number) for number in range(1, 1 + 10 * candidate.tail_every)]
    assert sum(turns) / len(turns) / BASE.turns <= 1 + 0.05 / 4 + 1e-9
    assert sum(count > BASE.turns for count in turns) / len(turns) > 0.01
    # More than any tolerance of the batching ratio.
    assert cases["smaller batches"].max_batch == 0.75 * BASE.max_batch
