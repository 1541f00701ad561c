"""A run against a number: a limit of its test, or what others have published."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final

from pytest_gpuserve.comparison.assertions import Comparison, Reference, Sides
from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.gate.metric import METRICS
from pytest_gpuserve.gate.reason import Reason, ReasonKind
from pytest_gpuserve.gate.verdict import Judgement, Verdict
from pytest_gpuserve.load.kserve import HEADER_LENGTH
from pytest_gpuserve.load.schedule import Burst, Closed, Steps
from pytest_gpuserve.measure.points import NotMeasured, pooled_value, too_few_requests
from pytest_gpuserve.measure.rounds import demand_own_card
from pytest_gpuserve.store.published import NothingPublished, read_published, select, suites
from pytest_gpuserve.units import format_value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pytest_gpuserve.comparison.assertions import Run
    from pytest_gpuserve.comparison.measurement import Measurement
    from pytest_gpuserve.device.card import Card
    from pytest_gpuserve.gate.metric import Metric
    from pytest_gpuserve.gate.verdict import ReferenceKind
    from pytest_gpuserve.load.request import Request
    from pytest_gpuserve.load.schedule import Schedule
    from pytest_gpuserve.measure.rounds import Round
    from pytest_gpuserve.store.published import PublishedEntry


NO_CLAIM: Final = "a published number has no samples: there is no interval, and no claim beyond chance"

STEPS_UNKNOWN: Final = (
    "its steps were not printed: those of this run are taken for alike, and its best step is compared with a peak"
)

_SCHEDULES: Final = {"steps": (Steps, "users in steps"), "burst": (Burst, "all requests at once")}


@dataclass(frozen=True)
class _Number:
    """What a run is compared with: how much worse it may be, and why it is not one of such a run."""

    kind: ReferenceKind
    value: float
    too_few: str
    tolerance: float | None = None
    of_best_step: bool = False
    disagreements: Sequence[str] = ()
    notes: tuple[Reason, ...] = ()


def judge_limit(
    measurement: Measurement, metric: Metric, limit: float, *, tolerance: float, rounds: Sequence[Round] = ()
) -> Judgement:
    """Compare all that was measured, pooled, with a number in the metric's unit.

    Args:
        measurement: What was measured.
        metric: What is compared.
        limit: The number.
        tolerance: Of the metric, by which a quantile has to have its requests.
        rounds: In which it was measured, where that was beside another server.
    """
    more = "give the schedule more" if measurement.shape.finite else "give it longer: load(..., seconds=...)"
    return _judged(measurement, metric, _Number("limit", limit, f"; {more}"), tolerance, rounds)


def judge_published(
    measurement: Measurement, metric: Metric, entry: PublishedEntry, *, tolerance: float, rounds: Sequence[Round] = ()
) -> Judgement:
    """Compare all that was measured, pooled, with a number that was printed.

    It passes where it is not worse by more than the tolerance. Where the run is not what the number is of, there
    is nothing to compare with.

    Args:
        measurement: What was measured.
        metric: What is compared.
        entry: Where the metric was printed.
        tolerance: Of the metric.
        rounds: In which it was measured, where that was beside another server.
    """
    schedule = measurement.shape.schedule
    number = _Number(
        "published",
        entry.record.values[metric.name],
        ": give it longer",
        tolerance=tolerance,
        # The best step's throughput, for a peak is what was printed.
        of_best_step=metric.name == "throughput" and entry.record.schedule == "steps" and isinstance(schedule, Steps),
        disagreements=disagreements(entry, measurement.run.card, schedule, measurement.target.requests),
        notes=_notes(entry),
    )
    return _judged(measurement, metric, number, tolerance, rounds)


def _judged(
    measurement: Measurement, metric: Metric, number: _Number, tolerance: float, rounds: Sequence[Round]
) -> Judgement:
    """Compare the pooled value with a number, without statistics."""
    run, kind, reference = measurement.run, number.kind, number.value
    if run.invalid:
        return Judgement.invalid(metric, kind, *run.invalid, reference=reference)
    try:
        demand_own_card(metric, rounds)
        value = (
            max(step.throughput for step in run.steps) if number.of_best_step else pooled_value(metric, run.sessions)
        )
    except NotMeasured as problem:
        return Judgement.invalid(metric, kind, problem.reason, reference=reference)
    if number.disagreements:
        reasons = [Reason(ReasonKind.NOT_COMPARABLE, text) for text in number.disagreements]
        return Judgement.missing(metric, kind, *reasons, *number.notes[:1], value=value)
    too_few = too_few_requests(metric, run.sessions, tolerance)
    if too_few:
        reason = Reason(ReasonKind.TOO_FEW_REQUESTS, f"{too_few}{number.too_few}")
        return Judgement(
            metric, Verdict.INCONCLUSIVE, kind, value=value, reference=reference, reasons=(reason, *number.notes)
        )
    loss = number.tolerance or 0.0
    good = value >= reference * (1 - loss) if metric.higher_is_better else value <= reference * (1 + loss)
    return Judgement(
        metric,
        Verdict.PASS if good else Verdict.REGRESSED,
        kind,
        value=value,
        reference=reference,
        change=value / reference - 1,
        tolerance=number.tolerance,
        rounds=len(run.sessions),
        reasons=number.notes,
    )


def disagreements(
    entry: PublishedEntry, card: Card | None, schedule: Schedule, requests: Sequence[Request]
) -> list[str]:
    """Why a published number is not one of such a run: another device, load, or number of items in a request.

    Whether it is the same model, nobody can tell but the test.

    Args:
        entry: The published number.
        card: On which the server ran; None where nobody knows.
        schedule: The run's load.
        requests: What was sent.
    """
    device = None if card is None else card.name
    found = []
    if device != entry.device:
        ran = "nobody knows on which card this server ran" if device is None else f"this run was on {device}"
        found.append(f"the published number is of {entry.device}, and {ran}")
    return [*found, *_load(entry, schedule), *_items(entry, requests)]


def items_of(request: Request) -> int | None:
    """Items in a request of KServe v2, by the first dimension of its inputs; None where the request does not say."""
    if not _is_kserve(request):
        return None
    length = next((value for name, value in request.headers.items() if name.lower() == HEADER_LENGTH.lower()), None)
    try:
        body = request.body if length is None else request.body[: int(length)]
        firsts = {tensor["shape"][0] for tensor in json.loads(body)["inputs"]}
    except (ValueError, LookupError, TypeError):
        return None
    (first, *others) = firsts or {None}
    return first if type(first) is int and not others else None


def _is_kserve(request: Request) -> bool:
    return request.path.startswith("/v2/models/") and request.path.endswith("/infer")


def _load(entry: PublishedEntry, schedule: Schedule) -> list[str]:
    record = entry.record
    if record.schedule == "closed":
        users = record.keys["concurrency"]
        if schedule == Closed(int(users)):
            return []
        asked, how = f"a closed loop of {users} users", ", ".join(schedule.workload().values())
        return [f"the published number is of {asked} who send at once, this load is: {how}"]
    if record.schedule == "none":
        return [f"the published number is of no server under load ({record.load})"]
    kind, text = _SCHEDULES[record.schedule]
    if isinstance(schedule, kind):
        return []
    return [f"the published number is of {text}, this load is: {', '.join(schedule.workload().values())}"]


def _items(entry: PublishedEntry, requests: Sequence[Request]) -> list[str]:
    batch = entry.record.keys.get("batch")
    if batch is None:
        return []
    known = {items_of(request) for request in requests}
    # A request that is none of KServe's is one item: nothing else is known of it, and nothing says that it is a batch.
    if known == {batch} or (batch == 1 and not any(map(_is_kserve, requests))):
        return []
    sent = ", ".join("an unknown number" if items is None else str(items) for items in sorted(known, key=str))
    return [f"the published number is of {batch} items a request, this run's requests carry {sent}"]


def _notes(entry: PublishedEntry) -> tuple[Reason, ...]:
    """What a report has to say of the number: first where it is from, then what is wrong with it and what it is not."""
    printed, throughput = entry.record.printed, entry.record.values.get("throughput")
    is_other = printed is not None and printed.throughput != throughput
    notes = (
        *([f"throughput is printed as {printed.throughput:.10g} {printed.unit}"] if printed and is_other else []),
        *(f"bias: {bias}" for bias in entry.record.bias),
        *([STEPS_UNKNOWN] if entry.record.schedule == "steps" else []),
        NO_CLAIM,
    )
    return tuple(Reason(ReasonKind.PUBLISHED, note) for note in (f"published: {entry.provenance}", *notes))


SUITES: Final = "suites"
"""Folder of suites in a project: each has its name below it."""


@dataclass(frozen=True, eq=False, repr=False)
class PublishedReference(Reference):
    """A metric that was printed.

    Args:
        metric: Which metric.
        entry: Where it was printed, with its value.
    """

    kind: ClassVar[ReferenceKind] = "published"

    entry: PublishedEntry = field(repr=False)

    @property
    def value(self) -> float:
        """What was printed, in the metric's unit."""
        return self.entry.record.values[self.metric.name]

    def __float__(self) -> float:
        return self.value

    def __repr__(self) -> str:
        return f"{super().__repr__()} {format_value(self.value, self.metric.unit)}"

    def compared(self, run: Run) -> Comparison:
        """See `Reference`."""
        return run.judge.against_published(run, self.metric, self.entry)


class Published(Sides[PublishedReference]):
    """What was published of one measurement; its metrics are compared with those of a run.

    Args:
        entry: What was printed, as the file has it.
    """

    def __init__(self, entry: PublishedEntry) -> None:
        super().__init__(self._reference)
        self.entry = entry

    def __repr__(self) -> str:
        return f"Published({self.entry})"

    def _reference(self, metric: Metric) -> PublishedReference:
        values = self.entry.record.values
        if metric.name not in values:
            printed = [name for name in values if name in METRICS]
            raise UsageProblem(
                f"{metric.name} was not printed in {self.entry}",
                found=f"printed: {', '.join(printed)}" if printed else "no metric of a run was printed there",
                remedies=["gate it against a baseline of your own: baseline." + metric.name],
            )
        return PublishedReference(metric, self.entry)


def find_published(
    folder: Path, device: str, suite: str | None, path: Path, wanted: Mapping[str, object]
) -> Published | NothingPublished:
    """Find the published numbers that a test asks for.

    Args:
        folder: Of baselines.
        device: The device of this session.
        suite: The suite; None for that of the test's file.
        path: The test's file, relative to the project's root.
        wanted: Keywords that narrow the entries down to one.

    Raises:
        UsageProblem: There is no such suite or keyword, or several entries are left.
        BaselineUnusable: A file cannot be read or trusted.
    """
    name = suite_of(path) if suite is None else suite
    entries = read_published(folder, name)
    if entries:
        found = select(entries, device, name, wanted)
        return found if isinstance(found, NothingPublished) else Published(found)
    known = suites(folder)
    if not known:
        return NothingPublished(f"no number was published for {device} in {name}: {folder} has none at all")
    raise UsageProblem(
        f"published(...): no numbers were published for the suite {name!r}",
        looked=[str(folder / "*" / "published" / f"{name}.json")],
        remedies=[f"there are: {', '.join(known)}; name one with published(suite=...)"],
    )


def suite_of(path: Path) -> str:
    """The suite of a test's file: ``suites/tft/test_online.py`` is of ``tft``.

    Raises:
        UsageProblem: The file does not lie in a folder below ``suites``.
    """
    parts = path.parts
    if len(parts) < 3 or parts[0] != SUITES:
        raise UsageProblem(
            f"published(...): {path} lies in no folder below {SUITES}/, whose name would be the suite",
            remedies=["name it: published(suite='distilbert', ...)"],
        )
    return parts[1]
