"""The run on a strange machine, rehearsed without a card: no network, an empty environment, and the fake NVML."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.card.groups import EXTRAS, MANIFEST, ROOT
from tests.card.pack import shrink
from tests.card.records import FILES, LOGS, RESULTS, Record, Writer, read_records, unpack_files
from tests.card.run import run_step
from tests.card.steps import PASSED, STEPS, Step
from tests.card.wheel_files import wheel
from tests.fakes.nvml.cards import H100_PCIE, Script, write

if TYPE_CHECKING:
    from collections.abc import Sequence

SECONDS = 300.0


@dataclass(frozen=True)
class Rehearsal:
    """A run that has ended: its exit status, its records by their names, and where they are."""

    status: int
    records: dict[str, Record]
    folder: Path


def rehearse(folder: Path, library: Path, steps: Sequence[str], *options: str) -> Rehearsal:
    """Run steps as on a strange machine, of which this interpreter is the Python."""
    if subprocess.run(["unshare", "-rn", "true"], check=False, capture_output=True).returncode:
        pytest.skip("no network namespace can be made here: unshare -rn")
    nvml = write(Script((H100_PCIE,)), folder, library=library)
    variables = [f"{name}={nvml[name]}" for name in ("LD_LIBRARY_PATH", "FAKE_NVML_SCRIPT")]
    command = [sys.executable, "-m", "tests.card.run", f"--out={folder / 'out'}", *options]
    command += [f"--step={name}" for name in steps]
    inside = ["sh", "-c", 'ip link set lo up && exec env -i "$@"', "sh", *variables]
    log = folder / "log"
    # Servers make Unix sockets there, whose paths must be short.
    with log.open("w") as output, tempfile.TemporaryDirectory(dir="/tmp") as temp:
        done = subprocess.run(
            ["unshare", "-rn", *inside, f"TMPDIR={temp}", *command],
            cwd=ROOT,
            stdout=output,
            stderr=output,
            timeout=SECONDS,
            check=False,
        )
        assert list(Path(temp).glob("gpuserve-card-*")) == []
    records = read_records(folder / "out")
    assert [f"{record.name}: {record.outcome}" for record in records] == [
        line.partition(" in ")[0] for line in log.read_text().splitlines()
    ]
    return Rehearsal(done.returncode, {record.name: record for record in records}, folder / "out")


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    """A pack of one small wheel for the first group, and of one that is not there for another."""
    folder = tmp_path / "pack"
    folder.mkdir()
    shrink(wheel(tmp_path, "gpuserve_probe"), folder / "gpuserve_probe-1.0-py3-none-any.whl", ["3.11"])
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    pins = {"core": ["gpuserve-probe==1.0"], "litserve": ["gpuserve-missing==1.0"]}
    (folder / MANIFEST).write_text(json.dumps({"pythons": {version: pins}, "left_out": {}}))
    return folder


def test_a_run_without_a_card(tmp_path: Path, library: Path, pack: Path) -> None:
    """Each step's result is there, whether it passed, failed or was not tried; a second run takes over what passed.

    What the machine has is there, too. The wheel is installed on top of this interpreter's packages, of a virtual
    environment. NVML's functions are asked, each with its cost.
    """
    steps = ("doctor", "nvml", "smoke-catdog", "clocks")
    run = rehearse(tmp_path, library, steps, "--minutes=4", f"--pack={pack}", "--gpu=cpu")
    outcomes = {name: (record.outcome, record.why) for name, record in run.records.items()}
    assert outcomes == {
        "machine": ("passed", ""),
        "install core": ("passed", ""),
        "install litserve": ("failed", "pip ended with 1"),
        "doctor": ("passed", ""),
        "nvml": ("passed", ""),
        "smoke-catdog": ("skipped", "litserve could not be installed: pip ended with 1"),
        "clocks": ("skipped", "--may-change-settings was not given"),
    }
    assert run.status == 1
    assert run.records["machine"].facts["executable"] == sys.executable
    assert "NVIDIA H100 PCIe" in run.records["doctor"].tail or "H100-PCIe" in run.records["doctor"].tail
    logs = (run.folder / LOGS).read_text()
    assert "nvmlDeviceGetTotalEnergyConsumption" in logs
    assert "gpuserve-probe-1.0" in logs
    assert len(list(run.folder.iterdir())) <= 8
    (tmp_path / "again").mkdir()
    options = ("--minutes=1", f"--pack={tmp_path}", f"--after={run.folder}")
    again = rehearse(tmp_path / "again", library, ["doctor"], *options)
    assert list(again.records) == ["machine", "doctor"]
    assert again.records["doctor"] == run.records["doctor"]


@pytest.mark.slow
def test_a_smoke_test_of_each_suite(tmp_path: Path, library: Path) -> None:
    """Each suite's servers start and answer in an empty environment without a network."""
    steps = [step.name for step in STEPS if step.name.startswith("smoke-")]
    run = rehearse(tmp_path, library, steps, "--minutes=4", f"--pack={tmp_path}", "--gpu=cpu")
    triton = {step.name for step in STEPS if step.needs == "triton" and find_spec("pytriton") is None}
    failed = {name: record.tail for name, record in run.records.items() if record.outcome != "passed"}
    assert {name: tail for name, tail in failed.items() if name not in triton} == {}


def test_a_step_that_overruns_is_ended_with_its_tree(tmp_path: Path) -> None:
    """It is told as such, with the end of its log; nothing that it started is left, which every test here checks."""
    code = "import subprocess, sys; print('begun', flush=True); subprocess.run(['sleep', '600'])"
    step = Step("long", 1.0, ("{python}", "-c", code))
    writer = Writer(tmp_path / "out", tmp_path / "kept")
    record = run_step(step, writer, python=sys.executable, gpu="cpu", work=tmp_path, left_seconds=60)
    assert (record.outcome, record.why, record.tail) == ("overran", "it was ended after 1 s", "begun")


@pytest.mark.parametrize(
    ("code", "step", "outcome"),
    [
        ("print('REGRESSED'); raise SystemExit(1)", {"status": 1, "told": "REGRESSED"}, "passed"),
        ("print('MISSING'); raise SystemExit(1)", {"status": 1, "told": "REGRESSED"}, "failed"),
        ("print('REGRESSED')", {"status": 1, "told": "REGRESSED"}, "failed"),
        ("print('9 skipped')", {"told": PASSED}, "failed"),
    ],
)
def test_a_step_passes_by_what_it_says(tmp_path: Path, code: str, step: dict[str, object], outcome: str) -> None:
    """What has to be found to be slower passes by that verdict alone, and tests not by being skipped."""
    writer = Writer(tmp_path / "out", tmp_path / "kept")
    asked = Step("gate", 30.0, ("{python}", "-c", code), **step)  # type: ignore[arg-type]  # its fields
    assert run_step(asked, writer, python=sys.executable, gpu="cpu", work=tmp_path, left_seconds=60).outcome == outcome


def test_steps_need_groups_that_there_are() -> None:
    """Each step has a name of its own, which may be that of a file, and a group that is packed."""
    names = [step.name for step in STEPS]
    assert len(set(names)) == len(names)
    assert all(name.replace("-", "").isalnum() for name in names)
    assert {step.needs for step in STEPS} <= set(EXTRAS)


RECORDS = (
    Record("one", "passed", 1.5),
    Record("two", "failed", why="it fell", tail="a\nb"),
    Record("three", "skipped"),
)


@given(cut=st.integers(min_value=0))
def test_a_run_that_is_cut_off_loses_nothing_finished(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    """Wherever the file of results ends, all whole lines are read, and no other."""
    folder = tmp_path_factory.mktemp("cut")
    writer = Writer(folder, folder / "kept")
    for record in RECORDS:
        writer.add(record)
    data = (folder / RESULTS).read_bytes()
    data = data[: cut % (len(data) + 1)]
    (folder / RESULTS).write_bytes(data)
    assert read_records(folder) == list(RECORDS[: data.count(b"\n")])


def test_what_steps_leave_comes_back(tmp_path: Path) -> None:
    """Files are packed after each step, but for large ones; a long log keeps its begin and its end."""
    kept = tmp_path / "kept"
    writer = Writer(tmp_path / "out", kept)
    (kept / "baselines").mkdir(parents=True)
    (kept / "baselines" / "a.json").write_text("{}")
    (kept / "large").write_bytes(os.urandom(1 << 21))
    writer.log.write_text(f"begin{'x' * (1 << 20)}end")
    writer.add(RECORDS[0])
    unpack_files(tmp_path / "out", tmp_path / "unpacked")
    assert [path.name for path in (tmp_path / "unpacked").rglob("*") if path.is_file()] == ["a.json"]
    logs = (tmp_path / "out" / LOGS).read_text()
    assert "begin" in logs
    assert "end" in logs
    assert len(logs) < 1 << 20
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted([RESULTS, LOGS, FILES])
