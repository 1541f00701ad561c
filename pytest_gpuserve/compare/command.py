"""The command: reads both sides, prints what came of comparing them, and says it by its exit status."""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.compare.comparison import Question, compare_sides
from pytest_gpuserve.compare.side import read_side
from pytest_gpuserve.compare.text import comparison_plain, comparison_text
from pytest_gpuserve.errors import GpuserveError
from pytest_gpuserve.gate.metric import METRICS, metric_by_option
from pytest_gpuserve.process.command_line import masked, refused, run_command
from pytest_gpuserve.report.result_json import with_texts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.gate.metric import Metric

DEFAULT_METRICS: Final = (
    "throughput, latencies, batching ratio, and of those on request what a result's verdicts or a baseline's anchors"
    " name"
)

EPILOG: Final = (
    "Exit status: 0 where nothing is worse; 1 where something is REGRESSED, or where that is not known: INCONCLUSIVE,"
    " INVALID, MISSING (A has it and B does not, or another workload, device or host), or nothing could be compared;"
    " 2 for a wrong argument or a file that cannot be used."
)


def main(arguments: Sequence[str]) -> int:
    """Compare, print, and return the exit status."""
    given = _parser().parse_args(arguments)
    question = Question(
        device=given.device,
        metrics=tuple(given.metric),
        tolerances=dict(given.tolerance),
        skip_missing=given.on_missing == "skip",
        skip_inconclusive=given.on_inconclusive == "skip",
    )
    folder = Path.cwd()
    try:
        a, b = (read_side(text, folder, folder / given.baseline_dir) for text in (given.a, given.b))
    except GpuserveError as problem:
        return refused(problem)
    comparison = compare_sides(a, b, question)
    if given.json:
        text = json.dumps(with_texts(comparison_plain(comparison), masked), indent=1, allow_nan=False)
    else:
        color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        text = comparison_text(comparison, width=shutil.get_terminal_size().columns, color=color, shown=masked)
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
    what = "a result file, a baseline file, a folder of baselines, the address of one, REV: or REV:PATH"
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
