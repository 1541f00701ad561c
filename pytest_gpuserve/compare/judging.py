"""The gate of one test: measures what it loads, answers its comparisons, and tells what changed with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuserve.compare.assertions import Comparison, Duel, Run
from pytest_gpuserve.compare.context import (
    ComparisonContext,
    Look,
    TestMeasurements,
    ignore_look,
    waits_for_nobody,
)
from pytest_gpuserve.compare.first_looks import FirstLooks
from pytest_gpuserve.compare.numbers import judge_limit
from pytest_gpuserve.compare.paired import PairedComparison
from pytest_gpuserve.compare.recording import Recorder
from pytest_gpuserve.compare.screen import BaselineComparison
from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.experiment.pairing import BaseFailed
from pytest_gpuserve.measure.breakdown import profile_of
from pytest_gpuserve.measure.counters import moved
from pytest_gpuserve.measure.points import NotMeasured, mean_value
from pytest_gpuserve.measure.window import Client
from pytest_gpuserve.report.attribution import attribution
from pytest_gpuserve.verdict.metric import METRICS
from pytest_gpuserve.verdict.reason import Reason, ReasonKind
from pytest_gpuserve.verdict.verdict import Judgement, ReferenceKind, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpuserve.compare.baseline_store import BaselineStore
    from pytest_gpuserve.compare.context import Policy
    from pytest_gpuserve.compare.measurement import Measurement
    from pytest_gpuserve.compare.paired_runner import PairedRunner
    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.experiment.shape import LoadShape
    from pytest_gpuserve.measure.window import Session
    from pytest_gpuserve.verdict.metric import Metric


class TestGate:
    """The judge of one test.

    Args:
        nodeid: The test.
        baseline_store: The baselines of the device.
        paired_runner: Where builds are compared side by side.
        policy: What verdicts mean.
        tolerance_of: The tolerance of each metric, as the test states it.
        earlier: The judge of an earlier try of the same test, whose sessions are kept: a retry is more data under the
            same question, never another chance.
        on_look: Hears of every look before it is taken.
        may_wait: As for `ComparisonContext`.

    Attributes:
        waits: Whether the test ended before it was decided, and is to run again on the next start of its servers.
    """

    # Not a test class, whatever its name looks like to pytest.
    __test__ = False

    def __init__(
        self,
        nodeid: str,
        *,
        baseline_store: BaselineStore,
        paired_runner: PairedRunner,
        policy: Policy,
        tolerance_of: Callable[[Metric], float],
        on_look: Callable[[Look], None] = ignore_look,
        earlier: TestGate | None = None,
        may_wait: Callable[[], bool] = waits_for_nobody,
    ) -> None:
        self.nodeid = nodeid
        self.waits = False
        self._may_wait = may_wait
        waited = None if earlier is None or not earlier.waits else earlier
        self._loads: TestMeasurements = TestMeasurements(
            always_paired=paired_runner.against is not None,
            spent_before=0.0 if waited is None else waited._loads.spent_seconds(),  # noqa: SLF001 -- of the same class
        )
        self._case = ComparisonContext(
            nodeid=nodeid,
            baseline_store=baseline_store,
            paired_runner=paired_runner,
            policy=policy,
            tolerance_of=tolerance_of,
            on_look=on_look,
            loads=self._loads,
            may_wait=self._ask_to_wait,
            goes_on=waited is not None,
        )
        self._paired = PairedComparison(self._case)
        self._baselines = BaselineComparison(self._case, self._paired)
        self._recorder = Recorder(self._case, self._baselines)
        self._first_looks = FirstLooks(
            self._case,
            self,
            self._baselines,
            self._recorder,
            earlier=None if earlier is None else earlier._loads,  # noqa: SLF001 -- of the same class
        )
        self._skips: list[str] = []
        self._unheld: list[Judgement] = []

    def _ask_to_wait(self) -> bool:
        self.waits = self._may_wait()
        return self.waits

    def close(self) -> None:
        """End the loads that a comparison side by side has left running for its next look."""
        self._loads.stop_loads()

    # -- measuring

    def measure(self, target: Target, shape: LoadShape, name: str | None) -> Run:
        """Take the first look at a load; a recording takes all its sessions.

        Raises:
            UsageProblem: Another load of this test has that name.
            ServerFailed: The server could not be started.
            LoadFailed: The load engine failed.
            BaselineUnusable: The baseline file cannot be read or trusted; found before anything is measured.
        """
        return self._first_looks.of_load(target, shape, name)

    def duel(self, target: Target, opponent: Target, shape: LoadShape, name: str | None) -> Duel:
        """Take the first look at two servers side by side.

        Raises:
            UsageProblem: Another load of this test has that name.
            ServerFailed: A server could not be started.
            LoadFailed: The load engine failed.
        """
        return Duel(self._first_looks.of_duel(target, opponent, shape, name), self)

    @property
    def measurements(self) -> list[Measurement]:
        """The loads, in the order in which the test asked for them."""
        return self._loads.measurements

    # -- comparing

    def against_baseline(self, run: Run, metric: Metric) -> Comparison:
        """See ``assertions.Judge``."""
        if self._loads.is_duel(run):
            raise UsageProblem(
                "a duel has no baseline: its servers are compared with each other",
                remedies=[
                    "compare the ratios with numbers: duel.throughput >= 1.05",
                    "gate each server with load(...)",
                ],
            )
        measurement = self._loads.of(run)
        measurement.compared = True
        stored = self._case.baseline_store.find(measurement.baseline_key)
        if self._case.paired_runner.against is not None:
            judgement = self._against(measurement, metric)
        elif self._recorder.wants(stored):
            judgement = self._recorder.judge(measurement, metric, stored)
            self._answer(measurement, judgement, "baseline")
            return self._comparison(judgement, holds=self._recorder.may(judgement))
        else:
            judgement = self._baselines.settle(measurement, metric, stored)
        self._answer(measurement, judgement, "baseline")
        if self._is_skipped(judgement):
            return self._skipped(judgement)
        return self._comparison(judgement, holds=judgement.verdict.passes)

    def _against(self, measurement: Measurement, metric: Metric) -> Judgement:
        # A base that could not be started once is not tried again for each metric.
        if measurement.absent is None:
            try:
                return self._paired.settle(measurement, metric)
            except BaseFailed as problem:
                measurement.absent = Reason(ReasonKind.NOT_SIDE_BY_SIDE, str(problem))
        return Judgement.missing(metric, "against", measurement.absent, value=measurement.value(metric))

    def against_limit(self, run: Run, metric: Metric, limit: float) -> Comparison:
        """See ``assertions.Judge``; the value is that of all that was measured, pooled."""
        measurement = self._loads.of(run)
        self._baselines.measure_alone(measurement)
        tolerance, rounds = self._case.tolerance_of(metric), self._loads.rounds_of(measurement)
        judgement = judge_limit(measurement, metric, limit, tolerance=tolerance, rounds=rounds)
        self._answer(measurement, judgement, "limit")
        return self._comparison(judgement, holds=judgement.verdict.passes)

    def against_ratio(self, run: Run, metric: Metric, limit: float) -> Comparison:
        """See ``assertions.Judge``."""
        measurement = self._loads.of(run)
        judgement = self._paired.settle_ratio(measurement, metric, limit)
        self._answer(measurement, judgement, "duel")
        if judgement.verdict is Verdict.INCONCLUSIVE and self._case.policy.skip_inconclusive:
            return self._skipped(judgement)
        return self._comparison(judgement, holds=judgement.verdict.passes)

    def _is_skipped(self, judgement: Judgement) -> bool:
        policy = self._case.policy
        if judgement.verdict is Verdict.INCONCLUSIVE:
            return policy.skip_inconclusive
        return judgement.verdict is Verdict.MISSING and policy.skip_missing

    def _skipped(self, judgement: Judgement) -> Comparison:
        """Go on with the rest of the test: what it finds must not hide behind this."""
        self._skips.append(f"{judgement.verdict}: {'; '.join(map(str, judgement.reasons))}")
        return Comparison(judgement, holds=True)

    def _comparison(self, judgement: Judgement, *, holds: bool) -> Comparison:
        if not holds:
            self._unheld.append(judgement)
        return Comparison(judgement, holds=holds)

    def _answer(self, measurement: Measurement, judgement: Judgement, asked: ReferenceKind) -> None:
        """Keep an answer, and tell it."""
        measurement.answers[judgement.metric.name, asked] = judgement
        self._case.tell(measurement, judgement)

    # -- telling what came of it

    def judgement(self, run: Run, metric: Metric, kind: ReferenceKind) -> Judgement:
        """The last answer to a comparison with a baseline, a limit or a duel's opponent, for its explanation."""
        return self._loads.of(run).answers[metric.name, kind]

    def compared(self, run: Run, judgement: Judgement) -> tuple[Sequence[Session], Sequence[Session]]:
        """The sessions that a judgement compared: the reference's and the run's; none where nothing was compared."""
        measurement = self._loads.of(run)
        if judgement.reference_kind in {"against", "duel"} and measurement.paired is not None:
            return measurement.paired.sessions("base"), measurement.paired.sessions("candidate")
        stored = self._case.baseline_store.find(measurement.baseline_key)
        if stored is None or measurement.run.invalid or judgement.reference_kind != "baseline":
            return (), ()
        usable = self._baselines.usable(measurement, stored).sessions
        # What a host of another speed did moved with the host.
        return ([session for _, session in usable], measurement.run.sessions) if usable else ((), ())

    def unjudged_problems(self) -> list[str]:
        """Problems of runs of which no comparison has spoken; a test must not pass over them.

        Asked after ``close``, it knows of those too that showed only at the servers' end.
        """
        return self._loads.unjudged_problems()

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
        if self._case.paired_runner.against is not None:
            return written
        return [*written, *self._recorder.proposals(self.measurements)]


def other_changes(metric: Metric, before: Sequence[Session], after: Sequence[Session]) -> Mapping[str, float]:
    """How all metrics but one stand against what they were before, as plain fractions; without those unmeasured."""
    changes = {}
    for other in METRICS.values():
        try:
            change = mean_value(other, after) / mean_value(other, before) - 1
        except NotMeasured:
            continue
        if other != metric:
            changes[other.name] = change
    return changes


def attributed(before: Sequence[Session], after: Sequence[Session]) -> list[str]:
    """Which settings and which part of the server's time moved, in lines; empty where nothing was compared."""
    windows = [[window for session in sessions for window in session.windows] for sessions in (before, after)]
    if not all(windows) or not all(any(window.requests for window in side) for side in windows):
        return []
    clients = [Client.pooled(session.client for session in sessions) for sessions in (before, after)]
    settings = [
        next((start.settings for session in reversed(sessions) for start in session.starts if start.settings), {})
        for sessions in (before, after)
    ]
    return [
        *moved(*settings),
        *attribution(profile_of(windows[0], clients[0]), profile_of(windows[1], clients[1])),
    ]
