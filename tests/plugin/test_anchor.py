"""Baselines that cannot creep: what `--baseline-update` says and refuses, and what a gate tells of many small steps."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.plugin.conftest import says_no_traceback, text_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugin.conftest import Checkout, Project

JSON = "--gpuserve-json=out.json"


def anchor(project: Project) -> dict[str, Any]:
    """The one line of the one anchor, with its commit."""
    (recorded,) = project.entry()["anchors"]
    (line,) = recorded["metrics"]
    return {**line, "commit": recorded["commit"]}


def build(project: Project, checkout: Checkout, speed: float) -> None:
    """Commit a build."""
    project.speed(speed)
    checkout.git("add", "--all")
    checkout.git("commit", "--quiet", "--allow-empty", "--message", f"speed {speed}")


def update(project: Project, checkout: Checkout, speed: float, *arguments: str) -> pytest.RunResult:
    """Commit a build and record it; its baseline is committed with the next one."""
    build(project, checkout, speed)
    return project.run("--baseline-update", *arguments)


def test_an_update_says_what_it_does(project: Project, checkout: Checkout) -> None:
    """In plain words: set, within tolerance, tightened (which is proposed before), loosened (which is shown later)."""
    first = update(project, checkout, 1.0)
    first.stdout.fnmatch_lines(["test_it: recorded (2 sessions) in *", "test_it: throughput */s, anchor set here"])
    recorded_at = anchor(project)["commit"]

    update(project, checkout, 0.98).stdout.fnmatch_lines(
        [f"test_it: throughput */s -> */s (-*.? %), within tolerance, anchor stays at */s of {recorded_at[:12]}"]
    )
    assert anchor(project)["commit"] == recorded_at

    build(project, checkout, 1.3)
    proposal = "to tighten its baseline: pytest suites/perf/test_perf.py::test_it --gpu=cpu --baseline-update"
    project.run().stdout.fnmatch_lines([f"test_it: throughput IMPROVED */s -> */s (+*.? %); {proposal}"])

    update(project, checkout, 1.3).stdout.fnmatch_lines(
        [f"test_it: throughput */s -> */s (+*.? %), tightened (its anchor was */s of {recorded_at[:12]})"]
    )
    assert anchor(project)["how"] == "tightened"
    assert anchor(project)["commit"] == project.entry()["commit"] != recorded_at

    update(project, checkout, 1.0, "--reason=a larger model").stdout.fnmatch_lines(
        ["test_it: throughput */s -> */s (-*.? %), loosened: a larger model (its anchor was */s of *)"]
    )
    loosened = anchor(project)
    assert (loosened["how"], loosened["reason"]) == ("loosened", "a larger model")
    assert [(move["how"], move.get("reason")) for move in project.entry()["moves"]] == [
        ("tightened", None),
        ("loosened", "a larger model"),
    ]

    gated = project.run(JSON)
    gated.assert_outcomes(passed=1)
    shown = f"throughput was loosened at {loosened['commit'][:12]}: a larger model"
    assert shown in text_of(gated)
    assert any(shown in verdict["reasons"] for verdict in project.result()["verdicts"])


def test_small_steps_are_told_when_they_come_together(project: Project, checkout: Checkout) -> None:
    """About 3 % a step is let pass each time; what that adds up to is REGRESSED beside the anchor's commit."""
    for speed in (1.0, 0.965, 0.935):
        update(project, checkout, speed).assert_outcomes(passed=1)
    accepted_at = anchor(project)["commit"]
    assert accepted_at != project.entry()["commit"]
    build(project, checkout, 0.915)
    result = project.run(JSON)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"*drift: the baseline here is the anchor, */s accepted at {accepted_at[:12]} on *"])
    assert f"side by side with the anchor's commit ({accepted_at[:12]}) it is REGRESSED too" in text_of(result)
    assert says_no_traceback(result)
    verdicts = [(verdict["reference_kind"], verdict["verdict"]) for verdict in project.result()["verdicts"]]
    assert verdicts[-1] == ("against", "REGRESSED")
    assert checkout.left_behind() == []

    before = project.baseline.read_bytes()
    refused = project.run("--baseline-update")
    refused.assert_outcomes(failed=1)
    refused.stdout.fnmatch_lines(["*would loosen throughput*--reason=*", "*drift: the baseline here is the anchor*"])
    assert project.baseline.read_bytes() == before


def test_anchors_of_a_file_are_checked(project: Project, recorded: Path) -> None:
    """One without them is gated, and the next update keeps what it said; an edited one is refused with its field."""
    plain = json.loads(recorded.read_text())
    anchors = plain["entries"]["test_it"].pop("anchors")
    project.baseline.parent.mkdir(parents=True)
    project.baseline.write_text(json.dumps(plain))
    project.run().assert_outcomes(passed=1)
    project.speed(0.97)
    project.run("--baseline-update").assert_outcomes(passed=1)
    (kept,) = project.entry()["anchors"]
    assert kept["at"] == plain["entries"]["test_it"]["sessions"][-1]["occasion"]
    assert kept["metrics"][0]["value"] == pytest.approx(plain["summary"]["test_it"]["throughput"], rel=0.001)
    anchors[0]["metrics"][0]["value"] *= 0.9
    plain["entries"]["test_it"]["anchors"] = anchors
    project.baseline.write_text(json.dumps(plain))
    result = project.run()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    text = text_of(result)
    assert "entries['test_it'].anchors[0].metrics[0].seal does not fit" in text
    assert "git checkout -- " in text
    assert says_no_traceback(result)
