"""Compares two sides: which loads are one, the verdict of each, and whether that is well.

A load of one side is judged by the other's with the stored-baseline method where both kept their sessions. Where a side
has but a number there is no verdict to be had: it shows the two numbers, with INCONCLUSIVE.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.compare.bench_loads import token_differences
from pytest_gpuserve.compare.loads import NO_WORKLOAD
from pytest_gpuserve.comparison.baseline_store import differences
from pytest_gpuserve.device.rules import HOST_RULES, compare
from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.experiment.machine import speed_text
from pytest_gpuserve.gate.metric import METRICS, log_cost, requests_needed
from pytest_gpuserve.gate.reason import Reason, ReasonKind
from pytest_gpuserve.gate.sequential import ALPHA, Family
from pytest_gpuserve.gate.stored import LOOKS, SessionPoint, judge_stored, sessions_needed, withstand_drift
from pytest_gpuserve.gate.verdict import Judgement, Verdict
from pytest_gpuserve.measure.work import unlike_tokens
from pytest_gpuserve.measure.yardstick import Yardstick, is_as_fast
from pytest_gpuserve.units import format_fraction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pytest_gpuserve.compare.loads import LoadKey, MeasuredLoad, SessionSample
    from pytest_gpuserve.compare.side import ComparisonSide
    from pytest_gpuserve.gate.metric import Metric

    _Name = tuple[str, str, str]

SIDES: Final = ("A", "B")

FEWEST_FILES: Final = 2
"""Of other tools on either side, below which nobody knows how starts differ."""


@dataclass(frozen=True)
class CompareOptions:
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
class LoadComparison:
    """A load that both sides have, as one host measured it.

    Args:
        key: What B calls it.
        host: Where B measured it; given only where it did on several.
        judgements: One a metric, widest change first.
        by_default: Names of the metrics that were judged with their default tolerances, for nobody said another.
    """

    key: LoadKey
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
        host: Where B measured it; given only where that is not so of all its hosts.
    """

    key: LoadKey
    host: str = ""

    def __str__(self) -> str:
        return f"{self.key} on {self.host}" if self.host else str(self.key)


@dataclass(frozen=True)
class SideComparison:
    """What came of comparing two sides.

    Args:
        a: What the reference is.
        b: What was judged.
        compared: Loads that both have, widest change first.
        unchanged: Loads, or hosts of them, that measured nothing that the reference does not have.
        only_a: Loads that only the reference has.
        only_b: Loads that only the other has.
        question: What was asked.
        untold: What files of other tools do not tell, so that the verdicts assume it.
    """

    a: str
    b: str
    compared: tuple[LoadComparison, ...]
    unchanged: tuple[Unchanged, ...]
    only_a: tuple[LoadKey, ...]
    only_b: tuple[LoadKey, ...]
    question: CompareOptions
    untold: tuple[str, ...] = ()

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


def compare_sides(a: ComparisonSide, b: ComparisonSide, question: CompareOptions) -> SideComparison:
    """Compare two sides.

    Args:
        a: The reference.
        b: What is judged.
        question: What of them.

    Raises:
        UsageProblem: One side is of another tool's files, and the other is not.
    """
    if a.is_bench != b.is_bench:
        foreign, own = (a, b) if a.is_bench else (b, a)
        raise UsageProblem(
            f"{foreign.name} cannot be compared with {own.name}",
            found="one is of another tool, which measures in its own way, the other of pytest-gpuserve",
            remedies=["give two results of one tool"],
        )
    before = {key: load for key, load in a.loads.items() if question.device in {"", key.device}}
    after = {key: load for key, load in b.loads.items() if question.device in {"", key.device}}
    named = _name_of(before, after, any_file=a.is_one_file and b.is_one_file, is_bench=a.is_bench)
    known = {named(key): load for key, load in before.items()}
    new = {named(key): key for key in after}
    unchanged: list[Unchanged] = []
    pairs: list[tuple[MeasuredLoad, MeasuredLoad, Sequence[str]]] = []
    for name, key in sorted(new.items()):
        if name not in known:
            continue
        one, other = known[name], after[key]
        same = [host for host in other.hosts if _is_unchanged(one, other, host)]
        changed = [host for host in other.hosts if host not in same]
        if changed:
            pairs.append((one, other, changed))
        unchanged.extend([Unchanged(key, host) for host in same] if changed else [Unchanged(key)])
    return SideComparison(
        a=a.name,
        b=b.name,
        compared=_compared(pairs, question),
        unchanged=tuple(unchanged),
        only_a=tuple(load.key for name, load in sorted(known.items()) if name not in new),
        only_b=tuple(key for name, key in sorted(new.items()) if name not in known),
        question=question,
        untold=tuple(dict.fromkeys(each for one, other, _ in pairs for each in (*one.untold, *other.untold))),
    )


def _name_of(
    before: Mapping[LoadKey, MeasuredLoad], after: Mapping[LoadKey, MeasuredLoad], *, any_file: bool, is_bench: bool
) -> Callable[[LoadKey], _Name]:
    """By what loads of both sides are taken for one."""
    one_device = all(len({key.device for key in side}) == 1 for side in (before, after))
    # What differs between two single loads of other tools is worth more than that neither has the other's.
    any_name = is_bench and len(before) == len(after) == 1

    def named(key: LoadKey) -> _Name:
        file = "" if any_file or is_bench else key.file
        return "" if one_device else key.device, file, "" if any_name else key.name

    return named


def _compared(
    pairs: Sequence[tuple[MeasuredLoad, MeasuredLoad, Sequence[str]]], question: CompareOptions
) -> tuple[LoadComparison, ...]:
    given = question.tolerances or {}
    loads = []
    for before, after, hosts in pairs:
        metrics = _metrics_of(before, after, question.metrics)
        by_default = {metric.name for metric in metrics if _own_tolerance(metric, before, after, given) is None}
        for host in hosts:
            judgements = _judge_load(before, after, host, metrics, given)
            judged = {judgement.metric.name for judgement in judgements if judgement.tolerance is not None}
            shown_host = host if len(after.hosts) > 1 else ""
            loads.append(LoadComparison(after.key, shown_host, tuple(judgements), frozenset(by_default & judged)))
    upheld: Iterator[Judgement] = iter(_uphold([judgement for each in loads for judgement in each.judgements]))
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


def _metrics_of(before: MeasuredLoad, after: MeasuredLoad, asked: Sequence[Metric]) -> list[Metric]:
    """The metrics that are compared: those asked for, else the usual ones and a test's own, if a side has them."""
    if asked:
        return list(asked)
    return [
        metric
        for name, metric in METRICS.items()
        if (name in before.values or name in after.values)
        and (not metric.on_request or name in before.asked or name in after.asked)
    ] or [METRICS["throughput"]]


def _is_unchanged(before: MeasuredLoad, after: MeasuredLoad, host: str) -> bool:
    """Whether the reference has all that one host measured of a load, so that there is nothing to judge."""
    return (
        not (before.problems or after.problems)
        and after.workload is not None
        and before.workload == after.workload
        and any(sample.host == host for samples in after.samples.values() for sample in samples)
        and not any(_new_samples(before, after, name, host) for name in after.samples)
    )


def _new_samples(before: MeasuredLoad, after: MeasuredLoad, metric: str, host: str) -> tuple[SessionSample, ...]:
    """One host's sessions that the reference does not have: those cannot be compared with themselves."""
    found = [sample for sample in after.samples.get(metric, ()) if sample.host == host]
    if before.is_result == after.is_result:
        known = before.samples.get(metric, ())
        return tuple(sample for sample in found if sample not in known)
    # A baseline keeps its numbers rounded, so that those of the run that recorded it are not quite the same.
    taken = {each.taken for samples in before.samples.values() for each in samples}
    return tuple(sample for sample in found if not any(sample.taken.is_same(each) for each in taken))


def _judge_load(
    before: MeasuredLoad, after: MeasuredLoad, host: str, metrics: Sequence[Metric], tolerances: Mapping[str, float]
) -> list[Judgement]:
    """Judge what one host measured of a load against what is known of it from before."""
    pair = _Pair(before, after, host)
    judged = []
    for metric in metrics:
        own = _own_tolerance(metric, before, after, tolerances)
        judged.append(pair.judge(metric, metric.default_tolerance if own is None else own))
    return judged


def _own_tolerance(
    metric: Metric, before: MeasuredLoad, after: MeasuredLoad, given: Mapping[str, float]
) -> float | None:
    """How much worse a metric may be by those who say so: who asks, else a side's own test; None where nobody does."""
    for known in (given, after.tolerances, before.tolerances):
        if metric.name in known:
            return known[metric.name]
    return None


def _uphold(judgements: Sequence[Judgement]) -> list[Judgement]:
    """Hold back claims of REGRESSED that chance makes among so many comparisons, by Holm's method (`Family`)."""
    family = Family(max(1, sum(judgement.p_regressed is not None for judgement in judgements)))
    planned = family.planned
    found = list(judgements)
    claims = [
        (min(1.0, judgement.p_regressed * judgement.looks), number)
        for number, judgement in enumerate(judgements)
        if judgement.verdict is Verdict.REGRESSED and judgement.p_regressed is not None
    ]
    for p, number in sorted(claims):
        if family.upholds(p):
            family = family.with_claim()
            continue
        text = (
            f"REGRESSED by itself (p = {p:.2g} of {ALPHA:g}), but not among these {planned} comparisons: one of so"
            " many looks like that by chance"
        )
        found[number] = replace(found[number], verdict=Verdict.INCONCLUSIVE).because(Reason(ReasonKind.CHANCE, text))
    return found


class _Pair:
    """A load of both sides, as one host of the second measured it."""

    def __init__(self, before: MeasuredLoad, after: MeasuredLoad, host: str) -> None:
        self._before = before
        self._after = after
        self._host = host
        self._absent, self._warnings = _comparability(before, after, host)

    def judge(self, metric: Metric, tolerance: float) -> Judgement:
        then, now = self._before.values.get(metric.name), self._after.values.get(metric.name)
        problems = (
            *(Reason(ReasonKind.REMARK, f"A: {each}") for each in self._before.problems),
            *(Reason(ReasonKind.REMARK, f"B: {each}") for each in self._after.problems),
        )
        if problems:
            return Judgement.invalid(metric, "baseline", *problems, value=now, reference=then)
        if then is None or now is None:
            sides = " and ".join(side for side, value in (("A", then), ("B", now)) if value is None)
            unknown = Reason(ReasonKind.NOT_MEASURED, f"{metric.name} is not known of {sides}")
            return Judgement.missing(metric, "baseline", unknown, value=now)
        if self._absent:
            # What changed between two loads that are not one load is no change.
            reasons = tuple(Reason(ReasonKind.NOT_COMPARABLE, text) for text in self._absent)
            return Judgement(metric, Verdict.MISSING, "baseline", value=now, reference=then, reasons=reasons)
        unlike = unlike_tokens(self._before.answer_tokens, self._after.answer_tokens)
        if unlike is not None and metric.is_of_requests:
            return Judgement.invalid(metric, "baseline", unlike, value=now, reference=then)
        new = _new_samples(self._before, self._after, metric.name, self._host)
        undecidable = self._undecidable(metric, new, tolerance)
        if undecidable:
            return Judgement(
                metric,
                Verdict.INCONCLUSIVE,
                "baseline",
                value=now,
                reference=then,
                change=now / then - 1,
                tolerance=tolerance,
                reasons=undecidable,
            )
        known = self._known(metric, new)
        warnings = [Reason(ReasonKind.REMARK, text) for text in self._warnings]
        warnings += self._unknown_work() if metric.is_of_requests else []
        return _judge_samples(metric, known, new, self._host, tolerance).because(*warnings)

    def _unknown_work(self) -> list[Reason]:
        sides = zip(SIDES, (self._before, self._after), strict=True)
        mute = [
            side for side, load in sides if "ttft.p50" in load.values and load.answer_tokens is None and not load.untold
        ]
        text = "how many tokens an answer has is not known, and so not whether both did the same work"
        return [Reason(ReasonKind.WORK_UNKNOWN, f"{' and '.join(mute)}: {text}")] if mute else []

    def _known(self, metric: Metric, new: Sequence[SessionSample]) -> tuple[SessionSample, ...]:
        """The reference's sessions that the others may be judged by: other tools' files tell no machine's speed."""
        known = self._before.samples[metric.name]
        return known if self._before.untold else _as_fast(known, new)

    def _undecidable(self, metric: Metric, new: Sequence[SessionSample], tolerance: float) -> tuple[Reason, ...]:
        """Why no more can be told than two numbers; empty where a verdict can be had."""
        if bool(self._before.beside) != bool(self._after.beside):
            alone, other = ("A", "B") if self._after.beside else ("B", "A")
            text = f"{other} was measured side by side with another server, {alone} alone: two numbers"
            return (Reason(ReasonKind.NOT_COMPARABLE, text),)
        lacking = _lacking(metric, self._before, self._after)
        if lacking:
            return tuple(Reason(ReasonKind.NOT_COMPARABLE, text) for text in lacking)
        if not new:
            return (Reason(ReasonKind.NOT_COMPARABLE, "B has no session of it that A does not have"),)
        known = self._before.samples[metric.name]
        if self._before.untold and min(len(known), len(new)) < FEWEST_FILES:
            needed = sessions_needed(metric, metric.growth(tolerance))
            text = (
                f"the luck of one server start is not told from a change, and A has {len(known)} and B {len(new)}: two"
                f" numbers. A tolerance of {format_fraction(tolerance)} needs at least {needed} a side, a file each, in"
                " a folder for A and one for B"
            )
            return (Reason(ReasonKind.ONE_START, text),)
        if not self._known(metric, new):
            text = speed_text(known[-1].yardstick, _yardstick(new), "A was measured", "B's machine")
            return (Reason(ReasonKind.MACHINE_SPEED, text),)
        too_few = _too_few(metric, tolerance, (*known, *new))
        return (Reason(ReasonKind.TOO_FEW_REQUESTS, too_few),) if too_few else ()


def _yardstick(samples: Sequence[SessionSample]) -> Yardstick:
    # Sessions of a result file share the one of their run.
    return Yardstick.pooled({id(sample.yardstick): sample.yardstick for sample in samples}.values())


def _as_fast(known: Sequence[SessionSample], new: Sequence[SessionSample]) -> tuple[SessionSample, ...]:
    """Those of the reference that were measured by a machine as fast as that of the others."""
    now = _yardstick(new)
    return tuple(sample for sample in known if is_as_fast(sample.yardstick, now))


def _judge_samples(
    metric: Metric, known: Sequence[SessionSample], new: Sequence[SessionSample], host: str, tolerance: float
) -> Judgement:
    occasions: dict[str, list[float]] = {}
    for sample in known:
        if sample.host == host:
            occasions.setdefault(sample.occasion, []).append(sample.y)
    # Whoever measured stopped when it was decided, so all looks that there may have been share the level.
    result = judge_stored(
        metric,
        [_point(sample) for sample in known],
        [_point(sample) for sample in new],
        most_growth=metric.growth(tolerance),
        looks=max(LOOKS, len(new)),
    )
    return withstand_drift(result, occasions).judgement()


def _point(sample: SessionSample) -> SessionPoint:
    return SessionPoint(host=sample.host, y=sample.y, u=sample.u, starts=sample.starts)


def _lacking(metric: Metric, before: MeasuredLoad, after: MeasuredLoad) -> tuple[str, ...]:
    """Why there are no sessions to compare, of each side that has none."""
    lacking = [(side, load) for side, load in (("A", before), ("B", after)) if not load.samples.get(metric.name)]
    return tuple(f"{side}: {load.unsampled}" for side, load in lacking)


def _too_few(metric: Metric, tolerance: float, samples: Sequence[SessionSample]) -> str:
    needed = requests_needed(metric, tolerance)
    fewest = min(sample.requests for sample in samples)
    if fewest >= needed:
        return ""
    return (
        f"{metric.name} at a tolerance of {format_fraction(tolerance)} needs {needed} {metric.counted} a server start,"
        f" and there is one of {fewest}; a wider one needs fewer: --tolerance={metric.option}=FRACTION"
    )


def _comparability(before: MeasuredLoad, after: MeasuredLoad, host: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Why two loads may not be compared, and what differs without forbidding it."""
    found = [compare(then, now, names=SIDES) for then in before.devices for now in after.devices]
    found += [
        compare(then, now, HOST_RULES, names=SIDES)
        for then in before.machines
        for now in after.machines
        if then.get("id") == now.get("id") == host
    ]
    absent = [reason for each in found for reason in each.incompatible]
    absent += _other_workload(before, after)
    hosts = before.hosts
    if len(hosts) == 1 and host not in hosts:
        absent.append(f"A was measured on host {hosts[0]}, B on {host}: hosts differ by more than builds do")
    warnings = [warning for each in found for warning in each.warnings]
    return tuple(dict.fromkeys(absent)), tuple(dict.fromkeys(warnings))


def _other_workload(before: MeasuredLoad, after: MeasuredLoad) -> list[str]:
    if before.workload is None or after.workload is None:
        unknown = " and ".join(side for side, load in (("A", before), ("B", after)) if load.workload is None)
        return [f"{unknown}: {NO_WORKLOAD}"]
    found = (
        *token_differences(before.tokens, after.tokens, names=SIDES),
        *differences(before.workload, after.workload, names=SIDES),
    )
    return [f"another workload: {each}" for each in found]
