"""The table of what the code for GPUs assumes names files, and tests on a GPU or steps, that there are."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest_gpuserve
from tests.card.steps import STEPS

PACKAGE = Path(pytest_gpuserve.__file__).parent
TESTS = PACKAGE.parent / "tests"
TEXT = (PACKAGE / "device" / "ASSUMPTIONS.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")] for line in TEXT.splitlines()[2:] if line.startswith("| ")
][1:]


@cache
def marked_gpu() -> frozenset[str]:
    """Tests that are marked ``gpu``, as ``file::function``."""
    marked = re.compile(r"^@pytest\.mark\.gpu\n(?:@.*\n)*def (test_\w+)\(", re.MULTILINE)
    files = TESTS.rglob("test_*.py")
    return frozenset(f"{file.stem}::{name}" for file in files for name in marked.findall(file.read_text("utf-8")))


def test_what_a_row_names_is_there() -> None:
    """Each row has its files, and is refuted by a test on a GPU, by a step, or says why by nothing."""
    assert len(ROWS) > 20
    steps = {step.name for step in STEPS}
    for _, where, _, refuted in ROWS:
        for name in re.findall(r"`([\w/]+\.py)`", where):
            assert (PACKAGE / name).is_file() or (PACKAGE / "device" / name).is_file(), name
        tests, named_steps = re.findall(r"`(test_\w+::test_\w+)`", refuted), re.findall(r"step `([\w-]+)`", refuted)
        assert tests or named_steps or refuted.startswith("none: "), refuted
        assert set(tests) <= marked_gpu()
        assert set(named_steps) <= steps


def test_every_test_on_a_gpu_refutes_something() -> None:
    """No test that needs a GPU stands in no row."""
    assert marked_gpu() == set(re.findall(r"`(test_\w+::test_\w+)`", TEXT))
