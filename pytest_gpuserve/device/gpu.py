"""NVIDIA GPUs: their names for ``--gpu``, their facts, and the queries to NVML."""

from __future__ import annotations

import atexit
import ctypes
import re
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Final, TypeVar, final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType


AUTO = "auto"
"""Value of ``--gpu`` for the device that is present."""

CPU = "cpu"
"""Value of ``--gpu``, and baseline folder, of a run without a GPU."""

RESERVED_NAMES = frozenset({AUTO, CPU})
"""Reserved names, which no GPU may have."""

_LONGEST_NAME = 96  # NVML's own buffer for a product name, well below the 255 bytes of a folder name

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
# The vendor's name stays if it stands alone, because the name must not be empty.
_VENDOR = re.compile(r"^(?:(?:nvidia|tesla)-[-._]*)+(?=[a-z0-9])", re.IGNORECASE)


def device_name(product: str) -> str:
    """Shorten a product name to the usual name of the GPU: ``Tesla T4`` is ``T4``.

    ``NVIDIA A100-SXM4-80GB`` becomes ``A100-SXM4-80GB``, ``NVIDIA GeForce RTX 3090`` becomes ``GeForce-RTX-3090``.
    The result is valid as a folder on any file system: at most 96 ASCII letters, digits, ``.``, ``_`` and ``-``,
    beginning with a letter or digit. It is never empty, and never ``cpu`` or ``auto`` in any case of letters. A second
    application changes nothing.
    """
    # Stripped at the front so that the name is not hidden, not a relative path, and not read as an option.
    safe = _UNSAFE.sub("-", product).lstrip("-._")
    short = _VENDOR.sub("", safe)[:_LONGEST_NAME].rstrip("-._") or "unnamed-gpu"
    return f"{short}-gpu" if short.lower() in RESERVED_NAMES else short


UNSUPPORTED: Final = "not supported by this GPU or its driver"
"""Reason in ``Gpu.unknown`` that is not a failure."""


@dataclass(frozen=True)
class Gpu:
    """An NVIDIA GPU, or an instance (MIG) of a divided one.

    An instance has its own name, UUID and memory. Shared facts, such as the power limit, are those of the whole GPU. A
    value that could not be read is None, with the reason in ``unknown``.

    Attributes:
        index: NVML's index of the whole GPU, in the order of the PCI bus (not always CUDA's order).
        product: The vendor's name, verbatim.
        name: The name for ``--gpu`` and for the folder under ``baselines/``.
        uuid: ``GPU-`` or ``MIG-`` and a UUID, the permanent name of the GPU, also for CUDA.
        pci_bus_id: Domain, bus, device and function, as in ``00000000:3B:00.0``.
        memory_bytes: Its whole memory; None if it shares the host's memory.
        driver: Version of the driver.
        cuda: The newest CUDA version that the driver supports, as in ``12.8``.
        power_limit_watts: The current power limit.
        max_sm_clock_mhz: The highest clock of its multiprocessors.
        mig: Whether it is divided into instances; None if it cannot be divided, or if NVML fails to report its mode and
            it has no instance.
        mig_profile: Share of an instance, such as ``1g.10gb``; None for a whole GPU.
        power_default_watts: The default power limit.
        power_most_watts: The highest possible power limit.
        max_memory_clock_mhz: The highest clock of its memory.
        application_clock_mhz: The graphics clock that applications get, as far as heat and power allow.
        application_memory_clock_mhz: The memory clock that they get.
        application_clocks_set: Whether these are off their defaults. Clocks locked by ``nvidia-smi --lock-gpu-clocks``
            do not count, because NVML does not report them.
        ecc: Whether its memory corrects errors.
        persistence: Whether the driver stays loaded while the GPU is unused.
        compute_capability: Major and minor number.
        unknown: Reason for each field that is None because it could not be read.
    """

    index: int
    product: str
    name: str
    uuid: str
    pci_bus_id: str | None
    memory_bytes: int | None
    driver: str | None
    cuda: str | None
    power_limit_watts: float | None
    max_sm_clock_mhz: int | None
    mig: bool | None
    mig_profile: str | None = None
    power_default_watts: float | None = None
    power_most_watts: float | None = None
    max_memory_clock_mhz: int | None = None
    application_clock_mhz: int | None = None
    application_memory_clock_mhz: int | None = None
    application_clocks_set: bool | None = None
    ecc: bool | None = None
    persistence: bool | None = None
    compute_capability: tuple[int, int] | None = None
    unknown: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class NvmlAnswer:
    """NVML's answer about the machine's GPUs.

    Attributes:
        gpus: The GPUs that could be read, by index; a divided GPU is replaced by its instances.
        problem: Reason why no GPU, or not every GPU, could be read; empty if all were.
        absent: Whether the only problem is that this machine has no GPU (no library, or no device). False for problems
            that may hide a GPU, such as a driver that does not fit its library.
    """

    gpus: tuple[Gpu, ...]
    problem: str
    absent: bool = False


_T = TypeVar("_T")


class Unreadable(Exception):
    """A fact that is needed to name or compare a GPU cannot be read; the text has the fact and NVML's error."""


@cache
def initialised() -> ModuleType:
    """Initialise NVML once, for the life of this process, and return its binding.

    Without persistence mode the driver takes 1 to 3 s to load a GPU's state for its first client, and drops it with the
    last one. A session is such a client from its begin to its end, so that no server's start includes that time.

    Raises:
        pynvml.NVMLError: NVML cannot be initialised; the next call tries again.
    """
    # Imported late, because every pytest run of an environment loads the plugin, and most do not measure.
    import pynvml  # noqa: PLC0415  # see above

    pynvml.nvmlInit()
    atexit.register(_shut_down, pynvml)
    return pynvml  # type: ignore[no-any-return]  # it has no types


def _shut_down(pynvml: ModuleType) -> None:
    with suppress(pynvml.NVMLError):
        pynvml.nvmlShutdown()


def is_unsupported(pynvml: ModuleType, error: Exception) -> bool:
    """Whether NVML will never answer: an older driver lacks the function, or a newer one has dropped it."""
    return getattr(error, "value", None) in {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_DEPRECATED,
    }


@final
class Reader:
    """Calls functions of the binding, and keeps the reasons of failures."""

    def __init__(self, pynvml: ModuleType) -> None:
        self.pynvml = pynvml
        self.unknown: dict[str, str] = {}

    def required(self, what: str, read: Callable[..., _T], *arguments: object) -> _T:
        """Read a fact, with a name for people, that every GPU has. Raises `Unreadable`."""
        try:
            return read(*arguments)
        except (self.pynvml.NVMLError, UnicodeDecodeError) as error:
            raise Unreadable(f"{what} cannot be read; {self.said(error)}") from error

    def supported(self, what: str, read: Callable[..., _T], *arguments: object) -> _T | None:
        """Read a fact that not every GPU has, or None. Raises `Unreadable` if that is unknown."""
        try:
            return read(*arguments)
        except (self.pynvml.NVMLError, UnicodeDecodeError) as error:
            if is_unsupported(self.pynvml, error):
                return None
            raise Unreadable(f"{what} cannot be read; {self.said(error)}") from error

    def optional(self, field: str, read: Callable[..., _T], *arguments: object) -> _T | None:
        """Read a fact that may stay unknown; the reason is kept under ``field``."""
        try:
            return read(*arguments)
        except (self.pynvml.NVMLError, UnicodeDecodeError) as error:
            self.unknown[field] = UNSUPPORTED if is_unsupported(self.pynvml, error) else self.said(error)
            return None

    def said(self, error: Exception) -> str:
        """Text of an NVML error, in the library's words."""
        if isinstance(error, UnicodeDecodeError):
            return "NVML gave bytes that are not text"
        code = getattr(error, "value", self.pynvml.NVML_ERROR_UNKNOWN)
        # The binding's texts differ from the library's in some errors, and people search for the library's.
        try:
            return f"NVML said: {self.pynvml.nvmlErrorString(code)}"
        except (self.pynvml.NVMLError, UnicodeDecodeError):
            return f"NVML said: {error}"


def list_gpus() -> NvmlAnswer:
    """Query NVML for all GPUs of this machine; a divided one (MIG) is replaced by its instances.

    Errors of NVML are not raised: they are in ``problem``, and for a fact that could not be read in the GPU's
    ``unknown``. CUDA_VISIBLE_DEVICES has no effect.
    """
    import pynvml  # noqa: PLC0415  # as by `initialised`

    try:
        return _read_all(initialised())
    except pynvml.NVMLError_LibraryNotFound:
        return _library_problem()
    except pynvml.NVMLError as error:
        no_device = error.value == pynvml.NVML_ERROR_GPU_NOT_FOUND
        return NvmlAnswer((), Reader(pynvml).said(error), absent=no_device)


def _read_all(pynvml: ModuleType) -> NvmlAnswer:
    count: int = pynvml.nvmlDeviceGetCount()
    if count == 0:
        return NvmlAnswer((), "NVML found no NVIDIA GPU on this machine", absent=True)
    system = read_system(pynvml)
    gpus: list[Gpu] = []
    problems: list[str] = []
    for index in range(count):
        read, why_not = read_gpus(pynvml, index, system)
        gpus += read
        problems += why_not
    return NvmlAnswer(tuple(gpus), "; ".join(problems))


def _library_problem() -> NvmlAnswer:
    # The binding reports every failure to load as "not found", even a damaged file or one for another architecture.
    library = "libnvidia-ml.so.1"
    try:
        ctypes.CDLL(library)
    except OSError as error:
        reason = str(error)
    else:
        reason = "the library loads now, but did not a moment ago"
    # The same words with another file's name would mean that a dependency is missing.
    if reason.startswith(f"{library}: cannot open shared object file: No such file"):
        return NvmlAnswer((), f"{library} is not on this machine", absent=True)
    return NvmlAnswer((), f"{library} is on this machine but cannot be loaded: {reason}")


_INSTANCE_NAME: Final = re.compile(r"\bMIG (\S+)$")
"""End of an instance's name in NVML: its profile, such as ``1g.10gb``."""


@dataclass(frozen=True)
class System:
    """Facts that all GPUs of a machine share; `unknown` has the reason for a field that is None."""

    driver: str | None
    cuda: str | None
    unknown: dict[str, str]


def read_system(pynvml: ModuleType) -> System:
    """Read the facts that all GPUs share."""
    reader = Reader(pynvml)
    driver = reader.optional("driver", pynvml.nvmlSystemGetDriverVersion)
    number = reader.optional("cuda", pynvml.nvmlSystemGetCudaDriverVersion_v2)
    # 1000 * major + 10 * minor: nvml.h, NVML_CUDA_DRIVER_VERSION_MAJOR and _MINOR.
    cuda = None if number is None else f"{number // 1000}.{number % 1000 // 10}"
    return System(driver, cuda, reader.unknown)


def read_gpus(pynvml: ModuleType, index: int, system: System) -> tuple[list[Gpu], list[str]]:
    """Read a GPU, or its instances if it is divided; also return the reasons of failures."""
    try:
        reader = Reader(pynvml)
        handle = reader.required("the GPU itself", pynvml.nvmlDeviceGetHandleByIndex, index)
        mig = _read_mig(reader, handle)
        gpu = _read_facts(reader, handle, index, system, mig=mig)
        if not mig:
            memory = _read_memory(reader, handle)
            return [replace(gpu, memory_bytes=memory, unknown=_with_memory(reader, memory))], []
    except Unreadable as problem:
        return [], [f"GPU {index}: {problem}"]
    return _read_instances(pynvml, handle, gpu)


def _read_mig(reader: Reader, handle: object) -> bool | None:
    """Whether it is divided: by its mode, or, if NVML fails to report that, by the existence of an instance."""
    pynvml = reader.pynvml
    modes = reader.optional("mig", pynvml.nvmlDeviceGetMigMode, handle)
    if modes is not None:
        # The pair is (current, pending); pending takes effect only after a reset.
        return bool(modes[0] == pynvml.NVML_DEVICE_MIG_ENABLE)
    if reader.unknown["mig"] == UNSUPPORTED:
        del reader.unknown["mig"]
        return None
    try:
        pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, 0)
    except pynvml.NVMLError:
        return None
    return True


def _read_facts(reader: Reader, handle: object, index: int, system: System, *, mig: bool | None) -> Gpu:
    """Read all facts except the memory, which not every user may read for a divided GPU."""
    pynvml = reader.pynvml
    product, uuid = _read_identity(reader, handle)
    reader.unknown.update(system.unknown)
    limits = reader.optional("power_most_watts", pynvml.nvmlDeviceGetPowerManagementLimitConstraints, handle)
    ecc = reader.optional("ecc", pynvml.nvmlDeviceGetEccMode, handle)
    persistence = reader.optional("persistence", pynvml.nvmlDeviceGetPersistenceMode, handle)
    clock, memory_clock, are_set = _read_application_clocks(reader, handle)
    return Gpu(
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
        # A missing clock makes the comparison unknown; new drivers have dropped both.
        unknown = reader.unknown
        why = unknown.get("application_clock_mhz") or unknown.get("application_memory_clock_mhz", "")
        unknown.setdefault("application_clocks_set", why)
        return clock, memory_clock, None
    return clock, memory_clock, False


def _read_instances(pynvml: ModuleType, handle: object, gpu: Gpu) -> tuple[list[Gpu], list[str]]:
    try:
        most = Reader(pynvml).required("the number of its MIG instances", pynvml.nvmlDeviceGetMaxMigDeviceCount, handle)
    except Unreadable as problem:
        return [], [f"GPU {gpu.index}: {problem}"]
    gpus: list[Gpu] = []
    problems: list[str] = []
    for number in range(most):
        try:
            instance = _read_instance(pynvml, handle, number, gpu)
        except Unreadable as problem:
            problems.append(f"GPU {gpu.index}, MIG instance {number}: {problem}")
        else:
            if instance is not None:
                gpus.append(instance)
    if not gpus and not problems:
        hint = "`nvidia-smi mig -lgip` shows what can be made"
        problems = [f"GPU {gpu.index} is divided (MIG mode is on), but has no instance for this process; {hint}"]
    return gpus, problems


def _read_instance(pynvml: ModuleType, handle: object, number: int, gpu: Gpu) -> Gpu | None:
    reader = Reader(pynvml)
    try:
        own = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
    except pynvml.NVMLError as error:
        # A GPU can hold more instances than exist.
        if error.value == pynvml.NVML_ERROR_NOT_FOUND:
            return None
        raise Unreadable(f"the instance itself cannot be read; {reader.said(error)}") from error
    product, uuid = _read_identity(reader, own)
    profile = _INSTANCE_NAME.search(product)
    if profile is None:
        raise Unreadable(f"NVML gave the name {product!r}, which does not contain a profile")
    memory = _read_memory(reader, own)
    return replace(
        gpu,
        product=product,
        name=device_name(product),
        uuid=uuid,
        mig_profile=profile[1],
        memory_bytes=memory,
        unknown={**gpu.unknown, **_with_memory(reader, memory)},
    )


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _pci_bus_id(pynvml: ModuleType, handle: object) -> str:
    raw: bytes | str = pynvml.nvmlDeviceGetPciInfo(handle).busId
    return raw.decode("ascii") if isinstance(raw, bytes) else raw
