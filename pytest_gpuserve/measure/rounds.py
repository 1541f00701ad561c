"""Two servers measured side by side: blocks of windows by turns, and rounds of fresh starts of both."""

from __future__ import annotations

import statistics
from collections.abc import Mapping  # noqa: TC003 -- msgspec reads the annotations
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from pytest_gpuserve.measure.counters import Counters, ServerSetting  # noqa: TC001 -- msgspec reads the annotations
from pytest_gpuserve.measure.points import (
    NotMeasured,
    TooFewRequests,
    cold_starts,
    observations,
    value_of,
)
from pytest_gpuserve.measure.telemetry import Telemetry  # noqa: TC001 -- as above
from pytest_gpuserve.measure.window import Client, Window
from pytest_gpuserve.units import format_fraction
from pytest_gpuserve.verdict.metric import COLD_START, Metric, log_cost, requests_needed
from pytest_gpuserve.verdict.paired import RoundPoint
from pytest_gpuserve.verdict.reason import Reason  # noqa: TC001 -- msgspec reads the annotations

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FEWEST_GROUPS = 2
"""Neighbouring blocks are put together until a quantile has its requests; a single group would not know its spread."""

OF_ONE_SERVER: Final = frozenset({"gpu_memory"})
"""Metrics of the whole GPU that no time slice tells apart: of a server that shares it they are not known."""


def round_point(metric: Metric, measured: Round, tolerance: float) -> RoundPoint:
    """Reduce a round to its block differences: log cost of the candidate minus that of the base, positive is worse.

    A rate is the mean of its windows' log costs. A quantile is taken of an arm's windows of a block together, and the
    batching ratio of their totals: neither is a mean over windows. A cold start gives one difference, whatever the
    blocks: that of the two starts, or where each server had several, of their mean log costs.

    Energy and utilisation are those of the whole GPU, on which the other server rests meanwhile; see `points`. Memory
    is the GPU's as well, and so that of both servers unless they ran by turns.

    Raises:
        NotMeasured: The metric is not known of every block.
        TooFewRequests: It is known, but too few requests stand behind it.
    """
    if not measured.blocks:
        raise NotMeasured(f"{metric.name} is not known: no block was measured")
    if metric.name == COLD_START:
        base, candidate = (
            statistics.fmean(log_cost(metric, value) for value in _cold_starts([measured], arm)) for arm in ARMS
        )
        return RoundPoint((candidate - base,))
    demand_own_gpu(metric, [measured])
    groups = _groups(metric, measured, tolerance)
    return RoundPoint(tuple(_cost(metric, group, "candidate") - _cost(metric, group, "base") for group in groups))


def paired_value(metric: Metric, rounds: Sequence[Round], arm: Arm) -> float:
    """The metric of one server over all rounds together, in its unit. Raises `NotMeasured`."""
    if metric.name == COLD_START:
        return statistics.fmean(_cold_starts(rounds, arm))
    demand_own_gpu(metric, rounds)
    return value_of(metric, [window for measured in rounds for window in measured.windows(arm)])


def _cold_starts(rounds: Sequence[Round], arm: Arm) -> list[float]:
    """The cold starts of a server, in seconds."""
    sides = [measured.sides[arm] for measured in rounds if arm in measured.sides]
    return cold_starts([seconds for side in sides for seconds in side.cold_start_seconds])


def demand_own_gpu(metric: Metric, rounds: Sequence[Round]) -> None:
    """Raise `NotMeasured` for a metric of the whole GPU where two servers were on it."""
    if metric.name in OF_ONE_SERVER and not all(measured.by_turns for measured in rounds):
        raise NotMeasured(
            f"{metric.name} is not known of either server: both were on the GPU at the same time",
            remedies=["start them alternately: @pytest.mark.gpuserve(one_at_a_time=True)"],
        )


def _groups(metric: Metric, measured: Round, tolerance: float) -> list[list[Block]]:
    """The blocks in groups of as few neighbours as give each server the requests that the metric needs."""
    blocks = list(measured.blocks)
    needed = requests_needed(metric, tolerance)
    # Of servers that run by turns a block is a round, and so a group: the spread is that between rounds.
    most = max(1, len(blocks) // FEWEST_GROUPS)
    for size in range(1, most + 1):
        groups = [blocks[first : first + size] for first in range(0, len(blocks), size)]
        if len(groups) > 1 and len(groups[-1]) < size:
            groups[-2:] = [groups[-2] + groups[-1]]
        if all(observations(metric, _windows(group, arm)) >= needed for group in groups for arm in ARMS):
            return groups
    fewest = min(observations(metric, _windows(blocks, arm)) for arm in ARMS)
    if not fewest:
        # What no answer had, more of them will not have.
        for windows in (_windows(blocks, arm) for arm in ARMS):
            if any(window.requests for window in windows):
                value_of(metric, windows)
    raise TooFewRequests(
        f"{metric.name} at a tolerance of {format_fraction(tolerance)} needs {needed} {metric.counted} of each server"
        f" in at least {FEWEST_GROUPS} stretches of a round",
        found=f"{fewest} {metric.counted} in {len(blocks)} blocks of a round",
        remedies=[
            "load(..., seconds=...), which lengthens the windows",
            f"a wider tolerance by the marker gpuserve({metric.option}=...)",
        ],
    )


def _windows(blocks: Sequence[Block], arm: Arm) -> list[Window]:
    return [window for block in blocks for window in block.of(arm)]


def _cost(metric: Metric, blocks: Sequence[Block], arm: Arm) -> float:
    windows = _windows(blocks, arm)
    if metric.name == "throughput":
        return statistics.fmean(log_cost(metric, value_of(metric, [window])) for window in windows)
    return log_cost(metric, value_of(metric, windows))


Arm = Literal["base", "candidate"]

ARMS: Final[tuple[Arm, Arm]] = ("base", "candidate")

ABBA: Final[tuple[Arm, ...]] = ("base", "candidate", "candidate", "base")
BAAB: Final[tuple[Arm, ...]] = ("candidate", "base", "base", "candidate")


@dataclass(frozen=True, slots=True)
class Block:
    """Windows of both servers in an order in which whatever drifts evenly cancels: ABBA or BAAB.

    Args:
        order: Whose turn each window was.
        windows: The windows, in time.

    Raises:
        ValueError: There is not a window for each turn, or the servers had not as many turns each.
    """

    order: tuple[Arm, ...]
    windows: tuple[Window, ...]

    def __post_init__(self) -> None:
        turns = {arm: self.order.count(arm) for arm in ARMS}
        if len(self.order) != len(self.windows) or turns["base"] != turns["candidate"] or not self.order:
            raise ValueError(f"a block has as many windows of the base as of the candidate, not {self.order}")

    def of(self, arm: Arm) -> tuple[Window, ...]:
        """The windows of one of them."""
        return tuple(window for turn, window in zip(self.order, self.windows, strict=True) if turn == arm)


@dataclass(frozen=True, slots=True)
class ArmResult:
    """What is known of one server in a round, beside its windows.

    Args:
        cold_start_seconds: From the launch of its process to its first answer, of each of its starts; None where it was
            not started by us.
        client: What the load engine saw beside the latencies.
        batch_sizes: How often the server executed each batch size.
        answers: Answers received; ``answers_checked`` of them were compared with what the test expects.
        answers_checked: See ``answers``.
        cold_start_parts: What it says that its last cold start went to, in seconds.
        settings: How it was really set up, beside what it was asked for.
        counters: What it counted within its windows; None where it does not count.
        telemetry: Telemetry of the GPUs within its windows; None without a sampler. Not kept from run to run.
        rejected: Why windows were measured again, a text for each that was: what disturbed GPUs or client meanwhile.
    """

    cold_start_seconds: tuple[float | None, ...]
    client: Client = field(default_factory=Client)
    batch_sizes: Mapping[str, int] = field(default_factory=dict)
    answers: int = 0
    answers_checked: int = 0
    cold_start_parts: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, ServerSetting] = field(default_factory=dict)
    counters: Counters | None = None
    telemetry: Telemetry | None = None
    rejected: tuple[str, ...] = ()


def of_arm(arm: Arm, reasons: Iterable[Reason]) -> list[Reason]:
    """The same as they are said of one of two servers: of the base with its name."""
    return [reason if arm == "candidate" else reason.of("the base") for reason in reasons]


@dataclass(frozen=True, slots=True)
class Round:
    """One fresh start of both servers, or where only one fits into memory, fresh starts by turns: the unit of evidence.

    Args:
        blocks: What was measured; may be fewer than asked where the round was cut short.
        first: The server that was started first.
        sides: What else is known of each server.
        at: When it began, ISO 8601 in UTC.
        by_turns: Whether only one server ran at a time; then each window is of a fresh start, and each block a round
            of its own.
        together: Whether both servers started at the same time, so that nobody knows how long a start takes.
        rejected: Blocks that were thrown away for what disturbed them, never for what they measured.
        foreign_cores: Cores that other processes took while it was measured, at most of its blocks.
        problems: Why nothing may be concluded from it; empty when all is well.
    """

    blocks: tuple[Block, ...]
    first: Arm
    sides: Mapping[Arm, ArmResult]
    at: str
    by_turns: bool = False
    together: bool = False
    rejected: int = 0
    foreign_cores: float = 0.0
    problems: tuple[Reason, ...] = ()

    def windows(self, arm: Arm) -> tuple[Window, ...]:
        """All windows of one server."""
        return tuple(window for block in self.blocks for window in block.of(arm))
