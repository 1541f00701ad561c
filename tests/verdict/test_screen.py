"""The screen by stored numbers: what it computes, and how often it is wrong, by counting."""

from __future__ import annotations

import math
from random import Random

import pytest

from pytest_gpuserve.verdict.evidence import screen_evidence
from pytest_gpuserve.verdict.metric import METRICS, Growth
from pytest_gpuserve.verdict.verdict import Evidence, Verdict
from tests.fakes.simulated import chance, short_and_long

THROUGHPUT, P99 = METRICS["throughput"], METRICS["latency.p99"]
GROWTH = Growth(0.05)


def screened(recorded: dict[str, list[float]], now: float) -> Evidence:
    """Evidence of a session of this throughput."""
    return screen_evidence(THROUGHPUT, recorded, now, most_growth=GROWTH)


def test_the_evidence_is_that_of_the_published_formula() -> None:
    """s^2 (1 + 1/n) + d^2 with priors of three degrees of freedom, and the zone test at .05 and .025."""
    found = screened({"a": [0.0, 0.01], "b": [0.04]}, 0.05)
    session = (3 * 0.02**2 + 2 * 0.005**2) / 4
    drift = (3 * 0.02**2 + 2 * 0.0175**2) / 4
    part = session * (1 + 1 / 3)
    assert found.estimate == pytest.approx(0.05 - 0.05 / 3)
    assert found.standard_error == pytest.approx(math.sqrt(part + drift))
    assert found.df == pytest.approx((part + drift) ** 2 / (part**2 / 4 + drift**2 / 4))
    assert (found.level, found.claim_level, found.least_claim) == (0.05, 0.025, 0.0)


def test_one_session_of_one_occasion_knows_its_priors_alone() -> None:
    """The priors are 2 % and 2 %, for p99 3 %; sessions that agree never give less than the metric's floor."""
    assert screened({"a": [0.0]}, 0.0).standard_error == pytest.approx(0.02 * math.sqrt(3))
    p99 = screen_evidence(P99, {"a": [0.0]}, 0.0, most_growth=GROWTH)
    assert p99.standard_error == pytest.approx(0.03 * math.sqrt(3))
    agreed = screen_evidence(P99, {str(day): [0.0] * 20 for day in range(50)}, 0.0, most_growth=GROWTH)
    assert agreed.standard_error >= P99.sd_floor


@pytest.mark.parametrize(("recorded", "now"), [({}, 0.0), ({"a": []}, 0.0), ({"a": [0.0]}, math.nan)])
def test_nothing_and_no_number_are_errors(recorded: dict[str, list[float]], now: float) -> None:
    """An empty history or a NaN is an error, not a comparison that is false."""
    with pytest.raises((ValueError, ZeroDivisionError)):
        screened(recorded, now)


@short_and_long(1_000, 20_000)
@pytest.mark.parametrize(
    ("session_sd", "occasion_sd", "occasions", "passes"),
    [
        (0.003, 0.0, 1, 0.27),
        (0.003, 0.0, 4, 1.0),
        (0.01, 0.01, 1, 0.43),
        (0.01, 0.01, 4, 0.76),
        (0.01, 0.02, 4, 0.57),
        (0.02, 0.02, 1, 0.42),
        (0.02, 0.02, 4, 0.46),
    ],
)
def test_it_passes_and_errs_as_often_as_is_documented(
    session_sd: float, occasion_sd: float, occasions: int, passes: float, count: int
) -> None:
    """Identical builds pass as the table of the module says; at most 7 of 100 that are 5 % slower do."""
    random = Random(f"{session_sd} {occasion_sd} {occasions}")

    def verdict(slower: float) -> Verdict:
        days = {str(day): random.gauss(0.0, occasion_sd) for day in range(occasions)}
        recorded = {day: [random.gauss(level, session_sd) for _ in range(3)] for day, level in days.items()}
        now = random.gauss(random.gauss(math.log1p(slower), occasion_sd), session_sd)
        return screened(recorded, now).verdict

    same, slow = ([verdict(slower) for _ in range(count)] for slower in (0.0, 0.05))
    assert sum(each.passes for each in same) / count == pytest.approx(passes, abs=0.02 + chance(passes, count))
    assert sum(each is Verdict.REGRESSED for each in same) / count <= 0.02 + chance(0.02, count)
    assert sum(each.passes for each in slow) / count <= 0.07 + chance(0.07, count)
