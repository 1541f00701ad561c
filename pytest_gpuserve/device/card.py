"""What is known of an NVIDIA card."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

UNSUPPORTED: Final = "not supported by this card or its driver"
"""The reason in ``Card.unknown`` that is no failure."""


@dataclass(frozen=True)
class Card:
    """One NVIDIA card, or one instance (MIG) of a divided one.

    Of an instance name, UUID and memory are its own; what it shares with the others, such as the power limit, is that
    of the whole card. What could not be read is None, with the reason in ``unknown``.

    Attributes:
        index: NVML's index of the whole card, which is the order of the PCI bus (not always CUDA's order).
        product: The vendor's name, verbatim.
        name: The name for ``--gpu`` and for the folder under ``baselines/``.
        uuid: ``GPU-`` or ``MIG-`` and a UUID; names the card for good, also to CUDA.
        pci_bus_id: Domain, bus, device and function, as in ``00000000:3B:00.0``.
        memory_bytes: Its whole memory; None where it has none of its own (it shares the host's).
        driver: Version of the driver.
        cuda: The newest CUDA version that the driver supports, as in ``12.8``.
        power_limit_watts: The power limit set now.
        max_sm_clock_mhz: The highest clock of its multiprocessors.
        mig: Whether it is divided into instances now; None where it cannot be.
        mig_profile: Of an instance its share, such as ``1g.10gb``; None for a whole card.
        power_default_watts: The power limit that it has by itself.
        power_most_watts: The highest one that may be set.
        max_memory_clock_mhz: The highest clock of its memory.
        application_clock_mhz: The graphics clock that applications get, as far as heat and power allow.
        application_memory_clock_mhz: The same of its memory.
        application_clocks_set: Whether these are off their defaults. Clocks locked by ``nvidia-smi --lock-gpu-clocks``
            are not among them: NVML does not tell of those.
        ecc: Whether its memory corrects errors now.
        persistence: Whether the driver stays loaded while nobody uses the card.
        compute_capability: Major and minor number.
        unknown: For each field that is None because it could not be read, why.
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
    """What NVML said about the machine's cards.

    Attributes:
        cards: What could be read, by index; in the place of a divided card its instances.
        problem: Why there is none, or which of them could not be read and why; empty if all went well.
        absent: The problem is only that this machine has no card (no library, or no device). False for every problem
            that may hide one, such as a driver that does not fit its library.
    """

    cards: tuple[Card, ...]
    problem: str
    absent: bool = False
