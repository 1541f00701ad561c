"""Identity of the host, its versions, and the use of its CPU by our processes and by others.

Baselines are public files, so a hostname or machine id is never in clear.
"""

from __future__ import annotations

import hashlib
import math
import os
import platform
import re
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from pytest_gpuserve.errors import UsageProblem

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


HOST_VARIABLE = "GPUSERVE_HOST"
"""Environment variable with the host's name, so that a pool of identical machines can share one."""

_HOST_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_GIB = 2**30


@dataclass(frozen=True)
class Host:
    """The machine around the GPU.

    Attributes:
        id: Short stable identity: 12 hex digits, or the value of the environment variable GPUSERVE_HOST.
        cpu: Model of the processor.
        cores: Logical cores that this process may use (affinity and cpusets count; time quotas do not).
        memory_bytes: Memory of the machine.
        kernel: Release of the kernel.
        system: Name and version of the distribution.
        numa_nodes: Memory nodes; None if the kernel does not report them.
        governor: Choice of the cores' frequency, such as ``performance``; with commas if cores differ, and None if the
            kernel does not report it, as in most virtual machines.
    """

    id: str
    cpu: str
    cores: int
    memory_bytes: int
    kernel: str
    system: str
    numa_nodes: int | None = None
    governor: str | None = None


def read_host(*, root: Path = Path("/"), environ: Mapping[str, str] | None = None) -> Host:
    """Read the facts of this machine.

    The identity is the first 12 hex digits of SHA-256 over machine id, CPU model, the machine's logical cores and its
    memory in whole GiB. Another machine, or the same one with other hardware, has another identity.

    Args:
        root: Folder below which the machine's id, ``proc`` and ``sys`` are read.
        environ: Environment with an optional GPUSERVE_HOST; this process's own by default.

    Raises:
        UsageProblem: GPUSERVE_HOST is not a valid name.
    """
    cpu = _cpu_model(root)
    memory_bytes = psutil.virtual_memory().total
    return Host(
        id=_named_host(os.environ if environ is None else environ)
        or _identity(_machine_id(root), cpu, str(os.cpu_count()), str(round(memory_bytes / _GIB))),
        cpu=cpu,
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=memory_bytes,
        kernel=platform.release(),
        system=_system(),
        numa_nodes=_numa_nodes(root),
        governor=_governor(root),
    )


def read_core_limit(*, root: Path = Path("/")) -> float | None:
    """Read the number of cores that the control groups (version 2) of this process allow, by the tightest of them.

    Returns:
        Infinity without a limit, and None if unknown, as with version 1.
    """
    mounted = root / "sys/fs/cgroup"
    group = next((line[3:] for line in _read(root / "proc/self/cgroup").splitlines() if line.startswith("0::")), "")
    # In a container the path may be the host's, which is not mounted here, but its root is.
    own = mounted / group.lstrip("/")
    limits = [_limit_of(folder) for folder in (own, *own.parents) if folder.is_relative_to(mounted)]
    # The root of the tree has no limit, and no file of one.
    if "cpu" in _read(mounted / "cgroup.controllers").split():
        limits.append(math.inf)
    return min((limit for limit in limits if limit is not None), default=None)


def _limit_of(folder: Path) -> float | None:
    try:
        quota, period = _read(folder / "cpu.max").split()
        return math.inf if quota == "max" else int(quota) / int(period)
    except (ValueError, ZeroDivisionError):
        return None


def _named_host(environ: Mapping[str, str]) -> str | None:
    name = environ.get(HOST_VARIABLE)
    if name is None or _HOST_NAME.fullmatch(name):
        return name
    raise UsageProblem(
        f"The environment variable {HOST_VARIABLE} must name this host with 1 to 64 letters, digits, '.', '_' or '-'.",
        found=repr(name),
        remedies=(f"set it to a name such as {HOST_VARIABLE}=runner-pool-1", f"unset {HOST_VARIABLE}"),
    )


def _identity(*parts: str) -> str:
    # NUL cannot occur in any part, so no two lists of parts join to the same text.
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _machine_id(root: Path) -> str:
    for path in (root / "etc/machine-id", root / "var/lib/dbus/machine-id"):
        text = _read(path).strip()
        # systemd writes this word into images before their first start, so it is the same on all of them.
        if text and text != "uninitialized":
            return text
    return socket.gethostname()


def _cpu_model(root: Path) -> str:
    facts: dict[str, str] = {}
    for line in _read(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        facts.setdefault(key.strip(), value.strip())
    if facts.get("model name"):
        return " ".join(facts["model name"].split())
    # ARM kernels give numbers instead of a name.
    numbers = [facts[key] for key in ("CPU implementer", "CPU part", "CPU variant") if facts.get(key)]
    return " ".join([platform.machine(), *numbers])


def _system() -> str:
    try:
        facts = platform.freedesktop_os_release()
    except OSError:
        return platform.system()
    return " ".join(facts[key] for key in ("NAME", "VERSION_ID") if key in facts)


def _numa_nodes(root: Path) -> int | None:
    return len(list((root / "sys/devices/system/node").glob("node[0-9]*"))) or None


def _governor(root: Path) -> str | None:
    # A core that is switched off has no governor.
    files = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    return ",".join(sorted({name for name in map(str.strip, map(_read, files)) if name})) or None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


DEFAULT_DISTRIBUTIONS = (
    "pytest-gpuserve",
    "mosec",
    "torch",
    "transformers",
    "tritonclient",
    "litserve",
    "nvidia-pytriton",
    "numpy",
)
"""Distributions whose version can move a serving number."""


def read_software(distributions: Sequence[str] = DEFAULT_DISTRIBUTIONS) -> dict[str, str]:
    """Read the installed versions of distributions, and of Python, without importing any package.

    Absent ones are left out; one without a version in its metadata is ``unknown``.
    """
    versions = {"python": platform.python_version()}
    for distribution in distributions:
        with suppress(metadata.PackageNotFoundError):
            # A half-removed installation has metadata without a version.
            known = metadata.metadata(distribution)
            versions[distribution] = known["Version"] if "Version" in known else "unknown"  # noqa: SIM401 -- its protocol has no get
    return versions


# -- use of the CPU: time that others take looks like a slower server, and so does a starved client

# The kernel's user and nice times include guests of this host; stolen time was not used here at all.
_NOT_WORKED: Final = frozenset({"idle", "iowait", "steal", "guest", "guest_nice"})


def busy_seconds(seconds: Mapping[str, float]) -> float:
    """Sum the working time of all cores together, from the fields of ``psutil.cpu_times()``; the sum never falls.

    Idle time is left out before the addition. To add and subtract it would leave a rounding error that changes between
    readings. The sum of an idle host could then fall, which would look like a reset counter.
    """
    return sum(value for name, value in seconds.items() if name not in _NOT_WORKED)


@dataclass(frozen=True, slots=True)
class CpuReading:
    """CPU seconds used up to a moment of the monotonic clock, over all cores.

    Args:
        stolen_seconds: Time that the hypervisor gave to other guests while we had work to do.
        ours_seconds: Time of our own processes.
    """

    at_seconds: float
    busy_seconds: float
    stolen_seconds: float
    ours_seconds: float


def read_cpu(ours: Iterable[psutil.Process]) -> CpuReading:
    """Read the counters of the host and of our processes; a process that has ended counts as zero."""
    used = sum(_used(process) for process in ours)
    times = psutil.cpu_times()
    return CpuReading(
        at_seconds=time.monotonic(),
        busy_seconds=busy_seconds(times._asdict()),
        stolen_seconds=getattr(times, "steal", 0.0),
        ours_seconds=used,
    )


def cores_taken_by_others(before: CpuReading, after: CpuReading) -> float:
    """Mean cores of other processes and of stolen time between two readings, never negative."""
    seconds = after.at_seconds - before.at_seconds
    if seconds <= 0:
        return 0.0
    busy = after.busy_seconds - before.busy_seconds
    stolen = after.stolen_seconds - before.stolen_seconds
    ours = after.ours_seconds - before.ours_seconds
    return max(0.0, (busy - ours) + stolen) / seconds


def cpu_share(before: CpuReading, after: CpuReading) -> float | None:
    """Share of all the machine's cores that were busy between two readings; None if unknown.

    It is a share of all cores, because the readings are: this process may be allowed only some of them.
    """
    seconds = (after.at_seconds - before.at_seconds) * (psutil.cpu_count() or 0)
    return (after.busy_seconds - before.busy_seconds) / seconds if seconds > 0 else None


def _used(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    # A parent's counters include ended children: servers of other workers come and go meanwhile.
    return float(times.user + times.system + times.children_user + times.children_system)
