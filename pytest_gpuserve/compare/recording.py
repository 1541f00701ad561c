"""Entries that a recording run writes, and entries that it refuses."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pytest_gpuserve.compare.screen import not_measured, unsound_judgement
from pytest_gpuserve.errors import BaselineUnusable
from pytest_gpuserve.measure.points import NotMeasured, mean_value, point
from pytest_gpuserve.report.next_step import UPDATE, command
from pytest_gpuserve.units import format_change, format_value
from pytest_gpuserve.verdict.metric import METRICS, log_cost
from pytest_gpuserve.verdict.reason import Reason, ReasonKind
from pytest_gpuserve.verdict.verdict import Judgement, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpuserve.compare.baseline_store import BaselineStore
    from pytest_gpuserve.compare.measurement import Measurement
    from pytest_gpuserve.store.baseline import Stored
    from pytest_gpuserve.verdict.metric import Metric


def judge_recording(measurement: Measurement, metric: Metric, stored: Stored | None) -> Judgement:
    """Judge the effect of a recording on a metric; the two numbers are compared directly.

    Args:
        measurement: The load and its results.
        metric: The metric to compare.
        stored: The entry that it would replace, or None.
    """
    unsound = unsound_judgement(measurement, metric)
    if unsound is not None:
        return unsound
    value, tolerance = measurement.value(metric), measurement.policy.tolerance_of(metric)
    shared = measurement.shared_host()
    if shared is not None:
        reason = shared.with_text(f"{shared}; a baseline recorded now would hide a regression later")
        return Judgement.invalid(metric, "baseline", reason, value=value)
    try:
        # A recording must be good enough for comparisons tomorrow.
        for session in measurement.run.sessions:
            point(metric, session, tolerance)
        value = mean_value(metric, measurement.run.sessions)
    except NotMeasured as problem:
        return not_measured(metric, problem)
    recorded = Reason(ReasonKind.RECORDING, "recorded by this run, if the test passes")
    absent = measurement.why_absent(stored)
    if stored is None or absent:
        # A missing entry explains why it is recorded; an entry with another workload is worth a remark.
        return Judgement.missing(metric, "baseline", *(absent if stored else ()), recorded, value=value)
    try:
        reference = mean_value(metric, stored.sessions)
    except NotMeasured:
        return Judgement.missing(metric, "baseline", recorded, value=value)
    grown = log_cost(metric, value) - log_cost(metric, reference)
    is_looser = grown > math.log1p(metric.growth(tolerance))
    needed = (_needs_reason(metric),) if is_looser and not measurement.policy.reason else ()
    return Judgement(
        metric,
        Verdict.REGRESSED if is_looser else Verdict.PASS,
        "baseline",
        value=value,
        reference=reference,
        change=value / reference - 1,
        tolerance=tolerance,
        rounds=len(measurement.run.sessions),
        reasons=needed or (recorded,),
    )


def record(measurements: Iterable[Measurement], baseline_store: BaselineStore) -> list[str]:
    """Write the baselines of a test's loads, if this is a recording, and propose to record improvements; a report.

    Every load is tried, even after one that could not be written; Ctrl-C ends it.

    Raises:
        BaselineUnusable: A file cannot be read or written; the text lists the written ones.
        KeyboardInterrupt: After Ctrl-C; the text lists files that could not be written before it.
    """
    lines: list[str] = []
    proposals: list[str] = []
    problems: list[BaselineUnusable] = []
    for measurement in measurements:
        try:
            if measurement.policy.records(baseline_store.find(measurement.baseline_key)):
                lines += _write(measurement, baseline_store)
            else:
                proposals += _proposal(measurement, baseline_store.here.device.name)
        except BaselineUnusable as problem:
            problems.append(problem)
        except KeyboardInterrupt as interrupt:
            said = (str(interrupt), *(problem.summary for problem in problems))
            raise KeyboardInterrupt("; ".join(filter(None, said))) from None
    if problems:
        raise _together(problems, lines)
    return [*lines, *proposals]


def _write(measurement: Measurement, baseline_store: BaselineStore) -> list[str]:
    key, answers = measurement.baseline_key, _answers(measurement)
    if not answers or measurement.run.invalid:
        return []
    done = baseline_store.record(key, measurement.workload, measurement.run.sessions, measurement.policy.reason)
    return [
        f"{key.entry}: {done} in {key.path}{baseline_store.here.revision.counts(key.path)}",
        *(f"{key.entry}: {_changed(answer)}" for answer in answers),
    ]


def _proposal(measurement: Measurement, gpu: str) -> list[str]:
    """The command that records improvements; empty without any."""
    better = [answer for answer in _answers(measurement) if answer.verdict is Verdict.IMPROVED]
    if not better:
        return []
    found = ", ".join(map(_improved, better))
    tightening = command([measurement.nodeid], gpu, UPDATE)
    return [f"{measurement.baseline_key.entry}: {found}; to tighten its baseline: {tightening}"]


def _together(problems: Sequence[BaselineUnusable], written: Sequence[str]) -> BaselineUnusable:
    """One error for all files that could not be written, with the written ones."""
    if len(problems) == 1 and not written:
        return problems[0]
    return BaselineUnusable("\n".join([*map(str, problems), *written]))


def _answers(measurement: Measurement) -> list[Judgement]:
    """Answers to a test's comparisons with the baseline of a load, in the order of the metrics."""
    asked = ((name, "baseline") for name in METRICS)
    return [measurement.answers[each] for each in asked if each in measurement.answers]


def _improved(judgement: Judgement) -> str:
    """``throughput IMPROVED 812/s -> 931/s (+14.7 %)``."""
    name = judgement.metric.name
    return _changed(judgement).replace(name, f"{name} IMPROVED", 1)


def _changed(judgement: Judgement) -> str:
    """``throughput 812/s -> 931/s (+14.7 %)``."""
    name, unit, value, reference = judgement.metric.name, judgement.unit, judgement.value, judgement.reference
    if value is None:
        return name
    if reference is None:
        return f"{name} {format_value(value, unit)}"
    change = format_change(value / reference - 1)
    return f"{name} {format_value(reference, unit)} -> {format_value(value, unit)} ({change})"


def _needs_reason(metric: Metric) -> Reason:
    text = f"recording this would loosen {metric.name}, which needs a reason: --reason='why it is worth it'"
    return Reason(ReasonKind.NEEDS_REASON, text)
