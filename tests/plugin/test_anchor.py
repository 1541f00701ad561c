"""Baselines that cannot creep: what `--baseline-update` says and refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.plugin.conftest import text_of

if TYPE_CHECKING:
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
