"""The command: reads results or baselines of several runners, and makes one of them."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.errors import GpuserveError, UsageProblem
from pytest_gpuserve.merge.baselines import merge_baselines
from pytest_gpuserve.merge.merged import merge, merged_text
from pytest_gpuserve.merge.shards import read_shard
from pytest_gpuserve.plugin.outputs import STEP_SUMMARY, Form, Output, Written, write_outputs
from pytest_gpuserve.process.command_line import content_of, refused, run_command
from pytest_gpuserve.process.secrets import masked
from pytest_gpuserve.report.names import with_texts
from pytest_gpuserve.report.result_json import json_text
from pytest_gpuserve.store import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpuserve.merge.merged import Merged


EPILOG: Final = (
    "Exit status: 0 where all tests have passed or were skipped; 1 where one has not, or there is none, or where pytest"
    " did not end on a runner as its tests say, as when it was stopped; 2 for a wrong argument, and where the files"
    " cannot be read, are not of one run or not all of it, or contradict each other: nothing is written then."
)

_FORMS: Final = {"report": Form.HTML, "markdown": Form.MARKDOWN}


def main(arguments: Sequence[str]) -> int:
    """Merge, print, and return the exit status."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if bool(given.baselines) != bool(given.into) or bool(given.baselines) == bool(given.files):
        parser.error("give result files, or --baselines DIR ... with --into DIR")
    if given.baselines and (given.json or given.report or given.markdown or given.expect):
        parser.error("--json, --report, --markdown and --expect are for result files, not for --baselines")
    try:
        if given.baselines:
            _say(merge_baselines(given.baselines, given.into))
            return 0
        return _merge_results(given)
    except GpuserveError as problem:
        return refused(problem)


def _merge_results(given: argparse.Namespace) -> int:
    outputs = _outputs(given)
    json_file = Path(given.json) if given.json else None
    _clear([*([json_file] if json_file else []), *(output.path for output in outputs if output.ours)], given.files)
    shards = [read_shard(name, content_of(name)) for name in given.files]
    merged = merge(shards, expected=given.expect)
    result = with_texts(merged.result(), masked)
    lines = [] if json_file is None else [_write_json(json_file, merged)]
    written = write_outputs(outputs, result)
    color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    width = shutil.get_terminal_size().columns
    unsure = _nobody_counts(given, merged)
    lines = [masked(line) for line in (*unsure, *lines, *written.lines)]
    print(merged_text(result, lines, width=width, color=color))  # noqa: T201 -- a command
    return _status(merged, written)


def _status(merged: Merged, written: Written) -> int:
    if written.failed:
        return 2
    return 0 if merged.has_passed else 1


def _nobody_counts(given: argparse.Namespace, merged: Merged) -> list[str]:
    """Say that nobody could tell if a result is missing."""
    if given.expect is not None or any(shard.result.shard is not None for shard in merged.joined.shards):
        return []
    count = len(merged.joined.shards)
    return [f"whether these are all results is not known: --expect={count} refuses to merge fewer"]


def _outputs(given: argparse.Namespace) -> list[Output]:
    """The files that are asked for, and the summary of a step of GitHub's."""
    found = [
        Output(f"--{name}={getattr(given, name)}", form, Path(getattr(given, name)))
        for name, form in _FORMS.items()
        if getattr(given, name)
    ]
    summary = os.environ.get(STEP_SUMMARY)
    if summary:
        found.append(Output(f"${STEP_SUMMARY}", Form.STEP_SUMMARY, Path(summary), ours=False))
    return found


def _clear(outputs: Sequence[Path], files: Iterable[str]) -> None:
    """Remove what was written before: nobody must take it for what comes of these."""
    taken = {os.path.realpath(name): name for name in files}
    for path in outputs:
        place = os.path.realpath(path)
        if place in taken:
            raise UsageProblem(f"{path} would overwrite {taken[place]}", remedies=["name another file"])
        taken[place] = str(path)
    for path in outputs:
        try:
            path.unlink(missing_ok=True)
        except OSError as problem:
            raise UsageProblem(f"{path}: an older one cannot be removed", found=str(problem)) from None


def _write_json(path: Path, merged: Merged) -> str:
    text = json_text(with_texts(merged.plain(), masked)) + "\n"
    try:
        write_whole(path, text.encode())
    except OSError as problem:
        raise UsageProblem(f"--json: {path} cannot be written", found=str(problem)) from None
    return f"results: {path}"


def _say(lines: Iterable[str]) -> None:
    for line in lines:
        print(masked(line))  # noqa: T201 -- a command


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < int(text) < 10**6):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of results")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pytest_gpuserve.merge",
        description="Makes one result of those of several runners, each of which ran a part of a suite; or one folder"
        " of baselines of those that they have recorded.",
        epilog=EPILOG,
    )
    parser.add_argument("files", metavar="RESULT.json", nargs="*", help="a result file of --gpuserve-json")
    parser.add_argument("--json", metavar="FILE", help="write them as one result file")
    parser.add_argument(
        "--report", metavar="FILE", help="write a report for people: one HTML file that needs no network"
    )
    parser.add_argument("--markdown", metavar="FILE", help="write markdown, for a comment on a pull request")
    parser.add_argument(
        "--expect",
        metavar="N",
        type=_count,
        help="how many results there have to be at least; those of pytest-split say it by themselves",
    )
    parser.add_argument(
        "--baselines", metavar="DIR", nargs="+", default=[], help="folders of baselines that runners have recorded"
    )
    parser.add_argument("--into", metavar="DIR", help="the folder of baselines that all of these began with")
    return parser


if __name__ == "__main__":
    sys.exit(run_command(main))
