"""The gate, end to end: recorded, gated, slowed down."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.scripted_starts import Script
from tests.plugin.conftest import JSON, Checkout, busy_machine, says_no_traceback, text_of

if TYPE_CHECKING:
    from tests.plugin.conftest import Project

ALL = """assert run.throughput >= baseline.throughput
    assert run.latency.p50 <= baseline.latency.p50
    assert run.latency.p99 <= baseline.latency.p99
    assert run.batching_ratio >= baseline.batching_ratio"""


def test_recorded_then_gated_then_slowed(project: Project) -> None:
    """A recorded build gated again passes in every metric; made slower, it fails, with the size of the change."""
    project.write(ALL)
    recorded = project.run("--baseline-update")
    recorded.assert_outcomes(passed=1)
    recorded.stdout.fnmatch_lines(["*test_it: recorded (2 sessions) in */baselines/cpu/perf/test_perf.json*"])
    before = project.baseline.read_bytes()

    same = project.run(JSON)
    same.assert_outcomes(passed=1)
    assert same.ret == 0
    gated = ("throughput", "latency.p50", "latency.p99", "batching_ratio")
    assert project.verdicts() == dict.fromkeys(gated, "PASS")

    project.script = Script(speed=0.7)
    slow = project.run()
    slow.assert_outcomes(failed=1)
    assert slow.ret == 1
    change = re.search(r"REGRESSED: throughput is \S+, baseline \S+: (-\d+\.\d) % \(tolerance 10 %\)", text_of(slow))
    assert change is not None, text_of(slow)
    assert float(change.group(1)) == pytest.approx(-30, abs=2)
    slow.stdout.fnmatch_lines(
        ["*to accept the new number: pytest *--baseline-update*", "*metrics that moved with it:*latency.p50 +*"]
    )
    assert project.baseline.read_bytes() == before


def test_a_real_server_recorded_and_slowed(real_project: Project) -> None:
    """A real mosec server is recorded with nothing made up; that it takes three times as long is found.

    It sleeps most of the time, and the tolerance is far above what a busy machine takes from it and far below the
    change, so that the machine can at most make a load INVALID, which then has to be told and recorded nowhere.
    """
    marker = "@pytest.mark.gpuserve(throughput=0.33, p90=0.5, p95=0.5, p99=1.0)"
    real_project.write(marker=marker, work_ms=20)
    text = real_project.test_file.read_text()
    real_project.test_file.write_text(text.replace("seconds=2, warmup_seconds=0.5", "seconds=1, warmup_seconds=0.3"))
    real_project.ini(gpuserve_sessions=1)
    # What a stored number says of a machine whose speed moves is settled by the commit.
    checkout = Checkout(real_project, None)
    result = real_project.run_anew("--baseline-update", JSON)
    run = real_project.result()["run"]
    if busy_machine(run):
        assert real_project.verdicts()["throughput"] == "INVALID"
        assert not real_project.baseline.exists()
        pytest.skip(f"the machine is too busy for a baseline: {run['problems']}")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*test_it: recorded (1 session) in */baselines/cpu/perf/test_perf.json*"])
    _agrees_with_itself(run)
    before = real_project.baseline.read_bytes()
    checkout.commit("a baseline")
    for start in real_project.entry()["sessions"][0]["starts"]:
        assert start["cold_start_seconds"] > 0
        assert start["requests"] > 0
        assert start["items"] > 0

    # The workload has to stay the same for the baseline to be of it, so the app itself is changed.
    app = real_project.app_file
    app.write_text(app.read_text().replace("options().work_ms / 1000", "3 * options().work_ms / 1000"))
    slow = real_project.run("--gpuserve-budget=1", JSON)
    slow.assert_outcomes(failed=1)
    if not busy_machine(real_project.result()["run"]):
        assert real_project.verdicts()["throughput"] == "REGRESSED"
        assert "REGRESSED: throughput is " in text_of(slow)
    assert real_project.baseline.read_bytes() == before


def _agrees_with_itself(numbers: dict[str, Any]) -> None:
    """The numbers of a real run in the JSON result, which no script made up."""
    assert numbers["errors"] == {}
    assert numbers["starts"] == 2
    assert numbers["throughput"] == numbers["requests"] / numbers["seconds"]
    latency = numbers["latency"]
    assert 0.02 < latency["p50"] <= latency["p90"] <= latency["p95"] <= latency["p99"] <= latency["max"] * 1.001
    assert numbers["answers_checked"] == numbers["answers"] >= numbers["requests"]
    assert 1 <= numbers["batching_ratio"] <= 8
    assert sum(numbers["batch_sizes"].values()) > 0
    assert numbers["send_lag_p99"] > 0
    assert numbers["client_cpu_seconds"] > 0


def test_a_plain_limit_needs_no_baseline(project: Project) -> None:
    """A number is a service-level check by itself; an assertion that gates nothing is refused at the user's line."""
    project.write("assert run.latency.p99 <= 5.0\n    assert run.throughput >= 1e6")
    result = project.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*throughput*limit*"])
    text = text_of(result)
    assert re.search(r"latency\.p99 .*PASS", text)
    assert re.search(r"throughput .*REGRESSED", text)
    project.write("assert run.throughput <= baseline.throughput")
    wrong = project.run()
    wrong.assert_outcomes(failed=1)
    wrong.stdout.fnmatch_lines(
        [
            "*test_perf.py:*: `throughput <= baseline` gates nothing: higher is better*",
            "*write `assert run.throughput >=*",
        ]
    )
    assert says_no_traceback(wrong)
