"""The policy, loads and budget of one test, and the loop of looks at a load beside its base."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Literal

from pytest_gpuserve.load.validity import late_share_within
from pytest_gpuserve.verdict.metric import METRICS, requests_needed
from pytest_gpuserve.verdict.reason import Reason, ReasonKind
from pytest_gpuserve.verdict.sequential import LOOKS
from pytest_gpuserve.verdict.verdict import Judgement, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_gpuserve.compare.assertions import Run
    from pytest_gpuserve.compare.baseline_store import BaselineStore
    from pytest_gpuserve.compare.measurement import Measurement
    from pytest_gpuserve.compare.paired_runner import PairedRunner
    from pytest_gpuserve.compare.side_by_side import SideBySide
    from pytest_gpuserve.verdict.metric import Metric


@dataclass(frozen=True, slots=True)
class Policy:
    """Policy of a test: verdicts that fail, skip or record, its budget and its tolerances.

    Args:
        record_new: Whether loads without a baseline are recorded.
        record_all: Whether loads with one are recorded too.
        record_sessions: Sessions that a recording takes.
        reason: Why a recording may loosen a metric.
        skip_missing: Whether a missing baseline skips the test.
        skip_inconclusive: Whether an undecided verdict skips the test.
        budget_seconds: Most measuring time of one test.
        foreign_cores: Cores that others may take before they, not the build, explain a change.
        stored_only: Whether comparisons side by side with the base commit are forbidden.
        one_at_a_time: Whether two servers of the test do not fit into memory together.
        tolerances: Tolerances from a marker of the test, by the names of their metrics.
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
    tolerances: Mapping[str, float]

    def tolerance_of(self, metric: Metric) -> float:
        """The tolerance of a metric, as the test states it."""
        return self.tolerances.get(metric.name, metric.default_tolerance)

    @property
    def requests_wanted(self) -> tuple[int, ...]:
        """Requests that each start should have for what the test may compare: a start has as many as it can of these.

        The test shows its metrics only when it compares. So these are the usual metrics and those that a marker names.
        """
        # How many gaps a request has is not known before it.
        gated = (
            metric
            for name, metric in METRICS.items()
            if (name in self.tolerances or not metric.on_request) and metric.times != "itl"
        )
        return tuple(sorted({requests_needed(metric, self.tolerance_of(metric)) for metric in gated}))

    @property
    def late_share(self) -> float:
        """What the client may add to a load of the test: more where a marker names only wider tolerances."""
        return late_share_within(min((self.tolerance_of(METRICS[name]) for name in self.tolerances), default=0.0))


@dataclass(frozen=True, slots=True)
class Look:
    """A look that is about to be taken.

    Args:
        unit: The unit that is measured next.
        number: Number of the unit, from 1.
        most: Largest number of units.
        judgement: The last look's judgement of the undecided metric; None before the first look.
        left_seconds: Rest of the test's budget before this look; None without a budget, as in a recording.
    """

    unit: Literal["session", "round"]
    number: int
    most: int
    judgement: Judgement | None = None
    left_seconds: float | None = None

    def __str__(self) -> str:
        """``round 2 of 8``."""
        return f"{self.unit} {self.number} of {max(self.number, self.most)}"


class WaitsForStart(BaseException):
    """An undecided comparison waits for the next start of its servers, which other tests use too.

    It ends the test's function, which then runs once more. It must pass through ``except Exception`` of the test.
    """


@dataclass(eq=False)
class TestLoads:
    """The loads of one test, with their further measurement and its budget.

    Args:
        nodeid: The test.
        baseline_store: The baselines of the device.
        paired_runner: Makes comparisons side by side.
        policy: See there.
        on_look: Called with every look before it is taken.
        may_wait: Called when a comparison needs a fresh start: whether the test ends here, and runs again on it.
        earlier: Loads of an earlier try of the test, whose sessions are kept: a retry is more data for the same
            comparison, never another chance.

    Attributes:
        measurements: The test's loads, in order.
        waits: Whether the test ended undecided, to run again on the next start of its servers.
        goes_on: Whether the test has waited for a start, and runs again on it.
    """

    # Not a test class, although its name looks like one to pytest.
    __test__ = False

    nodeid: str
    _: KW_ONLY
    baseline_store: BaselineStore
    paired_runner: PairedRunner
    policy: Policy
    on_look: Callable[[Look], None]
    may_wait: Callable[[], bool]
    earlier: TestLoads | None = None
    measurements: list[Measurement] = field(default_factory=list, init=False)
    waits: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.here = self.paired_runner.here
        self.goes_on = self.earlier is not None and self.earlier.waits
        self._spent_before = self.earlier.spent_seconds() if self.earlier is not None and self.goes_on else 0.0

    def of(self, run: Run) -> Measurement:
        """The load with this run."""
        return next(measurement for measurement in self.measurements if measurement.run is run)

    def spent_seconds(self) -> float:
        """Measuring time of the test so far."""
        return self._spent_before + sum(measurement.all_seconds for measurement in self.measurements)

    def close(self, *, but: Measurement | None = None) -> None:
        """End the loads that comparisons side by side have left running for their next looks, except one."""
        for measurement in self.measurements:
            if measurement is but:
                continue
            if measurement.paired is not None:
                measurement.paired.stop_load()
            if measurement.rounds:
                # Some problems show only at its end, or that of its servers.
                measurement.show()

    @property
    def left_seconds(self) -> float:
        """Rest of the test's budget."""
        return self.policy.budget_seconds - self.spent_seconds()

    def settle_beside(self, measurement: Measurement, metric: Metric, *, limit: float | None = None) -> Judgement:
        """Judge a load beside its base and measure to the next look, until it is decided or must stop.

        Args:
            measurement: The load, with its comparison side by side.
            metric: Its metric.
            limit: Limit of the ratio to the base's value; None to judge the change by the metric's tolerance.

        Raises:
            WaitsForStart: The look needs a fresh start, and the test has to wait for it.
            BaseFailed: The base could not be started.
            ServerFailed: The server could not be started.
            LoadFailed: The load engine failed.
        """
        paired = measurement.paired
        assert paired is not None
        while True:
            if limit is None:
                judgement = paired.judge(metric, self.policy.tolerance_of(metric))
            else:
                judgement = paired.judge_limit(metric, limit)
            # More rounds do not help a quantile that has too few requests in a single one.
            if judgement.verdict is not Verdict.INCONCLUSIVE or judgement.has(ReasonKind.TOO_FEW_REQUESTS):
                return judgement
            stop = self._why_not(paired)
            if stop is not None:
                return judgement.because(stop)
            if paired.wants_start:
                self.waits = self.may_wait()
                if self.waits:
                    raise WaitsForStart
            self.close(but=measurement)
            self.announce("round", paired.next_round, LOOKS[-1][0], judgement)
            measurement.look()

    def _why_not(self, paired: SideBySide) -> Reason | None:
        """Reason against the next look; None if it may be taken."""
        if paired.exhausted:
            return Reason(ReasonKind.LAST_LOOK, f"not decided after {LOOKS[-1][0]} rounds, the last look")
        taken, seconds, budget = len(paired.rounds), paired.next_seconds, self.policy.budget_seconds
        # The first look is always taken, because without it the change is unknown.
        if not taken or seconds <= self.left_seconds:
            return None
        return Reason(
            ReasonKind.BUDGET_SPENT,
            f"not decided after {taken} round{'s' if taken != 1 else ''}, and another of about {seconds:.0f} s would"
            f" exceed the test's budget of {budget:.0f} s; raise it with --gpuserve-budget=SECONDS, or run it again: it"
            " goes on where this run ends",
            seconds=budget,
        )

    def announce(
        self, unit: Literal["session", "round"], number: int, most: int, judgement: Judgement | None = None
    ) -> None:
        """Announce a look, with the result of the last one."""
        self.on_look(Look(unit, number, most, judgement, self.left_seconds))
