"""The judge of one test: measures what it loads, and answers its comparisons."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuserve.errors import GpuserveError, UsageProblem
from pytest_gpuserve.gate.metric import METRICS, requests_needed
from pytest_gpuserve.gate.verdict import Judgement, ReferenceKind, Verdict
from pytest_gpuserve.servers.remote import Remote
from pytest_gpuserve.trial.afterwards import Afterwards
from pytest_gpuserve.trial.anchor_court import AnchorCourt
from pytest_gpuserve.trial.arena import Contest
from pytest_gpuserve.trial.assertions import Comparison, Run
from pytest_gpuserve.trial.dueling import Duel
from pytest_gpuserve.trial.limits import judge_limit
from pytest_gpuserve.trial.looks import Look, unwatched
from pytest_gpuserve.trial.measurement import Measurement
from pytest_gpuserve.trial.paired_court import PairedCourt
from pytest_gpuserve.trial.pairing import BaseFailed
from pytest_gpuserve.trial.published_verdict import judge_published
from pytest_gpuserve.trial.recording import Recorder
from pytest_gpuserve.trial.stored_court import StoredCourt
from pytest_gpuserve.trial.workloads import workload_of, workload_of_duel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpuserve.device.card import Card
    from pytest_gpuserve.gate.metric import Metric
    from pytest_gpuserve.measure.rounds import Round
    from pytest_gpuserve.measure.window import Session
    from pytest_gpuserve.store.baseline import Stored
    from pytest_gpuserve.store.published import PublishedEntry
    from pytest_gpuserve.trial.arena import Arena
    from pytest_gpuserve.trial.handle import Target
    from pytest_gpuserve.trial.ledger import Ledger, Workload
    from pytest_gpuserve.trial.opponents import Opponent
    from pytest_gpuserve.trial.policy import Policy
    from pytest_gpuserve.trial.shape import LoadShape
    from pytest_gpuserve.trial.watch import Progress


class TestJudge:
    """The judge of one test.

    Args:
        nodeid: The test.
        ledger: The baselines of the device.
        arena: Where builds are compared side by side.
        policy: What verdicts mean.
        tolerance_of: The tolerance of each metric.
        earlier: The judge of an earlier try of the same test, whose sessions are kept: a retry is more data under the
            same question, never another chance.
        told: Hears every judgement, with the label of its run.
        progress: Told how loads get on.
        looked: Hears of every look before it is taken.
        card: On which servers of this session run; None where there is none.

    Attributes:
        ended_early: Whether the test did not come to its end: reports then tell of what it did not come to as well.
    """

    # Not a test class, whatever its name looks like to pytest.
    __test__ = False

    def __init__(
        self,
        nodeid: str,
        *,
        ledger: Ledger,
        arena: Arena,
        policy: Policy,
        tolerance_of: Callable[[Metric], float],
        told: Callable[[str, Judgement], None],
        progress: Progress,
        looked: Callable[[Look], None] = unwatched,
        earlier: TestJudge | None = None,
        card: Card | None = None,
    ) -> None:
        self.nodeid = nodeid
        self._card = card
        self.measurements: list[Measurement] = []
        self._ledger = ledger
        self._arena = arena
        self._policy = policy
        self._told = told
        self._progress = progress
        self._looked = looked
        self._earlier = earlier
        self._recorder = Recorder(ledger, policy, tolerance_of)
        compared = [metric for name, metric in METRICS.items() if name in policy.metrics]
        self._requests_wanted = max(requests_needed(metric, tolerance_of(metric)) for metric in compared)
        self._tolerance_of = tolerance_of
        self._paired = PairedCourt(
            policy=policy,
            tolerance_of=tolerance_of,
            spent_seconds=self._spent_seconds,
            rest_others=self._rest_others,
            looked=looked,
        )
        self._stored = StoredCourt(
            arena=arena,
            paired=self._paired,
            policy=policy,
            tolerance_of=tolerance_of,
            contest_of=self._contest_of,
            spent_seconds=self._spent_seconds,
            tell=self._tell,
            requests_wanted=self._requests_wanted,
            looked=looked,
        )
        self._anchors = AnchorCourt(
            arena=arena,
            paired=self._paired,
            policy=policy,
            tolerance_of=tolerance_of,
            contest_of=self._contest_of,
            final=self._stored.final,
            tell=self._tell,
        )
        self._afterwards = Afterwards(
            arena=arena,
            ledger=ledger,
            recorder=self._recorder,
            stored=self._stored,
            tolerance_of=tolerance_of,
            metrics=policy.metrics,
        )
        self.ended_early = False
        self._duels: list[Run] = []
        self._skips: list[str] = []
        self._unheld: list[Judgement] = []

    def close(self) -> None:
        """End the servers that a comparison side by side has left running for its next look."""
        for measurement in self._all:
            self._rest(measurement)
        if self.ended_early:
            # Only now, for some trouble shows only at the servers' end.
            for measurement, judgement in self._afterwards.judgements(self.measurements):
                self._tell(measurement, judgement)

    # -- measuring

    def measure(self, target: Target, shape: LoadShape, name: str | None) -> Run:
        """Take the first look at a load; a recording takes all its sessions.

        Raises:
            UsageProblem: Another load of this test has that name.
            ServerFailed: The server could not be started.
            LoadFailed: The load engine failed.
            BaselineUnusable: The baseline file cannot be read or trusted; found before anything is measured.
        """
        measurement = self._added(target, shape, workload_of(target, shape), name)
        if self._arena.against is not None:
            self._begin_against(measurement, self._arena.against)
        if measurement.paired is None:
            self._take_sessions(measurement)
        return measurement.run

    def duel(self, target: Target, opponent: Target, shape: LoadShape, name: str | None) -> Duel:
        """Take the first look at two servers side by side.

        Raises:
            UsageProblem: Another load of this test has that name.
            ServerFailed: A server could not be started.
            LoadFailed: The load engine failed.
        """
        shape.check_payloads(len(opponent.requests))
        opponent.check_schedule(shape.schedule)
        measurement = self._added(target, shape, workload_of_duel(target, opponent, shape), name)
        self._duels.append(measurement.run)
        measurement.paired = self._arena.compare_servers(self._contest_of(measurement, None), opponent)
        self._look_first(measurement)
        return Duel(measurement.run, self)

    def _added(self, target: Target, shape: LoadShape, workload: Workload, name: str | None) -> Measurement:
        shape.check_payloads(len(target.requests))
        target.check_schedule(shape.schedule)
        label = name or ("" if not self.measurements else f"load {len(self.measurements) + 1}")
        if any(label == other.run.label for other in self.measurements):
            raise UsageProblem(
                f"two loads of this test are called {label!r}, and would share one baseline",
                remedies=["give each its own: load(..., name='...')"],
            )
        place = self._ledger.place(self.nodeid, label)
        # Of a server that was started elsewhere nobody knows on which card it runs.
        card = None if isinstance(target.server.kind, Remote) else self._card
        measurement = Measurement(
            Run(label, self, [], card, shape.schedule), target, shape, workload, place, self._progress
        )
        self._rest_others(measurement)
        self.measurements.append(measurement)
        return measurement

    def _take_sessions(self, measurement: Measurement) -> None:
        stored = self._ledger.find(measurement.place)
        wanted = self._recorder.wants(stored)
        # What is recorded anew may have other clocks.
        clock_mhz = None if wanted else self._stored.clock_mhz(measurement, stored)
        sessions = self._policy.record_sessions if wanted else 1
        measurement.run.sessions.extend(self._kept(measurement))
        while len(measurement.run.sessions) < sessions:
            if wanted:
                self._looked(Look("session", len(measurement.run.sessions) + 1, sessions))
            else:
                self._stored.tell_look(measurement)
            measurement.take(self._requests_wanted, self._policy.foreign_cores, clock_mhz)
            # What will not be recorded anyway need not be measured to its end.
            if measurement.run.problems or self._stored.shared(measurement):
                break

    def _begin_against(self, measurement: Measurement, against: Callable[[], Opponent]) -> None:
        """Compare with what was asked for; where it has no such server, the measurement notes why."""
        stored = self._ledger.find(measurement.place)
        try:
            measurement.paired = self._arena.compare_builds(self._contest_of(measurement, stored), against())
            self._look_first(measurement)
        except GpuserveError as problem:
            if measurement.paired is not None and not isinstance(problem, BaseFailed):
                raise
            measurement.paired, measurement.absent = None, str(problem)

    def _look_first(self, measurement: Measurement) -> None:
        assert measurement.paired is not None
        if measurement.paired.rounds:
            measurement.show()
        else:
            self._paired.tell_look(measurement.paired)
            measurement.look()

    def _contest_of(self, measurement: Measurement, stored: Stored | None) -> Contest:
        return Contest(
            nodeid=self.nodeid,
            label=measurement.run.label,
            candidate=measurement.target,
            shape=measurement.shape,
            workload=measurement.workload.must_match,
            requests_wanted=self._requests_wanted,
            by_turns=self._policy.one_at_a_time,
            foreign_cores=self._policy.foreign_cores,
            stored=None if self._stored.absent(measurement, stored) else stored,
        )

    @property
    def _all(self) -> list[Measurement]:
        """The loads, and those of them that were measured once more beside an anchor's commit."""
        return [*self.measurements, *self._anchors.confirmations]

    @property
    def reported(self) -> list[Measurement]:
        """The loads of which reports tell: these, and what was measured to settle what baselines say of them."""
        return [*self.measurements, *(each for each in self._anchors.confirmations if each.judgements)]

    def _spent_seconds(self) -> float:
        return sum(measurement.all_seconds for measurement in self._all)

    def _rest_others(self, measurement: Measurement) -> None:
        for other in self._all:
            if other is not measurement:
                self._rest(other)

    def _rest(self, measurement: Measurement) -> None:
        if measurement.paired is not None:
            measurement.paired.rest()
        if self._rounds_of(measurement):
            # Some trouble shows only at the servers' end.
            measurement.show()

    def _rounds_of(self, measurement: Measurement) -> Sequence[Round]:
        """The rounds that are the run; none where it was measured alone, whatever had to confirm it."""
        always = self._arena.against is not None or measurement.settles is not None
        beside = always or any(measurement.run is run for run in self._duels)
        return measurement.paired.rounds if beside and measurement.paired is not None else ()

    # -- comparing

    def against_baseline(self, run: Run, metric: Metric) -> Comparison:
        """See ``assertions.Judge``."""
        if any(run is one for one in self._duels):
            raise UsageProblem(
                "a duel has no baseline: its servers are compared with each other",
                remedies=[
                    "compare the ratios with numbers: duel.throughput >= 1.05",
                    "gate each server with load(...)",
                ],
            )
        measurement = self._measurement(run)
        measurement.compared = True
        stored = self._ledger.find(measurement.place)
        decider = None
        if self._arena.against is not None:
            judgement = self._against(measurement, metric)
        elif self._recorder.wants(stored):
            judged = self._stored.judge(measurement, metric, stored)
            judgement = self._recorder.judge(measurement, metric, stored, judged, self._stored.shared(measurement))
            self._answer(measurement, judgement, "baseline")
            return self._comparison(judgement, holds=self._recorder.may(judgement))
        else:
            judged = self._stored.settle(measurement, metric, stored)
            judgement = self._anchors.review(measurement, metric, stored, judged)
            decider = self._anchors.decider(measurement, metric)
        self._answer(measurement, judgement, "baseline", decider=decider)
        if judgement.verdict is Verdict.MISSING:
            self._tell_rest(measurement, judgement)
        if self._is_skipped(measurement, judgement, stored):
            # The rest of the test is still run: what it finds must not hide behind this.
            self._skips.append(f"{judgement.verdict}: {'; '.join(judgement.reasons)}")
            return Comparison(judgement, holds=True)
        return self._comparison(judgement, holds=judgement.verdict.passes)

    def _against(self, measurement: Measurement, metric: Metric) -> Judgement:
        # A base that could not be started once is not tried again for each metric.
        if measurement.paired is not None and not measurement.absent:
            try:
                return self._paired.settle(measurement, metric)
            except BaseFailed as problem:
                measurement.absent = str(problem)
        value = measurement.value(metric)
        return Judgement.missing(metric, "against", measurement.absent, value=value)

    def against_limit(self, run: Run, metric: Metric, limit: float) -> Comparison:
        """See ``assertions.Judge``; the value is that of all that was measured, pooled."""
        measurement = self._measurement(run)
        judgement = judge_limit(
            measurement,
            metric,
            limit,
            tolerance=self._tolerance_of(metric),
            rounds=self._rounds_of(measurement),
        )
        self._answer(measurement, judgement, "limit")
        return self._comparison(judgement, holds=judgement.verdict.passes)

    def against_published(self, run: Run, metric: Metric, entry: PublishedEntry) -> Comparison:
        """See ``assertions.Judge``; the value is that of all that was measured, pooled."""
        measurement = self._measurement(run)
        judgement = judge_published(
            measurement,
            metric,
            entry,
            tolerance=self._tolerance_of(metric),
            rounds=self._rounds_of(measurement),
        )
        # A test may compare one metric with several numbers: each has a row.
        self._answer(measurement, judgement, "published", row=f"published {entry.record.line}")
        return self._comparison(judgement, holds=judgement.verdict.passes)

    def against_ratio(self, run: Run, metric: Metric, limit: float) -> Comparison:
        """See ``dueling.DuelJudge``."""
        measurement = self._measurement(run)
        judgement = self._paired.settle_ratio(measurement, metric, limit)
        self._answer(measurement, judgement, "duel")
        if judgement.verdict is Verdict.INCONCLUSIVE and self._policy.skip_inconclusive:
            self._skips.append(f"{judgement.verdict}: {'; '.join(judgement.reasons)}")
            return Comparison(judgement, holds=True)
        return self._comparison(judgement, holds=judgement.verdict.passes)

    # -- telling what came of it

    def judgement(self, run: Run, metric: Metric, kind: ReferenceKind) -> Judgement:
        """The last answer to a comparison with a baseline, a limit or a duel's opponent, for its explanation."""
        return self._measurement(run).answers[metric.name, kind]

    def compared(self, run: Run, judgement: Judgement) -> tuple[Sequence[Session], Sequence[Session]]:
        """The sessions that a judgement compared: the reference's and the run's; none where nothing was compared."""
        measurement = self._measurement(run)
        by_anchor = self._anchors.compared(measurement, judgement.metric)
        if by_anchor is not None and judgement.reference_kind in {"baseline", "against"}:
            return by_anchor
        if judgement.reference_kind in {"against", "duel"} and measurement.paired is not None:
            return measurement.paired.sessions("base"), measurement.paired.sessions("candidate")
        stored = self._ledger.find(measurement.place)
        if stored is None or measurement.run.problems or judgement.reference_kind != "baseline":
            return (), ()
        return stored.sessions, measurement.run.sessions

    def unjudged_problems(self) -> list[str]:
        """Problems of runs of which no comparison has spoken; a test must not pass over them.

        Asked after ``close``, it knows of those too that showed only at the servers' end.

        Of a run that Ctrl-C cut short nobody has to be told: the test has no outcome.
        """
        return [
            problem
            for measurement in self._all
            if not measurement.interrupted
            and not any(
                judgement.verdict is Verdict.INVALID and judgement.asserted
                for judgement in measurement.judgements.values()
            )
            for problem in dict.fromkeys(
                (*measurement.run.problems, *(measurement.paired.problems if measurement.paired is not None else ()))
            )
        ]

    def unheld(self) -> list[Judgement]:
        """Comparisons that did not hold; a test that went on all the same has forgotten an ``assert``."""
        return list(self._unheld)

    def skip_reason(self) -> str:
        """Why the test, if nothing in it failed, is skipped rather than passed; empty if it is not."""
        return "; ".join(dict.fromkeys(self._skips))

    def record(self) -> list[str]:
        """Write the baselines of what this test compared, if this is a recording; says what was written, or could be.

        Raises:
            BaselineUnusable: A file cannot be read or written.
        """
        written = self._recorder.write(self.measurements)
        if self._arena.against is not None:
            return written
        here = [
            measurement
            for measurement in self.measurements
            if not self._stored.is_foreign(measurement, self._ledger.find(measurement.place))
        ]
        return [*written, *self._recorder.proposals(here, self.nodeid)]

    def _is_skipped(self, measurement: Measurement, judgement: Judgement, stored: Stored | None) -> bool:
        if judgement.verdict is Verdict.INCONCLUSIVE:
            return self._policy.skip_inconclusive
        if judgement.verdict is not Verdict.MISSING:
            return False
        foreign = judgement.reference_kind == "baseline" and self._stored.is_foreign(measurement, stored)
        return self._policy.skip_missing or (self._policy.skip_foreign and foreign)

    def _kept(self, measurement: Measurement) -> list[Session]:
        """Sound sessions of an earlier try of this test under the same load."""
        if self._earlier is None:
            return []
        for other in self._earlier.measurements:
            if other.place == measurement.place and other.workload.must_match == measurement.workload.must_match:
                return [session for session in other.run.sessions if not session.problems]
        return []

    def _comparison(self, judgement: Judgement, *, holds: bool) -> Comparison:
        if not holds:
            self._unheld.append(judgement)
        return Comparison(judgement, holds=holds)

    def _measurement(self, run: Run) -> Measurement:
        return next(measurement for measurement in self.measurements if measurement.run is run)

    def _answer(
        self,
        measurement: Measurement,
        judgement: Judgement,
        asked: ReferenceKind,
        *,
        row: str = "",
        decider: Measurement | None = None,
    ) -> None:
        """Keep an answer, and tell it of the load by whose samples it was decided: this one, if no other is given."""
        measurement.answers[judgement.metric.name, asked] = judgement
        self._tell(decider or measurement, judgement, row=row)

    def _tell(self, measurement: Measurement, judgement: Judgement, *, row: str = "") -> None:
        measurement.judgements[judgement.metric.name, row or judgement.reference_kind] = judgement
        self._told(measurement.run.label, judgement)

    def _tell_rest(self, measurement: Measurement, judgement: Judgement) -> None:
        """What is missing is the whole entry: it is missing for every usual metric, asked for or not yet."""
        kind = judgement.reference_kind
        for metric, value in measurement.known().items():
            if not metric.on_request and (metric.name, kind) not in measurement.judgements:
                self._tell(measurement, Judgement.missing(metric, kind, *judgement.reasons, value=value))
