"""``python -m tests.card.read FOLDER``: makes baselines, a table and a list of failures of a run."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from pytest_gpuserve.errors import GpuserveError, UsageProblem
from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.process.command_line import refused, run_command
from pytest_gpuserve.report.schema import ResultRecord
from pytest_gpuserve.store.baseline import read, write
from pytest_gpuserve.units import format_value
from tests.card.groups import ROOT
from tests.card.records import RESULTS, read_records, unpack_files
from tests.card.steps import RECORD

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.card.records import Record

HEAD: Final = "| step | card | test | throughput | p50 | p99 | batching ratio | outcome |\n" + 8 * "|---" + "|"


def main(arguments: Sequence[str]) -> int:
    """Read, write, print, and return the exit status: 1 where a step did not pass."""
    parser = argparse.ArgumentParser(prog="python -m tests.card.read", description=__doc__)
    parser.add_argument("folder", type=Path, help="what `tests.card.run --out` wrote")
    parser.add_argument("--baselines", type=Path, default=ROOT / "baselines", help="where they go (default baselines/)")
    given = parser.parse_args(arguments)
    try:
        lines, failed = read_run(given.folder, given.baselines)
    except GpuserveError as problem:
        return refused(problem)
    print("\n".join(lines))  # noqa: T201 -- a command
    return 1 if failed else 0


def read_run(folder: Path, baselines: Path) -> tuple[list[str], bool]:
    """Put what was recorded into a folder of baselines.

    Returns:
        What there is to say, and whether a step did not pass.

    Raises:
        UsageProblem: It is no folder of a run.
        BaselineUnusable: A baseline cannot be read or written.
    """
    if not (folder / RESULTS).is_file():
        raise UsageProblem(f"{folder} has no {RESULTS}", remedies=["name the folder of `tests.card.run --out=FOLDER`"])
    records = read_records(folder)
    with tempfile.TemporaryDirectory() as name:
        kept = Path(name)
        unpack_files(folder, kept)
        results = {
            path.stem: msgspec.json.decode(path.read_bytes(), type=ResultRecord) for path in sorted(kept.glob("*.json"))
        }
        lines = [
            f"left out, for its test did not pass or was INVALID: {each}"
            for each in _without_invalid(kept / "baselines", results)
        ]
        lines += _taken(kept / "baselines", baselines)
    lines += ["", HEAD, *_rows(results), ""]
    failures = [record for record in records if record.outcome != "passed"]
    lines += [f"{record.name}: {record.outcome}: {record.why}\n{_indented(record)}".rstrip() for record in failures]
    passed = len(records) - len(failures)
    return [*lines, f"{passed} of {len(records)} steps passed"], bool(failures)


def _without_invalid(folder: Path, results: Mapping[str, ResultRecord]) -> Iterator[str]:
    """Take out what a test has recorded that did not pass, or was INVALID, whatever else it was."""
    tests = [test for name, result in results.items() if name.startswith(RECORD) for test in result.tests]
    good = {
        test.nodeid
        for test in tests
        if test.outcome == "passed" and not any(each.verdict is Verdict.INVALID for each in test.verdicts)
    }
    bad = {test.nodeid for test in tests} - good
    for path in sorted(folder.rglob("*.json")):
        # <device>/<suite>/<file>.json holds what suites/<suite>/<file>.py has recorded.
        module = f"suites/{path.relative_to(folder).with_suffix('.py').as_posix().partition('/')[2]}"
        entries = {key: stored.entry for key, stored in read(path).items()}
        # A load may have a label, after the name of its test.
        left_out = [key for key in entries if any(f"{module}::{key} ".startswith(f"{nodeid} ") for nodeid in bad)]
        yield from (f"{module}::{key}" for key in left_out)
        if left_out:
            write(path, {key: entry for key, entry in entries.items() if key not in left_out})


def _taken(folder: Path, baselines: Path) -> Iterator[str]:
    """Put the entries of one folder of baselines into another, in the place of those of the same tests."""
    for path in sorted(folder.rglob("*.json")):
        place = path.relative_to(folder)
        recorded = {key: stored.entry for key, stored in read(path).items()}
        before = {key: stored.entry for key, stored in read(baselines / place).items()}
        write(baselines / place, {**before, **recorded})
        yield from (f"{place}: {key}" for key in recorded)


def _rows(results: Mapping[str, ResultRecord]) -> Iterator[str]:
    for name, result in results.items():
        for test in result.tests:
            for run in test.runs:
                values = [
                    (run.throughput, "1/s"),
                    (run.latency.get("p50"), "s"),
                    (run.latency.get("p99"), "s"),
                    (run.batching_ratio, ""),
                ]
                numbers = ["" if value is None else format_value(value, unit) for value, unit in values]
                card = str(result.gpu.get("name"))
                yield f"| {' | '.join([name, card, f'`{test.nodeid}`', *numbers, test.outcome])} |"


def _indented(record: Record) -> str:
    return "\n".join(f"    {line}" for line in record.tail.splitlines())


if __name__ == "__main__":
    sys.exit(run_command(main))
