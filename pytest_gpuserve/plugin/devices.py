"""Finding the device that was asked for, and taking it for us alone."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING

from pytest_gpuserve.device import DeviceLock, lease, list_cards, read_host, select_devices
from pytest_gpuserve.store.published import FOLDER as PUBLISHED
from pytest_gpuserve.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pytest_gpuserve.device import Device, Holder
    from pytest_gpuserve.plugin.options import Settings


def find_devices(settings: Settings) -> tuple[Device, ...]:
    """Find the devices of the kind that was asked for, of which any will do."""
    folder = settings.baseline_dir
    known = sorted(path.name for path in folder.iterdir() if _has_baselines(path)) if folder.is_dir() else []
    return select_devices(
        settings.gpu,
        known_names=known,
        answer=list_cards(),
        host=read_host(),
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
    )


def _has_baselines(folder: Path) -> bool:
    """Whether a folder of a device holds more than what others published."""
    return folder.is_dir() and any(path.name != PUBLISHED for path in folder.iterdir())


def workers_refused(devices: Sequence[Device], workers: int, *, each: bool) -> str:
    """Why so many workers of pytest-xdist may not measure on these devices at once; empty if they may.

    More workers than cards are refused rather than made to wait: which tests a worker runs is settled before it has a
    card, and the workers that have one keep it, and go on waiting for the end of the others' tests.

    Args:
        devices: All of the kind, one at least.
        workers: How many there are; 0 without pytest-xdist.
        each: Whether every worker runs every test.
    """
    if not workers:
        return ""
    name, alone = devices[0].name, "run it with -n0, or deselect it here"
    if not devices[0].is_gpu:
        return f"a measuring test cannot run under pytest-xdist on {name}: they would measure each other; {alone}"
    if each:
        return f"a measuring test cannot run under --dist=each, once in every worker: give --dist=load, or {alone}"
    if workers <= len(devices):
        return ""
    cards = "card" if len(devices) == 1 else "cards"
    return (
        f"{workers} workers of pytest-xdist cannot measure on {len(devices)} {cards} ({name}): each takes one alone;"
        f" run with -n{len(devices)}, or deselect the measuring tests here"
    )


def take_device(
    devices: Sequence[Device],
    *,
    wait_seconds: float,
    on_wait: Callable[[Sequence[Holder], float], None],
    command: Sequence[str] = (),
) -> tuple[Device, DeviceLock]:
    """Of devices alike take the first that nobody measures on, for us alone.

    Args:
        wait_seconds: How long to wait where all are taken.
        on_wait: Told, once, for whom and how long at most.
        command: What others who wait are told that we do; this process's own command line if it is empty.

    Raises:
        DeviceProblem: All were kept for longer.
    """
    locks = [DeviceLock(device.lock_key, command=shlex.join(command or sys.argv)) for device in devices]
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
