"""Reads recorded rounds: JSON lines, each a round of two servers that were measured by turns.

A line is an object. ``win`` lists the windows in the order of time, each as [block, arm, requests/s, mean batch size,
p50, p90, p95, p99, ...]; arm "A" is the base, "B" the candidate. ``slow`` is by how much the candidate really was
slower, as a fraction; without it, both are the same build. Whatever else is there is not read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from pytest_gpuserve.verdict.metric import Metric, log_cost

if TYPE_CHECKING:
    from pathlib import Path

Arm: TypeAlias = Literal["A", "B"]


class _Window(msgspec.Struct, array_like=True):
    block: int
    arm: Arm
    throughput: float
    batching_ratio: float
    p50: float
    p90: float
    p95: float
    p99: float


class _Line(msgspec.Struct):
    windows: list[_Window] = msgspec.field(name="win")
    slower: float = msgspec.field(name="slow", default=0.0)


COLUMNS: Final = _Window.__struct_fields__[2:]
"""Metrics of a window, by their options."""


@dataclass(frozen=True)
class RecordedBlock:
    """Log costs of the windows of one block.

    Attributes:
        base: Of the base, in the order of time, at least one.
        candidate: Of the candidate, likewise.
    """

    base: tuple[float, ...]
    candidate: tuple[float, ...]

    @property
    def difference(self) -> float:
        """Candidate minus base; positive is worse."""
        return fmean(self.candidate) - fmean(self.base)


@dataclass(frozen=True)
class RecordedRound:
    """One fresh start of both servers.

    Attributes:
        blocks: In the order of time, at least one.
        slower: By how much the candidate really was slower, as a fraction.
    """

    blocks: tuple[RecordedBlock, ...]
    slower: float = 0.0

    @property
    def windows(self) -> int:
        """Windows of both servers."""
        return sum(len(block.base) + len(block.candidate) for block in self.blocks)

    @property
    def base(self) -> tuple[float, ...]:
        """Log costs of the base's windows, in the order of time."""
        return tuple(cost for block in self.blocks for cost in block.base)

    @property
    def candidate(self) -> tuple[float, ...]:
        """Log costs of the candidate's windows, in the order of time."""
        return tuple(cost for block in self.blocks for cost in block.candidate)

    def swapped(self) -> RecordedRound:
        """The same with base and candidate exchanged."""
        return replace(self, blocks=tuple(RecordedBlock(block.candidate, block.base) for block in self.blocks))


def read_rounds(path: Path, metric: Metric) -> list[RecordedRound]:
    """All rounds of a file.

    Args:
        path: The file.
        metric: Which number of a window is read.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    return [_round(msgspec.json.decode(line, type=_Line), metric) for line in lines]


def _round(line: _Line, metric: Metric) -> RecordedRound:
    costs: dict[int, dict[Arm, list[float]]] = {}
    for window in line.windows:
        value: float = getattr(window, metric.option)
        costs.setdefault(window.block, {"A": [], "B": []})[window.arm].append(log_cost(metric, value))
    return RecordedRound(
        tuple(RecordedBlock(tuple(by_arm["A"]), tuple(by_arm["B"])) for by_arm in costs.values()), line.slower
    )
