"""What cards, host and processes did in a stretch of time; `pytest_gpuserve.measure.samples` makes it of samples.

What was not seen is None: never zero. Stretches are put together by `merged`, so that a run is its windows.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 -- msgspec reads the annotations
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

COMMON: Final = {
    13: "graphics engine exception, most often a kernel of the server that reads or writes out of bounds",
    31: "memory page fault, most often an address of the server's that is not mapped",
    32: "invalid or corrupted push buffer, of the driver, the bus or the card",
    38: "driver firmware error",
    43: "the card stopped processing for a program, which did something illegal",
    45: "preemptive cleanup of a program that was ended or failed before",
    48: "double-bit ECC error: memory of the card is corrupted",
    61: "internal microcontroller breakpoint or warning",
    62: "internal microcontroller halt",
    63: "a page or row of the card's memory was retired or remapped",
    64: "a page or row of the card's memory could not be retired or remapped",
    68: "video processor exception",
    69: "graphics engine class error",
    74: "NVLink error",
    79: "the card has fallen off the bus: power, heat, or the slot",
    92: "high rate of single-bit ECC errors",
    94: "contained ECC error: the program that it befell is ended",
    95: "uncontained ECC error: all programs on the card are affected",
    109: "context switch timeout",
    119: "the card's system processor (GSP) does not answer",
    120: "error of the card's system processor (GSP)",
    140: "ECC error that was not recovered from",
}


def describe_xid(number: int) -> str:
    """Say what an XID means; the numbers that are not common are in NVIDIA's list."""
    return COMMON.get(number, "see docs.nvidia.com/deploy/xid-errors for its meaning")


MIG_PREFIX: Final = "MIG-"
"""Begins the uuid of an instance of a divided card."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A value that was seen several times.

    Args:
        mean: Over the samples.
        peak: The greatest.
        lowest: The smallest.
        samples: How many there were.
    """

    mean: float
    peak: float
    lowest: float
    samples: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """Sum up what is known of some values; None where that is nothing."""
        known = [value for value in values if value is not None]
        if not known:
            return None
        # Rounding must not put a mean beside all that it is made of.
        mean = min(max(sum(known) / len(known), min(known)), max(known))
        return cls(mean, max(known), min(known), len(known))

    @classmethod
    def merged(cls, parts: Iterable[Spread | None]) -> Spread | None:
        """Put together stretches, each with the weight of its samples; None where none is known."""
        known = [part for part in parts if part is not None]
        if not known:
            return None
        samples = sum(part.samples for part in known)
        peak, lowest = max(part.peak for part in known), min(part.lowest for part in known)
        mean = sum(part.mean * part.samples for part in known) / samples
        return cls(min(max(mean, lowest), peak), peak, lowest, samples)


@dataclass(frozen=True, slots=True)
class Energy:
    """Energy that a card took up, host and cooling not included.

    Args:
        joules: How much.
        source: ``counter``, the card's own; or ``power``, the integral of what it drew at each sample, which misses
            what lies between them and, on cards that give the mean of the last second, lags by half of that.
    """

    joules: float
    source: Literal["counter", "power"]


@dataclass(frozen=True, slots=True)
class CardTelemetry:
    """What a card did in a stretch of time; units as in `pytest_gpuserve.device.sample.CardSample`.

    Args:
        uuid: Of the card or MIG instance. All but memory is the whole card's, other instances included.
        gpu_utilisation: Share of the time in which a kernel ran.
        memory_utilisation: Share of the time in which memory was read or written.
        memory_used_bytes: Allocated memory.
        sm_clock_mhz: Of the multiprocessors.
        busy_sm_clock_mhz: The same without the samples in which the card had nothing to do, as far as its clock-event
            reasons tell; None where it never had. How fast a card is shows in this one alone.
        memory_clock_mhz: Of the memory.
        power_watts: Drawn power.
        temperature_celsius: Of the chip.
        pcie_received: Bytes a second, seen once a second.
        pcie_sent: Bytes a second, seen once a second.
        energy: None where the samples do not cover the stretch.
        clock_reasons: How many samples had each bit of the mask of clock-event reasons; None where it is not known.
        clock_reasons_samples: How many samples had a mask.
    """

    uuid: str
    gpu_utilisation: Spread | None = None
    memory_utilisation: Spread | None = None
    memory_used_bytes: Spread | None = None
    sm_clock_mhz: Spread | None = None
    busy_sm_clock_mhz: Spread | None = None
    memory_clock_mhz: Spread | None = None
    power_watts: Spread | None = None
    temperature_celsius: Spread | None = None
    pcie_received: Spread | None = None
    pcie_sent: Spread | None = None
    energy: Energy | None = None
    clock_reasons: Mapping[int, int] | None = None
    clock_reasons_samples: int = 0


@dataclass(frozen=True, slots=True)
class Telemetry:
    """What was seen in a stretch of time.

    Args:
        seconds: Its length.
        samples: How many lie in it.
        covered: Whether no part of it lies in a gap between samples; else what is known is of the rest alone.
        cards: What each card did, by its uuid; empty where there is none.
        server_cpu_seconds: CPU time of the server's processes; None where they, or the whole stretch, were not seen.
        client_cpu_seconds: The same of the client's.
        sampler_cpu_seconds: The same of the sampler itself.
        busy_cores: Cores of the host that worked, for whomever, on average; seen once a second.
        load: Processes that ran or waited to run.
        swap_used_bytes: Memory on disk.
        swapped_bytes: What was moved there and back.
    """

    seconds: float
    samples: int = 0
    covered: bool = False
    cards: Mapping[str, CardTelemetry] = field(default_factory=dict)
    server_cpu_seconds: float | None = None
    client_cpu_seconds: float | None = None
    sampler_cpu_seconds: float | None = None
    busy_cores: float | None = None
    load: Spread | None = None
    swap_used_bytes: Spread | None = None
    swapped_bytes: float | None = None

    @property
    def energy(self) -> Energy | None:
        """Of all cards together; None where there is none, or that of one is not known.

        Of a MIG instance it never is: what NVML tells is the whole card's, and other instances take their part of it.
        """
        if any(is_instance(uuid) for uuid in self.cards):
            return None
        return _sum_energy([card.energy for card in self.cards.values()])

    @property
    def watts(self) -> float | None:
        """Mean power of all cards together, for an idle stretch to be taken off; None as for ``energy``."""
        energy = self.energy
        return None if energy is None or self.seconds <= 0 else energy.joules / self.seconds

    def server_cpu_seconds_per_request(self, requests: int) -> float | None:
        """CPU time that the server spent on each; None where it is not known, or there was no request."""
        return None if self.server_cpu_seconds is None or not requests else self.server_cpu_seconds / requests

    def energy_per_inference(self, inferences: int, *, idle_watts: float | None) -> EnergyPerInference | None:
        """Share out the energy of the stretch.

        Args:
            inferences: That were done in it.
            idle_watts: ``watts`` of a stretch before the load, with the server loaded and at rest; None if not seen.

        Returns:
            None where the energy is not known, or there was no inference.
        """
        energy = self.energy
        if energy is None or not inferences:
            return None
        above = None if idle_watts is None else (energy.joules - idle_watts * self.seconds) / inferences
        return EnergyPerInference(energy.joules / inferences, above, idle_watts, energy.source)


@dataclass(frozen=True, slots=True)
class EnergyPerInference:
    """Energy that an inference took, of the cards alone.

    Args:
        joules: All of it.
        above_idle_joules: What is left without what the cards take at rest; None where that is not known.
        idle_watts: What they take at rest.
        source: As for `Energy`.
    """

    joules: float
    above_idle_joules: float | None
    idle_watts: float | None
    source: Literal["counter", "power"]


def is_instance(uuid: str) -> bool:
    """Whether it is an instance of a divided card, of which energy and utilisation are not its own."""
    return uuid.startswith(MIG_PREFIX)


def merged(parts: Iterable[Telemetry]) -> Telemetry | None:
    """Put stretches together; None of none.

    Sums are None where a part's is: an unknown part is not nothing. Means and peaks are those of the parts that know.
    """
    known = list(parts)
    if not known:
        return None
    seconds = sum(part.seconds for part in known)
    uuids = dict.fromkeys(uuid for part in known for uuid in part.cards)
    busy = _sum([None if part.busy_cores is None else part.busy_cores * part.seconds for part in known])
    return Telemetry(
        seconds,
        sum(part.samples for part in known),
        all(part.covered for part in known),
        {uuid: _merged_card(uuid, [part.cards.get(uuid) for part in known]) for uuid in uuids},
        server_cpu_seconds=_sum([part.server_cpu_seconds for part in known]),
        client_cpu_seconds=_sum([part.client_cpu_seconds for part in known]),
        sampler_cpu_seconds=_sum([part.sampler_cpu_seconds for part in known]),
        busy_cores=None if busy is None or seconds <= 0 else busy / seconds,
        load=Spread.merged(part.load for part in known),
        swap_used_bytes=Spread.merged(part.swap_used_bytes for part in known),
        swapped_bytes=_sum([part.swapped_bytes for part in known]),
    )


def _merged_card(uuid: str, parts: Sequence[CardTelemetry | None]) -> CardTelemetry:
    known = [part for part in parts if part is not None]
    told = [part.clock_reasons for part in known if part.clock_reasons is not None]
    bits = sorted({bit for reasons in told for bit in reasons})
    return CardTelemetry(
        uuid,
        gpu_utilisation=Spread.merged(part.gpu_utilisation for part in known),
        memory_utilisation=Spread.merged(part.memory_utilisation for part in known),
        memory_used_bytes=Spread.merged(part.memory_used_bytes for part in known),
        sm_clock_mhz=Spread.merged(part.sm_clock_mhz for part in known),
        busy_sm_clock_mhz=Spread.merged(part.busy_sm_clock_mhz for part in known),
        memory_clock_mhz=Spread.merged(part.memory_clock_mhz for part in known),
        power_watts=Spread.merged(part.power_watts for part in known),
        temperature_celsius=Spread.merged(part.temperature_celsius for part in known),
        pcie_received=Spread.merged(part.pcie_received for part in known),
        pcie_sent=Spread.merged(part.pcie_sent for part in known),
        energy=_sum_energy([None if part is None else part.energy for part in parts]),
        clock_reasons={bit: sum(reasons.get(bit, 0) for reasons in told) for bit in bits} if told else None,
        clock_reasons_samples=sum(part.clock_reasons_samples for part in known),
    )


def as_plain(telemetry: Telemetry) -> dict[str, Any]:
    """Write it as a plain dict of JSON values, by the names of the attributes; what is not known is None."""
    plain = asdict(telemetry)
    plain["energy"] = None if telemetry.energy is None else asdict(telemetry.energy)
    for card in plain["cards"].values():
        if card["clock_reasons"] is not None:
            card["clock_reasons"] = {f"{bit:#x}": count for bit, count in card["clock_reasons"].items()}
    return plain


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _sum_energy(parts: Sequence[Energy | None]) -> Energy | None:
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    by_counter = all(part.source == "counter" for part in known)
    return Energy(sum(part.joules for part in known), "counter" if by_counter else "power")
