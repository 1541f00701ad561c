"""What of a card would disturb a measurement, from what was seen of it. Pure: no clock, no driver.

``nvidia-smi -i`` takes the index of the whole card, also where the card meant is an instance of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_gpuserve.doctor.finding import Condition, Level
from pytest_gpuserve.measure.conditions import SLOWDOWNS
from pytest_gpuserve.measure.telemetry import describe_xid
from pytest_gpuserve.units import format_fraction

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_gpuserve.device.sample import DeviceProcess
    from pytest_gpuserve.doctor.facts import CardNow, Driver, LockState

HOT_CELSIUS: Final = 70
"""Above it before any load, a card has little left until it slows down, from 80 to 90 degrees on."""

POWER_TOLERANCE: Final = 0.98
"""Of the default limit; as in the rules for comparing cards."""

MOST_UNSEEN_BYTES: Final = 2**30
"""Of memory in use without a process; drivers keep up to about half of it for themselves."""

GPU_IDLE: Final = 0x1
POWER_CAP: Final = 0x4
"""Clock-event reasons of nvml.h that are no slowdown."""

_MIB: Final = 2**20


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
    """Judge a device's lock.

    Args:
        lock: Its state.
        subject: ``cpu``, or the card's UUID.
    """
    effect = "two measurements at once would spoil each other, so pytest waits (ini gpuserve_lock_wait)"
    if lock.held is None:
        effect = "nothing says whether somebody measures here now"
        return Condition("lock", Level.UNKNOWN, lock.told, effect, "see who has the file: fuser -v", subject)
    if not lock.held:
        return Condition("lock", Level.OK, "nobody measures here now", subject=subject)
    remedy = "wait until it ends" + (f", or end it: kill {lock.pid}" if lock.pid else "")
    return Condition("lock", Level.PREVENTS, f"held by {lock.told}", effect, remedy, subject)


class CardJudge:
    """Judges a card.

    Args:
        now: What was seen of it.
        sees_all: Whether the processes of all of the machine can be seen from here.
        visible: CUDA_VISIBLE_DEVICES, None if it is not set.
    """

    def __init__(self, now: CardNow, *, sees_all: bool, visible: str | None) -> None:
        self._now = now
        self._card = now.card
        self._sees_all = sees_all
        self._visible = visible
        self._last = now.samples[-1] if now.samples else None

    def conditions(self) -> list[Condition]:
        """All that is to be said of it."""
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
        state = f"{format_fraction(busy)} busy, {used / _MIB:.0f} MiB in use"
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
            + ("" if process.memory_bytes is None else f" with {process.memory_bytes / _MIB:.0f} MiB")
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
