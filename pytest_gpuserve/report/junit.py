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

import msgspec

from pytest_gpuserve.report.names import printable
from pytest_gpuserve.report.result_json import verdict_record

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
    # pytest makes values fit for XML, and not names.
    return [
        (f"gpuserve.{f'{printable(run.label)}.' if run.label else ''}{place}.{name}", value)
        for run in runs
        for place, judgement in _places(run.judgements)
        for name, value in _fields(judgement)
    ]


def _places(judgements: Sequence[Judgement]) -> Iterator[tuple[str, Judgement]]:
    """The judgements of a load, each with a name that no other has."""
    taken: set[str] = set()
    for judgement in sorted(judgements, key=lambda each: _KINDS.index(each.reference_kind)):
        plain = judgement.metric.name
        kind = f"{plain}.{judgement.reference_kind}"
        numbered = (f"{kind}.{number}" for number in range(2, len(judgements) + 2))
        name = next(name for name in (plain, kind, *numbered) if name not in taken)
        taken.add(name)
        yield name, judgement


def _fields(judgement: Judgement) -> Iterator[tuple[str, str]]:
    """Those of the JSON result, as texts; what is not known is left out."""
    fields = msgspec.to_builtins(verdict_record(judgement, ""))
    for name in ("metric", "run", "why"):
        del fields[name]
    if fields["interval"] is not None:
        fields["interval"] = json.dumps(fields["interval"])
    fields["reasons"] = "\n".join(printable(line) for reason in fields["reasons"] for line in reason.splitlines())
    for name in ("rounds", "windows"):
        fields[name] = fields[name] or None
    for name, value in fields.items():
        if value not in {None, ""}:
            yield name, str(value)
