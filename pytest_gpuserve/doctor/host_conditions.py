"""What of the machine itself would disturb a measurement, from what was seen of it. Pure: no clock, no file."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.doctor.finding import Condition, Level
from pytest_gpuserve.units import format_fraction, format_seconds

if TYPE_CHECKING:
    from pytest_gpuserve.doctor.facts import BusyProcess, CpuUse, HostNow, Space

SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 -- a name

MIB: Final = 2**20
GIB: Final = 2**30

LEAST_CORES: Final = 4
"""With fewer the load engine and the server take turns on them."""

MOST_FOREIGN_CORES: Final = 0.25
"""That others may use before it is told."""

MOST_STOLEN: Final = 0.01
"""Share of the cores now, or of the CPU time since the boot."""

MOST_SWAPPED_BYTES: Final = 64 * MIB
"""What lies on disk and stays there is mostly what nobody needs."""

LEAST_SHARED_BYTES: Final = 256 * MIB
"""Four times what docker gives a container by itself."""

LEAST_OPEN_FILES: Final = 4096
"""Four times what most shells have by themselves."""

LEAST_TEMP_BYTES: Final = GIB
FULL_BYTES: Final = 16 * MIB


def host_conditions(now: HostNow) -> list[Condition]:
    """Judge the machine.

    Args:
        now: What was seen of it.
    """
    return [
        _host(now),
        _governor(now),
        _boost(now),
        _cores(now),
        _core_limit(now),
        _others(now),
        _stolen(now),
        _swap(now),
        _shared_memory(now),
        _open_files(now),
        _temp(now),
    ]


def _why(now: HostNow, field: str, otherwise: str) -> str:
    return now.unknown.get(field, otherwise)


def _host(now: HostNow) -> Condition:
    if now.host is not None:
        return Condition("identity", Level.OK, f"host {now.host.id} in baselines")
    if now.host_problem:
        effect = "pytest refuses to measure"
        return Condition("identity", Level.PREVENTS, now.host_problem, effect, now.host_remedy)
    return Condition("identity", Level.UNKNOWN, _why(now, "host", "not read"), "baselines are those of one host")


def _governor(now: HostNow) -> Condition:
    governor = None if now.host is None else now.host.governor
    effect = "cores clock up only under load, so the first requests after each pause are late"
    if governor is None:
        found = "the kernel does not tell, as in most virtual machines and containers"
        return Condition("governor", Level.UNKNOWN, found, effect, "read it on the host: cpupower frequency-info")
    if governor == "performance":
        return Condition("governor", Level.OK, governor)
    return Condition("governor", Level.WARNING, governor, effect, "sudo cpupower frequency-set -g performance")


def _boost(now: HostNow) -> Condition:
    effect = "clocks that depend on heat and on how many cores work make two runs differ"
    if now.boost is None:
        found = _why(now, "boost", "the kernel does not tell whether turbo is on")
        return Condition("turbo", Level.UNKNOWN, found, effect, "read it on the host: cpupower frequency-info")
    if not now.boost.on:
        return Condition("turbo", Level.OK, "off")
    return Condition("turbo", Level.WARNING, "on", effect, now.boost.turn_off)


def _cores(now: HostNow) -> Condition:
    if now.host is None:
        return Condition("cores", Level.UNKNOWN, _why(now, "host", "not read"))
    cores = now.host.cores
    if cores >= LEAST_CORES:
        return Condition("cores", Level.OK, f"{cores} for client and server")
    return Condition(
        "cores",
        Level.WARNING,
        f"{cores} for client and server",
        "the load engine and the server share cores, so p99 holds the client's own waiting",
        f"measure with {LEAST_CORES} or more: on another machine, or docker run --cpuset-cpus=0-{LEAST_CORES - 1}",
    )


def _core_limit(now: HostNow) -> Condition:
    limit = now.core_limit
    effect = "who has used up the time of a period stands still until the next: pauses of up to 100 ms in p99"
    if limit is None:
        return Condition("time quota", Level.UNKNOWN, _why(now, "core_limit", "no control group tells"), effect)
    if math.isinf(limit):
        return Condition("time quota", Level.OK, "none")
    found = f"{limit:g} cores' worth of time"
    remedy = (
        "give whole cores in place of time: docker run --cpuset-cpus=0-3, without --cpus; in Kubernetes no CPU limit"
    )
    return Condition("time quota", Level.WARNING, found, effect, remedy)


def _others(now: HostNow) -> Condition:
    effect = "what others take, client and server do not get: it looks like a regression"
    use = now.cpu
    if use is None:
        return Condition("other processes", Level.UNKNOWN, _why(now, "cpu", "not seen"), effect)
    found = f"{use.by_others:.2f} cores in {format_seconds(use.seconds)}"
    # The counters of the whole machine and those of its processes move in ticks of their own.
    named = sum(process.cores for process in use.processes)
    if max(use.by_others, named) <= MOST_FOREIGN_CORES:
        return Condition("other processes", Level.OK, found)
    found = f"{max(use.by_others, named):.2f} cores in {format_seconds(use.seconds)}: {_named(use, now.sees_all)}"
    return Condition("other processes", Level.WARNING, found, effect, _end(use.processes))


def _named(use: CpuUse, sees_all: bool) -> str:  # noqa: FBT001 -- of this file alone
    shown = [f"{process.name} (pid {process.pid}) {process.cores:.2f}" for process in use.processes]
    rest = use.by_others - sum(process.cores for process in use.processes)
    if rest > MOST_FOREIGN_CORES or not shown:
        who = "small ones, or processes that came and went" if sees_all else "processes that cannot be seen from here"
        shown.append(f"{who} {max(0.0, rest):.2f}")
    return ", ".join(shown)


def _end(processes: tuple[BusyProcess, ...]) -> str:
    if not processes:
        return "look on the host itself: top"
    return f"wait until they are done, or end them: ps -fp {','.join(str(process.pid) for process in processes)}"


def _stolen(now: HostNow) -> Condition:
    effect = "pauses in which another guest of the hypervisor has the core, and nobody here is the cause"
    use = now.cpu
    if use is None or now.host is None:
        return Condition("stolen time", Level.UNKNOWN, _why(now, "cpu", "not seen"), effect)
    found = f"{use.stolen:.2f} cores now, {format_fraction(use.stolen_since_boot)} of the CPU time since the boot"
    if use.stolen > MOST_STOLEN * now.host.cores or use.stolen_since_boot > MOST_STOLEN:
        return Condition(
            "stolen time", Level.WARNING, found, effect, "measure on dedicated cores, or on a real machine"
        )
    if not use.stolen_since_boot and now.is_virtual is not False:
        return Condition("stolen time", Level.UNKNOWN, "none ever, or the hypervisor does not tell", effect)
    return Condition("stolen time", Level.OK, found)


def _swap(now: HostNow) -> Condition:
    effect = "who needs a page that lies on disk waits milliseconds for it"
    swap = now.swap
    if swap is None:
        return Condition("swap", Level.UNKNOWN, _why(now, "swap", "not seen"), effect)
    found = f"{_size(swap.used_bytes)} in use"
    if swap.moved_bytes:
        found = f"swapping: {_size(swap.moved_bytes)} just now, {found}"
        return Condition("swap", Level.WARNING, found, effect, "free memory first, then: sudo swapoff -a")
    if swap.used_bytes > MOST_SWAPPED_BYTES:
        return Condition("swap", Level.WARNING, found, effect, "sudo swapoff -a")
    return Condition("swap", Level.OK, found)


def _shared_memory(now: HostNow) -> Condition:
    effect = "Triton's Python models and workers with shared memory fail, or fall back to copies"
    remedy = "sudo mount -o remount,size=2g /dev/shm; for a container: docker run --shm-size=2g"
    space = now.shared_memory
    if space is None:
        return Condition(SHARED_MEMORY, Level.UNKNOWN, _why(now, "shared_memory", "not seen"), effect, remedy)
    level = Level.WARNING if space.free_bytes < LEAST_SHARED_BYTES else Level.OK
    return _of_space(SHARED_MEMORY, level, space, effect, remedy)


def _open_files(now: HostNow) -> Condition:
    effect = "a server or client with as many connections refuses the next"
    remedy = "ulimit -n 65536"
    if now.open_files is None:
        return Condition("open files", Level.UNKNOWN, _why(now, "open_files", "not seen"), effect, remedy)
    soft, hard = now.open_files
    found = f"{_number(soft)} a process, at most {_number(hard)}"
    if soft >= LEAST_OPEN_FILES:
        return Condition("open files", Level.OK, found)
    if hard < LEAST_OPEN_FILES:
        remedy = "raise the hard limit: docker run --ulimit nofile=65536, or LimitNOFILE=65536 of the runner's service"
    return Condition("open files", Level.WARNING, found, effect, remedy)


def _temp(now: HostNow) -> Condition:
    effect = "logs, models and results have no room, and a server that cannot write ends"
    space = now.temp
    if space is None:
        found = _why(now, "temp", "not seen")
        return Condition("temporary files", Level.PREVENTS, found, effect, "set TMPDIR to a folder with room")
    remedy = f"set TMPDIR to a folder with room, or make room: du -xsh {space.path}/*"
    level = Level.OK
    if space.free_bytes < LEAST_TEMP_BYTES:
        level = Level.PREVENTS if space.free_bytes < FULL_BYTES else Level.WARNING
    return _of_space("temporary files", level, space, effect, remedy)


def _of_space(what: str, level: Level, space: Space, effect: str, remedy: str) -> Condition:
    where = "" if space.path == what else f" in {space.path}"
    found = f"{_size(space.free_bytes)} of {_size(space.total_bytes)} free{where}"
    return Condition(what, level, found) if level is Level.OK else Condition(what, level, found, effect, remedy)


def _size(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / MIB:.0f} MiB"


def _number(limit: float) -> str:
    return "no limit" if math.isinf(limit) else f"{limit:.0f}"
