"""Scripted GPUs for the fake of NVIDIA's management library: its answers, their times, and failing calls.

    course = Course(100, (Step(700, Moment(from_ms=2000)),))
    environment = write(Script((T4, replace(H200, power_watts=course))), folder, library=library)

Facts have NVML's values in the units of the fields' names. None is a fact that the GPU does not support.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


MIB: Final = 2**20

NOT_SUPPORTED: Final = 3
FUNCTION_NOT_FOUND: Final = 13
GPU_IS_LOST: Final = 15

GPU_IDLE: Final = 0x1
SW_POWER_CAP: Final = 0x4
HW_THERMAL: Final = 0x40

XID: Final = 0x8


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Begin of something; by default it always holds.

    Args:
        call: Number, from 1, of the call of the function on that GPU (without a GPU: on any).
        only: Whether it holds at that call alone.
        from_ms: Milliseconds after the script's epoch.
    """

    call: int | None = None
    only: bool = False
    from_ms: int | None = None

    def __str__(self) -> str:
        if self.from_ms is not None:
            return f"ms:{self.from_ms}"
        if self.call is not None:
            return f"{'only' if self.only else 'call'}:{self.call}"
        return "always"


@dataclass(frozen=True)
class Process:
    """A process on a GPU; memory in bytes, None if NVML does not report it."""

    pid: int
    memory_bytes: int | None


Processes = tuple[Process, ...]
Value = int | float | Processes | None


@dataclass(frozen=True)
class Step:
    """Another value of a fact, from a moment on."""

    value: Value
    moment: Moment


@dataclass(frozen=True)
class Course:
    """A fact that changes; the last step that has come holds."""

    first: Value
    steps: tuple[Step, ...]


Fact = int | float | None | Course
ProcessFact = Processes | None | Course


@dataclass(frozen=True)
class Event:
    """A single result of ``nvmlEventSetWait_v2``: by default a critical XID error, whose number is the data."""

    data: int
    moment: Moment
    type: int = XID


@dataclass(frozen=True)
class Error:
    """A function that fails.

    Args:
        function: Its name in nvml.h, with its suffix, such as ``nvmlDeviceGetHandleByIndex_v2``.
        code: nvmlReturn_t.
        gpu: The GPU on which it fails, by its place in ``Script.gpus``; None for any.
        moment: Time of the failure.
    """

    function: str
    code: int = NOT_SUPPORTED
    gpu: int | None = None
    moment: Moment = Moment()


@dataclass(frozen=True)
class FakeSlice:
    """An instance of a divided GPU, which like a real one supports few facts.

    Args:
        profile: Profile such as ``1g.10gb``.
        uuid: UUID with ``MIG-`` in front.
        memory_bytes: Size of its memory.
        memory_used_bytes: Used part of it.
        processes: Processes on the slice.
    """

    profile: str
    uuid: str
    memory_bytes: int = 9728 * MIB
    memory_used_bytes: Fact = 12 * MIB
    processes: ProcessFact = ()


@dataclass(frozen=True)
class FakeGpu:
    """A GPU and its facts. Any fact but ``product`` and ``uuid`` may be a ``Course``.

    Args:
        power_watts: Power, whose integral over time is the energy counter; its steps are milliseconds in order.
        mig: 1 if the GPU is divided into ``slices``.
    """

    product: str
    uuid: str = "GPU-00000000-1111-2222-3333-444444444444"
    memory_bytes: Fact = 15360 * MIB
    compute_capability: str | None = "7.5"
    power_limit_watts: Fact = 70
    power_default_watts: Fact = 70
    max_sm_clock: Fact = 1590
    max_memory_clock: Fact = 5001
    application_graphics_clock: Fact = 585
    application_memory_clock: Fact = 5001
    default_application_graphics_clock: Fact = 585
    default_application_memory_clock: Fact = 5001
    ecc: Fact = 1
    persistence: Fact = 1
    mig: Fact = None
    slices: tuple[FakeSlice, ...] = ()
    most_slices: Fact = None

    sm_clock: Fact = 1500
    utilization: Fact = 0
    memory_used_bytes: Fact = 450 * MIB
    power_watts: Fact = 30
    clock_reasons: Fact = 0
    ecc_uncorrected: Fact = 0
    processes: ProcessFact = ()
    events: tuple[Event, ...] = ()


@dataclass(frozen=True)
class Script:
    """Answers of the fake.

    Args:
        gpus: GPUs by index.
        errors: Functions that fail.
        driver: Version of the driver.
        cuda: 1000 * major + 10 * minor of the CUDA version.
        epoch_ns: ``time.monotonic_ns()`` from which milliseconds count, the same for all processes; by default each
            process counts from its first nvmlInit.
    """

    gpus: tuple[FakeGpu, ...]
    errors: tuple[Error, ...] = ()
    driver: str = "570.133.20"
    cuda: int = 12080
    epoch_ns: int | None = None


def _of_a_data_center(
    product: str,
    uuid: str,
    memory_mib: int,
    capability: str,
    watts: int,
    *,
    max_clocks: tuple[int, int],
    application_clock: int | None = None,
) -> FakeGpu:
    """A GPU that can be divided; drivers of newer ones have given up application clocks."""
    memory_clock = None if application_clock is None else max_clocks[1]
    return FakeGpu(
        product,
        uuid=f"GPU-{uuid}-1111-2222-3333-444444444444",
        memory_bytes=memory_mib * MIB,
        compute_capability=capability,
        power_limit_watts=watts,
        power_default_watts=watts,
        max_sm_clock=max_clocks[0],
        max_memory_clock=max_clocks[1],
        application_graphics_clock=application_clock,
        application_memory_clock=memory_clock,
        default_application_graphics_clock=application_clock,
        default_application_memory_clock=memory_clock,
        mig=0,
        most_slices=7,
    )


T4: Final = FakeGpu("Tesla T4")
A100: Final = _of_a_data_center(
    "NVIDIA A100-SXM4-80GB", "a1000000", 81920, "8.0", 400, max_clocks=(1410, 1593), application_clock=1275
)
H100_PCIE: Final = _of_a_data_center("NVIDIA H100 PCIe", "1100c1e0", 81559, "9.0", 350, max_clocks=(1755, 1593))
H200: Final = _of_a_data_center("NVIDIA H200", "20000000", 143771, "9.0", 700, max_clocks=(1980, 3201))
DIVIDED_A100: Final = replace(
    A100,
    mig=1,
    slices=(
        FakeSlice("1g.10gb", "MIG-11111111-0000-0000-0000-000000000000"),
        FakeSlice("1g.10gb", "MIG-22222222-0000-0000-0000-000000000000"),
        FakeSlice("3g.40gb", "MIG-33333333-0000-0000-0000-000000000000", 40192 * MIB),
    ),
)


def second(gpu: FakeGpu) -> FakeGpu:
    """Another GPU of the same kind, beside the first in one machine."""
    return replace(gpu, uuid=f"GPU-2{gpu.uuid.removeprefix('GPU-')[1:]}")


def write(script: Script, folder: Path, *, library: Path) -> dict[str, str]:
    """Write a script, and make an environment for a child process whose NVML answers by it.

    Args:
        script: Answers of the fake.
        folder: An existing folder, where ``nvml.script`` is written; another script needs another folder.
        library: The folder where ``build_fake_nvml`` has put the library.

    Returns:
        The whole environment: this process's own without CUDA_VISIBLE_DEVICES, and with the fake's variables.
    """
    path = folder / "nvml.script"
    path.write_text("\n".join([*_lines(script), ""]))
    return {**fake_environment(library), "FAKE_NVML_SCRIPT": os.fspath(path)}


def write_each(scripts: Iterable[Script], folder: Path, *, library: Path) -> tuple[dict[str, str], list[str]]:
    """Write scripts for a process that looks at one after the other: by ``FAKE_NVML_SCRIPT``, at each of these paths.

    Returns:
        The environment of `write`, and the paths.
    """
    environment: dict[str, str] = {}
    paths = []
    for number, script in enumerate(scripts):
        own = folder / str(number)
        own.mkdir()
        environment = write(script, own, library=library)
        paths.append(environment["FAKE_NVML_SCRIPT"])
    return environment, paths


_KEYS: Final = {
    "memory_bytes": ("memory_total", 1),
    "memory_used_bytes": ("memory_used", 1),
    "power_limit_watts": ("power_limit_mw", 1000),
    "power_default_watts": ("power_default_mw", 1000),
    "power_watts": ("power_mw", 1000),
    "mig": ("mig_mode", 1),
    "most_slices": ("max_mig_devices", 1),
}
"""Fields whose fact has another name in the script, and how many of its units are one of the field's."""

_OTHERWISE: Final = frozenset({"slices", "events"})


def _lines(script: Script) -> Iterator[str]:
    yield f"driver {script.driver}"
    yield f"cuda {script.cuda}"
    if script.epoch_ns is not None:
        yield f"epoch {script.epoch_ns}"
    numbers: list[int] = []  # by the lines `gpu`, of which a slice has one of its own
    written = 0
    for gpu in script.gpus:
        numbers.append(written)
        yield "gpu -1"
        yield from _gpu_lines(gpu)
        for each in gpu.slices:
            written += 1
            yield f"gpu {numbers[-1]}"
            yield from _slice_lines(gpu, each)
        written += 1
    for error in script.errors:
        number = -1 if error.gpu is None else numbers[error.gpu]
        yield f"error {error.function} {number} {error.code} {error.moment}"


def _gpu_lines(gpu: FakeGpu) -> Iterator[str]:
    for field in fields(gpu):
        if field.name not in _OTHERWISE:
            key, scale = _KEYS.get(field.name, (field.name, 1))
            yield from _fact_lines(key, getattr(gpu, field.name), scale)
    for event in gpu.events:
        yield f"event {event.type} {event.data} {event.moment}"


def _slice_lines(gpu: FakeGpu, each: FakeSlice) -> Iterator[str]:
    yield from _fact_lines("product", f"{gpu.product} MIG {each.profile}", 1)
    yield from _fact_lines("uuid", each.uuid, 1)
    yield from _fact_lines("memory_total", each.memory_bytes, 1)
    yield from _fact_lines("memory_used", each.memory_used_bytes, 1)
    yield from _fact_lines("processes", each.processes, 1)


def _fact_lines(key: str, value: Value | str | Course, scale: int) -> Iterator[str]:
    if isinstance(value, Course):
        yield f"fact {key} always {_text(value.first, scale)}"
        for step in value.steps:
            yield f"fact {key} {step.moment} {_text(step.value, scale)}"
    else:
        yield f"fact {key} always {_text(value, scale)}"


def _text(value: Value | str, scale: int) -> str:
    if value is None:
        return "unsupported"
    if isinstance(value, tuple):
        shown = (f"{one.pid}:{'-' if one.memory_bytes is None else one.memory_bytes}" for one in value)
        return ",".join(shown) or "none"
    return value if isinstance(value, str) else str(round(value * scale))


LIBRARY = "libnvidia-ml.so.1"

_SOURCE = Path(__file__).with_name("fake_nvml.c")


def build_fake_nvml(folder: Path) -> Path:
    """Compile the fake into a folder, under the name by which programs load the real library.

    Args:
        folder: An existing folder; what is already built there is used as it is.

    Returns:
        The library.

    Raises:
        subprocess.CalledProcessError: The compiler refuses; its output is on standard error.
    """
    library = folder / LIBRARY
    if not library.exists():
        partial = folder / f"{LIBRARY}.{os.getpid()}"
        options = ("-shared", "-fPIC", "-std=c11", "-Wall", "-Wextra", "-Werror", "-pthread")
        subprocess.run(["cc", *options, "-o", str(partial), str(_SOURCE)], check=True)
        partial.rename(library)
    return library


def fake_environment(folder: Path) -> dict[str, str]:
    """Make the environment of a child process whose NVML is the library in a folder: a machine without a GPU.

    Returns:
        The whole environment: this process's own without CUDA_VISIBLE_DEVICES, and with the fake's variables.
    """
    own = {
        key: value
        for key, value in os.environ.items()
        if key != "CUDA_VISIBLE_DEVICES" and not key.startswith("FAKE_NVML_")
    }
    searched = [str(folder), *([own["LD_LIBRARY_PATH"]] if own.get("LD_LIBRARY_PATH") else [])]
    return {**own, "LD_LIBRARY_PATH": os.pathsep.join(searched)}
