"""All that the doctor has to say, as values: what its text and its JSON are made of."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pytest_gpuserve.device.card import CPU
from pytest_gpuserve.doctor.conditions import (
    MACHINE,
    CardConditions,
    Condition,
    Level,
    driver_condition,
    host_conditions,
    lock_condition,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpuserve.device.card import Card
    from pytest_gpuserve.device.host import Host
    from pytest_gpuserve.doctor.look import CardState, Driver, Finding, MachineState

UUID_SHOWN: Final = 12
"""Characters that tell cards of one kind apart, and that CUDA_VISIBLE_DEVICES takes."""

_GIB: Final = 2**30

_LEVEL_WIDTH: Final = max(len(level.value) for level in Level)


def report_text(report: Report) -> str:
    """The whole report."""
    labels = {MACHINE: "", CPU: CPU, **_labels(report.cards)}
    parts = ["this machine", *_host_lines(report.host), *_driver_lines(report)]
    for card in report.cards:
        parts += ["", f"card {labels[card.facts.uuid]}", *_card_lines(card)]
    parts += ["", "servers and container engines", text([*report.servers, *report.containers])]
    parts += ["", "would disturb a measurement", *_condition_lines(report.conditions, labels)]
    return "\n".join([*parts, "", _verdict(report)])


def text(findings: Sequence[Finding]) -> str:
    """Findings as lines, each with what helps below it."""
    width = max((len(finding.what) for finding in findings), default=0)
    lines = []
    for finding in findings:
        first, *more = finding.found.splitlines() or [""]
        lines.append(f"{'ok' if finding.works else '--'}  {finding.what:<{width}}  {first}".rstrip())
        lines.extend(f"    {'':<{width}}  {line}" for line in more)
        if finding.remedy:
            lines.append(f"    {'':<{width}}  help: {finding.remedy}")
    return "\n".join(lines)


def _condition_lines(conditions: Iterable[Condition], labels: dict[str, str]) -> list[str]:
    named = [(f"{labels.get(each.subject, '')} {each.what}".strip(), each) for each in conditions]
    width = max(len(name) for name, _ in named)
    margin = " " * (_LEVEL_WIDTH + width + 4)
    lines = []
    for name, each in named:
        first, *more = each.found.splitlines() or [""]
        lines.append(f"{each.level.value:<{_LEVEL_WIDTH}}  {name:<{width}}  {first}".rstrip())
        lines += [f"{margin}{line}" for line in more]
        lines += [f"{margin}effect: {each.effect}"] if each.effect else []
        lines += [f"{margin}help: {each.remedy}"] if each.remedy else []
    return lines


def _verdict(report: Report) -> str:
    if not report.can_measure:
        return f"nothing can be measured: {'; '.join(report.why_not)}"
    count = Counter(condition.level for condition in report.conditions)
    parts = [(count[Level.WARNING], "warning"), (count[Level.UNKNOWN], "unknown")]
    shown = ", ".join(f"{number} {name}{'s' if number > 1 else ''}" for number, name in parts if number)
    gpu = " or ".join(f"--gpu={name}" for name in report.devices)
    return f"can be measured with {gpu}{f'; {shown}' if shown else ''}"


def _labels(cards: Sequence[CardReport]) -> dict[str, str]:
    """By the UUID the name of each card, and of several of a kind the beginning of the UUID too."""
    kinds = Counter(card.gpu for card in cards)
    return {
        card.facts.uuid: card.gpu if kinds[card.gpu] == 1 else f"{card.gpu} {card.facts.uuid[:UUID_SHOWN]}"
        for card in cards
    }


def _host_lines(host: Host | None) -> list[str]:
    if host is None:
        return _rows([("facts", None)])
    nodes = None if host.numa_nodes is None else f"{host.numa_nodes}"
    return _rows(
        [
            ("processor", host.cpu),
            ("cores", f"{host.cores}"),
            ("memory", _gib(host.memory_bytes)),
            ("NUMA nodes", nodes),
            ("governor", host.governor),
            ("system", f"{host.system}, kernel {host.kernel}"),
        ]
    )


def _driver_lines(report: Report) -> list[str]:
    problem = report.driver.problem
    cards = f"{len(report.cards)}{f'; {problem}' if problem else ''}" if report.cards else f"none: {problem}"
    return _rows([("cards", cards)])


def _card_lines(report: CardReport) -> list[str]:
    card = report.facts
    clock, top = (report.now or {}).get("sm_clock_mhz"), card.max_sm_clock_mhz
    clocks = [
        f"{_unit(clock, 'MHz')} now, {_unit(top, 'MHz')} at most",
        f"application clock {_unit(card.application_clock_mhz, 'MHz')}{_off_default(card)}",
    ]
    power = f"{_unit(card.power_limit_watts, 'W')}, {_unit(card.power_default_watts, 'W')} by default"
    capability = None if card.compute_capability is None else ".".join(map(str, card.compute_capability))
    return _rows(
        [
            ("product", f"{card.product}{'' if report.visible else ' (hidden)'}"),
            ("taken by", f"--gpu={report.gpu}, with baselines in {report.baselines}"),
            ("UUID", card.uuid),
            ("PCI address", card.pci_bus_id),
            ("memory", None if card.memory_bytes is None else _gib(card.memory_bytes)),
            ("MIG", _mig(card)),
            ("driver", f"{card.driver or 'unknown'}, CUDA {card.cuda or 'unknown'}"),
            ("capability", capability),
            ("power limit", power),
            ("SM clock", ", ".join(clocks)),
            ("ECC", _switch(card.ecc)),
            ("persistence", _switch(card.persistence)),
        ]
    )


def _off_default(card: Card) -> str:
    return {True: " (set)", False: " (the default)", None: ""}[card.application_clocks_set]


def _mig(card: Card) -> str:
    if card.mig_profile is not None:
        return f"instance {card.mig_profile} of card {card.index}"
    return "not divided" if card.mig is False else "cannot be divided" if card.mig is None else "divided"


def _rows(rows: Iterable[tuple[str, str | None]]) -> list[str]:
    return [f"    {name:<12}{'unknown' if value is None else value}" for name, value in rows]


def _switch(on: bool | None) -> str | None:  # noqa: FBT001 -- of this file alone
    return None if on is None else "on" if on else "off"


def _unit(value: float | None, unit: str) -> str:
    return "unknown" if value is None else f"{value:g} {unit}"


def _gib(count: int) -> str:
    return f"{count / _GIB:.1f} GiB"


@dataclass(frozen=True, slots=True)
class CardReport:
    """A card for people and scripts; ``now`` has the fields of its last sample."""

    gpu: str
    baselines: str
    visible: bool
    facts: Card
    now: dict[str, Any] | None
    unknown: dict[str, str]


@dataclass(frozen=True, slots=True)
class Report:
    """All that the command prints.

    Args:
        can_measure: Whether a server works, and a device is free; ``why_not`` otherwise.
        devices: Names for ``--gpu`` that can be measured on now.
        host: None where its facts cannot be read.
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
    seen: MachineState, servers: Sequence[Finding], containers: Sequence[Finding], *, visible: str | None
) -> Report:
    """Judge all that was seen; ``visible`` is CUDA_VISIBLE_DEVICES, None if it is not set."""
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


def judged(seen: MachineState, *, visible: str | None) -> list[Condition]:
    """Judge the machine, its driver, and each device; ``visible`` is CUDA_VISIBLE_DEVICES, None if it is not set."""
    conditions = host_conditions(seen.host)
    if seen.refused:
        conditions.append(
            Condition("device", Level.PREVENTS, seen.refused, "pytest refuses to measure", seen.refused_remedy)
        )
    conditions += [driver_condition(seen.driver), lock_condition(seen.cpu_lock, CPU)]
    for card in seen.cards:
        conditions += CardConditions(card, sees_all=seen.host.sees_all, visible=visible).conditions()
    return conditions


def free_devices(seen: MachineState, conditions: Sequence[Condition]) -> tuple[str, ...]:
    """Of the devices that may be measured on, those that nothing prevents it on."""
    prevented = {condition.subject for condition in conditions if condition.level is Level.PREVENTS}
    return tuple(key for key in seen.devices if key not in prevented)


def _card_report(now: CardState) -> CardReport:
    card = now.card
    return CardReport(
        gpu=card.name,
        baselines=f"baselines/{card.name}",
        visible=now.visible,
        facts=card,
        now=msgspec.structs.asdict(now.samples[-1]) if now.samples else None,
        unknown={**card.unknown, **now.unknown},
    )
