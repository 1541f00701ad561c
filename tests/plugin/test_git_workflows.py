"""The everyday git workflows, with real repositories and a real server: the right base, or a command that works."""

from __future__ import annotations

import re
import shutil
import subprocess
from copy import copy
from typing import TYPE_CHECKING

import pytest

from tests.plugin.conftest import JSON, Checkout, Project, says_no_traceback, text_of
from tests.support.plain_git import commit, git, only_below, run

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.forked_pytest import ForkedPytest

SERVER = '''
"""A server of one thread: settings come from `.env`, weights from a file, and a folder has to be there."""
import asyncio, sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
WORK = 1
PAUSE = 0.002
if (HERE / ".env").exists():
    PAUSE = float((HERE / ".env").read_text().partition("=")[2])
WEIGHTS = (HERE / "weights" / "w.bin").read_bytes()
VERSIONS = list((HERE / "models" / "1").iterdir())
OK = b"HTTP/1.1 200 OK\\r\\nContent-Length: 3\\r\\n\\r\\n" + WEIGHTS


async def serve(reader, writer):
    try:
        while True:
            await reader.readuntil(b"\\r\\n\\r\\n")
            await asyncio.sleep(PAUSE * WORK)
            writer.write(OK)
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def main(port):
    async with await asyncio.start_server(serve, "127.0.0.1", port) as server:
        await server.serve_forever()


asyncio.run(main(int(sys.argv[1])))
'''

TEST = """
import pytest

@pytest.fixture(scope="module")
def server(command_server):
    return command_server(["{python}", "app.py", "{port}"], start_timeout=60)

@pytest.mark.gpuserve(throughput=0.3)
def test_it(server, load, baseline):
    run = load(server.get("/x", expect=b"FOX"), concurrency=4, seconds=1, warmup_seconds=0.2)
    assert run.throughput >= baseline.throughput
"""
"""The tolerance is above what a busy machine takes from one of two servers that sleep, and below what is planted."""

BASELINE = "baselines/cpu/perf/test_perf.json"


def measured(project: Project, *options: str) -> str:
    """Run pytest in it, in a minute or less of measuring; what it printed."""
    (project.path / "out.json").unlink(missing_ok=True)
    result = project.run("--gpu=cpu", "-p", "no:cacheprovider", "--gpuserve-budget=1", JSON, *options)
    assert says_no_traceback(result)
    return text_of(result)


def gated(project: Project) -> str:
    """Run it on another host than that of the recording, whose numbers decide nothing: the base is always started."""
    project.environment["GPUSERVE_HOST"] = "another-host"
    return measured(project, "--on-missing=fail")


def verdict_of(project: Project) -> str:
    """The last verdict of the throughput."""
    return project.verdicts()["throughput"]


def base_of(project: Project) -> str:
    """The first digits of the commit that the candidate was beside."""
    found = re.search(r"\(([0-9a-f]{12})\)", project.result()["run"]["base"]["name"])
    assert found is not None
    return found[1]


def work(project: Project, factor: float) -> None:
    """Let an answer of the server take so many times as long."""
    app = project.app_file
    app.write_text(re.sub(r"WORK = .*", f"WORK = {factor}", app.read_text()))


def proposed(text: str) -> str:
    """The first git command that is proposed in full: pytest may cut the text of an assertion."""
    found = re.search(r"`(git [^`\n]+)`", text)
    assert found is not None, text
    return found[1]


def at(project: Project, place: Path) -> Project:
    """The same project elsewhere."""
    made = copy(project)
    made.environment = dict(project.environment)
    made.path = place
    for name in ("test_file", "app_file", "baseline"):
        setattr(made, name, place / getattr(project, name).relative_to(project.path))
    return made


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, forked_pytest: ForkedPytest) -> Project:
    """A project whose baseline was recorded with a changed code and a log lying about; nothing of it committed."""
    project = Project(tmp_path_factory.mktemp("first"), tmp_path_factory, forked_pytest, script=None)
    project.ini(gpuserve_sessions="1")
    folder = project.app_file.parent
    (folder / "models" / "1").mkdir(parents=True)
    (folder / "models" / "config").touch()
    (folder / "weights").mkdir()
    (folder / "weights" / "w.bin").write_bytes(b"FOX")
    (folder / ".env").write_text("PAUSE_SECONDS=0.004")
    project.app_file.write_text(SERVER)
    project.test_file.write_text(TEST)
    Checkout(project, None, ".env", "weights/")
    work(project, 1.1)
    (project.path / "run.log").write_text("a log that is neither ignored nor committed")
    told = measured(project, "--baseline-update")
    assert f"recorded (1 session) in {project.baseline}; it counts from the commit that brings it together with" in told
    return project


@pytest.fixture
def project(first: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A copy of it, where git has no configuration of the machine."""
    only_below(tmp_path, monkeypatch)
    shutil.copytree(first.path, tmp_path / "project", symlinks=True)
    return at(first, tmp_path / "project")


def test_code_and_baseline_that_are_committed_together_are_the_base(project: Project) -> None:
    """Recorded before the commit, with untracked files lying about: slower code is REGRESSED beside that commit."""
    together = commit(project.path)
    work(project, 3)
    commit(project.path)
    gated(project)
    assert (verdict_of(project), base_of(project)) == ("REGRESSED", together[:12])


def test_an_entry_that_is_not_committed_is_shown(project: Project) -> None:
    """Its numbers are there, the verdict says how to commit it, and the command does."""
    work(project, 3)
    told = measured(project)
    verdict = project.result()["verdicts"][-1]
    assert verdict["verdict"] == "INCONCLUSIVE"
    assert verdict["reference"] > verdict["value"] > 0
    assert "the baseline entry is not committed yet" in told
    git(project.path, "config", "user.name", "A")
    git(project.path, "config", "user.email", "a@example.invalid")
    run(f"{proposed(told)} --quiet --message=accept", project.path.parent)
    assert git(project.path, "status", "--porcelain", "--", BASELINE) == ""


def test_a_conflict_of_two_recordings_is_solved_by_the_command(project: Project) -> None:
    """The message names what takes either side; with one side taken the gate has a base."""
    commit(project.path)
    git(project.path, "branch", "theirs", "HEAD~1")
    ours = project.baseline.read_text()
    git(project.path, "checkout", "--quiet", "theirs")
    project.baseline.parent.mkdir(parents=True)
    project.baseline.write_text(ours.replace('"schema"', '"scheme"'))
    theirs = commit(project.path)
    git(project.path, "checkout", "--quiet", "main")
    with pytest.raises(subprocess.CalledProcessError):
        git(project.path, "merge", "--quiet", theirs)
    told = measured(project)
    assert f"a merge is not finished: {BASELINE}" in told.partition("test_perf.py")[0]
    command = proposed(told[told.index("is not whole JSON") :])
    assert "checkout --ours" in command
    run(command, project.path.parent)
    assert project.baseline.read_text() == ours


def test_what_git_ignores_is_on_both_sides(project: Project) -> None:
    """Settings, weights and an empty folder: unchanged code is not called slower or faster."""
    base = commit(project.path)
    gated(project)
    assert base_of(project) == base[:12]
    assert verdict_of(project) in {"PASS", "INCONCLUSIVE"}


def test_one_build_is_neither_worse_nor_better(project: Project) -> None:
    """One build that differs from itself, because the base lacks its settings, is INVALID and the file is named."""
    # Ten times as slow as without them, which a busy machine does not hide.
    (project.app_file.parent / ".env").write_text("PAUSE_SECONDS=0.02")
    project.ini(gpuserve_sessions="1", gpuserve_base_files="!.env")
    git(project.path, "rm", "--quiet", "--cached", "pytest.ini")
    with (project.path / ".gitignore").open("a") as ignored:
        ignored.write("pytest.ini\n")
    commit(project.path)
    told = measured(project, "--against=HEAD")
    assert verdict_of(project) == "INVALID"
    assert "something outside git differs" in told
    assert "the base does not have suites/perf/.env" in told


def test_a_shallow_clone_is_told_before_it_measures(project: Project, tmp_path: Path) -> None:
    """It passes nothing, and the command makes its base known."""
    base = commit(project.path)
    commit(project.path)
    clone = at(project, tmp_path / "clone")
    git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{project.path}", str(clone.path))
    folder = project.app_file.parent
    shutil.copytree(folder / "weights", clone.app_file.parent / "weights")
    shutil.copy(folder / ".env", clone.app_file.parent)
    (clone.app_file.parent / "models" / "1").mkdir()
    before, _, after = gated(clone).partition("test_perf.py")
    assert verdict_of(clone) not in {"PASS", "IMPROVED", "REGRESSED"}
    assert "cannot be settled side by side" in before
    assert "ends before the commit that brought the baseline entry" in after
    run(proposed(before), clone.path)
    assert git(clone.path, "log", "--format=%H", "--diff-filter=A", "--", BASELINE) == base
