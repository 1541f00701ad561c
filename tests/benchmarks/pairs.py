"""Two clients in turn on a noisy machine: ours, peer, peer, ours, ..., and the ratios of neighbours.

A request's cost to a client is beyond what it takes to start: the start is taken off by a second, smallest load.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, TypeVar

from pytest_gpuserve.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.benchmarks.tools import Outcome

Result = TypeVar("Result")


def in_turn(ours: Callable[[], Result], peer: Callable[[], Result], *, pairs: int) -> list[tuple[Result, Result]]:
    """Run both ``pairs`` times, each time the other one first, so that a drift of the machine favours nobody."""
    results = []
    for number in range(pairs):
        if number % 2:
            theirs = peer()
            results.append((ours(), theirs))
        else:
            mine = ours()
            results.append((mine, peer()))
    return results


def is_kept(
    what: str,
    peer: str,
    values: Sequence[tuple[float, float]],
    write: Callable[[float], str] = format_seconds,
    *,
    least: float = 0.0,
    most: float = float("inf"),
) -> bool:
    """Print a row of the page's table, and tell whether the median of the pairs' ratios is within the bounds.

    Args:
        what: The fact.
        peer: Whom ours is compared with.
        values: Pairs of our value and the peer's.
        write: Makes text of a value.
        least: Smallest ratio that keeps the promise.
        most: Largest one.
    """
    ratios = [mine / theirs for mine, theirs in values]
    ours, theirs = (write(statistics.median(side)) for side in zip(*values, strict=True))
    median, spread = statistics.median(ratios), f"{min(ratios):.3f} to {max(ratios):.3f}, {len(ratios)} pairs"
    kept = least <= median <= most
    promise = f"promised {least:g} to {most:g}{'' if kept else ', **not kept**'}"
    print(f"| {what} | {ours} | {peer}: {theirs} | {median:.3f} | {spread} | {promise} |")  # noqa: T201 -- shown by -rP
    return kept


def cost_of_start(smallest: Callable[[], Outcome]) -> tuple[float, int]:
    """CPU seconds and requests of the smallest load of a client: the median of three."""
    loads = sorted((smallest() for _ in range(3)), key=lambda load: load.cpu_seconds)
    return loads[1].cpu_seconds, loads[1].requests


def cost(load: Outcome, start: tuple[float, int] = (0.0, 0)) -> float:
    """CPU seconds a request, less those of the start."""
    seconds, requests = start
    return (load.cpu_seconds - seconds) / (load.requests - requests)
