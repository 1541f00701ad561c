"""Terminal output for a person: before, while and after a suite is measured."""

from __future__ import annotations

import json
import re
import shlex

from msgspec.structs import replace

from pytest_gpuserve.compare.comparison import Look
from pytest_gpuserve.measure.window import Window
from pytest_gpuserve.plugin import terminal
from pytest_gpuserve.verdict.verdict import Verdict
from tests.fakes.scripted_engines import alike
from tests.fakes.scripted_starts import Script
from tests.plugin.conftest import SERVER, Project, text_of
from tests.support.builders import judgement

EAGER = """
from pytest_gpuserve.plugin import terminal

terminal.EVERY_SECONDS = 0
"""
"""A conftest that lets every tick be shown, and told."""

THREE = (
    SERVER
    + """
@pytest.mark.parametrize("n", [1, 2, 3])
def test_it(server, load, capsys, n):
    print("captured", n)
    load(server.post("/inference", body=b"fox", expect=b"FOX"), concurrency=8, seconds=2)
    print("more", end="")
    assert capsys.readouterr().out == f"captured {n}\\nmore"
"""
)

TWO = (
    SERVER
    + """
def test_fine(server, load, baseline):
    run = load(server.post("/inference", body=b"fox", expect=b"FOX"), concurrency=4, seconds=2)
    assert run.batching_ratio >= baseline.batching_ratio

def test_slow(server, load, baseline):
    run = load(server.post("/inference", body=b"fox", expect=b"FOX"), concurrency=8, seconds=2)
    assert run.latency.p50 <= baseline.latency.p50
"""
)

TOLD = re.compile(r"^gpuserve: (test_\S+)  ((?:session|round) \d of \d)  (.*)$", re.MULTILINE)
"""A line of progress in a log: the test, the look, and the rest."""


def eager(project: Project, test: str = THREE) -> Project:
    """Let a project show all progress lines."""
    (project.path / "conftest.py").write_text(EAGER)
    project.test_file.write_text(test)
    return project


# -- while it measures


def test_a_long_test_says_how_it_gets_on(project: Project) -> None:
    """Each line is separate from pytest's, for any captured output; a quiet run has none."""
    result = eager(project).run("-v")
    result.assert_outcomes(passed=3)
    told = TOLD.findall(text_of(result))
    assert {(name, look) for name, look, _ in told} == {(f"test_it[{n}]", "session 1 of 1") for n in (1, 2, 3)}
    assert all(re.search(r"^\S+/s  p99 .*  budget: [45] min.* left$", rest) for _, _, rest in told)
    result.stdout.fnmatch_lines([f"suites/perf/test_perf.py::test_it?{n}? PASSED*" for n in (1, 2, 3)])
    assert TOLD.findall(text_of(project.run("-q"))) == []


def test_what_is_not_known_is_told_as_that() -> None:
    """A p99 of fewer than 100 requests and a rate before the first answer are unknown; errors are shown if any."""
    look = Look("round", 2, 8, judgement(Verdict.INCONCLUSIVE))
    few, many = (Window(0, 0, 10**9, requests=count, latency=alike(count, 12_300_000)) for count in (99, 100))
    assert terminal.progress_line("", None, Window(0, 0, 3 * 10**9), None) == "-/s  p99 -"
    assert terminal.progress_line("", None, few, None) == "99.0/s  p99 -"
    told = terminal.progress_line("", None, replace(many, errors={"reset": 3}), None)
    assert told == "100/s  p99 12.3 ms  errors: 3"
    told = "test_a  round 2 of 8  throughput -30.1 %  100/s  p99 12.3 ms  budget: 4 min 2 s left"
    assert terminal.progress_line("test_a", look, many, 242.0) == told


# -- before and after


def test_what_comes_next_works(project: Project) -> None:
    """Each run ends with the command that comes next, the worst row first; ``-q`` shows less and ``-v`` more."""
    missing = eager(project, TWO).run()
    missing.assert_outcomes(failed=2)
    missing.stdout.fnmatch_lines(["MISSING: * has no entry '...' (2 tests: test_fine, test_slow)"])
    (step,) = re.findall(r"^next: record the missing entries: pytest (.*)$", text_of(missing), re.MULTILINE)
    recorded = project.run(*shlex.split(step))
    recorded.assert_outcomes(passed=2)
    recorded.stdout.fnmatch_lines(
        ["gpuserve: cpu (*), recording missing entries in */baselines/cpu (no entries), *", "comparisons: * recorded"]
    )
    told = TOLD.findall(text_of(recorded))
    assert {look for _, look, _ in told} == {"session 1 of 2", "session 2 of 2"}
    assert not any("budget" in rest for _, _, rest in told)
    assert "next: " not in text_of(recorded)
    assert set(json.loads(project.baseline.read_text())["entries"]) == {"test_fine", "test_slow"}
    (project.path / "conftest.py").unlink()
    project.script = Script(speed=0.7)
    result = project.run("--stored-only")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "gpuserve: cpu (*), gating against */baselines/cpu (2 entries), at most 5 min *",
            "*test_slow *latency.p50 *REGRESSED",
            "*test_fine *batching_ratio *PASS",
            "comparisons: 1 passed, 1 regressed",
            "next: accept the new numbers, * pytest suites/perf/test_perf.py::test_slow --gpu=cpu --baseline-update *",
        ]
    )
    assert TOLD.findall(text_of(result)) == []
    assert "baselines: " in text_of(result)
    quiet = project.run("--stored-only", "-q")
    section = text_of(quiet).partition("- gpuserve -")[2].partition("short test summary")[0]
    assert re.search(r"test_slow .*REGRESSED\n", section)
    assert "test_fine" not in section
    assert "baselines: " not in section
    assert "comparisons: 1 passed, 1 regressed\nnext: " in section
    verbose = project.run("--stored-only", "-v")
    verbose.stdout.fnmatch_lines(["test_slow *, REGRESSED: interval * from 1 session", "test_fine *, PASS: interval *"])


def test_the_header_knows_how_long_the_last_run_took(project: Project) -> None:
    """The time is a guess at first, and then that of the last run of this kind on this device."""
    project.run("--baseline-update")
    first, second = text_of(project.run()), text_of(project.run())
    assert "gpuserve: comparisons of 1 test, about 30 s (a guess, without an earlier run on this device)\n" in first
    told = re.search(r"gpuserve: comparisons of 1 test, about (\d+) s\n", second)
    assert told is not None
    # It measures no real server.
    assert int(told[1]) < 30
    assert "comparisons of" not in text_of(project.run("-q"))
