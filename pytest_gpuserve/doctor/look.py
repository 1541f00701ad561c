"""Looks at this machine for about a second; changes nothing on it and leaves nothing behind.

Whatever cannot be read is unknown, with the reason, and keeps nothing else from being read.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.device.names import CPU
from pytest_gpuserve.device.nvml import list_cards
from pytest_gpuserve.device.select import select_devices
from pytest_gpuserve.doctor.attempt import words
from pytest_gpuserve.doctor.facts import Driver, Seen
from pytest_gpuserve.doctor.look_cards import look_at_cards
from pytest_gpuserve.doctor.look_host import HostLook
from pytest_gpuserve.doctor.look_lock import read_lock
from pytest_gpuserve.errors import GpuserveError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpuserve.device.card import NvmlAnswer

KERNEL_MODULE: Final = Path("/proc/driver/nvidia/version")
"""Is there while NVIDIA's driver is loaded, also in a container that its library was not given to."""


def look(asked: str | None, environ: Mapping[str, str]) -> Seen:
    """Look at the machine and at its cards.

    Args:
        asked: The device that is meant, as for ``--gpu``; None for any that is there.
        environ: The environment, which may hold CUDA_VISIBLE_DEVICES and GPUSERVE_HOST.
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    answer = list_cards()
    host_look = HostLook(environ)
    cards = look_at_cards(answer, visible, meanwhile=host_look.watch)
    host = host_look.now()
    devices = (*(card.card.uuid for card in cards if card.visible), CPU)
    refused = ("", "")
    if asked is not None and host.host is not None:
        try:
            chosen = select_devices(asked, known_names=(), answer=answer, host=host.host, visible=visible)
            devices = tuple(device.lock_key for device in chosen)
        except GpuserveError as problem:
            devices, refused = (), words(problem)
    return Seen(
        host=host,
        driver=read_driver(answer),
        cards=cards,
        cpu_lock=read_lock(CPU),
        devices=devices,
        refused=refused[0],
        refused_remedy=refused[1],
    )


def read_driver(answer: NvmlAnswer, *, module: Path = KERNEL_MODULE) -> Driver:
    """Say what is the matter with the driver.

    Args:
        answer: What NVML said.
        module: A file that is there while the driver is loaded.
    """
    if answer.absent and module.exists():
        found = f"the driver is loaded, but does not answer here: {answer.problem}"
        return Driver(answers=False, absent=False, problem=found)
    return Driver(not answer.problem, answer.absent, answer.problem)
