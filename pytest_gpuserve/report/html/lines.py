"""A metric over time, as a history page draws it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinePoint:
    """A value of a metric at one place of its history.

    Args:
        label: Where that is, for people: a commit, a date.
        value: The value, in the unit of its line.
        low: Lower bound of the value; None where it is not known.
        high: Upper bound of the value; None where it is not known.
        note: What is worth knowing of it; empty for nothing.
    """

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class MetricLine:
    """A metric's history, oldest first.

    Args:
        title: What it is of, for people: the test and the metric.
        unit: Unit of the values, as ``units.format_value`` knows it.
        points: The values.
        changes: Positions in ``points`` of those with which a new level begins, rising.

    Raises:
        ValueError: A change point lies outside the points, or they do not rise.
    """

    title: str
    unit: str
    points: tuple[LinePoint, ...]
    changes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if list(self.changes) != sorted({*self.changes}) or not {*self.changes} <= {*range(len(self.points))}:
            raise ValueError(f"change points must rise within 0..{len(self.points) - 1}, not {self.changes}")
