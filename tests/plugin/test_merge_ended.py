"""How pytest ended is in the result, whatever became of the tests that measure; and what merging makes of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuserve.merge.command import main
from pytest_gpuserve.outputs import STEP_SUMMARY
from tests.fakes.scripted_sessions import Script
from tests.plugin.conftest import text_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugin.conftest import Checkout, Project


WELL = {"exit_status": 0, "complete": True, "unlisted_failures": 0}


@pytest.fixture
def gated(project: Project, recorded: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project whose one test that measures passes."""
    monkeypatch.delenv(STEP_SUMMARY, raising=False)
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


def test_all_is_well(gated: Project) -> None:
    """Nothing failed, and nothing was left out."""
    besides(gated, "def test_plain(): pass")
    assert ending(gated, status=0) == WELL


def test_a_failure_that_is_not_listed(gated: Project) -> None:
    """A test that measures nothing is not in the list, and fails pytest; a broken teardown too."""
    besides(
        gated,
        "import pytest\n@pytest.fixture\ndef broken():\n    yield\n    assert False\n\n"
        "def test_plain(): assert False\n\ndef test_teardown(broken): pass\n\n"
        "@pytest.mark.xfail\ndef test_known(): assert False\n",
    )
    assert ending(gated, status=1) == {"exit_status": 1, "complete": True, "unlisted_failures": 2}


def test_a_file_that_cannot_be_collected(gated: Project) -> None:
    """Nothing is run, so that nothing is listed; and where all else is run, it is counted."""
    besides(gated, "import absent_module")
    assert not ending(gated, status=2)["complete"]
    assert json.loads((gated.path / "out.json").read_text())["tests"] == []
    found = ending(gated, "--continue-on-collection-errors", status=1)
    assert found == {"exit_status": 1, "complete": True, "unlisted_failures": 1}


@pytest.mark.parametrize(("returncode", "status"), [("0", 0), ("None", 2), ("7", 7)])
def test_it_was_ended_early(gated: Project, returncode: str, status: int) -> None:
    """By `pytest.exit`, whatever exit status it has asked for: what was not run is not taken to have passed."""
    besides(gated, f"import pytest\ndef test_z(): pytest.exit('enough', returncode={returncode})", "test_z.py")
    found = ending(gated, status=status)
    assert not found["complete"]
    assert json.loads((gated.path / "out.json").read_text())["tests"][0]["outcome"] == "passed"


def test_it_stopped_at_the_first_failure(gated: Project) -> None:
    """With `-x` the rest was not run."""
    besides(gated, "def test_plain(): assert False\n\ndef test_other(): pass\n", "test_z.py")
    assert ending(gated, "-x", status=1) == {"exit_status": 1, "complete": False, "unlisted_failures": 1}


def test_it_was_interrupted(gated: Project) -> None:
    """By Ctrl-C, in a test that measures."""
    gated.script = Script(interrupted_session=1)
    assert not ending(gated, status=2)["complete"]


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


def test_tests_that_were_only_set_up(gated: Project) -> None:
    """With `--setup-only` pytest ends well, and nothing was measured."""
    assert not ending(gated, "--setup-only", status=0)["complete"]


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
