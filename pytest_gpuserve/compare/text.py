"""A comparison for people, and as JSON for programs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuserve.gate.metric import METRICS
from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.report.explain import reasons_of
from pytest_gpuserve.report.names import printable
from pytest_gpuserve.report.results import RunResult, TestResult
from pytest_gpuserve.report.terminal import table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpuserve.compare.comparison import Compared, Comparison, Unchanged
    from pytest_gpuserve.compare.load import Key
    from pytest_gpuserve.gate.verdict import Judgement

SCHEMA: Final = 2

TOLD_FIRST: Final = tuple(Verdict)[::-1]
"""Why something cannot be judged before why it is undecided, before why it is worse."""


DEFAULT_TOLERANCES: Final = (
    "a baseline keeps none, and a result those of what its test compared; others are given by"
    " --tolerance=METRIC=FRACTION"
)


def comparison_text(comparison: Comparison, *, width: int, color: bool, shown: Callable[[str], str] = str) -> str:
    """What is shown of a comparison.

    Args:
        comparison: What came of it.
        width: Columns of the terminal.
        color: Whether it understands colours.
        shown: Makes each text of the two sides fit to be shown, before it is laid out.
    """
    head = [f"A, the reference: {comparison.a}", f"B, what is judged: {comparison.b}"]
    rest = [
        *_reasons(comparison.compared),
        *_defaults(comparison.compared),
        *_listed("the same sessions in both", comparison.unchanged),
        *_listed("only in A", comparison.only_a),
        *_listed("only in B", comparison.only_b),
        _last(comparison),
    ]
    # The table has colours, and what it takes in is made printable by itself.
    drawn = table([_test(each) for each in comparison.compared], width=width, color=color, shown=shown)
    told, more = ([printable(shown(line)) for line in lines] for lines in (head, rest))
    return "\n".join([*told, *(["", drawn, ""] if comparison.compared else []), *more])


def comparison_plain(comparison: Comparison) -> dict[str, Any]:
    """A comparison as plain values, in the fields and units of ``--gpuserve-json``; schema 2.

    Schema 1 had the tolerance and the detectable change as growths of the cost.
    """
    return {
        "schema": SCHEMA,
        "a": comparison.a,
        "b": comparison.b,
        "well": comparison.is_well,
        "loads": [
            {
                **_plain_key(each.key),
                "host": each.host or None,
                "default_tolerances": [name for name in METRICS if name in each.by_default],
                "verdicts": [_plain(judgement) for judgement in each.judgements],
            }
            for each in comparison.compared
        ],
        "unchanged": [{**_plain_key(each.key), "host": each.host or None} for each in comparison.unchanged],
        "only_a": [_plain_key(key) for key in comparison.only_a],
        "only_b": [_plain_key(key) for key in comparison.only_b],
    }


def _test(each: Compared) -> TestResult:
    host = f"on {each.host}" if each.host else ""
    nodeid = f"{each.key.device}/{each.key.file}::{each.key.name}"
    return TestResult(nodeid, "", [RunResult(host, (), each.judgements, {}, {})])


def _reasons(compared: Sequence[Compared]) -> list[str]:
    """Why verdicts are what they are, each reason once with how often it was given, the gravest verdict first."""
    judgements = [judgement for each in compared for judgement in each.judgements]
    count = Counter((judgement.verdict, reason) for judgement in judgements for reason in reasons_of(judgement))
    ordered = sorted(count, key=lambda told: TOLD_FIRST.index(told[0]))
    return [
        f"{verdict}: {reason}{f' ({count[verdict, reason]} metrics)' if count[verdict, reason] > 1 else ''}"
        for verdict, reason in ordered
    ]


def _defaults(compared: Sequence[Compared]) -> list[str]:
    """That metrics were judged with tolerances that their tests may not have."""
    names = [name for name in METRICS if any(name in each.by_default for each in compared)]
    return [f"default tolerances of {', '.join(names)}: {DEFAULT_TOLERANCES}"] if names else []


def _listed(what: str, named: Sequence[Key | Unchanged]) -> list[str]:
    return [f"{what}: {each}" for each in named]


def _last(comparison: Comparison) -> str:
    count = Counter(judgement.verdict for each in comparison.compared for judgement in each.judgements)
    found = [f"{count[verdict]} {verdict}" for verdict in TOLD_FIRST if count[verdict]]
    rest = [
        f"{len(keys)} {what}"
        for what, keys in (
            ("unchanged", comparison.unchanged),
            ("only in A", comparison.only_a),
            ("only in B", comparison.only_b),
        )
        if keys
    ]
    told = ", ".join([*found, *rest])
    if not (comparison.compared or comparison.unchanged):
        return f"nothing was compared: A and B have no load in common{f' ({told})' if told else ''}"
    if not comparison.has_substance:
        return f"nothing could be compared: {told}"
    return f"{'nothing is worse' if comparison.is_well else 'not well'}: {told}"


def _plain_key(key: Key) -> Mapping[str, str]:
    return {"device": key.device, "file": key.file, "test": key.name}


def _plain(judgement: Judgement) -> dict[str, Any]:
    return {
        "metric": judgement.metric.name,
        "verdict": str(judgement.verdict),
        "value": judgement.value,
        "unit": judgement.unit,
        "reference": judgement.reference,
        "change": judgement.change,
        "interval": None if judgement.interval is None else list(judgement.interval),
        "tolerance": judgement.tolerance,
        "detectable": judgement.detectable,
        "sessions": judgement.rounds,
        "reasons": list(map(str, judgement.reasons)),
    }
