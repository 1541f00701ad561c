"""``python -m tests.card.run --out FOLDER``: proves the package on the GPU of a strange machine, in minutes.

The machine's own Python that has torch runs it. Results, logs and files are brought to the folder every two seconds, so
that whoever ends this loses nothing. Run again with the same folder, or a copy of it, this goes on with the steps that
have not passed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.card.records import PASSED, Record, Records, log_of, read_records
from tests.card.steps import INSTALL_SECONDS, MAIN, MANIFEST, PACK, REPOSITORY, ROOT, SLOWED, STEPS, TRITON

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tests.card.steps import Step

END_SECONDS: Final = 8.0
"""Left of the time for the end of the last step; with less than that for itself none is begun."""

TELL_SECONDS: Final = 4.0
"""For what a step that overran still has to say."""

SAVE_SECONDS: Final = 2.0
"""So often the log and the files of the step under way are brought to where nothing is lost."""

DMON: Final = ("nvidia-smi", "dmon", "-s", "pucvmet", "-o", "DT")
"""Runs beside all steps: it keeps the driver loaded, and is a log of what the GPU did."""

LAY: Final = """timeout 9 nvidia-smi; timeout 9 nvidia-smi -q; lscpu; free -m; df -h /tmp .
which -a git g++ nvcc podman docker
set -e
mkdir tree
cp -R "$1" tree/.git
git -C tree config core.bare false
git -C tree reset --hard --quiet main
cp -R tree slowed
sed -i "s/$3/$4/" "slowed/$2"
! git -C slowed diff --quiet"""
"""Looks at the machine, and lays the packed commit and a build of it that is slower."""

PIP: Final = ("-m", "pip", "install", "--no-index", "--no-deps", "--no-cache-dir", "--no-compile")

VARIABLES: Final = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONUNBUFFERED": "1", "COLUMNS": "120"}
"""Of all steps: no plugins that the machine may have."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and return the exit status: 1 where a step that has to did not pass."""
    parser = argparse.ArgumentParser(prog="python -m tests.card.run", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="a folder: empty, or of a run that goes on")
    parser.add_argument("--minutes", type=float, default=9.0, help="after which all has ended (default 9)")
    parser.add_argument("--pack", type=Path, default=PACK, help="of `tests.card.pack`")
    parser.add_argument("--gpu", default="auto", help="as of the plugin: `cpu` rehearses on a machine without a GPU")
    parser.add_argument("--factor", type=float, default=1.0, help="of each step's time, on a slow machine")
    given = parser.parse_args(arguments)
    work = given.pack.resolve() / "work"
    shutil.rmtree(work, ignore_errors=True)
    try:
        run = Run(given.out.resolve(), work, given.gpu, given.factor, time.monotonic() + 60 * given.minutes)
        return run.all(STEPS)
    finally:
        shutil.rmtree(work, ignore_errors=True)


class Run:
    """A run in a folder, whose steps may take a factor of their time, until a time of the monotonic clock."""

    def __init__(self, out: Path, work: Path, gpu: str, factor: float, until: float) -> None:
        self._out, self._work, self._factor, self._until = out, work, factor, until
        self._kept = work / "kept"
        self._records = Records(self._kept, out)
        self._values = {"gpu": gpu, "kept": str(self._kept)}
        self._installed_until = time.monotonic() + INSTALL_SECONDS * factor

    def all(self, steps: Sequence[Step]) -> int:
        """Prepare, run those that have not passed, and return the exit status."""
        self._laid = self._prepared("machine", self._look)
        below = [place for place in sys.path if place.endswith("-packages")]
        ready = [name for name in (MAIN, TRITON) if self._prepared(f"install-{name}", self._install, name, below)]
        if MAIN not in ready:
            return 1
        # Programs of the pack are at hand from now on, in this process too.
        sys.path[:0] = below
        from pytest_gpuserve.process.child import Command, Process

        with ExitStack() as stack:
            if (program := shutil.which(DMON[0])) is not None:
                dmon = Command((program, *DMON[1:]), os.environ, ROOT, log_of(self._kept, "dmon"))
                stack.enter_context(Process.start(dmon))
            for step in steps:
                if not self._has_passed(step):
                    self._add(self._tried(step, ready))
        return int(not all(self._has_passed(step) for step in steps if not step.spare))

    def _has_passed(self, step: Step) -> bool:
        return any(each.name == step.name and each.outcome == PASSED for each in read_records(self._kept).values())

    def _add(self, record: Record) -> None:
        self._records.add(record)
        print(record, flush=True)  # noqa: T201 -- a command

    def _prepared(self, name: str, prepare: Callable[..., str], *arguments: object) -> bool:
        """Do what comes before all steps, which returns why it did not succeed, if so."""
        began = time.monotonic()
        self._log = self._records.begin(name)
        why = prepare(*arguments)
        self._add(Record(name, "failed" if why else PASSED, time.monotonic() - began, why))
        return not why

    def _look(self) -> str:
        """Look, and lay the trees that are measured; without git it is the checkout as it is."""
        installed = sorted(f"{each.metadata['Name']}=={each.version}" for each in metadata.distributions())
        (self._out / "installed.txt").write_text("\n".join(installed) + "\n", encoding="utf-8")
        slower = SLOWED[1].replace('"0"', '"1.0"')
        return self._call("sh", "-c", LAY, "lay", str(self._work.parent / REPOSITORY), *SLOWED, slower)

    def _install(self, name: str, below: list[str]) -> str:
        """Make an environment that has what the pack brings, and what is below it."""
        version = ".".join(platform.python_version_tuple()[:2])
        packed = json.loads((self._work.parent / MANIFEST).read_text(encoding="utf-8"))
        if packed["python"] != version:
            return f"the pack is of Python {packed['python']}, this is {version}"
        if why := self._call(sys.executable, "-m", "venv", "--without-pip", name):
            return why
        (site,) = (self._work / name).glob("lib/python*/site-packages")
        # An environment of a virtual environment has the packages of neither: they are named.
        (site / "below.pth").write_text("\n".join(below) + "\n", encoding="utf-8")
        below.insert(0, str(site))
        # A server may have its program beside the Python that it is installed for.
        for program in Path(sys.executable).parent.iterdir():
            with suppress(FileExistsError):
                (self._work / name / "bin" / program.name).symlink_to(program)
        python = self._values[name] = str(self._work / name / "bin" / "python3")
        pins = packed["pins"][name]
        return self._call(python, *PIP, f"--find-links={self._work.parent}", *pins) if pins else ""

    def _call(self, *command: str) -> str:
        """Run a program, with its output in the log; returns why that did not succeed, which is empty where it did."""
        left = max(1.0, min(self._until, self._installed_until) - time.monotonic())
        # Whatever pip is configured to ask on this machine is not there.
        variables = {**os.environ, "PIP_CONFIG_FILE": os.devnull}
        with self._log.open("ab") as log:
            try:
                subprocess.run(command, cwd=self._work, env=variables, stdout=log, stderr=log, timeout=left, check=True)
            except subprocess.CalledProcessError as problem:
                return f"{command[0]} ended with {problem.returncode}"
            except (OSError, subprocess.TimeoutExpired) as problem:
                return f"{command[0]}: {type(problem).__name__}"
        return ""

    def _tried(self, step: Step, ready: Sequence[str]) -> Record:
        """Run a step, unless something is lacking for it."""
        left = self._until - time.monotonic() - END_SECONDS
        if step.needs not in ready:
            return Record(step.name, "skipped", why=f"see install-{step.needs}")
        if step.slowed and not self._laid:
            return Record(step.name, "skipped", why="there is no tree of a slower build: see machine")
        if left < END_SECONDS:
            return Record(step.name, "skipped", why="there was no time left")
        tree = ROOT if not self._laid else self._work / ("slowed" if step.slowed else "tree")
        values = {**self._values, "tree": str(tree), "python": self._values[step.needs]}
        return run_step(step, values, tree, min(step.seconds * self._factor, left), self._records)


def run_step(step: Step, values: Mapping[str, str], tree: Path, seconds: float, records: Records) -> Record:
    """Run a step in a tree, and end it with all that it started after so long."""
    # Not before there is an environment that has what it imports.
    from pytest_gpuserve.process.child import Command, Process

    log = records.begin(step.name)
    environment = {"PATH": os.defpath, "HOME": str(tree), **os.environ, **VARIABLES}
    argv = tuple(word.format_map(values) for word in step.command)
    began = time.monotonic()
    with Process.start(Command(argv, environment, tree, log)) as process:
        while process.wait(SAVE_SECONDS) is None and time.monotonic() < began + seconds:
            records.save()
        status, ended = process.exit_status(), process.describe_exit()
        if status is None:
            # pytest prints the failures that there were until then.
            os.kill(process.pid, signal.SIGINT)
            process.wait(TELL_SECONDS)
    took, told = time.monotonic() - began, log.read_text(encoding="utf-8", errors="replace")
    if status is None:
        return Record(step.name, "overran", took, f"it was ended after {seconds:.0f} s")
    if status != step.status:
        return Record(step.name, "failed", took, f"{ended}, not exit code {step.status}")
    if step.told not in told:
        return Record(step.name, "skipped" if " skipped" in told else "failed", took, f"nothing{step.told}")
    return Record(step.name, PASSED, took)


if __name__ == "__main__":
    sys.exit(main())
