"""What a test that ended early has not asserted: judged by what was measured until then, for reports alone.

A test ends with its first ``assert`` that fails; the data of its other metrics are there. Their verdicts are told, and
nothing else comes of them: nothing is measured, recorded or remembered for them, and no claim of the run is spent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_gpuserve.comparison.drift import screened
from pytest_gpuserve.gate.metric import METRICS
from pytest_gpuserve.gate.reason import Reason, ReasonKind
from pytest_gpuserve.gate.verdict import Judgement, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_gpuserve.comparison.context import ComparisonContext
    from pytest_gpuserve.comparison.holm import HolmCorrection
    from pytest_gpuserve.comparison.measurement import Measurement
    from pytest_gpuserve.comparison.recording import Recorder
    from pytest_gpuserve.comparison.stored import StoredComparison
    from pytest_gpuserve.gate.metric import Metric
    from pytest_gpuserve.store.baseline import Stored

UNASKED: Final = Reason(
    ReasonKind.NOT_SIDE_BY_SIDE, "not settled side by side with the anchor's commit, which would have to be measured"
)
"""Why a drift that is told afterwards stands alone."""


class UnassertedMetrics:
    """Judges the rest of a test.

    Args:
        case: The test.
        recorder: Says what is recorded anew.
        stored: Judges by baselines.
    """

    def __init__(self, case: ComparisonContext, recorder: Recorder, stored: StoredComparison) -> None:
        self._case = case
        self._recorder = recorder
        self._stored = stored

    def judgements(self, measurements: Iterable[Measurement]) -> list[tuple[Measurement, Judgement]]:
        """What was not asserted of the loads that were compared with a baseline, or with what stands for one.

        Of a metric that a load does not have, such as the batches of a server that counts none, there is nothing. Of a
        duel neither: its limits stand in the test alone.
        """
        claims = self._case.paired_runner.claims.copy()
        found = []
        for measurement in measurements:
            if not measurement.compared:
                continue
            judged = {name for name, _ in measurement.judgements}
            for name, metric in METRICS.items():
                if name in self._case.policy.metrics and name not in judged and measurement.value(metric) is not None:
                    found.append((measurement, self._judged(measurement, metric, claims).unasserted()))
        return found

    def _judged(self, measurement: Measurement, metric: Metric, claims: HolmCorrection) -> Judgement:
        if self._case.paired_runner.against is not None:
            if measurement.absent is not None:
                return Judgement.missing(metric, "against", measurement.absent, value=measurement.value(metric))
            assert measurement.paired is not None
            return measurement.paired.detached(claims).judge(metric, self._case.gated_tolerance(metric))
        stored = self._case.baseline_store.find(measurement.baseline_key)
        if self._recorder.wants(stored):
            judged = self._stored.judge(measurement, metric, stored)
            recorded = self._recorder.judge(measurement, metric, stored, judged, self._stored.shared(measurement))
            # What is missing would be recorded if the test passed, and it has not.
            return judged if recorded.verdict is Verdict.MISSING else recorded
        judgement = self._stored.settle_without_measuring(measurement, metric, stored, claims)
        return self._reviewed(measurement, stored, judgement, claims)

    def _reviewed(
        self, measurement: Measurement, stored: Stored | None, judgement: Judgement, claims: HolmCorrection
    ) -> Judgement:
        """The verdict after the anchor was asked too; its commit, which alone could clear it of a drift, is not."""
        sessions, tolerance = measurement.run.sessions, self._case.drift_tolerance(judgement.metric)
        judgement, drift = screened(
            judgement,
            stored,
            sessions,
            measurement.known_yardstick,
            here=self._case.paired_runner.here,
            tolerance=tolerance,
        )
        if drift is None or not drift.is_shown:
            return judgement
        return self._stored.final(measurement, drift.claim.because(UNASKED), claims)
