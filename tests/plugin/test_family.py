"""A suite compares much: what looks like a regression by itself has to be surer among so many."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

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


def test_a_chance_regression_goes_away_and_is_told(project: Project, checkout: Checkout) -> None:
    """Bad luck of the first starts is REGRESSED by itself, but not among 32 comparisons, whose report says both."""
    project.test_file.write_text(TESTS)
    project.speed(1)
    project.speed(1, app="odd.py")
    checkout.commit("a suite")
    project.speed(0.93, 0.93, 1, app="odd.py")
    alone, among = (odd(project, *arguments) for arguments in ((ALONE,), ()))
    assert (alone["verdict"], among["verdict"]) == ("REGRESSED", "PASS")
    assert among["rounds"] > alone["rounds"]
    (told,) = [reason for reason in among["reasons"] if "REGRESSED by itself after " in reason]
    assert "not among the 32 comparisons of this run" in told
    assert "measured on, it is PASS" in told


def odd(project: Project, *arguments: str) -> dict[str, Any]:
    """Run, and return the throughput's verdict of the test with an app of its own."""
    project.run("--against=HEAD", "--gpuserve-json=out.json", "--cache-clear", *arguments)
    tests = json.loads((project.path / "out.json").read_text())["tests"]
    (first,) = [test for test in tests if test["nodeid"] == ALONE]
    found: dict[str, Any] = first["verdicts"][0]
    assert found["metric"] == "throughput"
    return found
