"""Judges what disturbs a measurement on this machine. Pure: no clock, no file, no driver."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.measure.conditions import SLOWDOWNS, RestState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_gpuserve.doctor.look import GpuState, HostState, LockState


class Level(Enum):
    """The effect of a check's result on a measurement."""

    OK = "ok"
    UNKNOWN = "unknown"
    WARNING = "warning"
    PREVENTS = "prevents"


MACHINE: Final = "machine"
"""The subject of a check that holds for every device."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that can disturb a measurement.

    Args:
        what: A stable name: ``governor``, ``power limit``.
        found: The value, or why it is unknown.
        effect: What it does to a measurement; empty if the level is OK.
        remedy: The command that helps; may be empty.
        subject: ``machine``, ``cpu`` for that device alone, or the UUID of a GPU.
    """

    what: str
    level: Level
    found: str
    effect: str = ""
    remedy: str = ""
    subject: str = MACHINE


MIB: Final = 2**20
GIB: Final = 2**30

LEAST_CORES: Final = 4
MOST_FOREIGN_CORES: Final = 0.25
MOST_STOLEN: Final = 0.01
"""Share of the cores."""

LEAST_SHARED_BYTES: Final = 256 * MIB
"""Four times docker's default."""

LEAST_TEMP_BYTES: Final = GIB
FULL_BYTES: Final = 16 * MIB

POWER_TOLERANCE: Final = 0.98
"""Of the default power limit."""

GPU_IDLE: Final = 0x1
POWER_CAP: Final = 0x4
"""Bits of NVML's clock-event reasons that are not a slowdown."""


def host_checks(now: HostState) -> list[Check]:
    """Judge the machine."""
    cores = None if now.host is None else now.host.cores
    governor = None if now.host is None else now.host.governor
    use = now.cpu
    checks = [
        Check("identity", Level.PREVENTS, now.problem, "pytest refuses to measure")
        if now.problem
        else _check("identity", None if now.host is None else f"host {now.host.id} in baselines"),
        _check(
            "governor",
            governor,
            bad=governor != "performance",
            effect="cores clock up only under load, so the first requests after a pause are late",
            remedy="sudo cpupower frequency-set -g performance",
        ),
        _check(
            "cores",
            cores,
            bad=cores is not None and cores < LEAST_CORES,
            effect="the load engine and the server share cores, so p99 holds the client's own waiting",
            remedy=f"measure with {LEAST_CORES} cores or more",
        ),
        _check(
            "time quota",
            None
            if now.core_limit is None
            else f"{now.core_limit:g} cores' worth"
            if _finite(now.core_limit)
            else "none",
            bad=now.core_limit is not None and _finite(now.core_limit),
            effect="a process that has used its quota is paused until the next period, up to 100 ms in p99",
            remedy="give whole cores: docker run --cpuset-cpus=0-3 without --cpus; in Kubernetes no CPU limit",
        ),
        _check(
            "other processes",
            None if use is None else f"{use.by_others:.2f} cores" + "".join(f"; {each}" for each in use.processes),
            bad=use is not None and use.by_others > MOST_FOREIGN_CORES,
            effect="what others take looks like a regression",
            remedy="wait until they have ended, or end them",
        ),
        _check(
            "stolen time",
            None if use is None else f"{use.stolen:.2f} cores",
            bad=use is not None and use.stolen > MOST_STOLEN * (cores or 1),
            effect="the server pauses while another guest of the hypervisor has its core",
            remedy="measure on dedicated cores",
        ),
        _check(
            "shared memory",
            None if now.shared_memory_bytes is None else f"{now.shared_memory_bytes // MIB} MiB free in /dev/shm",
            bad=(now.shared_memory_bytes or 0) < LEAST_SHARED_BYTES,
            effect="Triton's Python models and shared-memory requests fail",
            remedy="docker run --shm-size=2g, or sudo mount -o remount,size=2g /dev/shm",
        ),
    ]
    return [*checks, _temp(now.temp_bytes)]


def _finite(value: float) -> bool:
    return not math.isinf(value)


def _check(
    what: str, found: object, *, bad: bool = False, effect: str = "", remedy: str = "", subject: str = MACHINE
) -> Check:
    """A check that warns if it is bad, and is unknown if nothing was found."""
    if found is None:
        return Check(what, Level.UNKNOWN, "this machine does not tell", effect, remedy, subject)
    if bad:
        return Check(what, Level.WARNING, str(found), effect, remedy, subject)
    return Check(what, Level.OK, str(found), subject=subject)


def _temp(free_bytes: int | None) -> Check:
    what, effect, remedy = "temporary files", "logs and models have no room", "set TMPDIR to a folder with room"
    if free_bytes is None or free_bytes < FULL_BYTES:
        found = "no folder can be used" if free_bytes is None else f"{free_bytes // MIB} MiB free"
        return Check(what, Level.PREVENTS, found, effect, remedy)
    return _check(
        what, f"{free_bytes // MIB} MiB free", bad=free_bytes < LEAST_TEMP_BYTES, effect=effect, remedy=remedy
    )


def lock_check(lock: LockState, subject: str) -> Check:
    """Judge the lock of a device: ``cpu``, or a GPU's UUID."""
    effect = "pytest waits until the other session has ended (ini gpuserve_lock_wait)"
    if lock.held:
        return Check("lock", Level.PREVENTS, f"taken by {lock.told}", effect, subject=subject)
    return _check("lock", None if lock.held is None else "free", effect=effect, remedy=lock.told, subject=subject)


def gpu_checks(now: GpuState) -> list[Check]:
    """Judge a GPU. ``nvidia-smi -i`` takes the index of the whole GPU, also for a MIG instance."""
    card, samples = now.card, now.samples
    smi = f"nvidia-smi -i {card.index}"
    reasons = _union(sample.clock_reasons for sample in samples)
    clocks = [sample.sm_clock_mhz for sample in samples if sample.sm_clock_mhz is not None]
    limit, default = card.power_limit_watts, card.power_default_watts
    errors = samples[-1].uncorrected_ecc if samples else None
    throttled = [] if reasons is None else [text for bit, text in SLOWDOWNS.items() if reasons & bit]
    if reasons is not None and reasons & POWER_CAP:
        throttled.append("at its power limit before any load")
    idle = (reasons is not None and bool(reasons & GPU_IDLE)) or len(set(clocks)) > 1
    top = card.application_clock_mhz or card.max_sm_clock_mhz or "MHZ"
    checks = [
        lock_check(now.lock, card.uuid),
        _gpu_processes(now, smi),
        _check(
            "throttling",
            None if reasons is None else ", ".join(throttled) or "none",
            bad=bool(throttled),
            effect="windows under a slowdown are rejected and measured again",
            remedy=f"{smi} -q -d PERFORMANCE,TEMPERATURE,POWER",
        ),
        _check(
            "clocks",
            f"set to {card.application_clock_mhz} MHz"
            if card.application_clocks_set
            else f"not locked, now {clocks[-1] if clocks else '?'} MHz"
            if idle
            else None,
            bad=not card.application_clocks_set,
            effect="clocks that follow load and heat make two runs of one build differ",
            remedy=f"sudo {smi} --lock-gpu-clocks={top} (undo: --reset-gpu-clocks)",
        ),
        _check(
            "power limit",
            None if limit is None or default is None else f"{limit:g} W of {default:g} W by default",
            bad=(limit or 0) < POWER_TOLERANCE * (default or 0),
            effect="numbers at one power limit are never compared with those at another",
            remedy=f"sudo {smi} --power-limit={default:g}" if default else "",
        ),
        _check(
            "persistence mode",
            None if card.persistence is None else "on" if card.persistence else "off",
            bad=not card.persistence,
            effect="each session waits 1 to 3 s for the driver, which resets clocks between two sessions",
            remedy=f"sudo {smi} -pm 1",
        ),
        _check(
            "ECC errors",
            None if errors is None else f"{errors} uncorrected",
            bad=bool(errors),
            effect="the GPU's memory fails: answers may be wrong",
            remedy=f"{smi} -q -d ECC,ROW_REMAPPER; then have the GPU reset or replaced",
        ),
    ]
    if now.problem:
        effect = "--gpu=auto refuses to guess; --gpu=cpu is not affected"
        checks.append(Check("NVML", Level.PREVENTS, now.problem, effect, "sudo dmesg | grep -i -e NVRM -e Xid"))
    return [_about(each, card.uuid) for each in checks]


def _about(check: Check, uuid: str) -> Check:
    return Check(check.what, check.level, check.found, check.effect, check.remedy, uuid)


def _union(masks: Iterable[int | None]) -> int | None:
    known = [mask for mask in masks if mask is not None]
    result = 0
    for mask in known:
        result |= mask
    return result if known else None


def _gpu_processes(now: GpuState, smi: str) -> Check:
    what, effect = "processes", "it computes beside the server, and the run is INVALID"
    remedy = f"end them, or measure on another GPU: {smi} --query-compute-apps=pid,name --format=csv"
    seen = {process.pid: process for sample in now.samples for process in sample.processes or ()}
    if seen:
        # In a container with pids of its own, NVML's pid may be another program's.
        names = (
            f"{(process.name if now.sees_all else None) or 'a process outside this container'} (pid {pid})"
            for pid, process in seen.items()
        )
        return Check(what, Level.PREVENTS, ", ".join(names), effect, remedy)
    if all(sample.processes is None for sample in now.samples):
        return Check(what, Level.UNKNOWN, "NVML does not list them", effect, remedy)
    state = RestState.of(now.samples)
    if state.is_used:
        return Check(what, Level.WARNING, f"none visible from here, but the GPU is {state}", effect, remedy)
    if not now.sees_all:
        return Check(
            what, Level.UNKNOWN, f"none visible from this container ({state})", effect, "docker run --pid=host"
        )
    return Check(what, Level.OK, f"none ({state})")
