"""The example of a workflow that measures on several runners: no group is lost, and nothing may skip the verdict."""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuserve.merge.__main__ import _parser
from tests.project.test_workflows import GUARD, jobs, workflow

if TYPE_CHECKING:
    from pathlib import Path

NAME = "gate-sharded.yml"


def step(job: str, name: str) -> dict[str, Any]:
    """The step of a job with this name."""
    found: dict[str, Any]
    (found,) = [each for each in jobs(NAME)[job]["steps"] if each.get("name") == name]
    return found


def test_every_group_is_measured_and_expected() -> None:
    """There are as many groups as parts, all are measured whatever comes of one, and none may be missing."""
    plain = workflow(NAME)
    measure = plain["jobs"]["measure"]
    splits = plain["env"]["SPLITS"]
    assert measure["strategy"]["matrix"]["group"] == list(range(1, splits + 1))
    assert measure["strategy"]["fail-fast"] is False
    gate = step("measure", "Gate")
    assert gate["env"] == {"GROUP": "${{ matrix.group }}"}
    assert '--splits="$SPLITS" --group="$GROUP"' in gate["run"]
    assert '--expect="$SPLITS"' in step("gate", "Gate")["run"]


def test_nothing_may_skip_the_verdict() -> None:
    """It is given whatever became of the groups; and no step, nor a group, may fail unnoticed."""
    assert jobs(NAME)["measure"]["if"] == GUARD
    assert jobs(NAME)["gate"]["if"] == f"always() && {GUARD}"
    assert jobs(NAME)["gate"]["needs"] == "measure"
    every = [*jobs(NAME).values(), *(each for job in jobs(NAME).values() for each in job["steps"])]
    assert not any("continue-on-error" in each for each in every)


@pytest.mark.parametrize("measured", ["success", "failure", "cancelled", ""])
@pytest.mark.parametrize("merged", [0, 1])
def test_the_verdict_is_no_pass_unless_all_groups_succeeded(tmp_path: Path, measured: str, merged: int) -> None:
    """A group whose pytest failed beside its tests is told by its job alone, whatever its result says."""
    gate = step("gate", "Gate")
    assert gate["env"] == {"MEASURED": "${{ needs.measure.result }}"}
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\nexit {merged}\n")
    python.chmod(0o755)
    environment = {"PATH": os.environ["PATH"], "RUNNER_TEMP": str(tmp_path), "SPLITS": "2", "MEASURED": measured}
    command = ["bash", "-e", "-c", gate["run"]]  # as GitHub calls it
    done = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=60)
    assert done.returncode == (merged or int(measured != "success"))


def test_what_each_group_measures_is_found() -> None:
    """The files that are merged are those that groups write and keep, each by its own name."""
    written = re.findall(r"--gpuserve-json=(\S+)", step("measure", "Gate")["run"])
    assert written == ['"$RUNNER_TEMP/gpuserve/result-$GROUP.json"']
    keep = step("measure", "Keep the results, whatever they are")
    assert keep["if"] == "always()"
    assert keep["with"]["path"] == "${{ runner.temp }}/gpuserve"
    assert keep["with"]["name"] == "part-${{ matrix.group }}"
    (download,) = [each for each in jobs(NAME)["gate"]["steps"] if "download-artifact" in each.get("uses", "")]
    assert download["with"] == {"pattern": "part-*", "path": "${{ runner.temp }}/parts", "merge-multiple": True}
    assert '"$RUNNER_TEMP"/parts/result-*.json' in step("gate", "Gate")["run"]


def test_a_group_that_is_run_again_goes_on() -> None:
    """Each group has a cache of its own, which is kept whatever came of it."""
    steps = jobs(NAME)["measure"]["steps"]
    (restore,) = [each for each in steps if "cache/restore" in each.get("uses", "")]
    save = step("measure", "Keep what was measured, also of a run that failed")
    assert save["if"] == "always()"
    assert save["with"]["key"] == restore["with"]["key"]
    assert all(
        "${{ matrix.group }}" in each for each in (save["with"]["key"], *restore["with"]["restore-keys"].splitlines())
    )
    assert '-o cache_dir="$RUNNER_TEMP/pytest-cache"' in step("measure", "Gate")["run"]


def test_the_options_of_the_merge_exist() -> None:
    """An example types no option that there is not."""
    typed = set(re.findall(r"(--[a-z]+)=", step("gate", "Gate")["run"]))
    known = {option for action in _parser()._actions for option in action.option_strings}
    assert typed == {"--expect", "--json", "--report", "--markdown"}
    assert typed <= known
