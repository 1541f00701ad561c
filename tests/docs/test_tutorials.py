"""The tutorials and the script that bisects: each command is run, and says what its page shows, but for its numbers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

import pytest_gpuserve
from tests.support.plain_git import git

DOCS = Path(pytest_gpuserve.__file__).parent / "docs"
TUTORIALS = sorted((DOCS / "tutorials").glob("*.md"))

DEADLINE_SECONDS = 400.0

GIT = {f"GIT_{who}_{what}": "x@y.invalid" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def masked(line: str) -> str:
    """A line without numbers, commits, units, widths of columns, and the test's name, which only its first row has."""
    line = re.sub(r"^ test_\w+ ", " ", line)
    line = re.sub(r"\b(?=[0-9a-f]*\d)[0-9a-f]{7,12}\b", "COMMIT", line)
    return " ".join(re.sub(r"[+-]?\d[\d.,]*( [mu]?s\b)?", "N", line).split())


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_every_command_of_a_tutorial_does_what_it_shows(page: Path, tmp_path: Path) -> None:
    """The commands of a tutorial run in order, with its files, and print each shown line."""
    environment = {**os.environ, **GIT, "COLUMNS": "120", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment = {name: value for name, value in environment.items() if not name.startswith("PYTEST_")}
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    said, comment = "", ""
    for token in MarkdownIt().parse(page.read_text(encoding="utf-8")):
        if token.type == "html_block":
            comment = token.content
        elif token.type == "fence" and token.info == "python":
            name = token.content.splitlines()[0].removeprefix("# ")
            (tmp_path / name).write_text(token.content, encoding="utf-8")
        elif token.type == "fence" and token.info == "bash":
            if "not run" not in comment:
                status, said = run(token.content, tmp_path, environment)
                assert status == ("exit status 1" in comment), said
            comment = ""
        elif token.type == "fence" and token.info == "text":
            files = "\n".join(file.read_text(encoding="utf-8") for file in tmp_path.glob("suites/*/*.py"))
            printed = {masked(line) for line in f"{said}\n{files}".splitlines()}
            assert {masked(line) for line in token.content.splitlines()} <= printed, said


def run(commands: str, folder: Path, environment: dict[str, str]) -> tuple[int, str]:
    """Run a block; returns its exit status and what it printed."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    return done.returncode, done.stdout


PYTEST = """
import json, sys
from pathlib import Path
(file,) = (argument.partition("=")[2] for argument in sys.argv if argument.startswith("--gpuserve-json="))
verdict = Path("verdict").read_text()
Path(file).write_text(json.dumps({"tests": [{"verdicts": [{"verdict": verdict}]}]}))
sys.exit(verdict not in ("PASS", "MISSING"))
"""
"""Stands for the measurement: the verdict of a commit is what its file says."""


def test_the_first_slow_commit_is_found_beside_some_that_cannot_be_told(tmp_path: Path) -> None:
    """REGRESSED is bad, PASS is good; INVALID and INCONCLUSIVE, which fail, and MISSING, which may not, are skipped."""
    script = (DOCS / "how-to" / "read_a_run.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    (tmp_path / "slower.py").write_text(script, encoding="utf-8")
    fake = tmp_path / "modules" / "pytest.py"
    fake.parent.mkdir()
    fake.write_text(PYTEST, encoding="utf-8")
    project = tmp_path / "project"
    project.mkdir()
    git(project, "init", "-q")
    commits = []
    for verdict in ("PASS", "INVALID", "PASS", "REGRESSED", "INCONCLUSIVE", "REGRESSED", "MISSING", "REGRESSED"):
        (project / "verdict").write_text(verdict, encoding="utf-8")
        git(project, "add", "verdict")
        git(project, "commit", "-q", "--allow-empty", "-m", verdict)
        commits.append(git(project, "rev-parse", "HEAD").strip())
    git(project, "bisect", "start", commits[-1], commits[0])
    environment = {**os.environ, "PYTHONPATH": str(fake.parent), "TMPDIR": str(tmp_path)}
    argv = ["git", "bisect", "run", sys.executable, "../slower.py", commits[0], "suites/test_it.py::test_it"]
    done = subprocess.run(argv, cwd=project, env=environment, capture_output=True, text=True, check=False)
    assert f"{commits[3]} is the first bad commit" in done.stdout, done.stdout + done.stderr
