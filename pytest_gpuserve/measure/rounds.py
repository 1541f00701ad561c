"""Two servers measured side by side: blocks of windows by turns, and rounds of fresh starts of both."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from pytest_gpuserve.measure.window import Client

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpuserve.measure.capacity import Search
    from pytest_gpuserve.measure.counters import Counters
    from pytest_gpuserve.measure.settings import Setting
    from pytest_gpuserve.measure.telemetry import Telemetry
    from pytest_gpuserve.measure.window import Window

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
class Side:
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
        telemetry: What the cards did within its windows; None where nobody looked. Not kept from run to run.
        idle_watts: Power of all cards together before the load, with what was up then at rest; None if not seen.
        rejected: Why windows were measured again, a text for each that was: what disturbed cards or client meanwhile.
        searches: Of each of its starts the rates that were tried, where they were searched for their capacity.
    """

    cold_start_seconds: tuple[float | None, ...]
    client: Client = field(default_factory=Client)
    batch_sizes: Mapping[str, int] = field(default_factory=dict)
    answers: int = 0
    answers_checked: int = 0
    cold_start_parts: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, Setting] = field(default_factory=dict)
    counters: Counters | None = None
    telemetry: Telemetry | None = None
    idle_watts: float | None = None
    rejected: tuple[str, ...] = ()
    searches: tuple[Search, ...] = ()


@dataclass(frozen=True, slots=True)
class Round:
    """One fresh start of both servers, or where only one fits into memory, fresh starts by turns: the unit of evidence.

    Args:
        blocks: What was measured; may be fewer than asked where the round was cut short.
        first: Who was started first.
        sides: What else is known of each server.
        at: When it began, ISO 8601 in UTC.
        by_turns: Whether only one server ran at a time; then each window is of a fresh start, and each block a round
            of its own.
        rejected: Blocks that were thrown away for what disturbed them, never for what they measured.
        foreign_cores: Cores that other processes took while it was measured, at most of its blocks.
        problems: Why nothing may be concluded from it; empty when all is well.
    """

    blocks: tuple[Block, ...]
    first: Arm
    sides: Mapping[Arm, Side]
    at: str
    by_turns: bool = False
    rejected: int = 0
    foreign_cores: float = 0.0
    problems: tuple[str, ...] = ()

    def windows(self, arm: Arm) -> tuple[Window, ...]:
        """All windows of one server."""
        return tuple(window for block in self.blocks for window in block.of(arm))
