"""Two sides as a whole: which loads are one, what came of each, and whether that is well."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_gpuserve.compare.judging import is_unchanged, judge_load, metrics_of, uphold
from pytest_gpuserve.gate.metric import log_cost
from pytest_gpuserve.gate.verdict import Judgement, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pytest_gpuserve.compare.load import Key, Load
    from pytest_gpuserve.compare.side import Side
    from pytest_gpuserve.gate.metric import Metric

    _Name = tuple[str, str, str]


@dataclass(frozen=True)
class Question:
    """What of two sides is compared, and what counts as well.

    Args:
        device: Only loads of this device; all if empty.
        metrics: Only these; the usual ones if empty.
        tolerances: By the names of metrics.
        skip_missing: Whether what B lacks, or what cannot be compared, is well.
        skip_inconclusive: Whether what could not be decided is well.
    """

    device: str = ""
    metrics: tuple[Metric, ...] = ()
    tolerances: Mapping[str, float] | None = None
    skip_missing: bool = False
    skip_inconclusive: bool = False


@dataclass(frozen=True)
class Compared:
    """A load that both sides have, as one host measured it.

    Args:
        key: What B calls it.
        host: Where B measured it; told only where it did on several.
        judgements: One a metric, widest change first.
    """

    key: Key
    host: str
    judgements: tuple[Judgement, ...]

    @property
    def widest(self) -> float:
        """The greatest change of log cost, either way; infinite where something could not be compared."""
        return max(map(_width, self.judgements), default=0.0)


@dataclass(frozen=True)
class Comparison:
    """What came of comparing two sides.

    Args:
        a: What the reference is.
        b: What was judged.
        compared: Loads that both have, widest change first.
        unchanged: Loads of which both have the same sessions.
        only_a: Loads that only the reference has.
        only_b: Loads that only the other has.
        question: What was asked.
    """

    a: str
    b: str
    compared: tuple[Compared, ...]
    unchanged: tuple[Key, ...]
    only_a: tuple[Key, ...]
    only_b: tuple[Key, ...]
    question: Question

    @property
    def is_well(self) -> bool:
        """Whether nothing is worse, nothing was left open, and something was compared at all."""
        if not (self.compared or self.unchanged):
            return False
        if self.only_a and not self.question.skip_missing:
            return False
        return all(self._holds(judgement.verdict) for each in self.compared for judgement in each.judgements)

    def _holds(self, verdict: Verdict) -> bool:
        return (
            verdict.passes
            or (verdict is Verdict.MISSING and self.question.skip_missing)
            or (verdict is Verdict.INCONCLUSIVE and self.question.skip_inconclusive)
        )


def compare_sides(a: Side, b: Side, question: Question) -> Comparison:
    """Compare two sides.

    Args:
        a: The reference.
        b: What is judged.
        question: What of them.
    """
    before = {key: load for key, load in a.loads.items() if question.device in {"", key.device}}
    after = {key: load for key, load in b.loads.items() if question.device in {"", key.device}}
    named = _name_of(before, after, any_file=a.is_one_file and b.is_one_file)
    known = {named(key): load for key, load in before.items()}
    new = {named(key): key for key in after}
    unchanged, pairs = [], []
    for name, key in sorted(new.items()):
        if name not in known:
            continue
        if is_unchanged(known[name], after[key]):
            unchanged.append(key)
        else:
            pairs.append((known[name], after[key]))
    return Comparison(
        a=a.name,
        b=b.name,
        compared=_compared(pairs, question),
        unchanged=tuple(unchanged),
        only_a=tuple(load.key for name, load in sorted(known.items()) if name not in new),
        only_b=tuple(key for name, key in sorted(new.items()) if name not in known),
        question=question,
    )


def _name_of(before: Mapping[Key, Load], after: Mapping[Key, Load], *, any_file: bool) -> Callable[[Key], _Name]:
    """By what loads of both sides are taken for one.

    A device that each side has only one of is no part of it: that they differ is then said of each load.
    """
    one_device = all(len({key.device for key in side}) == 1 for side in (before, after))

    def named(key: Key) -> _Name:
        return "" if one_device else key.device, "" if any_file else key.file, key.name

    return named


def _compared(pairs: Sequence[tuple[Load, Load]], question: Question) -> tuple[Compared, ...]:
    loads = []
    for before, after in pairs:
        metrics = metrics_of(before, after, question.metrics)
        for host in after.hosts:
            judgements = judge_load(before, after, host, metrics, question.tolerances or {})
            loads.append(Compared(after.key, host if len(after.hosts) > 1 else "", tuple(judgements)))
    upheld: Iterator[Judgement] = iter(uphold([judgement for each in loads for judgement in each.judgements]))
    done = []
    for each in loads:
        judgements = [next(upheld) for _ in each.judgements]
        done.append(replace(each, judgements=tuple(sorted(judgements, key=_width, reverse=True))))
    return tuple(sorted(done, key=lambda each: each.widest, reverse=True))


def _width(judgement: Judgement) -> float:
    """How far a metric has moved on the scale of all statistics; what could not be compared comes first."""
    if judgement.verdict in {Verdict.MISSING, Verdict.INVALID}:
        return math.inf
    if not judgement.value or not judgement.reference:
        return 0.0
    return abs(log_cost(judgement.metric, judgement.value) - log_cost(judgement.metric, judgement.reference))
