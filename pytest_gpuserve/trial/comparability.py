"""Whether a stored baseline may be compared with a run, by the devices and hosts that both were measured on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from pytest_gpuserve.device.rules import HOST_RULES, Comparison, compare

if TYPE_CHECKING:
    from pytest_gpuserve.store.baseline import Stored
    from pytest_gpuserve.trial.here import Here


def comparability(stored: Stored, here: Here) -> Comparison:
    """Compare the devices of a baseline's sessions with this one, and the host of those that this host recorded.

    What another host has beside its card is no matter here: its sessions say how much hosts differ, not how fast this
    one is. Each reason is said once.
    """
    device, host = msgspec.to_builtins(here.device_record()), msgspec.to_builtins(here.host_record())
    found = []
    for record in stored.entry.sessions:
        found.append(compare(msgspec.to_builtins(record.device), device))
        if record.host.id == here.host.id:
            found.append(compare(msgspec.to_builtins(record.host), host, HOST_RULES))
    return Comparison(
        tuple(dict.fromkeys(reason for each in found for reason in each.incompatible)),
        tuple(dict.fromkeys(reason for each in found for reason in each.warnings)),
    )
