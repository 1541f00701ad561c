"""A measurement that cannot be trusted is INVALID, says why, and is never recorded: real servers with real faults."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from tests.fakes.scripted_starts import Script
from tests.plugin.conftest import JSON, MODEL_SERVER, says_no_traceback

if TYPE_CHECKING:
    from tests.plugin.conftest import Project

SUITE = """
import pytest

@pytest.mark.parametrize("fault", {faults})
def test_it(command_server, load, baseline, fault):
    habits = [fault] if "=" in fault else []
    server = command_server(["{{python}}", {server!r}, "{{port}}", "ms=2", "says=no weights here", *habits])
    path = "/no/such/route" if fault == "lost" else "/infer"
    fox = server.post(path, body=b"fox", expect=b"FOX")
    run = load(fox, concurrency=8, seconds=1, warmup_seconds=0.3)
    assert run.throughput >= baseline.throughput
"""

TOLD = {
    "wrong=20": r"INVALID: throughput.*wrong answers: .*expected b'FOX', got b'nonsense'",
    # Not a pile of resets.
    "die=100": r"INVALID: throughput.*died under load \(killed by SIGKILL\).*no weights here",
    "exit=3": r"exit code 3.*no weights here",
    "lost": r"refuses POST /no/such/route.*status 404",
}
"""Report of each fault: a server's habit or a missing path."""


def test_a_server_with_a_fault_is_told_and_not_recorded(real_project: Project) -> None:
    """Wrong answers, a death, a failed start and a wrong path fail the test with their reason and are not recorded."""
    real_project.test_file.write_text(SUITE.format(faults=list(TOLD), server=MODEL_SERVER))
    result = real_project.run("--baseline-update", JSON)
    result.assert_outcomes(failed=len(TOLD))
    tests = json.loads((real_project.path / "out.json").read_text())["tests"]
    problems = {re.sub(r".*\[(.*)\]", r"\1", test["nodeid"]): test["problem"] for test in tests}
    assert {fault: text for fault, text in problems.items() if not re.search(TOLD[fault], text, re.DOTALL)} == {}
    assert not real_project.baseline.exists()
    assert says_no_traceback(result)


def test_a_test_without_assertions_does_not_hide_it(project: Project) -> None:
    """A load with wrong answers fails its test even if the test has no assertion."""
    project.write("")
    project.script = Script(wrong=True)
    result = project.run()
    result.assert_outcomes(passed=1, errors=1)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*INVALID: * prove nothing*", "*wrong answers: *"])
