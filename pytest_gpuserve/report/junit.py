"""Measurements as properties of a test case in a JUnit file, which CI systems show beside its outcome.

A property is named ``gpuserve.METRIC.FIELD``, or for a load with a name ``gpuserve.LOAD.METRIC.FIELD``. If a metric was
compared with several references, these are the fields of the one that decided last. A further reference has its kind in
the name: ``gpuserve.throughput.limit.verdict``. The side-by-side comparison that settles a baseline's verdict is one of
the references. Values are plain numbers in the units of ``--gpuserve-json``; unknown values are absent.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.report.names import printable
from pytest_gpuserve.report.result_json import plain_verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pytest_gpuserve.report.results import RunResult
    from pytest_gpuserve.verdict.verdict import Judgement

PROBLEM: Final = "gpuserve.problem"
"""Reason why the test did not pass, if pytest's own text was cut for a terminal."""

_KINDS: Final = ("baseline", "against", "duel", "limit")
"""Kinds of references: the first one that decided has the plain name."""


def properties(runs: Iterable[RunResult]) -> list[tuple[str, str]]:
    """Known facts of the metrics of a test's loads, as names and values."""
    # pytest escapes values for XML, but not names.
    return [
        (f"gpuserve.{f'{printable(run.label)}.' if run.label else ''}{place}.{name}", value)
        for run in runs
        for place, judgement in _places(run.judgements)
        for name, value in _fields(judgement)
    ]


def _places(judgements: Sequence[Judgement]) -> Iterator[tuple[str, Judgement]]:
    """The judgements of a load, each with a unique name: it has one of a metric for each kind of reference."""
    taken: set[str] = set()
    for judgement in sorted(judgements, key=lambda each: _KINDS.index(each.reference_kind)):
        plain = judgement.metric.name
        yield f"{plain}.{judgement.reference_kind}" if plain in taken else plain, judgement
        taken.add(plain)


def _fields(judgement: Judgement) -> Iterator[tuple[str, str]]:
    """Fields of the JSON result as texts; unknown ones are left out."""
    fields = plain_verdict(judgement, "")
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
