"""The command on this machine, and on machines whose GPUs are scripted in the fake of NVML."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.device import DeviceLock
from pytest_gpuserve.doctor import look as looking
from pytest_gpuserve.doctor.checks import Level
from pytest_gpuserve.doctor.look import lock_check, look
from tests.fakes.children.toolkit import busy
from tests.fakes.nvml import gpus
from tests.fakes.nvml.build import fake_environment
from tests.fakes.nvml.gpus import Error, Process, Script, second

if TYPE_CHECKING:
    from pathlib import Path


def doctor(*options: str, **environ: str) -> tuple[int, str]:
    """Run the command; its exit status and what it prints. A traceback is a failure."""
    command, env = [sys.executable, "-m", "pytest_gpuserve.doctor", *options], {**os.environ, **environ}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=110, check=False)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout + done.stderr


def test_this_machine_is_read() -> None:
    """The JSON names each server that is installed, and the exit status says whether anything can be measured."""
    status, text = doctor("--json")
    told = json.loads(text)
    assert set(told) == {"can_measure", "devices", "host", "gpus", "checks", "servers"}
    assert status == (0 if told["can_measure"] else 1)
    assert told["host"]["cores"] == len(os.sched_getaffinity(0))
    pytest.importorskip("mosec")
    assert told["servers"][0]["what"] == "mosec_server"
    assert told["servers"][0]["level"] == "ok"


def test_an_interpreter_without_servers_can_measure_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any known server, the doctor says what installs each; a path without an interpreter is status 2."""
    monkeypatch.setenv("PATH", "")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path)], check=True, timeout=120)
    status, text = doctor(f"--python={tmp_path}/bin/python")
    assert status == 0, text
    assert f"help: {tmp_path}/bin/python -m pip install 'pytest-gpuserve[mosec]'" in text
    status, text = doctor(f"--python={tmp_path}/nothing")
    assert status == 2
    assert "the file does not exist" in text


@pytest.mark.parametrize(("name", "status"), [("H200", 0), ("T4", 1), ("A100", 1)])
def test_the_device_that_is_asked_for_decides(library: Path, tmp_path: Path, name: str, status: int) -> None:
    """--gpu=NAME succeeds only for a GPU that is here and free, although `cpu` would be left."""
    used = replace(second(gpus.T4), uuid=gpus.T4.uuid, processes=(Process(1, None),))
    environment = gpus.write(Script((gpus.H200, used)), tmp_path, library=library)
    found, text = doctor(f"--gpu={name}", **environment)
    assert found == status, text
    assert text.splitlines()[-1].startswith("can be" if status == 0 else "no device can be measured")


def test_a_driver_that_does_not_start_is_not_a_machine_without_a_gpu(library: Path, tmp_path: Path) -> None:
    """The report has NVML's own words, and `cpu` can still be measured."""
    script = Script((gpus.T4,), (Error("nvmlInitWithFlags", 18),))
    _, text = doctor("--json", **gpus.write(script, tmp_path, library=library))
    (check,) = [each for each in json.loads(text)["checks"] if each["subject"] == "driver"]
    assert (check["level"], check["found"]) == ("prevents", "NVML said: Driver/library version mismatch")
    _, text = doctor("--json", **fake_environment(library))
    assert not [each for each in json.loads(text)["checks"] if each["subject"] == "driver"]


def test_a_busy_process_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program's endless loop is told with name and pid, and without its arguments."""
    monkeypatch.setattr(looking, "MOST_PROCESSES", 1000)
    monkeypatch.setattr(looking, "LEAST_CORES", 0.0)
    with busy("--token=secret") as pid:
        host, _ = look((), {})
    assert host.cpu is not None
    assert any(f"(pid {pid})" in each for each in host.cpu.processes)
    assert not any(f"(pid {os.getpid()})" in each or "secret" in each for each in host.cpu.processes)


def test_reading_a_lock_disturbs_nobody(tmp_path: Path) -> None:
    """A held lock is told with its session, which still has it; a free one leaves no file; a link is not followed."""
    assert lock_check("cpu", folder=tmp_path).found == "free"
    assert list(tmp_path.iterdir()) == []
    lock = DeviceLock("GPU-1", command="pytest other", folder=tmp_path)
    with lock.acquire(wait_seconds=0, on_wait=lambda *_: None):
        held = lock_check("GPU-1", folder=tmp_path)
        assert (held.level, held.subject) == (Level.WARNING, "GPU-1")
        assert "pytest other" in held.found
        assert lock.held
    assert lock_check("GPU-1", folder=tmp_path).level is Level.OK
    (tmp_path / "pytest-gpuserve-cpu.lock").symlink_to(tmp_path / "elsewhere")
    assert lock_check("cpu", folder=tmp_path).level is Level.UNKNOWN
