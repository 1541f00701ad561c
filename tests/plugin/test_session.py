"""What the plugin is to a session: cheap when unused, alone on its device, under xdist on cards alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec

from pytest_gpuserve.store.baseline import render
from pytest_gpuserve.store.schema import Entry
from tests.fakes.own_locks import LOCKS_VARIABLE
from tests.plugin.conftest import REPOSITORY, says_no_traceback, text_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugin.conftest import Project

HEAVY = ("torch", "numpy", "httptools", "transformers", "mosec", "pynvml", "rich", "msgspec", "psutil")


HOLDER = """
import sys
from pathlib import Path
from pytest_gpuserve.device import DeviceLock

lock = DeviceLock("cpu", command="pytest the-other-suite", folder=Path(sys.argv[1]))
lock.acquire(wait_seconds=60, on_wait=lambda holder, seconds: None)
print("held", flush=True)
sys.stdin.read()
"""


def test_unused_plugin_imports_nothing_heavy(real_project: Project) -> None:
    """Collecting a project that uses no fixture of ours imports neither torch nor numpy nor httptools, nor the like."""
    real_project.test_file.write_text("def test_plain(): pass\n")
    (real_project.path / "conftest.py").write_text(
        "import sys\n"
        "def pytest_unconfigure():\n"
        f"    print('HEAVY', sorted(set({HEAVY!r}) & set(sys.modules)))\n"
        "    print('OURS', sorted(name for name in sys.modules if name.startswith('pytest_gpuserve')))\n"
    )
    # Other plugins import what they like.
    others = ("tests.fakes.own_locks", "benchmark", "hypothesispytest", "xdist")
    result = real_project.run("--collect-only", *(f"-pno:{name}" for name in others))
    assert result.ret == 0
    (heavy,) = re.findall(r"HEAVY (.*)", result.stdout.str())
    assert heavy == "[]"
    (ours,) = re.findall(r"OURS (.*)", result.stdout.str())
    assert "pytest_gpuserve.session" not in ours
    assert "pytest_gpuserve.load" not in ours


def test_measuring_under_xdist_is_refused(real_project: Project) -> None:
    """Under pytest-xdist a measuring test fails on `cpu` with what to do instead, and other tests run."""
    real_project.test_file.write_text(real_project.test_file.read_text() + "\n\ndef test_plain():\n    pass\n")
    result = real_project.run("-n", "1")
    result.assert_outcomes(passed=1, errors=1)
    assert "cannot run under pytest-xdist" in text_of(result)
    assert "-n0" in text_of(result)


def test_recording_under_xdist_is_refused(real_project: Project) -> None:
    """An update on `cpu` with workers is a usage error before anything runs."""
    result = real_project.run("-n", "1", "--baseline-update")
    assert result.ret == 4
    assert "-n0" in text_of(result)
    assert says_no_traceback(result)


def test_second_session_waits_says_on_whom_and_gives_up(project: Project) -> None:
    """While another process measures on the device, a session names it, waits as long as it says, and exits with 4."""
    project.ini(gpuserve_lock_wait="0.25")
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            HOLDER,
            project.environment[LOCKS_VARIABLE] or "",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"held\n"
        result = project.run()
    finally:
        holder.stdin.close()
        holder.wait(10)
        holder.stdout.close()
    assert result.ret == 4
    text = text_of(result)
    assert "pytest the-other-suite" in text
    assert str(holder.pid) in text
    assert "250 ms" in text
    assert says_no_traceback(result)


def _store_undecidable(project: Project, recorded: Path) -> None:
    """Store two sessions that are so far apart that nothing between them is worse or better."""
    project.store(recorded)
    file = json.loads(project.baseline.read_text())
    entry = file["entries"]["test_it"]
    for start in entry["sessions"][1]["starts"]:
        for window in start["windows"]:
            window["seconds"] *= 2
    stored = msgspec.convert(entry, Entry)
    project.baseline.write_text(render({"test_it": stored}))


def test_budget_ends_looking(project: Project, recorded: Path) -> None:
    """A comparison that is not decided within the budget is INCONCLUSIVE, says so, and skips where that was asked."""
    _store_undecidable(project, recorded)
    # Less than any session takes, scripted or not.
    small = "--gpuserve-budget=0.000001"
    result = project.run(small, "--gpuserve-json=out.json")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*INCONCLUSIVE: throughput*", "*budget*--gpuserve-budget=SECONDS*"])
    assert project.result()["run"]["sessions"] == 1
    skipped = project.run(small, "--on-inconclusive=skip", "-rs")
    skipped.assert_outcomes(skipped=1)
    assert "INCONCLUSIVE" in text_of(skipped)


def test_looking_ends_without_a_decision(project: Project, recorded: Path) -> None:
    """What cannot be decided is looked at six times where the budget allows it, and says that this was the last."""
    _store_undecidable(project, recorded)
    result = project.run("--gpuserve-json=out.json")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*INCONCLUSIVE: throughput*", "*not decided after 6 sessions*last look*"])
    assert project.result()["run"]["sessions"] == 6


def test_several_loads_of_a_test_have_entries_of_their_own(project: Project) -> None:
    """Loads of one test are told apart by their name, or by their number."""
    project.write(
        "assert run.throughput >= baseline.throughput\n"
        "    dog = server.post('/inference', body=b'dog', expect=b'DOG')\n"
        "    other = load(dog, concurrency=2, seconds=2, name='few')\n"
        "    assert other.throughput >= baseline.throughput"
    )
    project.ini(gpuserve_sessions="1")
    result = project.run("--baseline-update")
    result.assert_outcomes(passed=1)
    text = project.baseline.read_text()
    assert '"test_it":' in text
    assert '"test_it few":' in text


def test_a_forgotten_assert_is_found(project: Project) -> None:
    """A comparison that does not hold fails its test also where the `assert` before it was forgotten."""
    project.write("run.throughput >= 1e9")
    result = project.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*nothing asserted it*", "*REGRESSED: throughput*limit*"])


def test_what_is_skipped_hides_nothing(project: Project) -> None:
    """A missing baseline that skips lets the test go on: a limit that is broken further down still fails it."""
    project.write("assert run.throughput >= baseline.throughput\n    assert run.latency.p50 <= 1e-9")
    broken = project.run("--on-missing=skip")
    broken.assert_outcomes(failed=1)
    project.write("assert run.throughput >= baseline.throughput\n    assert run.latency.p50 <= 10.0")
    kept = project.run("--on-missing=skip", "-rs")
    kept.assert_outcomes(skipped=1)
    assert "MISSING" in text_of(kept)


def test_a_project_may_have_fixtures_of_our_names(real_project: Project) -> None:
    """A project's own `load` and `device` are its own: no session of ours is made, no lock, no refusal under xdist."""
    real_project.test_file.write_text(
        "import pytest\n\n"
        "@pytest.fixture\ndef load():\n    return 1\n\n"
        "@pytest.fixture\ndef device():\n    return 2\n\n"
        "def test_own(load, device):\n    assert load + device == 3\n"
    )
    result = real_project.run("-n", "1")
    result.assert_outcomes(passed=1)
    assert "gpuserve:" not in text_of(result)


def test_a_fixture_by_getfixturevalue_is_refused(project: Project) -> None:
    """Asked for too late to take the device's lock, `load` fails with the reason."""
    project.test_file.write_text("def test_late(request):\n    request.getfixturevalue('load')\n")
    result = project.run()
    assert result.ret == 1
    assert "has to stand among the arguments" in text_of(result)
    assert says_no_traceback(result)


def test_an_old_result_is_never_taken_for_a_new_one(project: Project) -> None:
    """A session that ends before it measures leaves no result of an earlier one behind."""
    (project.path / "out.json").write_text('{"schema": 1, "tests": []}')
    result = project.run("--gpu=T4", "--gpuserve-json=out.json")
    assert result.ret == 4
    assert not (project.path / "out.json").exists()
