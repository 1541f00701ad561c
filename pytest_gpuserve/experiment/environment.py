"""The circumstances of a run: device, host, software, and the code under test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from pytest_gpuserve.device.rules import kind_of
from pytest_gpuserve.store.schema import DeviceRecord, HostRecord
from pytest_gpuserve.units import digest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpuserve.builds.checkout import Revision
    from pytest_gpuserve.device import Device, Host

GIB = 2**30


@dataclass(frozen=True, slots=True)
class RunEnvironment:
    """The circumstances of a measurement.

    Args:
        device: The measured device.
        software: Versions that matter.
        revision: The code under test.
        occasion: Begin of this run of pytest, ISO 8601 in UTC.
    """

    device: Device
    software: Mapping[str, str]
    revision: Revision
    occasion: str

    @property
    def host(self) -> Host:
        """The machine around the device."""
        return self.device.host

    def device_record(self) -> DeviceRecord:
        """The device, for a baseline and for the JSON result."""
        gpu = self.device.gpu
        if gpu is None:
            return DeviceRecord(self.device.name)
        return DeviceRecord(
            name=self.device.name,
            product=gpu.product,
            memory_gib=None if gpu.memory_bytes is None else round(gpu.memory_bytes / GIB, 2),
            driver=gpu.driver,
            cuda=gpu.cuda,
            power_limit_watts=gpu.power_limit_watts,
            # Baselines are public, and the UUID identifies one physical GPU.
            gpu_id=digest(gpu.uuid),
            pci_bus_id=gpu.pci_bus_id,
            mig_profile=gpu.mig_profile,
            compute_capability=gpu.compute_capability and "{}.{}".format(*gpu.compute_capability),
            ecc=gpu.ecc,
            persistence=gpu.persistence,
            max_sm_clock_mhz=gpu.max_sm_clock_mhz,
            max_memory_clock_mhz=gpu.max_memory_clock_mhz,
            application_clock_mhz=gpu.application_clock_mhz,
            application_memory_clock_mhz=gpu.application_memory_clock_mhz,
            application_clocks_set=gpu.application_clocks_set,
            power_default_watts=gpu.power_default_watts,
            power_most_watts=gpu.power_most_watts,
        )

    @property
    def device_kind(self) -> str:
        """The device with the facts that must match: rounds with another power limit are not pooled with these."""
        return kind_of(msgspec.to_builtins(self.device_record()))

    def host_record(self) -> HostRecord:
        """The machine, for a baseline and for the JSON result."""
        host = self.host
        return HostRecord(
            id=host.id,
            cpu=host.cpu,
            cores=host.cores,
            memory_gib=round(host.memory_bytes / GIB, 2),
            system=host.system,
            kernel=host.kernel,
            numa_nodes=host.numa_nodes,
            governor=host.governor,
        )
