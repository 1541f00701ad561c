"""``python -m tests.card.read FOLDER``: takes over baselines of a run, and prints tables and what did not pass."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.errors import GpuserveError
from pytest_gpuserve.process.command_line import refused, run_command
from pytest_gpuserve.store.baseline import read, write
from tests.card.records import PASSED, read_records, unpack_files
from tests.card.steps import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

LINES: Final = 40
"""Of the end of a log."""


def main(arguments: Sequence[str]) -> int:
    """Read the folder that is named, and print."""
    try:
        print(*read_run(Path(*arguments[:1]), ROOT / "baselines"), sep="\n")  # noqa: T201 -- a command
    except GpuserveError as problem:
        return refused(problem)
    return 0


def read_run(folder: Path, baselines: Path) -> list[str]:
    """Put what was recorded in the place of what is there of the same tests, and return what there is to say."""
    lines = []
    with tempfile.TemporaryDirectory() as name:
        unpack_files(folder, Path(name))
        for path in sorted(Path(name).glob("baselines/*/*/*.json")):
            into = baselines / path.relative_to(Path(name) / "baselines")
            new = read(path)
            write(into, {key: stored.entry for key, stored in {**read(into), **new}.items()})
            lines += [f"recorded: {into}: {key}" for key in new]
        lines += [f"\n{path.stem}\n{path.read_text(encoding='utf-8')}" for path in sorted(Path(name).glob("*.md"))]
    for record in read_records(folder).values():
        lines.append(f"{record.name}: {record.outcome} in {record.seconds:.1f} s {record.why}".rstrip())
        lines += [f"    {line}" for line in record.log.splitlines()[-LINES:] if record.outcome != PASSED]
    return [*lines, f"{sum(r.outcome == PASSED for r in read_records(folder).values())} steps passed in {folder}"]


if __name__ == "__main__":
    sys.exit(run_command(main))
