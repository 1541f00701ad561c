"""All kinds of servers under one small suite, as a user would run it: the same answers, and honest counters."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.doubling.spans import SPANS_VARIABLE
from tests.fakes.own_locks import LOCKS_VARIABLE, OWN_LOCKS
from tests.plugin.conftest import REPOSITORY, busy_machine
from tests.servers.triton_server import triton_python

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DOUBLING = REPOSITORY / "tests" / "fakes" / "doubling"
KINDS = ("mosec", "litserve", "pytriton", "triton", "torch", "command")

for library in ("mosec", "litserve", "torch"):
    pytest.importorskip(library)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project of the run."""
    return tmp_path_factory.mktemp("doubling")


@pytest.fixture(scope="module")
def results(folder: Path) -> dict[str, Mapping[str, Any]]:
    """What the suite's run wrote of each kind."""
    triton_python()
    shutil.copy(DOUBLING / "suite.py", folder / "test_doubling.py")
    (folder / "pytest.ini").write_text("[pytest]\ngpuserve_foreign_cores = 1000\n")
    environment = {name: value for name, value in os.environ.items() if name not in {"CI", "PYTEST_ADDOPTS"}}
    environment |= {"PYTHONPATH": str(REPOSITORY), "DOUBLING_FOLDER": str(DOUBLING)}
    environment |= {LOCKS_VARIABLE: str(folder), SPANS_VARIABLE: str(folder / "spans")}
    plugins = ("-p", "pytest_gpuserve.plugin", *OWN_LOCKS, "-p", "tests.fakes.doubling.spans")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, "--gpuserve-json=out.json"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert (folder / "out.json").exists(), done.stdout + done.stderr
    tests = json.loads((folder / "out.json").read_text())["tests"]
    found = {test["nodeid"].partition("[")[2].rstrip("]"): test for test in tests}
    assert set(found) == set(KINDS), done.stdout + done.stderr
    for test in found.values():
        assert test["run"], done.stdout + done.stderr
        if not busy_machine(test["run"]):
            assert test["outcome"] == "passed", done.stdout + done.stderr
    return found


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Each kind by itself."""
    name: str = request.param
    return name


@pytest.fixture
def run(results: dict[str, Mapping[str, Any]], kind: str) -> Mapping[str, Any]:
    """What was measured of it."""
    found: Mapping[str, Any] = results[kind]["run"]
    return found


def test_answers_are_the_same(run: Mapping[str, Any]) -> None:
    """Every answer of every kind was compared with twice its input, and none was wrong."""
    assert not [problem for problem in run["problems"] if "wrong" in problem]
    assert run["answers_checked"] == run["answers"] > 100


def test_the_batching_ratio_is_what_the_model_counts(run: Mapping[str, Any], folder: Path, kind: str) -> None:
    """Within 2 % of the model's own count of the same time, which knows nothing of any server."""
    lines = [line.split() for line in (folder / f"counts-{kind}").read_text().splitlines()]
    spans = [json.loads(line) for line in (folder / "spans").read_text().splitlines()]
    readings = [(span["begin"], span["end"]) for span in spans if span["test"].endswith(f"[{kind}]")]
    own = [int(size) for size, done in lines if any(begin <= float(done) < end for begin, end in readings)]
    # What is being executed at a reading may be on either side of it; a start has some ten readings.
    assert run["counters"]["executions"] == pytest.approx(len(own), rel=0.02, abs=2 * run["starts"])
    assert run["batching_ratio"] == pytest.approx(sum(own) / len(own), rel=0.02)


def test_counters_are_of_the_measured_windows_alone(run: Mapping[str, Any]) -> None:
    """The server's counts are those of the load, without warm-up; whatever else it counts goes with them."""
    counted = run["counters"]
    assert counted["items"] / counted["executions"] == pytest.approx(run["batching_ratio"], rel=1e-6)
    assert counted["items"] == pytest.approx(run["requests"], rel=0.1)
    assert counted["requests"] == pytest.approx(run["requests"], rel=0.1)
    sizes = {float(size): count for size, count in counted["batch_sizes"].items()}
    assert sum(sizes.values()) == counted["executions"]
    assert max(sizes) <= 8


def test_the_cold_start_is_told(run: Mapping[str, Any]) -> None:
    """Of each of the two starts, in seconds; its parts, where the server tells them, are no more than the whole."""
    # A load that a busy machine spoils ends its session with the first start.
    assert len(run["cold_start_seconds"]) == (1 if busy_machine(run) and run["starts"] == 1 else 2)
    for whole, parts in zip(run["cold_start_seconds"], run["cold_start_parts"], strict=True):
        assert whole > 0
        assert sum(parts.values()) <= whole


def test_settings_are_read_back(run: Mapping[str, Any], kind: str) -> None:
    """The batch limit is the server's own word, but for a command of which nothing is known."""
    settings = run["settings"]
    limits = [setting["used"] for name, setting in settings.items() if name.endswith("max_batch_size")]
    assert limits == ([] if kind == "command" else ["8"]), settings
    assert bool(settings) == (kind != "command")
