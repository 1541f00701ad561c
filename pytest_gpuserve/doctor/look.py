"""Reads the state of this machine for about a second, without any change to it.

A value that cannot be read is None, and does not prevent the others.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

import psutil

from pytest_gpuserve.device.gpu import initialised
from pytest_gpuserve.device.gpu_probe import GpuProbe, GpuSample
from pytest_gpuserve.device.host import cores_taken_by_others, read_core_limit, read_cpu, read_host
from pytest_gpuserve.device.lock import DeviceLock
from pytest_gpuserve.doctor.checks import Check, GpuState, HostState, check
from pytest_gpuserve.errors import GpuserveError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pytest_gpuserve.device.gpu import Gpu
    from pytest_gpuserve.device.host import CpuReading

LOOK_SECONDS: Final = 1.0


def look(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> tuple[HostState, list[GpuState]]:
    """Read the machine and each GPU at the begin and at the end of `LOOK_SECONDS`."""
    before, cpu_before = _sampled(gpus), _attempt(_read_cpu)
    time.sleep(LOOK_SECONDS)
    after, cpu_after = _sampled(gpus), _attempt(_read_cpu)
    problem, host = "", None
    try:
        host = _attempt(lambda: read_host(environ=environ))
    except GpuserveError as error:
        problem = " ".join([error.summary, error.found, *error.remedies]).strip()
    foreign = stolen = None
    if cpu_before and cpu_after:
        seconds = cpu_after.at_seconds - cpu_before.at_seconds
        stolen = max(0.0, cpu_after.stolen_seconds - cpu_before.stolen_seconds) / seconds
        foreign = max(0.0, cores_taken_by_others(cpu_before, cpu_after) - stolen)
    state = HostState(
        host=host,
        problem=problem,
        core_limit=_attempt(read_core_limit),
        foreign_cores=foreign,
        stolen_cores=stolen,
        shared_memory_bytes=_attempt(lambda: psutil.disk_usage("/dev/shm").free),  # noqa: S108 -- a name
        temp_bytes=_attempt(lambda: psutil.disk_usage(tempfile.gettempdir()).free),
    )
    # This kernel thread has pid 2 on every Linux, and a container with pids of its own does not show it.
    sees_all = _attempt(lambda: psutil.Process(2).name() == "kthreadd") or False
    states = []
    for gpu, (first, _), (last, said) in zip(gpus, before, after, strict=True):
        samples = tuple(sample for sample in (first, last) if sample is not None)
        states.append(GpuState(gpu=gpu, samples=samples, sees_all=sees_all, problem=said))
    return state, states


_T = TypeVar("_T")


def _attempt(read: Callable[[], _T]) -> _T | None:
    """Read a value; None if this machine does not have it."""
    with suppress(OSError, ValueError, psutil.Error):
        return read()
    return None


def _sampled(gpus: Sequence[Gpu]) -> list[tuple[GpuSample | None, str]]:
    """Sample each GPU; a failed sample is replaced by its reason."""
    samples: list[tuple[GpuSample | None, str]] = []
    for gpu in gpus:
        try:
            samples.append((GpuProbe(initialised(), gpu.uuid).read(), ""))
        except Exception as error:  # noqa: BLE001 -- one GPU that cannot be read must not hide the others
            samples.append((None, str(error)))
    return samples


def _read_cpu() -> CpuReading:
    return read_cpu([psutil.Process()])


def lock_check(key: str, *, folder: Path | None = None) -> Check:
    """Whether a session measures on a device now: ``cpu``, or a GPU's UUID."""
    lock = DeviceLock(key, folder=folder)
    found: str | None = "free"
    try:
        # A link or a pipe in the lock's place must not be followed, and must not block.
        descriptor = os.open(lock.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            # A shared lock: two doctors do not exclude each other, and a waiting session tries again soon.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        pass
    except BlockingIOError:
        found = f"taken by {lock.describe_holder()}"
    except OSError:
        found = None
    return replace(check("lock", found, found != "free"), subject=key)
