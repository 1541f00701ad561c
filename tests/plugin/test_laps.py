"""Tests of one module share the starts of their servers, by laps, and only the last run of each is reported."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fakes.scripted_starts import Script
from tests.plugin.conftest import JSON, Checkout, Project, text_of

TESTS = """
import pytest

{marker}

@pytest.fixture(scope="module")
def server(mosec_server):
    print("module begins")
    yield mosec_server("app.py")
    print("module ends")

@pytest.mark.parametrize("users", [1, 2, 3])
def test_it(server, load, baseline, users):
    with open("bodies.txt", "a") as bodies:
        print(users, file=bodies)
    run = load(server.post("/inference", body=b"fox"), concurrency=users)
    {assertion}
"""

ASSERTION = "assert run.throughput >= baseline.throughput"


@pytest.fixture
def sweep(project: Project, checkout: Checkout) -> Project:
    """A module of three loads of one server, whose starts differ so much that one round decides nothing."""
    project.script = Script(noise=0.012)
    write(project)
    checkout.commit("a sweep")
    project.speed(0.974)
    return project


def write(project: Project, assertion: str = ASSERTION, marker: str = "") -> None:
    """Write the module."""
    project.test_file.write_text(TESTS.format(assertion=assertion, marker=marker))


def bodies(project: Project) -> list[int]:
    """Tests whose functions ran, in order."""
    path = project.path / "bodies.txt"
    lines = path.read_text().split()
    path.unlink()
    return list(map(int, lines))


def results(project: Project) -> dict[str, Any]:
    """JSON result of each test, by its parameter."""
    tests = json.loads((project.path / "out.json").read_text())["tests"]
    return {test["nodeid"].split("[")[1][:-1]: test for test in tests}


def rounds(project: Project) -> list[int]:
    """Rounds of each test."""
    return [results(project)[users]["verdicts"][0]["rounds"] for users in ("1", "2", "3")]


def starts(checkout: Checkout) -> int:
    """Number of starts of a pair of servers; all of them have ended."""
    lines = [line.split()[0] for line in checkout.servers()]
    assert lines.count("start") == lines.count("end")
    return lines.count("start") // 2


def test_the_starts_of_a_module_are_those_of_its_slowest_decision(sweep: Project, checkout: Checkout) -> None:
    """Tests share starts, alternate their order, keep the module's fixtures to its end, and are reported once."""
    result = sweep.run("--against=HEAD", JSON, "-v", "-s", "--junitxml=junit.xml")
    result.assert_outcomes(passed=3)
    counts, ran, text = rounds(sweep), bodies(sweep), text_of(result)
    assert sorted(counts)[1] > 1
    assert starts(checkout) == max(counts) < sum(counts)
    assert ran[:3] == [1, 2, 3]
    second = [users for users in (3, 2, 1) if counts[users - 1] > 1]
    assert ran[3 : 3 + len(second)] == second
    assert text.count("PASSED") == 3
    assert "SKIPPED" not in text
    assert (text.count("module begins"), text.count("module ends")) == (1, 1)
    assert (sweep.path / "junit.xml").read_text().count("<testcase") == 3
    assert "an earlier try" not in text


def test_laps_need_no_debugger_of_pytest(sweep: Project) -> None:
    """Laps are measured also without pytest's debugging plugin, which has the option ``--pdb``."""
    sweep.run("--against=HEAD", "-p", "no:debugging").assert_outcomes(passed=3)


RUNS_THEM = """
import pytest


class Reruns:
    @pytest.hookimpl
    def pytest_runtest_protocol(self, item, nextitem):
        return None

def pytest_configure(config):
    config.pluginmanager.register(Reruns(), "reruns")
"""


@pytest.mark.parametrize(
    ("marker", "conftest", "arguments"),
    [
        ("pytestmark = pytest.mark.gpuserve(laps=False)", "", ()),
        pytest.param(
            "pytestmark = pytest.mark.usefixtures('subtests')",
            "",
            (),
            marks=pytest.mark.skipif(pytest.version_tuple < (9,), reason="pytest 9 has the fixture subtests"),
        ),
        ("", RUNS_THEM, ()),
        ("", "", ("--stepwise",)),
    ],
    ids=["marker", "subtests", "another plugin runs tests", "stepwise"],
)
def test_a_test_that_is_not_to_run_twice_is_decided_in_one_go(
    sweep: Project, checkout: Checkout, marker: str, conftest: str, arguments: tuple[str, ...]
) -> None:
    """Its first round is on the servers that run all the same."""
    (sweep.path / "conftest.py").write_text(conftest)
    write(sweep, marker=marker)
    checkout.commit("marked")
    sweep.run("--against=HEAD", JSON, *arguments).assert_outcomes(passed=3)
    assert bodies(sweep) == [1, 2, 3]
    assert starts(checkout) == 1 + sum(count - 1 for count in rounds(sweep))


SKIPPED = """
@pytest.mark.skip
def test_last(server, load):
    pass
"""


def test_servers_end_with_their_module_though_its_last_test_is_skipped(sweep: Project, checkout: Checkout) -> None:
    """No other module's test runs beside them."""
    sweep.test_file.write_text(sweep.test_file.read_text() + SKIPPED)
    other = "def test_other():\n    lines = [line.split()[0] for line in open('starts.log')]\n"
    other += "    assert lines and lines.count('start') == lines.count('end')\n"
    (sweep.test_file.parent / "test_z.py").write_text(other)
    sweep.speed(0.99)
    sweep.run("--against=HEAD", JSON).assert_outcomes(passed=4, skipped=1)
    assert starts(checkout) >= 1


def test_a_teardown_that_fails_while_its_test_waits_is_an_error(sweep: Project, checkout: Checkout) -> None:
    """It is reported at once, and the test does not run again; the others go on."""
    sweep.test_file.write_text(
        sweep.test_file.read_text()
        + """
@pytest.fixture(autouse=True)
def broken(users):
    yield
    assert users != 2, "torn"
"""
    )
    result = sweep.run("--against=HEAD", JSON)
    result.assert_outcomes(passed=2, errors=1, skipped=1)
    assert bodies(sweep).count(2) == 1
    assert checkout.left_behind() == []


@pytest.mark.parametrize(
    ("last", "options", "status"),
    [
        ("assert users != 3", ("-x",), pytest.ExitCode.TESTS_FAILED),
        ("if users == 3: raise KeyboardInterrupt", (), pytest.ExitCode.INTERRUPTED),
        # What is not decided has not passed.
        ("if users == 3: pytest.exit('enough', returncode=0)", (), pytest.ExitCode.TESTS_FAILED),
    ],
    ids=["-x", "Ctrl-C", "pytest.exit"],
)
def test_when_the_run_ends_those_that_wait_are_told(
    sweep: Project, checkout: Checkout, last: str, options: tuple[str, ...], status: pytest.ExitCode
) -> None:
    """However it ends no server stays, and no test passes undecided."""
    write(sweep, f"{last}\n    {ASSERTION}")
    result = sweep.run("--against=HEAD", JSON, *options)
    assert result.ret == status
    assert bodies(sweep)[:3] == [1, 2, 3]
    assert checkout.left_behind() == []
    waited = [users for users, test in results(sweep).items() if test["outcome"] == "interrupted"]
    assert waited
    for users in waited:
        assert f"test_it[{users}]: " in text_of(result)
    assert "not decided when the run ended" in text_of(result)
