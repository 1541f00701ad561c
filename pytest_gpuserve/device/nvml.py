"""The NVIDIA cards of this machine and their facts, as NVML tells them."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from pytest_gpuserve.device.binding import Reader, opened
from pytest_gpuserve.device.card import Card, NvmlAnswer
from pytest_gpuserve.device.card_facts import read_cards, read_system

if TYPE_CHECKING:
    from types import ModuleType


def list_cards() -> NvmlAnswer:
    """Ask NVML for all cards of this machine; in the place of a divided one (MIG) stand its instances.

    Never raises for anything that NVML answers; what went wrong is in ``problem``, and a fact that could not be read is
    in the card's ``unknown``. CUDA_VISIBLE_DEVICES plays no part.
    """
    # The plugin is loaded by every pytest run of an environment, most of which measure nothing.
    import pynvml  # noqa: PLC0415  # see above

    try:
        with opened(pynvml):
            return _read_all(pynvml)
    except pynvml.NVMLError_LibraryNotFound:
        return _library_problem()
    except pynvml.NVMLError as error:
        no_device = error.value == pynvml.NVML_ERROR_GPU_NOT_FOUND
        return NvmlAnswer((), Reader(pynvml).said(error), absent=no_device)


def _read_all(pynvml: ModuleType) -> NvmlAnswer:
    count: int = pynvml.nvmlDeviceGetCount()
    if count == 0:
        return NvmlAnswer((), "NVML found no NVIDIA card on this machine", absent=True)
    system = read_system(pynvml)
    cards: list[Card] = []
    problems: list[str] = []
    for index in range(count):
        read, why_not = read_cards(pynvml, index, system)
        cards += read
        problems += why_not
    return NvmlAnswer(tuple(cards), "; ".join(problems))


def _library_problem() -> NvmlAnswer:
    # The binding reports every failure to load as "not found", also a damaged file or one of another architecture.
    library = "libnvidia-ml.so.1"
    try:
        ctypes.CDLL(library)
    except OSError as error:
        reason = str(error)
    else:
        reason = "it loads now, but did not a moment ago"
    # The same words with another file's name would mean that something it depends on is missing.
    if reason.startswith(f"{library}: cannot open shared object file: No such file"):
        return NvmlAnswer((), f"{library} is not on this machine", absent=True)
    return NvmlAnswer((), f"{library} is on this machine but cannot be loaded: {reason}")
