"""``pytest --gpuserve-selftest``: a short one from end to end, cut short, and mistakes in its options."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from pytest_gpuserve.device import DeviceLock
from pytest_gpuserve.plugin.options import SELFTEST_MINUTES, read_settings
from tests.fakes.children.toolkit import eventually
from tests.fakes.own_locks import LOCKS_VARIABLE
from tests.fakes.terminal import Terminal
from tests.plugin.conftest import says_no_traceback, text_of

if TYPE_CHECKING:
    from tests.plugin.conftest import Project


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files of the runs of a test."""
    folder = tmp_path / "t"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def left_behind(folder: Path) -> list[str]:
    """Processes whose folder for temporary files this is, and what lies in it."""
    found = [str(path) for path in folder.iterdir()]
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get("TMPDIR") == str(folder):
                found.append(str(process))
    return found


def test_a_short_one(real_project: Project, own_folder: Path) -> None:
    """It finds wrong answers, collects nothing, fails for what was not reached in the time, and leaves nothing behind.

    The first comparison is made however short the time is.
    """
    real_project.test_file.write_text("raise RuntimeError('this file is collected')")
    result = real_project.run("--gpu=cpu", "--gpuserve-selftest=0.01", "--gpuserve-budget=10")
    text = text_of(result)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert says_no_traceback(result)
    assert "this file is collected" not in text
    assert re.search(r"7 comparisons of two small servers on \d+ cores", text)
    assert re.search(r"^1/7 wrong answers: INVALID, .+ \(1 made, .+ left\)$", text, re.MULTILINE)
    assert re.search(r"^ +wrong answers +1/1 +0 +0 +0 +1 +3 \.\. 100 %$", text, re.MULTILINE)
    assert "  wrong answers: " not in text
    assert re.search(r"^not reached in the time: identical 1, .*tail only 1", text, re.MULTILINE)
    assert "self-test FAILED" in text
    assert "self-test passed" not in text
    assert left_behind(own_folder) == []


def test_ctrl_c_on_a_terminal(real_project: Project, own_folder: Path) -> None:
    """One line says how it gets on; cut short it prints what is known, decides nothing and leaves nothing behind."""
    options = ("--gpu=cpu", "--gpuserve-selftest=5", "--gpuserve-budget=10")
    with Terminal() as terminal:
        run = real_project.start(*options, terminal=terminal.path, PY_COLORS="1")
        third = re.compile(r"\r\x1b\[K3/14 20 % slower  .+/s")
        try:
            eventually(lambda: run.ended or bool(third.search(terminal.text)), "the third one is loaded", seconds=150)
            run.interrupt()
            assert run.result(60).ret == pytest.ExitCode.INTERRUPTED
        finally:
            run.kill()
    text = terminal.text
    assert re.search(r"\r\x1b\[K1/14 wrong answers  ", text)
    assert "1 made," not in text
    assert re.search(r"\r\x1b\[K2/14 identical  \S+/s  p99 ", text)
    assert re.search(r"wrong answers +1/2 ", text)
    assert re.search(r"^ +identical +1/2 ", text, re.MULTILINE)
    assert "not reached before Ctrl-C: wrong answers 1, identical 1, 20 % slower 2" in text
    assert "self-test interrupted: not decided" in text
    assert "Traceback" not in text
    assert left_behind(own_folder) == []


LENGTH = "--gpuserve-selftest={}: it is a number of minutes"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        *((("--gpuserve-selftest=" + text,), LENGTH.format(text)) for text in ("soon", "0", "-1", "nan", "inf", "")),
        (("suites",), f"{LENGTH.format('suites')} above 0, and no test"),
        (("--baseline-update",), "does not go together with an update of baselines"),
        (("--baseline-update-new",), "does not go together with an update of baselines"),
        (("--against=HEAD",), "does not go together with --against"),
        (("-o", "against=HEAD"), "-o against="),
        ((f"--against-python={sys.executable}",), "does not go together with --against"),
        (("--collect-only",), "does not go together with --collect-only"),
        (
            ("--gpuserve-json=a", "--gpuserve-benchmark-json=b"),
            "runs no tests, so it does not go together with --gpuserve-json and --gpuserve-benchmark-json",
        ),
        # Workers would measure each other.
        (("-p", "xdist.plugin", "-n2"), "cannot measure under pytest-xdist: run it with -n0"),
        (("--gpu=H100",), "H100"),
    ],
)
def test_what_does_not_go_with_it_is_exit_4(project: Project, arguments: tuple[str, ...], named: str) -> None:
    """Told at once, before any server is started."""
    result = project.run("--gpuserve-selftest", *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert named in text_of(result)
    assert says_no_traceback(result)


def test_its_length(pytester: pytest.Pytester, project: Project) -> None:
    """A default for the option alone, else what is given; without it nothing of it is imported."""
    assert read_settings(pytester.parseconfig()).selftest_minutes is None
    assert read_settings(pytester.parseconfig("--gpuserve-selftest")).selftest_minutes == float(SELFTEST_MINUTES)
    assert read_settings(pytester.parseconfig("--gpuserve-selftest=2.5")).selftest_minutes == 2.5
    project.test_file.write_text(
        "import sys\ndef test_it():\n    assert not [name for name in sys.modules if 'selftest' in name]\n"
    )
    project.run().assert_outcomes(passed=1)


def test_it_waits_for_the_device(project: Project) -> None:
    """Where another process measures, it says on whom it waits, gives up when it is told to, and measures nothing."""
    project.ini(gpuserve_lock_wait="0.25")
    folder = Path(project.environment[LOCKS_VARIABLE] or "")
    lock = DeviceLock("cpu", command="pytest the-other-suite", folder=folder)
    with lock.acquire(wait_seconds=60, on_wait=lambda holder, seconds: None):
        result = project.run("--gpu=cpu", "--gpuserve-selftest", seconds=60)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "waiting for the device: process" in text_of(result)
    assert "pytest the-other-suite" in text_of(result)
    assert "comparisons of two small servers" not in text_of(result)
    assert says_no_traceback(result)


def test_it_keeps_the_results_of_tests(project: Project) -> None:
    """It writes none, so it removes none that an older run wrote where the ini file says, nor minds where that is."""
    project.ini(gpuserve_json="out.json", gpuserve_report="gone/out.html")
    written = project.path / "out.json"
    written.write_text("an older run's")
    # Without a terminal it ends before it measures.
    result = project.run("--gpuserve-selftest", "-p", "no:terminal", seconds=30)
    assert "--gpuserve-selftest has nowhere to print its result" in text_of(result)
    assert written.read_text() == "an older run's"
