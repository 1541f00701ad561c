"""The command: reads git's history and result files, and draws each metric's line, for people or as JSON."""

from __future__ import annotations

import argparse
import math
import re
import shutil
import sys
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuserve.compare.command import DEFAULT_METRICS, metric_named
from pytest_gpuserve.compare.repository import Repository
from pytest_gpuserve.errors import GpuserveError, UsageProblem
from pytest_gpuserve.gate.metric import METRICS
from pytest_gpuserve.history.lines import FEWEST_POINTS, demand_library, lines_of
from pytest_gpuserve.history.observations import Wanted, compared_of, drawn_once, in_order, of_editions, of_result, walk
from pytest_gpuserve.process.command_line import content_of, refused, run_command
from pytest_gpuserve.process.secrets import masked
from pytest_gpuserve.report.html import history_document
from pytest_gpuserve.report.names import printable, with_texts
from pytest_gpuserve.report.result_json import json_text
from pytest_gpuserve.report.schema import read_result
from pytest_gpuserve.store import write_whole
from pytest_gpuserve.units import format_change, format_value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.compare.loads import LoadKey
    from pytest_gpuserve.history.lines import Change, HistoryLine, HistoryPoint
    from pytest_gpuserve.history.observations import Edition


TITLE: Final = "History of the baselines"

SCHEMA: Final = 1

BLOCKS: Final = "▁▂▃▄▅▆▇█"

PLAIN: Final = "_.-~=+*#"
"""What stands for the blocks where a terminal does not know them."""

INDENT: Final = "  "

NARROWEST: Final = 20
"""Columns below which a chart is not made narrower."""


def main(arguments: Sequence[str]) -> int:
    """Read, draw, and return the exit status."""
    given = _parser().parse_args(arguments)
    try:
        lines, notes = with_texts(_lines(given), masked)
        if given.html is not None:
            _write(given.html, lines)
    except GpuserveError as problem:
        return refused(problem)
    if given.json:
        text = json_text(_lines_plain(lines, notes))
    else:
        blocks = _is_known(BLOCKS, sys.stdout.encoding)
        text = _lines_text(lines, notes, width=shutil.get_terminal_size().columns, blocks=blocks)
    if not lines:
        print("there is nothing to draw: no baseline and no result fits", file=sys.stderr)  # noqa: T201 -- a command
    if given.html is not None:
        print(f"{len(lines)} {'line' if len(lines) == 1 else 'lines'} drawn in {given.html}", file=sys.stderr)  # noqa: T201 -- a command
    if text:
        print(text)  # noqa: T201 -- a command
    return 0 if lines else 1


def fits(key: LoadKey, pattern: str) -> bool:
    """Whether a load's name has a text in it, in which ``*`` stands for any other.

    Brackets stand for themselves, for parametrised tests are named with them.
    """
    looked_for = ".*".join(re.escape(part) for part in pattern.split("*"))
    return re.search(looked_for, f"{key.file}::{key.name}", re.DOTALL) is not None


def _lines(given: argparse.Namespace) -> tuple[list[HistoryLine], list[str]]:
    """The lines that were asked for, and what could not be read."""
    if given.change_points:
        demand_library()
    notes: list[str] = []
    files = [(name, read_result(name, content_of(name))) for name in given.results]
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
    """The editions of git's history; where result files are given, a folder outside of git has none."""
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


def _write(name: str, lines: Sequence[HistoryLine]) -> None:
    text = history_document([line.drawn() for line in lines], TITLE)
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


def _lines_text(lines: Sequence[HistoryLine], notes: Sequence[str], *, width: int, blocks: bool) -> str:
    """What is shown of lines."""
    parts = [_line_text(line, width=width, blocks=blocks) for line in lines]
    if notes:
        parts.append([f"note: {note}" for note in notes])
    return "\n\n".join("\n".join(printable(each) for each in part) for part in parts)


def _lines_plain(lines: Sequence[HistoryLine], notes: Sequence[str]) -> dict[str, Any]:
    """Lines as plain values: latencies in seconds, changes as fractions, null for what is not known; schema 1."""
    return {"schema": SCHEMA, "lines": [_plain_line(line) for line in lines], "notes": list(notes)}


def chart(values: Sequence[float], *, narrowest: float, blocks: bool) -> str:
    """A column a value, as high as its log lies between the least and the greatest.

    Args:
        values: Positive, in order.
        narrowest: Range of the log values that is drawn at least, about their middle: noise must not look like change.
        blocks: Whether block characters are known.
    """
    signs = BLOCKS if blocks else PLAIN
    logs = [math.log(value) for value in values]
    low, high = min(logs), max(logs)
    if high - low < narrowest:
        middle = median(logs)
        low, high = min(low, middle - narrowest / 2), max(high, middle + narrowest / 2)
    step = (high - low) / len(signs)
    return "".join(signs[min(len(signs) - 1, int((y - low) / step))] for y in logs)


def _line_text(line: HistoryLine, *, width: int, blocks: bool) -> list[str]:
    lines = [
        line.title,
        *([f"begins here: {line.because}"] if line.because else []),
        *(_drawn(line, width=width - len(INDENT), blocks=blocks) if len(line.places) > 1 else []),
        # Not "now": after a revert the checkout has an older one.
        "; last measured ".join(_point_text(line, place) for place in (*line.places[:1], *line.places[1:][-1:])),
        *(_change_text(line, change) for change in line.changes or ()),
        *([] if line.changes else [_unchanged(line)]),
        *(f"{place.observation.label}: {note}" for place in line.places for note in place.notes),
    ]
    return [f"{INDENT if number else ''}{each}" for number, each in enumerate(lines)]


def _drawn(line: HistoryLine, *, width: int, blocks: bool) -> list[str]:
    shown = line.places[-max(NARROWEST, width) :]
    left_out = len(line.places) - len(shown)
    values = [place.known.value for place in shown]
    marks = {change.point - left_out for change in line.changes or ()}
    pointed = "".join("^" if number in marks else " " for number in range(len(shown))).rstrip()
    low, high = (format_value(value, line.metric.unit) for value in (min(values), max(values)))
    counted = f"{len(line.places)} points{f', the last {len(shown)} drawn' if left_out else ''}"
    return [
        chart(values, narrowest=2 * math.log1p(line.metric.growth(line.metric.default_tolerance)), blocks=blocks),
        *([pointed] if pointed else []),
        f"{counted}, {low} .. {high}",
    ]


def _point_text(line: HistoryLine, place: HistoryPoint) -> str:
    unit = line.metric.unit
    spread = ""
    if place.known.low is not None and place.known.high is not None:
        spread = f" ({format_value(place.known.low, unit)} .. {format_value(place.known.high, unit)})"
    return f"{format_value(place.known.value, unit)}{spread} at {place.observation.label}"


def _change_text(line: HistoryLine, change: Change) -> str:
    unit = line.metric.unit
    word = "worse" if line.is_worse(change) else "better"
    return (
        f"{format_change(change.fraction)} ({word}) from {line.places[change.point].observation.label} on:"
        f" {format_value(change.before, unit)} before, {format_value(change.after, unit)} after"
    )


def _unchanged(line: HistoryLine) -> str:
    if line.changes is None:
        return "change points were not looked for"
    if len(line.places) < FEWEST_POINTS:
        return f"change points need {FEWEST_POINTS} points"
    return "no change of level was found"


def _plain_line(line: HistoryLine) -> dict[str, Any]:
    return {
        "device": line.key.device,
        "file": line.key.file,
        "test": line.key.name,
        "host": line.host,
        "metric": line.metric.name,
        "unit": line.metric.unit,
        "part": line.part,
        "parts": line.parts,
        "begins_because": line.because or None,
        "points": [
            {
                "label": place.observation.label,
                "commit": place.observation.commit or None,
                "at_seconds": place.observation.seconds,
                "value": place.known.value,
                "low": place.known.low,
                "high": place.known.high,
                "sessions": place.observation.sessions or None,
                "notes": list(place.notes),
            }
            for place in line.places
        ],
        # Not looked for, or too few points to look at: not the same as none.
        "changes": None
        if line.changes is None or len(line.places) < FEWEST_POINTS
        else [
            {"point": change.point, "before": change.before, "after": change.after, "change": change.fraction}
            for change in line.changes
        ],
    }


if __name__ == "__main__":
    sys.exit(run_command(main))
