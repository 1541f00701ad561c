"""Reaches verdicts against a stored baseline: looks, measures more, looks again, and has its commit settle the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.comparison.baseline_store import comparability, differences
from pytest_gpuserve.comparison.context import NextLook
from pytest_gpuserve.comparison.paired import (
    Unconfirmed,
    base_failed,
    changes_since,
    make_confirmation,
    settled,
    unsettled_by,
)
from pytest_gpuserve.comparison.paired_runner import PairedSpec
from pytest_gpuserve.experiment.machine import as_fast, is_clearly_other, why_other
from pytest_gpuserve.experiment.pairing import BaseFailed
from pytest_gpuserve.gate.reason import Reason, ReasonKind
from pytest_gpuserve.gate.stored import LOOKS, SessionPoint, judge_stored, withstand_drift
from pytest_gpuserve.gate.verdict import Judgement, Verdict
from pytest_gpuserve.measure.points import NotMeasured, TooFewRequests, mean_sm_clock_mhz, point, pooled_value
from pytest_gpuserve.measure.rounds import OF_ONE_SERVER
from pytest_gpuserve.measure.work import unknown_work, unlike_work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.comparison.context import ComparisonContext
    from pytest_gpuserve.comparison.measurement import Measurement
    from pytest_gpuserve.comparison.paired import PairedComparison
    from pytest_gpuserve.gate.metric import Metric
    from pytest_gpuserve.measure.streams import Streams
    from pytest_gpuserve.measure.window import Session
    from pytest_gpuserve.measure.yardstick import Yardstick
    from pytest_gpuserve.store.baseline import Stored


def stored_judgement(
    metric: Metric,
    stored: Stored,
    sessions: Sequence[Session],
    *,
    host: str,
    tolerance: float,
) -> Judgement:
    """Judge the sessions of a run against those of a baseline of the same workload.

    Args:
        metric: What is judged.
        stored: The baseline.
        sessions: The run's, all of this host.
        host: This host.
        tolerance: How much worse it may be.
    """
    records = stored.entry.sessions
    try:
        then = [
            _session_point(metric, session, record.host.id, tolerance)
            for session, record in zip(stored.sessions, records, strict=True)
        ]
    except NotMeasured as problem:
        return Judgement.missing(metric, "baseline", Reason(problem.kind, f"the baseline does not have it: {problem}"))
    try:
        now = [_session_point(metric, session, host, tolerance) for session in sessions]
    except NotMeasured as problem:
        return not_measured(metric, problem)
    occasions: dict[str, list[float]] = {}
    for record, known in zip(records, then, strict=True):
        if record.host.id == host:
            occasions.setdefault(record.occasion, []).append(known.y)
    # A recording may have taken more sessions than a gate ever looks at.
    result = judge_stored(metric, then, now, most_growth=metric.growth(tolerance), looks=max(LOOKS, len(now)))
    return withstand_drift(result, occasions).judgement()


def undecided_at_another_speed(metric: Metric, stored: Stored, now: Yardstick, *, value: float | None) -> Judgement:
    """The judgement where the machine is not as fast as it was, or not known to be: the numbers decide nothing.

    Args:
        metric: What is judged.
        stored: The baseline.
        now: The run's yardstick.
        value: What was measured, for reading only; None where that is not known.
    """
    try:
        reference = pooled_value(metric, stored.sessions)
    except NotMeasured:
        reference = None
    return Judgement(
        metric,
        Verdict.INCONCLUSIVE,
        "baseline",
        value=value,
        reference=reference,
        reasons=(Reason(ReasonKind.MACHINE_SPEED, why_other(stored, now)),),
    )


def not_measured(metric: Metric, problem: NotMeasured) -> Judgement:
    """The judgement of a metric that a run does not have."""
    if isinstance(problem, TooFewRequests):
        # The measurement is sound, there is only too little of it.
        return Judgement(metric, Verdict.INCONCLUSIVE, "baseline", reasons=(problem.reason,))
    return Judgement.invalid(metric, "baseline", problem.reason)


def _streams(sessions: Sequence[Session]) -> list[Streams | None]:
    return [window.streams for session in sessions for window in session.windows]


def _session_point(metric: Metric, session: Session, host: str, tolerance: float) -> SessionPoint:
    reduced = point(metric, session, tolerance)
    return SessionPoint(host=host, y=reduced.y, u=reduced.u, starts=len(session.starts))


SHARED_CARD: Final = Reason(
    ReasonKind.NOT_SIDE_BY_SIDE,
    "not settled side by side with the baseline's commit, where both servers would share the card's memory; let them"
    " run by turns: @pytest.mark.gpuserve(one_at_a_time=True)",
)
"""Why a stored verdict stands alone."""

UNCLAIMED: Final = Reason(ReasonKind.UNCLAIMED, "better by the stored numbers alone, which is no claim about the code")
"""Why what is better for sure is a PASS."""


class StoredComparison:
    """Judges loads of one test by their baselines.

    Args:
        case: The test.
        paired: Who settles a verdict side by side.
    """

    def __init__(self, case: ComparisonContext, paired: PairedComparison) -> None:
        self._case = case
        self._paired = paired
        self._here = case.paired_runner.here
        self._policy = case.policy

    def settle(self, measurement: Measurement, metric: Metric, stored: Stored | None) -> Judgement:
        """Judge, and measure more until it is decided, or until there is a reason to stop.

        Raises:
            ServerFailed: The server could not be started.
            LoadFailed: The load engine failed.
        """
        # Of two servers on one card it is not known, so that to start them would be for nothing.
        separable = self._policy.one_at_a_time or metric.name not in OF_ONE_SERVER
        confirmed: Judgement | None = None

        def judged() -> tuple[Judgement, bool]:
            nonlocal confirmed
            judgement = self.judge(measurement, metric, stored)
            if separable and self._is_open(measurement, judgement, stored):
                assert stored is not None
                confirmed = self._confirmed(measurement, metric, stored, judgement)
                if confirmed is not None:
                    return confirmed, False
            judgement = self._unclaimed(judgement)
            # More sessions do not help a quantile that a single one has too few requests for, nor where the stored
            # numbers decide nothing.
            in_vain = judgement.value is None or (stored is not None and self.evidence(measurement, stored) is None)
            return judgement, judgement.verdict is Verdict.INCONCLUSIVE and not in_vain

        judgement = self._case.settle(
            measurement,
            judge=judged,
            next_look=lambda: next_session(measurement),
            take=lambda: self._take(measurement, stored),
        )
        if confirmed is not None:
            settled_here = confirmed.reference_kind == "against"
            return confirmed if settled_here else self._unless_shared(measurement, self._unclaimed(confirmed))
        unsettled = measurement.absent if separable else SHARED_CARD
        if unsettled and (judgement.has(ReasonKind.UNCLAIMED) or self._is_open(measurement, judgement, stored)):
            judgement = judgement.because(unsettled)
            if unsettled.kind is ReasonKind.NOT_COMMITTED and judgement.verdict.is_claim:
                # It has to be committed first, with the code that it may be the number of.
                judgement = replace(judgement, verdict=judgement.verdict.without_claim)
        return self._unless_shared(measurement, self._noted(measurement, judgement, stored))

    def _take(self, measurement: Measurement, stored: Stored | None) -> None:
        """Measure another session, alone on the machine."""
        if measurement.paired is not None:
            measurement.paired.stop_load()
        clock_mhz = self.clock_mhz(measurement, stored)
        measurement.take(self._case.requests_wanted, self._policy.foreign_cores, clock_mhz)

    def _noted(self, measurement: Measurement, judgement: Judgement, stored: Stored | None) -> Judgement:
        """The same with what is to be said of the circumstances."""
        if stored is None or judgement.verdict in {Verdict.MISSING, Verdict.INVALID}:
            return judgement
        unsettled = judgement.verdict is Verdict.INCONCLUSIVE and self._policy.confirm
        if unsettled and self.evidence(measurement, stored) is not None:
            judgement = judgement.because(*unsettled_by(changes_since(stored, self._here)))
        return judgement.because(*self._warnings(stored))

    def _warnings(self, stored: Stored) -> list[Reason]:
        accepted = stored.entry.reason
        said = [f"the baseline was recorded with the reason: {accepted}"] if accepted else []
        return [Reason(ReasonKind.REMARK, text) for text in (*comparability(stored, self._here).warnings, *said)]

    def judge(self, measurement: Measurement, metric: Metric, stored: Stored | None) -> Judgement:
        """Judge what has been measured so far."""
        run = measurement.run
        if run.invalid:
            return Judgement.invalid(metric, "baseline", *run.invalid, value=measurement.value(metric))
        absent = self.absent(measurement, stored)
        if absent or stored is None:
            return Judgement.missing(metric, "baseline", *absent, value=measurement.value(metric))
        evidence = self.evidence(measurement, stored)
        if evidence is None and self.is_foreign(measurement, stored):
            hosts = ", ".join(map(repr, dict.fromkeys(record.host.id for record in stored.entry.sessions)))
            text = f"the baseline was only recorded on {hosts}, this host is {self._here.host.id!r}"
            reason = Reason(ReasonKind.OTHER_HOST, text)
            return Judgement.missing(metric, "baseline", reason, value=measurement.value(metric))
        if evidence is None:
            return undecided_at_another_speed(metric, stored, measurement.yardstick, value=measurement.value(metric))
        streams = (_streams(evidence.sessions), _streams(run.sessions)) if metric.is_of_requests else ((), ())
        unlike = unlike_work(*streams)
        if unlike is not None:
            # What is recorded anew may do another work.
            verdict = Judgement.missing if self._policy.record_all else Judgement.invalid
            return verdict(metric, "baseline", unlike, value=measurement.value(metric))
        return stored_judgement(
            metric,
            evidence,
            run.sessions,
            host=self._here.host.id,
            tolerance=self._case.tolerance_of(metric),
        ).because(*unknown_work(*streams))

    def evidence(self, measurement: Measurement, stored: Stored) -> Stored | None:
        """What of a baseline was recorded by a machine as fast as this one is now; None where nothing was.

        Of a server that somebody else runs the machine is not this one, and nobody knows how fast it is.
        """
        now = measurement.known_yardstick
        found = stored if now is None else as_fast(stored, now)
        if found is None or self._knows_host(found) or not self._knows_host(stored):
            return found
        # Of this host only slower or faster hours were recorded: another one's tell less than its own commit does.
        return None

    def _knows_host(self, stored: Stored) -> bool:
        return any(record.host.id == self._here.host.id for record in stored.entry.sessions)

    def measure_alone(self, measurement: Measurement) -> None:
        """Measure a session of a load that has only been measured beside its baseline's commit.

        Limits and printed numbers are about a server that has the machine for itself.

        Raises:
            ServerFailed: The server could not be started.
            LoadFailed: The load engine failed.
        """
        if not measurement.is_paired:
            return
        self._case.loads.stop_loads()
        measurement.is_paired = False
        measurement.run.sessions.clear()
        self._case.announce(next_session(measurement))
        measurement.take(self._case.requests_wanted, self._policy.foreign_cores)

    def needs_pair(self, measurement: Measurement, stored: Stored) -> bool:
        """Whether a load can be judged beside its baseline's commit alone, and is to be, before it is measured."""
        if not self._policy.confirm or not measurement.python or self.absent(measurement, stored):
            return False
        # Where the test says when a start ends, it may count what was measured by then.
        if measurement.shape.requests is not None or measurement.shape.until is not None:
            return False
        measurement.read_machine()
        return is_clearly_other(stored, measurement.yardstick)

    def absent(self, measurement: Measurement, stored: Stored | None) -> tuple[Reason, ...]:
        """Why there is nothing to compare with; empty if there is."""
        key = measurement.baseline_key
        if stored is None:
            return (Reason(ReasonKind.NO_ENTRY, f"{key.path} has no entry {key.entry!r}", about=str(key.path)),)
        recorded_on = stored.entry.sessions[-1].device.name
        if recorded_on != self._here.device.name:
            return _not_comparable(f"{key.path} was recorded on {recorded_on}, this device is {self._here.device.name}")
        incompatible = comparability(stored, self._here).incompatible
        if incompatible:
            what = f"{key.path} was recorded on a device that cannot be compared with this one"
            return _not_comparable(what, *incompatible)
        different = differences(stored.entry.workload, measurement.workload.must_match)
        if different:
            what = f"{key.path} has another workload under {key.entry!r}"
            return (Reason(ReasonKind.NOT_COMPARABLE, what, about=str(key.path)), *_not_comparable(*different))
        return ()

    def clock_mhz(self, measurement: Measurement, stored: Stored | None) -> float | None:
        """The mean SM clock that a comparable baseline was recorded with; None where there is none."""
        if stored is None or self.absent(measurement, stored):
            return None
        return mean_sm_clock_mhz(stored.sessions)

    def is_foreign(self, measurement: Measurement, stored: Stored | None) -> bool:
        """Whether the baseline fits but for the host: only others recorded it."""
        return (
            stored is not None
            and not self.absent(measurement, stored)
            and all(record.host.id != self._here.host.id for record in stored.entry.sessions)
        )

    def spec_of(self, measurement: Measurement, stored: Stored | None) -> PairedSpec:
        """Describe a load that is to be compared side by side.

        Args:
            measurement: The load.
            stored: Its baseline, which tells how far starts lie apart where it can be compared with.
        """
        return PairedSpec(
            nodeid=self._case.nodeid,
            label=measurement.run.label,
            candidate=measurement.target,
            shape=measurement.shape,
            workload=measurement.workload.must_match,
            requests_wanted=self._case.requests_wanted,
            by_turns=self._policy.one_at_a_time,
            foreign_cores=self._policy.foreign_cores,
            stored=None if self.absent(measurement, stored) else stored,
            goes_on=self._case.goes_on,
        )

    def shared(self, measurement: Measurement) -> Reason | None:
        """Who else used the host while this was measured, if that was too much; else None."""
        taken = measurement.foreign_cores
        if taken <= self._policy.foreign_cores:
            return None
        return Reason(
            ReasonKind.HOST_SHARED,
            f"the host was shared: others took {taken:.2f} of its {self._here.host.cores} cores while a start was"
            f" measured, {self._policy.foreign_cores:.2f} are allowed (ini gpuserve_foreign_cores)",
        )

    # -- settling it side by side

    def _is_open(self, measurement: Measurement, judgement: Judgement, stored: Stored | None) -> bool:
        """Whether the baseline's commit, side by side, should have the last word."""
        if not self._policy.confirm or stored is None:
            return False
        if judgement.verdict is Verdict.MISSING:
            return self.is_foreign(measurement, stored)
        if judgement.verdict is Verdict.INCONCLUSIVE:
            if self.evidence(measurement, stored) is None:
                return True
            # Where packages have changed its commit cannot settle it, for both sides would have the new ones.
            return judgement.value is not None and not changes_since(stored, self._here)
        return judgement.verdict in {Verdict.REGRESSED, Verdict.IMPROVED}

    def _confirmed(
        self, measurement: Measurement, metric: Metric, stored: Stored, judgement: Judgement
    ) -> Judgement | None:
        """The verdict after the baseline's commit was asked; None where it cannot be, which the measurement notes."""
        if measurement.absent:
            return None
        # What was measured alone stays the run: further metrics are judged by it, as the baseline was measured alone.
        alone = list(measurement.run.sessions)
        try:
            if measurement.paired is None:
                measurement.paired = make_confirmation(
                    self._case.paired_runner, self.spec_of(measurement, stored), stored, measurement.baseline_key
                )
            paired = self._paired.settle(measurement, metric)
        except Unconfirmed as problem:
            measurement.absent = problem.reason
            return None
        except BaseFailed as problem:
            # The comparison is kept for the time that it took.
            measurement.absent = base_failed("it", problem)
            return None
        finally:
            if not measurement.is_paired:
                measurement.run.sessions[:] = alone
        decides = self.evidence(measurement, stored) is not None
        if judgement.verdict is not Verdict.MISSING and decides:
            # Why it was not enough stands with the verdict that counts.
            self._case.tell(measurement, judgement.overrule())
        self._case.tell(measurement, paired)
        return settled(judgement, paired, changes_since(stored, self._here), decides=decides)

    # -- what holds a verdict back

    def _unclaimed(self, judgement: Judgement) -> Judgement:
        """That a build is better is not said by a stored number alone where its commit is to settle that."""
        if judgement.verdict is not Verdict.IMPROVED or not self._policy.confirm:
            return judgement
        return replace(judgement, verdict=judgement.verdict.without_claim).because(UNCLAIMED)

    def _unless_shared(self, measurement: Measurement, judgement: Judgement) -> Judgement:
        """A build is not called worse or better for what others did; that it passed in spite of them stands."""
        shared = self.shared(measurement)
        if shared and judgement.verdict is Verdict.INCONCLUSIVE:
            return judgement.because(shared)
        theirs = {Verdict.REGRESSED, Verdict.IMPROVED}
        # A server that is kept waiting batches better.
        if judgement.metric.name == "batching_ratio":
            theirs.add(Verdict.PASS)
        if shared and judgement.verdict in theirs:
            return replace(judgement, verdict=Verdict.INVALID, reasons=(shared,))
        return judgement


def next_session(measurement: Measurement) -> NextLook:
    """The next look at a load that is measured alone."""
    sessions = len(measurement.run.sessions)
    return NextLook(
        "session",
        number=sessions + 1,
        most=LOOKS,
        taken=sessions,
        is_beyond=sessions >= LOOKS,
        # Sessions that were kept from an earlier try cost this one nothing.
        seconds=measurement.seconds / max(1, measurement.taken),
        is_kept=False,
    )


def _not_comparable(*texts: str) -> tuple[Reason, ...]:
    return tuple(Reason(ReasonKind.NOT_COMPARABLE, text) for text in texts)
