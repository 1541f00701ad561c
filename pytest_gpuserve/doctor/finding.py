"""What the doctor says of one thing: whether it works, or what it does to a measurement, and what helps."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether one thing works here.

    Args:
        what: The fixture, or the container engine.
        works: Whether it can be used.
        found: Its version, or what is wrong.
        remedy: What helps; empty where it works.
    """

    what: str
    works: bool
    found: str
    remedy: str = ""


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
        level: What it does.
        found: What was seen; of what is unknown, why it is.
        effect: What it does to a measurement, or of what is unknown what it would; empty where all is well.
        remedy: What helps; empty where nothing has to.
        subject: ``machine``, ``cpu`` for that device alone, or the UUID of a card.
    """

    what: str
    level: Level
    found: str
    effect: str = ""
    remedy: str = ""
    subject: str = MACHINE
