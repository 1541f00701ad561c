"""Whether a metric has drifted from its anchor, in steps too small to be told by the newest baseline.

As a stored baseline does, an anchor only screens. What it calls REGRESSED is settled side by side with the anchor's
commit, which alone can tell a drift of the code from one of the machine; where that cannot be, it stays REGRESSED.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from pytest_gpuserve.builds.worktree import SHOWN_DIGITS
from pytest_gpuserve.comparison.anchoring import costs_here, incompatible, named, point_of
from pytest_gpuserve.comparison.assertions import Run
from pytest_gpuserve.comparison.paired import Unconfirmed, base_failed, pair_with_commit, side_by_side
from pytest_gpuserve.comparison.stored import SHARED_CARD
from pytest_gpuserve.device.rules import HOST_RULES, changes
from pytest_gpuserve.experiment.machine import why_other_than_anchor
from pytest_gpuserve.experiment.pairing import BaseFailed
from pytest_gpuserve.gate.anchor import AnchorResult, judge_anchor
from pytest_gpuserve.gate.reason import Reason, ReasonKind
from pytest_gpuserve.gate.verdict import Judgement, Verdict
from pytest_gpuserve.measure.points import NotMeasured, point
from pytest_gpuserve.measure.rounds import OF_ONE_SERVER
from pytest_gpuserve.measure.yardstick import is_as_fast
from pytest_gpuserve.store.anchor import Anchored, find, is_of, is_since
from pytest_gpuserve.store.schema import yardstick_of
from pytest_gpuserve.units import format_change, format_fraction, format_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpuserve.comparison.context import ComparisonContext
    from pytest_gpuserve.comparison.measurement import Measurement
    from pytest_gpuserve.comparison.paired import PairedComparison
    from pytest_gpuserve.comparison.paired_runner import PairedSpec
    from pytest_gpuserve.comparison.side_by_side import SideBySide
    from pytest_gpuserve.comparison.stored import StoredComparison
    from pytest_gpuserve.experiment.environment import RunEnvironment
    from pytest_gpuserve.gate.metric import Metric
    from pytest_gpuserve.gate.verdict import Judgement
    from pytest_gpuserve.measure.window import Session
    from pytest_gpuserve.measure.yardstick import Yardstick
    from pytest_gpuserve.store.baseline import Stored
    from pytest_gpuserve.store.schema import AnchorRecord, Entry


@dataclass(frozen=True, slots=True)
class AnchorState:
    """What a baseline says of a metric's anchor here.

    Args:
        anchored: What a run is to be compared with; None where there is nothing, or nothing has come since.
        notes: What a report should say of it.
        other_machine: Why the number of the anchor decides nothing here and now; None where it does, or there is none.
    """

    anchored: Anchored | None = None
    notes: tuple[Reason, ...] = ()
    other_machine: Reason | None = None


@dataclass(frozen=True, slots=True)
class Drift:
    """What the anchor of a metric claims of a run.

    Args:
        metric: Which.
        stored: Its baseline.
        anchored: Its anchor.
        judgement: Against the newest sessions of the baseline.
        claim: Against the anchor: REGRESSED, or INCONCLUSIVE where only its commit can tell.
    """

    metric: Metric
    stored: Stored
    anchored: Anchored
    judgement: Judgement
    claim: Judgement

    @property
    def is_shown(self) -> bool:
        """Whether the anchor's own number claims it."""
        return self.claim.verdict is Verdict.REGRESSED

    @property
    def where(self) -> str:
        """How a comparison with the anchor's commit is called: the run may have been beside another one too."""
        return f"side by side with the anchor's commit ({named(self.anchored.of)})"


def screened(
    judgement: Judgement,
    stored: Stored | None,
    sessions: Iterable[Session],
    now: Yardstick | None,
    *,
    here: RunEnvironment,
    tolerance: float,
) -> tuple[Judgement, Drift | None]:
    """Ask the anchor of a metric what the newest sessions of its baseline let pass.

    Args:
        judgement: Against those sessions.
        stored: The baseline.
        sessions: Of the run.
        now: How fast the machine is; None of a server that somebody else runs.
        here: The circumstances of the run.
        tolerance: Of the metric.

    Returns:
        The judgement with what is to be said of the anchor, and the drift that it claims, or that only the anchor's
        commit can tell; None where there is none.
    """
    if stored is None or judgement.verdict in {Verdict.MISSING, Verdict.INVALID}:
        return judgement, None
    metric = judgement.metric
    found = anchor_state(metric, stored, here, now)
    judgement = judgement.because(*found.notes)
    if found.anchored is None or judgement.verdict is Verdict.REGRESSED:
        return judgement, None
    if found.other_machine is not None:
        doubt = replace(judgement, verdict=Verdict.INCONCLUSIVE, reasons=(found.other_machine, *found.notes))
        return judgement, Drift(metric, stored, found.anchored, judgement, doubt)
    result = against_anchor(metric, found.anchored, stored, sessions, now, here=here, tolerance=tolerance)
    if result is None or not result.has_drifted:
        return judgement, None
    claim = drifted(result, found.anchored).because(*found.notes)
    return judgement, Drift(metric, stored, found.anchored, judgement, claim)


def anchor_state(metric: Metric, stored: Stored, here: RunEnvironment, now: Yardstick | None) -> AnchorState:
    """Find the anchor of a metric on this host and device; that there is only one of another is said.

    Args:
        metric: Which.
        stored: The baseline, of the workload of the run.
        here: The circumstances of the run.
        now: As for `screened`.
    """
    entry = stored.entry
    own = find(entry.anchors, here.host.id, metric.name)
    notes = _reason(entry, here.host.id) if own is None else (*_loosened(metric, own), *_reason(entry, here.host.id))
    if own is None:
        return AnchorState(notes=(*notes, *_of_other_hosts(metric, entry)))
    if not is_since(own, entry):
        return AnchorState(notes=notes)
    other = incompatible(own.of, here)
    if other:
        text = f"{metric.name}: no drift is judged, its anchor cannot be compared: {'; '.join(other)}"
        return AnchorState(notes=(*notes, Reason(ReasonKind.NO_DRIFT, text)))
    if now is None or is_as_fast(yardstick_of(own.of.yardstick), now):
        return AnchorState(own, notes)
    text = f"{metric.name}: {why_other_than_anchor(own.of.yardstick, now)}"
    other_machine = Reason(ReasonKind.MACHINE_SPEED, text)
    # Where the anchor's code is that of the baseline, its commit was asked already.
    return AnchorState(None if is_of(own.of, entry) else own, notes, other_machine)


def _of_other_hosts(metric: Metric, entry: Entry) -> tuple[Reason, ...]:
    hosts = [
        anchor.host.id
        for anchor in entry.anchors
        if not is_of(anchor, entry) and any(line.metric == metric.name for line in anchor.metrics)
    ]
    if not hosts:
        return ()
    others = ", ".join(map(repr, hosts))
    text = f"{metric.name}: no drift is judged, its anchor was measured on {others}, not here"
    return (Reason(ReasonKind.NO_DRIFT, text),)


def against_anchor(
    metric: Metric,
    anchored: Anchored,
    stored: Stored,
    sessions: Iterable[Session],
    now: Yardstick | None,
    *,
    here: RunEnvironment,
    tolerance: float,
) -> AnchorResult | None:
    """Compare a run with an anchor; None where the run does not have the metric.

    Args:
        metric: Which.
        anchored: Its anchor.
        stored: The baseline, which has sessions that the anchor does not rest on.
        sessions: Of the run.
        now: How fast the machine is, which is as fast as the anchor's; None of a server that somebody else runs.
        here: The circumstances of the run.
        tolerance: Of the metric.
    """
    try:
        costs = [point(metric, session, tolerance).y for session in sessions]
    except NotMeasured:
        return None
    between = costs_here(metric, stored, here.host.id, now, tolerance)
    return judge_anchor(
        metric, point_of(metric, anchored.line), {here.occasion: costs}, between, most_growth=metric.growth(tolerance)
    )


def drifted(result: AnchorResult, anchored: Anchored) -> Judgement:
    """The judgement of a metric that has drifted from its anchor: REGRESSED, and why although it was never told."""
    value = format_value(anchored.line.value, result.metric.unit)
    text = (
        f"drift: the baseline here is the anchor, {value} accepted at {named(anchored.of)} on {anchored.of.at[:10]}."
        f" What has come since adds up to {format_change(result.change)}, in steps that were let pass one by one; the"
        f" tolerance is {format_fraction(result.metric.loss(result.evidence.most_growth))}"
    )
    # With changes on top of a commit it cannot be measured again.
    commit = anchored.of.commit or "" if anchored.of.clean else ""
    return result.judgement().because(Reason(ReasonKind.DRIFT, text, commit=commit[:SHOWN_DIGITS]))


def changes_since_anchor(anchor: AnchorRecord, here: RunEnvironment) -> tuple[str, ...]:
    """What else than the code is not as it was at an anchor of this host: packages, driver, settings."""
    names = sorted({*anchor.software, *here.software})
    return (
        *(
            f"{name} {anchor.software.get(name, 'absent')} -> {here.software.get(name, 'absent')}"
            for name in names
            if anchor.software.get(name) != here.software.get(name)
        ),
        *changes(msgspec.to_builtins(anchor.device), msgspec.to_builtins(here.device_record())),
        *changes(msgspec.to_builtins(anchor.host), msgspec.to_builtins(here.host_record()), HOST_RULES),
    )


def _loosened(metric: Metric, anchored: Anchored) -> tuple[Reason, ...]:
    if anchored.line.how != "loosened":
        return ()
    text = f"{metric.name} was loosened at {named(anchored.of)}: {anchored.line.reason}"
    return (Reason(ReasonKind.REMARK, text),)


def _reason(entry: Entry, host: str) -> tuple[Reason, ...]:
    """Why the newest sessions were accepted, where nobody else says it: no anchor of the host was loosened for it."""
    said = {
        line.reason
        for anchor in entry.anchors
        if anchor.host.id == host
        for line in anchor.metrics
        if line.how == "loosened"
    }
    if not entry.reason or entry.reason in said:
        return ()
    return (Reason(ReasonKind.REMARK, f"the baseline was recorded with the reason: {entry.reason}"),)


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
        tolerance = self._case.drift_tolerance(metric)
        here = self._case.paired_runner.here
        if measurement.is_paired and stored is not None and judgement.verdict is not Verdict.REGRESSED:
            found = anchor_state(metric, stored, here, measurement.known_yardstick)
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
        confirmation = self._decided[key]
        paired = None if confirmation is None else confirmation.paired
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
        confirmation = self._confirmation(measurement, drift.stored, drift.anchored.of)
        paired = self._asked(measurement, confirmation, drift.metric)
        if paired is None:
            assert confirmation.absent is not None
            return self._stored.final(measurement, drift.claim.because(confirmation.absent))
        if paired.verdict is Verdict.REGRESSED:
            self._decided[key] = confirmation
            # Why it was not enough stands with the verdict that counts.
            self._case.tell(measurement, drift.claim.overrule())
            counts = side_by_side(f"{drift.where} it is REGRESSED too, and that counts")
            return paired.because(counts, *drift.claim.reasons)
        unsettled = self._unsettled(drift, paired)
        if unsettled:
            return self._stored.final(measurement, drift.claim.because(*unsettled))
        del self._decided[key]
        # The question whether it is worse than its newest baseline has been answered before.
        text = f"{drift.metric.name} has drifted, but {drift.where} it is {paired.verdict}: not the code has"
        return drift.judgement.because(Reason(ReasonKind.NO_DRIFT, text))

    def _looked_for(self, measurement: Measurement, drift: Drift) -> Judgement:
        """The verdict on a machine on which the anchor's number tells nothing, so that only its commit can."""
        # As by the number, a drift is what has got worse by more than the tolerance.
        key = (measurement.run.label, drift.metric.name)
        why, paired, confirmation = self._why_alone(drift.metric), None, None
        if why is None:
            confirmation = self._confirmation(measurement, drift.stored, drift.anchored.of)
            paired = self._asked(measurement, confirmation, drift.metric)
            why = () if confirmation.absent is None else (confirmation.absent,)
        if paired is None:
            unjudged = Reason(ReasonKind.NO_DRIFT, "no drift is judged")
            return drift.judgement.because(unjudged, *drift.claim.reasons[:1], *why)
        found = f"{drift.where} it is {paired.verdict}"
        if not paired.verdict.passes and paired.verdict is not Verdict.REGRESSED:
            self._decided[key] = None
            return self._stored.final(
                measurement, drift.claim.because(side_by_side(f"not settled {found}"), *paired.reasons)
            )
        if paired.verdict is Verdict.REGRESSED and _is_beyond(paired):
            self._decided[key] = confirmation
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
            return (side_by_side(f"not settled {drift.where} either: {paired.verdict}"), *paired.reasons)
        changed = changes_since_anchor(drift.anchored.of, self._case.paired_runner.here)
        if not changed:
            return ()
        told = f"{drift.where} it is {paired.verdict}, but that cannot see what both sides share now"
        return (side_by_side(f"{told}: {'; '.join(changed)}"),)

    def _confirmation(self, measurement: Measurement, stored: Stored, anchor: AnchorRecord) -> Measurement:
        """The load once more, to be measured beside the anchor's commit; it notes why that cannot be."""
        run = measurement.run
        known = (run.label, anchor.commit)
        if known not in self._by_commit:
            confirmation = replace(
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
                confirmation.paired = self._made(self._stored.spec_of(measurement, stored), anchor)
            except Unconfirmed as problem:
                confirmation.absent = problem.reason
            self._by_commit[known] = confirmation
            self._case.loads.confirmations.append(confirmation)
        return self._by_commit[known]

    def _made(self, spec: PairedSpec, anchor: AnchorRecord) -> SideBySide:
        """Make the anchor's commit ready to be compared with."""
        if anchor.commit is None:
            raise Unconfirmed("the anchor names no commit that it could be settled against: it is of no git checkout")
        if not anchor.clean:
            raise Unconfirmed(
                f"the anchor was recorded with uncommitted changes on top of {named(anchor)}, which cannot be run again"
            )
        return pair_with_commit(
            self._case.paired_runner, spec, anchor.commit, called="the anchor's commit", what="the drift"
        )

    def _asked(self, measurement: Measurement, confirmation: Measurement, metric: Metric) -> Judgement | None:
        """What the anchor's commit says; None where it cannot be asked, which the confirmation notes."""
        if confirmation.absent is not None:
            return None
        try:
            paired = self._paired.settle(confirmation, metric)
        except BaseFailed as problem:
            # The comparison is kept for the time that it took.
            confirmation.absent = base_failed("the drift", problem)
            return None
        finally:
            measurement.interrupted = measurement.interrupted or confirmation.interrupted
        # Rounds of an earlier run may have decided it without another look.
        confirmation.show()
        confirmation.judgements[metric.name, paired.reference_kind] = paired
        return paired


def _is_beyond(judgement: Judgement) -> bool:
    """Whether it is worse by more than its tolerance, as far as the estimate goes."""
    change, tolerance = judgement.change, judgement.tolerance
    if change is None or tolerance is None:
        return True
    return (-change if judgement.metric.higher_is_better else change) > tolerance
