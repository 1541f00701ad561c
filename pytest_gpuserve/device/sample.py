"""Samples of GPUs at one moment, and events of a GPU: values, and lines of a file.

A value that is not known, or was not looked at in this sample, is None: never zero.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

SAMPLES_A_SECOND: Final = 10
"""How often the fast values are looked at."""

SLOW_EVERY: Final = 10
"""Of so many samples one has the slow values too: memory errors and processes."""


MOST_FAILURES: Final = 5
"""So many failures in a row and a value is given up; fewer are the driver's mood, and the next sample has it again."""


class DeviceProcess(msgspec.Struct, frozen=True):
    """A process that computes on a GPU.

    Args:
        pid: As NVML knows it, which within a container may be another namespace's.
        name: Of its program; None where this machine shows no such process.
        memory_bytes: That it holds on the GPU; None where the driver does not tell.
        ours: Whether it is the session's: the session, one of its servers, or below one of them.
    """

    pid: int
    name: str | None
    memory_bytes: int | None
    ours: bool


class GpuSample(msgspec.Struct, frozen=True, omit_defaults=True):
    """A GPU at one moment.

    Of a MIG instance memory and processes are its own, all else is the whole GPU's.

    Args:
        uuid: ``GPU-...``, or ``MIG-...`` of an instance.
        gpu_utilisation: Share of the driver's last sampling period (1/6 s to 1 s) in which a kernel ran.
        memory_used_bytes: Memory that is allocated, what the driver keeps for itself included.
        energy_joules: Counter since the driver was loaded.
        clock_reasons: Why the clocks are what they are: NVML's mask of clock-event reasons.
        uncorrected_ecc: Counter of uncorrected memory errors since the driver was loaded; once in `SLOW_EVERY` samples.
        processes: What computes on it; as ``uncorrected_ecc``.
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
    """Everything at one moment.

    Args:
        at_ns: When, by ``time.perf_counter_ns``, the clock of the load's ticks.
        gpus: The watched GPUs; empty if there is none.
    """

    at_ns: int
    gpus: tuple[GpuSample, ...] = ()


class GpuEvent(msgspec.Struct, frozen=True, tag=True):
    """An event of a GPU.

    Args:
        at_ns: When it was noticed; the clock of ``TelemetrySample.at_ns``.
        uuid: The watched GPU.
        kind: ``xid``, an error that the driver reports, or ``lost``: the GPU answers no more.
        number: Of the XID; 0 otherwise. Of several between two samples NVML gives the last one's number for each.
    """

    at_ns: int
    uuid: str
    kind: Literal["xid", "lost"]
    number: int = 0


class Unknown(msgspec.Struct, frozen=True, tag=True):
    """A value, in words, that is None from here on, and what NVML said; of NVML as a whole the UUID is empty."""

    uuid: str
    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.what}{f' of {self.uuid}' if self.uuid else ''}: {self.why}"


SamplerRecord = TelemetrySample | GpuEvent | Unknown
"""A line of the sampler's file, as JSON."""
