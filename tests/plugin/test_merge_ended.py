"""How pytest ended is in the result, whatever became of the tests that measure; and what merging makes of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuserve.merge.__main__ import main
from tests.fakes.scripted_sessions import Script
from tests.plugin.conftest import text_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugin.conftest import Checkout, Project


WELL = {"exit_status": 0, "complete": True, "unlisted_failures": 0}


@pytest.fixture
def gated(project: Project, recorded: Path) -> Project:
    """A project whose one test that measures passes."""
    project.store(recorded)
    return project


def ending(project: Project, *arguments: str, status: int) -> dict[str, Any]:
    """How the result says that a run ended, with this exit status; unless all is well it is merged to no pass."""
    result = project.run("--gpuserve-json=out.json", *arguments)
    assert result.ret == status, text_of(result)
    found: dict[str, Any] = json.loads((project.path / "out.json").read_text())["ending"]
    assert found["exit_status"] == status
    assert main([str(project.path / "out.json")]) == int(found != WELL)
    return found


def besides(project: Project, text: str, name: str = "test_a.py") -> None:
    """Write a further file of tests."""
    (project.test_file.parent / name).write_text(text)


BROKEN = """
import pytest

@pytest.fixture
def broken():
    yield
    assert False

def test_plain(): assert False

def test_teardown(broken): pass

@pytest.mark.xfail
def test_known(): assert False
"""


@pytest.mark.parametrize(
    ("text", "arguments", "ended"),
    [
        ("def test_plain(): pass", (), (0, True, 0)),
        # What measures nothing is in no list, and fails pytest.
        (BROKEN, (), (1, True, 2)),
        ("def test_plain(): assert False\n\ndef test_other(): pass\n", ("-x",), (1, False, 1)),
        ("import absent_module", ("--continue-on-collection-errors",), (1, True, 1)),
        ("", ("--setup-only",), (0, False, 0)),
    ],
    ids=["well", "failures", "stopped at the first", "not collected", "only set up"],
)
def test_what_is_not_listed_counts(
    gated: Project, text: str, arguments: tuple[str, ...], ended: tuple[int, bool, int]
) -> None:
    """A test that measures nothing, a teardown or a file may fail, or was not run: the result says so."""
    besides(gated, text, "test_z.py")
    expected = dict(zip(WELL, ended, strict=True))
    assert ending(gated, *arguments, status=ended[0]) == expected


def test_it_broke_off(gated: Project) -> None:
    """By a file that cannot be collected, after which nothing is listed, or by Ctrl-C in a test that measures."""
    besides(gated, "import absent_module")
    assert not ending(gated, status=2)["complete"]
    assert json.loads((gated.path / "out.json").read_text())["tests"] == []
    besides(gated, "")
    gated.script = Script(interrupted_session=1)
    assert not ending(gated, status=2)["complete"]


@pytest.mark.parametrize(("returncode", "status"), [("0", 0), ("None", 2), ("7", 7)])
def test_it_was_ended_early(gated: Project, returncode: str, status: int) -> None:
    """By `pytest.exit`, whatever exit status it has asked for: what was not run is not taken to have passed."""
    besides(gated, f"import pytest\ndef test_z(): pytest.exit('enough', returncode={returncode})", "test_z.py")
    found = ending(gated, status=status)
    assert not found["complete"]
    assert json.loads((gated.path / "out.json").read_text())["tests"][0]["outcome"] == "passed"


def test_whom_it_was_measured_beside(checkout: Checkout, capsys: pytest.CaptureFixture[str]) -> None:
    """The result says it, so that of two bases no one result is made."""
    project = checkout.project
    first = checkout.git("rev-parse", "HEAD")
    (project.path / "note").touch()
    commits = [first, checkout.commit()]
    for commit in commits:
        name = project.test_file.with_name(f"test_{commit[:7]}.py")
        name.write_text(project.test_file.read_text())
        project.run(f"--against={commit}", f"--gpuserve-json={commit}.json", str(name)).assert_outcomes(passed=1)
        name.unlink()
    files = [project.path / f"{commit}.json" for commit in commits]
    assert [json.loads(file.read_text())["against"] for file in files] == commits
    assert main(list(map(str, files))) == 2
    assert "not measured beside the same code" in capsys.readouterr().err


def test_another_file_could_not_be_written(gated: Project) -> None:
    """That ends pytest with another exit status, which the result knows though it is written itself."""
    (gated.path / "results").mkdir()
    gated.write("assert run.throughput >= baseline.throughput\n    __import__('os').rmdir('results')")
    assert ending(gated, "--gpuserve-report=results/out.html", status=4)["complete"]


def test_a_baseline_that_was_damaged_meanwhile(gated: Project) -> None:
    """What goes wrong when unused entries are removed, at the end of the session, costs no result."""
    gated.test_file.write_text(gated.test_file.read_text().replace("def test_it(", "def test_other("))
    (gated.path / "conftest.py").write_text(
        "import pathlib, pytest\n\n@pytest.hookimpl(wrapper=True)\ndef pytest_sessionfinish():\n"
        f"    pathlib.Path({str(gated.baseline)!r}).write_text('odd')\n    return (yield)\n"
    )
    assert ending(gated, "--baseline-update", status=4) == {**WELL, "exit_status": 4}
