"""A project of a user, in a temporary folder, and pytest run in it as its user would."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pytest_gpuserve.verdict.reason import Reason
from tests.fakes.nvml import gpus
from tests.fakes.own_locks import LOCKS_VARIABLE, OWN_LOCKS
from tests.fakes.scripted_starts import SCRIPT_NAME, STARTS_NAME, Script
from tests.support import plain_git
from tests.support.forked_pytest import ForkedPytest, Run

REPOSITORY = Path(__file__).parents[2]

JSON = "--gpuserve-json=out.json"

LEFT_OUT = frozenset({"CI", "PYTEST_ADDOPTS"})
"""Variables of the caller's environment that would change a user's run."""
APP = REPOSITORY / "tests" / "fakes" / "mosec_app.py"
MODEL_SERVER = str(REPOSITORY / "tests" / "fakes" / "children" / "model_server.py")
"""A server that is up at once, and slow enough that loads of it cost little."""

SERVER = """
import pytest

# Wide enough that stored numbers of a single run of pytest let an identical build pass.
pytestmark = pytest.mark.gpuserve(
    throughput=0.1, p50=0.1, batching_ratio=0.1, cold_start=0.4, energy_per_inference=0.1,
    ttft_p50=0.1, output_tokens_per_second=0.1, goodput=0.1,
)

@pytest.fixture(scope="module")
def server(mosec_server):
    return mosec_server("app.py")
"""
"""The begin of a test file: tolerances, and a server."""

TEST = (
    SERVER
    + """
{marker}
def test_it(server, load, baseline):
    run = load(server.post("/inference", body=b"fox", expect=b"FOX"), concurrency=8, seconds=2, warmup_seconds=0.5)
    {assertion}
"""
)

BUSY = (
    "no steady state",
    "client late",
    "client held up",
    "client saturated",
    "in flight",
    "overloaded",
    "rate not reached",
    "stuck requests",
)
"""How the problems begin that other work on the machine can give a sound load of a sound server."""


def is_busy(problem: Reason | str) -> bool:
    """Whether other work on the machine alone can be the cause; a prefix may name a server or worker."""
    return any(str(problem).split(": ", said)[-1].startswith(BUSY) for said in range(3))


class Project:
    """A project with one measuring test.

    Args:
        path: Where it lives.
        temporary: For its locks, and for what all projects remember of this host, as those of a user do.
        forked: Runs pytest.
        script: Measurements of its loads (tests/fakes/scripted_starts.py); None to load real servers.
    """

    def __init__(
        self, path: Path, temporary: pytest.TempPathFactory, forked: ForkedPytest, *, script: Script | None
    ) -> None:
        self._forked = forked
        self.path = path
        self.test_file = self.path / "suites" / "perf" / "test_perf.py"
        self.app_file = self.path / "suites" / "perf" / "app.py"
        self.baseline = self.path / "baselines" / "cpu" / "perf" / "test_perf.json"
        self.script = script
        self.environment: dict[str, str | None] = {
            **dict.fromkeys(LEFT_OUT),
            "COLUMNS": "160",
            "PYTHONPATH": str(REPOSITORY),
            "GPUSERVE_HOST": "test-host",
            "XDG_CACHE_HOME": str(temporary.getbasetemp() / "cache"),
            LOCKS_VARIABLE: str(temporary.mktemp("locks")),
            # That installed plugins go on with ours is seen by `run_anew`; to start them takes a third of a run.
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }
        self._runs = 0
        self.ini()
        self.write()

    def ini(self, **settings: object) -> None:
        """Write the ini file; others may be busy on a test machine, which is not what these tests are about."""
        lines = {"gpuserve_foreign_cores": "1000", "gpuserve_sessions": "2", **settings}
        text = "\n".join(f"{name} = {value}" for name, value in lines.items())
        (self.path / "pytest.ini").write_text(f"[pytest]\n{text}\n")

    def write(self, assertion: str = "assert run.throughput >= baseline.throughput", marker: str = "") -> None:
        """Write the app and the test."""
        self.test_file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(APP, self.app_file)
        self.test_file.write_text(TEST.format(assertion=assertion, marker=marker))

    def speed(self, speed: float, app: str = "app.py") -> None:
        """Write how fast the build in the checkout is, for scripted loads; one of the speed 0 does not start."""
        (self.app_file.parent / app).write_text(f"{APP.read_text()}\nSPEED = {speed}\n")

    def with_gpus(self, library: Path, *fakes: gpus.FakeGpu) -> None:
        """Let the machine have these GPUs from the next run on; ``library`` is the folder of NVML's fake."""
        environment = gpus.write(gpus.Script(fakes), self.path, library=library)
        for name in ("LD_LIBRARY_PATH", "FAKE_NVML_SCRIPT"):
            self.environment[name] = environment[name]
        self.environment["CUDA_VISIBLE_DEVICES"] = None

    def store(self, recorded: Path) -> None:
        """Let the project have a baseline file that was recorded elsewhere."""
        self.baseline.parent.mkdir(parents=True, exist_ok=True)
        self.baseline.write_bytes(recorded.read_bytes())

    def run(self, *arguments: str, seconds: float = 180) -> pytest.RunResult:
        """Run pytest in the project, in a process of its own; each run has noise of its own."""
        return self.start(*arguments).result(seconds)

    def start(self, *arguments: str) -> Run:
        """Begin such a run."""
        given = [*self.options(), *arguments]
        temporary = f"--basetemp={self.path / f'runpytest-{self._runs}'}"
        return self._forked.start([temporary, *given], folder=self.path, environment=self.variables())

    def run_anew(self, *arguments: str) -> pytest.RunResult:
        """Run it by an interpreter that begins, with all plugins that are installed."""
        environment = self.variables(PYTEST_DISABLE_PLUGIN_AUTOLOAD=None)
        command = [sys.executable, "-m", "pytest", *self.options(), *arguments]
        done = subprocess.run(command, cwd=self.path, env=environment, capture_output=True, text=True, check=False)
        sys.stdout.write(done.stdout)
        sys.stderr.write(done.stderr)
        return pytest.RunResult(done.returncode, done.stdout.splitlines(), done.stderr.splitlines(), 0.0)

    def options(self) -> list[str]:
        """Write the script of the next run, and return what pytest has to be called with."""
        self._runs += 1
        if self.script is None:
            return ["-p", "pytest_gpuserve.plugin", *OWN_LOCKS]
        script = msgspec.structs.replace(self.script, seed=self._runs)
        (self.path / SCRIPT_NAME).write_bytes(msgspec.json.encode(script))
        return ["-p", "pytest_gpuserve.plugin", *OWN_LOCKS, "-p", "tests.fakes.scripted_starts"]

    def variables(self, **more: str | None) -> dict[str, str]:
        """The whole environment of a run."""
        ours = {**os.environ, **self.environment, **more}
        return {name: value for name, value in ours.items() if value is not None}

    def entry(self) -> dict[str, Any]:
        """The one entry of the baseline file."""
        entry: dict[str, Any] = json.loads(self.baseline.read_text())["entries"]["test_it"]
        return entry

    def result(self) -> dict[str, Any]:
        """Test of a run with `JSON`."""
        (test,) = json.loads((self.path / "out.json").read_text())["tests"]
        result: dict[str, Any] = test
        return result

    def verdicts(self) -> dict[str, str]:
        """Verdicts of such a run, by metric."""
        return {verdict["metric"]: verdict["verdict"] for verdict in self.result()["verdicts"]}


IGNORED = (
    *(".pytest_cache", "__pycache__", SCRIPT_NAME, STARTS_NAME),
    *("/out.json", "/stdout-*", "/stderr-*", "/runpytest-*"),
)
"""Files that runs of these tests write into a project; a user's project would ignore the first two."""


class Checkout:
    """A git repository of a project, with all of its files in a first commit.

    Args:
        project: The project.
        temporary: Its folder for temporary files, which nothing else uses.
        ignored: Patterns that git ignores beside the files of these tests.
    """

    def __init__(self, project: Project, temporary: Path, *ignored: str) -> None:
        self.project = project
        self.temporary = temporary
        project.environment["TMPDIR"] = str(temporary)
        self.git("init", "--quiet", "--initial-branch=main")
        (project.path / ".gitignore").write_text("\n".join((*IGNORED, *ignored, "")))
        self.commit("first")

    def git(self, *arguments: str) -> str:
        """Run git in the project; its output."""
        return plain_git.git(self.project.path, *arguments)

    def commit(self, message: str = "change") -> str:
        """Commit all files, and return the hash."""
        return plain_git.commit(self.project.path, message)

    def servers(self) -> list[str]:
        """Scripted starts and ends of servers, in order; the next run begins anew."""
        path = self.project.path / STARTS_NAME
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines

    def left_behind(self) -> list[str]:
        """Worktrees, their notes, temporary files and servers that a run has left; there may be none."""
        worktrees = self.git("worktree", "list", "--porcelain").count("worktree ")
        notes = self.project.path / ".git" / "worktrees"
        servers = [line.split()[0] for line in self.servers()]
        return [
            *(["a worktree"] if worktrees > 1 else []),
            *(map(str, notes.iterdir()) if notes.exists() else ()),
            *map(str, self.temporary.iterdir()),
            *(["a server"] if servers.count("start") != servers.count("end") else []),
        ]


def busy_machine(run: Mapping[str, Any]) -> list[str]:
    """Problems of a run that a busy machine causes; there may be no other, and then no verdict may be asserted."""
    problems: list[str] = run["problems"]
    assert all(map(is_busy, problems)), problems
    return problems


def text_of(result: pytest.RunResult) -> str:
    """Everything that a run printed."""
    return f"{result.stdout.str()}\n{result.stderr.str()}"


def says_no_traceback(result: pytest.RunResult) -> bool:
    """Whether a run reported a user's mistake without a traceback."""
    text = text_of(result)
    return "Traceback (most recent call last)" not in text and "INTERNALERROR" not in text


@pytest.fixture(scope="session", autouse=True)  # before a module or a test looks at which children it leaves
def forked_pytest() -> ForkedPytest:
    """Runs of pytest that need no new interpreter."""
    return ForkedPytest()


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make tests independent of the caller's environment."""
    for name in LEFT_OUT:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def project(
    pytester: pytest.Pytester, tmp_path_factory: pytest.TempPathFactory, forked_pytest: ForkedPytest
) -> Project:
    """A fresh project with scripted loads: no server starts, and results do not depend on the machine."""
    return Project(pytester.path, tmp_path_factory, forked_pytest, script=Script())


@pytest.fixture
def real_project(
    pytester: pytest.Pytester, tmp_path_factory: pytest.TempPathFactory, forked_pytest: ForkedPytest
) -> Project:
    """A fresh project that really loads servers, for tests that are about just that."""
    return Project(pytester.path, tmp_path_factory, forked_pytest, script=None)


@pytest.fixture
def checkout(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """The scripted project as a git repository."""
    return Checkout(project, tmp_path_factory.mktemp("temporary"))


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory, forked_pytest: ForkedPytest) -> Path:
    """A baseline file, recorded once for all tests that only need one to start from."""
    project = Project(tmp_path_factory.mktemp("recorded"), tmp_path_factory, forked_pytest, script=Script())
    result = project.run("--baseline-update")
    assert result.ret == pytest.ExitCode.OK, text_of(result)
    return project.baseline
