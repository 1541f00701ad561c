"""Shared context of one test's comparisons: its loads, its budget, what verdicts mean, and the loop of looks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pytest_gpuserve.load.validity import late_share_within
from pytest_gpuserve.verdict.metric import METRICS, requests_needed
from pytest_gpuserve.verdict.reason import Reason, ReasonKind
from pytest_gpuserve.verdict.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpuserve.compare.assertions import Run
    from pytest_gpuserve.compare.baseline_store import BaselineStore
    from pytest_gpuserve.compare.measurement import Measurement
    from pytest_gpuserve.compare.paired_runner import PairedRunner
    from pytest_gpuserve.measure.rounds import Round
    from pytest_gpuserve.verdict.metric import Metric
    from pytest_gpuserve.verdict.verdict import Judgement


class TestMeasurements:
    """The loads of one test, which measure one after the other.

    Args:
        always_paired: Whether each of them is measured beside a base.
        spent_before: Seconds that the test has measured on earlier starts, where it goes on with them.

    Attributes:
        measurements: Those that the test asked for, in that order.
        duels: Runs that are one server's against another's.
    """

    def __init__(self, *, always_paired: bool, spent_before: float = 0.0) -> None:
        self.measurements: list[Measurement] = []
        self.duels: list[Run] = []
        self._always_paired = always_paired
        self._spent_before = spent_before

    def of(self, run: Run) -> Measurement:
        """The load that the test holds as this run."""
        return next(measurement for measurement in self.measurements if measurement.run is run)

    def is_duel(self, run: Run) -> bool:
        """Whether a run is one server's against another's."""
        return any(run is one for one in self.duels)

    def spent_seconds(self) -> float:
        """What the test has measured so far."""
        return self._spent_before + sum(measurement.all_seconds for measurement in self.measurements)

    def stop_other_loads(self, measurement: Measurement) -> None:
        """End all other loads, before more of one is measured."""
        for other in self.measurements:
            if other is not measurement:
                self._stop(other)

    def stop_loads(self) -> None:
        """End the loads that a comparison side by side has left running for its next look."""
        for measurement in self.measurements:
            self._stop(measurement)

    def _stop(self, measurement: Measurement) -> None:
        if measurement.paired is not None:
            measurement.paired.stop_load()
        if self.rounds_of(measurement):
            # Some trouble shows only at its end, or that of its servers.
            measurement.show()

    def rounds_of(self, measurement: Measurement) -> Sequence[Round]:
        """The rounds that are the run; none where it was measured alone, whatever had to confirm it."""
        beside = self._always_paired or measurement.is_paired or self.is_duel(measurement.run)
        return measurement.paired.rounds if beside and measurement.paired is not None else ()

    def unjudged_problems(self) -> list[str]:
        """Problems of runs of which no comparison has spoken.

        Of a run that Ctrl-C cut short nobody has to be told: the test has no outcome.
        """
        return [
            problem
            for measurement in self.measurements
            if not measurement.interrupted
            and not any(judgement.verdict is Verdict.INVALID for judgement in measurement.judgements.values())
            for problem in dict.fromkeys(map(str, _problems(measurement)))
        ]


def _problems(measurement: Measurement) -> tuple[Reason, ...]:
    paired = () if measurement.paired is None else measurement.paired.problems
    return (*measurement.run.invalid, *paired)


@dataclass(frozen=True, slots=True)
class Policy:
    """What a verdict means for a test.

    Args:
        record_new: Whether loads without a baseline are recorded.
        record_all: Whether loads with one are recorded too.
        record_sessions: Sessions that a recording takes.
        reason: Why a recording may loosen a metric.
        skip_missing: Whether a missing baseline skips.
        skip_inconclusive: Whether a verdict that could not be reached skips.
        budget_seconds: Most measuring time of one test.
        foreign_cores: Cores that others may take while we measure, before a change is theirs rather than the build's.
        stored_only: Whether nothing is measured side by side with the base commit.
        one_at_a_time: Whether two servers of the test do not fit into memory together.
        named: Metrics to which a marker of the test gives a tolerance.
    """

    record_new: bool
    record_all: bool
    record_sessions: int
    reason: str | None
    skip_missing: bool
    skip_inconclusive: bool
    budget_seconds: float
    foreign_cores: float
    stored_only: bool
    one_at_a_time: bool
    named: frozenset[str]


@dataclass(frozen=True, slots=True)
class Look:
    """A look that is about to be taken.

    Args:
        unit: What is measured for it.
        number: Which, from 1.
        most: How many there are at most.
        judgement: What the last look said of the metric that is being decided; None before there was one.
        left_seconds: Of the test's budget, before it; None where there is none, as for a recording.
    """

    unit: Literal["session", "round"]
    number: int
    most: int
    judgement: Judgement | None = None
    left_seconds: float | None = None

    def __str__(self) -> str:
        """``round 2 of 8``."""
        return f"{self.unit} {self.number} of {max(self.number, self.most)}"


def ignore_look(look: Look) -> None:
    """Where nobody watches."""


class WaitsForStart(BaseException):
    """A comparison is not decided, and goes on when the servers are started again, for other tests too.

    It ends the test's function, which then runs once more; no ``except Exception`` of the test is meant to stop it.
    """


def waits_for_nobody() -> bool:
    """Where no other test shares the servers, each comparison is decided at once."""
    return False


@dataclass(frozen=True, slots=True)
class NextLook:
    """The look that would come next.

    Args:
        unit: What is measured for it.
        number: Which, from 1.
        most: How many there are at most.
        taken: Sessions or rounds so far.
        is_beyond: Whether the last look was taken already.
        seconds: How long it takes, as far as that is known.
        is_kept: Whether a re-run goes on where this run ends.
        wants_start: Whether it takes a fresh start of servers that loads of other tests could use too.
    """

    unit: Literal["session", "round"]
    number: int
    most: int
    taken: int
    is_beyond: bool
    seconds: float
    is_kept: bool
    wants_start: bool = False


@dataclass(frozen=True)
class ComparisonContext:
    """One test, as those know it who judge its loads.

    Args:
        nodeid: The test.
        baseline_store: The baselines of the device.
        paired_runner: Where builds are compared side by side.
        policy: What verdicts mean.
        tolerance_of: The tolerance of each metric, as the test states it.
        on_look: Hears of every look before it is taken.
        loads: The loads.
        may_wait: Asked where a comparison wants a fresh start: whether the test ends here, and runs again on it.
        goes_on: Whether the test has waited for a start, and runs again on it.
    """

    nodeid: str
    baseline_store: BaselineStore
    paired_runner: PairedRunner
    policy: Policy
    tolerance_of: Callable[[Metric], float]
    on_look: Callable[[Look], None]
    loads: TestMeasurements
    may_wait: Callable[[], bool] = waits_for_nobody
    goes_on: bool = False

    @property
    def requests_wanted(self) -> tuple[int, ...]:
        """Requests that each start should have for what the test may compare: a start has as many as it can of these.

        What that is shows only when it does. So it is taken to be the usual metrics, and those that a marker names.
        """
        # How many gaps a request has is not known before it.
        gated = (
            metric
            for name, metric in METRICS.items()
            if (name in self.policy.named or not metric.on_request) and metric.times != "itl"
        )
        return tuple(sorted({requests_needed(metric, self.tolerance_of(metric)) for metric in gated}))

    @property
    def late_share(self) -> float:
        """What the client may add to a load of the test: more where a marker names only wider tolerances."""
        return late_share_within(min((self.tolerance_of(METRICS[name]) for name in self.policy.named), default=0.0))

    @property
    def left_seconds(self) -> float:
        """Of the test's budget."""
        return self.policy.budget_seconds - self.loads.spent_seconds()

    def settle(
        self,
        measurement: Measurement,
        *,
        judge: Callable[[], tuple[Judgement, bool]],
        next_look: Callable[[], NextLook],
        take: Callable[[], None],
    ) -> Judgement:
        """Judge a load and measure to the next look, until it is decided or another look cannot be taken.

        Args:
            measurement: The load.
            judge: Judges what was measured so far, and says whether another look may change that.
            next_look: The look that would come next.
            take: Measures to that look.

        Raises:
            WaitsForStart: The look wants a fresh start, and the test is to wait for it.
        """
        while True:
            judgement, is_open = judge()
            if not is_open:
                return judgement
            following = next_look()
            stop = self.why_not(following)
            if stop is not None:
                return judgement.because(stop)
            if following.wants_start and self.may_wait():
                raise WaitsForStart
            self.loads.stop_other_loads(measurement)
            self.announce(following, judgement)
            take()

    def why_not(self, following: NextLook) -> Reason | None:
        """Why a look is not taken; None if it may be."""
        if following.is_beyond:
            text = f"not decided after {following.most} {following.unit}s, which is the last look"
            return Reason(ReasonKind.LAST_LOOK, text)
        # The first look is always taken: without it nothing is known at all.
        if not following.taken or following.seconds <= self.left_seconds:
            return None
        budget = self.policy.budget_seconds
        goes_on = ", or run it again: it goes on where this run ends" if following.is_kept else ""
        return Reason(
            ReasonKind.BUDGET_SPENT,
            f"not decided after {following.taken} {following.unit}{'s' if following.taken != 1 else ''}, and another of"
            f" about {following.seconds:.0f} s would exceed the test's budget of {budget:.0f} s; raise it with"
            f" --gpuserve-budget=SECONDS{goes_on}",
            seconds=budget,
        )

    def announce(self, following: NextLook, judgement: Judgement | None = None) -> None:
        """Tell that a look is about to be taken, with what the last one said."""
        self.on_look(Look(following.unit, following.number, following.most, judgement, self.left_seconds))

    def tell(self, measurement: Measurement, judgement: Judgement) -> None:
        """Keep a judgement of a load for reports.

        Args:
            measurement: What was judged.
            judgement: What came of it; it takes the place of an earlier one of its metric and kind of reference.
        """
        measurement.judgements[judgement.metric.name, judgement.reference_kind] = judgement
