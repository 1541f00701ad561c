"""What a stored baseline does not pass is settled beside the baseline's own commit."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.fakes.scripted_sessions import Script
from tests.plugin.conftest import text_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugin.conftest import Checkout, Project

JSON = "--gpuserve-json=out.json"

SLOW_HOUR = Script(speed=0.8)
"""A machine on which everything takes longer than when the baseline was recorded."""

COMMIT = "the baseline's commit"


@pytest.fixture
def gated(project: Project, checkout: Checkout) -> Project:
    """A project whose baseline was recorded at a clean commit, and is committed."""
    assert project.run("--baseline-update").ret == pytest.ExitCode.OK
    checkout.commit("a baseline")
    return project


def verdicts(project: Project) -> list[tuple[str, str]]:
    """Reference kind and verdict of each row, in their order."""
    return [(verdict["reference_kind"], verdict["verdict"]) for verdict in project.result()["verdicts"]]


@pytest.mark.parametrize(("speed", "verdict", "outcome"), [(0.8, "REGRESSED", "failed"), (1.5, "IMPROVED", "passed")])
def test_another_build_is_told_beside_the_base(
    gated: Project, checkout: Checkout, speed: float, verdict: str, outcome: str
) -> None:
    """What the stored numbers do not pass is settled by rounds; the row has the base commit's short hash below."""
    base = checkout.git("rev-parse", "HEAD")[:12]
    gated.speed(speed)
    checkout.commit("another")
    result = gated.run(JSON)
    result.assert_outcomes(**{outcome: 1})
    assert verdicts(gated) == [("against", verdict)]
    assert gated.result()["run"]["base"]["name"] == f"{COMMIT} ({base})"
    result.stdout.fnmatch_lines([f"*{COMMIT} ({base})*"])
    if outcome == "failed":
        result.stdout.fnmatch_lines(["*assert REGRESSED: throughput is */s, base */s: -*"])
    assert checkout.left_behind() == []


def test_a_slow_hour_is_no_regression(gated: Project, checkout: Checkout) -> None:
    """Of the base's own build on a machine that got slower stored numbers say INVALID, and the pair says PASS."""
    gated.script = SLOW_HOUR
    alone = gated.run("--stored-only", JSON)
    alone.assert_outcomes(failed=1)
    assert verdicts(gated) == [("baseline", "INVALID")]
    assert "something outside git differs" in text_of(alone)
    assert checkout.servers() == []
    result = gated.run(JSON)
    result.assert_outcomes(passed=1)
    assert verdicts(gated) == [("against", "PASS")]
    assert "settled side by side with the baseline's commit" in text_of(result)
    assert checkout.left_behind() == []
    shutil.rmtree(gated.path / "baselines")
    gated.run("--baseline-update").assert_outcomes(passed=1)
    assert checkout.servers() == [], "a recording measures what it writes, and no more"


@pytest.mark.parametrize(("speed", "expected"), [(1, "PASS"), (0.8, "REGRESSED")])
def test_a_baseline_of_another_host_is_settled(gated: Project, checkout: Checkout, speed: float, expected: str) -> None:
    """Numbers of another machine say nothing here, but the commit that they are of does."""
    gated.environment["GPUSERVE_HOST"] = "another-host"
    gated.speed(speed)
    gated.script = Script(speed=0.3)
    result = gated.run(JSON)
    assert result.ret == (pytest.ExitCode.OK if expected == "PASS" else pytest.ExitCode.TESTS_FAILED)
    assert verdicts(gated) == [("against", expected)]
    assert "settled side by side with the baseline's commit" in text_of(result)


def test_another_host_without_a_commit_is_undecided(project: Project, recorded: Path) -> None:
    """A baseline of elsewhere and outside of git can be neither compared nor settled: it fails unless it may skip."""
    project.store(recorded)
    project.environment["GPUSERVE_HOST"] = "another-host"
    result = project.run()
    result.assert_outcomes(failed=1)
    text = text_of(result)
    assert "INCONCLUSIVE" in text
    assert "the baseline was recorded on the host 'test-host', this one is 'another-host'" in text
    assert "there is no git checkout here" in text
    project.run("--on-inconclusive=skip").assert_outcomes(skipped=1)
