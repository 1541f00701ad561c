"""Choice of the measured device: ``--gpu`` against NVML's list of GPUs."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpuserve.device.gpu import AUTO, CPU, device_name
from pytest_gpuserve.errors import DeviceProblem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.device.gpu import Gpu, NvmlAnswer
    from pytest_gpuserve.device.host import Host

_HIDING_VALUES = frozenset({"", "-1", "none", "void", "nodevfiles"})
"""Values of CUDA_VISIBLE_DEVICES with which people, schedulers and container runtimes hide all GPUs on purpose."""


@dataclass(frozen=True)
class Device:
    """The measured device of a session.

    Attributes:
        name: ``cpu``, or the GPU's name; also the folder under ``baselines/``.
        gpu: The GPU; None on ``cpu``.
        by_index: Whether CUDA numbers this machine's GPUs like NVML: NVML reads all of them, and none is divided.
    """

    name: str
    gpu: Gpu | None
    host: Host
    by_index: bool = True

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU."""
        return self.gpu is not None

    @property
    def lock_key(self) -> str:
        """Name of the lock that a session holds: the GPU's uuid, or ``cpu``."""
        return CPU if self.gpu is None else self.gpu.uuid

    def environment(self) -> dict[str, str]:
        """Environment variables that let a server use this device and no other GPU.

        On ``cpu`` they hide every GPU, so that the numbers of a server that prefers one are not those of a GPU.
        """
        if self.gpu is None:
            return {"CUDA_VISIBLE_DEVICES": ""}
        # LitServe looks for the value among the indices of `nvidia-smi -L`, and vLLM up to 0.22 needs a number. CUDA
        # takes an index in NVML's order only with PCI_BUS_ID, and an instance only by its UUID.
        whole = self.by_index and self.gpu.mig_profile is None
        return {
            "CUDA_VISIBLE_DEVICES": str(self.gpu.index) if whole else self.gpu.uuid,
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        }


def select_device(
    asked: str, *, known_names: Sequence[str], answer: NvmlAnswer, host: Host, visible: str | None
) -> Device:
    """Find the requested device; the first visible one of several equal ones.

    ``auto`` is the kind of the first visible GPU. It is ``cpu`` only if the machine certainly has no GPU, or
    CUDA_VISIBLE_DEVICES hides all of them on purpose. ``cpu`` is always ``cpu``. Any other value must be the ``name``
    of a visible GPU.

    Args:
        visible: CUDA_VISIBLE_DEVICES of the calling environment, or None. Indices are in the order of the PCI bus.

    Raises:
        DeviceProblem: The GPU is absent or hidden, or ``auto`` is undecided.
    """
    if asked == CPU:
        return Device(CPU, None, host)
    gpus = visible_gpus(answer.gpus, visible)
    name = _automatic(gpus, answer, visible) if asked == AUTO else asked
    if name == CPU:
        return Device(CPU, None, host)
    gpu = next((gpu for gpu in gpus if gpu.name == name), None)
    if gpu is None:
        raise _refusal(asked, known_names, gpus, answer, visible)
    is_divided = any(each.mig_profile for each in answer.gpus)
    return Device(gpu.name, gpu, host, by_index=not answer.problem and not is_divided)


def visible_gpus(gpus: Sequence[Gpu], visible: str | None) -> tuple[Gpu, ...]:
    """Apply CUDA_VISIBLE_DEVICES as CUDA does: in its order, and up to the first invalid entry.

    Source: CUDA C++ Programming Guide, "CUDA Environment Variables".

    Args:
        visible: Value of the variable: indices, or unique beginnings of UUIDs; None if it is not set. The index of a
            divided GPU (MIG) is its first instance.
    """
    if visible is None:
        return tuple(gpus)
    seen: list[Gpu] = []
    for entry in visible.split(","):
        gpu = _entry_gpu(gpus, entry.strip())
        if gpu is None:
            break
        if gpu not in seen:
            seen.append(gpu)
    return tuple(seen)


def _entry_gpu(gpus: Sequence[Gpu], entry: str) -> Gpu | None:
    if entry.isdecimal():
        return next((gpu for gpu in gpus if gpu.index == int(entry)), None)
    matches = [gpu for gpu in gpus if entry.startswith(("GPU-", "MIG-")) and gpu.uuid.startswith(entry)]
    return matches[0] if len(matches) == 1 else None


def _automatic(gpus: Sequence[Gpu], answer: NvmlAnswer, visible: str | None) -> str:
    if visible is not None and visible.strip().lower() in _HIDING_VALUES:
        return CPU
    if answer.problem and not answer.absent:
        raise DeviceProblem(
            "--gpu=auto cannot tell which GPU to measure on, because not every GPU of this machine can be read.",
            found=_present(gpus, answer),
            looked=_looked(visible),
            remedies=(*_offers(gpus), "repair the driver or the GPU; `nvidia-smi` should list every GPU"),
        )
    if gpus:
        return gpus[0].name
    if visible is not None and answer.gpus:
        raise DeviceProblem(
            f"--gpu=auto finds no GPU, because CUDA_VISIBLE_DEVICES={visible} matches none of this machine's.",
            found=_present(answer.gpus, answer),
            looked=_looked(visible),
            remedies=("unset CUDA_VISIBLE_DEVICES, or set it to a UUID from the list above", *_offers(())),
        )
    return CPU


def _refusal(
    asked: str, known_names: Sequence[str], gpus: Sequence[Gpu], answer: NvmlAnswer, visible: str | None
) -> DeviceProblem:
    found = f"{_present(answer.gpus, answer)}; baseline sets: {', '.join(sorted(known_names)) or 'none'}"
    hidden = next((gpu for gpu in answer.gpus if gpu.name == asked and gpu not in gpus), None)
    if hidden is not None:
        summary = f"CUDA_VISIBLE_DEVICES={visible} hides the GPU of --gpu={asked}."
        ways = [f"unset CUDA_VISIBLE_DEVICES, or set it to {hidden.uuid}"]
    else:
        summary = f"--gpu={asked} is not a GPU of this machine."
        meant = _meant(asked, [AUTO, CPU, *(gpu.name for gpu in gpus), *known_names])
        ways = [f"did you mean --gpu={meant}?"] if meant else []
    if not gpus and answer.gpus:
        found += f"; CUDA_VISIBLE_DEVICES={visible} hides every GPU"
    offers = (*_offers(gpus), "--gpu=auto (the GPU of this machine)")
    return DeviceProblem(summary, found=found, looked=_looked(visible), remedies=(*ways, *offers))


def _meant(asked: str, names: Sequence[str]) -> str | None:
    # A product name pasted from nvidia-smi, or other capitals, is certain; only then is a similar name proposed.
    for name in names:
        if name != asked and name.lower() in (asked.lower(), device_name(asked).lower()):
            return name
    likely = difflib.get_close_matches(asked, [name for name in names if name != asked], n=1)
    return likely[0] if likely else None


def _present(gpus: Sequence[Gpu], answer: NvmlAnswer) -> str:
    there = ", ".join(f"{gpu.index}: {gpu.product} (--gpu={gpu.name}, {gpu.uuid})" for gpu in gpus)
    return "; ".join(part for part in (there, answer.problem) if part) or "no GPU"


def _looked(visible: str | None) -> tuple[str, ...]:
    return ("NVML", "CUDA_VISIBLE_DEVICES (not set)" if visible is None else f"CUDA_VISIBLE_DEVICES={visible}")


def _offers(gpus: Sequence[Gpu]) -> tuple[str, ...]:
    names = dict.fromkeys(gpu.name for gpu in gpus)
    return (*(f"--gpu={name} (a GPU that is there)" for name in names), "--gpu=cpu (measure without a GPU)")
