"""The judgement of each value that can disturb a measurement."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from pytest_gpuserve.device.gpu import Gpu
from pytest_gpuserve.device.gpu_probe import GpuProcess, GpuSample
from pytest_gpuserve.device.host import Host
from pytest_gpuserve.doctor.checks import GIB, MIB, CpuUse, GpuState, HostState, Level, gpu_checks, host_checks

OK, UNKNOWN, WARNING, PREVENTS = Level.OK, Level.UNKNOWN, Level.WARNING, Level.PREVENTS

HOST = Host("0123456789ab", "AMD EPYC", 16, 64 * GIB, "6.1.0", "Debian GNU/Linux 12", 1, "performance")
GOOD_HOST = HostState(
    host=HOST, core_limit=inf, cpu=CpuUse(0.1, 0.0), shared_memory_bytes=31 * GIB, temp_bytes=100 * GIB
)
UUID = "GPU-00000000-1111-2222-3333-444444444444"
GPU = Gpu(
    index=3,
    product="Tesla T4",
    name="T4",
    uuid=UUID,
    pci_bus_id="00000000:3B:00.0",
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
        ("other processes", {"cpu": CpuUse(0.9, 0.0, ("cc1 (pid 7) 0.60",))}, WARNING, "cc1 (pid 7) 0.60"),
        ("stolen time", {"cpu": CpuUse(0.0, 0.17)}, WARNING, "0.17 cores"),
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
