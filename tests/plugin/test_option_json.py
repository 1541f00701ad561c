"""`--gpuserve-json`, as other tools rely on it, and `--gpuserve-benchmark-json`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.plugin.conftest import Project


def test_json_of_a_run(project: Project) -> None:
    """A run writes device, host, each test's verdicts and its run, with numbers that agree with each other."""
    project.write("assert run.latency.p99 <= 30.0\n    assert run.throughput >= baseline.throughput")
    project.run("--gpuserve-json=out.json").assert_outcomes(failed=1)
    document = json.loads((project.path / "out.json").read_text())
    assert (document["schema"], document["gpu"]["name"], document["host"]["id"]) == (2, "cpu", "test-host")
    (test,) = document["tests"]
    assert (test["nodeid"], test["outcome"]) == ("suites/perf/test_perf.py::test_it", "failed")
    verdicts = {(verdict["metric"], verdict["reference_kind"]): verdict for verdict in test["verdicts"]}
    assert verdicts["latency.p99", "limit"]["verdict"] == "PASS"
    assert verdicts["latency.p99", "limit"]["reference"] == 30.0
    assert verdicts["throughput", "baseline"]["verdict"] == "MISSING"
    assert verdicts["throughput", "baseline"]["change"] is None
    run = test["run"]
    assert (run["errors"], run["sessions"], run["starts"]) == ({}, 1, 2)
    # Two starts of four windows of 800 requests: 1600 a second in batches of four.
    assert run["requests"] == run["answers_checked"] == run["answers"] == 6400
    assert run["throughput"] == run["requests"] / run["seconds"] == pytest.approx(1600, rel=0.05)
    latency = run["latency"]
    assert 0 < latency["p50"] < latency["p90"] < latency["p95"] < latency["p99"] < latency["max"] * 1.001
    assert latency["p50"] == pytest.approx(0.005, rel=0.05)
    assert run["batching_ratio"] == pytest.approx(4, rel=0.05)
    assert (run["load"]["concurrency"], run["server"]["server"]) == ("8", "mosec")
