"""Nothing is left of a real mosec whose pytest is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.servers.app import App
from pytest_gpuserve.servers.mosec import Mosec
from tests.fakes.children.toolkit import eventually
from tests.fakes.own_locks import LOCKS_VARIABLE, OWN_LOCKS
from tests.plugin.conftest import APP, REPOSITORY, TEST
from tests.servers.deployments import Starts
from tests.servers.processes import command_lines, descendants, end_and_look, listening

if TYPE_CHECKING:
    from collections.abc import Iterator

UP_SECONDS = 60.0


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose measurement takes so long that it is certainly killed in it."""
    folder = tmp_path / "suites" / "perf"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(APP.read_text())
    test = TEST.format(arguments={}, assertion="pass", expect='b"FOX"', marker="")
    (folder / "test_perf.py").write_text(test.replace("seconds=2,", "seconds=300,"))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for the project's temporary files, short enough for Unix sockets in it."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as folder:
        yield Path(folder)


def command(project: Path, temporary: Path) -> dict[str, Any]:
    """Arguments of ``Popen`` that run pytest in the project."""
    environment = {name: value for name, value in os.environ.items() if name not in {"CI", "PYTEST_ADDOPTS"}}
    environment |= {"PYTHONPATH": str(REPOSITORY), "TMPDIR": str(temporary), LOCKS_VARIABLE: str(project)}
    # To start other installed plugins takes a third of a run.
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    plugins = ("-p", "pytest_gpuserve.plugin", *OWN_LOCKS, "-p", "no:cacheprovider")
    return {"args": [sys.executable, "-m", "pytest", *plugins], "cwd": project, "env": environment}


@pytest.mark.parametrize(
    ("moment", "how"), [("start-up", signal.SIGINT), ("load", signal.SIGINT), ("load", signal.SIGKILL)]
)
def test_nothing_is_left_of_a_killed_pytest(project: Path, temporary: Path, moment: str, how: signal.Signals) -> None:
    """Five seconds after its end no process, port, shared memory or folder of pytest is left."""
    words = "app.py" if moment == "start-up" else "pytest_gpuserve.load.engine"
    null = subprocess.DEVNULL
    with subprocess.Popen(**command(project, temporary), stdout=null, stderr=null, start_new_session=True) as process:
        try:
            eventually(lambda: words in command_lines(descendants(process.pid)), f"pytest runs {words}", UP_SECONDS)
            if moment == "load":
                # The engine runs once the server has answered: now it is under load, all its workers are up.
                time.sleep(0.5)
                assert listening(descendants(process.pid))
            end_and_look(process, how, descendants(process.pid), temporary)
        finally:
            process.kill()


def test_a_long_temporary_folder_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A TMPDIR too long for mosec's sockets is an error with a remedy before mosec starts."""
    long = tmp_path / ("x" * 60)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    kind = Mosec(App("mosec_server", APP, "app.py"))
    with pytest.raises(ServerFailed, match="TMPDIR=/tmp"), Starts(tmp_path / "log").handle(kind).get("/").started():
        pass
    assert not (tmp_path / "log").read_text()
    assert not list(long.iterdir())
