"""`--gpuserve-json`: schema 1, as other tools rely on it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.plugin.conftest import Project


def test_json_of_a_real_run(project: Project) -> None:
    """A run writes device, host, each test's verdicts and its run, with numbers that agree with each other."""
    project.write("assert run.latency.p99 <= 30.0\n    assert run.throughput >= baseline.throughput")
    result = project.run("--gpuserve-json=out.json")
    result.assert_outcomes(failed=1)
    document = json.loads((project.path / "out.json").read_text())
    assert document["schema"] == 1
    assert document["gpu"]["name"] == "cpu"
    assert document["host"]["id"] == "test-host"
    (test,) = document["tests"]
    assert test["nodeid"] == "suites/perf/test_perf.py::test_it"
    assert test["outcome"] == "failed"
    verdicts = {(verdict["metric"], verdict["reference_kind"]): verdict for verdict in test["verdicts"]}
    assert verdicts["latency.p99", "limit"]["verdict"] == "PASS"
    assert verdicts["latency.p99", "limit"]["reference"] == 30.0
    assert verdicts["throughput", "baseline"]["verdict"] == "MISSING"
    assert verdicts["throughput", "baseline"]["change"] is None
    run = test["run"]
    assert run["errors"] == {}
    assert run["starts"] == 2
    assert run["throughput"] == run["requests"] / run["seconds"]
    latency = run["latency"]
    assert 0 < latency["p50"] <= latency["p90"] <= latency["p95"] <= latency["p99"] <= latency["max"] * 1.001
    assert run["answers_checked"] == run["answers"] >= run["requests"]
    assert 1 <= run["batching_ratio"] <= 8
    assert run["load"]["concurrency"] == "8"
    assert run["server"]["server"] == "mosec"


def test_a_session_without_measuring_writes_no_json(project: Project) -> None:
    """A run that measures nothing does not leave a file that looks like a result."""
    (project.path / "suites" / "perf" / "test_perf.py").write_text("def test_plain(): pass\n")
    result = project.run("--gpuserve-json=out.json")
    result.assert_outcomes(passed=1)
    assert not (project.path / "out.json").exists()
