"""What a file holds of a window: one line, with its latency histogram."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from pytest_gpuserve.measure.histogram import Histogram
from pytest_gpuserve.measure.window import CardUse, StageTime, Window
from pytest_gpuserve.store.fields import Count, NotNegative, Positive, rounded

if TYPE_CHECKING:
    from collections.abc import Mapping

_STAGE = re.compile(r"([^\s=]{1,200})=([0-9][0-9.e+-]{0,11})/([1-9][0-9]{0,14})")
_CARD_VALUE = re.compile(r"([a-z_]{1,20})=([0-9][0-9.e+-]{0,11})")
_CARD_FIELDS = {
    "joules": "joules",
    "memory": "memory_bytes",
    "utilisation": "utilisation",
    "sm_clock": "sm_clock_mhz",
}
"""Names in the file, in its order, and those of `CardUse`."""


class WindowRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A ``Window``; the histogram as ``Histogram.to_text`` writes it.

    Args:
        stages: ``name=seconds/count`` of each stage in the order of their names, so that a window stays one line; left
            out where the server counts none.
        cards: ``joules=12.5 memory=1.2e+09 utilisation=0.8 sm_clock=1350`` in this order, a ``CardUse`` in joules,
            bytes, a share and MHz; without what is not known, and left out where nothing is.
    """

    seconds: Positive
    requests: Count
    errors: dict[str, Count]
    latency: str
    latency_sum_seconds: NotNegative
    latency_max_seconds: NotNegative
    client_cpu_seconds: NotNegative
    items: Count | None
    batches: Count | None
    stages: str = ""
    cards: str = ""


def window_record(window: Window) -> WindowRecord:
    """Turn a window into its record."""
    return WindowRecord(
        seconds=rounded(window.seconds),
        requests=window.requests,
        errors=dict(window.errors),
        latency=window.latency.to_text(),
        latency_sum_seconds=rounded(window.latency_sum_seconds),
        latency_max_seconds=rounded(window.latency_max_seconds),
        client_cpu_seconds=rounded(window.client_cpu_seconds),
        items=window.items,
        batches=window.batches,
        stages=_stages_text(window.stages),
        cards=_cards_text(window.cards),
    )


def window_of(record: WindowRecord, path: str) -> Window:
    """Read a window back.

    Raises:
        ValueError: Its histogram, stages or cards cannot be read, or do not fit it; the text begins with the field's
            path.
    """
    try:
        latency = Histogram.from_text(record.latency)
    except ValueError as problem:
        raise ValueError(f"{path}.latency: {problem}") from None
    if latency.total != record.requests:
        raise ValueError(f"{path}.latency holds {latency.total} latencies, but .requests is {record.requests}")
    if any(record.errors.values()):
        raise ValueError(f"{path}.errors holds failed requests; such a window is never recorded")
    try:
        stages = _stages_of(record.stages)
    except ValueError as problem:
        raise ValueError(f"{path}.stages: {problem}") from None
    try:
        cards = _cards_of(record.cards)
    except ValueError as problem:
        raise ValueError(f"{path}.cards: {problem}") from None
    return Window(
        seconds=record.seconds,
        requests=record.requests,
        errors=record.errors,
        latency=latency,
        latency_sum_seconds=record.latency_sum_seconds,
        latency_max_seconds=record.latency_max_seconds,
        items=record.items,
        batches=record.batches,
        client_cpu_seconds=record.client_cpu_seconds,
        stages=stages,
        cards=cards,
    )


def _stages_text(stages: Mapping[str, StageTime]) -> str:
    return " ".join(f"{name}={stages[name].seconds:g}/{stages[name].count}" for name in sorted(stages))


def _stages_of(text: str) -> dict[str, StageTime]:
    """Read what ``_stages_text`` wrote, and nothing else."""
    stages = {}
    for token in text.split(" ") if text else ():
        found = _STAGE.fullmatch(token)
        if found is None:
            raise ValueError(f"{token[:60]!r} is not NAME=SECONDS/COUNT")
        stages[found[1]] = StageTime(float(found[2]), int(found[3]))
    if _stages_text(stages) != text:
        raise ValueError(f"{text[:60]!r} is not written as this version writes it")
    return stages


def _cards_text(cards: CardUse | None) -> str:
    known = {} if cards is None else {name: getattr(cards, field) for name, field in _CARD_FIELDS.items()}
    return " ".join(f"{name}={value:g}" for name, value in known.items() if value is not None)


def _cards_of(text: str) -> CardUse | None:
    """Read what ``_cards_text`` wrote, and nothing else."""
    if not text:
        return None
    found = {}
    for token in text.split(" "):
        value = _CARD_VALUE.fullmatch(token)
        if value is None or value[1] not in _CARD_FIELDS:
            raise ValueError(f"{token[:60]!r} is not NAME=NUMBER, where NAME is one of {', '.join(_CARD_FIELDS)}")
        found[_CARD_FIELDS[value[1]]] = float(value[2])
    cards = CardUse(**found)
    if _cards_text(cards) != text:
        raise ValueError(f"{text[:60]!r} is not written as this version writes it")
    return cards
