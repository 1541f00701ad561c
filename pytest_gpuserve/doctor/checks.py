"""Judges what disturbs a measurement on this machine. Pure: no clock, no file, no driver."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.measure.conditions import SLOWDOWNS, rest_reasons, use_text

if TYPE_CHECKING:
    from pytest_gpuserve.device.gpu import Gpu
    from pytest_gpuserve.device.gpu_probe import GpuSample
    from pytest_gpuserve.device.host import Host


class Level(Enum):
    """The effect of a check's result on a measurement."""

    OK = "ok"
    UNKNOWN = "unknown"
    WARNING = "warning"
    PREVENTS = "prevents"


MACHINE: Final = "machine"  # the subject of a check that holds for every device


@dataclass(frozen=True, slots=True)
class Check:
    """A check for a disturbance of a measurement; its subject is the machine, ``cpu`` or the UUID of a GPU."""

    what: str
    level: Level
    found: str
    effect: str = ""
    remedy: str = ""
    subject: str = MACHINE


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """State of the machine.

    Pytest's reason to refuse it; its limit, the use by other programs and the stolen time in cores; free bytes.
    """

    host: Host | None = None
    problem: str = ""
    core_limit: float | None = None
    foreign_cores: float | None = None
    stolen_cores: float | None = None
    shared_memory_bytes: int | None = None
    temp_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """State of a GPU or MIG instance: samples a second apart, and whether foreign processes can be seen."""

    gpu: Gpu
    samples: tuple[GpuSample, ...] = ()
    sees_all: bool = True
    problem: str = ""


MIB: Final = 2**20
GIB: Final = 2**30

LEAST_CORES: Final = 4
MOST_FOREIGN_CORES: Final = 0.25
MOST_STOLEN_SHARE: Final = 0.01
LEAST_SHARED_BYTES: Final = 256 * MIB  # four times docker's default
LEAST_TEMP_BYTES: Final = GIB
FULL_BYTES: Final = 16 * MIB
POWER_TOLERANCE: Final = 0.98  # of the default power limit

GPU_IDLE: Final = 0x1
POWER_CAP: Final = 0x4  # bits of NVML's clock-event reasons that are not a slowdown

HELP: Final = {
    "identity": ("pytest refuses to measure", ""),
    "governor": ("the first requests after a pause are late", "sudo cpupower frequency-set -g performance"),
    "cores": ("load engine and server share cores, which adds to p99", f"measure with {LEAST_CORES} or more"),
    "time quota": ("a process over its quota is paused, up to 100 ms in p99", "docker run --cpuset-cpus, not --cpus"),
    "other processes": ("their CPU time looks like a regression", "`top` lists them: wait for their end, or end them"),
    "stolen time": ("the server pauses while another guest has its core", "measure on dedicated cores"),
    "shared memory": ("Triton's Python models fail", "docker run --shm-size=1g, or mount -o remount,size=1g /dev/shm"),
    "temporary files": ("logs and models have no room", "set TMPDIR to a folder with room"),
    "lock": ("pytest waits until the other pytest run has ended (ini gpuserve_lock_wait)", ""),
    "processes": ("another program makes runs INVALID", "{smi} --query-compute-apps=pid,name --format=csv; end it"),
    "throttling": ("windows under a slowdown are measured again", "{smi} -q -d PERFORMANCE,TEMPERATURE,POWER"),
    "clocks": ("two runs of one build differ", "sudo {smi} --lock-gpu-clocks={clock} (undo: --reset-gpu-clocks)"),
    "power limit": ("baselines at another limit are not compared with it", "sudo {smi} --power-limit={power:g}"),
    "persistence mode": ("the driver unloads between servers: 1 to 3 s, and clocks are reset", "sudo {smi} -pm 1"),
    "ECC errors": ("answers may be wrong", "{smi} -q -d ECC,ROW_REMAPPER; then have the GPU reset or replaced"),
    "NVML": ("--gpu=auto refuses to guess; --gpu=cpu is not affected", "sudo dmesg | grep -i -e NVRM -e Xid"),
}
"""Effect of each on a measurement, and its remedy."""


def check(what: str, found: object, bad: object = None, level: Level = Level.WARNING) -> Check:
    """A check with its help: OK, or this level if it is bad, or unknown if the value is missing."""
    if found is None:
        return Check(what, Level.UNKNOWN, "this machine does not report it", *HELP[what])
    return Check(what, level, str(found), *HELP[what]) if bad else Check(what, Level.OK, str(found))


def host_checks(now: HostState) -> list[Check]:
    """Judge the machine."""
    host, limit, room, temp = now.host, now.core_limit, now.shared_memory_bytes, now.temp_bytes
    cores = None if host is None else host.cores
    governor = None if host is None else host.governor
    identity = None if host is None else f"host {host.id} in baselines"
    quota = None if limit is None else "none" if math.isinf(limit) else f"{limit:g} cores' worth"
    others = None if now.foreign_cores is None else f"{now.foreign_cores:.2f} cores"
    stolen = None if now.stolen_cores is None else f"{now.stolen_cores:.2f} cores"
    shared = None if room is None else f"{room // MIB} MiB free in /dev/shm"
    left = "no folder can be used" if temp is None else f"{temp // MIB} MiB free"
    full = Level.PREVENTS if (temp or 0) < FULL_BYTES else Level.WARNING
    return [
        check("identity", now.problem or identity, now.problem, Level.PREVENTS),
        check("governor", governor, governor != "performance"),
        check("cores", cores, (cores or 0) < LEAST_CORES),
        check("time quota", quota, quota != "none"),
        check("other processes", others, (now.foreign_cores or 0) > MOST_FOREIGN_CORES),
        check("stolen time", stolen, (now.stolen_cores or 0) > MOST_STOLEN_SHARE * (cores or 1)),
        check("shared memory", shared, (room or 0) < LEAST_SHARED_BYTES),
        check("temporary files", left, (temp or 0) < LEAST_TEMP_BYTES, full),
    ]


def gpu_checks(now: GpuState) -> list[Check]:
    """Judge a GPU. ``nvidia-smi -i`` takes the index of the whole GPU, also for a MIG instance."""
    gpu, samples = now.gpu, now.samples
    masks = [sample.clock_reasons for sample in samples if sample.clock_reasons is not None]
    reasons = reduce(or_, masks, 0)
    slow = [text for bit, text in SLOWDOWNS.items() if reasons & bit]
    slow += ["at its power limit before any load"] if reasons & POWER_CAP else []
    clocks = [sample.sm_clock_mhz for sample in samples if sample.sm_clock_mhz is not None]
    idle = reasons & GPU_IDLE or len(set(clocks)) > 1
    unlocked = f"not locked, now {clocks[-1] if clocks else '?'} MHz" if idle else None
    locked = gpu.application_clocks_set
    clock = f"set to {gpu.application_clock_mhz} MHz" if locked else unlocked
    limit, default = gpu.power_limit_watts, gpu.power_default_watts
    power = None if limit is None or default is None else f"{limit:g} W of {default:g} W by default"
    mode = None if gpu.persistence is None else "on" if gpu.persistence else "off"
    errors = samples[-1].uncorrected_ecc if samples else None
    checks = [
        _processes(now),
        check("throttling", (", ".join(slow) or "none") if masks else None, slow),
        check("clocks", clock, not locked),
        check("power limit", power, (limit or 0) < POWER_TOLERANCE * (default or 0)),
        check("persistence mode", mode, mode == "off"),
        check("ECC errors", None if errors is None else f"{errors} uncorrected", errors),
        *([check("NVML", now.problem, now.problem, Level.PREVENTS)] if now.problem else []),
    ]
    top = gpu.application_clock_mhz or gpu.max_sm_clock_mhz or "MHZ"
    words = {"smi": f"nvidia-smi -i {gpu.index}", "clock": top, "power": default or 0}
    return [replace(each, subject=gpu.uuid, remedy=each.remedy.format(**words)) for each in checks]


def _processes(now: GpuState) -> Check:
    seen = {process.pid: process for sample in now.samples for process in sample.processes or ()}
    if seen:
        # In a container with pids of its own, NVML's pid may be another program's.
        names = (
            f"{(process.name if now.sees_all else None) or 'a process outside this container'} (pid {pid})"
            for pid, process in seen.items()
        )
        return check("processes", ", ".join(names), bad=True, level=Level.PREVENTS)
    if all(sample.processes is None for sample in now.samples):
        return check("processes", None)
    used, state = bool(rest_reasons(now.samples)), use_text(now.samples)
    if used or now.sees_all:
        return check(
            "processes", f"none visible from here, but the GPU is {state}" if used else f"none ({state})", used
        )
    found = f"none visible from this container ({state})"
    return replace(check("processes", found, bad=True, level=Level.UNKNOWN), remedy="docker run --pid=host")
