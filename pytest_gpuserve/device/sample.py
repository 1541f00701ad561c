"""Samples of GPUs at one moment, and events of a GPU: values, and lines of a file.

A value that is unknown, or was not read in this sample, is None, never zero.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

SAMPLES_A_SECOND: Final = 10
"""Samples a second of the fast values."""

SLOW_EVERY: Final = 10
"""Every so many samples one also has the slow values: memory errors and processes."""


MOST_FAILURES: Final = 5
"""Consecutive failures after which a value is given up; drivers fail now and then, and the next sample succeeds."""


class DeviceProcess(msgspec.Struct, frozen=True):
    """A process that computes on a GPU.

    Args:
        pid: Pid in NVML's namespace, which within a container may be another one.
        name: Name of its program; None if this machine does not show the process.
        memory_bytes: Its memory on the GPU; None if the driver does not report it.
        ours: Whether it belongs to the session: the session, its servers, or their descendants.
    """

    pid: int
    name: str | None
    memory_bytes: int | None
    ours: bool


class GpuSample(msgspec.Struct, frozen=True, omit_defaults=True):
    """A GPU at one moment.

    A MIG instance has its own memory and processes; all other values are the whole GPU's.

    Args:
        uuid: ``GPU-...``, or ``MIG-...`` for an instance.
        gpu_utilisation: Share of the driver's last sampling period (1/6 s to 1 s) when a kernel ran.
        memory_used_bytes: Allocated memory, including the driver's own.
        energy_joules: Counter since the driver was loaded.
        clock_reasons: NVML's mask of clock-event reasons.
        uncorrected_ecc: Counter of uncorrected memory errors since the driver was loaded; once in `SLOW_EVERY` samples.
        processes: Computing processes; likewise once in `SLOW_EVERY` samples.
    """

    uuid: str
    gpu_utilisation: float | None = None
    memory_used_bytes: int | None = None
    sm_clock_mhz: int | None = None
    energy_joules: float | None = None
    clock_reasons: int | None = None
    uncorrected_ecc: int | None = None
    processes: tuple[DeviceProcess, ...] | None = None


class TelemetrySample(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """A sample of all watched GPUs at one moment.

    Args:
        at_ns: Time by ``time.perf_counter_ns``, the clock of the load's ticks.
        gpus: The watched GPUs; may be empty.
    """

    at_ns: int
    gpus: tuple[GpuSample, ...] = ()


class GpuEvent(msgspec.Struct, frozen=True, tag=True):
    """An event of a GPU.

    Args:
        at_ns: Time of its discovery, by the clock of ``TelemetrySample.at_ns``.
        uuid: The watched GPU.
        kind: ``xid``, an error that the driver reports, or ``lost``: the GPU no longer answers.
        number: Number of the XID; 0 for ``lost``. If several come between two samples, NVML gives each the last number.
    """

    at_ns: int
    uuid: str
    kind: Literal["xid", "lost"]
    number: int = 0


class Unknown(msgspec.Struct, frozen=True, tag=True):
    """A value, in words, that is None from now on, with NVML's error; for NVML as a whole the UUID is empty."""

    uuid: str
    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.what}{f' of {self.uuid}' if self.uuid else ''}: {self.why}"


SamplerRecord = TelemetrySample | GpuEvent | Unknown
"""A line of the sampler's file, as JSON."""
