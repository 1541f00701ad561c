"""A GPU at one moment, and its reading by kept handles. A value that NVML refuses is None, never zero."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
import psutil

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_T = TypeVar("_T")

MOST_XIDS: Final = 64
"""Most errors of a GPU in one sample; the rest comes with the next one."""


class GpuProcess(msgspec.Struct, frozen=True):
    """A process that computes on a GPU.

    Args:
        pid: Pid in NVML's namespace, which within a container may be another one.
        name: Name of its program; None if this machine does not show the process.
        memory_bytes: Its memory on the GPU; None if the driver does not report it.
        ancestors: Pids of its parent, of the parent's parent, and so on; empty if this machine does not show them.
    """

    pid: int
    name: str | None
    memory_bytes: int | None
    ancestors: tuple[int, ...] = ()


class GpuSample(msgspec.Struct, frozen=True, omit_defaults=True):
    """A GPU at one moment.

    Memory and processes are the GPU's or the MIG instance's own. Clock, reasons and errors are the whole GPU's.

    Args:
        at_ns: Time by ``time.perf_counter_ns``, the clock of the load's ticks.
        utilisation: Share of the driver's last sampling period (1/6 s to 1 s) when a kernel ran; None for an instance.
        memory_bytes: Allocated memory, including the driver's own.
        sm_clock_mhz: Clock of the multiprocessors.
        joules: Counter of the energy since the driver was loaded; None for an instance.
        clock_reasons: NVML's mask of clock-event reasons.
        uncorrected_ecc: Counter of uncorrected memory errors since the driver was loaded.
        processes: Computing processes.
        xids: Errors that the driver reported since the last sample; None if it does not report them.
        lost: Whether NVML has lost the GPU, from then on.
    """

    at_ns: int
    utilisation: float | None = None
    memory_bytes: int | None = None
    sm_clock_mhz: int | None = None
    joules: float | None = None
    clock_reasons: int | None = None
    uncorrected_ecc: int | None = None
    processes: tuple[GpuProcess, ...] | None = None
    xids: tuple[int, ...] | None = None
    lost: bool = False


class GpuProbe:
    """Reads a GPU; errors of NVML are not raised.

    Args:
        nvml: NVML's binding, initialised.
        uuid: ``GPU-...``, or ``MIG-...`` for an instance.
    """

    def __init__(self, nvml: ModuleType, uuid: str) -> None:
        self._nvml = nvml
        self._uuid = uuid
        self._is_instance = uuid.startswith("MIG-")
        self._own: Any = None
        self._whole: Any = None
        self._events: Any = None
        self._lost = False
        self._kin: dict[int, tuple[str | None, tuple[int, ...]]] = {}

    def read(self) -> GpuSample:
        """Read all values of the GPU."""
        at_ns, nvml, ask = time.perf_counter_ns(), self._nvml, self._ask
        if self._whole is None:
            self._own, self._whole = ask(self._found) or (None, None)
        whole = self._whole
        if whole is None:
            return GpuSample(at_ns, lost=self._lost)
        millijoules = None if self._is_instance else ask(nvml.nvmlDeviceGetTotalEnergyConsumption, whole)
        utilisation = None if self._is_instance else ask(nvml.nvmlDeviceGetUtilizationRates, whole)
        memory = ask(nvml.nvmlDeviceGetMemoryInfo, self._own)
        processes = ask(nvml.nvmlDeviceGetComputeRunningProcesses_v3, self._own)
        return GpuSample(
            at_ns,
            utilisation=None if utilisation is None else utilisation.gpu / 100,
            memory_bytes=None if memory is None else memory.used,
            sm_clock_mhz=ask(nvml.nvmlDeviceGetClockInfo, whole, nvml.NVML_CLOCK_SM),
            joules=None if millijoules is None else millijoules / 1000,
            # Drivers before 535 have only the older name.
            clock_reasons=ask(
                nvml.nvmlDeviceGetCurrentClocksEventReasons,
                whole,
                instead=nvml.nvmlDeviceGetCurrentClocksThrottleReasons,
            ),
            uncorrected_ecc=ask(
                nvml.nvmlDeviceGetTotalEccErrors,
                whole,
                nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                nvml.NVML_VOLATILE_ECC,
            ),
            processes=None if processes is None else self._named(processes),
            xids=self._xids(),
            # The last one, because each of the above may find it out.
            lost=self._lost,
        )

    def _found(self) -> tuple[object, object]:
        """Handles of the GPU or instance, and of its whole GPU."""
        nvml = self._nvml
        own = nvml.nvmlDeviceGetHandleByUUID(self._uuid)
        return own, nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(own) if self._is_instance else own

    def _named(self, processes: list[Any]) -> tuple[GpuProcess, ...]:
        # Each is looked up until it is known, and not again, because that takes longer than NVML's answer.
        known = {pid: kin for pid, kin in self._kin.items() if kin[1]}
        self._kin = {info.pid: known.get(info.pid) or _name_and_ancestors(info.pid) for info in processes}
        found = ((info, *self._kin[info.pid]) for info in processes)
        return tuple(GpuProcess(info.pid, name, info.usedGpuMemory, ancestors) for info, name, ancestors in found)

    def _xids(self) -> tuple[int, ...] | None:
        if self._events is None:
            self._events = self._ask(self._registered)
        if self._events is None:
            return None
        found: list[int] = []
        while len(found) < MOST_XIDS:
            event = self._ask(self._next_event)
            if event is None:
                return tuple(found) or None
            if event is False:
                break
            if event.eventType & self._nvml.nvmlEventTypeXidCriticalError:
                found.append(event.eventData)
        return tuple(found)

    def _registered(self) -> object:
        nvml = self._nvml
        events = nvml.nvmlEventSetCreate()
        try:
            nvml.nvmlDeviceRegisterEvents(self._whole, nvml.nvmlEventTypeXidCriticalError, events)
        except nvml.NVMLError:
            nvml.nvmlEventSetFree(events)
            raise
        return events

    def _next_event(self) -> Any:  # noqa: ANN401 -- the binding's, which has no types
        """The oldest event that was not heard yet; False if there is none."""
        try:
            return self._nvml.nvmlEventSetWait_v2(self._events, 0)
        except self._nvml.NVMLError_Timeout:
            return False

    def _ask(self, read: Callable[..., _T], *arguments: object, instead: Callable[..., _T] | None = None) -> _T | None:
        """Read a value; None if NVML refuses it. ``instead`` is tried if the driver lacks the function."""
        if self._lost:
            return None
        try:
            return read(*arguments)
        except self._nvml.NVMLError_FunctionNotFound:
            return None if instead is None else self._ask(instead, *arguments)
        except self._nvml.NVMLError_GpuIsLost:
            self._lost = True
            return None
        except self._nvml.NVMLError:
            return None


def _name_and_ancestors(pid: int) -> tuple[str | None, tuple[int, ...]]:
    try:
        process = psutil.Process(pid)
        return process.name(), tuple(parent.pid for parent in process.parents())
    except psutil.Error:
        return None, ()
