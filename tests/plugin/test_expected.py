"""What a run says beforehand of how long it will take."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.plugin.progress import FILE, ExpectedDurations
from tests.plugin.conftest import text_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugin.conftest import Checkout, Project


def after(folder: Path | None, mode: str = "against", **seconds: float) -> ExpectedDurations:
    """What is expected after a run in which each test took so long."""
    run = ExpectedDurations(folder, mode)
    for nodeid, each in seconds.items():
        run.add(nodeid, each / 2)
        run.add(nodeid, each / 2)
    run.save(list(seconds))
    return ExpectedDurations(folder, mode)


def test_the_median_of_the_last_runs_is_expected(tmp_path: Path) -> None:
    """Of the last five, of each test alone and of this mode; tests that are not known are counted."""
    assert after(tmp_path).text(["a"]) == ""
    for seconds in (9000.0, 40.0, 30.0, 20.0, 1.0, 35.0):
        expected = after(tmp_path, a=seconds, b=600.0)
    assert expected.text(["a"]) == "about 30 s"
    assert expected.text(["a", "b"]) == "about 10 min"
    assert expected.text(["a", "c", "d"]) == "about 30 s without 2 tests not timed before"
    assert ExpectedDurations(tmp_path, "nothing").text(["a"]) == ""
    assert after(None, a=30.0).text(["a"]) == ""


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"against": {"a": "long"}}', b"\xff"])
def test_a_damaged_file_costs_the_estimate_alone(tmp_path: Path, damage: bytes) -> None:
    """Nothing is expected, nothing is written over it, and nothing fails."""
    (tmp_path / FILE).write_bytes(damage)
    assert after(tmp_path, a=30.0).text(["a"]) == ""
    assert (tmp_path / FILE).read_bytes() == damage


def test_only_what_was_measured_to_its_end_is_kept(tmp_path: Path) -> None:
    """A test that was decided by what is remembered took no time."""
    run = ExpectedDurations(tmp_path, "against")
    run.add("measured", 20.0)
    run.add("remembered", 0.1)
    run.save(["measured"])
    assert set(json.loads((tmp_path / FILE).read_bytes())["against"]) == {"measured"}


def test_a_second_run_tells_beforehand_how_long_it_takes(project: Project, checkout: Checkout) -> None:
    """In the line that says what is measured; the first one, and a run of another kind, cannot."""
    told = [
        re.findall(r"measuring a test.*", text_of(project.run(*arguments)))[0]
        for arguments in [["--against=HEAD"]] * 2 + [[]]
    ]
    assert told == ["measuring a test", "measuring a test, about 10 s", "measuring a test"]


def test_a_run_that_stopped_early_tells_nothing(project: Project, checkout: Checkout) -> None:
    """Its tests may have been cut short; the next one, which came to its end, is expected again."""
    project.speed(0.5)
    told = []
    for number, more in enumerate((["-x"], [], [])):
        # Each run compares another build, so that none is decided by what is remembered.
        (project.path / "note.txt").write_text(str(number))
        told.append(re.findall(r"measuring a test.*", text_of(project.run("--against=HEAD", *more)))[0])
    assert told == ["measuring a test", "measuring a test", "measuring a test, about 10 s"]
