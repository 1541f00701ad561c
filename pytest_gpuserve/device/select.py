"""Which device a session measures: what ``--gpu`` asks for, held against what NVML says is there."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpuserve.device.card import AUTO, CPU, device_name
from pytest_gpuserve.errors import DeviceProblem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.device.card import Card, NvmlAnswer
    from pytest_gpuserve.device.host import Host

_HIDING_VALUES = frozenset({"", "-1", "none", "void", "nodevfiles"})
"""Values of CUDA_VISIBLE_DEVICES by which people, schedulers and container runtimes hide all cards on purpose."""


@dataclass(frozen=True)
class Device:
    """The device that a session measures on.

    Attributes:
        name: ``cpu``, or the card's name; also the folder under ``baselines/``.
        card: None on ``cpu``.
        by_index: Whether CUDA counts this machine's GPUs as NVML does: NVML reads all of them, and none is divided.
    """

    name: str
    card: Card | None
    host: Host
    by_index: bool = True

    @property
    def is_gpu(self) -> bool:
        """Whether it is a card."""
        return self.card is not None

    @property
    def lock_key(self) -> str:
        """What a session must own alone: the card's uuid, or ``cpu``."""
        return CPU if self.card is None else self.card.uuid

    @property
    def gpus(self) -> tuple[str, ...]:
        """UUIDs by which a container engine gives a server this device; empty on ``cpu``."""
        return () if self.card is None else (self.card.uuid,)

    def environment(self) -> dict[str, str]:
        """Environment variables with which a server outside containers can use this device and no other GPU.

        On ``cpu`` they hide every GPU, so that a server which prefers one cannot make the numbers those of a GPU.
        """
        if self.card is None:
            return {"CUDA_VISIBLE_DEVICES": ""}
        # LitServe looks for the value among the indices that `nvidia-smi -L` prints, and vLLM up to 0.22 wants a
        # number. CUDA takes an index in NVML's order only with PCI_BUS_ID, and an instance by its UUID alone.
        whole = self.by_index and self.card.mig_profile is None
        return {
            "CUDA_VISIBLE_DEVICES": str(self.card.index) if whole else self.card.uuid,
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        }


def select_device(
    asked: str, *, known_names: Sequence[str], answer: NvmlAnswer, host: Host, visible: str | None
) -> Device:
    """Find the device that was asked for; of several alike the first visible one.

    ``auto`` is the kind of the first visible card, and ``cpu`` only where there certainly is none or where
    CUDA_VISIBLE_DEVICES hides all of them on purpose. ``cpu`` is always ``cpu``. Any other name must be the ``name`` of
    a visible card.

    Args:
        visible: CUDA_VISIBLE_DEVICES of the calling environment, None if it is not set. Indices are taken in the order
            of the PCI bus.

    Raises:
        DeviceProblem: The card is not there or is hidden, or ``auto`` cannot be decided.
    """
    if asked == CPU:
        return Device(CPU, None, host)
    cards = visible_cards(answer.cards, visible)
    name = _automatic(cards, answer, visible) if asked == AUTO else asked
    if name == CPU:
        return Device(CPU, None, host)
    card = next((card for card in cards if card.name == name), None)
    if card is None:
        raise _refusal(asked, known_names, cards, answer, visible)
    return Device(card.name, card, host, by_index=not answer.problem and not any(each.mig for each in answer.cards))


def visible_cards(cards: Sequence[Card], visible: str | None) -> tuple[Card, ...]:
    """Apply CUDA_VISIBLE_DEVICES the way CUDA does: in its order, and up to the first entry that names no card.

    Source: CUDA C++ Programming Guide, "CUDA Environment Variables".

    Args:
        visible: The variable: indices, or beginnings of UUIDs that fit one card each; None if it is not set. An index
            of a divided card (MIG) is its first instance.
    """
    if visible is None:
        return tuple(cards)
    seen: list[Card] = []
    for entry in visible.split(","):
        card = _entry_card(cards, entry.strip())
        if card is None:
            break
        if card not in seen:
            seen.append(card)
    return tuple(seen)


def _entry_card(cards: Sequence[Card], entry: str) -> Card | None:
    if entry.isdecimal():
        return next((card for card in cards if card.index == int(entry)), None)
    matches = [card for card in cards if entry.startswith(("GPU-", "MIG-")) and card.uuid.startswith(entry)]
    return matches[0] if len(matches) == 1 else None


def _automatic(cards: Sequence[Card], answer: NvmlAnswer, visible: str | None) -> str:
    if visible is not None and visible.strip().lower() in _HIDING_VALUES:
        return CPU
    if answer.problem and not answer.absent:
        raise DeviceProblem(
            "--gpu=auto cannot tell which card to measure on, because not every card of this machine can be read.",
            found=_present(cards, answer),
            looked=_looked(visible),
            remedies=(*_offers(cards), "repair the driver or the card; `nvidia-smi` should list every card"),
        )
    if cards:
        return cards[0].name
    if visible is not None and answer.cards:
        raise DeviceProblem(
            f"--gpu=auto finds no card, because CUDA_VISIBLE_DEVICES={visible} names none of this machine's.",
            found=_present(answer.cards, answer),
            looked=_looked(visible),
            remedies=("unset CUDA_VISIBLE_DEVICES, or give it a uuid of the above", *_offers(())),
        )
    return CPU


def _refusal(
    asked: str, known_names: Sequence[str], cards: Sequence[Card], answer: NvmlAnswer, visible: str | None
) -> DeviceProblem:
    hidden = next((card for card in answer.cards if card.name == asked and card not in cards), None)
    sets = ", ".join(sorted(known_names)) or "none"
    found = f"{_present(answer.cards, answer)}; baseline sets: {sets}"
    if hidden is not None:
        return DeviceProblem(
            f"--gpu={asked} asks for a card that CUDA_VISIBLE_DEVICES={visible} hides.",
            found=found,
            looked=_looked(visible),
            remedies=(f"unset CUDA_VISIBLE_DEVICES, or set it to {hidden.uuid}", *_offers(cards)),
        )
    if not cards and answer.cards:
        found += f"; CUDA_VISIBLE_DEVICES={visible} hides every card"
    meant = _meant(asked, [AUTO, CPU, *(card.name for card in cards), *known_names])
    return DeviceProblem(
        f"--gpu={asked} asks for a card that is not on this machine.",
        found=found,
        looked=_looked(visible),
        remedies=(*([f"did you mean --gpu={meant}?"] if meant else []), *_offers(cards), "--gpu=auto (what is there)"),
    )


def _meant(asked: str, names: Sequence[str]) -> str | None:
    # A product name pasted from nvidia-smi, or other capitals, is certain; only then is likeness worth a guess.
    for name in names:
        if name != asked and name.lower() in (asked.lower(), device_name(asked).lower()):
            return name
    likely = difflib.get_close_matches(asked, [name for name in names if name != asked], n=1)
    return likely[0] if likely else None


def _present(cards: Sequence[Card], answer: NvmlAnswer) -> str:
    there = ", ".join(f"{card.index}: {card.product} (--gpu={card.name}, {card.uuid})" for card in cards)
    return "; ".join(part for part in (there, answer.problem) if part) or "no card"


def _looked(visible: str | None) -> tuple[str, ...]:
    return ("NVML", "CUDA_VISIBLE_DEVICES (not set)" if visible is None else f"CUDA_VISIBLE_DEVICES={visible}")


def _offers(cards: Sequence[Card]) -> tuple[str, ...]:
    names = dict.fromkeys(card.name for card in cards)
    return (*(f"--gpu={name} (a card that is there)" for name in names), "--gpu=cpu (measure without a card)")
