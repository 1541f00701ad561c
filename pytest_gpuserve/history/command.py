"""The command: reads git's history and result files, and draws each metric's line."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.compare.command import DEFAULT_METRICS, metric_named
from pytest_gpuserve.compare.repository import Repository
from pytest_gpuserve.errors import GpuserveError, UsageProblem
from pytest_gpuserve.gate.metric import METRICS
from pytest_gpuserve.history.change_points import demand_library
from pytest_gpuserve.history.line import lines_of
from pytest_gpuserve.history.observation import Wanted, compared_of, drawn_once, in_order, of_editions, of_result
from pytest_gpuserve.history.text import BLOCKS, lines_plain, lines_text
from pytest_gpuserve.history.walk import walk
from pytest_gpuserve.process.command_line import masked, refused, run_command
from pytest_gpuserve.report.html.page import history_document
from pytest_gpuserve.report.result_json import json_text
from pytest_gpuserve.report.schema import read_result
from pytest_gpuserve.store.atomic import write_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.compare.loads import LoadKey
    from pytest_gpuserve.history.line import Line
    from pytest_gpuserve.history.walk import Edition

TITLE: Final = "History of the baselines"


def main(arguments: Sequence[str]) -> int:
    """Read, draw, and return the exit status."""
    given = _parser().parse_args(arguments)
    try:
        lines, notes = _lines(given)
        if given.html is not None:
            _write(given.html, lines)
    except GpuserveError as problem:
        return refused(problem)
    if given.json:
        text = json_text(lines_plain(lines, notes), masked)
    else:
        blocks = _is_known(BLOCKS, sys.stdout.encoding)
        text = lines_text(lines, notes, width=shutil.get_terminal_size().columns, blocks=blocks, shown=masked)
    if not lines:
        print("there is nothing to draw: no baseline and no result fits", file=sys.stderr)  # noqa: T201 -- a command
    if given.html is not None:
        print(f"{len(lines)} {'line' if len(lines) == 1 else 'lines'} drawn in {given.html}", file=sys.stderr)  # noqa: T201 -- a command
    if text:
        print(text)  # noqa: T201 -- a command
    return 0 if lines else 1


def run() -> int:
    """Run the command on this process's arguments."""
    return run_command(main)


def fits(key: LoadKey, pattern: str) -> bool:
    """Whether a load's name has a text in it, in which ``*`` stands for any other.

    Brackets stand for themselves, for parametrised tests are named with them.

    Args:
        key: What the load is called; its file and its test are looked at together.
        pattern: The text.
    """
    looked_for = ".*".join(re.escape(part) for part in pattern.split("*"))
    return re.search(looked_for, f"{key.file}::{key.name}", re.DOTALL) is not None


def _lines(given: argparse.Namespace) -> tuple[list[Line], list[str]]:
    """The lines that were asked for, and what could not be read.

    Raises:
        GpuserveError: Something cannot be used.
    """
    if given.change_points:
        demand_library()
    notes: list[str] = []
    files = [(name, read_result(name, _content(name))) for name in given.results]
    editions = _editions(given, notes)
    wanted = Wanted(
        has=lambda key: given.device in {"", key.device} and fits(key, given.test),
        metrics=tuple(given.metric),
        compared=compared_of(editions, files),
    )
    results = [each for name, result in files for each in of_result(name, result, wanted, notes)]
    baselines = of_editions(editions, wanted, notes)
    observations = in_order(baselines, drawn_once(results, baselines, notes))
    return lines_of(observations, given.metric or list(METRICS.values()), find_changes=given.change_points), notes


def _editions(given: argparse.Namespace, notes: list[str]) -> list[Edition]:
    """The editions of git's history; where result files are given, a folder outside of git has none.

    Raises:
        UsageProblem: Git cannot be asked, or does not know the revision.
    """
    folder = Path.cwd()
    try:
        repository = Repository.around(folder, "the history of baselines")
    except UsageProblem as problem:
        if not given.results or given.since:
            raise
        notes.append(f"no history of baselines: {problem.found or problem.summary}")
        return []
    since = repository.commit(given.since).hash if given.since else None
    if since is not None and not repository.has_in_its_past(since):
        raise UsageProblem(
            f"--since={given.since}: HEAD was not built upon it, so nothing came after it",
            remedies=[f"where the two parted: --since=$(git merge-base HEAD {given.since})"],
        )
    walked = walk(repository, repository.within(folder / given.baseline_dir), since)
    notes.extend(walked.notes)
    return walked.editions


def _content(name: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except OSError as problem:
        raise UsageProblem(f"{name} cannot be read", found=str(problem)) from None


def _write(name: str, lines: Sequence[Line]) -> None:
    text = history_document([line.drawn() for line in lines], TITLE, masked)
    try:
        write_whole(Path(name), text.encode(errors="backslashreplace"))
    except OSError as problem:
        raise UsageProblem(f"--html: {name} cannot be written", found=str(problem)) from None


def _is_known(signs: str, encoding: str | None) -> bool:
    try:
        signs.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pytest_gpuserve.history",
        description="Draws what each metric was over time: in the baselines that git has, and in result files.",
        epilog="Exit status: 0 where there was something to draw, 1 where there was nothing, 2 for a wrong argument or"
        " a file that cannot be used.",
    )
    parser.add_argument("results", metavar="RESULT.json", nargs="*", help="a result file of --gpuserve-json")
    parser.add_argument("--device", metavar="NAME", default="", help="only of this device, such as T4 or cpu")
    parser.add_argument(
        "--test", metavar="PATTERN", default="", help="only tests with this in their names; * is any text"
    )
    parser.add_argument(
        "--metric",
        action="append",
        default=[],
        type=metric_named,
        metavar="NAME",
        help=f"only this metric; may be repeated (default: {DEFAULT_METRICS})",
    )
    parser.add_argument("--since", metavar="REV", default="", help="only what this commit had, and what came after it")
    parser.add_argument("--html", metavar="FILE", help="draw them as a page, too, which needs no network")
    parser.add_argument("--json", action="store_true", help="print all of it as JSON")
    parser.add_argument(
        "--no-change-points",
        dest="change_points",
        action="store_false",
        help="do not look for change points, which needs an extra: pip install 'pytest-gpuserve[history]'",
    )
    parser.add_argument(
        "--baseline-dir", metavar="DIR", default="baselines", help="the folder of baselines (default: baselines)"
    )
    return parser
