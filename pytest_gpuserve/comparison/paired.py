"""Reaches verdicts side by side, look by look."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuserve.comparison.context import NextLook
from pytest_gpuserve.gate.sequential import LOOKS
from pytest_gpuserve.gate.verdict import Judgement, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuserve.comparison.context import ComparisonContext
    from pytest_gpuserve.comparison.measurement import Measurement
    from pytest_gpuserve.comparison.side_by_side import SideBySide
    from pytest_gpuserve.gate.metric import Metric


class PairedComparison:
    """Judges loads of one test that are measured beside a base.

    Args:
        case: The test.
    """

    def __init__(self, case: ComparisonContext) -> None:
        self._case = case

    def settle(self, measurement: Measurement, metric: Metric) -> Judgement:
        """Judge a metric against the base.

        Raises:
            BaseFailed: The base could not be started.
            ServerFailed: The server could not be started.
            LoadFailed: The load engine failed.
        """
        tolerance = self._case.tolerance_of(metric)
        return self._settle(measurement, lambda paired: paired.judge(metric, tolerance))

    def settle_ratio(self, measurement: Measurement, metric: Metric, limit: float) -> Judgement:
        """Judge the ratio of a metric to the base's against a limit.

        Raises:
            BaseFailed: The base could not be started.
            ServerFailed: The server could not be started.
            LoadFailed: The load engine failed.
        """
        return self._settle(measurement, lambda paired: paired.judge_limit(metric, limit))

    def _settle(self, measurement: Measurement, judge: Callable[[SideBySide], Judgement]) -> Judgement:
        paired = measurement.paired
        assert paired is not None

        def judged() -> tuple[Judgement, bool]:
            judgement = judge(paired)
            # More rounds do not help a quantile that a single one has too few requests for.
            in_vain = bool(paired.rounds) and judgement.value is None
            return judgement, judgement.verdict is Verdict.INCONCLUSIVE and not in_vain

        return self._case.settle(measurement, judge=judged, next_look=lambda: next_round(paired), take=measurement.look)


def next_round(paired: SideBySide) -> NextLook:
    """The next look at a comparison side by side."""
    return NextLook(
        "round",
        number=paired.next_round,
        most=LOOKS[-1][0],
        taken=len(paired.rounds),
        is_beyond=paired.exhausted,
        seconds=paired.next_seconds,
        is_kept=True,
        wants_start=paired.wants_start,
    )
