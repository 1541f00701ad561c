"""A suite dealt out to several runners by pytest-split, whose results and baselines are made one."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuserve.merge.__main__ import main
from pytest_gpuserve.plugin.sharding import Part, part_of
from tests.plugin.conftest import text_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugin.conftest import Project

pytest.importorskip("pytest_split")

TESTS = """
import pytest

@pytest.mark.parametrize("app", ["app.py", "app.py", "app.py", "odd.py"], ids=range(4))
def test_it(mosec_server, load, baseline, app):
    run = load(mosec_server(app).post("/inference", body=b"fox", expect=b"FOX"), concurrency=8, seconds=2)
    assert run.throughput >= baseline.throughput
    assert run.latency.p50 <= baseline.latency.p50
"""

COUNTING = """
from pytest_gpuserve.plugin.sharding import part_of, tests_of_all_runners

def pytest_collection_finish(session):
    print(f"{len(session.items)} of {len(tests_of_all_runners(session))} tests, {part_of(session.config)}")
"""

NAMES = [f"suites/perf/test_perf.py::test_it[{number}]" for number in range(4)]


class Suite:
    """A suite of four tests on two runners.

    Args:
        project: The project that each runner has.
        capsys: Reads what is printed.
    """

    def __init__(self, project: Project, capsys: pytest.CaptureFixture[str]) -> None:
        self.project = project
        self._capsys = capsys
        project.test_file.write_text(TESTS)
        project.speed(1)
        project.speed(1, app="odd.py")

    def group(self, number: int, *arguments: str) -> pytest.RunResult:
        """Run what the runner of this number has to run."""
        return self.project.run("-p", "pytest_split.plugin", "--splits=2", f"--group={number}", *arguments)

    def merge(self, *arguments: str) -> tuple[int, str]:
        """Merge what the runners have written; the exit status, and what was said."""
        self._capsys.readouterr()
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.project.path)
            status = main(arguments)
        captured = self._capsys.readouterr()
        return status, captured.out + captured.err


@pytest.fixture
def suite(project: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Suite:
    """The suite, without baselines."""
    monkeypatch.setenv("COLUMNS", "160")
    return Suite(project, capsys)


def ids(path: Path) -> list[str]:
    """The tests of a result file."""
    return [test["nodeid"] for test in json.loads(path.read_text())["tests"]]


def test_two_runners_are_one(suite: Suite) -> None:
    """Each records its tests, and all have baselines; each gates them, and if one build is slower the suite fails."""
    for number in (1, 2):
        recorded = suite.group(number, "--baseline-update", f"--baseline-dir=of-{number}")
        recorded.assert_outcomes(passed=2, deselected=2)
    folder = suite.merge("--baselines", "of-1", "of-2", "--into", "baselines")
    assert folder[0] == 0, folder
    assert folder[1].splitlines()[-1] == "4 entries merged into baselines"
    assert suite.group(1, "--gpuserve-json=1.json").ret == 0
    suite.project.speed(0.5, app="odd.py")
    worse = suite.group(2, "--no-confirm", "--gpuserve-json=2.json")
    worse.assert_outcomes(passed=1, failed=1, deselected=2)
    read = [json.loads((suite.project.path / f"{number}.json").read_text()) for number in (1, 2)]
    assert [each["shard"] for each in read] == [{"number": number, "of": 2} for number in (1, 2)]
    # Each makes half of all comparisons, and claims what stands among all.
    assert [each["comparisons"] for each in read] == [{"planned": 4, "among": 8}] * 2
    assert {each["mode"] for each in read} == {"gate"}
    assert [each["dealt"] for each in read] == [NAMES] * 2
    (claim,) = [each for test in read[1]["tests"] for each in test["verdicts"] if each["verdict"] == "REGRESSED"][:1]
    assert 0 < claim["adjusted_p"] < 0.05 / 8
    assert suite.merge("1.json")[0] == 2
    status, said = suite.merge("2.json", "1.json", "--json=all.json", "--report=all.html", "--markdown=all.md")
    assert status == 1, said
    assert "REGRESSED" in said
    path = suite.project.path
    assert ids(path / "all.json") == NAMES
    assert "test_it[3]" in next(line for line in said.splitlines() if "test_it" in line)
    assert "1 of 4 tests did not pass" in (path / "all.md").read_text()
    assert (path / "all.html").exists()


def test_runners_that_deal_out_differently(suite: Suite) -> None:
    """With other durations on one runner a test is in no group: it is missed, though both have passed."""
    for number in (1, 2):
        suite.group(number, "--baseline-update").assert_outcomes(passed=2, deselected=2)
    assert suite.group(1, "--gpuserve-json=1.json").ret == 0
    # The first one has taken so long that all others are in the other group.
    durations = {name: 1000.0 if number == 0 else 1.0 for number, name in enumerate(NAMES)}
    (suite.project.path / ".test_durations").write_text(json.dumps(durations))
    longest = ("--splitting-algorithm=duration_based_chunks", "--gpuserve-json=2.json")
    suite.group(2, *longest).assert_outcomes(passed=3, deselected=1)
    assert suite.merge("1.json", "2.json")[0] == 2
    # Or the third one, with which those before it are in the other group.
    (suite.project.path / ".test_durations").write_text(json.dumps({**durations, NAMES[0]: 1.0, NAMES[2]: 1000.0}))
    suite.group(2, *longest).assert_outcomes(passed=1, deselected=3)
    status, said = suite.merge("1.json", "2.json")
    assert status == 2
    assert f"1 test was run by none of the runners\n  found: {NAMES[2]}" in said


ONE = "suites/perf/test_perf.py::test_it"
PLAIN = [f"suites/perf/test_z.py::test_{name}" for name in "abc"]


@pytest.fixture
def mixed(suite: Suite) -> Suite:
    """One test that measures, with a baseline, and behind it three that do not; the last two are group 2."""
    suite.project.write()
    suite.project.speed(1)
    plain = suite.project.test_file.with_name("test_z.py")
    plain.write_text("".join(f"def test_{name}():\n    pass\n\n" for name in "abc"))
    suite.group(1, "--baseline-update").assert_outcomes(passed=2, deselected=2)
    suite.group(1, "--gpuserve-json=1.json").assert_outcomes(passed=2, deselected=2)
    return suite


def read_of(suite: Suite, number: int) -> dict[str, Any]:
    """The result that a runner has written."""
    found: dict[str, Any] = json.loads((suite.project.path / f"{number}.json").read_text())
    return found


@pytest.mark.parametrize("workers", [(), ("-p", "xdist.plugin", "-n1")], ids=["", "xdist"])
def test_a_group_without_a_test_that_measures_is_there(mixed: Suite, workers: tuple[str, ...]) -> None:
    """It writes a result without tests, which says where it is, and with which the others are one."""
    result = mixed.group(2, "--gpuserve-json=2.json", *workers)
    result.assert_outcomes(passed=2, **({} if workers else {"deselected": 2}))
    result.stdout.fnmatch_lines(["gpuserve: no test of group 2 measures; results: */2.json"])
    one, other = (read_of(mixed, number) for number in (1, 2))
    assert (other["tests"], other["gpu"], other["mode"]) == ([], {}, "gate")
    assert other["shard"] == {"number": 2, "of": 2}
    assert one["dealt"] == other["dealt"] == [ONE]
    assert one["unlisted"] == {"dealt": PLAIN, "own": PLAIN[:1]}
    assert other["unlisted"] == {"dealt": PLAIN, "own": PLAIN[1:]}
    assert other["ending"] == {"exit_status": 0, "complete": True, "unlisted_failures": 0}
    status, said = mixed.merge("1.json", "2.json", "--expect=2")
    assert status == 0, said
    assert "group 2 of 2, no test that measures" in said


def test_of_such_a_group_no_more_is_said_than_of_others(mixed: Suite) -> None:
    """Nothing with ``-q`` or without the option; a result that cannot be written is told, by the exit status too."""
    assert "measures" not in text_of(mixed.group(2, "-q", "--gpuserve-json=2.json"))
    assert read_of(mixed, 2)["tests"] == []
    (mixed.project.path / "2.json").unlink()
    assert "measures" not in text_of(mixed.group(2))
    mixed.group(2, "--gpuserve-json=2.json", "--collect-only")
    assert not (mixed.project.path / "2.json").exists()
    plain = mixed.project.test_file.with_name("test_z.py")
    (mixed.project.path / "results").mkdir()
    plain.write_text(plain.read_text().replace("b():\n    pass", "b():\n    __import__('os').rmdir('results')"))
    result = mixed.group(2, "-q", "--gpuserve-json=results/2.json")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.fnmatch_lines(["gpuserve: no test of group 2 measures; ERROR: --gpuserve-json=results/2.json: *"])


@pytest.mark.parametrize(
    ("body", "arguments", "ended"),
    [
        ("assert False", (), (1, True, 1)),
        ("assert False", ("-x",), (1, False, 1)),
        ("pytest.exit('enough', returncode=0)", (), (0, False, 0)),
        ("pass", ("--setup-only",), (0, False, 0)),
    ],
)
def test_how_such_a_group_ended_counts(
    mixed: Suite, body: str, arguments: tuple[str, ...], ended: tuple[int, bool, int]
) -> None:
    """A test of it that fails, or was never run, is no pass for them all."""
    plain = mixed.project.test_file.with_name("test_z.py")
    plain.write_text("import pytest\n" + plain.read_text().replace("b():\n    pass", f"b():\n    {body}"))
    mixed.group(2, "--gpuserve-json=2.json", *arguments)
    ending = dict(zip(("exit_status", "complete", "unlisted_failures"), ended, strict=True))
    assert read_of(mixed, 2)["ending"] == ending
    status, said = mixed.merge("1.json", "2.json")
    assert status == 1
    assert " of 2 is no pass: " in said


def test_who_was_dealt_nothing_lacks_nothing(mixed: Suite) -> None:
    """An empty group has the exit status of no tests and is well; a plain test that nobody was dealt is missed."""
    chosen = ("-k", "test_it", "--gpuserve-json")
    assert mixed.group(1, *chosen, "one.json").ret == 0
    assert mixed.group(2, *chosen, "2.json").ret == pytest.ExitCode.NO_TESTS_COLLECTED
    status, said = mixed.merge("one.json", "2.json")
    assert status == 0, said
    durations = dict.fromkeys([ONE, *PLAIN], 1.0)
    (mixed.project.path / ".test_durations").write_text(json.dumps({**durations, PLAIN[1]: 1000.0}))
    mixed.group(2, "--gpuserve-json=2.json").assert_outcomes(passed=1, deselected=3)
    status, said = mixed.merge("1.json", "2.json")
    assert status == 2
    assert f"1 test was run by none of the runners\n  found: {PLAIN[1]}" in said


def test_what_all_runners_compare_is_known_to_each(suite: Suite) -> None:
    """A runner counts the tests that are left once they were selected, and before they are dealt out."""
    (suite.project.path / "conftest.py").write_text(COUNTING)
    one = suite.group(2, "--collect-only", "-q", "-s")
    assert "2 of 4 tests, Part(number=2, of=2)" in text_of(one)
    selected = suite.group(1, "--collect-only", "-q", "-s", "-k", "not it[0")
    assert "2 of 3 tests, Part(number=1, of=2)" in text_of(selected)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"group": 2, "splits": 3}, Part(2, 3)),
        ({"group": None, "splits": None}, None),
        # Another plugin may have an option of such a name.
        ({"group": "a word", "splits": 3}, None),
        ({"group": 2}, None),
    ],
)
def test_which_part_it_is(options: dict[str, object], part: Part | None) -> None:
    """By pytest-split's two options."""
    config: Any = SimpleNamespace(getoption=options.get)
    assert part_of(config) == part
