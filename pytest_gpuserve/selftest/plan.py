"""What the self-test compares with the server as it is, and in which order."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpuserve.selftest.server import Options

BATCH: Final = 16
"""Most requests of a batch of the server as it is; twice as many users keep its batches full."""

USERS: Final = 2 * BATCH

SERVICE_SECONDS: Final = 0.008
"""Work on a batch: with these users some 2000 answers a second, so that a window has the requests for a p99."""


class Truth(Enum):
    """How a candidate differs from its base, and so what its comparison should come to."""

    ALIKE = "no different"
    EDGE = "worse by just the tolerance of p50"
    WORSE = "worse by more than the tolerance"
    WRONG = "wrong answers"


@dataclass(frozen=True)
class Case:
    """One kind of candidate.

    Args:
        must_be_found: Whether it is so much worse that a comparison has to find it, not only not pass it.
        change: Options in which it differs.
    """

    name: str
    truth: Truth
    must_be_found: bool = False
    change: Mapping[str, int | float] = field(default_factory=dict)

    def of(self, base: Options) -> Options:
        """The candidate to a base."""
        return replace(base, **self.change)  # type: ignore[arg-type]


CASES: Final = (
    Case("wrong answers", Truth.WRONG, must_be_found=True, change={"wrong_every": 100}),
    Case("identical", Truth.ALIKE),
    Case("20 % slower", Truth.WORSE, must_be_found=True, change={"slower": 0.20}),
    Case("10 % slower", Truth.WORSE, must_be_found=True, change={"slower": 0.10}),
    # One batch in eighty, twice as long: 1.25 % of throughput, and half as much again of p99.
    Case("tail only", Truth.WORSE, change={"tail_every": 80, "tail_factor": 2.0}),
    Case("smaller batches", Truth.WORSE, change={"max_batch": BATCH * 3 // 4}),
    # Each answer takes 5 % longer, which is just what a p50 may; the throughput falls by 4.8 % of the 5 % that it may.
    Case("5 % slower", Truth.EDGE, change={"slower": 0.05}),
)
"""Those that decide whether the self-test passes come first, and the quickest of all: a short one reaches them."""


@dataclass(frozen=True)
class Planned:
    """One comparison that is to be made.

    Args:
        case: Of which kind.
        number: Among those of its kind, from 1.
    """

    case: Case
    number: int


def interleaved(times: int, *, seed: int = 0) -> tuple[Planned, ...]:
    """All cases so many times, in turns: first as they stand in `CASES`, then each time in another order.

    A machine has better and worse hours, which should come to all cases alike.
    """
    coin = random.Random(seed)  # noqa: S311 -- an order, not a secret
    plan: list[Planned] = []
    for number in range(1, times + 1):
        order = list(CASES)
        if number > 1:
            coin.shuffle(order)
        plan += [Planned(case, number) for case in order]
    return tuple(plan)
