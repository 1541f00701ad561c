"""``python -m tests.mutation gate``: mutants of a room's code, and how many of them its tests kill.

Mutants are made by mutmut's operators at places drawn by a seed; the tests of one are those that come to its line. Each
mutant is written into a clone of the committed checkout, and runs in a fork of a process that has the libraries
imported, so that it takes a second rather than five; two at a time, each in a clone of its own. Only what tests do in
their own process is followed: a line that runs in a server or a load engine alone counts as not covered.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import coverage
import libcst
import pytest
from _pytest.config import default_plugins
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.file_mutation import MutationVisitor
from mutmut.mutation.mutators import mutation_operators
from mutmut.mutation.pragma_handling import IgnoredCode

ROOT: Final = Path(__file__).resolve().parents[2]
IMPORTED: Final = ("_pytest.pytester", "hypothesis", "msgspec", "numpy", "psutil", "pynvml", "pytest_benchmark", "rich")
OPTIONS: Final = (
    *("-o", "addopts=", "--import-mode=importlib", "-q", "-p", "no:cacheprovider"),
    # Each fork has them already, unlike a run of its own.
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
)
LONGEST_SECONDS: Final = 25.0
"""Tests beyond so much of a mutant's time are not run, the quickest first."""


@dataclass(frozen=True)
class Mutant:
    """A change of one place.

    Args:
        file: Relative to the checkout.
        line: Where.
        source: The whole file with the change.
        change: What was changed into what.
        tests: Test functions that come to the line.
    """

    file: str
    line: int
    source: str
    change: str
    tests: tuple[str, ...]


def main() -> None:
    """Write a line for each survivor, and the count."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("room", help="a folder of the package that has one of its name in the tests: gate")
    parser.add_argument("--sample", type=int, default=200, help="how many mutants (200)")
    parser.add_argument("--seed", type=int, default=1, help="of the draw (1): one seed draws the same of the same code")
    parser.add_argument("--jobs", type=int, default=2, help="how many mutants at a time (2)")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        clone = Path(folder, "checkout")
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        enter(clone)
        lines, seconds = covered(asked.room, Path(folder))
        mutants = drawn(asked.room, lines, asked.sample, asked.seed)
        for name in (*IMPORTED, *(f"_pytest.{name}" for name in default_plugins)):
            importlib.import_module(name)
        counts: Counter[str] = Counter()
        with ProcessPoolExecutor(asked.jobs, get_context("fork"), enter_copy, (clone,)) as jobs:
            outcomes = jobs.map(partial(outcome_of, seconds), mutants, range(1, len(mutants) + 1))
            for mutant, outcome in zip(mutants, outcomes, strict=True):
                counts[outcome] += 1
                if outcome != "killed":
                    say(f"{outcome}: {mutant.file}:{mutant.line}: {mutant.change}")
    say(f"{asked.room}: {counts['killed']} of {counts.total()} killed, {counts['not covered']} not covered")


def enter(checkout: Path) -> None:
    """Take the package and its tests from there, in this process and in all below it."""
    os.chdir(checkout)
    sys.path.insert(0, str(checkout))
    os.environ["PYTHONPATH"] = str(checkout)


def enter_copy(clone: Path) -> None:
    """Give a process of the pool a clone of its own, with what is compiled in it."""
    enter(shutil.copytree(clone, clone.with_name(f"checkout-{os.getpid()}"), symlinks=True))


def say(line: str) -> None:
    """Write a line at once: a run takes minutes."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def covered(room: str, folder: Path) -> tuple[dict[str, dict[int, list[str]]], dict[str, float]]:
    """Run the room's tests once: which come to each line of each file, and the seconds of each."""
    settings, data, times = folder / "coverage.ini", folder / "coverage", folder / "seconds"
    settings.write_text(f"[run]\nsource = pytest_gpuserve/{room}\ndata_file = {data}\n", encoding="utf-8")
    run = ["-m", "coverage", "run", f"--rcfile={settings}", "-m", "pytest", *OPTIONS]
    environment = {**os.environ, "TESTS_SECONDS": str(times)}
    plugin = ["-p", "tests.mutation.each_test", f"tests/{room}"]
    subprocess.run([sys.executable, *run, *plugin], check=True, env=environment)
    found = coverage.CoverageData(str(data))
    found.read()
    lines = {
        str(Path(file).relative_to(Path.cwd())): {
            line: [name for name in names if name] for line, names in found.contexts_by_lineno(file).items()
        }
        for file in found.measured_files()
    }
    return lines, json.loads(times.read_text(encoding="utf-8"))


def drawn(room: str, lines: dict[str, dict[int, list[str]]], sample: int, seed: int) -> list[Mutant]:
    """Draw so many mutants of a room's functions."""
    places: list[tuple[str, libcst.Module, int, libcst.CSTNode, libcst.CSTNode]] = []
    for path in sorted(Path("pytest_gpuserve", room).rglob("*.py")):
        wrapper = MetadataWrapper(libcst.parse_module(path.read_text(encoding="utf-8")))
        visitor = MutationVisitor(mutation_operators, IgnoredCode(set(), set(), set()))
        module = wrapper.visit(visitor)
        positions = wrapper.resolve(PositionProvider)
        for mutation in visitor.mutations:
            position = positions.get(mutation.original_node)
            if mutation.contained_by_top_level_function is not None and position is not None:
                places.append((str(path), module, position.start.line, mutation.original_node, mutation.mutated_node))
    mutants = []
    for file, module, line, old, new in random.Random(seed).sample(places, min(sample, len(places))):
        changed = module.deep_replace(old, new)
        assert isinstance(changed, libcst.Module)
        texts = [libcst.Module([]).code_for_node(node) for node in (old, new)]
        tests = tuple(lines.get(file, {}).get(line, ()))
        mutants.append(Mutant(file, line, changed.code, " -> ".join(texts).replace("\n", " ")[:160], tests))
    return mutants


def outcome_of(seconds: dict[str, float], mutant: Mutant, number: int) -> str:
    """``killed``, ``survived`` or ``not covered``."""
    chosen: list[str] = []
    total = 0.0
    for test in sorted(mutant.tests, key=lambda name: seconds.get(name, 0.0)):
        total += seconds.get(test, 0.0)
        if chosen and total > LONGEST_SECONDS:
            break
        chosen.append(test)
    if not chosen:
        return "not covered"
    path = Path(mutant.file)
    known, times = path.read_text(encoding="utf-8"), path.stat()
    try:
        path.write_text(mutant.source, encoding="utf-8")
        # Bytecode is told by size and second: each mutant has a second of its own.
        os.utime(path, (number, number))
        return "killed" if _run(chosen, 20 + 5 * total) else "survived"
    finally:
        path.write_text(known, encoding="utf-8")
        os.utime(path, (times.st_atime, times.st_mtime))


def _run(tests: list[str], limit_seconds: float) -> bool:
    """Whether these tests fail, or do not end."""
    beside = f"{Path.cwd()}-"
    pid = os.fork()
    if pid == 0:
        status = 98
        try:
            os.setsid()
            silent = os.open(f"{beside}output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(silent, 1)
            os.dup2(silent, 2)
            status = int(pytest.main([*OPTIONS, "-x", f"--basetemp={beside}temporary", *tests]))
        finally:
            os._exit(status)
    deadline = time.monotonic() + limit_seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status) != 0
        time.sleep(0.01)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return True


if __name__ == "__main__":
    main()
