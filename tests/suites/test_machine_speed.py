"""Red and green mean the code on a machine of any speed: recorded and gated with real servers at two of them.

The slower machine is a control group with half of the cores' time. Each test clones this repository, records two suites
at one speed, and gates them at the other: the same code, and code whose batches take 30 % and 50 % longer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.cpu_quota import cpu_quota, join

pytestmark = [pytest.mark.slow, pytest.mark.alone]

REPOSITORY = Path(__file__).parents[2]

TESTS = (
    "suites/distilbert/test_distilbert_mosec.py::test_distilbert[workers1-connections50]",
    "suites/codegen/test_codegen_load.py::test_codegen[len32-grpc]",
)
"""One of mosec's and one of Triton's, in which the model takes most of the time: what it is slower by, they lose."""

SLOWED = (
    ("suites/distilbert/apps/distilbert_options.py", 'os.environ.get("DISTILBERT_SLOWDOWN", "0")'),
    ("suites/codegen/apps/serving.py", 'environment.get(SLOWDOWN, "0")'),
)
"""Where an app learns how much longer its batches take."""

HALF = (os.cpu_count() or 1) / 2

SECONDS = 1500
"""For a run; only a hanging one takes so long."""

BUDGET_SECONDS = 600


class Checkout:
    """A clone with baselines of its own.

    Args:
        path: Where it is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        subprocess.run(["git", "clone", "--quiet", str(REPOSITORY), str(path)], check=True, timeout=60)
        self.git("rm", "-r", "--quiet", "baselines/cpu")
        self.commit("without baselines")

    def git(self, *arguments: str) -> None:
        """Run git in it."""
        who = ("-c", "user.name=A User", "-c", "user.email=user@example.org", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *who, "-C", str(self.path), *arguments], check=True, timeout=60)

    def commit(self, message: str) -> None:
        """Commit all there is."""
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", message)

    def slow_down(self, share: float) -> None:
        """Let every batch take so much longer, as a careless change of the apps would; 0 is the committed code."""
        self.git("checkout", "--quiet", "--", "suites")
        for file, text in SLOWED:
            path = self.path / file
            code = path.read_text(encoding="utf-8")
            assert code.count(text) == 1, f"{file} has {code.count(text)} times {text!r}"
            path.write_text(code.replace(text, text.replace('"0"', f'"{share:g}"')), encoding="utf-8")

    def pytest(self, *options: str, group: Path | None) -> subprocess.CompletedProcess[str]:
        """Run these tests, in a group if there is one."""
        environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "CI"}}
        # Each run is one of somebody who has run nothing before.
        command = [sys.executable, "-m", "pytest", *TESTS, "--gpu=cpu", "-p", "no:cacheprovider", "-vv", *options]
        return subprocess.run(
            command,
            cwd=self.path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
            preexec_fn=None if group is None else partial(join, group),
        )

    def verdicts(self, group: Path | None) -> tuple[list[list[dict[str, Any]]], str]:
        """Gate them; of each test the verdicts that count, and all that was printed."""
        done = self.pytest("--gpuserve-json=out.json", f"--gpuserve-budget={BUDGET_SECONDS}", group=group)
        tests = json.loads((self.path / "out.json").read_text())["tests"]
        assert len(tests) == len(TESTS), done.stdout + done.stderr
        counting = [[each for each in test["verdicts"] if each["asserted"] and not each["overruled"]] for test in tests]
        return counting, done.stdout


@pytest.mark.parametrize(("recorded_at", "gated_at"), [("half", "whole"), ("whole", "half")])
def test_red_and_green_mean_the_code(tmp_path: Path, recorded_at: str, gated_at: str) -> None:
    """A slower app is REGRESSED though the machine is twice as fast, or half; the same code has not changed."""
    checkout = Checkout(tmp_path / "clone")
    with ExitStack() as stack:
        groups: dict[str, Path | None] = {"half": stack.enter_context(cpu_quota(HALF)), "whole": None}
        recorded = checkout.pytest("--baseline-update", "-o", "gpuserve_sessions=2", group=groups[recorded_at])
        assert recorded.returncode == pytest.ExitCode.OK, recorded.stdout + recorded.stderr
        checkout.commit("baselines")
        same, printed = checkout.verdicts(groups[gated_at])
        said = {each["verdict"] for test in same for each in test}
        assert not said & {"REGRESSED", "IMPROVED"}, printed
        assert "times as fast as when the baseline was recorded" in printed
        for share in (0.3, 0.5):
            checkout.slow_down(share)
            found, printed = checkout.verdicts(groups[gated_at])
            assert all("REGRESSED" in {each["verdict"] for each in test} for test in found), printed
