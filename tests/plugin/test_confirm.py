"""A comparison that a stored baseline does not pass is settled beside the baseline's own commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.plugin.conftest import text_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugin.conftest import Checkout, Project

JSON = "--gpuserve-json=out.json"

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
    """Rounds settle a comparison that stored numbers do not pass; the row has the base commit's short hash below."""
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
