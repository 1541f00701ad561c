"""The loads of a baseline or of a result file, as a side of a comparison knows them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

import msgspec

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.gate.metric import COLD_START, GOODPUT, METRICS, OUTPUT_TOKENS, Growth
from pytest_gpuserve.measure.points import NotMeasured, pooled_value
from pytest_gpuserve.measure.rounds import reduced_by_metric
from pytest_gpuserve.measure.work import MeanCount, tokens_of_answers
from pytest_gpuserve.measure.yardstick import Yardstick
from pytest_gpuserve.report.schema import OF_COST

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pytest_gpuserve.report.schema import ResultRecord, RunRecord, VerdictRecord
    from pytest_gpuserve.store.baseline import Stored
    from pytest_gpuserve.store.schema import Entry

NO_WORKLOAD: Final = (
    "the file does not say what its workload was, as older versions wrote it, and it may be another one"
)

NO_SAMPLES: Final = (
    "the file keeps one number of it and no sessions, so that chance cannot be told from a change:"
    " what is shown are two numbers"
)

INTERRUPTED: Final = "the test was interrupted, so it decides nothing"

NO_SESSION: Final = "not every session has it"

LEAST: Final = 1e-15
"""A value below it, in a metric's unit, is none: it was not measured, and its ratio to another may be no number."""


@dataclass(frozen=True, order=True, slots=True)
class LoadKey:
    """What a load is called.

    Args:
        device: On which it was measured, as ``--gpu`` names it.
        file: Of its baseline, below the device's folder: ``x/test_y.json``.
        name: Of its entry there: ``test_z[1]``.
    """

    device: str
    file: str
    name: str

    def __str__(self) -> str:
        return f"{self.device} {self.file}::{self.name}"


@dataclass(frozen=True, slots=True)
class SessionId:
    """Where and when a session of a load was taken, by which it is told from others.

    Args:
        host: Where it was measured.
        occasion: Begin of the run of pytest that it belongs to, ISO 8601 in UTC.
        at: When it began itself, likewise; empty where that is not known.
    """

    host: str
    occasion: str
    at: str

    def is_same(self, other: SessionId) -> bool:
        """Whether both are of one session, or of one run of pytest where either does not say of which session."""
        if self.host != other.host:
            return False
        # Workers of one run have occasions of their own, but a session began when it began.
        return self.at == other.at if self.at and other.at else self.occasion == other.occasion


@dataclass(frozen=True, slots=True)
class SessionSample:
    """A session, as far as one metric goes.

    Args:
        host: Where it was measured.
        occasion: Run of pytest that it belongs to.
        at: When it began itself, ISO 8601 in UTC; empty where that is not known.
        y: As in ``measure.reduced.Reduced``.
        u: As there.
        starts: As there.
        requests: As there.
        yardstick: How fast the machine was meanwhile.
    """

    host: str
    occasion: str
    at: str
    y: float
    u: float
    starts: int
    requests: int
    yardstick: Yardstick = field(default_factory=Yardstick, compare=False)

    @property
    def taken(self) -> SessionId:
        """What tells its session from others."""
        return SessionId(self.host, self.occasion, self.at)


@dataclass(frozen=True)
class MeasuredLoad:
    """What a side knows of a load.

    Args:
        key: What it is called.
        values: Each metric over all that was measured, in its unit.
        samples: Each metric's sessions, oldest first.
        unsampled: Why a metric that has a value may have no sessions.
        workload: What another must have in common with it; None where nobody knows.
        devices: Facts of the devices that it was measured on, as in a baseline's records.
        machines: Facts of the hosts, likewise.
        tolerances: Of those metrics whose tests say so.
        asked: Names of the metrics that its test compared, as far as that is known.
        problems: Why nothing may be concluded from it.
        beside: Whom it was measured side by side with; empty for nobody.
        is_result: Whether it is of a result file, not of a baseline: the numbers of a session then differ in rounding.
        tokens: Of another tool's files the mean number of tokens of a request, by direction.
        answer_tokens: Of our own the mean number of tokens of an answer; None where that is not known.
        untold: What another tool's files do not tell, so that a verdict has to assume it; empty of our own.
    """

    key: LoadKey
    values: Mapping[str, float]
    samples: Mapping[str, tuple[SessionSample, ...]]
    unsampled: str
    workload: Mapping[str, str] | None
    devices: tuple[Mapping[str, object], ...]
    machines: tuple[Mapping[str, object], ...]
    tolerances: Mapping[str, float]
    asked: frozenset[str] = frozenset()
    problems: tuple[str, ...] = ()
    beside: str = ""
    is_result: bool = False
    tokens: Mapping[str, float] = field(default_factory=dict)
    answer_tokens: MeanCount | None = None
    untold: tuple[str, ...] = ()

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that it was measured on, each once."""
        return tuple(dict.fromkeys(str(machine.get("id")) for machine in self.machines))


def loads_of(name: str, result: ResultRecord) -> Iterator[MeasuredLoad]:
    """The loads that a result file holds.

    Args:
        name: What people call the file, for errors.
        result: Its content.

    Raises:
        UsageProblem: It does not name its host or its device; one without tests has no need to.
    """
    if not result.tests:
        return
    host, device = result.host.get("id"), result.gpu.get("name")
    if not (isinstance(host, str) and host and isinstance(device, str) and device):
        raise UsageProblem(f"{name} does not name the host and the device that it was measured on")
    occasion = occasion_of(name, result)
    for test in result.tests:
        for run in test.runs:
            if run.settles is not None:
                # The same load once more, which other runs have only where they had to settle something too.
                continue
            verdicts = [verdict for verdict in test.verdicts if verdict.run == run.label]
            yield MeasuredLoad(
                key=key_of(device, test.nodeid, run.label),
                values=_values(run, verdicts),
                samples=_samples(run, host, occasion),
                unsampled=NO_SAMPLES,
                # An empty one would be the same as any other empty one.
                workload=run.workload or None,
                devices=(result.gpu,),
                machines=(result.host,),
                tolerances=_tolerances(name, result, verdicts),
                asked=frozenset(each.metric for each in verdicts),
                problems=(*run.problems, *([] if test.outcome != "interrupted" else [INTERRUPTED])),
                beside=_beside(run, verdicts),
                is_result=True,
                answer_tokens=_answer_tokens(run),
            )


def _tolerances(name: str, result: ResultRecord, verdicts: list[VerdictRecord]) -> Mapping[str, float]:
    """How much worse each metric was allowed to be, in its own unit."""
    found = {}
    for verdict in verdicts:
        metric = METRICS.get(verdict.metric)
        if metric is None or verdict.tolerance is None:
            continue
        given = verdict.tolerance
        tolerance = metric.loss(Growth(given)) if result.schema == OF_COST else given
        try:
            metric.check_tolerance(tolerance)
        except ValueError as problem:
            raise UsageProblem(f"{name} has a verdict that none can be", found=str(problem)) from None
        found[metric.name] = tolerance
    return found


def _beside(run: RunRecord, verdicts: list[VerdictRecord]) -> str:
    """Whom a load's sessions were measured side by side with; empty for nobody."""
    if run.base is None or any(verdict.reference_kind == "baseline" for verdict in verdicts):
        return ""
    return run.base.name


def occasion_of(name: str, result: ResultRecord) -> str:
    """What the run of a result file is told from others by: when it began, else the file."""
    return result.at or name


def key_of(device: str, nodeid: str, label: str) -> LoadKey:
    """Where the baseline of a test's load would be, as ``comparison.baseline_store.BaselineStore.place`` says."""
    file, _, name = nodeid.partition("::")
    parts = [part for part in PurePosixPath(file).parts if part not in {"/", "..", "//"}]
    if len(parts) > 1 and parts[0] == "suites":
        parts = parts[1:]
    path = PurePosixPath(*parts).with_suffix(".json") if parts else PurePosixPath(".json")
    return LoadKey(device, path.as_posix(), f"{name} {label}" if label else name)


def _answer_tokens(run: RunRecord) -> MeanCount | None:
    known = run.answer_tokens
    return None if known is None else MeanCount(known.value, known.squared_error, known.windows)


def _values(run: RunRecord, verdicts: list[VerdictRecord]) -> Mapping[str, float]:
    """What is known of the run in each metric's unit: pooled where it stands so, else as it was judged."""
    known: dict[str, float | None] = {
        "throughput": run.throughput,
        "batching_ratio": run.batching_ratio,
        OUTPUT_TOKENS: run.output_tokens_per_second,
        GOODPUT: run.goodput,
    }
    for times, found in {"latency": run.latency, "ttft": run.ttft, "itl": run.itl, "tpot": run.tpot}.items():
        known.update({f"{times}.{name}": value for name, value in (found or {}).items()})
    starts = [each for each in run.cold_start_seconds if each is not None]
    if starts and len(starts) == len(run.cold_start_seconds):
        known[COLD_START] = sum(starts) / len(starts)
    for verdict in verdicts:
        # The value of a duel is a ratio of two servers, not one of this.
        if verdict.reference_kind != "duel":
            known.setdefault(verdict.metric, verdict.value)
    return {name: value for name, value in known.items() if name in METRICS and value is not None and value >= LEAST}


def _samples(run: RunRecord, host: str, occasion: str) -> Mapping[str, tuple[SessionSample, ...]]:
    """Each metric's sessions, oldest first; when each began only where the file says so of each."""
    yardstick = Yardstick({kind: tuple(rates) for kind, rates in run.yardstick.items()})
    return {
        metric: tuple(
            SessionSample(host, occasion, at, each.y, each.u, each.starts, each.requests, yardstick)
            for each, at in zip(
                points, run.sessions_at if len(run.sessions_at) == len(points) else [""] * len(points), strict=True
            )
        )
        for metric, points in run.points.items()
        if metric in METRICS and points
    }


def baseline_load(key: LoadKey, stored: Stored) -> MeasuredLoad:
    """A baseline's entry as a side of a comparison knows it."""
    records = stored.entry.sessions
    values = {}
    for name, metric in METRICS.items():
        try:
            values[name] = pooled_value(metric, stored.sessions)
        except NotMeasured:
            continue
    samples = {
        name: tuple(
            SessionSample(
                record.host.id,
                record.occasion,
                record.at,
                each.y,
                each.u,
                each.starts,
                each.requests,
                session.yardstick,
            )
            for each, record, session in zip(found, records, stored.sessions, strict=True)
        )
        for name, found in reduced_by_metric(stored.sessions).items()
    }
    return MeasuredLoad(
        key=key,
        values=values,
        samples=samples,
        unsampled=NO_SESSION,
        workload=stored.entry.workload,
        devices=_distinct(msgspec.to_builtins(record.device) for record in records),
        machines=_distinct(msgspec.to_builtins(record.host) for record in records),
        tolerances={},
        asked=anchored(stored.entry),
        answer_tokens=tokens_of_answers(window.streams for each in stored.sessions for window in each.windows),
    )


def anchored(entry: Entry) -> frozenset[str]:
    """Names of the metrics that an entry has anchors of, which its test compares; none of an older entry."""
    return frozenset(line.metric for anchor in entry.anchors for line in anchor.metrics)


def baseline_key(path: PurePosixPath, root: PurePosixPath, name: str, device: str) -> LoadKey:
    """What an entry is called: its file is the part of the path below the device's folder, if it lies in one.

    Args:
        path: Of the file.
        root: The folder of baselines, or one in it. Below it the device's folder comes first, whatever else is called
            so; above it, it comes last.
        name: Of the entry.
        device: That it was measured on.
    """
    inside, outside = path.relative_to(root).parts, root.parts
    if device in inside[:-1]:
        below = inside[inside.index(device) + 1 :]
    elif device in outside:
        below = (*outside[len(outside) - outside[::-1].index(device) :], *inside)
    else:
        below = inside[-1:]
    return LoadKey(device, "/".join(below), name)


def _distinct(facts: Iterable[Mapping[str, object]]) -> tuple[Mapping[str, object], ...]:
    found: list[Mapping[str, object]] = []
    for each in facts:
        if each not in found:
            found.append(each)
    return tuple(found)
