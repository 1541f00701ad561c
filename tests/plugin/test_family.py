"""A suite compares much: what looks like a regression by itself has to be surer among so many."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.plugin.conftest import text_of

if TYPE_CHECKING:
    from tests.plugin.conftest import Checkout, Project

TESTS = """
import pytest

@pytest.mark.parametrize("app", ["odd.py", *["app.py"] * 7], ids=range(8))
def test_it(mosec_server, load, baseline, app):
    run = load(mosec_server(app).post("/inference", body=b"fox"), concurrency=8)
    assert run.throughput >= baseline.throughput
    assert run.latency.p50 <= baseline.latency.p50
    assert run.latency.p90 <= baseline.latency.p90
    assert run.latency.p95 <= baseline.latency.p95
"""

ALONE = "suites/perf/test_perf.py::test_it[0]"

BY_ITSELF = "REGRESSED by itself after "


@pytest.fixture
def suite(project: Project, checkout: Checkout) -> Project:
    """Eight tests of four metrics each, of which the first has an app of its own."""
    project.test_file.write_text(TESTS)
    project.speed(1)
    project.speed(1, app="odd.py")
    checkout.commit("a suite")
    return project


def odd(project: Project, *arguments: str) -> dict[str, Any]:
    """Run, and return the throughput's verdict of the test with an app of its own."""
    project.run("--against=HEAD", "--gpuserve-json=out.json", "--cache-clear", *arguments)
    tests = json.loads((project.path / "out.json").read_text())["tests"]
    (first,) = [test for test in tests if test["nodeid"] == ALONE]
    found: dict[str, Any] = first["verdicts"][0]
    assert found["metric"] == "throughput"
    return found


def test_a_real_regression_is_measured_on_and_upheld(suite: Project, checkout: Checkout) -> None:
    """What is REGRESSED by itself early is not yet among 32 comparisons; it is measured on, and found all the same."""
    suite.speed(0.9, app="odd.py")
    alone = odd(suite, ALONE)
    among = odd(suite)
    assert alone["verdict"] == among["verdict"] == "REGRESSED"
    assert among["rounds"] > alone["rounds"]


def test_a_chance_regression_goes_away_and_is_told(suite: Project, checkout: Checkout) -> None:
    """Bad luck of the first starts is REGRESSED by itself, but not in a suite, whose report says both."""
    suite.speed(0.93, 0.93, 1, app="odd.py")
    assert odd(suite, ALONE)["verdict"] == "REGRESSED"
    among = odd(suite)
    assert among["verdict"] == "PASS"
    assert any(
        BY_ITSELF in reason
        and "not among the 32 comparisons of this run" in reason
        and "measured on, it is PASS" in reason
        for reason in among["reasons"]
    )


def test_a_claim_that_is_held_back_is_no_pass(suite: Project, checkout: Checkout) -> None:
    """Where the budget ends before it is settled, it fails as INCONCLUSIVE with what it looks like by itself."""
    suite.speed(0.9, app="odd.py")
    text = ""
    for _ in range(2):
        text = text_of(suite.run("--against=HEAD", "--gpuserve-budget=0.000001"))
    assert f"{BY_ITSELF}2 rounds" in text
    assert "INCONCLUSIVE: throughput" in text


def test_equal_builds_pass_a_whole_suite(suite: Project, checkout: Checkout) -> None:
    """32 comparisons of one build with itself: not one is called worse."""
    result = suite.run("--against=HEAD")
    result.assert_outcomes(passed=8)
    assert "REGRESSED" not in text_of(result)
    assert checkout.left_behind() == []
