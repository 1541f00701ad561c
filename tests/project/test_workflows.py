"""This project's workflow, and those that ``new`` writes: code of a pull request runs where no token may write."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from pytest_gpuserve.new.files import workflow_files
from pytest_gpuserve.plugin.options import add_options

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".github" / "workflows"

OWN = "ci.yml"
"""This project's own workflow; ``new`` writes the others."""

INSTALL = "'pytest-gpuserve[mosec,report]' -r requirements.txt"

TEXTS = {
    OWN: (FOLDER / OWN).read_text(encoding="utf-8"),
    **workflow_files("app", INSTALL, None),
    **workflow_files("app", INSTALL, ("self-hosted,linux", "T4")),
}

NAMES = sorted(TEXTS)

GATES = ["gate-gpu.yml", "gate-app.yml"]

OF_OTHERS = {"--junitxml", "--"}
"""Options of pytest."""

WRITES = {"post-comment.yml": {"pull-requests"}, "baseline-update.yml": {"contents", "pull-requests"}}
"""The only workflows that may write, and what."""

Job = dict[str, Any]


def workflow(name: str) -> dict[str, Any]:
    """A workflow as GitHub reads it; to YAML 1.1 the key ``on`` is a truth value."""
    plain: dict[Any, Any] = yaml.safe_load(TEXTS[name])
    plain["on"] = plain.pop(True)
    return plain


def events(name: str) -> set[str]:
    """The events that start a workflow."""
    return set(workflow(name)["on"])


def jobs(name: str) -> dict[str, Job]:
    """The jobs of a workflow."""
    found: dict[str, Job] = workflow(name)["jobs"]
    return found


def steps(name: str, action: str = "") -> list[dict[str, Any]]:
    """The steps of all jobs; with an action's name those that use it."""
    return [
        step
        for job in jobs(name).values()
        for step in job["steps"]
        if not action or step.get("uses", "").startswith(f"{action}@")
    ]


def strings(value: object) -> Iterator[str]:
    """All texts in plain data, names of fields too."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from (str(key), *strings(each))
    elif isinstance(value, list):
        for each in value:
            yield from strings(each)
    else:
        yield str(value)


@pytest.mark.parametrize("name", NAMES)
def test_every_job_ends(name: str) -> None:
    """A server that hangs holds no runner for the six hours that are the default."""
    assert all(job["timeout-minutes"] <= 120 for job in jobs(name).values())


@pytest.mark.parametrize("name", NAMES)
def test_rights_are_given_out_by_name(name: str) -> None:
    """Nobody has the default rights of a token, and what may write is known."""
    plain = workflow(name)
    assert isinstance(plain["permissions"], dict)
    given = [plain["permissions"], *(job.get("permissions", {}) for job in plain["jobs"].values())]
    written = {scope for each in given for scope, right in each.items() if right != "read"}
    assert written == WRITES.get(name, set())
    if written:
        assert plain["permissions"] == {}


@pytest.mark.parametrize("name", NAMES)
def test_a_pull_requests_code_gets_nothing(name: str) -> None:
    """No secret, no token, no right to write; and no event that would lend it those of the repository."""
    assert "pull_request_target" not in events(name)
    if not events(name) & {"pull_request"}:
        return
    plain = workflow(name)
    assert not any(re.search(r"\bsecrets\b|github\.token|GITHUB_TOKEN|GH_TOKEN", text) for text in strings(plain))
    assert plain["permissions"] == {"contents": "read"}
    assert all("permissions" not in job for job in plain["jobs"].values())
    assert all("ref" not in step["with"] for step in steps(name, "actions/checkout"))


def test_what_posts_runs_nothing() -> None:
    """The privileged job checks nothing out, runs no shell, and reads the artifact into a folder of its own."""
    name = "post-comment.yml"
    assert events(name) == {"workflow_run"}
    used = [step["uses"].partition("@")[0] for step in steps(name)]
    assert used == ["actions/download-artifact", "actions/github-script"]
    (download,) = steps(name, "actions/download-artifact")
    assert download["with"]["path"].startswith("${{ runner.temp }}/")
    assert not any("secrets" in text for text in strings(workflow(name)))


def test_what_posts_follows_the_gate_on_a_gpu() -> None:
    """A workflow is followed by its name, an artifact is found by its own."""
    gate, post = "gate-gpu.yml", "post-comment.yml"
    assert workflow(post)["on"]["workflow_run"]["workflows"] == [workflow(gate)["name"]]
    (upload,), (download,) = steps(gate, "actions/upload-artifact"), steps(post, "actions/download-artifact")
    assert {name: download["with"][name] for name in ("name", "path")} == {
        name: upload["with"][name] for name in ("name", "path")
    }
    assert upload["if"] == "always()"


def test_what_is_recorded_is_what_is_proposed() -> None:
    """The job that may write gets the folders that the job that measures has kept."""
    kept, got = (
        {
            step["with"]["name"]: step["with"]["path"]
            for step in steps("baseline-update.yml", f"actions/{what}-artifact")
        }
        for what in ("upload", "download")
    )
    assert kept == got
    assert kept["baselines"] == "baselines/${{ env.GPU }}"


@pytest.mark.parametrize("name", GATES)
def test_what_a_red_run_has_measured_is_kept(name: str) -> None:
    """A gate that fails is the one that is run again: what it measured is saved, and the next attempt restores it."""
    # That one saves only where the whole job went well.
    assert steps(name, "actions/cache") == []
    (restore,) = steps(name, "actions/cache/restore")
    (save,) = steps(name, "actions/cache/save")
    (gate,) = [step for step in steps(name) if step.get("name") == "Gate"]
    order = steps(name)
    assert order.index(restore) < order.index(gate) < order.index(save)
    assert save["if"] == "always()"
    assert save["with"]["path"] == restore["with"]["path"] == "${{ runner.temp }}/pytest-cache"
    assert '-o cache_dir="$RUNNER_TEMP/pytest-cache"' in gate["run"]
    key = save["with"]["key"]
    assert key == restore["with"]["key"]
    # A key is written once, so that each attempt needs its own. That is never there yet: what is restored is the latest
    # that begins like it, of the same commit if there is one.
    commit = "${{ github.event.pull_request.head.sha }}-"
    prefix, rest = key.split(commit)
    assert rest == "${{ github.run_id }}-${{ github.run_attempt }}"
    assert restore["with"]["restore-keys"].splitlines() == [f"{prefix}{commit}", prefix]


@pytest.mark.parametrize("name", GATES)
def test_a_gate_is_never_skipped(name: str) -> None:
    """GitHub counts a required check that was skipped as passed, so that no condition may skip it."""
    assert not any("if" in job for job in jobs(name).values())
    assert not any("continue-on-error" in each for each in (*jobs(name).values(), *steps(name)))


def test_a_gate_on_a_gpu_compares_with_the_base_until_there_are_baselines(tmp_path: Path) -> None:
    """A repository that has recorded nothing is gated all the same."""
    (step,) = [step for step in steps("gate-gpu.yml") if step.get("name") == "Gate"]
    script = step["run"].replace('"$RUNNER_TEMP/venv/bin/pytest"', "printf '%s\\n'")
    environment = {"GPU": "T4", "RUNNER_TEMP": "/tmp"}
    assert "--against=HEAD^1" in _shell(script, environment, tmp_path).splitlines()
    (tmp_path / "baselines").mkdir()
    assert "--against" not in _shell(script, environment, tmp_path)


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(("gate", "baseline"))])
def test_the_options_exist(name: str) -> None:
    """A workflow types no option that the plugin does not have."""
    parser = pytest.Parser(_ispytest=True)
    add_options(parser)
    known = {flag for group in (parser._anonymous, *parser._groups) for each in group.options for flag in each.names()}
    typed = {
        flag
        for step in steps(name)
        if "bin/pytest" in step.get("run", "")
        for flag in re.findall(r"(?<=[\s\"])(--[a-z-]+)(?==|\s)", step["run"])
    }
    assert {"--gpu", "--gpuserve-json", "--gpuserve-report", "--gpuserve-markdown"} <= typed
    assert typed - known <= OF_OTHERS


def test_recording_is_told_why() -> None:
    """The typed reason reaches pytest as one argument, and an empty one as none."""
    (step,) = [step for step in steps("baseline-update.yml") if step.get("name") == "Record"]
    assert step["env"] == {"TESTS": "${{ inputs.tests }}", "REASON": "${{ inputs.reason }}"}
    script = step["run"].replace('"$RUNNER_TEMP/venv/bin/pytest"', "printf '%s\\0'")
    for reason in ("", 'it\'s "worth" $(touch x) `id` * it'):
        words = _shell(script, {"TESTS": "suites/a b", "REASON": reason, "GPU": "T4", "RUNNER_TEMP": "/tmp"}).split(
            "\0"
        )
        assert [word for word in words if word.startswith("--reason")] == ([f"--reason={reason}"] if reason else [])
        assert words[-3:] == ["--", "suites/a b", ""]


def _shell(script: str, environment: dict[str, str], folder: Path = ROOT) -> str:
    command = ["bash", "-e", "-c", script]
    done = subprocess.run(
        command,
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        check=True,
        timeout=60,
    )
    return done.stdout.decode()


def _found(program: str) -> str | None:
    """The place of a program: beside the interpreter, or on the PATH."""
    return shutil.which(program, path=str(Path(sys.executable).parent)) or shutil.which(program)


@pytest.mark.parametrize("linter", ["actionlint", "zizmor --offline"])
def test_linters_have_nothing_to_say(linter: str, tmp_path: Path) -> None:
    """Expressions, contexts, events and shell scripts are valid to GitHub, and open no known hole."""
    name, *arguments = linter.split()
    program = _found(name)
    if program is None:
        pytest.skip(f"needs {name}")
    # The one knows workflows alone.
    actions = [str(ROOT / ".github" / "actions")] if name == "zizmor" else []
    for each, text in TEXTS.items():
        (tmp_path / each).write_text(text, encoding="utf-8")
    command = [program, *arguments, *(str(tmp_path / each) for each in NAMES), *actions]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
