"""A run with the means to measure more of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pytest_gpuserve.gate.metric import METRICS, Metric, requests_needed
from pytest_gpuserve.measure.points import NotMeasured, pooled_value
from pytest_gpuserve.trial.sampling import LoadShape, take_session

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_gpuserve.gate.verdict import Judgement
    from pytest_gpuserve.trial.assertions import Run
    from pytest_gpuserve.trial.handle import Target
    from pytest_gpuserve.trial.ledger import Place, Workload


@dataclass
class Measurement:
    """A load of a test.

    Args:
        run: What the test holds of it.
        target: What is sent, where.
        shape: How it is loaded.
        workload: What it is, for a baseline.
        place: Where its baseline is.
        seconds: Time spent on it.
        taken: Sessions that it was spent on.
        compared: Whether the test compared it with its baseline.
        judgements: The last judgement of each metric and kind of reference, in the order of asking.
    """

    run: Run
    target: Target
    shape: LoadShape
    workload: Workload
    place: Place
    seconds: float = 0.0
    taken: int = 0
    compared: bool = False
    judgements: dict[tuple[str, str], Judgement] = field(default_factory=dict)

    def take(self, tolerance_of: Callable[[Metric], float]) -> None:
        """Measure another session, long enough for every metric at its tolerance if that can be had.

        Raises:
            ServerFailed: The server could not be started.
            LoadFailed: The load engine failed.
        """
        began = time.monotonic()
        wanted = max(requests_needed(metric, tolerance_of(metric)) for metric in METRICS.values())
        try:
            self.run.sessions.append(take_session(self.target, replace(self.shape, requests_wanted=wanted)))
        finally:
            self.taken += 1
            self.seconds += time.monotonic() - began

    def value(self, metric: Metric) -> float | None:
        """The metric over all that was measured; None if it is not known."""
        try:
            return pooled_value(metric, self.run.sessions)
        except NotMeasured:
            return None

    def known(self) -> Mapping[Metric, float]:
        """All metrics that are known."""
        values = {metric: self.value(metric) for metric in METRICS.values()}
        return {metric: value for metric, value in values.items() if value is not None}

    @property
    def foreign_cores(self) -> float:
        """Cores that others took, at the worst of its starts."""
        return max((start.foreign_cores for session in self.run.sessions for start in session.starts), default=0.0)
