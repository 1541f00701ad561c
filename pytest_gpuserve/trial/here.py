"""Where this session measures: device, host, software and revision, and how they stand in a baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpuserve.store.schema import DeviceRecord, HostRecord, SessionRecord, start_record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpuserve.device import Device, Host
    from pytest_gpuserve.measure.window import Session
    from pytest_gpuserve.trial.provenance import Revision

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Here:
    """The circumstances of a measurement.

    Args:
        device: What is measured on.
        software: Versions that matter.
        revision: The code under test.
        occasion: When this run of pytest began, ISO 8601 in UTC.
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
        card = self.device.card
        memory = None if card is None or card.memory_bytes is None else round(card.memory_bytes / GIB, 2)
        return DeviceRecord(
            name=self.device.name,
            product=None if card is None else card.product,
            memory_gib=memory,
            driver=None if card is None else card.driver,
            cuda=None if card is None else card.cuda,
            power_limit_watts=None if card is None else card.power_limit_watts,
        )

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
        )

    def session_record(self, session: Session) -> SessionRecord:
        """A session that was measured here, for a baseline."""
        return SessionRecord(
            occasion=self.occasion,
            at=session.at,
            host=self.host_record(),
            device=self.device_record(),
            software=dict(self.software),
            batch_sizes=dict(session.batch_sizes),
            answers=session.answers,
            answers_checked=session.answers_checked,
            starts=[start_record(start) for start in session.starts],
            settings=used_settings(session),
        )


def used_settings(session: Session) -> dict[str, str]:
    """How the server was set up in a session, by its own word; what it does not tell is left out."""
    settings = session.starts[-1].settings if session.starts else {}
    return {name: setting.used for name, setting in settings.items() if setting.used is not None}
