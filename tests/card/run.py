"""``python -m tests.card.run --minutes 9 --out FOLDER``: proves the package on the card of a strange machine.

The machine's own Python begins: it looks at the machine, makes an environment with what the pack brings, and goes on in
that. Each step's result is written as soon as it ends, so that whoever ends this loses nothing that was finished.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.card.groups import CORE, EXTRAS, FOLDER, ROOT, TRITON, packed_groups
from tests.card.machine import install, look, make_environment
from tests.card.records import Record, Writer, read_records, unpack_files
from tests.card.steps import ENVIRONMENT, STEPS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.card.steps import Step

INSTALL_SECONDS: Final = 120.0
"""For all groups together."""

END_SECONDS: Final = 10.0
"""Left of the time for the end of the last step."""

LEAST_SECONDS: Final = 10.0
"""With less time no step is begun."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and return the exit status: 1 where a step did not pass."""
    given = _parser().parse_args(arguments)
    if given.work is None:
        return _prepare(given)
    writer = Writer(given.out, given.work / "kept")
    pythons = {name: str(given.work / ("triton" if name == TRITON else "main") / "bin" / "python3") for name in EXTRAS}
    lacking = {record.name: record.why for record in read_records(given.out) if record.outcome != "passed"}
    earlier = read_records(given.after) if given.after else []
    done = {record.name: record for record in earlier if record.outcome == "passed"}
    for step in STEPS:
        if given.steps and step.name not in given.steps:
            continue
        left = given.until - time.monotonic() - END_SECONDS
        why = lacking.get(f"install {step.needs}")
        if step.name in done:
            record = done[step.name]
        elif why is not None:
            record = Record(step.name, "skipped", why=f"{step.needs} could not be installed: {why}")
        elif step.changes_settings and not given.may_change_settings:
            record = Record(step.name, "skipped", why="--may-change-settings was not given")
        elif left < LEAST_SECONDS:
            record = Record(step.name, "skipped", why="there was no time left")
        else:
            record = run_step(
                step, writer, python=pythons[step.needs], gpu=given.gpu, work=given.work, left_seconds=left
            )
        _add(writer, record)
    shutil.rmtree(given.work, ignore_errors=True)
    return 0 if all(record.outcome == "passed" for record in read_records(given.out)) else 1


def run_step(step: Step, writer: Writer, *, python: str, gpu: str, work: Path, left_seconds: float) -> Record:
    """Run a step, and end it with all that it started at its deadline, or when there is no more time."""
    # Not before there is an environment that has what it imports.
    from pytest_gpuserve.errors import ServerFailed
    from pytest_gpuserve.process.child import Command, Process

    seconds = min(step.seconds, left_seconds)
    environment = {"PATH": os.defpath, "HOME": str(work), **os.environ, **ENVIRONMENT, **step.environment}
    command = Command(step.argv(python=python, gpu=gpu, kept=work / "kept"), environment, ROOT, writer.log)
    began = time.monotonic()
    try:
        with Process.start(command, after=step.after) as process:
            status = process.wait(seconds)
            ended = process.describe_exit()
    except ServerFailed as problem:
        return Record(step.name, "failed", time.monotonic() - began, str(problem), writer.tail())
    took = time.monotonic() - began
    if status is None:
        return Record(step.name, "overran", took, f"it was ended after {seconds:.0f} s", writer.tail())
    if status != step.status:
        return Record(step.name, "failed", took, f"{ended}, not exit code {step.status}", writer.tail())
    if step.told and step.told not in writer.log.read_text(encoding="utf-8", errors="replace"):
        return Record(step.name, "failed", took, f"its log does not say {step.told!r}", writer.tail())
    return Record(step.name, "passed", took, tail=writer.tail())


def _prepare(given: argparse.Namespace) -> int:
    """Look at the machine, make environments, and go on in the first one, in this very process."""
    until = time.monotonic() + 60 * given.minutes
    if given.out.exists() and any(given.out.iterdir()):
        sys.stderr.write(f"{given.out} is not empty; name another folder: --out=FOLDER\n")
        return 2
    work = Path(tempfile.mkdtemp(prefix="gpuserve-card-"))
    (work / "kept").mkdir()
    if given.after:
        unpack_files(given.after, work / "kept")
    writer = Writer(given.out, work / "kept")
    _add(writer, Record("machine", "passed", facts=look()))
    try:
        python = make_environment(work / "main", [sys.executable])
        pythons = dict.fromkeys(EXTRAS, python) | {TRITON: make_environment(work / "triton", [python])}
    except subprocess.SubprocessError as problem:
        said = getattr(problem, "stderr", b"") or b""
        _add(writer, Record("environment", "failed", why=str(problem), tail=said.decode(errors="replace")))
        return 1
    end = min(until, time.monotonic() + INSTALL_SECONDS)
    for name, pins in packed_groups(given.pack, ".".join(platform.python_version_tuple()[:2])).items():
        began = time.monotonic()
        why = install(pythons[name], pins, given.pack, writer.log, end - began)
        record = Record(f"install {name}", "failed", time.monotonic() - began, why, writer.tail())
        _add(writer, record if why else replace(record, outcome="passed"))
        if why and name == CORE:
            return 1
    sys.stdout.flush()
    os.execv(python, [python, "-m", "tests.card.run", *sys.argv[1:], f"--work={work}", f"--until={until}"])
    raise AssertionError("unreachable: this process has become another")


def _add(writer: Writer, record: Record) -> None:
    writer.add(record)
    print(f"{record.name}: {record.outcome} in {record.seconds:.1f} s {record.why}".rstrip(), flush=True)  # noqa: T201 -- a command


def _path(text: str) -> Path:
    return Path(text).resolve()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.card.run", description=__doc__)
    parser.add_argument("--minutes", type=float, required=True, help="after which all has ended")
    parser.add_argument("--out", type=_path, required=True, help="an empty folder")
    parser.add_argument("--pack", type=_path, default=FOLDER, help="of `tests.card.pack`")
    parser.add_argument("--gpu", default="auto", help="as of the plugin: `cpu` rehearses on a machine without a card")
    parser.add_argument(
        "--step", dest="steps", action="append", choices=[each.name for each in STEPS], help="only this"
    )
    parser.add_argument(
        "--after", type=_path, metavar="FOLDER", help="of an earlier run, whose passed steps are taken over"
    )
    parser.add_argument("--may-change-settings", action="store_true", help="also steps that lock the card's clocks")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
