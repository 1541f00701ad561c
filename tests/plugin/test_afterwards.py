"""A test that ends with its first assertion that fails tells of all its metrics, and is judged by none of the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.gate.verdict import NOT_ASSERTED
from tests.fakes.scripted_sessions import Script
from tests.plugin.conftest import text_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugin.conftest import Project

JSON = "--gpuserve-json=out.json"

THROUGHPUT = "assert run.throughput >= baseline.throughput"
OTHERS = """assert run.latency.p50 <= baseline.latency.p50
    assert run.latency.p99 <= baseline.latency.p99
    assert run.batching_ratio >= baseline.batching_ratio"""
ALL = f"{THROUGHPUT}\n    {OTHERS}"


HEARD = """
def pytest_gpuserve_judged(judgement):
    with open("heard", "a") as file:
        print(judgement.metric.name, judgement.asserted, file=file)
"""


def told(project: Project) -> list[tuple[str, str, bool]]:
    """Metric, verdict and whether it was asserted, of each row in their order."""
    rows = project.result()["verdicts"]
    assert all(row["asserted"] is (str(NOT_ASSERTED) not in row["reasons"]) for row in rows)
    return [(row["metric"], row["verdict"], row["asserted"]) for row in rows]


def test_all_metrics_of_a_failed_test_have_a_verdict(project: Project, recorded: Path) -> None:
    """The first failure ends it as ever; the others are told by what was measured until then, and by nothing more.

    Of a test that came to its end, or only forgot an assert, every row was asked for, and what it only reads is none.
    """
    project.store(recorded)
    project.write(ALL)
    project.run(JSON).assert_outcomes(passed=1)
    assert [asserted for _, _, asserted in told(project)] == [True] * 4
    project.script = Script(speed=0.5)
    result = project.run(JSON)
    result.assert_outcomes(failed=1)
    assert told(project) == [
        ("throughput", "REGRESSED", True),
        ("latency.p50", "REGRESSED", False),
        ("latency.p99", "REGRESSED", False),
        ("batching_ratio", "INCONCLUSIVE", False),
    ]
    assert project.result()["run"]["sessions"] == 1
    result.stdout.fnmatch_lines(["*latency.p99*"])
    project.write(f"{THROUGHPUT.removeprefix('assert ')}\n    assert run.latency.p99.value > 0")
    project.run(JSON).assert_outcomes(failed=1)
    assert told(project) == [("throughput", "REGRESSED", True)]


def test_a_test_that_skips_late_tells_the_rest(project: Project, recorded: Path) -> None:
    """What it did not come to is told, and it is skipped as it wanted."""
    project.store(recorded)
    project.write(f'{THROUGHPUT}\n    pytest.skip("no weights")\n    {OTHERS}')
    result = project.run(JSON, "-rs")
    result.assert_outcomes(skipped=1)
    assert result.ret == pytest.ExitCode.OK
    assert "no weights" in text_of(result)
    rows = told(project)
    assert rows[0] == ("throughput", "PASS", True)
    assert [row[::2] for row in rows[1:]] == [
        (name, False) for name in ("latency.p50", "latency.p99", "batching_ratio")
    ]


def test_of_a_test_that_ctrl_c_cut_short_nothing_is_told(project: Project, recorded: Path) -> None:
    """It has no outcome, and its rows are those that it asked for; no hook hears of others while it is cleared up."""
    project.store(recorded)
    (project.path / "conftest.py").write_text(HEARD)
    second = 'load(server.post("/inference", body=b"fox"), concurrency=8, name="second")'
    project.write(f"{THROUGHPUT}\n    {second}\n    {OTHERS}")
    project.script = Script(interrupted_session=2, speed=2.0)
    assert project.run(JSON).ret == pytest.ExitCode.INTERRUPTED
    assert told(project) == [("throughput", "PASS", True)]
    assert (project.path / "heard").read_text() == "throughput True\n"
