"""What the gate comes to of drawn measurements, run after run, of a metric of which a start has one number."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pytest_gpuserve.gate.occasions import withstand_drift
from pytest_gpuserve.gate.paired import default_prior, paired_verdict
from pytest_gpuserve.gate.sequential import LOOKS, first_look, levels
from pytest_gpuserve.gate.stored import LOOKS as SESSIONS
from pytest_gpuserve.gate.stored import SessionPoint, judge_stored
from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.measure.points import point
from pytest_gpuserve.measure.rounds import round_point

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuserve.gate.metric import Metric
    from pytest_gpuserve.gate.paired import RoundPoint
    from pytest_gpuserve.measure.rounds import Round
    from pytest_gpuserve.measure.window import Session


def beside(metric: Metric, measured: Callable[[int], Round], *, left_out: int = 0) -> Verdict:
    """What a comparison comes to that measures on until it is decided.

    Args:
        metric: What is compared, within its own tolerance.
        measured: Measures the round of this number.
        left_out: So many of the first rounds do not count.
    """
    points: list[RoundPoint] = []
    for look, (rounds, _) in enumerate(LOOKS):
        if len(points) < rounds:
            points.append(round_point(metric, measured(len(points)), metric.default_tolerance))
        if look < first_look(metric):
            continue
        verdict, _, _ = paired_verdict(
            metric,
            points[left_out:],
            default_prior(metric),
            most_growth=metric.growth(metric.default_tolerance),
            level=levels()[look],
        )
        if verdict is not Verdict.INCONCLUSIVE:
            return verdict
    return Verdict.INCONCLUSIVE


def against_three(metric: Metric, measured: Callable[[float], Session], change: float) -> Verdict:
    """What the gate says of a build's sessions of two starts each, against three recorded ones of another.

    Args:
        metric: What is gated, within its own tolerance.
        measured: Measures a session of a build, by how much it differs from the recorded one, as a fraction.
        change: By how much it does.
    """

    def reduced(each: float) -> SessionPoint:
        found = point(metric, measured(each), metric.default_tolerance)
        return SessionPoint("host-a", found.y, found.u, 2)

    stored = [reduced(0.0) for _ in range(3)]
    now: list[SessionPoint] = []
    while len(now) < SESSIONS:
        now.append(reduced(change))
        result = withstand_drift(
            judge_stored(metric, stored, now, most_growth=metric.growth(metric.default_tolerance)),
            {"then": [known.y for known in stored]},
        )
        if result.verdict is not Verdict.INCONCLUSIVE:
            return result.verdict
    return Verdict.INCONCLUSIVE


def shares(judge: Callable[[int], Verdict], runs: int) -> dict[Verdict, float]:
    """How often each verdict came, in so many runs with seeds from 0 on."""
    counted = Counter(judge(seed) for seed in range(runs))
    return {verdict: counted[verdict] / runs for verdict in Verdict}
