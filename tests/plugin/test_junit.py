"""``--junitxml``: beside each test's outcome what was measured, in both families and from workers too."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugin.conftest import Project

SUITE = """
import pytest

@pytest.fixture(scope="module")
def server(mosec_server):
    return mosec_server("app.py")

@pytest.fixture
def fox(server):
    return server.post("/inference", body=b"fox")

@pytest.fixture
def broken():
    yield
    raise RuntimeError("at the end")

def test_it(fox, load, baseline):
    run = load(fox, concurrency=8, seconds=2, warmup_seconds=0.5)
    assert run.throughput >= baseline.throughput

def test_limits(fox, load, record_property):
    record_property("mine", 1)
    assert load(fox, concurrency=8, seconds=2).latency.p99 <= 30.0
    run = load(fox, concurrency=2, seconds=2, name=HOSTILE)
    assert run.throughput >= 1.0

def test_twice(fox, load, broken):
    assert load(fox, concurrency=8, seconds=2).throughput >= 1e9
"""

HOSTILE = "]]>\x08<a b='\\'>\"&"
"""Name of a load that is not valid XML, as a test's author may write it."""


def read(path: Path) -> dict[str, list[ET.Element]]:
    """The test cases of a file, by name; a test that failed twice has two."""
    cases: dict[str, list[ET.Element]] = {}
    for case in ET.parse(path).iter("testcase"):
        cases.setdefault(case.attrib["name"], []).append(case)
    return cases


def properties_of(case: ET.Element) -> dict[str, str]:
    """The properties of a test case; no name is there twice."""
    found = [(each.attrib["name"], each.attrib["value"]) for each in case.iter("property")]
    assert len(dict(found)) == len(found)
    return dict(found)


def outcome_of(case: ET.Element) -> list[str]:
    """Text of pytest on a test case; empty if it passed."""
    return [each.tag for each in case if each.tag not in {"properties", "system-out", "system-err"}]


@pytest.mark.parametrize("family", ["xunit1", "xunit2"])
def test_each_test_case_says_what_was_measured(project: Project, recorded: Path, family: str) -> None:
    """Passed, failed, or failed twice: pytest's outcome, and the numbers of the JSON result."""
    project.store(recorded)
    project.speed(0.5)
    project.test_file.write_text(SUITE.replace("HOSTILE", repr(HOSTILE)))
    result = project.run(
        "--stored-only", "--junitxml=junit.xml", "-o", f"junit_family={family}", "--gpuserve-json=out.json"
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    cases = read(project.path / "junit.xml")
    assert {name: [outcome_of(case) for case in each] for name, each in cases.items()} == {
        "test_it": [["failure"]],
        "test_limits": [[]],
        "test_twice": [["failure"], ["error"]],
    }

    tests = json.loads((project.path / "out.json").read_text())["tests"]
    measured = {test["nodeid"].partition("::")[2]: test["verdicts"] for test in tests}
    (it,) = map(properties_of, cases["test_it"])
    (verdict,) = measured["test_it"]
    assert it["gpuserve.throughput.verdict"] == verdict["verdict"] == "REGRESSED"
    assert float(it["gpuserve.throughput.value"]) == verdict["value"]

    (limits,) = map(properties_of, cases["test_limits"])
    assert limits["mine"] == "1"
    assert float(limits["gpuserve.latency.p99.value"]) == measured["test_limits"][0]["value"]
    hostile = r"""gpuserve.]]>\x08<a b='\'>"&.throughput.verdict"""
    assert limits[hostile] == "PASS"

    first, second = map(properties_of, cases["test_twice"])
    assert first == second
    assert first["gpuserve.throughput.reference_kind"] == "limit"
