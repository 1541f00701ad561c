"""Baselines that cannot creep: what `--baseline-update` says and refuses."""

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


def test_an_update_says_what_it_does(project: Project, checkout: Checkout) -> None:
    """In plain words: an anchor is set, or loosened for a reason, which later runs show."""
    first = project.run("--baseline-update")
    first.stdout.fnmatch_lines(["test_it: recorded (2 sessions) in *", "test_it: throughput */s, anchor set here"])
    recorded_at = anchor(project)["commit"]
    project.speed(0.8)
    checkout.commit("slower")
    refused = project.run("--baseline-update")
    refused.assert_outcomes(failed=1)
    refused.stdout.fnmatch_lines(["*would loosen throughput*--reason=*"])
    assert anchor(project)["commit"] == recorded_at

    project.run("--baseline-update", "--reason=a larger model").stdout.fnmatch_lines(
        ["test_it: throughput */s -> */s (-*.? %), loosened: a larger model (its anchor was */s of *)"]
    )
    loosened = anchor(project)
    assert (loosened["how"], loosened["reason"]) == ("loosened", "a larger model")
    assert [(move["how"], move["reason"]) for move in project.entry()["moves"]] == [("loosened", "a larger model")]
    gated = project.run(JSON)
    gated.assert_outcomes(passed=1)
    shown = f"throughput was loosened at {loosened['commit'][:12]}: a larger model"
    assert shown in text_of(gated)
    assert any(shown in verdict["reasons"] for verdict in project.result()["verdicts"])


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
