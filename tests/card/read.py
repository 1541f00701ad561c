"""``python -m tests.card.read FOLDER``: takes over baselines of a run, and prints tables and what did not pass."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.errors import GpuserveError
from pytest_gpuserve.process.command_line import refused, run_command
from pytest_gpuserve.store.baseline import read, write
from tests.card.records import PASSED, read_files, read_records
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
    lines, files = [], read_files(folder)
    for name in sorted(name for name in files if name.startswith("baselines/")):
        into = baselines / name.partition("/")[2]
        with tempfile.TemporaryDirectory() as place:
            Path(place, into.name).write_text(files[name], encoding="utf-8")
            new = read(Path(place, into.name))
        write(into, {key: stored.entry for key, stored in {**read(into), **new}.items()})
        lines += [f"recorded: {into}: {key}" for key in new]
    lines += [f"\n{name}\n{files[name]}" for name in sorted(files) if name.endswith(".md")]
    for record in read_records(folder).values():
        lines.append(f"{record.name}: {record.outcome} in {record.seconds:.1f} s {record.why}".rstrip())
        lines += [f"    {line}" for line in record.log.splitlines()[-LINES:] if record.outcome != PASSED]
    return [*lines, f"{sum(r.outcome == PASSED for r in read_records(folder).values())} steps passed in {folder}"]


if __name__ == "__main__":
    sys.exit(run_command(main))
