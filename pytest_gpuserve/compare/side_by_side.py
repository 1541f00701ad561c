"""A load that is measured on two servers side by side: its rounds, the results of its looks, and their storage."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gpuserve.measure.points import NotMeasured, TooFewRequests, pooled_value
from pytest_gpuserve.measure.rounds import ARMS, round_point
from pytest_gpuserve.measure.steady import MATERIAL_CHANGE
from pytest_gpuserve.measure.work import unknown_work, unlike_answers, unlike_work
from pytest_gpuserve.store.kept import KeptMetric
from pytest_gpuserve.units import format_change
from pytest_gpuserve.verdict.evidence import (
    BLOCKS,
    FIRST_BLOCKS,
    FIRST_WORTH,
    LEVELS,
    LOOKS,
    blocks_worth_a_start,
    first_look,
    look_index,
    paired_evidence,
    paired_limit,
)
from pytest_gpuserve.verdict.metric import COLD_START, METRICS
from pytest_gpuserve.verdict.reason import Reason, ReasonKind
from pytest_gpuserve.verdict.verdict import Judgement, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpuserve.experiment.pairing import Pairing
    from pytest_gpuserve.measure.rounds import Arm, Round
    from pytest_gpuserve.measure.window import Session, Streams
    from pytest_gpuserve.store.kept import Memory
    from pytest_gpuserve.verdict.evidence import Prior, RoundPoint
    from pytest_gpuserve.verdict.metric import Metric
    from pytest_gpuserve.verdict.verdict import ReferenceKind


MOST_NAMED: Final = 3
"""Number of left out files that a reason names."""

NOT_LOOKED_AT: Final = Reason(ReasonKind.NOT_LOOKED_AT, "no result yet: p99 needs a full round, a cold start two")
LOOKED_BEFORE: Final = Reason(ReasonKind.LOOKED_BEFORE, "an earlier run took this look, and it did not decide")


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


@dataclass(eq=False, kw_only=True)
class SideBySide:
    """The comparison of a load with its base.

    Args:
        pairing: Takes the rounds; it may have rounds of an earlier run already.
        kind: Kind of the base.
        name: Name of the base for people.
        memory: Remembers the comparison for a re-run.
        prior_of: Prior of each metric's spread between starts.
        most_foreign_cores: A round in which others took more of the host is evidence, but teaches nothing about starts.
        options: Options that compare with this base again; empty if none do.
        left_out: Ignored files that the base does not have, if both servers are one build, so that neither can be worse
            or better; None for two builds.

    Attributes:
        seconds: Measuring time in this run.
    """

    pairing: Pairing
    kind: ReferenceKind
    name: str
    memory: Memory
    prior_of: Callable[[Metric], Prior]
    most_foreign_cores: float = math.inf
    options: tuple[str, ...] = ()
    left_out: Sequence[str] | None = None
    seconds: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._last_seconds = 0.0
        self._earlier = self.memory.metrics
        self._metrics = dict(self._earlier)

    # -- measuring

    @property
    def rounds(self) -> Sequence[Round]:
        """All rounds, including those of earlier runs of this pair."""
        return self.pairing.rounds

    @property
    def problems(self) -> tuple[Reason, ...]:
        """Reasons why the comparison proves nothing; empty if it is valid."""
        of_rounds = (problem for measured in self.rounds for problem in measured.problems)
        return tuple(dict.fromkeys((*self.memory.late, *of_rounds)))

    def _problems_of(self, metric: Metric) -> tuple[Reason, ...]:
        """Such reasons for one metric: metrics of answers are not compared if the work differs."""
        unlike = self._unlike_work() if metric.is_of_requests else None
        return self.problems if unlike is None else (*self.problems, unlike)

    def _unlike_work(self) -> Reason | None:
        before, now = ([window for each in self.rounds for window in each.windows(arm)] for arm in ARMS)
        # Two servers of a duel may write the same answer in two formats.
        unlike = None if self.kind == "duel" else unlike_answers(before, now)
        return unlike or unlike_work(*self._streams())

    def _unknown_work(self, metric: Metric) -> tuple[Reason, ...]:
        return unknown_work(*self._streams()) if metric.is_of_requests else ()

    def _streams(self) -> list[list[Streams | None]]:
        """Windows of the base, and of the candidate."""
        return [[window.streams for measured in self.rounds for window in measured.windows(arm)] for arm in ARMS]

    @property
    def exhausted(self) -> bool:
        """Whether the last look was taken."""
        return len(self.rounds) >= LOOKS[-1][0] and not self.pairing.blocks_of_open_round

    @property
    def next_round(self) -> int:
        """Number, from 1, of the round that the next look measures: the one whose servers still run, or a new one."""
        return len(self.rounds) + (0 if self._goes_on else 1)

    @property
    def wants_start(self) -> bool:
        """Whether the next look needs a fresh start of both servers, after a round that this test has just taken."""
        return self.seconds > 0 and not self._goes_on and not self.pairing.one_at_a_time

    @property
    def next_seconds(self) -> float:
        """Estimated time to the next look, from the last one, or the last round."""
        return self._last_seconds if self._goes_on else self.memory.round_seconds

    @property
    def _goes_on(self) -> bool:
        """Whether the next look takes more blocks of running servers."""
        return bool(self.pairing.blocks_of_open_round) and not self._is_half_enough

    @property
    def _is_half_enough(self) -> bool:
        """Whether another start tells more about undecided metrics than the rest of the first round, in its time."""
        undecided = {METRICS[name]: asked for name, asked in self._metrics.items() if asked.decision is None}
        # A metric that waits for a whole round, such as p99, gets it from the next start, if another metric needs that.
        looked_at = {metric: asked for metric, asked in undecided.items() if asked.looks}
        start_in_blocks = self.pairing.start_in_blocks
        return bool(looked_at) and all(
            _worth(metric, self.rounds[0], asked.tolerance, self.prior_of(metric), start_in_blocks) <= FIRST_WORTH
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
        self.pairing.on_late_trouble = self._hear_late
        try:
            if not goes_on:
                self.memory.round_seconds = 0.0
                if self.pairing.blocks_of_open_round:
                    self.pairing.close()
                # Problems that showed only at its end are known before another round is measured in vain.
                if self.problems:
                    return
            self.pairing.measure(FIRST_BLOCKS if first else BLOCKS)
        except BaseException:
            if self.problems:
                self._save()
            raise
        finally:
            self._last_seconds = time.monotonic() - began
            self.memory.round_seconds += self._last_seconds
            self.seconds += self._last_seconds
        self._save()

    def _hear_late(self) -> None:
        self.memory.late = self.problems
        self._save()

    def stop_load(self) -> None:
        """End the load; a further look begins with a fresh round. Problems at its servers' end invalidate the last."""
        self.pairing.close()

    def sessions(self, arm: Arm) -> list[Session]:
        """Record of one server, in the form of a load that was measured alone."""
        return [measured.session(arm) for measured in self.rounds]

    # -- judging

    def judge(self, metric: Metric, tolerance: float) -> Judgement:
        """Judge the measurement so far; a decision stays for any later measurement."""
        if problems := self._problems_of(metric):
            return Judgement.invalid(metric, self.kind, *problems, value=self._value(metric, "candidate"))
        asked = self._metrics.get(metric.name)
        if asked is None or asked.tolerance != tolerance:
            # Another tolerance is another comparison: its looks begin anew, on the same data.
            asked = self._metrics[metric.name] = KeptMetric(tolerance)
        seen = self._seen(metric, tolerance, look=None if asked.decision is None else asked.looks[-1])
        if isinstance(seen, Judgement):
            return seen
        judgement = self._judged(metric, seen, asked)
        if self.left_out is not None:
            judgement = judge_one_build(judgement, self.left_out)
        return judgement.because(*self._unknown_work(metric))

    def judge_limit(self, metric: Metric, limit: float) -> Judgement:
        """Judge whether the ratio of the candidate's value to the base's is shown to hold a limit, or to miss it.

        Args:
            metric: The metric.
            limit: Smallest ratio if more of the metric is better, else the largest one.
        """
        if problems := self._problems_of(metric):
            return Judgement.invalid(metric, self.kind, *problems, reference=limit)
        known = self.memory.limits.get((metric.name, limit))
        if known is None:
            known = self._judged_limit(metric, limit)
            if known.verdict in {Verdict.PASS, Verdict.REGRESSED}:
                self.memory.limits[metric.name, limit] = known
        return known.because(*self._unknown_work(metric))

    def _judged_limit(self, metric: Metric, limit: float) -> Judgement:
        seen = self._seen(metric, metric.default_tolerance, limit=limit)
        if isinstance(seen, Judgement):
            return seen
        allowed = -math.log(limit) if metric.higher_is_better else math.log(limit)
        evidence = paired_limit(
            metric, seen.points, self.prior_of(metric), limit_log_cost=allowed, levels=LEVELS[seen.look]
        )
        reasons = evidence.remarks(metric)
        change = metric.change_of(evidence.estimate)
        return Judgement(
            metric,
            evidence.verdict,
            self.kind,
            value=None if change is None else 1 + change,
            reference=limit,
            change=change,
            interval=evidence.changes(metric),
            rounds=len(seen.points),
            reasons=reasons if self.seconds else (*reasons, *self.memory.remark),
            windows=windows_of(seen.rounds),
        )

    def _seen(
        self, metric: Metric, tolerance: float, *, look: int | None = None, limit: float | None = None
    ) -> _Seen | Judgement:
        """Data of a look, by default the one that is due; a judgement if it has none."""
        if metric.name == COLD_START:
            self.pairing.starts_together = False
        look = self._look() if look is None else look
        if look is None or look < first_look(metric) or not judged_rounds(metric, self.rounds):
            return self._undecided(metric, limit=limit)
        rounds = rounds_until(self.rounds, look)
        try:
            return _Seen(look, rounds, points_of(metric, rounds, tolerance))
        except TooFewRequests as problem:
            if look == 0:
                return self._undecided(metric, limit=limit)
            return Judgement(metric, Verdict.INCONCLUSIVE, self.kind, reference=limit, reasons=(problem.reason,))
        except NotMeasured as problem:
            return Judgement.invalid(metric, self.kind, problem.reason, reference=limit)

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
            self.prior_of(metric),
            most_growth=metric.growth(asked.tolerance),
            levels=LEVELS[seen.look],
        )
        verdict = evidence.verdict
        reasons: tuple[Reason, ...] = ()
        if asked.decision is not None:
            verdict, reasons = asked.decision, self.memory.remark if asked is self._earlier.get(metric.name) else ()
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
            reference_kind=self.kind,
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
            self.kind,
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
        if self.left_out is not None and any(
            each.decision is not None and each.decision.is_claim for each in self._metrics.values()
        ):
            # Its cause is outside git, and may differ the next time.
            sound = []
        if sound or self.memory.rounds:
            self.memory.save(sound, {name: self._kept(name, sound) for name in self._metrics})

    def _kept(self, name: str, sound: Sequence[Round]) -> KeptMetric:
        asked = self._metrics[name]
        looks = tuple(look for look in asked.looks if LOOKS[look][0] <= len(sound))
        differences = []
        for measured in judged_rounds(METRICS[name], sound):
            if measured.foreign_cores > self.most_foreign_cores:
                continue
            try:
                differences.append(round_point(METRICS[name], measured, asked.tolerance).differences)
            except NotMeasured:
                continue
        decision = asked.decision if looks == asked.looks else None
        return KeptMetric(asked.tolerance, looks, decision, tuple(differences))


def judge_one_build(judgement: Judgement, left_out: Sequence[str]) -> Judgement:
    """Judgement of two builds that are the same in git: neither worse nor better, but not to be trusted.

    Args:
        judgement: The judgement of their measurements.
        left_out: Ignored files that the base does not have, the most likely cause of a difference.
    """
    if not judgement.verdict.is_claim or judgement.change is None:
        return judgement
    more = len(left_out) - MOST_NAMED
    named = ", ".join(left_out[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    return outside_git(
        judgement, "both builds are the same in git", *([f"the base does not have {named}"] if left_out else [])
    )


def outside_git(judgement: Judgement, same: str, *found: str) -> Judgement:
    """Turn a claim about two equal builds into INVALID.

    Args:
        judgement: REGRESSED or IMPROVED, with its change.
        same: Sentence on the equal builds.
        found: Differences between them.
    """
    assert judgement.change is not None
    text = (
        f"{same}, but differ by {format_change(judgement.change)}: something outside git differs (environment"
        " variables, files outside the checkout, warm caches)"
    )
    reason = Reason(ReasonKind.OUTSIDE_GIT, "; ".join([text, *found]))
    return replace(judgement, verdict=Verdict.INVALID, reasons=(reason,))
