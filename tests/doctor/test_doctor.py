"""The doctor: the judgement of each value that can disturb a measurement, and the command on scripted machines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuserve.device.gpu import Gpu
from pytest_gpuserve.device.gpu_probe import GpuProcess, GpuSample
from pytest_gpuserve.device.host import Host
from pytest_gpuserve.device.lock import DeviceLock
from pytest_gpuserve.doctor.checks import GIB, MIB, GpuState, HostState, Level, gpu_checks, host_checks
from pytest_gpuserve.doctor.look import lock_check
from tests.fakes.nvml import gpus
from tests.fakes.nvml.gpus import Error, Process, Script, fake_environment, second

OK, UNKNOWN, WARNING, PREVENTS = Level.OK, Level.UNKNOWN, Level.WARNING, Level.PREVENTS

HOST = Host("0123456789ab", "AMD EPYC", 16, 64 * GIB, "6.1.0", "Debian GNU/Linux 12", 1, "performance")
GOOD_HOST = HostState(
    host=HOST, core_limit=inf, foreign_cores=0.1, stolen_cores=0.0, shared_memory_bytes=31 * GIB, temp_bytes=100 * GIB
)
UUID = "GPU-00000000-1111-2222-3333-444444444444"
GPU = Gpu(
    index=3,
    product="Tesla T4",
    name="T4",
    uuid=UUID,
    memory_bytes=15 * GIB,
    driver="570.1",
    cuda="12.8",
    power_limit_watts=70.0,
    max_sm_clock_mhz=1590,
    power_default_watts=70.0,
    application_clock_mhz=1500,
    application_clocks_set=True,
    ecc=True,
    persistence=True,
)
CALM: dict[str, Any] = {
    "utilisation": 0.0,
    "memory_bytes": 450 * MIB,
    "sm_clock_mhz": 1500,
    "clock_reasons": 0,
    "uncorrected_ecc": 0,
    "processes": (),
}
STRANGER = GpuProcess(4242, "python", 800 * MIB)


def gpu(*, sees_all: bool = True, **changes: Any) -> GpuState:  # noqa: ANN401 -- fields of several types
    """A good GPU whose facts, or whose second sample, have changes."""
    facts = {name: value for name, value in changes.items() if name in Gpu.__dataclass_fields__}
    sample = {name: value for name, value in changes.items() if name not in facts}
    samples = (GpuSample(0, **CALM), GpuSample(1, **{**CALM, **sample}))
    return GpuState(gpu=replace(GPU, **facts), samples=samples, sees_all=sees_all)


def test_a_good_machine_is_ok() -> None:
    """A good machine with a good GPU has no check that warns, explains or advises."""
    told = [*host_checks(GOOD_HOST), *gpu_checks(gpu())]
    assert {(each.level, each.effect, each.remedy) for each in told} == {(OK, "", "")}


def test_a_machine_that_tells_nothing_is_unknown() -> None:
    """A value that could not be read is never OK, and without a folder for temporary files nothing is measured."""
    levels = {each.what: each.level for each in host_checks(HostState())}
    assert levels.pop("temporary files") is PREVENTS
    assert set(levels.values()) == {UNKNOWN}
    facts = ("power_limit_watts", "power_default_watts", "persistence", "application_clocks_set")
    nothing: dict[str, Any] = dict.fromkeys(facts)
    blind = replace(GPU, **nothing)
    assert {each.level for each in gpu_checks(GpuState(gpu=blind))} == {UNKNOWN}


@pytest.mark.parametrize(
    ("what", "changes", "level", "found"),
    [
        ("identity", {"host": None, "problem": "GPUSERVE_HOST is bad"}, PREVENTS, "GPUSERVE_HOST"),
        ("governor", {"host": replace(HOST, governor="powersave")}, WARNING, "powersave"),
        ("cores", {"host": replace(HOST, cores=3)}, WARNING, "3"),
        ("time quota", {"core_limit": 1.5}, WARNING, "1.5 cores"),
        ("other processes", {"foreign_cores": 0.9}, WARNING, "0.90 cores"),
        ("stolen time", {"stolen_cores": 0.17}, WARNING, "0.17 cores"),
        ("shared memory", {"shared_memory_bytes": 64 * MIB}, WARNING, "64 MiB"),
        ("temporary files", {"temp_bytes": 0}, PREVENTS, "0 MiB"),
        ("temporary files", {"temp_bytes": 500 * MIB}, WARNING, "500 MiB"),
    ],
)
def test_a_check_of_the_host(what: str, changes: dict[str, Any], level: Level, found: str) -> None:
    """One bad value of the host gives its level, the value and its effect."""
    (check,) = [each for each in host_checks(replace(GOOD_HOST, **changes)) if each.what == what]
    assert check.level is level
    assert found in check.found
    assert check.effect


@pytest.mark.parametrize(
    ("what", "now", "level", "found", "remedy"),
    [
        ("processes", gpu(processes=(STRANGER,)), PREVENTS, "python (pid 4242)", "nvidia-smi -i 3"),
        ("processes", gpu(sees_all=False, processes=(STRANGER,)), PREVENTS, "outside this container (pid 4242)", ""),
        ("processes", gpu(utilisation=0.5), WARNING, "50 % busy", "nvidia-smi -i 3"),
        ("processes", gpu(sees_all=False), UNKNOWN, "none visible from this container", "--pid=host"),
        ("throttling", gpu(clock_reasons=0x60), WARNING, "HW_THERMAL_SLOWDOWN", "-q -d PERFORMANCE"),
        ("throttling", gpu(clock_reasons=0x4), WARNING, "power limit", ""),
        ("clocks", gpu(clock_reasons=1, application_clocks_set=False), WARNING, "not locked", "--lock-gpu-clocks=1500"),
        ("clocks", gpu(application_clocks_set=False), UNKNOWN, "", "--lock-gpu-clocks=1500"),
        ("power limit", gpu(power_limit_watts=35.0), WARNING, "35 W of 70 W", "--power-limit=70"),
        ("persistence mode", gpu(persistence=False), WARNING, "off", "-pm 1"),
        ("ECC errors", gpu(uncorrected_ecc=2), WARNING, "2 uncorrected", "ROW_REMAPPER"),
        ("NVML", replace(gpu(), problem="GPU is lost"), PREVENTS, "GPU is lost", "dmesg"),
    ],
)
def test_a_check_of_a_gpu(what: str, now: GpuState, level: Level, found: str, remedy: str) -> None:
    """One bad value of a GPU gives its level, the value, its effect and the command that helps."""
    (check,) = [each for each in gpu_checks(now) if each.what == what]
    assert (check.level, check.subject) == (level, UUID)
    assert found in check.found
    assert remedy in check.remedy
    assert check.effect


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


def test_reading_a_lock_disturbs_nobody(tmp_path: Path) -> None:
    """A held lock is told with its session, which still has it; a free one leaves no file; a link is not followed."""
    assert lock_check("cpu", folder=tmp_path).found == "free"
    assert list(tmp_path.iterdir()) == []
    lock = DeviceLock("GPU-1", folder=tmp_path)
    with lock.acquire(wait_seconds=0, on_wait=lambda *_: None):
        held = lock_check("GPU-1", folder=tmp_path)
        assert (held.level, held.subject) == (Level.WARNING, "GPU-1")
        assert f"pid {os.getpid()} (" in held.found
        assert lock.held
    assert lock_check("GPU-1", folder=tmp_path).level is Level.OK
    (tmp_path / "pytest-gpuserve-cpu.lock").symlink_to(tmp_path / "elsewhere")
    assert lock_check("cpu", folder=tmp_path).level is Level.UNKNOWN
