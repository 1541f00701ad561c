"""The script that bisects, in a real ``git bisect``; what a gate says of a commit is planted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest_gpuserve
from tests.support.plain_git import git

PAGE = Path(pytest_gpuserve.__file__).parent / "docs" / "how-to" / "read_a_run.md"

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
    script = PAGE.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    (tmp_path / "slower.py").write_text(script, encoding="utf-8")
    fake = tmp_path / "modules" / "pytest.py"
    fake.parent.mkdir()
    fake.write_text(PYTEST, encoding="utf-8")
    project = tmp_path / "project"
    project.mkdir()
    git(project, "init", "-q")
    commits = []
    for verdict in (
        "PASS",
        "PASS",
        "INVALID",
        "PASS",
        "REGRESSED",
        "INCONCLUSIVE",
        "REGRESSED",
        "MISSING",
        "REGRESSED",
    ):
        (project / "verdict").write_text(verdict, encoding="utf-8")
        git(project, "add", "verdict")
        git(project, "commit", "-q", "--allow-empty", "-m", verdict)
        commits.append(git(project, "rev-parse", "HEAD").strip())
    git(project, "bisect", "start", commits[-1], commits[0])
    environment = {**os.environ, "PYTHONPATH": str(fake.parent), "TMPDIR": str(tmp_path)}
    argv = ["git", "bisect", "run", sys.executable, "../slower.py", commits[0], "suites/test_it.py::test_it"]
    done = subprocess.run(argv, cwd=project, env=environment, capture_output=True, text=True, check=False)
    assert f"{commits[4]} is the first bad commit" in done.stdout, done.stdout + done.stderr
