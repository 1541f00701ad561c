"""The facts of one NVIDIA card, or of the instances into which it is divided (MIG)."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.device.binding import Reader, Unreadable, opened
from pytest_gpuserve.device.card import UNSUPPORTED, Card, NvmlAnswer
from pytest_gpuserve.device.names import device_name

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


_INSTANCE_NAME: Final = re.compile(r"\bMIG (\S+)$")
"""How NVML ends the name of an instance: with its profile, such as ``1g.10gb``."""


@dataclass(frozen=True)
class System:
    """What all cards of a machine share.

    Args:
        driver: Version of the driver.
        cuda: The newest CUDA version that it supports.
        unknown: For each that is None, why.
    """

    driver: str | None
    cuda: str | None
    unknown: dict[str, str]


def read_system(pynvml: ModuleType) -> System:
    """Read what all cards share."""
    reader = Reader(pynvml)
    driver = reader.optional("driver", pynvml.nvmlSystemGetDriverVersion)
    number = reader.optional("cuda", pynvml.nvmlSystemGetCudaDriverVersion_v2)
    # 1000 * major + 10 * minor: nvml.h, NVML_CUDA_DRIVER_VERSION_MAJOR and _MINOR.
    cuda = None if number is None else f"{number // 1000}.{number % 1000 // 10}"
    return System(driver, cuda, reader.unknown)


def read_cards(pynvml: ModuleType, index: int, system: System) -> tuple[list[Card], list[str]]:
    """Read a card, or in its place its instances.

    Args:
        pynvml: The binding.
        index: Of the card.
        system: What it shares with the others.

    Returns:
        What could be read, and why something could not be.
    """
    try:
        reader = Reader(pynvml)
        handle = reader.required("the card itself", pynvml.nvmlDeviceGetHandleByIndex, index)
        # Whoever cannot tell a slice from the whole card cannot compare either with anything.
        modes = reader.supported("its MIG mode", pynvml.nvmlDeviceGetMigMode, handle)
        # The pair is (current, pending); pending takes effect only after a reset.
        mig = None if modes is None else modes[0] == pynvml.NVML_DEVICE_MIG_ENABLE
        card = _read_facts(reader, handle, index, system, mig=mig)
        if not mig:
            memory = _read_memory(reader, handle)
            return [replace(card, memory_bytes=memory, unknown=_with_memory(reader, memory))], []
    except Unreadable as problem:
        return [], [f"card {index}: {problem}"]
    return _read_instances(pynvml, handle, card)


def _read_facts(reader: Reader, handle: object, index: int, system: System, *, mig: bool | None) -> Card:
    """Read all but the memory, which of a divided card is not everybody's to ask for."""
    pynvml = reader.pynvml
    product, uuid = _read_identity(reader, handle)
    reader.unknown.update(system.unknown)
    limits = reader.optional("power_most_watts", pynvml.nvmlDeviceGetPowerManagementLimitConstraints, handle)
    ecc = reader.optional("ecc", pynvml.nvmlDeviceGetEccMode, handle)
    persistence = reader.optional("persistence", pynvml.nvmlDeviceGetPersistenceMode, handle)
    clock, memory_clock, are_set = _read_application_clocks(reader, handle)
    return Card(
        index=index,
        product=product,
        name=device_name(product),
        uuid=uuid,
        pci_bus_id=reader.optional("pci_bus_id", _pci_bus_id, pynvml, handle),
        memory_bytes=None,
        driver=system.driver,
        cuda=system.cuda,
        power_limit_watts=_watts(
            reader.optional("power_limit_watts", pynvml.nvmlDeviceGetPowerManagementLimit, handle)
        ),
        max_sm_clock_mhz=reader.optional(
            "max_sm_clock_mhz", pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_SM
        ),
        mig=mig,
        power_default_watts=_watts(
            reader.optional("power_default_watts", pynvml.nvmlDeviceGetPowerManagementDefaultLimit, handle)
        ),
        power_most_watts=None if limits is None else _watts(limits[1]),
        max_memory_clock_mhz=reader.optional(
            "max_memory_clock_mhz", pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_MEM
        ),
        application_clock_mhz=clock,
        application_memory_clock_mhz=memory_clock,
        application_clocks_set=are_set,
        ecc=None if ecc is None else ecc[0] == pynvml.NVML_FEATURE_ENABLED,
        persistence=None if persistence is None else persistence == pynvml.NVML_FEATURE_ENABLED,
        compute_capability=reader.optional("compute_capability", pynvml.nvmlDeviceGetCudaComputeCapability, handle),
        unknown=reader.unknown,
    )


def _read_identity(reader: Reader, handle: object) -> tuple[str, str]:
    pynvml = reader.pynvml
    product: str = reader.required("its name", pynvml.nvmlDeviceGetName, handle)
    uuid: str = reader.required("its uuid", pynvml.nvmlDeviceGetUUID, handle)
    if not product or not uuid:
        raise Unreadable(f"NVML gave an empty {'uuid' if product else 'name'}")
    return product, uuid


def _read_memory(reader: Reader, handle: object) -> int | None:
    memory = reader.supported("its memory", reader.pynvml.nvmlDeviceGetMemoryInfo, handle)
    return None if memory is None else int(memory.total)


def _with_memory(reader: Reader, memory: int | None) -> dict[str, str]:
    return reader.unknown if memory is not None else {**reader.unknown, "memory_bytes": UNSUPPORTED}


def _read_application_clocks(reader: Reader, handle: object) -> tuple[int | None, int | None, bool | None]:
    """The graphics and the memory clock for applications, and whether one of them is off its default."""
    pynvml = reader.pynvml
    now, default = pynvml.nvmlDeviceGetApplicationsClock, pynvml.nvmlDeviceGetDefaultApplicationsClock
    clock = reader.optional("application_clock_mhz", now, handle, pynvml.NVML_CLOCK_GRAPHICS)
    memory_clock = reader.optional("application_memory_clock_mhz", now, handle, pynvml.NVML_CLOCK_MEM)
    usual = reader.optional("application_clocks_set", default, handle, pynvml.NVML_CLOCK_GRAPHICS)
    usual_memory = reader.optional("application_clocks_set", default, handle, pynvml.NVML_CLOCK_MEM)
    pairs = [(clock, usual), (memory_clock, usual_memory)]
    if any(None not in pair and pair[0] != pair[1] for pair in pairs):
        reader.unknown.pop("application_clocks_set", None)
        return clock, memory_clock, True
    if any(None in pair for pair in pairs):
        reader.unknown.setdefault("application_clocks_set", "it follows from the application clocks")
        return clock, memory_clock, None
    return clock, memory_clock, False


def _read_instances(pynvml: ModuleType, handle: object, card: Card) -> tuple[list[Card], list[str]]:
    try:
        most = Reader(pynvml).required("the number of its MIG instances", pynvml.nvmlDeviceGetMaxMigDeviceCount, handle)
    except Unreadable as problem:
        return [], [f"card {card.index}: {problem}"]
    cards: list[Card] = []
    problems: list[str] = []
    for number in range(most):
        try:
            instance = _read_instance(pynvml, handle, number, card)
        except Unreadable as problem:
            problems.append(f"card {card.index}, MIG instance {number}: {problem}")
        else:
            if instance is not None:
                cards.append(instance)
    if not cards and not problems:
        hint = "`nvidia-smi mig -lgip` shows what can be made"
        problems = [f"card {card.index} is divided (MIG mode is on), but has no instance for this process; {hint}"]
    return cards, problems


def _read_instance(pynvml: ModuleType, handle: object, number: int, card: Card) -> Card | None:
    reader = Reader(pynvml)
    try:
        own = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
    except pynvml.NVMLError as error:
        # A card has room for more instances than were made.
        if error.value == pynvml.NVML_ERROR_NOT_FOUND:
            return None
        raise Unreadable(f"the instance itself cannot be read; {reader.said(error)}") from error
    product, uuid = _read_identity(reader, own)
    profile = _INSTANCE_NAME.search(product)
    if profile is None:
        raise Unreadable(f"NVML gave the name {product!r}, in which there is no profile")
    memory = _read_memory(reader, own)
    return replace(
        card,
        product=product,
        name=device_name(product),
        uuid=uuid,
        mig_profile=profile[1],
        memory_bytes=memory,
        unknown={**card.unknown, **_with_memory(reader, memory)},
    )


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _pci_bus_id(pynvml: ModuleType, handle: object) -> str:
    raw: bytes | str = pynvml.nvmlDeviceGetPciInfo(handle).busId
    return raw.decode("ascii") if isinstance(raw, bytes) else raw
