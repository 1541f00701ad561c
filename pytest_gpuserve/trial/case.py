"""What all who judge the loads of one test have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpuserve.gate.metric import METRICS, requests_needed

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuserve.gate.metric import Metric
    from pytest_gpuserve.gate.verdict import Judgement
    from pytest_gpuserve.trial.arena import Arena
    from pytest_gpuserve.trial.docket import Docket
    from pytest_gpuserve.trial.ledger import Ledger
    from pytest_gpuserve.trial.looks import Look
    from pytest_gpuserve.trial.measurement import Measurement
    from pytest_gpuserve.trial.policy import Policy


@dataclass(frozen=True)
class Case:
    """One test, as those know it who judge its loads.

    Args:
        nodeid: The test.
        ledger: The baselines of the device.
        arena: Where builds are compared side by side.
        policy: What verdicts mean.
        tolerance_of: The tolerance of each metric.
        told: Hears every judgement, with the label of its run.
        looked: Hears of every look before it is taken.
        docket: The loads.
    """

    nodeid: str
    ledger: Ledger
    arena: Arena
    policy: Policy
    tolerance_of: Callable[[Metric], float]
    told: Callable[[str, Judgement], None]
    looked: Callable[[Look], None]
    docket: Docket

    @property
    def requests_wanted(self) -> int:
        """Requests that each start should have, for the quantiles that the test compares."""
        compared = [metric for name, metric in METRICS.items() if name in self.policy.metrics]
        return max(requests_needed(metric, self.tolerance_of(metric)) for metric in compared)

    @property
    def left_seconds(self) -> float:
        """Of the test's budget."""
        return self.policy.budget_seconds - self.docket.spent_seconds()

    def tell(self, measurement: Measurement, judgement: Judgement, *, row: str = "") -> None:
        """Keep a judgement of a load for reports, and pass it on.

        Args:
            measurement: What was judged.
            judgement: What came of it; it takes the place of an earlier one in its row.
            row: Of the metric; each kind of reference has one by itself.
        """
        measurement.judgements[judgement.metric.name, row or judgement.reference_kind] = judgement
        self.told(measurement.run.label, judgement)
