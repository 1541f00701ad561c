"""The command: reads both sides, compares them, and prints it for people or as JSON for programs."""

from __future__ import annotations

import argparse
import math
import os
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuserve.compare.comparison import CompareOptions, compare_sides
from pytest_gpuserve.compare.side import read_side
from pytest_gpuserve.errors import GpuserveError
from pytest_gpuserve.gate.metric import METRICS, metric_by_option
from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.process.command_line import refused, run_command
from pytest_gpuserve.process.secrets import masked
from pytest_gpuserve.report.explain import reasons_of
from pytest_gpuserve.report.names import printable, with_texts
from pytest_gpuserve.report.result_json import json_text
from pytest_gpuserve.report.results import RunResult, TestResult
from pytest_gpuserve.report.terminal import table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpuserve.compare.comparison import LoadComparison, SideComparison, Unchanged
    from pytest_gpuserve.compare.loads import LoadKey
    from pytest_gpuserve.gate.metric import Metric
    from pytest_gpuserve.gate.verdict import Judgement

DEFAULT_METRICS: Final = (
    "throughput, latencies, batching ratio, and of those on request what a result's verdicts or a baseline's anchors"
    " name"
)

EPILOG: Final = (
    "Exit status: 0 where nothing is worse; 1 where something is REGRESSED, or where that is not known: INCONCLUSIVE,"
    " INVALID, MISSING (A has it and B does not, or another workload, device or host), or nothing could be compared;"
    " 2 for a wrong argument or a file that cannot be used."
)


SCHEMA: Final = 2

GRAVEST_FIRST: Final = tuple(Verdict)[::-1]
"""Why something cannot be judged before why it is undecided, before why it is worse."""


DEFAULT_TOLERANCES: Final = (
    "a baseline keeps none, and a result those of what its test compared; others are given by"
    " --tolerance=METRIC=FRACTION"
)


def main(arguments: Sequence[str]) -> int:
    """Compare, print, and return the exit status."""
    given = _parser().parse_args(arguments)
    question = CompareOptions(
        device=given.device,
        metrics=tuple(given.metric),
        tolerances=dict(given.tolerance),
        skip_missing=given.on_missing == "skip",
        skip_inconclusive=given.on_inconclusive == "skip",
    )
    folder = Path.cwd()
    try:
        a, b = (read_side(text, folder, folder / given.baseline_dir) for text in (given.a, given.b))
        comparison = compare_sides(a, b, question)
    except GpuserveError as problem:
        return refused(problem)
    if given.json:
        text = json_text(with_texts(_comparison_plain(comparison), masked))
    else:
        color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        text = _comparison_text(comparison, width=shutil.get_terminal_size().columns, color=color, shown=masked)
    print(text)  # noqa: T201 -- a command
    return 0 if comparison.is_well else 1


def run() -> int:
    """Run the command on this process's arguments."""
    return run_command(main)


def metric_named(text: str) -> Metric:
    """The metric that an argument names: ``latency.p99`` or, as in the marker, ``p99``.

    Raises:
        argparse.ArgumentTypeError: There is none.
    """
    try:
        return METRICS[text] if text in METRICS else metric_by_option(text)
    except KeyError:
        known = ", ".join(metric.option for metric in METRICS.values())
        raise argparse.ArgumentTypeError(f"{text!r} is no metric; there are {known}") from None


def _tolerance(text: str) -> tuple[str, float]:
    name, equals, number = text.partition("=")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not (equals and math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not METRIC=FRACTION, such as p99=0.1")
    metric = metric_named(name)
    try:
        metric.check_tolerance(value)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None
    return metric.name, value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pytest_gpuserve.compare",
        description="Compares two results, or two states of the baselines: A is the reference, B is judged.",
        epilog=EPILOG,
    )
    what = (
        "a result file, a baseline file, a folder of baselines, the address of one, REV: or REV:PATH; or a result of"
        " vLLM's bench, SGLang's bench_serving, GuideLLM or AIPerf, or a folder of them, one for each server start"
    )
    parser.add_argument("a", metavar="A", help=f"the reference: {what}")
    parser.add_argument("b", metavar="B", help=f"what is judged: {what}")
    parser.add_argument("--device", metavar="NAME", default="", help="only loads of this device, such as T4 or cpu")
    parser.add_argument(
        "--metric",
        action="append",
        default=[],
        type=metric_named,
        metavar="NAME",
        help=f"only this metric; may be repeated (default: {DEFAULT_METRICS})",
    )
    parser.add_argument(
        "--tolerance",
        action="append",
        default=[],
        type=_tolerance,
        metavar="METRIC=FRACTION",
        help="how much worse a metric may be, p99=0.1 where it may rise by 10 %%; may be repeated (default: a result's"
        " own, as its test says; baselines are compared at default tolerances, for a baseline keeps none)",
    )
    parser.add_argument(
        "--on-missing", choices=("fail", "skip"), default="fail", help="what B lacks, or cannot be compared"
    )
    parser.add_argument("--on-inconclusive", choices=("fail", "skip"), default="fail", help="what could not be decided")
    parser.add_argument(
        "--baseline-dir", metavar="DIR", default="baselines", help="the folder that REV: means (default: baselines)"
    )
    parser.add_argument("--json", action="store_true", help="print all of it as JSON")
    return parser


def _comparison_text(comparison: SideComparison, *, width: int, color: bool, shown: Callable[[str], str] = str) -> str:
    """What is shown of a comparison."""
    head = [f"A, the reference: {comparison.a}", f"B, what is judged: {comparison.b}"]
    rest = [
        *_reasons(comparison.compared),
        *_defaults(comparison.compared),
        *([f"not told by these files, and assumed: {'; '.join(comparison.untold)}"] if comparison.untold else []),
        *_listed("the same sessions in both", comparison.unchanged),
        *_listed("only in A", comparison.only_a),
        *_listed("only in B", comparison.only_b),
        _last(comparison),
    ]
    # The table has colours, and what it takes in is made printable by itself.
    drawn = table([with_texts(_test(each), shown) for each in comparison.compared], width=width, color=color)
    above, below = ([printable(shown(line)) for line in lines] for lines in (head, rest))
    return "\n".join([*above, *(["", drawn, ""] if comparison.compared else []), *below])


def _comparison_plain(comparison: SideComparison) -> dict[str, Any]:
    """A comparison as plain values, in the fields and units of ``--gpuserve-json``; schema 2."""
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
        "untold": list(comparison.untold),
        "only_a": [_plain_key(key) for key in comparison.only_a],
        "only_b": [_plain_key(key) for key in comparison.only_b],
    }


def _test(each: LoadComparison) -> TestResult:
    host = f"on {each.host}" if each.host else ""
    nodeid = f"{each.key.device}/{each.key.file}::{each.key.name}"
    return TestResult(nodeid, "", [RunResult(host, (), each.judgements, {}, {})])


def _reasons(compared: Sequence[LoadComparison]) -> list[str]:
    """Why verdicts are what they are, each reason once with how often it was given, the gravest verdict first."""
    judgements = [judgement for each in compared for judgement in each.judgements]
    count = Counter((judgement.verdict, reason.text) for judgement in judgements for reason in reasons_of(judgement))
    ordered = sorted(count, key=lambda reason: GRAVEST_FIRST.index(reason[0]))
    return [
        f"{verdict}: {reason}{f' ({count[verdict, reason]} metrics)' if count[verdict, reason] > 1 else ''}"
        for verdict, reason in ordered
    ]


def _defaults(compared: Sequence[LoadComparison]) -> list[str]:
    """That metrics were judged with tolerances that their tests may not have."""
    names = [name for name in METRICS if any(name in each.by_default for each in compared)]
    return [f"default tolerances of {', '.join(names)}: {DEFAULT_TOLERANCES}"] if names else []


def _listed(what: str, named: Sequence[LoadKey | Unchanged]) -> list[str]:
    return [f"{what}: {each}" for each in named]


def _last(comparison: SideComparison) -> str:
    count = Counter(judgement.verdict for each in comparison.compared for judgement in each.judgements)
    found = [f"{count[verdict]} {verdict}" for verdict in GRAVEST_FIRST if count[verdict]]
    rest = [
        f"{len(keys)} {what}"
        for what, keys in (
            ("unchanged", comparison.unchanged),
            ("only in A", comparison.only_a),
            ("only in B", comparison.only_b),
        )
        if keys
    ]
    counted = ", ".join([*found, *rest])
    if not (comparison.compared or comparison.unchanged):
        return f"nothing was compared: A and B have no load in common{f' ({counted})' if counted else ''}"
    if not comparison.has_substance:
        return f"nothing could be compared: {counted}"
    return f"{'nothing is worse' if comparison.is_well else 'not well'}: {counted}"


def _plain_key(key: LoadKey) -> Mapping[str, str]:
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
