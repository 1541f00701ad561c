"""The verdict of one side's load against the other's: the stored-baseline method where both kept their sessions.

Where a side has but a number there is no verdict to be had: the two numbers are told, with INCONCLUSIVE.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.compare.load import NO_WORKLOAD
from pytest_gpuserve.comparison.baseline_store import differences
from pytest_gpuserve.device.rules import HOST_RULES, compare
from pytest_gpuserve.experiment.machine import speed_text
from pytest_gpuserve.gate.metric import METRICS, requests_needed
from pytest_gpuserve.gate.reason import Reason, ReasonKind
from pytest_gpuserve.gate.sequential import ALPHA, Family
from pytest_gpuserve.gate.stored import LOOKS, SessionPoint, judge_stored, withstand_drift
from pytest_gpuserve.gate.verdict import Judgement, Verdict
from pytest_gpuserve.measure.yardstick import Yardstick, is_as_fast
from pytest_gpuserve.units import format_fraction

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpuserve.compare.load import Load, Sample
    from pytest_gpuserve.gate.metric import Metric

SIDES: Final = ("A", "B")


def metrics_of(before: Load, after: Load, asked: Sequence[Metric]) -> list[Metric]:
    """The metrics that are compared: those asked for, else the usual ones and what a test asked for, if a side has it.

    There is always one, so that two loads of which nothing is known are not passed over.
    """
    if asked:
        return list(asked)
    return [
        metric
        for name, metric in METRICS.items()
        if (name in before.values or name in after.values)
        and (not metric.on_request or name in before.asked or name in after.asked)
    ] or [METRICS["throughput"]]


def is_unchanged(before: Load, after: Load, host: str) -> bool:
    """Whether the reference has all that one host measured of a load, so that there is nothing to judge."""
    return (
        not (before.problems or after.problems)
        and after.workload is not None
        and before.workload == after.workload
        and any(sample.host == host for samples in after.samples.values() for sample in samples)
        and not any(new_samples(before, after, name, host) for name in after.samples)
    )


def new_samples(before: Load, after: Load, metric: str, host: str) -> tuple[Sample, ...]:
    """One host's sessions that the reference does not have: those cannot be compared with themselves."""
    found = [sample for sample in after.samples.get(metric, ()) if sample.host == host]
    if before.is_result == after.is_result:
        known = before.samples.get(metric, ())
        return tuple(sample for sample in found if sample not in known)
    # A baseline keeps its numbers rounded, so that those of the run that recorded it are not quite the same.
    taken = {each.taken for samples in before.samples.values() for each in samples}
    return tuple(sample for sample in found if not any(sample.taken.is_same(each) for each in taken))


def judge_load(
    before: Load, after: Load, host: str, metrics: Sequence[Metric], tolerances: Mapping[str, float]
) -> list[Judgement]:
    """Judge what one host measured of a load against what is known of it from before.

    Args:
        before: The reference.
        after: What is judged.
        host: Which of its hosts.
        metrics: What is compared.
        tolerances: By the names of metrics, before what the sides themselves say.
    """
    pair = _Pair(before, after, host)
    judged = []
    for metric in metrics:
        own = own_tolerance(metric, before, after, tolerances)
        judged.append(pair.judge(metric, metric.default_tolerance if own is None else own))
    return judged


def own_tolerance(metric: Metric, before: Load, after: Load, given: Mapping[str, float]) -> float | None:
    """How much worse a metric may be by those who say so: who asks, else a side's own test; None where nobody does."""
    for known in (given, after.tolerances, before.tolerances):
        if metric.name in known:
            return known[metric.name]
    return None


def uphold(judgements: Sequence[Judgement]) -> list[Judgement]:
    """Hold back claims of REGRESSED that chance makes among so many comparisons, by Holm's method (`Family`).

    Args:
        judgements: All of a comparison.
    """
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

    def __init__(self, before: Load, after: Load, host: str) -> None:
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
        new = new_samples(self._before, self._after, metric.name, self._host)
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
        known = _as_fast(self._before.samples[metric.name], new)
        warnings = [Reason(ReasonKind.REMARK, text) for text in self._warnings]
        return _judge_samples(metric, known, new, self._host, tolerance).because(*warnings)

    def _undecidable(self, metric: Metric, new: Sequence[Sample], tolerance: float) -> tuple[Reason, ...]:
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
        if not _as_fast(known, new):
            text = speed_text(known[-1].yardstick, _yardstick(new), "A was measured", "B's machine")
            return (Reason(ReasonKind.MACHINE_SPEED, text),)
        too_few = _too_few(metric, tolerance, (*known, *new))
        return (Reason(ReasonKind.TOO_FEW_REQUESTS, too_few),) if too_few else ()


def _yardstick(samples: Sequence[Sample]) -> Yardstick:
    # Sessions of a result file share the one of their run.
    return Yardstick.pooled({id(sample.yardstick): sample.yardstick for sample in samples}.values())


def _as_fast(known: Sequence[Sample], new: Sequence[Sample]) -> tuple[Sample, ...]:
    """Those of the reference that were measured by a machine as fast as that of the others."""
    now = _yardstick(new)
    return tuple(sample for sample in known if is_as_fast(sample.yardstick, now))


def _judge_samples(
    metric: Metric, known: Sequence[Sample], new: Sequence[Sample], host: str, tolerance: float
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


def _point(sample: Sample) -> SessionPoint:
    return SessionPoint(host=sample.host, y=sample.y, u=sample.u, starts=sample.starts)


def _lacking(metric: Metric, before: Load, after: Load) -> tuple[str, ...]:
    """Why there are no sessions to compare, of each side that has none."""
    lacking = [(side, load) for side, load in (("A", before), ("B", after)) if not load.samples.get(metric.name)]
    return tuple(f"{side}: {load.unsampled}" for side, load in lacking)


def _too_few(metric: Metric, tolerance: float, samples: Sequence[Sample]) -> str:
    needed = requests_needed(metric, tolerance)
    fewest = min(sample.requests for sample in samples)
    if fewest >= needed:
        return ""
    return (
        f"{metric.name} at a tolerance of {format_fraction(tolerance)} needs {needed} requests a server start, and"
        f" there is one of {fewest}; a wider one needs fewer: --tolerance={metric.option}=FRACTION"
    )


def _comparability(before: Load, after: Load, host: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
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


def _other_workload(before: Load, after: Load) -> list[str]:
    if before.workload is None or after.workload is None:
        unknown = " and ".join(side for side, load in (("A", before), ("B", after)) if load.workload is None)
        return [f"{unknown}: {NO_WORKLOAD}"]
    return [f"another workload: {each}" for each in differences(before.workload, after.workload, names=SIDES)]
