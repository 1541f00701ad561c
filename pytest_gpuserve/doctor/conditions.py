"""What would disturb a measurement: the state of the machine and of its cards, judged.

Pure: no clock, no file, no driver. ``nvidia-smi -i`` takes the index of the whole card, also where an instance
of it is meant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.doctor.look import SHARED_MEMORY
from pytest_gpuserve.measure.conditions import SLOWDOWNS
from pytest_gpuserve.measure.telemetry import describe_xid
from pytest_gpuserve.units import format_fraction, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_gpuserve.device.sample import DeviceProcess
    from pytest_gpuserve.doctor.look import BusyProcess, CardState, CpuUse, Driver, HostState, LockState, Space


class Level(Enum):
    """What a condition does to a measurement."""

    OK = "ok"
    UNKNOWN = "unknown"
    WARNING = "warning"
    PREVENTS = "prevents"


MACHINE = "machine"
"""The subject of what holds for every device."""


@dataclass(frozen=True, slots=True)
class Condition:
    """The state of one thing that can disturb a measurement.

    Args:
        what: A word for it, the same in every version: ``governor``, ``power limit``.
        level: What it does to a measurement.
        found: What was seen, or why it is unknown.
        effect: What it does, or would do, to a measurement; empty where all is well.
        remedy: What helps; may be empty.
        subject: ``machine``, ``cpu`` for that device alone, or the UUID of a card.
    """

    what: str
    level: Level
    found: str
    effect: str = ""
    remedy: str = ""
    subject: str = MACHINE


MIB: Final = 2**20
GIB: Final = 2**30

LEAST_CORES: Final = 4
"""With fewer the load engine and the server take turns on them."""

MOST_FOREIGN_CORES: Final = 0.25
"""That others may use without a warning."""

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


def host_conditions(now: HostState) -> list[Condition]:
    """Judge the machine."""
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


def _why(now: HostState, field: str, otherwise: str) -> str:
    return now.unknown.get(field, otherwise)


def _host(now: HostState) -> Condition:
    if now.host is not None:
        return Condition("identity", Level.OK, f"host {now.host.id} in baselines")
    if now.host_problem:
        effect = "pytest refuses to measure"
        return Condition("identity", Level.PREVENTS, now.host_problem, effect, now.host_remedy)
    return Condition("identity", Level.UNKNOWN, _why(now, "host", "not read"), "baselines are those of one host")


def _governor(now: HostState) -> Condition:
    governor = None if now.host is None else now.host.governor
    effect = "cores clock up only under load, so the first requests after each pause are late"
    if governor is None:
        found = "the kernel does not tell, as in most virtual machines and containers"
        return Condition("governor", Level.UNKNOWN, found, effect, "read it on the host: cpupower frequency-info")
    if governor == "performance":
        return Condition("governor", Level.OK, governor)
    return Condition("governor", Level.WARNING, governor, effect, "sudo cpupower frequency-set -g performance")


def _boost(now: HostState) -> Condition:
    effect = "clocks that depend on heat and on how many cores work make two runs differ"
    if now.boost is None:
        found = _why(now, "boost", "the kernel does not tell whether turbo is on")
        return Condition("turbo", Level.UNKNOWN, found, effect, "read it on the host: cpupower frequency-info")
    if not now.boost.on:
        return Condition("turbo", Level.OK, "off")
    return Condition("turbo", Level.WARNING, "on", effect, now.boost.turn_off)


def _cores(now: HostState) -> Condition:
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


def _core_limit(now: HostState) -> Condition:
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


def _others(now: HostState) -> Condition:
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


def _stolen(now: HostState) -> Condition:
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


def _swap(now: HostState) -> Condition:
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


def _shared_memory(now: HostState) -> Condition:
    effect = "Triton's Python models and workers with shared memory fail, or fall back to copies"
    remedy = "sudo mount -o remount,size=2g /dev/shm; for a container: docker run --shm-size=2g"
    space = now.shared_memory
    if space is None:
        return Condition(SHARED_MEMORY, Level.UNKNOWN, _why(now, "shared_memory", "not seen"), effect, remedy)
    level = Level.WARNING if space.free_bytes < LEAST_SHARED_BYTES else Level.OK
    return _of_space(SHARED_MEMORY, level, space, effect, remedy)


def _open_files(now: HostState) -> Condition:
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


def _temp(now: HostState) -> Condition:
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


HOT_CELSIUS: Final = 70
"""Above it before any load, a card has little left until it slows down, from 80 to 90 degrees on."""

POWER_TOLERANCE: Final = 0.98
"""Of the default limit; as in the rules for comparing cards."""

MOST_UNSEEN_BYTES: Final = 2**30
"""Of memory in use without a process; drivers keep up to about half of it for themselves."""

GPU_IDLE: Final = 0x1
POWER_CAP: Final = 0x4
"""Clock-event reasons of nvml.h that are no slowdown."""


def driver_condition(driver: Driver) -> Condition:
    """Judge the driver."""
    if not driver.problem:
        return Condition("driver", Level.OK, "answers")
    if driver.absent:
        return Condition("driver", Level.OK, f"no card: {driver.problem}")
    return Condition(
        "driver",
        Level.PREVENTS,
        driver.problem,
        "--gpu=auto refuses to guess, and what cannot be read is not measured on; --gpu=cpu is not affected",
        "nvidia-smi must list every card: reload the driver or reboot after its update; for a container:"
        " docker run --gpus=all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        subject="driver",
    )


def lock_condition(lock: LockState, subject: str) -> Condition:
    """Judge the lock of a device: ``cpu``, or a card's UUID."""
    effect = "two measurements at once would spoil each other, so pytest waits (ini gpuserve_lock_wait)"
    if lock.held is None:
        effect = "nothing says whether somebody measures here now"
        return Condition("lock", Level.UNKNOWN, lock.told, effect, "see who has the file: fuser -v", subject)
    if not lock.held:
        return Condition("lock", Level.OK, "nobody measures here now", subject=subject)
    remedy = "wait until it ends" + (f", or end it: kill {lock.pid}" if lock.pid else "")
    return Condition("lock", Level.PREVENTS, f"held by {lock.told}", effect, remedy, subject)


class CardConditions:
    """Judges a card by what was seen of it."""

    def __init__(self, now: CardState, *, sees_all: bool, visible: str | None) -> None:
        self._now = now
        self._card = now.card
        self._sees_all = sees_all
        self._visible = visible
        self._last = now.samples[-1] if now.samples else None

    def conditions(self) -> list[Condition]:
        """All conditions of the card."""
        seen = [
            self._lost(),
            self._hidden(),
            lock_condition(self._now.lock, self._card.uuid),
            self._processes(),
            self._temperature(),
            self._throttle(),
            self._clocks(),
            self._power_limit(),
            self._persistence(),
            self._ecc(),
        ]
        return [condition for condition in seen if condition is not None]

    def _said(self, what: str, level: Level, found: str, effect: str = "", remedy: str = "") -> Condition:
        if level is Level.OK:
            effect = remedy = ""
        return Condition(what, level, found, effect, remedy, self._card.uuid)

    def _why(self, *names: str) -> str:
        """Why something was not seen."""
        known = (*(self._now.unknown.get(name) for name in (*names, "the card")), *map(self._card.unknown.get, names))
        return next((why for why in known if why), "not seen")

    def _lost(self) -> Condition | None:
        effect = "a run on it is invalid"
        if any(event.kind == "lost" for event in self._now.events):
            return self._said("errors", Level.PREVENTS, "the card answers no more (GPU is lost)", effect, _DMESG)
        numbers = dict.fromkeys(event.number for event in self._now.events)
        if numbers:
            found = "; ".join(f"XID {number} just now: {describe_xid(number)}" for number in numbers)
            return self._said("errors", Level.WARNING, found, effect, _DMESG)
        return None

    def _hidden(self) -> Condition | None:
        if self._now.visible:
            return None
        found = f"hidden by CUDA_VISIBLE_DEVICES={self._visible}"
        return self._said("visible", Level.WARNING, found, "--gpu does not take it", "unset CUDA_VISIBLE_DEVICES")

    def _processes(self) -> Condition:
        what, effect = "processes", "it computes beside what is measured: a run beside a foreign process is invalid"
        who = f"nvidia-smi -i {self._card.index} --query-compute-apps=pid,name --format=csv"
        end = f"end them, or measure on another card: {who}"
        seen = [sample.processes for sample in self._now.samples if sample.processes is not None]
        if any(seen):
            found = self._shown(process for each in seen for process in each)
            return self._said(what, Level.PREVENTS, found, effect, end)
        if not seen:
            return self._said(what, Level.UNKNOWN, self._why("processes"), effect, end)
        used = max((sample.memory_used_bytes or 0 for sample in self._now.samples), default=0)
        busy = max((sample.gpu_utilisation or 0.0 for sample in self._now.samples), default=0.0)
        state = f"{format_fraction(busy)} busy, {used / MIB:.0f} MiB in use"
        if busy or used > MOST_UNSEEN_BYTES:
            return self._said(what, Level.WARNING, f"none that can be seen from here, but it is {state}", effect, end)
        if not self._sees_all:
            found = f"none that can be seen from within this container ({state})"
            return self._said(what, Level.UNKNOWN, found, effect, "docker run --pid=host")
        return self._said(what, Level.OK, f"none ({state})")

    def _shown(self, processes: Iterable[DeviceProcess]) -> str:
        last = {process.pid: process for process in processes}
        # In a container with pids of its own, the same number may be another program's.
        names = {pid: process.name for pid, process in last.items() if self._sees_all}
        return ", ".join(
            f"{names.get(pid) or 'a process that cannot be seen from here'} (pid {pid})"
            + ("" if process.memory_bytes is None else f" with {process.memory_bytes / MIB:.0f} MiB")
            for pid, process in last.items()
        )

    def _temperature(self) -> Condition:
        what, effect = "temperature", "a hot card clocks lower, and slows down under load"
        seen = [sample.temperature_celsius for sample in self._now.samples if sample.temperature_celsius is not None]
        if not seen:
            return self._said(what, Level.UNKNOWN, self._why("temperature"), effect)
        hot = max(seen) >= HOT_CELSIUS
        found = f"{max(seen)} °C"
        return self._said(
            what, Level.WARNING if hot else Level.OK, found, effect, "let it cool; see to fans and airflow"
        )

    def _throttle(self) -> Condition:
        what, effect = "throttling", "windows in which it is slowed down are rejected and measured again"
        look = f"nvidia-smi -i {self._card.index} -q -d PERFORMANCE,TEMPERATURE,POWER"
        reasons = self._reasons()
        if reasons is None:
            return self._said(what, Level.UNKNOWN, self._why("clock-event reasons"), effect, look)
        found = [text for bit, text in SLOWDOWNS.items() if reasons & bit]
        if reasons & POWER_CAP:
            found.append("at its power limit (SW_POWER_CAP) before any load of ours")
        if found:
            return self._said(what, Level.WARNING, f"now: {', '.join(found)}", effect, look)
        return self._said(what, Level.OK, "none now")

    def _clocks(self) -> Condition:
        card, what = self._card, "clocks"
        effect = "clocks that follow load and heat make two runs of one build differ"
        top = card.application_clock_mhz or card.max_sm_clock_mhz or "MHZ"
        remedy = f"sudo nvidia-smi -i {card.index} --lock-gpu-clocks={top} (undo: --reset-gpu-clocks)"
        seen = [sample.sm_clock_mhz for sample in self._now.samples if sample.sm_clock_mhz is not None]
        at = f", now at {seen[-1]} MHz" if seen else ""
        if card.application_clocks_set:
            return self._said(what, Level.OK, f"application clocks are set, to {card.application_clock_mhz} MHz{at}")
        reasons = self._reasons()
        if (reasons is not None and reasons & GPU_IDLE) or len(set(seen)) > 1:
            return self._said(what, Level.WARNING, f"not locked: they follow the load{at}", effect, remedy)
        found = f"NVML does not tell whether they are locked{at}"
        return self._said(what, Level.UNKNOWN, found, effect, remedy)

    def _power_limit(self) -> Condition:
        limit, default, what = self._card.power_limit_watts, self._card.power_default_watts, "power limit"
        effect = "under load it decides the clocks; its numbers are never compared with those at another limit"
        if limit is None or default is None:
            return self._said(what, Level.UNKNOWN, self._why("power_limit_watts", "power_default_watts"), effect)
        found = f"{limit:g} W of {default:g} W by default"
        low = limit < POWER_TOLERANCE * default
        remedy = f"sudo nvidia-smi -i {self._card.index} --power-limit={default:g}"
        return self._said(what, Level.WARNING if low else Level.OK, found, effect, remedy)

    def _persistence(self) -> Condition:
        on, what = self._card.persistence, "persistence mode"
        effect = "the first start on the card loads the driver, which makes a cold start longer, and drops set clocks"
        remedy = f"sudo nvidia-smi -i {self._card.index} -pm 1"
        if on is None:
            return self._said(what, Level.UNKNOWN, self._why("persistence"), effect, remedy)
        return self._said(what, Level.OK if on else Level.WARNING, "on" if on else "off", effect, remedy)

    def _ecc(self) -> Condition:
        what, effect = "ECC errors", "its memory is failing: answers may be wrong, and a run with a new one is invalid"
        remedy = f"nvidia-smi -i {self._card.index} -q -d ECC,ROW_REMAPPER; then have the card reset or replaced"
        count = None if self._last is None else self._last.uncorrected_ecc
        if count is None:
            found = "ECC is off, so they are not seen" if self._card.ecc is False else self._why(_ECC, "ecc")
            return self._said(what, Level.UNKNOWN, found, effect)
        if count:
            return self._said(what, Level.WARNING, f"{count} uncorrected since the driver was loaded", effect, remedy)
        return self._said(what, Level.OK, "none uncorrected")

    def _reasons(self) -> int | None:
        seen = [sample.clock_reasons for sample in self._now.samples if sample.clock_reasons is not None]
        together = 0
        for each in seen:
            together |= each
        return together if seen else None


_ECC: Final = "uncorrected ECC errors"

_DMESG: Final = "sudo dmesg | grep -i xid, and nvidia-smi; it may need a reboot"
