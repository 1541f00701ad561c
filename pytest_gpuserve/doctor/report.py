"""All that the doctor has to say, as values: what its text and its JSON are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from pytest_gpuserve.device.names import CPU
from pytest_gpuserve.doctor.card_conditions import CardJudge, driver_condition, lock_condition
from pytest_gpuserve.doctor.finding import MACHINE, Condition, Level
from pytest_gpuserve.doctor.host_conditions import host_conditions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.device.card import Card
    from pytest_gpuserve.device.host import Host
    from pytest_gpuserve.doctor.facts import CardNow, Driver, Seen
    from pytest_gpuserve.doctor.finding import Finding


@dataclass(frozen=True, slots=True)
class CardReport:
    """A card for people and scripts.

    Args:
        gpu: Its name for ``--gpu``.
        baselines: Its folder, in the project's root unless ``--baseline-dir`` says otherwise.
        visible: Whether CUDA_VISIBLE_DEVICES leaves it to us.
        facts: What is known of it.
        now: What was seen of it last, by the names of the fields of a sample; None where it was not seen.
        unknown: What could not be read, and why.
    """

    gpu: str
    baselines: str
    visible: bool
    facts: Card
    now: dict[str, Any] | None
    unknown: dict[str, str]


@dataclass(frozen=True, slots=True)
class Report:
    """Everything.

    Args:
        can_measure: Whether anything can be measured: a server works, and a device is free.
        why_not: Why nothing can; empty otherwise.
        devices: Names for ``--gpu`` that can be measured on now.
        host: The machine's facts; None where they cannot be read.
        driver: NVIDIA's driver.
        cards: The cards.
        conditions: What would disturb a measurement, and what would not.
        servers: Which of them can run.
        containers: Which engines can run a server.
    """

    can_measure: bool
    why_not: tuple[str, ...]
    devices: tuple[str, ...]
    host: Host | None
    driver: Driver
    cards: tuple[CardReport, ...]
    conditions: tuple[Condition, ...]
    servers: tuple[Finding, ...]
    containers: tuple[Finding, ...]


def make_report(
    seen: Seen, servers: Sequence[Finding], containers: Sequence[Finding], *, visible: str | None
) -> Report:
    """Judge all that was seen.

    Args:
        seen: It.
        servers: Which of them can run.
        containers: Which engines can run a server.
        visible: CUDA_VISIBLE_DEVICES, None if it is not set.
    """
    conditions = judged(seen, visible=visible)
    free = free_devices(seen, conditions)
    names = {CPU: CPU, **{card.card.uuid: card.card.name for card in seen.cards}}
    why_not = [
        f"{condition.what}: {condition.found}"
        for condition in conditions
        if condition.level is Level.PREVENTS and condition.subject == MACHINE
    ]
    if not any(finding.works for finding in (*servers, *containers)):
        why_not.append("no server works")
    if seen.devices and not free:
        why_not.append(f"no device is free: {', '.join(names[key] for key in seen.devices)}")
    return Report(
        can_measure=not why_not,
        why_not=tuple(why_not),
        devices=() if why_not else tuple(dict.fromkeys(names[key] for key in free)),
        host=seen.host.host,
        driver=seen.driver,
        cards=tuple(map(_card_report, seen.cards)),
        conditions=tuple(conditions),
        servers=tuple(servers),
        containers=tuple(containers),
    )


def judged(seen: Seen, *, visible: str | None) -> list[Condition]:
    """Judge the machine, its driver, and each device.

    Args:
        seen: What was seen.
        visible: CUDA_VISIBLE_DEVICES, None if it is not set.
    """
    conditions = host_conditions(seen.host)
    if seen.refused:
        conditions.append(
            Condition("device", Level.PREVENTS, seen.refused, "pytest refuses to measure", seen.refused_remedy)
        )
    conditions += [driver_condition(seen.driver), lock_condition(seen.cpu_lock, CPU)]
    for card in seen.cards:
        conditions += CardJudge(card, sees_all=seen.host.sees_all, visible=visible).conditions()
    return conditions


def free_devices(seen: Seen, conditions: Sequence[Condition]) -> tuple[str, ...]:
    """Of the devices that may be measured on, those that nothing prevents it on."""
    prevented = {condition.subject for condition in conditions if condition.level is Level.PREVENTS}
    return tuple(key for key in seen.devices if key not in prevented)


def _card_report(now: CardNow) -> CardReport:
    card = now.card
    return CardReport(
        gpu=card.name,
        baselines=f"baselines/{card.name}",
        visible=now.visible,
        facts=card,
        now=msgspec.structs.asdict(now.samples[-1]) if now.samples else None,
        unknown={**card.unknown, **now.unknown},
    )
