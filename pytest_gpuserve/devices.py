"""Finding the device that was asked for, and taking it for us alone."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING

from pytest_gpuserve.device import DeviceLock, lease, list_cards, read_host, select_devices
from pytest_gpuserve.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpuserve.device import Device, Holder
    from pytest_gpuserve.options import Settings


def find_devices(settings: Settings) -> tuple[Device, ...]:
    """Find the devices of the kind that was asked for, of which any will do.

    Raises:
        DeviceProblem: There is none.
    """
    folder = settings.baseline_dir
    known = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    return select_devices(
        settings.gpu,
        known_names=known,
        answer=list_cards(),
        host=read_host(),
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
    )


def take_device(
    devices: Sequence[Device], *, wait_seconds: float, on_wait: Callable[[Sequence[Holder], float], None]
) -> tuple[Device, DeviceLock]:
    """Of devices alike take the first that nobody measures on, for us alone.

    Args:
        devices: One at least.
        wait_seconds: How long to wait where all are taken.
        on_wait: Told, once, for whom and how long at most.

    Raises:
        DeviceProblem: All were kept for longer.
    """
    locks = [DeviceLock(device.lock_key, command=shlex.join(sys.argv)) for device in devices]
    held = lease(locks, wait_seconds=wait_seconds, on_wait=on_wait)
    return devices[locks.index(held)], held


def waiting(holders: Sequence[Holder], wait_seconds: float) -> str:
    """Say for whom we wait, and how long at most."""
    what, who = "the device", f"{holders[0]} measures on it"
    if len(holders) > 1:
        what, who = f"one of {len(holders)} devices", f"{'; '.join(map(str, holders))} measure on them"
    return (
        f"gpuserve: waiting for {what}: {who}; giving up after {format_seconds(wait_seconds)} (ini gpuserve_lock_wait)"
    )
