"""Reviews what the newest baseline lets pass: has it drifted from the metric's anchor, in steps too small to be told?

As a stored baseline does, an anchor only screens. What it calls REGRESSED is settled side by side with the anchor's
commit, which alone can tell a drift of the code from one of the machine; where that cannot be, it stays REGRESSED.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_gpuserve.comparison.assertions import Run
from pytest_gpuserve.comparison.confirming import Unconfirmed, base_failed, beside_commit, side_by_side
from pytest_gpuserve.comparison.drift_verdict import changes_since_anchor, named, screened, standing
from pytest_gpuserve.comparison.stored import SHARED_CARD
from pytest_gpuserve.experiment.pairing import BaseFailed
from pytest_gpuserve.gate.reason import Reason, ReasonKind
from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.measure.rounds import OF_ONE_SERVER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.comparison.context import ComparisonContext
    from pytest_gpuserve.comparison.drift_verdict import Drift
    from pytest_gpuserve.comparison.measurement import Measurement
    from pytest_gpuserve.comparison.paired import PairedComparison
    from pytest_gpuserve.comparison.paired_runner import PairedSpec
    from pytest_gpuserve.comparison.side_by_side import SideBySide
    from pytest_gpuserve.comparison.stored import StoredComparison
    from pytest_gpuserve.gate.metric import Metric
    from pytest_gpuserve.gate.verdict import Judgement
    from pytest_gpuserve.measure.window import Session
    from pytest_gpuserve.store.baseline import Stored
    from pytest_gpuserve.store.schema import AnchorRecord


class DriftComparison:
    """Judges loads of one test by the anchors of their baselines.

    Args:
        case: The test.
        paired: Who settles a drift side by side.
        stored: Who holds back a stored claim of which chance or others may be the cause.
    """

    def __init__(self, case: ComparisonContext, paired: PairedComparison, stored: StoredComparison) -> None:
        self._case = case
        self._paired = paired
        self._stored = stored
        self._by_commit: dict[tuple[str, str | None], Measurement] = {}
        self._decided: dict[tuple[str, str], Measurement | None] = {}

    def review(
        self, measurement: Measurement, metric: Metric, stored: Stored | None, judgement: Judgement
    ) -> Judgement:
        """The verdict after the anchor was asked too.

        Args:
            measurement: What was measured.
            metric: What was judged.
            stored: Its baseline.
            judgement: Against the newest sessions of the baseline.

        Raises:
            ServerFailed: The server could not be started.
            LoadFailed: The load engine failed.
        """
        self._decided.pop((measurement.run.label, metric.name), None)
        tolerance = self._case.tolerance_of(metric)
        here = self._case.paired_runner.here
        if measurement.is_paired and stored is not None and judgement.verdict is not Verdict.REGRESSED:
            found = standing(metric, stored, here, measurement.known_yardstick)
            if found.anchored is not None and found.other_machine is None:
                self._stored.measure_alone(measurement)
        sessions = measurement.run.sessions
        judgement, drift = screened(
            judgement, stored, sessions, measurement.known_yardstick, here=here, tolerance=tolerance
        )
        return judgement if drift is None else self._settled(measurement, drift)

    def compared(self, measurement: Measurement, metric: Metric) -> tuple[Sequence[Session], Sequence[Session]] | None:
        """The sessions by which a metric was decided here, the anchor's commit's first; none where it keeps none.

        None where another comparison has decided it.
        """
        key = (measurement.run.label, metric.name)
        if key not in self._decided:
            return None
        beside = self._decided[key]
        paired = None if beside is None else beside.paired
        return ((), ()) if paired is None else (paired.sessions("base"), paired.sessions("candidate"))

    def decider(self, measurement: Measurement, metric: Metric) -> Measurement | None:
        """The load beside the anchor's commit by whose rounds a metric was decided; None where it was not so."""
        return self._decided.get((measurement.run.label, metric.name))

    def _settled(self, measurement: Measurement, drift: Drift) -> Judgement:
        """The verdict on a drift: that of the anchor's commit where it can be had, else the anchor's own."""
        if not drift.is_shown:
            return self._looked_for(measurement, drift)
        key = (measurement.run.label, drift.metric.name)
        self._decided[key] = None
        alone = self._why_alone(drift.metric)
        if alone is not None:
            return self._stored.final(measurement, drift.claim.because(*alone))
        beside = self._beside(measurement, drift.stored, drift.anchored.of)
        paired = self._asked(measurement, beside, drift.metric)
        if paired is None:
            assert beside.absent is not None
            return self._stored.final(measurement, drift.claim.because(beside.absent))
        if paired.verdict is Verdict.REGRESSED:
            self._decided[key] = beside
            # Why it was not enough stands with the verdict that counts.
            self._case.tell(measurement, drift.claim.overrule())
            told = side_by_side(f"{drift.beside} it is REGRESSED too, and that counts")
            return paired.because(told, *drift.claim.reasons)
        unsettled = self._unsettled(drift, paired)
        if unsettled:
            return self._stored.final(measurement, drift.claim.because(*unsettled))
        del self._decided[key]
        # The question whether it is worse than its newest baseline has been answered before.
        text = f"{drift.metric.name} has drifted, but {drift.beside} it is {paired.verdict}: not the code has"
        return drift.judgement.because(Reason(ReasonKind.NO_DRIFT, text))

    def _looked_for(self, measurement: Measurement, drift: Drift) -> Judgement:
        """The verdict on a machine on which the anchor's number tells nothing, so that only its commit can.

        As by the number, a drift is what has got worse by more than the tolerance.
        """
        key = (measurement.run.label, drift.metric.name)
        why, paired, beside = self._why_alone(drift.metric), None, None
        if why is None:
            beside = self._beside(measurement, drift.stored, drift.anchored.of)
            paired = self._asked(measurement, beside, drift.metric)
            why = () if beside.absent is None else (beside.absent,)
        if paired is None:
            unjudged = Reason(ReasonKind.NO_DRIFT, "no drift is judged")
            return drift.judgement.because(unjudged, *drift.claim.reasons[:1], *why)
        found = f"{drift.beside} it is {paired.verdict}"
        if not paired.verdict.passes and paired.verdict is not Verdict.REGRESSED:
            self._decided[key] = None
            return self._stored.final(
                measurement, drift.claim.because(side_by_side(f"not settled {found}"), *paired.reasons)
            )
        if paired.verdict is Verdict.REGRESSED and _is_beyond(paired):
            self._decided[key] = beside
            return paired.because(side_by_side(f"{found}, and that counts"), *drift.claim.reasons)
        changed = changes_since_anchor(drift.anchored.of, self._case.paired_runner.here)
        if changed:
            text = f"no drift is judged: both sides share now {'; '.join(changed)}"
            return drift.judgement.because(Reason(ReasonKind.NO_DRIFT, text))
        return drift.judgement.because(Reason(ReasonKind.NO_DRIFT, f"no drift: {found}"))

    def _why_alone(self, metric: Metric) -> tuple[Reason, ...] | None:
        """Why the anchor's commit is not asked; empty where nobody wants it to be, None where it is."""
        if not self._case.policy.confirm:
            return ()
        # Of two servers on one card it is not known, so that to start them would be for nothing.
        one_at_a_time = self._case.policy.one_at_a_time
        return (SHARED_CARD,) if metric.name in OF_ONE_SERVER and not one_at_a_time else None

    def _unsettled(self, drift: Drift, paired: Judgement) -> tuple[Reason, ...]:
        """Why a verdict side by side that is not REGRESSED leaves the drift as it is; empty where it clears it."""
        if not paired.verdict.passes:
            return (side_by_side(f"not settled {drift.beside} either: {paired.verdict}"), *paired.reasons)
        changed = changes_since_anchor(drift.anchored.of, self._case.paired_runner.here)
        if not changed:
            return ()
        told = f"{drift.beside} it is {paired.verdict}, but that cannot see what both sides share now"
        return (side_by_side(f"{told}: {'; '.join(changed)}"),)

    def _beside(self, measurement: Measurement, stored: Stored, anchor: AnchorRecord) -> Measurement:
        """The load once more, to be measured beside the anchor's commit; it notes why that cannot be."""
        run = measurement.run
        known = (run.label, anchor.commit)
        if known not in self._by_commit:
            beside = replace(
                measurement,
                # What was measured alone stays the run, for further metrics are judged by it.
                run=Run(
                    f"{run.label} beside the anchor's commit {named(anchor)}".strip(),
                    run.judge,
                    [],
                    run.card,
                    run.schedule,
                ),
                seconds=0.0,
                taken=0,
                judgements={},
                answers={},
                paired=None,
                absent=None,
                settles=run.label,
            )
            try:
                beside.paired = self._made(self._stored.spec_of(measurement, stored), anchor)
            except Unconfirmed as problem:
                beside.absent = problem.reason
            self._by_commit[known] = beside
            self._case.loads.confirmations.append(beside)
        return self._by_commit[known]

    def _made(self, spec: PairedSpec, anchor: AnchorRecord) -> SideBySide:
        """Make the anchor's commit ready to be compared with.

        Raises:
            Unconfirmed: It cannot be: the anchor names no commit, git lacks it, or it has no such server.
        """
        if anchor.commit is None:
            raise Unconfirmed("the anchor names no commit that it could be settled against: it is of no git checkout")
        if not anchor.clean:
            raise Unconfirmed(
                f"the anchor was recorded with uncommitted changes on top of {named(anchor)}, which cannot be run again"
            )
        return beside_commit(
            self._case.paired_runner, spec, anchor.commit, called="the anchor's commit", what="the drift"
        )

    def _asked(self, measurement: Measurement, beside: Measurement, metric: Metric) -> Judgement | None:
        """What the anchor's commit says; None where it cannot be asked, which the load beside it notes."""
        if beside.absent is not None:
            return None
        try:
            paired = self._paired.settle(beside, metric)
        except BaseFailed as problem:
            # The comparison is kept for the time that it took.
            beside.absent = base_failed("the drift", problem)
            return None
        finally:
            measurement.interrupted = measurement.interrupted or beside.interrupted
        # Rounds of an earlier run may have decided it without another look.
        beside.show()
        beside.judgements[metric.name, paired.reference_kind] = paired
        return paired


def _is_beyond(judgement: Judgement) -> bool:
    """Whether it is worse by more than its tolerance, as far as the estimate goes."""
    change, tolerance = judgement.change, judgement.tolerance
    if change is None or tolerance is None:
        return True
    return (-change if judgement.metric.higher_is_better else change) > tolerance
