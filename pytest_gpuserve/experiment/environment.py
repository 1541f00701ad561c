"""The circumstances of a run: device, host, software, and the code under test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import msgspec

from pytest_gpuserve.device.rules import kind_of
from pytest_gpuserve.store.schema import DeviceRecord, HostRecord
from pytest_gpuserve.units import digest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpuserve.builds.checkout import Revision
    from pytest_gpuserve.device import Device, Host

GIB = 2**30

R = TypeVar("R", bound=msgspec.Struct)


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
        return _as_record(
            DeviceRecord,
            gpu,
            name=self.device.name,
            memory_gib=None if gpu.memory_bytes is None else round(gpu.memory_bytes / GIB, 2),
            # Baselines are public, and the UUID identifies one physical GPU.
            gpu_id=digest(gpu.uuid),
            compute_capability=gpu.compute_capability and "{}.{}".format(*gpu.compute_capability),
        )

    @property
    def device_kind(self) -> str:
        """The device with the facts that must match: rounds with another power limit are not pooled with these."""
        return kind_of(msgspec.to_builtins(self.device_record()))

    def host_record(self) -> HostRecord:
        """The machine, for a baseline and for the JSON result."""
        return _as_record(HostRecord, self.host, memory_gib=round(self.host.memory_bytes / GIB, 2))


def _as_record(kind: type[R], facts: object, **other: object) -> R:
    """A record of these values, and for all its other fields of the facts with the same names."""
    same = {name: getattr(facts, name) for name in kind.__struct_fields__ if name not in other}
    return kind(**same, **other)
