"""Effects of the plugin on a session: cheap when unused, alone on its device, without workers; and its parts."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gpuserve.device.lock import DeviceLock
from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.experiment.telemetry import TelemetrySource
from pytest_gpuserve.plugin import opening
from pytest_gpuserve.plugin.opening import Equipment
from pytest_gpuserve.plugin.options import read_settings
from tests.fakes.own_locks import LOCKS_VARIABLE
from tests.plugin.conftest import JSON, SERVER, Project, says_no_traceback, text_of

HEAVY = ("torch", "numpy", "httptools", "transformers", "mosec", "pynvml", "rich", "msgspec", "psutil")


IMPORTED = 14
"""Modules and folders of ours that every run of pytest imports."""


def test_an_unused_plugin_imports_little(real_project: Project) -> None:
    """A project that uses no fixture of ours imports no library that ours need, and so many modules of ours."""
    real_project.test_file.write_text("def test_plain(): pass\n")
    (real_project.path / "conftest.py").write_text(
        "import sys\n"
        "def pytest_unconfigure():\n"
        f"    print('HEAVY', sorted(set({HEAVY!r}) & set(sys.modules)))\n"
        "    print('OURS', sorted(name for name in sys.modules if name.startswith('pytest_gpuserve')))\n"
    )
    # Other plugins import what they like.
    others = ("tests.fakes.own_locks", "benchmark", "hypothesispytest", "xdist")
    result = real_project.run_anew("--collect-only", *(f"-pno:{name}" for name in others))
    assert result.ret == 0
    (heavy,) = re.findall(r"HEAVY (.*)", result.stdout.str())
    assert heavy == "[]"
    (ours,) = re.findall(r"OURS (.*)", result.stdout.str())
    assert len(ours.split(", ")) <= IMPORTED, ours


def test_measuring_under_xdist_is_refused(real_project: Project) -> None:
    """A measuring test fails with what to do instead, others run, with fixtures of our names too; none records."""
    real_project.test_file.write_text(real_project.test_file.read_text() + "\n\ndef test_device(device):\n    pass\n")
    real_project.test_file.with_name("test_own.py").write_text(
        "import pytest\n\n"
        "@pytest.fixture\ndef load():\n    return 1\n\n"
        "@pytest.fixture\ndef device():\n    return 2\n\n"
        "def test_own(load, device):\n    assert load + device == 3\n"
    )
    result = real_project.run_anew("-n2", "--baseline-update", JSON)
    result.assert_outcomes(passed=2, errors=1)
    assert text_of(result).count("run it with -n0, and one job on each GPU (CUDA_VISIBLE_DEVICES)") == 1
    assert not real_project.baseline.exists()
    assert not (real_project.path / "out.json").exists()
    assert says_no_traceback(result)


def test_measuring_without_assert_statements_is_refused(project: Project) -> None:
    """With python -O no comparison of a helper, or of a test that pytest does not rewrite, could fail."""
    project.environment["PYTHONOPTIMIZE"] = "1"
    result = project.run_anew("--assert=plain")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "run pytest without -O" in text_of(result)
    assert says_no_traceback(result)


def test_second_session_waits_says_on_whom_and_gives_up(project: Project) -> None:
    """While another process measures on the device, a session names it, waits as long as it says, and exits with 4."""
    project.ini(gpuserve_lock_wait="0.25")
    folder = Path(project.environment[LOCKS_VARIABLE] or "")
    lock = DeviceLock("cpu", folder=folder)
    with lock.acquire(wait_seconds=60, on_wait=lambda holder, seconds: None):
        result = project.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    text = text_of(result)
    assert f"pid {os.getpid()} (" in text
    assert "250 ms" in text
    assert says_no_traceback(result)


def test_mistakes_of_a_test_are_found(project: Project) -> None:
    """A comparison without its `assert` fails; so does a `load` that is requested too late for the lock."""
    project.write("run.throughput >= 1e9")
    result = project.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*no assert contains it*", "*REGRESSED: throughput*limit*"])
    project.test_file.write_text("def test_late(request):\n    request.getfixturevalue('load')\n")
    result = project.run()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "has to be among the arguments" in text_of(result)
    assert says_no_traceback(result)


UNNOTICED = """
import unittest

import pytest

class TestUnit(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def _measured(self, server, load):
        self.measured = load(server.post("/inference", body=b"fox"), concurrency=8)

    def test_method(self):
        self.measured.throughput >= 1e9

def test_end(server, load, request):
    run = load(server.post("/inference", body=b"fox"), concurrency=8)
    request.addfinalizer(lambda: run.throughput >= 1e9)

@pytest.fixture
def late(server, load):
    run = load(server.post("/inference", body=b"fox"), concurrency=8)
    yield
    assert run.throughput >= 1e9

def test_asserted_at_the_end(late):
    pass
"""


def test_a_failed_comparison_is_found_in_a_method_of_unittest_and_after_a_function(project: Project) -> None:
    """A failed comparison without `assert` fails a method of `unittest.TestCase`; after a test's end it is an error."""
    project.test_file.write_text(SERVER + UNNOTICED)
    result = project.run()
    result.assert_outcomes(failed=1, passed=2, errors=2)
    assert text_of(result).count("a comparison does not hold, but no assert contains it\nREGRESSED: throughput") == 2
    assert says_no_traceback(result)


NEVER: Any = None
"""In the place of what the test does not need."""


class Part:
    """Something that has to be given back, which tells its name then, and perhaps cannot be."""

    def __init__(self, name: str, ended: list[str], *, fails: bool = False) -> None:
        self.name, self.ended, self.fails = name, ended, fails

    def close(self) -> None:
        """Give it back."""
        self.ended.append(self.name)
        if self.fails:
            raise UsageProblem(f"{self.name} cannot be ended")

    release = close


def equipment(pytester: pytest.Pytester, **changes: Any) -> Equipment:  # noqa: ANN401 -- arguments of `Equipment`
    """Equipment of a session on ``cpu`` that does not measure, without pytest's cache."""
    config = pytester.parseconfig("--gpu=cpu")
    given = {"logged": NEVER, "note": pytest.fail, "make_room": NEVER, **changes}
    return Equipment(config, read_settings(config), measuring=False, **given)


def test_every_start_has_a_log_and_its_secrets_are_known(
    pytester: pytest.Pytester, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each start gets a numbered log and its secrets are known; before it, other servers make room."""
    logged: list[tuple[str, Mapping[str, str]]] = []

    def started(*_: object, log: Path, launched: Any, **__: object) -> AbstractContextManager[None]:  # noqa: ANN401 -- a callback
        launched({"PORT": "8000"})
        return nullcontext()

    monkeypatch.setattr(opening, "started", started)
    made = equipment(
        pytester,
        logged=lambda log, given: logged.append((log.name, given)),
        make_room=lambda: logged.append(("", {})),
    )
    made.temporary = tmp_path_factory
    start = made.starter(1.0)
    ask: Any = SimpleNamespace(headers={"Authorization": "Bearer hunter22", "Accept": "*/*"})
    for name in ("mosec", "my server/2"):
        start(SimpleNamespace(name=name), ask, None)
    given = {"PORT": "8000", "Authorization": "hunter22"}
    assert logged == [("", {}), ("001-mosec.log", given), ("", {}), ("002-my-server-2.log", given)]


def test_all_is_given_back_the_device_last(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """After any failure all parts end, the device's lock last and the sampler also if the engines fail."""
    ended: list[str] = []
    monkeypatch.setattr(TelemetrySource, "close", Part("telemetry_source", ended).close)
    made = equipment(pytester)
    parts: Any = [Part(name, ended, fails=name != "lock") for name in ("lock", "opponents", "engine")]
    made.lock, made.reference_builds, made.engine = parts
    with pytest.raises(UsageProblem, match="opponents cannot be ended"):
        made.close()
    assert ended == ["engine", "telemetry_source", "opponents", "lock"]
