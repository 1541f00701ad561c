"""Two sides as a whole: which loads are one, what came of each, and whether that is well."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_gpuserve.compare.judging import is_unchanged, judge_load, metrics_of, own_tolerance, uphold
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
        skip_missing: Whether what B lacks, or what cannot be compared, is well beside what can.
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
        by_default: Names of the metrics that were judged with their default tolerances, for nobody said another.
    """

    key: Key
    host: str
    judgements: tuple[Judgement, ...]
    by_default: frozenset[str] = frozenset()

    @property
    def widest(self) -> float:
        """The greatest change of log cost, either way; infinite where something could not be compared."""
        return max(map(_width, self.judgements), default=0.0)


@dataclass(frozen=True, slots=True)
class Unchanged:
    """A load of which B has no session that A does not have.

    Args:
        key: What B calls it.
        host: Where B measured it; told only where that is not so of all its hosts.
    """

    key: Key
    host: str = ""

    def __str__(self) -> str:
        return f"{self.key} on {self.host}" if self.host else str(self.key)


@dataclass(frozen=True)
class Comparison:
    """What came of comparing two sides.

    Args:
        a: What the reference is.
        b: What was judged.
        compared: Loads that both have, widest change first.
        unchanged: Loads, or hosts of them, that measured nothing that the reference does not have.
        only_a: Loads that only the reference has.
        only_b: Loads that only the other has.
        question: What was asked.
    """

    a: str
    b: str
    compared: tuple[Compared, ...]
    unchanged: tuple[Unchanged, ...]
    only_a: tuple[Key, ...]
    only_b: tuple[Key, ...]
    question: Question

    @property
    def is_well(self) -> bool:
        """Whether nothing is worse, nothing was left open, and something was compared at all."""
        if not self.has_substance:
            return False
        if self.only_a and not self.question.skip_missing:
            return False
        return all(self._holds(judgement.verdict) for each in self.compared for judgement in each.judgements)

    @property
    def has_substance(self) -> bool:
        """Whether there was anything that could be compared, or that is the same in both."""
        verdicts = [judgement.verdict for each in self.compared for judgement in each.judgements]
        return bool(self.unchanged) or any(verdict is not Verdict.MISSING for verdict in verdicts)

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
    unchanged: list[Unchanged] = []
    pairs: list[tuple[Load, Load, Sequence[str]]] = []
    for name, key in sorted(new.items()):
        if name not in known:
            continue
        one, other = known[name], after[key]
        same = [host for host in other.hosts if is_unchanged(one, other, host)]
        changed = [host for host in other.hosts if host not in same]
        if changed:
            pairs.append((one, other, changed))
        unchanged.extend([Unchanged(key, host) for host in same] if changed else [Unchanged(key)])
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


def _compared(pairs: Sequence[tuple[Load, Load, Sequence[str]]], question: Question) -> tuple[Compared, ...]:
    given = question.tolerances or {}
    loads = []
    for before, after, hosts in pairs:
        metrics = metrics_of(before, after, question.metrics)
        by_default = {metric.name for metric in metrics if own_tolerance(metric, before, after, given) is None}
        for host in hosts:
            judgements = judge_load(before, after, host, metrics, given)
            judged = {judgement.metric.name for judgement in judgements if judgement.tolerance is not None}
            told = host if len(after.hosts) > 1 else ""
            loads.append(Compared(after.key, told, tuple(judgements), frozenset(by_default & judged)))
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
