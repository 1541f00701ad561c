"""The everyday git workflows, with real repositories: the right base, or a command that works."""

from __future__ import annotations

import re
import subprocess
from copy import copy
from pathlib import Path

import pytest

from tests.plugin.conftest import JSON, Checkout, Project, says_no_traceback, text_of
from tests.support.plain_git import commit, git, only_below, run

BASELINE = "baselines/cpu/perf/test_perf.json"


@pytest.fixture
def root(project: Project, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose baseline was recorded with a changed code, ignored settings and a log; nothing is committed."""
    only_below(project.path.parent, monkeypatch)
    (project.app_file.parent / ".env").write_text("SPEED_OF_SETTINGS = 0.5")
    Checkout(project, tmp_path_factory.mktemp("temporary"), ".env")
    project.speed(1.1)
    (project.path / "run.log").write_text("a log that is neither ignored nor committed")
    told = measured(project, "--baseline-update")
    words = f"recorded (2 sessions) in {project.baseline}; commit it together with these changes"
    assert words in told
    return project.path


def measured(project: Project, *options: str) -> str:
    """Run pytest in it, without what earlier runs have kept; what it printed."""
    result = project.run("--gpu=cpu", "-p", "no:cacheprovider", JSON, *options)
    assert says_no_traceback(result)
    return text_of(result)


def gated(project: Project) -> str:
    """Run it on another host than that of the recording, whose numbers decide nothing: the base is always started."""
    project.environment["GPUSERVE_HOST"] = "another-host"
    return measured(project, "--on-missing=fail")


def verdict_of(project: Project) -> str:
    """The verdict of the throughput."""
    return project.verdicts()["throughput"]


def base_of(project: Project) -> str:
    """The first digits of the commit that the candidate was beside."""
    found = re.search(r"\(([0-9a-f]{12})\)", project.result()["run"]["base"]["name"])
    assert found is not None
    return found[1]


def proposed(text: str) -> str:
    """The first git command that is proposed in full: pytest may cut the text of an assertion."""
    found = re.search(r"`(git [^`\n]+)`", text)
    assert found is not None, text
    return found[1]


def test_code_and_baseline_that_are_committed_together_are_the_base(project: Project, root: Path) -> None:
    """Recorded before the commit, with untracked files lying about: slower code is REGRESSED beside that commit."""
    together = commit(root)
    project.speed(0.5)
    commit(root)
    gated(project)
    assert (verdict_of(project), base_of(project)) == ("REGRESSED", together[:12])


def test_an_entry_that_is_not_committed_is_shown(project: Project, root: Path) -> None:
    """Its numbers are there, the verdict says how to commit it, and the command does."""
    project.speed(0.5)
    told = gated(project)
    verdict = project.result()["verdicts"][-1]
    assert verdict["verdict"] == "INCONCLUSIVE"
    assert verdict["reference"] > verdict["value"] > 0
    assert "the baseline entry is not committed yet" in told
    git(root, "config", "user.name", "A")
    git(root, "config", "user.email", "a@example.invalid")
    run(f"{proposed(told)} --quiet --message=accept", root.parent)
    assert git(root, "status", "--porcelain", "--", BASELINE) == ""


def test_a_conflict_of_two_recordings_is_solved_by_the_command(project: Project, root: Path) -> None:
    """The message names what takes either side; with one side taken the gate has a base."""
    commit(root)
    git(root, "branch", "theirs", "HEAD~1")
    ours = project.baseline.read_text()
    git(root, "checkout", "--quiet", "theirs")
    project.baseline.parent.mkdir(parents=True)
    project.baseline.write_text(ours.replace('"schema"', '"scheme"'))
    theirs = commit(root)
    git(root, "checkout", "--quiet", "main")
    with pytest.raises(subprocess.CalledProcessError):
        git(root, "merge", "--quiet", theirs)
    told = measured(project)
    command = proposed(told[told.index("is not whole JSON") :])
    assert "checkout --ours" in command
    run(command, root.parent)
    assert project.baseline.read_text() == ours


def test_what_git_ignores_is_on_both_sides(project: Project, root: Path) -> None:
    """Unchanged code with ignored settings passes; without them the base differs: INVALID, and the file is named."""
    base = commit(root)
    gated(project)
    assert (verdict_of(project), base_of(project)) == ("PASS", base[:12])
    told = measured(project, "--against=HEAD", "-o", "gpuserve_base_files=!.env")
    assert verdict_of(project) == "INVALID"
    assert "something outside git differs" in told
    assert "the base does not have suites/perf/.env" in told


def test_a_shallow_clone_is_told_before_it_measures(project: Project, root: Path, tmp_path: Path) -> None:
    """It passes nothing, and the command makes its base known."""
    base = commit(root)
    commit(root)
    clone = copy(project)
    clone.path = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{root}", str(clone.path))
    before, _, after = gated(clone).partition("test_perf.py")
    assert verdict_of(clone) not in {"PASS", "IMPROVED", "REGRESSED"}
    assert "cannot be compared side by side" in before
    assert "ends before the commit that brought the baseline entry" in after
    run(proposed(before), clone.path)
    assert git(clone.path, "log", "--format=%H", "--diff-filter=A", "--", BASELINE) == base
