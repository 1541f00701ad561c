"""Whole runs of real servers: the arguments of loads, measurements that cannot be trusted, and windows taken again."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.children.toolkit import eventually
from tests.fakes.nvml import gpus
from tests.fakes.nvml.gpus import HW_THERMAL, Course, Moment, Step
from tests.fakes.scripted_starts import Script
from tests.plugin.conftest import JSON, MODEL_SERVER, Project, busy_machine, says_no_traceback, text_of

SHAPES = f"""
import pytest
from pytest_gpuserve.load import Burst, Closed, Objectives, Poisson

@pytest.fixture(scope="module")
def server(command_server):
    return command_server(["{{python}}", {MODEL_SERVER!r}, "{{port}}"])

@pytest.fixture
def fox(server):
    return server.post("/infer", body=b"fox", expect=b"FOX")

def test_open(fox, load):
    run = load(fox, schedule=Poisson(rate=100), requests=220, warmup_seconds=0.3)
    assert 0 < run.summary.service.quantile(0.5) <= float(run.latency.p50) + 1e-3
    assert run.summary.lag.quantile(0.5) > 0

def test_burst(server, fox, load):
    both = server.rotate([fox, server.post("/infer", body=b"dog", expect=b"DOG")], shuffled=True)
    load(both, schedule=Burst(100, max_in_flight=20), warmup_seconds=0.1, processes=2, check="all")

def test_stream(server, load):
    good = Objectives(ttft=10, tpot=10)
    load(server.post("/chat", body=b"", stream=True), schedule=Burst(20, max_in_flight=4), goodput=good)

def test_until(fox, load):
    seen = []
    think = Closed(4, think_seconds=0.001)
    load(fox, schedule=think, until=lambda windows: seen.append(len(windows)) or len(windows) >= 5, warmup_seconds=0.3)
    open("seen", "w").write(repr(seen[:2]))
"""


def test_arguments_of_a_load_reach_a_real_server(real_project: Project) -> None:
    """Schedules, stop rules and objectives measure a real server validly, unless the load names a busy machine."""
    real_project.test_file.write_text(SHAPES)
    real_project.run(JSON)
    whole = json.loads((real_project.path / "out.json").read_text())["tests"]
    tests = {test["nodeid"].rpartition("::")[2]: test["run"] for test in whole}
    assert set(tests) == {"test_open", "test_burst", "test_stream", "test_until"}
    busy = {name for name, run in tests.items() if busy_machine(run)}
    assert all(test["outcome"] == "passed" for test in whole if test["nodeid"].rpartition("::")[2] not in busy)
    assert not any(run["errors"] for run in tests.values())
    assert tests["test_open"]["load"]["load"] == "open loop, Poisson"
    if "test_open" not in busy:
        # Ended by the number of requests: by time each of its two starts would last 4 s.
        assert tests["test_open"]["requests"] >= 220
        assert tests["test_open"]["seconds"] < 2 * 3.5
    if "test_until" not in busy:
        assert (real_project.path / "seen").read_text() == "[4, 5]"
    # A start of a schedule that ends by itself is exactly that schedule.
    for name, requests in (("test_burst", 100), ("test_stream", 20)):
        assert name in busy or tests[name]["requests"] == requests * tests[name]["starts"]
    if "test_stream" not in busy:
        streams = tests["test_stream"]
        assert streams["load"]["goodput"] == "ttft <= 10.0 s, tpot <= 10.0 s"
        assert streams["ttft"]["p50"] > 0.01
        assert streams["goodput"] == pytest.approx(streams["throughput"])
    assert tests["test_burst"]["answers_checked"] == tests["test_burst"]["answers"]
    assert tests["test_until"]["load"]["think_seconds"] == "0.001"
    assert tests["test_burst"]["load"]["payloads"] == "2"
    assert tests["test_burst"]["load"]["rotation"] == "shuffled"


ENDLESS = f"""
def test_it(command_server, load):
    fox = command_server(["{{python}}", {MODEL_SERVER!r}, "{{port}}"]).post("/infer", body=b"fox", expect=b"FOX")
    load(fox, concurrency=4, until=lambda windows: open("marks", "w").close())
"""


def test_ctrl_c_tells_what_was_measured(real_project: Project) -> None:
    """Ctrl-C under a real load ends pytest with its own exit code, and the measurement is reported as not decided."""
    marks = real_project.path / "marks"
    real_project.test_file.write_text(ENDLESS)
    run = real_project.start(JSON)
    try:
        eventually(lambda: run.ended or marks.exists(), "a window has ended", seconds=90)
        run.interrupt()
        result = run.result(60)
    finally:
        run.kill()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert "::test_it: interrupted by Ctrl-C, not decided: throughput " in text_of(result)
    assert says_no_traceback(result)
    test = real_project.result()
    assert test["outcome"] == "interrupted"
    assert test["run"]["requests"] > 0
    assert any("not decided" in problem for problem in test["run"]["problems"])


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


LOADS = f"""
import pytest

@pytest.fixture(scope="module")
def fox(command_server):
    return command_server(["{{python}}", {MODEL_SERVER!r}, "{{port}}"]).post("/infer", body=b"fox", expect=b"FOX")

def test_it(fox, load):
    run = load(fox, concurrency=4, seconds=4, warmup_seconds=0.3)
    assert run.throughput >= 1
"""


def pulses(value: int, *, every_ms: int, length_ms: int) -> Course:
    """A fact that has another value again and again, for minutes."""
    begins = range(every_ms, 300_000, every_ms)
    steps = [
        step
        for begin in begins
        for step in (Step(value, Moment(from_ms=begin)), Step(0, Moment(from_ms=begin + length_ms)))
    ]
    return Course(0, tuple(steps))


def test_hot_windows_are_measured_again(real_project: Project, library: Path) -> None:
    """A GPU that is hot for a moment every few seconds costs windows, visibly, and the run gets its verdict."""
    gpu = replace(
        gpus.T4,
        clock_reasons=pulses(HW_THERMAL, every_ms=4500, length_ms=300),
        # Unused parts cannot report that.
        utilization=None,
        memory_used_bytes=None,
        power_watts=50,
    )
    real_project.with_gpus(library, gpu)
    real_project.test_file.write_text(LOADS)
    result = real_project.run("--gpu=T4", JSON)
    run = real_project.result()["run"]
    # A busy host may have held the client up in others.
    again = [text for text in run["windows_measured_again"] if not text.startswith("client held up")]
    assert again
    assert all("thermal slowdown by the hardware (HW_THERMAL_SLOWDOWN)" in text for text in again)
    # The thrown away ticks are not part of the measurement.
    assert run["telemetry"]["sm_clock_mhz"] == pytest.approx(1500)
    assert run["telemetry"]["joules"] == pytest.approx(50 * run["seconds"], rel=0.05)
    if not busy_machine(run):
        result.assert_outcomes(passed=1)
        result.stdout.fnmatch_lines(["*throughput*PASS*", "test_it: * windows measured again: *HW_THERMAL_SLOWDOWN*"])
