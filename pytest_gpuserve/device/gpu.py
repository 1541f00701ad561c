"""NVIDIA GPUs: their names for ``--gpu``, their facts, and the queries to NVML."""

from __future__ import annotations

import atexit
import ctypes
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
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


@dataclass(frozen=True)
class Gpu:
    """An NVIDIA GPU, or an instance (MIG) of a divided one.

    An instance has its own name, UUID and memory. Shared facts, such as the power limit, are those of the whole GPU. A
    value that could not be read is None.

    Attributes:
        index: NVML's index of the whole GPU, in the order of the PCI bus (not always CUDA's order).
        product: The vendor's name, verbatim.
        name: The name for ``--gpu`` and for the folder under ``baselines/``.
        uuid: ``GPU-`` or ``MIG-`` and a UUID, the permanent name of the GPU, also for CUDA.
        memory_bytes: Its whole memory; None if it shares the host's memory.
        driver: Version of the driver.
        cuda: The newest CUDA version that the driver supports, as in ``12.8``.
        power_limit_watts: The current power limit.
        max_sm_clock_mhz: The highest clock of its multiprocessors.
        mig_profile: Share of an instance, such as ``1g.10gb``; None for a whole GPU.
        power_default_watts: The default power limit.
        max_memory_clock_mhz: The highest clock of its memory.
        application_clock_mhz: The graphics clock that applications get, as far as heat and power allow.
        application_memory_clock_mhz: The memory clock that they get.
        application_clocks_set: Whether these are off their defaults. Clocks locked by ``nvidia-smi --lock-gpu-clocks``
            do not count, because NVML does not report them.
        ecc: Whether its memory corrects errors.
        persistence: Whether the driver stays loaded while the GPU is unused.
        compute_capability: Major and minor number.
    """

    index: int
    product: str
    name: str
    uuid: str
    memory_bytes: int | None
    driver: str | None
    cuda: str | None
    power_limit_watts: float | None
    max_sm_clock_mhz: int | None
    mig_profile: str | None = None
    power_default_watts: float | None = None
    max_memory_clock_mhz: int | None = None
    application_clock_mhz: int | None = None
    application_memory_clock_mhz: int | None = None
    application_clocks_set: bool | None = None
    ecc: bool | None = None
    persistence: bool | None = None
    compute_capability: tuple[int, int] | None = None


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
    """A fact that is needed to name a GPU cannot be read; the text has the fact and NVML's error."""


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


def _said(pynvml: ModuleType, error: Any) -> str:  # noqa: ANN401 -- an NVMLError, which has no types
    """Text of an NVML error, in the library's words: the binding's differ, and people search for the library's."""
    return f"NVML said: {pynvml.nvmlErrorString(error.value)}"


def _required(pynvml: ModuleType, what: str, read: Callable[..., _T], *arguments: object) -> _T:
    """Read a fact, with a name for people, that every GPU has. Raises `Unreadable`."""
    try:
        return read(*arguments)
    except pynvml.NVMLError as error:
        raise Unreadable(f"{what} cannot be read; {_said(pynvml, error)}") from error


def _optional(pynvml: ModuleType, read: Callable[..., _T], *arguments: object) -> _T | None:
    """Read a fact that may stay unknown."""
    try:
        return read(*arguments)
    except pynvml.NVMLError:
        return None


def list_gpus() -> NvmlAnswer:
    """Query NVML for all GPUs of this machine; a divided one (MIG) is replaced by its instances.

    Errors of NVML are not raised: they are in ``problem``. CUDA_VISIBLE_DEVICES has no effect.
    """
    import pynvml  # noqa: PLC0415  # as by `initialised`

    try:
        return _read_all(initialised())
    except pynvml.NVMLError_LibraryNotFound:
        return _library_problem()
    except pynvml.NVMLError as error:
        no_device = error.value == pynvml.NVML_ERROR_GPU_NOT_FOUND
        return NvmlAnswer((), _said(pynvml, error), absent=no_device)


def _read_all(pynvml: ModuleType) -> NvmlAnswer:
    count: int = pynvml.nvmlDeviceGetCount()
    if count == 0:
        return NvmlAnswer((), "NVML found no NVIDIA GPU on this machine", absent=True)
    gpus: list[Gpu] = []
    problems: list[str] = []
    for index in range(count):
        try:
            gpus += _read_gpus(pynvml, index, problems)
        except Unreadable as problem:
            problems.append(f"GPU {index}: {problem}")
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


def _read_gpus(pynvml: ModuleType, index: int, problems: list[str]) -> list[Gpu]:
    """Read a GPU, or its instances if it is divided; reasons why an instance cannot be read are added to ``problems``.

    Raises:
        Unreadable: The GPU cannot be named, or its instances cannot be counted.
    """
    handle = _required(pynvml, "the GPU itself", pynvml.nvmlDeviceGetHandleByIndex, index)
    gpu = _read_facts(pynvml, handle, index)
    if not _is_divided(pynvml, handle):
        return [gpu]
    most = _required(pynvml, "the number of its MIG instances", pynvml.nvmlDeviceGetMaxMigDeviceCount, handle)
    gpus: list[Gpu] = []
    found: list[str] = []
    for number in range(most):
        try:
            instance = _read_instance(pynvml, handle, number, gpu)
        except Unreadable as problem:
            found.append(f"GPU {index}, MIG instance {number}: {problem}")
        else:
            gpus += [] if instance is None else [instance]
    if not gpus and not found:
        hint = "`nvidia-smi mig -lgip` shows what can be made"
        found = [f"GPU {index} is divided (MIG mode is on), but has no instance for this process; {hint}"]
    problems += found
    return gpus


def _is_divided(pynvml: ModuleType, handle: object) -> bool:
    """Whether it is divided: by its mode, or, if NVML fails to report that, by the existence of an instance."""
    modes = _optional(pynvml, pynvml.nvmlDeviceGetMigMode, handle)
    if modes is not None:
        # The pair is (current, pending); pending takes effect only after a reset.
        return bool(modes[0] == pynvml.NVML_DEVICE_MIG_ENABLE)
    return _optional(pynvml, pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, 0) is not None


def _read_facts(pynvml: ModuleType, handle: object, index: int) -> Gpu:
    def fact(read: Callable[..., _T], *arguments: object) -> _T | None:
        return _optional(pynvml, read, handle, *arguments)

    product, uuid = _read_identity(pynvml, handle)
    ecc = fact(pynvml.nvmlDeviceGetEccMode)
    persistence = fact(pynvml.nvmlDeviceGetPersistenceMode)
    cuda = _optional(pynvml, pynvml.nvmlSystemGetCudaDriverVersion_v2)
    now, default = pynvml.nvmlDeviceGetApplicationsClock, pynvml.nvmlDeviceGetDefaultApplicationsClock
    clocks, usual = (
        [fact(read, kind) for kind in (pynvml.NVML_CLOCK_GRAPHICS, pynvml.NVML_CLOCK_MEM)] for read in (now, default)
    )
    return Gpu(
        index=index,
        product=product,
        name=device_name(product),
        uuid=uuid,
        memory_bytes=_read_memory(pynvml, handle),
        driver=_optional(pynvml, pynvml.nvmlSystemGetDriverVersion),
        # 1000 * major + 10 * minor: nvml.h, NVML_CUDA_DRIVER_VERSION_MAJOR and _MINOR.
        cuda=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
        power_limit_watts=_watts(fact(pynvml.nvmlDeviceGetPowerManagementLimit)),
        max_sm_clock_mhz=fact(pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_SM),
        power_default_watts=_watts(fact(pynvml.nvmlDeviceGetPowerManagementDefaultLimit)),
        max_memory_clock_mhz=fact(pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_MEM),
        application_clock_mhz=clocks[0],
        application_memory_clock_mhz=clocks[1],
        application_clocks_set=_are_set(clocks, usual),
        ecc=None if ecc is None else ecc[0] == pynvml.NVML_FEATURE_ENABLED,
        persistence=None if persistence is None else persistence == pynvml.NVML_FEATURE_ENABLED,
        compute_capability=fact(pynvml.nvmlDeviceGetCudaComputeCapability),
    )


def _are_set(clocks: Sequence[int | None], usual: Sequence[int | None]) -> bool | None:
    """Whether a clock is off its default; None if none is, and one is unknown. New drivers have dropped both."""
    pairs = list(zip(clocks, usual, strict=True))
    if any(None not in pair and pair[0] != pair[1] for pair in pairs):
        return True
    return None if any(None in pair for pair in pairs) else False


def _read_identity(pynvml: ModuleType, handle: object) -> tuple[str, str]:
    product: str = _required(pynvml, "its name", pynvml.nvmlDeviceGetName, handle)
    uuid: str = _required(pynvml, "its uuid", pynvml.nvmlDeviceGetUUID, handle)
    if not product or not uuid:
        raise Unreadable(f"NVML gave an empty {'uuid' if product else 'name'}")
    return product, uuid


def _read_memory(pynvml: ModuleType, handle: object) -> int | None:
    memory = _optional(pynvml, pynvml.nvmlDeviceGetMemoryInfo, handle)
    return None if memory is None else int(memory.total)


def _read_instance(pynvml: ModuleType, handle: object, number: int, gpu: Gpu) -> Gpu | None:
    try:
        own = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
    except pynvml.NVMLError_NotFound:
        # A GPU can hold more instances than exist.
        return None
    except pynvml.NVMLError as error:
        raise Unreadable(f"the instance itself cannot be read; {_said(pynvml, error)}") from error
    product, uuid = _read_identity(pynvml, own)
    profile = _INSTANCE_NAME.search(product)
    if profile is None:
        raise Unreadable(f"NVML gave the name {product!r}, which does not contain a profile")
    return replace(
        gpu,
        product=product,
        name=device_name(product),
        uuid=uuid,
        mig_profile=profile[1],
        memory_bytes=_read_memory(pynvml, own),
    )


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000
