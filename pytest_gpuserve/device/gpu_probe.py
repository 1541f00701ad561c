"""A GPU that is read repeatedly by kept handles; a value that NVML refuses is reported once, and then unknown."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psutil

from pytest_gpuserve.device.gpu import is_unsupported
from pytest_gpuserve.device.sample import MOST_FAILURES, DeviceProcess, GpuEvent, GpuSample, Unknown

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_T = TypeVar("_T")

MOST_EVENTS: Final = 64
"""Most events of a GPU in one sample; the rest comes with the next one."""


class GpuProbe:
    """Reads a GPU; errors of NVML are not raised.

    Args:
        tell: Called with each event, and once with each value that cannot be read.
        is_ours: Whether a pid belongs to the session.
    """

    def __init__(
        self,
        nvml: ModuleType,
        uuid: str,
        *,
        tell: Callable[[GpuEvent | Unknown], None],
        is_ours: Callable[[int], bool],
    ) -> None:
        self._nvml = nvml
        self._uuid = uuid
        self._tell = tell
        self._is_ours = is_ours
        self._failures: dict[str, int] = {}
        self._lost = False
        self._own: Any = None
        self._gpu: Any = None
        self._events: Any = None
        # An older driver has only their older names.
        self._reasons = _Either(
            nvml, "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"
        )
        self._processes = _Either(
            nvml, "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"
        )

    def read(self, *, slow: bool) -> GpuSample:
        """Read the fast values of the GPU, and the slow ones on request."""
        if self._gpu is None:
            self._own, self._gpu = self._ask("the GPU", self._found) or (None, None)
        nvml, gpu, ask = self._nvml, self._gpu, self._ask
        if self._lost or gpu is None:
            return GpuSample(self._uuid)
        # Values of a moment come first, because slow ones may take a fifth of the time between two samples.
        energy_mj: int | None = ask("the energy counter", nvml.nvmlDeviceGetTotalEnergyConsumption, gpu)
        utilisation = ask("utilisation", nvml.nvmlDeviceGetUtilizationRates, gpu)
        memory = ask("memory", nvml.nvmlDeviceGetMemoryInfo, self._own)
        sample = GpuSample(
            self._uuid,
            gpu_utilisation=None if utilisation is None else utilisation.gpu / 100,
            memory_used_bytes=None if memory is None else memory.used,
            sm_clock_mhz=ask("the SM clock", nvml.nvmlDeviceGetClockInfo, gpu, nvml.NVML_CLOCK_SM),
            energy_joules=None if energy_mj is None else energy_mj / 1000,
            clock_reasons=ask("clock-event reasons", self._reasons, gpu),
            **(self._slow() if slow else {}),
        )
        self._hear()
        return sample

    def _slow(self) -> dict[str, Any]:
        nvml, gpu, ask = self._nvml, self._gpu, self._ask
        processes = ask("processes", self._processes, self._own)
        return {
            "processes": None if processes is None else tuple(map(self._process, processes)),
            "uncorrected_ecc": ask(
                "uncorrected ECC errors",
                nvml.nvmlDeviceGetTotalEccErrors,
                gpu,
                nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                nvml.NVML_VOLATILE_ECC,
            ),
        }

    def _process(self, info: Any) -> DeviceProcess:  # noqa: ANN401 -- the binding's, which has no types
        pid: int = info.pid
        try:
            name = psutil.Process(pid).name()
        except psutil.Error:
            name = None
        return DeviceProcess(pid, name, info.usedGpuMemory, self._is_ours(pid))

    def _found(self) -> tuple[object, object]:
        """Handles of the GPU or instance, and of its whole GPU."""
        nvml = self._nvml
        own = nvml.nvmlDeviceGetHandleByUUID(self._uuid)
        return own, nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(own) if self._uuid.startswith("MIG-") else own

    def _registered(self) -> object:
        """Make an event set for this GPU's XIDs; each GPU has its own, so that events are not confused."""
        nvml = self._nvml
        events = nvml.nvmlEventSetCreate()
        try:
            nvml.nvmlDeviceRegisterEvents(self._gpu, nvml.nvmlEventTypeXidCriticalError, events)
        except nvml.NVMLError:
            nvml.nvmlEventSetFree(events)
            raise
        return events

    def _hear(self) -> None:
        if self._events is None:
            self._events = self._ask("XID events", self._registered)
        for _ in range(MOST_EVENTS):
            event = None if self._events is None else self._ask("XID events", self._next_event)
            if event is None:
                return
            if event.eventType & self._nvml.nvmlEventTypeXidCriticalError:
                self._tell(GpuEvent(time.perf_counter_ns(), self._uuid, "xid", event.eventData))

    def _next_event(self) -> Any:  # noqa: ANN401 -- as above
        try:
            return self._nvml.nvmlEventSetWait_v2(self._events, 0)
        except self._nvml.NVMLError_Timeout:
            return None

    def _ask(self, what: str, read: Callable[..., _T], *arguments: object) -> _T | None:
        failures = self._failures.get(what, 0)
        if self._lost or failures >= MOST_FAILURES:
            return None
        try:
            answer = read(*arguments)
        except self._nvml.NVMLError as error:
            if getattr(error, "value", None) == self._nvml.NVML_ERROR_GPU_IS_LOST:
                self._lost = True
                self._tell(GpuEvent(time.perf_counter_ns(), self._uuid, "lost"))
                return None
            self._failures[what] = MOST_FAILURES if is_unsupported(self._nvml, error) else failures + 1
            if self._failures[what] >= MOST_FAILURES:
                self._tell(Unknown(self._uuid, what, str(error)))
            return None
        self._failures.pop(what, None)
        return answer


class _Either:
    """A function of NVML, or its older name if the driver has no other."""

    def __init__(self, nvml: ModuleType, newer: str, older: str) -> None:
        self._nvml = nvml
        self._read: Callable[[object], Any] = getattr(nvml, newer)
        self._older: Callable[[object], Any] | None = getattr(nvml, older)

    def __call__(self, handle: object) -> Any:  # noqa: ANN401 -- as above
        try:
            return self._read(handle)
        except self._nvml.NVMLError_FunctionNotFound:
            if self._older is None:
                raise
            self._read, self._older = self._older, None
            return self._read(handle)
