"""``python -m tests.card.read FOLDER``: takes over baselines of a run, and prints tables and what did not pass."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.errors import GpuserveError
from pytest_gpuserve.process.command_line import refused, run_command
from pytest_gpuserve.store.baseline import read, write
from tests.card.records import PASSED, log_of, read_records, unpack
from tests.card.steps import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

LINES: Final = 40
"""Lines of the end of a log."""


def main(arguments: Sequence[str]) -> int:
    """Read the folder that is named, and print."""
    try:
        with tempfile.TemporaryDirectory() as kept:
            unpack(Path(*arguments[:1]), Path(kept))
            print(*read_run(Path(kept), ROOT / "baselines"), sep="\n")  # noqa: T201 -- a command
    except GpuserveError as problem:
        return refused(problem)
    return 0


def read_run(kept: Path, baselines: Path) -> list[str]:
    """Replace the entries of the tests that a run recorded, and return what there is to say of it."""
    lines = []
    for path in sorted(kept.glob("baselines/**/*.json")):
        into, new = baselines / path.relative_to(kept / "baselines"), read(path)
        write(into, {key: stored.entry for key, stored in {**read(into), **new}.items()})
        lines += [f"recorded: {into}: {key}" for key in new]
    lines += [f"\n{path.name}\n{path.read_text(encoding='utf-8')}" for path in sorted(kept.glob("*.md"))]
    records = read_records(kept).values()
    for record in records:
        lines.append(str(record))
        log = log_of(kept, record.name)
        if record.outcome != PASSED and log.exists():
            lines += [f"    {line}" for line in log.read_text("utf-8", "replace").splitlines()[-LINES:]]
    return [*lines, f"{sum(record.outcome == PASSED for record in records)} steps passed"]


if __name__ == "__main__":
    sys.exit(run_command(main))
