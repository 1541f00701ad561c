"""The run on a strange machine, without one: what is recorded, wherever it is cut, and what is made of it."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_gpuserve.store.baseline import read, write
from tests.card.read import read_run
from tests.card.records import Record, Records, log_of, read_records, unpack
from tests.card.run import run_step
from tests.card.steps import INSTALL_SECONDS, MANIFEST, PASSED, ROOT, STEPS, Step
from tests.fakes.children.toolkit import eventually
from tests.support.builders import entry, session

THREE = """
import os
from tests.card import run
from tests.card.steps import Step
leave = 'import sys, pathlib; pathlib.Path(sys.argv[1], sys.argv[2]).open("a").write("ran "); print("at it")'
codes = {"a": leave, "b": leave + f"; import time; time.sleep({os.environ['OF_B']})", "c": "raise SystemExit(1)"}
run.STEPS = tuple(Step(n, 60, ("{python}", "-uc", code, "{kept}", n)) for n, code in codes.items())
raise SystemExit(run.main())
"""


def empty_pack(folder: Path) -> Path:
    """A pack of nothing, for a machine whose Python is this one."""
    folder.mkdir()
    version = ".".join(platform.python_version_tuple()[:2])
    (folder / MANIFEST).write_text(json.dumps({"python": version, "pins": {"main": [], "triton": []}}))
    return folder


def brought(out: Path, folder: Path) -> Path:
    """Unpack all that a run has brought back until now."""
    kept = folder / "brought"
    shutil.rmtree(kept, ignore_errors=True)
    unpack(out, kept)
    return kept


def test_a_cut_run_loses_nothing_and_is_gone_on_with(tmp_path: Path) -> None:
    """After SIGKILL in step b its log and files are there, and a second run begins with b."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "__init__.py").touch()
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho asked for $1\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    out = tmp_path / "out"
    command = [sys.executable, "-c", THREE, f"--out={out}", f"--pack={empty_pack(tmp_path / 'pack')}"]
    variables = {**os.environ, "PYTHONPATH": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}", "OF_B": "60"}
    with subprocess.Popen(command, cwd=ROOT, env=variables) as process:
        eventually(lambda: "b" in read_records(brought(out, tmp_path)), "b is under way", seconds=30)
        eventually(lambda: log_of(brought(out, tmp_path), "b").read_text() == "at it\n", "b is at it", seconds=30)
        process.kill()
    kept = brought(out, tmp_path)
    outcomes = {name: record.outcome for name, record in read_records(kept).items()}
    assert (outcomes["a"], outcomes["b"]) == ("passed", "cut")
    assert log_of(kept, "a").read_text() == "at it\n"
    variables["OF_B"] = "0"
    assert subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode == 1
    kept = brought(out, tmp_path)
    outcomes = {name: record.outcome for name, record in read_records(kept).items()}
    assert (outcomes["a"], outcomes["b"], outcomes["c"]) == ("passed", "passed", "failed")
    assert ((kept / "a").read_text(), (kept / "b").read_text()) == ("ran ", "ran ran ")
    assert {*log_of(kept, "dmon").read_text().splitlines()} == {"asked for dmon"}
    assert len(list(out.iterdir())) <= 8
    assert not (tmp_path / "pack" / "work").exists()


def test_steps_fit_into_nine_minutes() -> None:
    """Each has a name of its own; those that are no spare ones have ended by then, whatever they do."""
    assert len({step.name for step in STEPS}) == len(STEPS)
    assert INSTALL_SECONDS + sum(step.seconds for step in STEPS if not step.spare) <= 540


@pytest.mark.parametrize(
    ("code", "seconds", "told", "outcome"),
    [
        ("print('REGRESSED'); raise SystemExit(1)", 30, "REGRESSED", "passed"),
        ("print('MISSING'); raise SystemExit(1)", 30, "REGRESSED", "failed"),
        ("print('REGRESSED')", 30, "REGRESSED", "failed"),
        ("print('9 skipped'); raise SystemExit(1)", 30, PASSED, "skipped"),
        ("import subprocess; subprocess.run(['sleep', '600'])", 1, "", "overran"),
        ("import time\ntry: time.sleep(600)\nfinally: print('failures')", 1, "failures", "overran"),
    ],
)
def test_a_step_passes_by_what_it_says(tmp_path: Path, code: str, seconds: float, told: str, outcome: str) -> None:
    """A step passes by its status and words, not by skips; one that overran says what it found, and leaves nothing."""
    step = Step("gate", 30, ("{python}", "-c", code), status=1, told=told)
    records = Records(tmp_path / "kept", tmp_path / "out")
    assert run_step(step, {"python": sys.executable}, tmp_path, seconds, records).outcome == outcome
    assert outcome != "overran" or told in log_of(tmp_path / "kept", "gate").read_text()


def test_what_was_recorded_takes_the_place_of_what_is_there(tmp_path: Path) -> None:
    """Tables are printed, and the end of a failed step's log."""
    records, file = Records(tmp_path / "kept", tmp_path / "out"), Path("cpu", "x", "test_y.json")
    old, new = (entry(session(at=f"2025-01-0{day}T03:04:05+00:00")) for day in (1, 2))
    write(tmp_path / "baselines" / file, {"test_z": old, "other": old})
    write(tmp_path / "kept" / "baselines" / file, {"test_z": new})
    (tmp_path / "kept" / "record.md").write_text("| a table |")
    records.begin("record").write_text("a line\n" * 50 + "the last line")
    records.add(Record("record", "failed", why="exit code 1"))
    lines = read_run(brought(tmp_path / "out", tmp_path), tmp_path / "baselines")
    stored = {name: each.entry for name, each in read(tmp_path / "baselines" / file).items()}
    assert stored == {"test_z": new, "other": old}
    assert lines[1:3] == ["\nrecord.md\n| a table |", "record: failed in 0.0 s exit code 1"]
    assert lines[3:-1] == ["    a line"] * 39 + ["    the last line"]
