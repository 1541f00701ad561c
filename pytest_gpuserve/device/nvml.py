"""The NVIDIA cards of this machine and their facts, as NVML tells them."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from pytest_gpuserve.device.names import device_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

_T = TypeVar("_T")


@dataclass(frozen=True)
class Card:
    """One NVIDIA card.

    Attributes:
        index: NVML's index, which is the order of the PCI bus (not always CUDA's order).
        product: The vendor's name, verbatim.
        name: The name for ``--gpu`` and for the folder under ``baselines/``.
        uuid: ``GPU-`` and a UUID; names the card for good, also to CUDA.
        pci_bus_id: Domain, bus, device and function, as in ``00000000:3B:00.0``.
        memory_bytes: Its whole memory; None where it has none of its own (it shares the host's).
        driver: Version of the driver.
        cuda: The newest CUDA version that the driver supports, as in ``12.8``.
        power_limit_watts: The power limit set now; None where the card has none.
        max_sm_clock_mhz: The highest clock of its multiprocessors; None where it does not tell.
        mig: Whether it is divided into instances now; None where it cannot be.
    """

    index: int
    product: str
    name: str
    uuid: str
    pci_bus_id: str
    memory_bytes: int | None
    driver: str
    cuda: str
    power_limit_watts: float | None
    max_sm_clock_mhz: int | None
    mig: bool | None


@dataclass(frozen=True)
class NvmlAnswer:
    """What NVML said about the machine's cards.

    Attributes:
        cards: The cards that could be read, by index.
        problem: Why there is none, or which of them could not be read and why; empty if all went well.
        absent: The problem is only that this machine has no card (no library, or no device). False for every problem
            that may hide one, such as a driver that does not fit its library.
    """

    cards: tuple[Card, ...]
    problem: str
    absent: bool = False


class _CardUnreadableError(Exception):
    """A fact without which a card cannot be named; its text says which, and what NVML said."""


def list_cards() -> NvmlAnswer:
    """Ask NVML for all cards of this machine.

    Never raises for anything that NVML answers; what went wrong is in ``problem``. CUDA_VISIBLE_DEVICES plays no part.
    """
    # The plugin is loaded by every pytest run of an environment, most of which measure nothing.
    import pynvml  # noqa: PLC0415  # see above

    try:
        with _opened(pynvml):
            return _read_all(pynvml)
    except pynvml.NVMLError_LibraryNotFound:
        return _library_problem()
    except pynvml.NVMLError as error:
        no_device = error.value == pynvml.NVML_ERROR_GPU_NOT_FOUND
        return NvmlAnswer((), f"NVML said: {_text(pynvml, error)}", absent=no_device)
    except _CardUnreadableError as error:
        return NvmlAnswer((), str(error))


@contextmanager
def _opened(pynvml: ModuleType) -> Iterator[None]:
    pynvml.nvmlInit()
    try:
        yield
    finally:
        pynvml.nvmlShutdown()


def _read_all(pynvml: ModuleType) -> NvmlAnswer:
    count: int = pynvml.nvmlDeviceGetCount()
    if count == 0:
        return NvmlAnswer((), "NVML found no NVIDIA card on this machine", absent=True)
    driver = _required(pynvml, "the driver's version", pynvml.nvmlSystemGetDriverVersion)
    cuda_number: int = _required(pynvml, "the driver's CUDA version", pynvml.nvmlSystemGetCudaDriverVersion_v2)
    # 1000 * major + 10 * minor: nvml.h, NVML_CUDA_DRIVER_VERSION_MAJOR and _MINOR.
    cuda = f"{cuda_number // 1000}.{cuda_number % 1000 // 10}"
    cards: list[Card] = []
    problems: list[str] = []
    for index in range(count):
        try:
            cards.append(_read_card(pynvml, index, driver=driver, cuda=cuda))
        except _CardUnreadableError as error:  # a handful of cards, each with its own fate
            problems.append(f"card {index}: {error}")
    return NvmlAnswer(tuple(cards), "; ".join(problems))


def _read_card(pynvml: ModuleType, index: int, *, driver: str, cuda: str) -> Card:
    handle = _required(pynvml, "the card itself", pynvml.nvmlDeviceGetHandleByIndex, index)
    product: str = _required(pynvml, "its name", pynvml.nvmlDeviceGetName, handle)
    uuid: str = _required(pynvml, "its uuid", pynvml.nvmlDeviceGetUUID, handle)
    if not product or not uuid:
        raise _CardUnreadableError(f"NVML gave an empty {'uuid' if product else 'name'}")
    memory = _optional(pynvml, "its memory", pynvml.nvmlDeviceGetMemoryInfo, handle)
    power_milliwatts = _optional(pynvml, "its power limit", pynvml.nvmlDeviceGetPowerManagementLimit, handle)
    mig_modes = _optional(pynvml, "its MIG mode", pynvml.nvmlDeviceGetMigMode, handle)
    return Card(
        index=index,
        product=product,
        name=device_name(product),
        uuid=uuid,
        pci_bus_id=_required(pynvml, "its PCI address", _pci_bus_id, pynvml, handle),
        memory_bytes=None if memory is None else memory.total,
        driver=driver,
        cuda=cuda,
        power_limit_watts=None if power_milliwatts is None else power_milliwatts / 1000,
        max_sm_clock_mhz=_optional(
            pynvml, "its highest clock", pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_SM
        ),
        # The pair is (current, pending); pending takes effect only after a reset.
        mig=None if mig_modes is None else mig_modes[0] == pynvml.NVML_DEVICE_MIG_ENABLE,
    )


def _pci_bus_id(pynvml: ModuleType, handle: object) -> str:
    raw: bytes | str = pynvml.nvmlDeviceGetPciInfo(handle).busId
    return raw.decode("ascii") if isinstance(raw, bytes) else raw


def _required(pynvml: ModuleType, what: str, read: Callable[..., _T], *arguments: object) -> _T:
    try:
        return read(*arguments)
    except pynvml.NVMLError as error:
        raise _CardUnreadableError(f"{what} cannot be read; NVML said: {_text(pynvml, error)}") from error
    except UnicodeDecodeError as error:
        raise _CardUnreadableError(f"{what} cannot be read; NVML gave bytes that are no text") from error


def _optional(pynvml: ModuleType, what: str, read: Callable[..., _T], *arguments: object) -> _T | None:
    try:
        return read(*arguments)
    # An older driver lacks the function altogether, which says the same about the card.
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
        return None
    except pynvml.NVMLError as error:
        raise _CardUnreadableError(f"{what} cannot be read; NVML said: {_text(pynvml, error)}") from error


def _text(pynvml: ModuleType, error: Exception) -> str:
    # The binding's own table words some errors differently from the library, and people search for the library's words.
    try:
        return str(pynvml.nvmlErrorString(getattr(error, "value", pynvml.NVML_ERROR_UNKNOWN)))
    except (pynvml.NVMLError, UnicodeDecodeError):
        return str(error)


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
