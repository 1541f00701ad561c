"""Two servers measured side by side: blocks of alternating windows, and rounds of fresh starts of both."""

from __future__ import annotations

import statistics
from collections.abc import Mapping  # noqa: TC003 -- msgspec reads the annotations
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal

from pytest_gpuserve.measure.counters import Counters, ServerSetting  # noqa: TC001 -- msgspec reads the annotations
from pytest_gpuserve.measure.points import (
    NotMeasured,
    TooFewRequests,
    cold_starts,
    observations,
    value_of,
)
from pytest_gpuserve.measure.window import Client, Session, Start, Window
from pytest_gpuserve.units import format_fraction
from pytest_gpuserve.verdict.metric import COLD_START, Metric, log_cost, requests_needed
from pytest_gpuserve.verdict.paired import RoundPoint
from pytest_gpuserve.verdict.reason import Reason  # noqa: TC001 -- msgspec reads the annotations

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FEWEST_GROUPS = 2
"""Fewest groups of blocks. Blocks are merged until a quantile has its requests; one group alone has no spread."""

OF_ONE_SERVER: Final = frozenset({"gpu_memory"})
"""Metrics of the whole GPU that no time slice separates: they are unknown for a server that shares it."""


def round_point(metric: Metric, measured: Round, tolerance: float) -> RoundPoint:
    """Reduce a round to its block differences: log cost of the candidate minus that of the base, positive is worse.

    A rate is the mean of its windows' log costs. A quantile is taken over an arm's windows of a block together, and the
    batching ratio over their totals; neither is a mean over windows. A cold start gives one difference for any number
    of
    blocks: that of the two starts, or of their mean log costs if each server had several starts.

    Energy and utilisation are those of the whole GPU, on which the other server rests meanwhile; see `points`. Memory
    is the GPU's as well, and so that of both servers unless only one was up at a time.

    Raises:
        NotMeasured: A block does not know the metric.
        TooFewRequests: The metric is known, but rests on too few requests.
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
    """Cold starts of a server, in seconds."""
    sides = [measured.sides[arm] for measured in rounds if arm in measured.sides]
    return cold_starts([seconds for side in sides for seconds in side.cold_start_seconds])


def demand_own_gpu(metric: Metric, rounds: Sequence[Round]) -> None:
    """Raise `NotMeasured` for a metric of the whole GPU if two servers shared it."""
    if metric.name in OF_ONE_SERVER and not all(measured.one_at_a_time for measured in rounds):
        raise NotMeasured(
            f"{metric.name} is not known for either server: both were on the GPU at the same time",
            remedies=["start them alternately: @pytest.mark.gpuserve(one_at_a_time=True)"],
        )


def _groups(metric: Metric, measured: Round, tolerance: float) -> list[list[Block]]:
    """Smallest groups of neighbouring blocks that give each server the requests that the metric needs."""
    blocks = list(measured.blocks)
    needed = requests_needed(metric, tolerance)
    # For servers that alternate in fresh starts a block is a round, and so a group: the spread is that between rounds.
    most = max(1, len(blocks) // FEWEST_GROUPS)
    for size in range(1, most + 1):
        groups = [blocks[first : first + size] for first in range(0, len(blocks), size)]
        if len(groups) > 1 and len(groups[-1]) < size:
            groups[-2:] = [groups[-2] + groups[-1]]
        if all(observations(metric, _windows(group, arm)) >= needed for group in groups for arm in ARMS):
            return groups
    fewest = min(observations(metric, _windows(blocks, arm)) for arm in ARMS)
    if not fewest:
        # More answers would not help: none so far has had it.
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
    """Windows of both servers in an order that cancels a steady drift: ABBA or BAAB.

    Args:
        order: Server of each window.
        windows: The windows, in time.

    Raises:
        ValueError: The windows are not as many as the turns, or the servers had unequal turns.
    """

    order: tuple[Arm, ...]
    windows: tuple[Window, ...]

    def __post_init__(self) -> None:
        turns = {arm: self.order.count(arm) for arm in ARMS}
        if len(self.order) != len(self.windows) or turns["base"] != turns["candidate"] or not self.order:
            raise ValueError(f"a block needs as many windows of the base as of the candidate, not {self.order}")

    def of(self, arm: Arm) -> tuple[Window, ...]:
        """The windows of one server."""
        return tuple(window for turn, window in zip(self.order, self.windows, strict=True) if turn == arm)


@dataclass(frozen=True, slots=True)
class ArmResult:
    """Record of one server in a round, besides its windows.

    Args:
        cold_start_seconds: From the launch of the process to its first answer, for each start; None if it was not
            started by us.
        client: Observations of the load engine besides the latencies.
        batch_sizes: Number of executions of each batch size.
        answers: Answers received; ``answers_checked`` of them were compared with the test's expectation.
        answers_checked: See ``answers``.
        cold_start_parts: Parts of the last cold start in seconds, as the server reports them.
        settings: Actual settings, with the requested values.
        counters: The server's counts within its windows; None if it does not count.
        rejected: Reasons of repeated windows, one text each: disturbances of GPU or client.
    """

    cold_start_seconds: tuple[float | None, ...]
    client: Client = field(default_factory=Client)
    batch_sizes: Mapping[str, int] = field(default_factory=dict)
    answers: int = 0
    answers_checked: int = 0
    cold_start_parts: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, ServerSetting] = field(default_factory=dict)
    counters: Counters | None = None
    rejected: tuple[str, ...] = ()


def of_arm(arm: Arm, reasons: Iterable[Reason]) -> list[Reason]:
    """Attribute texts to one of two servers: those of the base get its name."""
    return [reason if arm == "candidate" else reason.of("the base") for reason in reasons]


@dataclass(frozen=True, slots=True)
class Round:
    """Unit of evidence: one fresh start of both servers, or alternating fresh starts if only one fits into memory.

    Args:
        blocks: Measured blocks; may be fewer than wanted if the round was cut short.
        first: The server that was started first.
        sides: Further record of each server.
        at: Begin, ISO 8601 in UTC.
        one_at_a_time: Whether only one server ran at a time; then each window has a fresh start, and each block is a
            round of its own.
        together: Whether both servers started at the same time, so that the time of a start is unknown.
        rejected: Number of blocks that were thrown away for a disturbance, never for the numbers in them.
        foreign_cores: Most cores that other processes took during a block.
        problems: Reasons why the round proves nothing; empty if it is valid.
    """

    blocks: tuple[Block, ...]
    first: Arm
    sides: Mapping[Arm, ArmResult]
    at: str
    one_at_a_time: bool = False
    together: bool = False
    rejected: int = 0
    foreign_cores: float = 0.0
    problems: tuple[Reason, ...] = ()

    def windows(self, arm: Arm) -> tuple[Window, ...]:
        """All windows of one server."""
        return tuple(window for block in self.blocks for window in block.of(arm))

    def session(self, arm: Arm) -> Session:
        """One server's part of the round, in the form of a load that was measured alone.

        If both servers were on a GPU at the same time, its memory is unknown for both.
        """
        side, windows = self.sides[arm], self.windows(arm)
        if not self.one_at_a_time:
            windows = tuple(
                window if window.gpus is None else replace(window, gpus=replace(window.gpus, memory_bytes=None))
                for window in windows
            )
        known = [seconds for seconds in side.cold_start_seconds if seconds is not None]
        start = Start(
            windows,
            statistics.fmean(known) if known and len(known) == len(side.cold_start_seconds) else None,
            foreign_cores=self.foreign_cores,
            client=side.client,
            cold_start_parts=side.cold_start_parts,
            settings=side.settings,
            counters=side.counters,
            rejected=side.rejected,
        )
        return Session(
            starts=(start,) if start.windows else (),
            at=self.at,
            problems=self.problems,
            batch_sizes=side.batch_sizes,
            answers=side.answers,
            answers_checked=side.answers_checked,
        )
