"""Comparability of two measurements: a table of facts that must match, or may differ, and the speed of the host.

Facts have the names of the fields of a baseline's records. An unknown fact is None, or left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.units import digest, format_fraction

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Kind(Enum):
    """Effect of a difference."""

    MUST_MATCH = "must match"
    WARNS = "may differ, with a warning"


@dataclass(frozen=True, slots=True)
class Rule:
    """Effect of a difference in one field of a record.

    Args:
        tolerance: Largest difference of equal numbers, as a share of the larger one.
        none: Meaning of None, if it does not mean unknown.
    """

    field: str
    what: str
    kind: Kind
    why: str
    tolerance: float = 0.0
    unit: str = ""
    none: str = ""

    def same(self, before: object, now: object) -> bool:
        """Whether two values count as equal."""
        if self.tolerance and isinstance(before, (int, float)) and isinstance(now, (int, float)):
            return abs(before - now) <= self.tolerance * max(abs(before), abs(now))
        return before == now

    def shown(self, value: object) -> str:
        """Format a value for people."""
        if value is None:
            return self.none or "unknown"
        if isinstance(value, bool):
            return "on" if value else "off"
        text = f"{value:g}" if isinstance(value, float) else str(value)
        return f"{text} {self.unit}" if self.unit else text


DEVICE_RULES: Final = (
    Rule("name", "name", Kind.MUST_MATCH, "each kind of GPU has its own baselines"),
    Rule("product", "product", Kind.MUST_MATCH, "an H100 PCIe and an H100 NVL are different GPUs", none="no GPU"),
    Rule(
        "mig_profile",
        "MIG profile",
        Kind.MUST_MATCH,
        "an instance has a share of the GPU's units and memory",
        none="none, the whole GPU",
    ),
    Rule(
        "memory_gib",
        "memory",
        Kind.MUST_MATCH,
        "one product is sold with several sizes, which also differ in bandwidth; drivers count a little differently",
        tolerance=0.05,
        unit="GiB",
    ),
    Rule("compute_capability", "compute capability", Kind.MUST_MATCH, "it decides which kernels run"),
    Rule(
        "power_limit_watts",
        "power limit",
        Kind.MUST_MATCH,
        "under load it decides the clocks",
        tolerance=0.02,
        unit="W",
    ),
    Rule("max_sm_clock_mhz", "highest SM clock", Kind.MUST_MATCH, "it limits the computation", 0.01, "MHz"),
    Rule("max_memory_clock_mhz", "highest memory clock", Kind.MUST_MATCH, "it limits the bandwidth", 0.01, "MHz"),
    Rule("ecc", "ECC", Kind.MUST_MATCH, "it costs bandwidth, and on some GPUs memory"),
    Rule(
        "application_clock_mhz",
        "application clock",
        Kind.WARNS,
        "a set clock changes every number; NVML does not report clocks of `nvidia-smi --lock-gpu-clocks`",
        unit="MHz",
    ),
    Rule(
        "application_memory_clock_mhz",
        "application clock of the memory",
        Kind.WARNS,
        "a set clock changes every number",
        unit="MHz",
    ),
    Rule(
        "driver",
        "driver",
        Kind.WARNS,
        "another driver may be faster or slower, but an update must not lose all baselines",
    ),
    Rule("cuda", "CUDA of the driver", Kind.WARNS, "it comes with the driver"),
    Rule("persistence", "persistence mode", Kind.WARNS, "without it the driver resets clocks between two servers"),
)
"""Rules of the device; on `cpu` only the name has a meaning. Other facts of its record inform: GPUs of one kind are
comparable, and only the set power limit counts."""

HOST_RULES: Final = (
    Rule("cpu", "CPU of the host", Kind.WARNS, "client, tokenizer and server run on it"),
    Rule("cores", "cores of the host", Kind.WARNS, "client and server share them"),
    Rule("memory_gib", "memory of the host", Kind.WARNS, "model files are cached in it", 0.05, "GiB"),
    Rule("numa_nodes", "NUMA nodes of the host", Kind.WARNS, "memory of another node is slower to reach"),
    Rule("governor", "frequency governor of the host", Kind.WARNS, "`powersave` and `performance` differ in latency"),
)
"""Rules of hosts with the same identity (the same machine, or one name by GPUSERVE_HOST). Distribution and kernel
inform: an update must not lose all baselines."""


@dataclass(frozen=True, slots=True)
class Compatibility:
    """Reasons why two sets of facts may not be compared, and harmless differences and unknown facts."""

    incompatible: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def compare(
    before: Mapping[str, object],
    now: Mapping[str, object],
    rules: Sequence[Rule] = DEVICE_RULES,
) -> Compatibility:
    """Compare the facts of a baseline with those of a run. A fact that is unknown in one of them must match too."""
    incompatible: list[str] = []
    warnings: list[str] = []
    for rule in rules:
        then, today = before.get(rule.field), now.get(rule.field)
        if rule.same(then, today):
            continue
        found = f"{rule.what}: the baseline's is {rule.shown(then)}, this run's is {rule.shown(today)} ({rule.why})"
        (incompatible if rule.kind is Kind.MUST_MATCH else warnings).append(found)
    return Compatibility(tuple(incompatible), tuple(warnings))


def kind_of(device: Mapping[str, object]) -> str:
    """Name a device with all facts that must match (by the fields of its record), as a key for pooling."""
    facts = {rule.field: device.get(rule.field) for rule in DEVICE_RULES if rule.kind is Kind.MUST_MATCH}
    name = facts.pop("name")
    known = {field: value for field, value in facts.items() if value is not None}
    return f"{name} {digest(repr(sorted(known.items())))}" if known else str(name)


def changes(before: Mapping[str, object], now: Mapping[str, object], rules: Sequence[Rule] = DEVICE_RULES) -> list[str]:
    """All facts that have changed, those that may differ first: ``driver 550.9 -> 560.1``."""
    return [
        f"{rule.field} {before.get(rule.field)} -> {now.get(rule.field)}"
        for kind in (Kind.WARNS, Kind.MUST_MATCH)
        for rule in rules
        if rule.kind is kind and before.get(rule.field) != now.get(rule.field)
    ]


MOST_SPEED_CHANGE: Final = 0.05
"""Largest difference of a host's readings, as a change of log time, that counts as the same speed."""


def speed_text(then: float | None, now: float | None) -> str:
    """Reason why a stored number comes from a host of another speed; empty for the same speed.

    Args:
        then: The reading (see `host_speed`) of the recording, or None.
        now: The reading of this run; None if it failed.
    """
    if now is None:
        return "the speed of this host could not be measured"
    if then is None:
        return "the speed of the host when the baseline was recorded is unknown"
    if abs(now - then) <= MOST_SPEED_CHANGE:
        return ""
    word = "slower" if now > then else "faster"
    return f"this host is {format_fraction(math.expm1(abs(now - then)))} {word} than when the baseline was recorded"
