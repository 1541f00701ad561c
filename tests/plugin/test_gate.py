"""The gate, end to end: recorded, gated, slowed down; and a baseline file that it cannot use."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.fakes.scripted_starts import Script
from tests.plugin.conftest import JSON, says_no_traceback, text_of

if TYPE_CHECKING:
    from pathlib import Path

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


@pytest.mark.parametrize("options", [(), ("--baseline-update",)], ids=["gating", "recording"])
def test_damage_is_named_and_nothing_is_lost(project: Project, recorded: Path, options: tuple[str, ...]) -> None:
    """The test fails unmeasured, the message names file and field, the file keeps its bytes, no traceback is shown."""
    # A measurement would end the run like Ctrl-C.
    project.script = Script(interrupted_start=1)
    file = json.loads(recorded.read_text())
    file["entries"]["test_it"]["sessions"][0]["starts"][0]["seconds"] = -0.5
    project.baseline.parent.mkdir(parents=True)
    project.baseline.write_text(text := json.dumps(file))
    result = project.run(*options)
    result.assert_outcomes(failed=1)
    assert result.ret == 1
    field = "entries['test_it'].sessions[0].starts[0].seconds"
    assert re.search(rf"baseline file {re.escape(str(project.baseline))}\b.*{re.escape(field)}", text_of(result))
    assert says_no_traceback(result)
    assert project.baseline.read_text() == text


def test_a_baseline_of_another_load_is_missing(project: Project, recorded: Path) -> None:
    """A baseline of another load is named with both values."""
    project.store(recorded)
    text = project.test_file.read_text()
    project.test_file.write_text(text.replace("concurrency=8", "concurrency=9"))
    other = project.run()
    other.assert_outcomes(failed=1)
    other.stdout.fnmatch_lines(
        ["*MISSING: throughput*", "*has another workload*", "*concurrency: baseline has '8', this run has '9'*"]
    )
