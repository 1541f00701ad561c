"""Two servers measured side by side: rounds of fresh starts of both, whose windows alternate in blocks."""

from __future__ import annotations

import statistics
from collections.abc import Mapping  # noqa: TC003 -- msgspec reads the annotations
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from pytest_gpuserve.measure.points import NotMeasured, cost, demand_requests, observations, value_of
from pytest_gpuserve.measure.window import Session, Start, Window
from pytest_gpuserve.verdict.evidence import RoundPoint
from pytest_gpuserve.verdict.metric import COLD_START, Metric, log_cost, requests_needed
from pytest_gpuserve.verdict.reason import Reason  # noqa: TC001 -- msgspec reads the annotations

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Arm = Literal["base", "candidate"]

ARMS: Final[tuple[Arm, Arm]] = ("base", "candidate")

ABBA: Final[tuple[Arm, ...]] = ("base", "candidate", "candidate", "base")
BAAB: Final[tuple[Arm, ...]] = ("candidate", "base", "base", "candidate")
"""Orders of a block, which cancel a steady drift."""

TURNS: Final = 2
"""Windows of each server in a block."""

FEWEST_GROUPS = 2
"""Fewest groups of blocks. Blocks are merged until a quantile has its requests; one group alone has no spread."""

OF_ONE_SERVER: Final = frozenset({"gpu_memory"})
"""Metrics of the whole GPU that no time slice separates: they are unknown for a server that shares it."""


@dataclass(frozen=True, slots=True)
class Round:
    """Unit of evidence: one fresh start of both servers, or alternating fresh starts if only one fits into memory.

    Args:
        starts: The starts of each server. Two windows of the one and two of the other, in order of time, are a block.
        at: Begin, ISO 8601 in UTC.
        one_at_a_time: Whether only one server ran at a time; then each window has a fresh start, and each block is a
            round of its own.
        together: Whether both servers started at the same time, so that the time of a start is unknown.
        problems: Reasons why the round proves nothing; empty if it is valid.
    """

    starts: Mapping[Arm, tuple[Start, ...]]
    at: str
    one_at_a_time: bool = False
    together: bool = False
    problems: tuple[Reason, ...] = ()

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return min(len(self.windows(arm)) for arm in ARMS) // TURNS

    @property
    def foreign_cores(self) -> float:
        """Most cores that other processes took during a block."""
        return max((start.foreign_cores for starts in self.starts.values() for start in starts), default=0.0)

    def windows(self, arm: Arm) -> tuple[Window, ...]:
        """All windows of one server, those of each block together; one at a time, a start is one window."""
        session = self.session(arm)
        return tuple(start.total for start in session.starts) if self.one_at_a_time else session.windows

    def first(self, blocks: int) -> Round:
        """The round as it was after its first blocks, of starts that served all blocks."""
        cut = {
            arm: tuple(replace(start, windows=start.windows[: blocks * TURNS]) for start in starts)
            for arm, starts in self.starts.items()
        }
        return replace(self, starts=cut)

    def session(self, arm: Arm) -> Session:
        """One server's part of the round, in the form of a load that was measured alone.

        If both servers were on a GPU at the same time, its memory is unknown for both.
        """
        starts = tuple(start for start in self.starts[arm] if start.windows)
        if not self.one_at_a_time:
            starts = tuple(replace(start, windows=tuple(map(_on_shared_gpu, start.windows))) for start in starts)
        return Session(starts, self.at, self.problems)


def _on_shared_gpu(window: Window) -> Window:
    if window.gpus is None:
        return window
    return msgspec.structs.replace(window, gpus=replace(window.gpus, memory_bytes=None))


def of_arm(arm: Arm, reasons: Iterable[Reason]) -> list[Reason]:
    """Attribute texts to one of two servers: those of the base get its name."""
    return [reason if arm == "candidate" else reason.of("the base") for reason in reasons]


def round_point(metric: Metric, measured: Round, tolerance: float) -> RoundPoint:
    """Reduce a round to its block differences: log cost of the candidate minus that of the base, positive is worse.

    A rate is the mean of its windows' log costs. A quantile is taken over an arm's windows of a block together, and the
    batching ratio over their totals; neither is a mean over windows. A cold start gives one difference for any number
    of blocks: that of the two starts, or of their mean log costs if each server had several starts.

    Energy and utilisation are those of the whole GPU, on which the other server rests meanwhile; see `points`.

    Raises:
        NotMeasured: A block does not know the metric.
        TooFewRequests: The metric is known, but rests on too few requests.
    """
    if not measured.blocks:
        raise NotMeasured(f"{metric.name} is not known: no block was measured")
    if metric.name == COLD_START:
        base, candidate = (cost(metric, measured.starts[arm]) for arm in ARMS)
        return RoundPoint((candidate - base,))
    groups = _groups(metric, measured, tolerance)
    return RoundPoint(tuple(_cost(metric, candidate) - _cost(metric, base) for base, candidate in groups))


def _groups(metric: Metric, measured: Round, tolerance: float) -> Sequence[tuple[Sequence[Window], Sequence[Window]]]:
    """Windows of base and candidate in the smallest groups of neighbouring blocks with the metric's requests."""
    base, candidate = (measured.windows(arm) for arm in ARMS)
    count, needed = measured.blocks, requests_needed(metric, tolerance)
    # For servers that alternate in fresh starts a block is a round, and so a group: the spread is that between rounds.
    largest = max(1, count // FEWEST_GROUPS)
    for size in range(1, largest + 1):
        # Surplus blocks join the last group.
        ends = [TURNS * end for end in (*range(size, count - size + 1, size), count)]
        groups = [(base[begin:end], candidate[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)]
        if size == largest or all(observations(metric, each) >= needed for group in groups for each in group):
            break
    # A start that alternates with others is as long as one that is measured alone.
    window_seconds = None if measured.one_at_a_time else max(window.seconds for window in (*base, *candidate))
    for parts in zip(*groups, strict=True):
        demand_requests(metric, parts, tolerance, "each half of a round", window_seconds=window_seconds)
    return groups


def _cost(metric: Metric, windows: Sequence[Window]) -> float:
    if metric.name == "throughput":
        return statistics.fmean(log_cost(metric, value_of(metric, [window])) for window in windows)
    return log_cost(metric, value_of(metric, windows))
