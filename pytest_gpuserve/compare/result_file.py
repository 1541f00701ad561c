"""A result file of ``--gpuserve-json`` (schema 2, or 1 of older versions), with every field checked that is used."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from pytest_gpuserve.compare.load import Key, Load, Sample
from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.gate.metric import COLD_START, METRICS, Growth
from pytest_gpuserve.measure.yardstick import Yardstick
from pytest_gpuserve.report.result_json import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

UPGRADE: Final = "upgrade with `pip install --upgrade pytest-gpuserve`"

NO_SAMPLES: Final = (
    "the file keeps one number of it and no sessions, so that chance cannot be told from a change:"
    " what is shown are two numbers"
)

INTERRUPTED: Final = "the test was interrupted, so it decides nothing"

OF_COST: Final = 1
"""The schema whose tolerances are growths of the cost."""

LEAST: Final = 1e-15
"""A value below it, in a metric's unit, is none: it was not measured, and its ratio to another may be no number."""

Number = Annotated[float, msgspec.Meta(gt=-1e15, lt=1e15)]
LogCost = Annotated[float, msgspec.Meta(ge=-100, le=100)]
"""No metric comes near these bounds in any unit, and what is computed from costs within them stays a number."""

NotNegative = Annotated[float, msgspec.Meta(ge=0, lt=1e15)]
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]


class PointRecord(msgspec.Struct, frozen=True):
    """A ``measure.reduced.Reduced``."""

    y: LogCost
    u: NotNegative
    starts: Annotated[int, msgspec.Meta(ge=1)]
    requests: Count


_OPTION = r"^--against(-python)?=[^\x00-\x1f\x7f\x85\u2028\u2029]+$"
"""On one line: it becomes part of a command that people are shown."""


class BaseRecord(msgspec.Struct, frozen=True):
    """Whom a run was measured beside."""

    name: str
    options: list[Annotated[str, msgspec.Meta(pattern=_OPTION)]] = []


class RunRecord(msgspec.Struct, frozen=True):
    """A load of a test; what it has beyond this is for others."""

    label: str
    throughput: Number | None
    latency: dict[str, Number | None]
    batching_ratio: Number | None
    cold_start_seconds: list[Number | None] = []
    problems: list[str] = []
    base: BaseRecord | None = None
    points: dict[str, list[PointRecord]] = {}
    workload: dict[str, str] | None = None
    sessions_at: list[str] = []
    settles: str | None = None
    yardstick: dict[str, list[Annotated[float, msgspec.Meta(gt=0, lt=1e15)]]] = {}


class VerdictRecord(msgspec.Struct, frozen=True):
    """What the run's own gate concluded of a metric."""

    metric: str
    reference_kind: str
    value: Number | None
    tolerance: Annotated[float, msgspec.Meta(gt=0, lt=1e9)] | None
    run: str = ""


class TestRecord(msgspec.Struct, frozen=True):
    """A test that measured."""

    # Not a test class, whatever its name looks like to pytest.
    __test__ = False

    nodeid: str
    outcome: str
    verdicts: list[VerdictRecord]
    run: RunRecord | None
    more_runs: list[RunRecord] = []


class ResultRecord(msgspec.Struct, frozen=True):
    """The whole file."""

    schema: int
    gpu: dict[str, Any]
    host: dict[str, Any]
    tests: list[TestRecord]
    at: str | None = None
    commit: str | None = None


class _Head(msgspec.Struct):
    schema: int
    tests: msgspec.Raw


def is_result(data: bytes) -> bool:
    """Whether this looks like a result file, of whatever schema."""
    try:
        msgspec.json.decode(data, type=_Head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def read_result(name: str, data: bytes) -> ResultRecord:
    """Read a result file.

    Args:
        name: What people call the file.
        data: What is in it.

    Raises:
        UsageProblem: It is none, is of another schema, or a field of it cannot be used; names the file and the field.
    """
    try:
        head = msgspec.json.decode(data, type=_Head)
        if head.schema not in {OF_COST, SCHEMA}:
            raise UsageProblem(
                f"{name} was written by {'a newer' if head.schema > SCHEMA else 'another'} pytest-gpuserve",
                found=f"schema {head.schema}; this version reads schemas {OF_COST} and {SCHEMA}",
                remedies=[UPGRADE] if head.schema > SCHEMA else [],
            )
        return msgspec.json.decode(data, type=ResultRecord)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise UsageProblem(
            f"{name} is no result of --gpuserve-json that can be used",
            found=str(problem),
            remedies=["write it anew: pytest --gpuserve-json=FILE"],
        ) from None


def loads_of(name: str, result: ResultRecord) -> Iterator[Load]:
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
        for run in [*([] if test.run is None else [test.run]), *test.more_runs]:
            if run.settles is not None:
                # The same load once more, which other runs have only where they had to settle something too.
                continue
            verdicts = [verdict for verdict in test.verdicts if verdict.run == run.label]
            yield Load(
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
            )


def _tolerances(name: str, result: ResultRecord, verdicts: list[VerdictRecord]) -> Mapping[str, float]:
    """How much worse each metric was allowed to be, in its own unit.

    Raises:
        UsageProblem: A metric cannot be so much worse.
    """
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
    """Whom a load's sessions were measured side by side with; empty for nobody.

    What a stored baseline judges was measured alone, whoever then had the last word.
    """
    if run.base is None or any(verdict.reference_kind == "baseline" for verdict in verdicts):
        return ""
    return run.base.name


def occasion_of(name: str, result: ResultRecord) -> str:
    """What the run of a result file is told from others by: when it began, else the file."""
    return result.at or name


def key_of(device: str, nodeid: str, label: str) -> Key:
    """Where the baseline of a test's load would be, as ``comparison.baseline_store.BaselineStore.place`` says."""
    file, _, name = nodeid.partition("::")
    parts = [part for part in PurePosixPath(file).parts if part not in {"/", "..", "//"}]
    if len(parts) > 1 and parts[0] == "suites":
        parts = parts[1:]
    path = PurePosixPath(*parts).with_suffix(".json") if parts else PurePosixPath(".json")
    return Key(device, path.as_posix(), f"{name} {label}" if label else name)


def _values(run: RunRecord, verdicts: list[VerdictRecord]) -> Mapping[str, float]:
    """What is known of the run in each metric's unit: pooled where it stands so, else as it was judged."""
    known: dict[str, float | None] = {
        "throughput": run.throughput,
        "batching_ratio": run.batching_ratio,
        **{f"latency.{name}": value for name, value in run.latency.items()},
    }
    starts = [each for each in run.cold_start_seconds if each is not None]
    if starts and len(starts) == len(run.cold_start_seconds):
        known[COLD_START] = sum(starts) / len(starts)
    for verdict in verdicts:
        # The value of a duel is a ratio of two servers, not one of this.
        if verdict.reference_kind != "duel":
            known.setdefault(verdict.metric, verdict.value)
    return {name: value for name, value in known.items() if name in METRICS and value is not None and value >= LEAST}


def _samples(run: RunRecord, host: str, occasion: str) -> Mapping[str, tuple[Sample, ...]]:
    """Each metric's sessions, oldest first; when each began only where the file says so of each."""
    yardstick = Yardstick({kind: tuple(rates) for kind, rates in run.yardstick.items()})
    return {
        metric: tuple(
            Sample(host, occasion, at, each.y, each.u, each.starts, each.requests, yardstick)
            for each, at in zip(
                points, run.sessions_at if len(run.sessions_at) == len(points) else [""] * len(points), strict=True
            )
        )
        for metric, points in run.points.items()
        if metric in METRICS and points
    }
