"""The composite action: its shell is run with GitHub's variables set, in a project of a user's; nothing is measured."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER = Path(__file__).parents[2] / ".github" / "actions" / "gate"
ACTION: dict[str, Any] = yaml.safe_load((FOLDER / "action.yml").read_text(encoding="utf-8"))
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]

PYTHON = """#!/bin/sh
if [ "$2" = venv ]; then mkdir -p "$3/bin" && cp "$0" "$3/bin/python"; exit; fi
if [ "$2" = pip ]; then printf '%s\\n' "$@" > "$RUNNER_TEMP/pip"; exit; fi
exec {python} "$@"
"""
"""Stands for an interpreter that can install from the network; what it runs is real."""

Gate = tuple[int, str, dict[str, str]]


@pytest.fixture
def gate(tmp_path: Path) -> Callable[..., Gate]:
    """Run the action's script on a test of this text; returns exit status, what it printed, and its outputs."""
    python = tmp_path / "python"
    python.write_text(PYTHON.format(python=sys.executable), encoding="utf-8")
    python.chmod(0o755)
    (tmp_path / "checkout" / "suites").mkdir(parents=True)
    (tmp_path / "temp").mkdir()

    def run(test: str, **inputs: str) -> Gate:
        (tmp_path / "checkout" / "suites" / "test_it.py").write_text(test, encoding="utf-8")
        given = {name: str(each["default"]) for name, each in ACTION["inputs"].items()}
        given |= {"python": str(python), "against": "", "gpu": "cpu"} | inputs
        variables = {f"GATE_{name.upper().replace('-', '_')}": value for name, value in given.items()}
        (step,) = [step for step in STEPS if step.get("id") == "gate"]
        assert set(variables) == set(step["env"])
        output = tmp_path / "output"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
        done = subprocess.run(
            ["bash", "-e", "-c", step["run"]],
            cwd=tmp_path / "checkout",
            env={
                **kept,
                **variables,
                "GITHUB_ACTION_PATH": str(FOLDER),
                "GITHUB_OUTPUT": str(output),
                "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
                "RUNNER_TEMP": str(tmp_path / "temp"),
                "CI": "true",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        # The last of a name counts.
        outputs = dict(line.split("=", 1) for line in output.read_text(encoding="utf-8").splitlines())
        return done.returncode, done.stdout, outputs

    return run


def test_a_green_gate_leaves_its_results_outside_of_the_checkout(gate: Callable[..., Gate], tmp_path: Path) -> None:
    """Results are in the folder that becomes the artifact, not in the checkout; pip gets each word."""
    status, said, outputs = gate("def test_it(): pass", install="pytest-gpuserve[mosec,report] -r requirements.txt")
    assert (status, outputs["outcome"]) == (0, "passed"), said
    assert Path(outputs["folder"]) == tmp_path / "temp" / "gpuserve"
    assert "junit.xml" in {path.name for path in Path(outputs["folder"]).iterdir()}
    made = {path.name for path in (tmp_path / "checkout").rglob("*") if path.is_file()}
    assert {name for name in made if not name.endswith(".pyc")} == {"test_it.py"}
    assert (tmp_path / "temp" / "pip").read_text().split()[-3:] == [
        "pytest-gpuserve[mosec,report]",
        "-r",
        "requirements.txt",
    ]


@pytest.mark.parametrize(("on_failure", "expected"), [("fail", 1), ("warn", 0)])
def test_a_red_gate_fails_or_warns(gate: Callable[..., Gate], on_failure: str, expected: int) -> None:
    """Either way the outcome says that it failed."""
    status, said, outputs = gate("def test_it(): assert False", **{"on-failure": on_failure})
    assert (status, outputs["outcome"]) == (expected, "failed"), said
    assert ("::warning " in said) is (on_failure == "warn")


@pytest.mark.parametrize(
    "inputs", [{"gpu": "T4000"}, {"arguments": "--no-such-option"}, {"paths": "nothing/"}, {"on-failure": "ignore"}]
)
def test_what_measures_nothing_is_an_error_that_no_setting_hides(
    gate: Callable[..., Gate], inputs: dict[str, str]
) -> None:
    """Exit status and outcome, also where a failed gate would only warn."""
    status, said, outputs = gate("def test_it(): pass", **{"on-failure": "warn", **inputs})
    assert (status, outputs["outcome"]) == (4, "error"), said
    assert "::error " in said


def test_what_was_measured_is_kept_whatever_came_of_it() -> None:
    """The cache is saved after any gate under the key of its restore, and inputs reach the shell as variables."""
    assert not any("${{" in step.get("run", "") for step in STEPS)
    restore, gate_step, save, upload = STEPS
    assert "id" in gate_step
    assert save["with"] == {name: restore["with"][name] for name in ("path", "key")}
    assert save["if"] == upload["if"] == "always()"
    prefix = restore["with"]["restore-keys"].splitlines()[0]
    assert restore["with"]["key"] == prefix + "${{ github.run_id }}-${{ github.run_attempt }}"
