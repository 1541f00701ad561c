"""How far a load goes beyond one machine: what its parts cost here, and what that comes to at a million requests/s.

    python -m tests.benchmarks.scale

Every figure says how it is known. *Measured*: of the real thing, on this machine. *Simulated*: the real code, fed with
reports whose latencies were drawn. *Computed*: from those by arithmetic, and from assumptions that are printed too. CPU
time is of a process, and the least of several tries, so that other work on the machine shows little in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.load.schedule import Poisson
from pytest_gpuserve.load.validity import SATURATED_SHARE
from pytest_gpuserve.units import format_bytes, format_fraction, format_rate, format_seconds
from tests.benchmarks.rows import machine, parser_of, rich_table, show
from tests.benchmarks.scale_costs import ArrivalCost, arrival_cost, request_seconds, schedules
from tests.benchmarks.scale_model import (
    CARD_BITS,
    CLOCK_SECONDS,
    MEMORY_BYTES,
    WORKER_SHARE,
    Uses,
    network_bits,
    out_of_order,
    rate_drawn_at_most,
    uses,
    workers_needed,
)
from tests.benchmarks.scale_ticks import TICKS_A_SECOND, Gathered, gather, pool

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rich.table import Table

SIMULATED: Final = "simulated"
COMPUTED: Final = "computed"

RATES: Final = (1e4, 1e5, 1e6)
ENGINE_RATE: Final = 20_000.0
MAX_IN_FLIGHT: Final = 64
PLANNED_SCHEDULE: Final = "Poisson"

SIGMA: Final = 0.3
POOL: Final = 256
POOL_PER_TICK: Final = 1_000

SECONDS_KEPT: Final = 60
KEPT_TICKS: Final = SECONDS_KEPT * TICKS_A_SECOND
SMALL_BODY: Final = 1_000
LARGE_BODY: Final = 150_000
"""Bytes of a short text and of a photograph."""


@dataclass(frozen=True)
class Costs:
    """What was measured here.

    Args:
        request_seconds: CPU time of a request in a busy engine, which is what many workers are.
        arrivals: A schedule's arrivals, by its name.
    """

    request_seconds: float
    arrivals: Mapping[str, ArrivalCost]


@dataclass(frozen=True)
class Scale:
    """A load of many workers.

    Args:
        rate: Requests a second.
        workers: Whom it takes.
        gathering: What becomes of their reports.
        drawn_seconds: CPU time of drawing an arrival.
        request_seconds: CPU time of a request.
    """

    rate: float
    workers: int
    gathering: Gathered
    drawn_seconds: float
    request_seconds: float

    @property
    def coordinator_share(self) -> float:
        """Of a core."""
        return TICKS_A_SECOND * self.gathering.coordinator_seconds

    @property
    def session_share(self) -> float:
        """Of a core."""
        return TICKS_A_SECOND * self.gathering.session_seconds

    @property
    def kept_bytes(self) -> float:
        """Memory of the session at the end of a long measurement."""
        return KEPT_TICKS * self.gathering.kept_bytes

    def uses(self, body_bytes: int) -> Uses:
        """What it uses of what workers do not bring with them."""
        return uses(
            self.rate,
            drawn_seconds=self.drawn_seconds,
            coordinator_share=self.coordinator_share,
            session_share=self.session_share,
            session_bytes=self.kept_bytes,
            body_bytes=body_bytes,
        )


def scale(rate: float, costs: Costs, *, ticks: int = TICKS_A_SECOND) -> Scale:
    """Work a load out, and take as many reports as it makes in a second through the real code."""
    drawn_seconds = costs.arrivals[PLANNED_SCHEDULE].drawn
    workers = workers_needed(rate, request_seconds=costs.request_seconds, drawn_seconds=drawn_seconds)
    assert workers is not None, f"drawing {rate:g} arrivals/s takes more than a worker may use"
    per_tick = max(1, round(rate / workers / TICKS_A_SECOND))
    return Scale(
        rate=rate,
        workers=workers,
        gathering=gather(pool(workers, per_tick=per_tick, ticks=ticks, sigma=SIGMA)),
        drawn_seconds=drawn_seconds,
        request_seconds=costs.request_seconds,
    )


def schedule_table(arrivals: Mapping[str, ArrivalCost]) -> Table:
    """What a schedule costs those who share it."""
    bound = f"drawing alone takes {format_fraction(SATURATED_SHARE)} of each worker's core at"
    rows = []
    for name, cost in arrivals.items():
        most = rate_drawn_at_most(cost.drawn)
        at = format_rate(most) if most < 1e9 else "no rate: nothing is drawn for others"
        rows.append((name, format_seconds(cost.drawn), format_seconds(cost.own), at))
    header = ("schedule", "drawing it, whoever sends it", "the rest, of own ones", bound)
    return rich_table(header, rows, words=["schedule"])


def pool_ends(workers: int, found: Gathered) -> dict[str, float]:
    """With how many workers coordinator, session and memory end, going on from a large pool in proportion."""
    shares = {
        "the coordinator's core": TICKS_A_SECOND * found.coordinator_seconds / SATURATED_SHARE,
        "the session's core": TICKS_A_SECOND * found.session_seconds / SATURATED_SHARE,
        f"{format_bytes(MEMORY_BYTES)} for {SECONDS_KEPT} s": KEPT_TICKS * found.kept_bytes / MEMORY_BYTES,
    }
    return {what: workers / share for what, share in shares.items()}


def scale_table(scales: Sequence[Scale], costs: Costs) -> Table:
    """One column for each rate."""
    bursty = costs.arrivals["gamma, shape 0.25"].drawn
    computed: dict[str, Callable[[Scale], str]] = {
        f"workers, each {format_fraction(WORKER_SHARE)} of a core": lambda load: str(load.workers),
        "the same with gamma arrivals, shape 0.25": lambda load: _workers(load, bursty),
        "of a worker's core for drawing arrivals": lambda load: format_fraction(load.rate * load.drawn_seconds),
    }
    simulated: dict[str, Callable[[Scale], str]] = {
        "a worker's report": lambda load: format_bytes(load.gathering.worker_bytes),
        "reports to the coordinator": lambda load: (
            f"{format_bytes(load.workers * TICKS_A_SECOND * load.gathering.worker_bytes)}/s"
        ),
        "coordinator, of a core, without Ray": lambda load: format_fraction(load.coordinator_share),
        "session, of a core": lambda load: format_fraction(load.session_share),
        f"session keeps, {SECONDS_KEPT} s": lambda load: format_bytes(load.kept_bytes),
        "merged p99 off by": lambda load: _percent(load.gathering.merged_error),
    }
    limits: dict[str, Callable[[Scale], str]] = {
        "arrivals whose order the clocks do not tell": lambda load: f"{out_of_order(load.rate):g}",
        "network, bodies of 1 kB": lambda load: _bits(network_bits(load.rate, SMALL_BODY)),
        "scarcest, bodies of 1 kB": lambda load: _scarcest(load.uses(SMALL_BODY)),
        "network, bodies of 150 kB": lambda load: _bits(network_bits(load.rate, LARGE_BODY)),
        "scarcest, bodies of 150 kB": lambda load: _scarcest(load.uses(LARGE_BODY)),
    }
    rows = [
        (name, *map(of, scales), how)
        for how, group in ((COMPUTED, computed), (SIMULATED, simulated), (COMPUTED, limits))
        for name, of in group.items()
    ]
    how = "how it is known"
    return rich_table(("", *(format_rate(each.rate) for each in scales), how), rows, words=("", how))


def assumptions() -> str:
    """What was not measured."""
    return (
        f"Assumed: clocks {format_seconds(CLOCK_SECONDS)} apart at most (half a round trip in one rack), a network card"
        f" of {_bits(CARD_BITS)} at the server, {format_bytes(MEMORY_BYTES)} for the session, log-normal latencies of"
        f" 20 ms in the median, a p99 of {math.exp(2.326 * SIGMA):.1f} times that, every eighth worker's twice as long."
    )


def measure() -> Costs:
    """Measure what there is to measure."""
    return Costs(
        request_seconds(Poisson(ENGINE_RATE, max_in_flight=MAX_IN_FLIGHT)),
        {name: arrival_cost(schedule) for name, schedule in schedules(1e6).items()},
    )


def main() -> None:
    """Print all tables, each when it is known."""
    parser_of(__doc__).parse_args()
    costs = measure()
    show(f"A request to a server that does nothing, CPU time (measured): {format_seconds(costs.request_seconds)}")
    show("An arrival, CPU time in each worker (measured), and its bound (computed)\n", schedule_table(costs.arrivals))
    ends = pool_ends(POOL, gather(pool(POOL, per_tick=POOL_PER_TICK, ticks=3, sigma=SIGMA)))
    told = ", ".join(f"{what} at {workers:.0f}" for what, workers in ends.items())
    show(f"In proportion to {POOL} workers of {POOL_PER_TICK} requests a tick (computed), these end: {told}.\n")
    scales = [scale(rate, costs) for rate in RATES]
    show("A load of so many requests a second, Poisson arrivals\n", scale_table(scales, costs))
    show(assumptions(), f"Measured on: {machine()}.")


def _workers(load: Scale, drawn_seconds: float) -> str:
    # Of a request all stays the same but for its arrival.
    request_seconds = load.request_seconds - load.drawn_seconds + drawn_seconds
    workers = workers_needed(load.rate, request_seconds=request_seconds, drawn_seconds=drawn_seconds)
    return "no number of them" if workers is None else str(workers)


def _percent(error: float) -> str:
    """A share that is far below what the units of people show."""
    return f"{100 * error:+.3f} %"


def _bits(per_second: float) -> str:
    return f"{per_second / 1e9:.3g} Gbit/s"


def _scarcest(found: Uses) -> str:
    what, share = found.scarcest
    return f"{what}, {format_fraction(share)}"


if __name__ == "__main__":
    main()
