"""What was measured as properties of a test case in a JUnit file, which CI systems show beside its outcome.

A property is named ``gpuserve.METRIC.FIELD``, and of a load with a name ``gpuserve.LOAD.METRIC.FIELD``. Where a metric
was compared with several references, these are of the one that has the last word, and a further one has its kind in the
name: ``gpuserve.throughput.limit.verdict``. What was measured to settle what a baseline says of a
load is one of its references. Values are plain numbers in the units of ``--gpuserve-json``; what is not known is not
there.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.report.names import printable
from pytest_gpuserve.report.ranking import Row, rows_of
from pytest_gpuserve.report.results import TestResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pytest_gpuserve.report.results import RunResult
    from pytest_gpuserve.verdict.verdict import Judgement

PROBLEM: Final = "gpuserve.problem"
"""Why the test did not pass, where what pytest writes of it was cut for a terminal."""

_KINDS: Final = ("baseline", "against", "duel", "limit")
"""Kinds of references: of those that decide something the first one has the plain name."""


def properties(runs: Iterable[RunResult]) -> list[tuple[str, str]]:
    """What is known of the metrics of a test's loads, as names and values."""
    loads: dict[str, list[Row]] = {}
    for row in rows_of(TestResult("", "", list(runs))):
        loads.setdefault(row.run.label, []).append(row)
    return [
        (name, value)
        for label, rows in loads.items()
        for place, judgement in _places(rows)
        for name, value in _fields(f"gpuserve.{_within(label)}{place}", judgement)
    ]


def _within(label: str) -> str:
    # pytest makes values fit for XML, and not names.
    return f"{printable(label)}." if label else ""


def _places(rows: Sequence[Row]) -> Iterator[tuple[str, Judgement]]:
    """The judgements of a load, each with a name that no other has."""
    taken: set[str] = set()
    for row in sorted(rows, key=_by_weight):
        plain = row.judgement.metric.name
        kind = f"{plain}.{row.judgement.reference_kind}"
        numbered = (f"{kind}.{number}" for number in range(2, len(rows) + 2))
        name = next(name for name in (plain, kind, *numbered) if name not in taken)
        taken.add(name)
        yield name, row.judgement


def _by_weight(row: Row) -> int:
    return _KINDS.index(row.judgement.reference_kind)


def _fields(place: str, judgement: Judgement) -> Iterator[tuple[str, str]]:
    fields = {
        "verdict": str(judgement.verdict),
        "value": judgement.value,
        "unit": judgement.unit,
        "reference": judgement.reference,
        "reference_kind": judgement.reference_kind,
        "change": judgement.change,
        "interval": None if judgement.interval is None else json.dumps(judgement.interval),
        "tolerance": judgement.tolerance,
        "detectable": judgement.detectable,
        "rounds": judgement.rounds or None,
        "windows": judgement.windows or None,
        "reasons": "\n".join(map(printable, "\n".join(map(str, judgement.reasons)).splitlines())),
    }
    for name, value in fields.items():
        if value not in {None, ""}:
            yield f"{place}.{name}", str(value)
