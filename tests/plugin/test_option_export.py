"""`--gpuserve-export=FORMAT:FILE`: the results of a run, in the forms of other tools."""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.plugin.conftest import TEST

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugin.conftest import Project

FORMATS = ("pytest-benchmark", "prometheus", "csv")
NODEID = "suites/perf/test_perf.py::test_it"


def test_a_run_is_written_in_every_form(project: Project, recorded: Path) -> None:
    """One run writes all forms at once, and in each of them its throughput is the same."""
    project.store(recorded)
    result = project.run(*(f"--gpuserve-export={name}:{name}.out" for name in FORMATS), "--gpuserve-json=out.json")
    result.assert_outcomes(passed=1)
    texts = {name: (project.path / f"{name}.out").read_text(encoding="utf-8") for name in FORMATS}
    throughput = project.result()["run"]["throughput"]
    (benchmark,) = json.loads(texts["pytest-benchmark"])["benchmarks"]
    assert benchmark["fullname"] == NODEID
    assert benchmark["stats"]["ops"] == pytest.approx(throughput)
    assert [verdict["verdict"] for verdict in benchmark["extra_info"]["verdicts"]] == ["PASS"]
    samples = [sample for family in text_string_to_metric_families(texts["prometheus"]) for sample in family.samples]
    values = {sample.name: sample for sample in samples}
    assert values["gpuserve_throughput_requests_per_second"].value == pytest.approx(throughput)
    assert values["gpuserve_verdict"].labels["verdict"] == "PASS"
    (row,) = csv.DictReader(texts["csv"].splitlines())
    assert float(row["Requests/Second"]) == pytest.approx(throughput, rel=1e-6)
    assert row["Concurrency"] == "8"


def test_secrets_are_in_no_form(project: Project) -> None:
    """A secret of the environment that stands in a test's id is masked in every file."""
    project.environment["MY_TOKEN"] = "sesame-opens"
    text = TEST.format(arguments={}, assertion="assert run.throughput >= 1", expect='b"FOX"', marker="")
    parametrized = '@pytest.mark.parametrize("word", ["sesame-opens"])\ndef test_it(word, '
    project.test_file.write_text(text.replace("def test_it(", parametrized))
    result = project.run(*(f"--gpuserve-export={name}:{name}.out" for name in FORMATS))
    result.assert_outcomes(passed=1)
    for name in FORMATS:
        written = (project.path / f"{name}.out").read_text(encoding="utf-8")
        assert "sesame-opens" not in written
        assert "test_it[<MY_TOKEN>]" in written
