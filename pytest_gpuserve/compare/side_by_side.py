"""A load that is measured on two servers side by side: its rounds, the results of its looks, and their storage."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gpuserve.compare.one_build import judge_one_build
from pytest_gpuserve.measure.points import NotMeasured, TooFewRequests, pooled_value
from pytest_gpuserve.measure.rounds import ARMS, round_point
from pytest_gpuserve.measure.steady import MATERIAL_CHANGE
from pytest_gpuserve.measure.work import unknown_work, unlike_work
from pytest_gpuserve.store.kept import KeptMetric
from pytest_gpuserve.verdict.metric import COLD_START, METRICS
from pytest_gpuserve.verdict.paired import (
    blocks_worth_a_start,
    paired_evidence,
    paired_limit,
)
from pytest_gpuserve.verdict.reason import Reason, ReasonKind
from pytest_gpuserve.verdict.sequential import (
    BLOCKS,
    FIRST_BLOCKS,
    FIRST_WORTH,
    LEVELS,
    LOOKS,
    first_look,
    look_index,
)
from pytest_gpuserve.verdict.verdict import Judgement, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpuserve.experiment.pairing import Pairing
    from pytest_gpuserve.measure.rounds import Arm, Round
    from pytest_gpuserve.measure.window import Session, Streams
    from pytest_gpuserve.store.kept import KeptFolder, Pair
    from pytest_gpuserve.verdict.metric import Metric
    from pytest_gpuserve.verdict.paired import Prior, RoundPoint
    from pytest_gpuserve.verdict.verdict import ReferenceKind


KEPT_IN_RUN: Final = Reason(ReasonKind.KEPT, "decided by an earlier try in this run, and kept: a retry continues it")


class Memory:
    """Rounds of one pair, from one try of a test to the next, and from one run of pytest to the next.

    Args:
        folder: Folder of the rounds; None to forget them with this run.
        pair: The pair; None if a build cannot be identified, so that rounds end with this run.

    Attributes:
        rounds: Rounds of earlier tries of this pair.
        metrics: Their results, by the metric's name.
        remark: Time of these, and how to forget them, for a verdict that stems from them; None without earlier runs.
        round_seconds: Duration of the last round in this run; 0 without one.
        late: Shutdown problems that discarded a round in this try.
        limits: Ratios that were shown in this try to hold a limit or to miss it.
    """

    def __init__(self, folder: KeptFolder | None, pair: Pair | None) -> None:
        self._folder = folder
        self._pair = pair
        self.rounds: Sequence[Round] = ()
        self.metrics: Mapping[str, KeptMetric] = {}
        self.remark: Reason | None = None
        self.round_seconds = 0.0
        self.late: tuple[Reason, ...] = ()
        self.limits: dict[tuple[str, float], Judgement] = {}
        kept = None if folder is None or pair is None else folder.load(pair)
        if kept is not None:
            self.rounds, self.metrics = kept.rounds, kept.metrics
            text = (
                f"decided at {kept.at} for this very pair of builds, and kept: a re-run continues the last one;"
                " `--cache-clear` forgets it"
            )
            self.remark = Reason(ReasonKind.KEPT, text)

    def save(self, rounds: Sequence[Round], metrics: Mapping[str, KeptMetric]) -> None:
        """Store the present state."""
        self.rounds, self.metrics = tuple(rounds), dict(metrics)
        if self._folder is not None and self._pair is not None:
            self._folder.save(self._pair, rounds, metrics)

    def past(self) -> Mapping[str, list[list[RoundPoint]]]:
        """Rounds of other pairs under the same load on this device and host, for each metric."""
        return {} if self._folder is None or self._pair is None else self._folder.past(self._pair)


NOT_LOOKED_AT: Final = Reason(ReasonKind.NOT_LOOKED_AT, "no result yet: p99 needs a full round, a cold start two")
LOOKED_BEFORE: Final = Reason(ReasonKind.LOOKED_BEFORE, "this look was taken before, and did not decide it")


def rounds_until(rounds: Sequence[Round], look: int) -> Sequence[Round]:
    """Rounds as they were at a look."""
    count, blocks = LOOKS[look]
    if look == 0:
        return [rounds[0].first(blocks)]
    return list(rounds[:count])


def judged_rounds(metric: Metric, rounds: Sequence[Round]) -> Sequence[Round]:
    """Rounds that judge a metric, and give its values.

    For cold starts the first round is left out if there is another one. Its first start reads from disk what the others
    find in memory. A round whose servers started at the same time is left out too.
    """
    if metric.name != COLD_START or len(rounds) < 2:
        return rounds
    return [each for each in rounds[1:] if not each.together]


def points_of(metric: Metric, rounds: Sequence[Round], tolerance: float) -> list[RoundPoint]:
    """Rounds as points of a judgement.

    A first round that ended after three blocks has too few requests for many quantiles; that must not prevent a
    judgement of all later rounds.
    """
    rounds = judged_rounds(metric, rounds)
    points = []
    for measured in rounds:
        try:
            points.append(round_point(metric, measured, tolerance))
        except TooFewRequests:
            if len(rounds) == 1 or measured.blocks != FIRST_BLOCKS:
                raise
    return points


def _value_of(metric: Metric, rounds: Sequence[Round], arm: Arm) -> float:
    """The metric of one server over the rounds that judge it together, in its unit. Raises `NotMeasured`."""
    return pooled_value(metric, [measured.session(arm) for measured in judged_rounds(metric, rounds)])


def _worth(metric: Metric, measured: Round, tolerance: float, prior: Prior, start_in_blocks: float) -> float:
    """Number of blocks of a start that are worth their time; infinite if unknown."""
    try:
        point = round_point(metric, measured, tolerance)
    except NotMeasured:
        return math.inf
    # Only a whole round tells whether one server changes relative to the other.
    change = (point.differences[-1] - point.differences[0]) * (BLOCKS - 1) / (FIRST_BLOCKS - 1)
    if len(point.differences) < FIRST_BLOCKS or abs(change) > MATERIAL_CHANGE:
        return math.inf
    return blocks_worth_a_start(point, prior, start_in_blocks=start_in_blocks)


def windows_of(rounds: Sequence[Round]) -> int:
    """Number of windows in rounds, of both servers together."""
    return sum(len(measured.windows(arm)) for measured in rounds for arm in ARMS)


class _Seen(NamedTuple):
    """A look, the rounds at it, and the points that it judges by."""

    look: int
    rounds: Sequence[Round]
    points: Sequence[RoundPoint]


class SideBySide:
    """The comparison of a load with its base.

    Args:
        pairing: Takes the rounds; it may have rounds of an earlier run already.
        kind: Kind of the base.
        name: Name of the base for people.
        memory: Remembers the comparison for a re-run.
        prior_of: Prior of each metric's spread between starts.
        most_foreign_cores: A round in which others took more of the host is evidence, but teaches nothing about starts.
        kept: Remark on a verdict from an earlier try, or None.

    Attributes:
        name: See above.
        options: Options that compare with this base again; empty if none do.
        seconds: Measuring time in this run.
    """

    def __init__(
        self,
        pairing: Pairing,
        *,
        kind: ReferenceKind,
        name: str,
        memory: Memory,
        prior_of: Callable[[Metric], Prior],
        most_foreign_cores: float = math.inf,
        kept: Reason | None = None,
    ) -> None:
        self.name = name
        self.options: tuple[str, ...] = ()
        self.seconds = 0.0
        self._pairing = pairing
        self._kind = kind
        self._memory = memory
        self._prior_of = prior_of
        self._most_foreign_cores = most_foreign_cores
        self._kept_remark = () if kept is None else (kept,)
        # Problems of its earlier rounds: those of these rounds are in the rounds themselves.
        self._late = memory.late
        self._last_seconds = 0.0
        self._round_seconds = memory.round_seconds
        self._left_out: Sequence[str] | None = None
        self._earlier = memory.metrics
        self._metrics = dict(memory.metrics)

    def compare_one_build(self, left_out: Sequence[str]) -> None:
        """Declare both servers to be one build, so that neither can be worse or better.

        Args:
            left_out: Ignored files that the base does not have.
        """
        self._left_out = left_out

    # -- measuring

    @property
    def rounds(self) -> Sequence[Round]:
        """All rounds, including those of earlier runs of this pair."""
        return self._pairing.rounds

    @property
    def problems(self) -> tuple[Reason, ...]:
        """Reasons why the comparison proves nothing; empty if it is valid."""
        return (*self._late, *(problem for measured in self.rounds for problem in measured.problems))

    def _problems_of(self, metric: Metric) -> tuple[Reason, ...]:
        """Such reasons for one metric: metrics of answers are not compared if the work differs."""
        unlike = self._unlike_work() if metric.is_of_requests else None
        return self.problems if unlike is None else (*self.problems, unlike)

    def _unlike_work(self) -> Reason | None:
        return unlike_work(*self._streams())

    def _unknown_work(self, metric: Metric) -> tuple[Reason, ...]:
        return unknown_work(*self._streams()) if metric.is_of_requests and self._unlike_work() is None else ()

    def _streams(self) -> list[list[Streams | None]]:
        """Windows of the base, and of the candidate."""
        return [[window.streams for measured in self.rounds for window in measured.windows(arm)] for arm in ARMS]

    @property
    def exhausted(self) -> bool:
        """Whether the last look was taken."""
        return len(self.rounds) >= LOOKS[-1][0] and not self._pairing.blocks_of_open_round

    @property
    def next_round(self) -> int:
        """Number, from 1, of the round that the next look measures: the one whose servers still run, or a new one."""
        return len(self.rounds) + (0 if self._goes_on else 1)

    @property
    def wants_start(self) -> bool:
        """Whether the next look needs a fresh start of both servers, after a round that this test has just taken."""
        return self.seconds > 0 and not self._goes_on and not self._pairing.one_at_a_time

    @property
    def next_seconds(self) -> float:
        """Estimated time to the next look, from the last one, or the last round."""
        return self._last_seconds if self._goes_on else self._round_seconds

    @property
    def _goes_on(self) -> bool:
        """Whether the next look takes more blocks of running servers."""
        return bool(self._pairing.blocks_of_open_round) and not self._is_half_enough

    @property
    def _is_half_enough(self) -> bool:
        """Whether another start tells more about undecided metrics than the rest of the first round, in its time."""
        undecided = {METRICS[name]: asked for name, asked in self._metrics.items() if asked.decision is None}
        # A metric that waits for a whole round, such as p99, gets it from the next start, if another metric needs that.
        looked_at = {metric: asked for metric, asked in undecided.items() if asked.looks}
        start_in_blocks = self._pairing.start_in_blocks
        return bool(looked_at) and all(
            _worth(metric, self.rounds[0], asked.tolerance, self._prior_of(metric), start_in_blocks) <= FIRST_WORTH
            for metric, asked in looked_at.items()
        )

    def more(self) -> None:
        """Measure to the next look, and remember it.

        Raises:
            BaseFailed: The base could not be started.
            ServerFailed: The candidate could not be started.
            LoadFailed: A load could not be begun.
        """
        began = time.monotonic()
        first = not self.rounds
        goes_on = self._goes_on
        self._pairing.on_late_trouble = self._hear_late
        try:
            if not goes_on:
                self._round_seconds = 0.0
                if self._pairing.blocks_of_open_round:
                    self._pairing.close()
                # Problems that showed only at its end are known before another round is measured in vain.
                if self.problems:
                    return
            self._pairing.measure(FIRST_BLOCKS if first else BLOCKS)
        except BaseException:
            if self.problems:
                self._save()
            raise
        finally:
            self._last_seconds = time.monotonic() - began
            self._round_seconds += self._last_seconds
            self.seconds += self._last_seconds
            self._memory.round_seconds = self._round_seconds
        self._save()

    def _hear_late(self) -> None:
        self._memory.late = self.problems
        self._save()

    def stop_load(self) -> None:
        """End the load; a further look begins with a fresh round. Problems at its servers' end invalidate the last."""
        self._pairing.close()

    def sessions(self, arm: Arm) -> list[Session]:
        """Record of one server, in the form of a load that was measured alone."""
        return [measured.session(arm) for measured in self.rounds]

    # -- judging

    def judge(self, metric: Metric, tolerance: float) -> Judgement:
        """Judge the measurement so far; a decision stays for any later measurement."""
        if problems := self._problems_of(metric):
            return Judgement.invalid(metric, self._kind, *problems, value=self._value(metric, "candidate"))
        asked = self._metrics.get(metric.name)
        if asked is None or asked.tolerance != tolerance:
            # Another tolerance is another comparison: its looks begin anew, on the same data.
            asked = self._metrics[metric.name] = KeptMetric(tolerance)
        seen = self._seen(metric, tolerance, look=None if asked.decision is None else asked.looks[-1])
        if isinstance(seen, Judgement):
            return seen
        judgement = self._judged(metric, seen, asked)
        if self._left_out is not None:
            judgement = judge_one_build(judgement, self._left_out)
        return judgement.because(*self._unknown_work(metric))

    def judge_limit(self, metric: Metric, limit: float) -> Judgement:
        """Judge whether the ratio of the candidate's value to the base's is shown to hold a limit, or to miss it.

        Args:
            metric: The metric.
            limit: Smallest ratio if more of the metric is better, else the largest one.
        """
        if problems := self._problems_of(metric):
            return Judgement.invalid(metric, self._kind, *problems, reference=limit)
        known = self._memory.limits.get((metric.name, limit))
        if known is None:
            known = self._judged_limit(metric, limit)
            if known.verdict in {Verdict.PASS, Verdict.REGRESSED}:
                self._memory.limits[metric.name, limit] = known
        return known.because(*self._unknown_work(metric))

    def _judged_limit(self, metric: Metric, limit: float) -> Judgement:
        seen = self._seen(metric, metric.default_tolerance, limit=limit)
        if isinstance(seen, Judgement):
            return seen
        allowed = -math.log(limit) if metric.higher_is_better else math.log(limit)
        evidence = paired_limit(
            metric, seen.points, self._prior_of(metric), limit_log_cost=allowed, levels=LEVELS[seen.look]
        )
        reasons = evidence.remarks(metric)
        change = metric.change_of(evidence.estimate)
        low, high = (metric.change_of(bound) for bound in evidence.interval)
        return Judgement(
            metric,
            evidence.verdict,
            self._kind,
            value=None if change is None else 1 + change,
            reference=limit,
            change=change,
            interval=None if low is None or high is None else (min(low, high), max(low, high)),
            rounds=len(seen.points),
            reasons=reasons if self.seconds else (*reasons, *self._kept_remark),
            windows=windows_of(seen.rounds),
        )

    def _seen(
        self, metric: Metric, tolerance: float, *, look: int | None = None, limit: float | None = None
    ) -> _Seen | Judgement:
        """Data of a look, by default the one that is due; a judgement if it has none."""
        if metric.name == COLD_START:
            self._pairing.starts_together = False
        look = self._look() if look is None else look
        if look is None or look < first_look(metric) or not judged_rounds(metric, self.rounds):
            return self._undecided(metric, limit=limit)
        rounds = rounds_until(self.rounds, look)
        try:
            return _Seen(look, rounds, points_of(metric, rounds, tolerance))
        except TooFewRequests as problem:
            if look == 0:
                return self._undecided(metric, limit=limit)
            return Judgement(metric, Verdict.INCONCLUSIVE, self._kind, reference=limit, reasons=(problem.reason,))
        except NotMeasured as problem:
            return Judgement.invalid(metric, self._kind, problem.reason, reference=limit)

    def _look(self) -> int | None:
        """The look that is due now; None if a round was broken off."""
        if not self.rounds:
            return None
        last = self.rounds[-1]
        return look_index(len(self.rounds), BLOCKS if last.one_at_a_time else last.blocks)

    def _judged(self, metric: Metric, seen: _Seen, asked: KeptMetric) -> Judgement:
        evidence = paired_evidence(
            metric,
            seen.points,
            self._prior_of(metric),
            most_growth=metric.growth(asked.tolerance),
            levels=LEVELS[seen.look],
        )
        verdict = evidence.verdict
        reasons: tuple[Reason, ...] = ()
        if asked.decision is not None:
            verdict, reasons = asked.decision, self._kept_remark if asked is self._earlier.get(metric.name) else ()
        elif seen.look in asked.looks:
            # Later knowledge about other starts must not decide a look that is over.
            reasons = () if verdict is Verdict.INCONCLUSIVE else (LOOKED_BEFORE,)
            verdict = Verdict.INCONCLUSIVE
        else:
            decision = None if verdict is Verdict.INCONCLUSIVE else verdict
            self._metrics[metric.name] = replace(asked, looks=(*asked.looks, seen.look), decision=decision)
            self._save()
        judgement = Judgement.from_evidence(
            metric,
            evidence,
            verdict=verdict,
            reference_kind=self._kind,
            value=_value_of(metric, seen.rounds, "candidate"),
            rounds=len(seen.points),
            windows=windows_of(seen.rounds),
        )
        remarks = () if verdict is not evidence.verdict else judgement.reasons
        return replace(judgement, reasons=(*remarks, *reasons))

    def _undecided(self, metric: Metric, *, limit: float | None = None) -> Judgement:
        value, reference = self._value(metric, "candidate"), self._value(metric, "base")
        if limit is not None:
            value, reference = (None if value is None or reference is None else value / reference), limit
        return Judgement(
            metric,
            Verdict.INCONCLUSIVE,
            self._kind,
            value=value,
            reference=reference,
            rounds=len(self.rounds),
            windows=windows_of(self.rounds),
            reasons=(NOT_LOOKED_AT,),
        )

    def _value(self, metric: Metric, arm: Arm) -> float | None:
        try:
            return _value_of(metric, self.rounds, arm)
        except NotMeasured:
            return None

    # -- remembering

    def _save(self) -> None:
        # An invalid round does not belong to the sequence, nor do its conclusions: a re-run measures it again. It may
        # have been remembered as sound before its problem showed.
        sound = [measured for measured in takewhile(lambda each: not each.problems, self.rounds) if measured.blocks]
        if self._unlike_work() is not None:
            # Not the result of a round by itself.
            sound = []
        if self._left_out is not None and any(
            each.decision is not None and each.decision.is_claim for each in self._metrics.values()
        ):
            # Its cause is outside git, and may differ the next time.
            sound = []
        if sound or self._memory.rounds:
            self._memory.save(sound, {name: self._kept(name, sound) for name in self._metrics})

    def _kept(self, name: str, sound: Sequence[Round]) -> KeptMetric:
        asked = self._metrics[name]
        looks = tuple(look for look in asked.looks if LOOKS[look][0] <= len(sound))
        differences = []
        for measured in judged_rounds(METRICS[name], sound):
            if measured.foreign_cores > self._most_foreign_cores:
                continue
            try:
                differences.append(round_point(METRICS[name], measured, asked.tolerance).differences)
            except NotMeasured:
                continue
        decision = asked.decision if looks == asked.looks else None
        return KeptMetric(asked.tolerance, looks, decision, tuple(differences))
