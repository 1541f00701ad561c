"""The gate, end to end: recorded, gated, slowed down."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

from tests.plugin.conftest import says_no_traceback, text_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugin.conftest import Project

ALL = """assert run.throughput >= baseline.throughput
    assert run.latency.p50 <= baseline.latency.p50
    assert run.latency.p99 <= baseline.latency.p99
    assert run.batching_ratio >= baseline.batching_ratio"""


def test_missing_fails_with_the_command_that_records_it(project: Project) -> None:
    """Without a baseline a test fails as MISSING, shows what it measured, and names the command that records it."""
    result = project.run()
    result.assert_outcomes(failed=1)
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "*MISSING: throughput is */s*",
            "*baselines/cpu/perf/test_perf.json has no entry 'test_it'*",
            "*to record it: pytest suites/perf/test_perf.py::test_it --gpu=cpu --baseline-update*",
            "*throughput*MISSING*",
            "*latency.p99*MISSING*",
            "*batching_ratio*MISSING*",
        ]
    )
    assert says_no_traceback(result)
    assert not project.baseline.exists()


def test_recorded_then_gated_then_slowed(project: Project) -> None:
    """A recorded build gated again is never REGRESSED; made much slower, it is, and the message says by how much."""
    project.write(ALL)
    recorded = project.run("--baseline-update")
    recorded.assert_outcomes(passed=1)
    recorded.stdout.fnmatch_lines(["*test_it: recorded (2 sessions) in */baselines/cpu/perf/test_perf.json*"])
    before = project.baseline.read_bytes()

    same = project.run()
    assert "REGRESSED" not in text_of(same)
    assert "INVALID" not in text_of(same)

    # The workload has to stay the same for the baseline to be of it, so the app itself is changed.
    app = project.path / "suites" / "perf" / "app.py"
    app.write_text(app.read_text().replace("options().work_ms / 1000", "2 * options().work_ms / 1000"))
    slow = project.run()
    slow.assert_outcomes(failed=1)
    assert slow.ret == 1
    change = re.search(r"REGRESSED: throughput is \S+, baseline \S+: (-\d+\.\d) % \(tolerance 5 %\)", text_of(slow))
    assert change is not None, text_of(slow)
    assert -60 < float(change.group(1)) < -25
    slow.stdout.fnmatch_lines(
        ["*moved with it:*latency.p50 +*", "*to accept the new number: pytest *--baseline-update*"]
    )
    assert project.baseline.read_bytes() == before


def test_a_regression_is_not_recorded_without_a_reason(project: Project, recorded: Path) -> None:
    """An update that would loosen a metric fails and writes nothing, until --reason says why; the reason is kept."""
    project.baseline.parent.mkdir(parents=True)
    shutil.copy(recorded, project.baseline)
    before = project.baseline.read_bytes()
    app = project.path / "suites" / "perf" / "app.py"
    app.write_text(app.read_text().replace("options().work_ms / 1000", "3 * options().work_ms / 1000"))
    refused = project.run("--baseline-update")
    refused.assert_outcomes(failed=1)
    refused.stdout.fnmatch_lines(["*would loosen throughput*--reason=*"])
    assert project.baseline.read_bytes() == before

    allowed = project.run("--baseline-update", "--reason=a larger model")
    allowed.assert_outcomes(passed=1)
    assert project.entry()["reason"] == "a larger model"


def test_a_plain_limit_needs_no_baseline(project: Project) -> None:
    """Comparing with a number is a service-level check: it holds or fails by the number alone."""
    project.write("assert run.latency.p99 <= 5.0\n    assert run.throughput >= 1e6")
    result = project.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*throughput*limit*"])
    text = text_of(result)
    assert re.search(r"latency\.p99 .*PASS", text)
    assert re.search(r"throughput .*REGRESSED", text)


def test_wrong_direction_is_refused(project: Project) -> None:
    """An assertion that would gate nothing is an error that shows how to write it, at the user's line."""
    project.write("assert run.throughput <= baseline.throughput")
    result = project.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*test_perf.py:*: `throughput <= baseline` gates nothing: higher is better*",
            "*write `assert run.throughput >=*",
        ]
    )
    assert says_no_traceback(result)
