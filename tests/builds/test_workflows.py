"""The everyday git workflows, with real repositories and a real server: the right base, or a command that works."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.children.toolkit import ROOT
from tests.fakes.own_locks import LOCKS_VARIABLE, OWN_LOCKS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

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
def app(command_server):
    return command_server(["{python}", "server.py", "{port}"], start_timeout=60)


@pytest.mark.gpuserve(throughput=0.3)
def test_app(app, load, baseline):
    run = load(app.get("/x", expect=b"FOX"), concurrency=4, seconds=1, warmup_seconds=0.2)
    assert run.throughput >= baseline.throughput
"""
"""The tolerance is above what a busy machine takes from one of two servers that sleep, and below what is planted."""

BASELINE = "baselines/cpu/test_app.json"

ELSEWHERE = {"GPUSERVE_HOST": "another-host"}
"""Numbers of another host decide nothing, so that the base is always started."""


@dataclass
class Run:
    """What a run of pytest came to.

    Args:
        text: What it printed.
        result: What its JSON says of the test; nothing where it did not run.
    """

    text: str
    result: dict[str, Any]

    @property
    def verdict(self) -> str:
        """Of the throughput, by whoever decided."""
        return str(self.result["verdicts"][-1]["verdict"])

    @property
    def base(self) -> str:
        """The first digits of the commit that the candidate was beside."""
        found = re.search(r"\(([0-9a-f]{12})\)", self.result["run"]["base"]["name"])
        assert found is not None
        return found[1]


@dataclass
class Project:
    """A user's project.

    Args:
        root: Its checkout.
        environment: Variables for pytest beside the inherited ones.
    """

    root: Path
    environment: dict[str, str] = field(default_factory=dict)

    def git(self, *arguments: str) -> str:
        """Run git; its output."""
        who = ("-c", "user.name=A", "-c", "user.email=a@example.invalid", "-c", "protocol.file.allow=always")
        return run(["git", *who, "-C", str(self.root), *arguments], self.root).stdout.strip()

    def commit(self, message: str = "change") -> str:
        """Commit all that is there; the first digits of the hash."""
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", f"--message={message}")
        return self.git("rev-parse", "HEAD")[:12]

    def work(self, factor: float) -> None:
        """Let an answer of the server take so many times as long."""
        app = self.root / "server.py"
        app.write_text(re.sub(r"WORK = .*", f"WORK = {factor}", app.read_text()))

    def copied(self, place: Path) -> Project:
        """The same project elsewhere."""
        shutil.copytree(self.root, place, symlinks=True)
        return Project(place, dict(self.environment))

    def cloned(self, place: Path, *options: str) -> Project:
        """A fresh clone, with what git ignores put there by hand."""
        self.git("clone", "--quiet", *options, f"file://{self.root}", str(place))
        shutil.copytree(self.root / "weights", place / "weights")
        shutil.copy(self.root / ".env", place)
        (place / "models" / "1").mkdir()
        return Project(place, dict(self.environment))

    def pytest(self, *options: str) -> Run:
        """Run pytest in it, in a minute or less of measuring."""
        out = self.root.parent / f"{self.root.name}.json"
        out.unlink(missing_ok=True)
        options = ("--gpu=cpu", "-p", "no:cacheprovider", "--gpuserve-budget=1", f"--gpuserve-json={out}", *options)
        variables = {"PYTHONPATH": str(ROOT), LOCKS_VARIABLE: str(self.root.parent), **self.environment}
        done = run([sys.executable, "-m", "pytest", *OWN_LOCKS, *options], self.root, variables, check=False)
        text = done.stdout + done.stderr
        assert "Traceback" not in text, text
        tests = json.loads(out.read_text())["tests"] if out.exists() else []
        return Run(text, tests[0] if tests else {})

    def gate(self) -> Run:
        """Gate it on another host than that of the recording."""
        return Project(self.root, {**self.environment, **ELSEWHERE}).pytest("--on-missing=fail")


def run(
    command: list[str] | str, cwd: Path, variables: Mapping[str, str] | None = None, *, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run a command, or what a message proposes as a user does in a shell."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "PYTEST_", "COV_"))}
    kept |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_EDITOR": "true", "PYTHONDONTWRITEBYTECODE": "1", **(variables or {})}
    is_line = isinstance(command, str)
    return subprocess.run(
        command, shell=is_line, check=check, cwd=cwd, env=kept, capture_output=True, text=True, timeout=300
    )


def proposed(text: str) -> str:
    """The first git command that is proposed."""
    found = re.search(r"`(git [^`]+)`", text)
    assert found is not None, text
    return found[1]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose baseline was recorded with a changed code and a log lying about; nothing of it committed."""
    root = tmp_path_factory.mktemp("recorded") / "project"
    (root / "models" / "1").mkdir(parents=True)
    (root / "models" / "config").touch()
    (root / "weights").mkdir()
    (root / "weights" / "w.bin").write_bytes(b"FOX")
    (root / ".env").write_text("PAUSE_SECONDS=0.004")
    (root / ".gitignore").write_text(".env\nweights/\n__pycache__/\n")
    (root / "server.py").write_text(SERVER)
    (root / "test_app.py").write_text(TEST)
    (root / "pytest.ini").write_text("[pytest]\ngpuserve_foreign_cores = 64\n")
    project = Project(root)
    project.git("init", "--quiet", "--initial-branch=main")
    project.commit("first")
    project.work(1.1)
    (root / "run.log").write_text("a log that is neither ignored nor committed")
    told = project.pytest("--baseline-update").text
    assert f"recorded (1 session) in {root / BASELINE}; it counts from the commit that brings it together with" in told
    return project


@pytest.fixture
def project(recorded: Project, tmp_path: Path) -> Project:
    """A copy of it."""
    return recorded.copied(tmp_path / "project")


def test_code_and_baseline_that_are_committed_together_are_the_base(project: Project) -> None:
    """Recorded before the commit, with untracked files lying about: slower code is REGRESSED beside that commit."""
    together = project.commit("the change and its baseline")
    project.work(3)
    project.commit("slower")
    gate = project.gate()
    assert (gate.verdict, gate.base) == ("REGRESSED", together)


def test_an_entry_that_is_not_committed_is_shown(project: Project) -> None:
    """Its numbers are there, the verdict says how to commit it, and the command does."""
    project.work(3)
    gate = project.pytest()
    assert gate.verdict == "INCONCLUSIVE"
    assert gate.result["verdicts"][-1]["reference"] > gate.result["verdicts"][-1]["value"] > 0
    assert "the baseline entry is not committed yet" in gate.text
    project.git("config", "user.name", "A")
    project.git("config", "user.email", "a@example.invalid")
    run(f"{proposed(gate.text)} --quiet --message=accept", project.root.parent)
    assert project.git("status", "--porcelain", "--", BASELINE) == ""


def test_a_conflict_of_two_recordings_is_solved_by_the_command(project: Project) -> None:
    """The message names what takes either side; with one side taken the gate has a base."""
    project.commit("ours")
    project.git("branch", "theirs", "HEAD~1")
    ours = (project.root / BASELINE).read_text()
    project.git("checkout", "--quiet", "theirs")
    (project.root / BASELINE).parent.mkdir(parents=True)
    (project.root / BASELINE).write_text(ours.replace('"schema"', '"scheme"'))
    theirs = project.commit("theirs")
    project.git("checkout", "--quiet", "main")
    with pytest.raises(subprocess.CalledProcessError):
        project.git("merge", "--quiet", theirs)
    told = project.pytest().text
    assert "a merge is not finished: baselines/cpu/test_app.json" in told.partition("test_app.py")[0]
    failed = told[told.index("is not whole JSON") :]
    command = proposed(failed)
    assert "checkout --ours" in command
    run(command, project.root.parent)
    assert (project.root / BASELINE).read_text() == ours


def test_what_git_ignores_is_on_both_sides(project: Project) -> None:
    """Settings, weights and an empty folder: unchanged code is not called slower or faster."""
    base = project.commit("the change and its baseline")
    gate = project.gate()
    assert gate.base == base
    assert gate.verdict in {"PASS", "INCONCLUSIVE"}


def test_one_build_is_neither_worse_nor_better(project: Project) -> None:
    """Where the base lacks the settings, one build differs from itself: INVALID, and what the base lacks is named."""
    # Ten times as slow as without them, which a busy machine does not hide.
    (project.root / ".env").write_text("PAUSE_SECONDS=0.02")
    ini = project.root / "pytest.ini"
    ini.write_text(f"{ini.read_text()}gpuserve_base_files = !.env\n")
    project.git("rm", "--quiet", "--cached", "pytest.ini")
    (project.root / ".gitignore").write_text(f"{(project.root / '.gitignore').read_text()}pytest.ini\n")
    project.commit("settings of this machine")
    gate = project.pytest("--against=HEAD")
    assert gate.verdict == "INVALID"
    assert "something outside git differs" in gate.text
    assert "the base does not have .env" in gate.text


def test_a_shallow_clone_is_told_before_it_measures(project: Project, tmp_path: Path) -> None:
    """It passes nothing, and the command makes its base known."""
    base = project.commit("the change and its baseline")
    project.commit("later")
    clone = project.cloned(tmp_path / "clone", "--depth=1")
    told = clone.gate()
    assert told.verdict not in {"PASS", "IMPROVED", "REGRESSED"}
    before, _, after = told.text.partition("test_app.py")
    assert "cannot be settled side by side" in before
    assert "ends before the commit that brought the baseline entry" in after
    run(proposed(before), clone.root)
    assert clone.git("log", "--format=%h", "--abbrev=12", "--diff-filter=A", "--", BASELINE) == base
