"""Reaches verdicts side by side: looks, measures more, looks again, until it is decided or the budget is spent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuserve.comparison.context import Look
from pytest_gpuserve.gate.reason import Reason, ReasonKind
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
        while True:
            judgement = judge(paired)
            # More rounds do not help a quantile that a single one has too few requests for.
            if judgement.verdict is not Verdict.INCONCLUSIVE or (paired.rounds and judgement.value is None):
                return judgement
            stop = self._why_not_more(paired)
            if stop:
                return judgement.because(stop)
            self._case.loads.rest_others(measurement)
            self.tell_look(paired, judgement)
            measurement.look()

    def tell_look(self, paired: SideBySide, judgement: Judgement | None = None) -> None:
        """Tell that the next look is about to be taken.

        Args:
            paired: Of what.
            judgement: What the last one said.
        """
        self._case.on_look(Look("round", paired.next_round, LOOKS[-1][0], judgement, self._case.left_seconds))

    def _why_not_more(self, paired: SideBySide) -> Reason | None:
        rounds = len(paired.rounds)
        if paired.exhausted:
            return Reason(ReasonKind.LAST_LOOK, f"not decided after {LOOKS[-1][0]} rounds, which is the last look")
        budget = self._case.policy.budget_seconds
        # The first look is always taken: without it nothing is known at all.
        if rounds and paired.next_seconds > self._case.left_seconds:
            return Reason(
                ReasonKind.BUDGET_SPENT,
                f"not decided after {rounds} round{'s' if rounds != 1 else ''}, and another of about"
                f" {paired.next_seconds:.0f} s would exceed the test's budget of {budget:.0f} s; raise it with"
                " --gpuserve-budget=SECONDS, or run it again: it goes on where this run ends",
                seconds=budget,
            )
        return None
