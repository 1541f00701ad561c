"""``--junitxml``: beside each test's outcome what was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from tests.plugin.conftest import JSON

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugin.conftest import Project

LIMIT = """

def test_limit(server, load, record_property):
    record_property("mine", 1)
    run = load(server.post("/inference", body=b"fox"), concurrency=2, seconds=2, name="]]>\\b<a")
    assert run.throughput >= 1.0
"""
"""The load's name is not valid XML, as a test's author may write it."""


def test_each_test_case_says_what_was_measured(project: Project, recorded: Path) -> None:
    """pytest's outcome, the user's own properties, and the numbers of the JSON result, of any name of a load."""
    project.store(recorded)
    project.speed(0.5)
    project.test_file.write_text(project.test_file.read_text() + LIMIT)
    result = project.run("--stored-only", "--junitxml=junit.xml", JSON, "-k", "test_it")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    (case,) = ET.parse(project.path / "junit.xml").iter("testcase")
    found = {each.attrib["name"]: each.attrib["value"] for each in case.iter("property")}
    (verdict,) = project.result()["verdicts"]
    assert case.find("failure") is not None
    assert found["gpuserve.throughput.verdict"] == verdict["verdict"] == "REGRESSED"
    assert float(found["gpuserve.throughput.value"]) == verdict["value"]
    project.run("--junitxml=junit.xml", "-k", "test_limit").assert_outcomes(passed=1, deselected=1)
    (case,) = ET.parse(project.path / "junit.xml").iter("testcase")
    found = {each.attrib["name"]: each.attrib["value"] for each in case.iter("property")}
    assert found.items() >= {"mine": "1", r"gpuserve.]]>\x08<a.throughput.verdict": "PASS"}.items()
