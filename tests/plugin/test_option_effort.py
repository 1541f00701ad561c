"""``--gpuserve-effort``: which tolerances it scales and which not, what it does to the budget, and where it is told."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuserve.gate.effort import Effort
from pytest_gpuserve.plugin.options import read_settings
from tests.fakes.scripted_sessions import Script
from tests.plugin.conftest import text_of
from tests.plugin.test_published import publish, write

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugin.conftest import Checkout, Machine, Project

JSON = "--gpuserve-json=out.json"
AGAINST = "--against=HEAD"

MARKED = """assert run.throughput >= 100
    assert run.throughput >= baseline.throughput
    assert run.latency.p50 <= baseline.latency.p50
    assert run.latency.p99 <= baseline.latency.p99"""
"""A plain number, one metric with a marker, and two with their defaults."""


def tolerances(project: Project) -> dict[tuple[str, str], float | None]:
    """Of the verdicts of a run, by metric and what it was compared with."""
    return {(each["metric"], each["reference_kind"]): each["tolerance"] for each in project.result()["verdicts"]}


def header(result: pytest.RunResult) -> str:
    """The line that says what is measured."""
    (line,) = re.findall(r"^gpuserve: cpu .*$", text_of(result), re.MULTILINE)
    return str(line)


@pytest.mark.parametrize(
    ("effort", "scaled", "said"),
    [
        ("push", (0.06, 0.1, 0.4), ", effort push (tolerances times 2), at most 5 min"),
        ("merge", (0.03, 0.05, 0.2), ", at most 5 min"),
        ("nightly", (0.012, 0.02, 0.08), ", effort nightly (tolerances times 0.4), at most 20 min"),
    ],
)
def test_it_scales_what_is_compared_with_a_base(
    project: Project, checkout: Checkout, effort: str, scaled: tuple[float, ...], said: str
) -> None:
    """The tolerance of a marker and those by default, in JSON and header; a number that a test writes has none."""
    project.write(MARKED, marker="@pytest.mark.gpuserve(throughput=0.03)")
    result = project.run(f"--gpuserve-effort={effort}", AGAINST, JSON)
    result.assert_outcomes(passed=1)
    throughput, p50, p99 = scaled
    assert tolerances(project) == {
        ("throughput", "against"): throughput,
        ("latency.p50", "against"): p50,
        ("latency.p99", "against"): p99,
        ("throughput", "limit"): None,
    }
    assert said in header(result)
    assert ("effort" in header(result)) is (effort != "merge")


@pytest.mark.parametrize("effort", ["push", "nightly"])
def test_a_stored_baseline_is_compared_alike_and_recorded_unscaled(
    project: Project, recorded: Path, effort: str
) -> None:
    """A run that records knows nothing of it, by option or ini file: what is compared with what was there stays so."""
    project.store(recorded)
    project.ini(gpuserve_effort=effort)
    project.run(JSON)
    assert tolerances(project)["throughput", "baseline"] == {"push": 0.1, "nightly": 0.02}[effort]
    for update in (["--baseline-update"], ["--baseline-update", f"--gpuserve-effort={effort}"]):
        result = project.run(*update, JSON)
        result.assert_outcomes(passed=1)
        assert tolerances(project)["throughput", "baseline"] == 0.05
        assert "effort" not in header(result)


def test_a_baseline_needs_the_requests_that_its_recording_asked_for(project: Project) -> None:
    """A p99 of 1200 requests a start was good enough to be recorded; within 8 % it is the run that needs 2500."""
    project.script = Script(requests=300)
    project.write("assert run.latency.p99 <= baseline.latency.p99")
    assert project.run("--baseline-update").ret == pytest.ExitCode.OK
    result = project.run("--gpuserve-effort=nightly", JSON)
    (verdict,) = project.result()["verdicts"]
    assert verdict["verdict"] == "INCONCLUSIVE"
    result.stdout.fnmatch_lines(["*latency.p99 at a tolerance of 8 % needs 2500 requests a server start*"])
    assert "the baseline does not have it" not in text_of(result)


def test_a_published_number_is_meant_as_the_test_says(machine: Machine) -> None:
    """Within the marker's 10 %, whatever the effort."""
    publish(machine.project, throughput=2000.0)
    write(machine.project)
    result = machine.project.run("--gpu=T4", "--gpuserve-effort=push", JSON)
    result.stdout.fnmatch_lines(["E*REGRESSED: throughput is 1[56]*/s, published 2000/s: -*% (tolerance 10 %)"])


def test_what_to_type_next_has_it(project: Project, checkout: Checkout) -> None:
    """As it was typed; what an ini file says holds for the next run anyway, and a recording does not know it."""
    project.speed(0.7)
    text = text_of(project.run(AGAINST, "--gpuserve-effort=push"))
    (line,) = re.findall(r"^next: .*--against=.*$", text, re.MULTILINE)
    assert line.endswith(" --gpuserve-effort=push")
    project.ini(gpuserve_effort="push")
    assert "--gpuserve-effort" not in text_of(project.run(AGAINST, "--cache-clear"))
    missing = text_of(project.run("--gpuserve-effort=push"))
    (line,) = re.findall(r"^next: .*$", missing, re.MULTILINE)
    assert line.endswith("--baseline-update-new")


def test_values_by_option_and_ini(pytester: pytest.Pytester) -> None:
    """The command line wins; a nightly run has four times the budget, unless anybody says one; a recording is plain."""

    def read(*arguments: str, **ini: Any) -> tuple[Effort, float, str]:  # noqa: ANN401 -- what an ini file says
        pytester.makeini("\n".join(["[pytest]", *(f"{name} = {value}" for name, value in ini.items())]))
        settings = read_settings(pytester.parseconfig(*arguments))
        return settings.effort, settings.budget_seconds, settings.effort_option

    nightly = "--gpuserve-effort=nightly"
    assert read() == (Effort.MERGE, 300.0, "")
    assert read("--gpuserve-effort=push") == (Effort.PUSH, 300.0, "--gpuserve-effort=push")
    assert read(nightly) == (Effort.NIGHTLY, 1200.0, nightly)
    assert read(gpuserve_effort="nightly") == (Effort.NIGHTLY, 1200.0, "")
    assert read("--gpuserve-effort=merge", gpuserve_effort="nightly")[:2] == (Effort.MERGE, 300.0)
    assert read(nightly, "--gpuserve-budget=300")[:2] == (Effort.NIGHTLY, 300.0)
    assert read(nightly, gpuserve_budget=400)[:2] == (Effort.NIGHTLY, 400.0)
    for update in ("--baseline-update", "--baseline-update-new"):
        assert read(nightly, update)[:2] == (Effort.MERGE, 300.0)
