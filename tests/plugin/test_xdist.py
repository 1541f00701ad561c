"""Measuring under pytest-xdist: every worker on a card of its own, and one report, one result and one exit code."""

from __future__ import annotations

import base64
import json
import math
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import psutil
import pytest

from pytest_gpuserve.device.cpu import read_cpu
from pytest_gpuserve.plugin.collection import MEASURING, NODEID
from pytest_gpuserve.plugin.options import Update
from pytest_gpuserve.plugin.outputs import STEP_SUMMARY, Form, Output
from pytest_gpuserve.plugin.xdist import XdistController, XdistWorker, pack, unpack
from pytest_gpuserve.report.results import SessionResult, TestResult
from pytest_gpuserve.units import digest
from tests.fakes.nvml import cards
from tests.plugin.conftest import Checkout, says_no_traceback, text_of
from tests.plugin.test_cards import SECOND_T4
from tests.report.html_results import session_result
from tests.support.html_page import Page

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from tests.plugin.conftest import Machine, Project

TWO = """
import os
import pathlib
import time

import pytest

def meet(place):
    folder = pathlib.Path(os.environ["MEETING"]) / place
    folder.mkdir(parents=True, exist_ok=True)
    (folder / str(os.getpid())).touch()
    until = time.monotonic() + 60
    while len(list(folder.iterdir())) < 2:
        assert time.monotonic() < until, "nobody came"
        time.sleep(0.02)
    return {int(path.name) for path in folder.iterdir()}

@pytest.fixture(scope="module")
def server(mosec_server):
    return mosec_server("app.py")

@pytest.mark.parametrize("concurrency", [4, 8])
def test_it(server, load, baseline, concurrency):
    workers = meet("before")
    run = load(server.post("/inference", body=b"fox", expect=b"FOX"), concurrency=concurrency, seconds=2)
    assert run.throughput >= baseline.throughput
    # Both have read the baseline file by now, and none has written it.
    meet("after")
    from pytest_gpuserve.experiment.watch import our_processes
    assert workers | {os.getppid()} <= {process.pid for process in our_processes()}
"""

GROUPED = """
import pytest

plain = pytest.Item.nodeid

@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems():
    pytest.Item.nodeid = property(lambda item: plain.fget(item) + "@a")

def pytest_runtest_setup(item):
    assert item.nodeid.endswith("::test_it@a")
"""
"""Does to ids what pytest-xdist does under ``--dist=loadgroup``; pytest 9.2 takes no notice of how 3.8 does it."""


class Workers:
    """A project with two measuring tests on a machine with two T4s.

    Args:
        machine: The machine.
        folder: Where tests that run at the same time meet.
    """

    def __init__(self, machine: Machine, folder: Path) -> None:
        self.machine = machine
        self.project = machine.project
        self._folder = folder
        self._runs = 0
        machine.script(cards.T4, SECOND_T4)
        self.project.test_file.write_text(TWO)

    def run(self, *arguments: str) -> pytest.RunResult:
        """Run it with two workers."""
        self._runs += 1
        self.project.environment["MEETING"] = str(self._folder / str(self._runs))
        return self.project.run("-p", "xdist.plugin", "-n2", *arguments)

    def result(self) -> dict[str, Any]:
        """What was written to ``--gpuserve-json=out.json``."""
        result: dict[str, Any] = json.loads((self.project.path / "out.json").read_text())
        return result


@pytest.fixture
def workers(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Workers:
    """Two tests for two workers on two T4s."""
    return Workers(machine, tmp_path_factory.mktemp("meetings"))


def test_two_workers_record_and_gate_on_two_cards(workers: Workers) -> None:
    """Both cards are used at once; both entries of one file are kept; one table, one result, one exit code."""
    recorded = workers.run("--gpu=T4", "--baseline-update", "--gpuserve-json=out.json")
    assert recorded.ret == 0, text_of(recorded)
    entries = json.loads(workers.project.baseline.read_text())["entries"]
    assert set(entries) == {"test_it[4]", "test_it[8]"}
    used = workers.result()["gpu"]["workers"]
    assert {facts["card_id"] for facts in used.values()} == {digest(fake.uuid) for fake in (cards.T4, SECOND_T4)}
    assert sorted(test for facts in used.values() for test in facts["tests"]) == [
        "suites/perf/test_perf.py::test_it[4]",
        "suites/perf/test_perf.py::test_it[8]",
    ]
    recorded.stdout.fnmatch_lines(
        [
            "test_it?[48]?: recorded*",
            "test_it?[48]?: recorded*",
            "unused baselines*-n0",
            "workers: gw0 on T4 at *, gw1 *",
            "comparisons: 2 recorded",
        ]
    )
    assert "next: " not in text_of(recorded)
    workers.project.speed(0.5)
    gated = workers.run("--gpu=T4", "--no-confirm", "--gpuserve-json=out.json")
    assert gated.ret == pytest.ExitCode.TESTS_FAILED
    gated.assert_outcomes(failed=2)
    text = text_of(gated)
    assert text.count("- gpuserve -") == text.count("baselines: ") == text.count("results: ") == 1
    gated.stdout.fnmatch_lines(["*test_it?[48]? *REGRESSED*", "*test_it?[48]? *REGRESSED*", "*share the host's*cores"])
    tests = workers.result()["tests"]
    assert {test["nodeid"][-3:]: test["outcome"] for test in tests} == {"[4]": "failed", "[8]": "failed"}
    assert all(test["verdicts"][0]["verdict"] == "REGRESSED" and test["run"]["requests"] for test in tests)
    assert says_no_traceback(gated)


def test_workers_have_one_header_and_one_report(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured against what is said once, before the first test, and in the one page and the one comment."""
    files = ("--gpuserve-json=out.json", "--gpuserve-report=out.html", "--gpuserve-markdown=out.md")
    summary = workers.project.path / "summary"
    workers.project.environment[STEP_SUMMARY] = str(summary)
    result = workers.run("--gpu=T4", "--baseline-update", *files)
    assert result.ret == 0, text_of(result)
    (header,) = [line for line in result.errlines if "gpuserve: T4" in line]
    assert header.startswith("[gw0] gpuserve: T4 (Tesla T4), recording into ")
    assert header.endswith("2 comparisons planned, 2 workers")
    folder = workers.project.path
    monkeypatch.chdir(folder)
    page = Page((folder / "out.html").read_text())
    assert header.removeprefix("[gw0] gpuserve: ") in page.text
    assert all(f"throughput test_it[{users}]" in page.text for users in (4, 8))
    assert {"Latency distribution", "Windows over time"} <= set(page.titles)
    comment = (folder / "out.md").read_text()
    assert "2 of 2 tests passed" in comment
    assert "2 workers" in comment
    assert comment.count("<h3>") == summary.read_text().count("<h3>") == 1
    assert text_of(result).count(f"results: {folder}/out.json") == 1


def test_more_workers_than_cards_are_refused(workers: Workers) -> None:
    """`--gpu=T4 -n2` with one T4 is exit code 4 at once; without `--gpu` other tests run, measuring ones say it."""
    workers.machine.script(cards.T4)
    asked = workers.run("--gpu=T4")
    assert asked.ret == pytest.ExitCode.USAGE_ERROR
    assert text_of(asked).count("2 workers of pytest-xdist cannot measure on 1 card (T4)") == 1
    assert "run with -n1" in text_of(asked)
    assert "gw0" not in text_of(asked)
    workers.project.test_file.write_text(f"{TWO}\ndef test_plain():\n    pass\n")
    mixed = workers.run("--gpuserve-json=out.json")
    mixed.assert_outcomes(passed=1, errors=2)
    assert "run with -n1" in text_of(mixed)
    assert [test["outcome"] for test in workers.result()["tests"]] == ["error", "error"]
    assert says_no_traceback(mixed)


def test_what_no_worker_can_do_is_told_once(workers: Workers) -> None:
    """By the controller: `--dist=each`, where all have two results, an absent card, and one that another keeps."""
    each = workers.run("--gpu=T4", "--dist=each")
    assert each.ret == pytest.ExitCode.USAGE_ERROR
    assert "--dist=load" in text_of(each)
    workers.machine.script(cards.H200)
    absent = workers.run("--gpu=T4")
    assert absent.ret == pytest.ExitCode.USAGE_ERROR
    assert text_of(absent).count("--gpu=T4 asks for a card that is not on this machine") == 1
    assert says_no_traceback(absent)
    workers.machine.script(cards.T4, SECOND_T4)
    workers.project.ini(gpuserve_lock_wait="0.25")
    with workers.machine.lock(SECOND_T4).acquire(wait_seconds=0, on_wait=lambda *notice: None):
        taken = workers.run("--gpu=T4")
    assert taken.ret == pytest.ExitCode.USAGE_ERROR
    text = text_of(taken)
    assert "] gpuserve: waiting for one of 2 devices: " in text
    assert f"process {os.getpid()} of" in text
    assert text.count("and two measurements at once would spoil each other") == 1
    assert says_no_traceback(taken)


def test_a_worker_that_is_killed(workers: Workers) -> None:
    """What it was measuring is said to be lost, in the result too; the worker that replaces it takes its card."""
    workers.project.test_file.write_text(
        TWO.replace("[4, 8]", "[4, 8, 16, 32]")
        .replace('    workers = meet("before")\n', "")
        .replace(
            '    # Both have read the baseline file by now, and none has written it.\n    meet("after")\n',
            "    if concurrency == 8:\n        os.kill(os.getpid(), 9)\n",
        )
        .replace("    assert workers |", "    assert")
    )
    workers.project.ini(gpuserve_lock_wait="30")
    result = workers.run("--gpu=T4", "--baseline-update", "--gpuserve-json=out.json")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["suites/perf/test_perf.py::test_it?8?: lost, for its worker gw? ended before it did"])
    written = workers.result()
    outcomes = {test["nodeid"].partition("::")[2]: test["outcome"] for test in written["tests"]}
    assert outcomes == {**dict.fromkeys(("test_it[4]", "test_it[16]", "test_it[32]"), "passed"), "test_it[8]": "error"}
    ids = [facts["card_id"] for facts in written["gpu"]["workers"].values()]
    assert len(set(ids)) == 2


def test_a_worker_that_is_killed_in_a_run_that_measures_nothing(project: Project) -> None:
    """It is for pytest to tell, on GitHub too, where every step has a summary; a result that was asked for has it."""
    project.test_file.write_text("import os\n\ndef test_it():\n    os.kill(os.getpid(), 9)\n")
    summary = project.path / "summary"
    summary.touch()
    project.environment[STEP_SUMMARY] = str(summary)
    arguments = ("-p", "xdist.plugin", "-n1", "--max-worker-restart=0")
    silent = project.run(*arguments)
    assert silent.ret == pytest.ExitCode.TESTS_FAILED
    assert "worker 'gw0' crashed while running" in text_of(silent)
    assert "- gpuserve -" not in text_of(silent)
    assert summary.read_text() == ""
    asked = project.run(*arguments, "--gpuserve-json=out.json")
    assert asked.ret == pytest.ExitCode.TESTS_FAILED
    assert (project.result()["nodeid"], project.result()["outcome"]) == ("suites/perf/test_perf.py::test_it", "error")
    asked.stdout.fnmatch_lines(["*- gpuserve -*", "*test_it: lost, for its worker gw0 ended before it did"])


def test_a_group_leaves_an_id_as_it_can_be_typed(project: Project) -> None:
    """The result, the next step and a mistake in a marker name a test without its group."""
    (project.path / "conftest.py").write_text(GROUPED)
    result = project.run("--gpuserve-json=out.json")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["next: * suites/perf/test_perf.py::test_it --gpu=cpu *"])
    assert project.result()["nodeid"] == "suites/perf/test_perf.py::test_it"
    project.write(marker="@pytest.mark.gpuserve(thruput=0.05)")
    assert "suites/perf/test_perf.py::test_it: @pytest.mark.gpuserve" in text_of(project.run())


def test_comparing_side_by_side(workers: Workers, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each worker has its own worktree of the revision and leaves none; what each has learned is remembered."""
    # Where one fails, the other would wait for it.
    workers.project.test_file.write_text(TWO.replace('    meet("after")\n', ""))
    checkout = Checkout(workers.project, tmp_path_factory.mktemp("temporary"))
    result = workers.run("--gpu=T4", "--against=HEAD", "--gpuserve-json=out.json")
    result.assert_outcomes(passed=2)
    assert text_of(result).count("side by side: the candidate and HEAD (") == 1
    assert [test["verdicts"][0]["reference_kind"] for test in workers.result()["tests"]] == ["against", "against"]
    # pytest's own folder for temporary files is made in it too.
    assert [left for left in checkout.left_behind() if "pytest-of-" not in left] == []
    kept = workers.project.path / ".pytest_cache" / "d" / "gpuserve"
    assert len(list(kept.glob("*.rounds.json"))) == 2


def phase(nodeid: str, when: str) -> Any:  # noqa: ANN401 -- pytest knows no phase "???", and no node
    """A report as the controller gets it; by "???" pytest-xdist tells of a crash."""
    named: Any = when
    return pytest.TestReport(nodeid, ("x.py", None, "x.py"), {}, "failed" if when == "???" else "passed", None, named)


def gathered(path: Path, reports: Iterable[Any], *, dist: str) -> list[tuple[str, str]]:
    """What a controller writes that hears these reports: ids of tests and their outcomes."""
    config: Any = SimpleNamespace(option=SimpleNamespace(dist=dist))
    settings: Any = SimpleNamespace(outputs=(Output("--gpuserve-json", Form.JSON, path),), update=Update.NOTHING)
    controller = XdistController(config, settings)
    worker = SimpleNamespace(gateway=SimpleNamespace(id="gw0"))
    controller.pytest_configure_node(SimpleNamespace(gateway=worker.gateway, workerinput={}))
    for report in reports:
        report.node = worker
        controller.pytest_runtest_logreport(report)
    session: Any = SimpleNamespace(config=SimpleNamespace(stash=pytest.Stash()))
    controller.pytest_sessionfinish(session)
    return [(test["nodeid"], test["outcome"]) for test in json.loads(path.read_text())["tests"]]


@pytest.mark.parametrize(
    ("dist", "nodeid", "plain"),
    [
        ("loadgroup", "x.py::TestA::test_it@a@b", "x.py::TestA::test_it"),
        ("loadgroup", "x.py::test_it[c::c@c]@a", "x.py::test_it[c::c@c]"),
        ("loadgroup", "@a/x.py::test_it[c@c]", "@a/x.py::test_it[c@c]"),
        ("load", "x.py::test_it[c]@a", "x.py::test_it[c]@a"),
    ],
)
def test_a_crash_before_any_report(dist: str, nodeid: str, plain: str, tmp_path: Path) -> None:
    """All that is heard of the test is what pytest-xdist calls it: with its group, which is no part of its id."""
    assert gathered(tmp_path / "out.json", [phase(nodeid, "???")], dist=dist) == [(plain, "error")]


@pytest.mark.parametrize(
    ("phases", "outcome"), [(("setup", "call", "teardown"), "passed"), (("setup", "???"), "error")]
)
def test_a_group_makes_no_second_test(
    phases: Sequence[str], outcome: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a worker hands over and what is heard of a test are of one test, whatever its group is called.

    Also where a secret is in its id, which is masked.
    """
    monkeypatch.setenv("STAGE_TOKEN", "production")
    grouped, plain = "x.py::test_it[production]@a::@[a]", "x.py::test_it[production]"
    item: Any = SimpleNamespace(nodeid=grouped, stash=pytest.Stash(), fixturenames=[MEASURING])
    item.stash[NODEID] = plain
    config: Any = SimpleNamespace()
    worker = XdistWorker(config, lambda: SessionResult({}, {}, (TestResult(plain, outcome),)))
    reports = []
    for name in phases:
        made = worker.pytest_runtest_makereport(item)
        next(made)
        with pytest.raises(StopIteration) as ended:
            made.send(phase(grouped, name))
        reports.append(phase(grouped, name) if name == "???" else ended.value.value)
    assert gathered(tmp_path / "out.json", reports, dist="loadgroup") == [("x.py::test_it[<STAGE_TOKEN>]", outcome)]


@pytest.mark.parametrize("stored", [True, False])
def test_all_that_a_worker_measures_arrives(*, stored: bool) -> None:
    """Every value arrives as it was, those that JSON lacks too, in loads, judgements, windows and telemetry."""
    sent = replace(session_result(2, stored=stored), gpu={"name": "T4", "odd": math.inf})
    assert unpack(pack(sent)) == sent


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        (pickle.dumps(subprocess.Popen), "required field"),
        (msgspec.msgpack.encode({"gpu": {}, "host": {}, "tests": [{"nodeid": 1}]}), r"\$\.tests\[0\]\.nodeid"),
        (b"", "truncated"),
    ],
)
def test_what_is_no_result_is_refused(sent: bytes, problem: str) -> None:
    """Nothing is made of what is handed over but values of the types that a result has."""
    with pytest.raises(ValueError, match=rf"a worker handed over something that is no result: .*{problem}"):
        unpack(base64.b85encode(sent).decode())


def test_work_of_a_child_that_has_ended_stays_ours() -> None:
    """What another worker's server used before it ended is not taken for what strangers took."""
    own = psutil.Process()
    before = read_cpu([own]).ours_seconds
    subprocess.run(
        [sys.executable, "-c", "while __import__('time').process_time() < 0.5: pass"], check=True, timeout=60
    )
    assert read_cpu([own]).ours_seconds - before > 0.4
