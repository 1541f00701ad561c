"""How far a load goes beyond one machine: what its parts cost here, and what that comes to at a million requests/s.

    python -m tests.benchmarks.scale

Every figure says how it is known. *Measured*: of the real thing, on this machine. *Simulated*: the real code, fed with
reports whose latencies were drawn. *Computed*: from those by arithmetic, and from assumptions that are printed too. CPU
time is of a process, and the least of several tries, so that other work on the machine shows little in it.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich import box
from rich.console import Console
from rich.table import Table

from pytest_gpuserve.load.schedule import Poisson
from pytest_gpuserve.load.validity import SATURATED_SHARE
from pytest_gpuserve.units import format_bytes, format_change, format_fraction, format_rate, format_seconds
from tests.benchmarks.rows import machine
from tests.benchmarks.scale_costs import ArrivalCost, EngineCost, arrival_cost, engine_cost, schedules
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
    worker_share,
    workers_needed,
)
from tests.benchmarks.scale_ticks import TICKS_A_SECOND, Gathered, crew, gather, worker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

MEASURED: Final = "measured"
SIMULATED: Final = "simulated"
COMPUTED: Final = "computed"

RATES: Final = (1e4, 1e5, 1e6)
ENGINE_RATES: Final = (2_000.0, 10_000.0, 20_000.0)
MAX_IN_FLIGHT: Final = 64
PLANNED_SCHEDULE: Final = "Poisson"

SIGMAS: Final = (0.02, 0.1, 0.3, 1.0)
SIGMA: Final = 0.3
PER_TICK: Final = (100, 1_000, 10_000)
CREWS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CREW_PER_TICK: Final = 1_000

SECONDS_KEPT: Final = 60
SMALL_BODY: Final = 1_000
LARGE_BODY: Final = 150_000
"""Bytes of a short text and of a photograph."""

WIDTH: Final = 200


@dataclass(frozen=True)
class Costs:
    """What was measured here.

    Args:
        engines: An engine process at some rates.
        arrivals: A schedule's arrivals, by its name.
    """

    engines: Sequence[EngineCost]
    arrivals: Mapping[str, ArrivalCost]

    @property
    def request_seconds(self) -> float:
        """CPU time of a request in a busy engine, which is what many workers are."""
        return max(self.engines, key=lambda engine: engine.per_second).request_seconds


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
        return SECONDS_KEPT * TICKS_A_SECOND * self.gathering.kept_bytes

    @property
    def engine_share(self) -> float:
        """Of a core, in each worker."""
        return worker_share(
            self.rate, self.workers, request_seconds=self.request_seconds, drawn_seconds=self.drawn_seconds
        )

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
        gathering=gather(crew(workers, per_tick=per_tick, ticks=ticks, sigma=SIGMA)),
        drawn_seconds=drawn_seconds,
        request_seconds=costs.request_seconds,
    )


def engine_table(engines: Sequence[EngineCost]) -> Table:
    """What an engine process costs."""
    table = Table(box=box.MARKDOWN)
    for name in ("answered", "CPU a request", "of a core", "send lag p99", "a report"):
        table.add_column(name, justify="right")
    for engine in engines:
        table.add_row(
            format_rate(engine.per_second),
            format_seconds(engine.request_seconds),
            format_fraction(engine.core_share),
            format_seconds(engine.lag_p99_seconds),
            format_bytes(engine.tick_bytes),
        )
    return table


def schedule_table(arrivals: Mapping[str, ArrivalCost]) -> Table:
    """What a schedule costs those who share it."""
    table = Table(box=box.MARKDOWN)
    table.add_column("schedule")
    for name in (
        "drawing it, whoever sends it",
        "the rest, of own ones",
        f"drawing alone takes {format_fraction(SATURATED_SHARE)} of each worker's core at",
    ):
        table.add_column(name, justify="right")
    for name, cost in arrivals.items():
        most = rate_drawn_at_most(cost.drawn)
        bound = format_rate(most) if most < 1e9 else "no rate: nothing is drawn for others"
        table.add_row(name, format_seconds(cost.drawn), format_seconds(cost.own), bound)
    return table


def spread_table(*, ticks: int = TICKS_A_SECOND) -> Table:
    """How large reports are."""
    table = Table(box=box.MARKDOWN)
    table.add_column("latencies' p99 over p50", justify="right")
    for per_tick in PER_TICK:
        table.add_column(f"{per_tick} requests", justify="right")
    for sigma in SIGMAS:
        sizes = (
            gather([worker("worker", per_tick=per_tick, ticks=ticks, sigma=sigma)]).worker_bytes
            for per_tick in PER_TICK
        )
        # The p99 of a standard normal distribution is 2.326.
        table.add_row(f"{math.exp(2.326 * sigma):.2f}", *map(format_bytes, sizes))
    return table


def crew_table(gatherings: Mapping[int, Gathered]) -> Table:
    """What it takes to bring workers together."""
    table = Table(box=box.MARKDOWN)
    for name in (
        "workers",
        "merging one tick",
        "coordinator, of a core",
        "passed on",
        "session, of a core",
        f"session keeps, {SECONDS_KEPT} s",
        "merged p99 off by",
        "mean of p99s off by",
    ):
        table.add_column(name, justify="right")
    for workers, found in gatherings.items():
        table.add_row(
            str(workers),
            format_seconds(found.merge_seconds),
            format_fraction(TICKS_A_SECOND * found.coordinator_seconds),
            f"{format_bytes(TICKS_A_SECOND * found.passed_bytes)}/s",
            format_fraction(TICKS_A_SECOND * found.session_seconds),
            format_bytes(SECONDS_KEPT * TICKS_A_SECOND * found.kept_bytes),
            _percent(found.merged_error),
            format_change(found.averaged_error),
        )
    return table


def crew_ends(gatherings: Mapping[int, Gathered]) -> dict[str, float]:
    """With how many workers coordinator, session and memory end, going on from the largest crew in proportion."""
    workers, found = max(gatherings.items())
    return {
        "the coordinator's core": workers * SATURATED_SHARE / (TICKS_A_SECOND * found.coordinator_seconds),
        "the session's core": workers * SATURATED_SHARE / (TICKS_A_SECOND * found.session_seconds),
        f"{format_bytes(MEMORY_BYTES)} for {SECONDS_KEPT} s": (
            workers * MEMORY_BYTES / (SECONDS_KEPT * TICKS_A_SECOND * found.kept_bytes)
        ),
    }


def scale_table(scales: Sequence[Scale], costs: Costs) -> Table:
    """One column for each rate."""
    table = Table(box=box.MARKDOWN)
    table.add_column("")
    for each in scales:
        table.add_column(format_rate(each.rate), justify="right")
    table.add_column("how it is known")

    def row(name: str, how: str, of: Callable[[Scale], str]) -> None:
        table.add_row(name, *map(of, scales), how)

    bursty = costs.arrivals["gamma, shape 0.25"].drawn
    row(f"workers, each {format_fraction(WORKER_SHARE)} of a core", COMPUTED, lambda load: str(load.workers))
    row("the same with gamma arrivals, shape 0.25", COMPUTED, lambda load: _workers(load, bursty))
    row("CPU of all workers, cores", COMPUTED, lambda load: f"{load.workers * load.engine_share:.2f}")
    row(
        "of a worker's core for drawing arrivals",
        COMPUTED,
        lambda load: format_fraction(load.rate * load.drawn_seconds),
    )
    row("a worker's report", SIMULATED, lambda load: format_bytes(load.gathering.worker_bytes))
    row(
        "reports to the coordinator",
        SIMULATED,
        lambda load: f"{format_bytes(load.workers * TICKS_A_SECOND * load.gathering.worker_bytes)}/s",
    )
    row("coordinator, of a core, without Ray", SIMULATED, lambda load: format_fraction(load.coordinator_share))
    row("session, of a core", SIMULATED, lambda load: format_fraction(load.session_share))
    row(f"session keeps, {SECONDS_KEPT} s", SIMULATED, lambda load: format_bytes(load.kept_bytes))
    row("merged p99 off by", SIMULATED, lambda load: _percent(load.gathering.merged_error))
    row("mean of p99s off by", SIMULATED, lambda load: format_change(load.gathering.averaged_error))
    row("arrivals whose order the clocks do not tell", COMPUTED, lambda load: f"{out_of_order(load.rate):g}")
    for body, what in ((SMALL_BODY, "1 kB"), (LARGE_BODY, "150 kB")):
        row(f"network, bodies of {what}", COMPUTED, lambda load, body=body: _bits(network_bits(load.rate, body)))  # type: ignore[misc]  # mypy cannot infer lambdas with defaults
        row(f"scarcest, bodies of {what}", COMPUTED, lambda load, body=body: _scarcest(load.uses(body)))  # type: ignore[misc]  # as above
    return table


def assumptions() -> str:
    """What was not measured."""
    return (
        f"Assumed: clocks {format_seconds(CLOCK_SECONDS)} apart at most (half a round trip in one rack), a network card"
        f" of {_bits(CARD_BITS)} at the server, {format_bytes(MEMORY_BYTES)} for the session, log-normal latencies of"
        f" 20 ms in the median, a p99 of {math.exp(2.326 * SIGMA):.1f} times that, every eighth worker's twice as long."
    )


def measure(*, seconds: float) -> Costs:
    """Measure what there is to measure."""
    return Costs(
        [engine_cost(Poisson(rate, max_in_flight=MAX_IN_FLIGHT), seconds=seconds) for rate in ENGINE_RATES],
        {name: arrival_cost(schedule) for name, schedule in schedules(1e6).items()},
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Print all tables, each when it is known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each run of an engine (default 3)")
    arguments = parser.parse_args(argv)
    console = Console(width=WIDTH)
    costs = measure(seconds=arguments.seconds)
    _show(
        console,
        "One engine process, Poisson arrivals, a server that does nothing (measured)",
        engine_table(costs.engines),
    )
    _show(
        console,
        "An arrival, CPU time in each worker (measured), and what that bounds (computed)",
        schedule_table(costs.arrivals),
    )
    _show(
        console,
        "A worker's report of a tenth of a second (simulated: real reports of drawn latencies)",
        spread_table(),
    )
    gatherings = {workers: gather(crew(workers, per_tick=CREW_PER_TICK, ticks=3, sigma=SIGMA)) for workers in CREWS}
    _show(
        console,
        f"Reports of {CREW_PER_TICK} requests each, ten a second from every worker (simulated; CPU time and memory of"
        " the real code on them)",
        crew_table(gatherings),
    )
    ends = ", ".join(f"{what} at {workers:.0f}" for what, workers in crew_ends(gatherings).items())
    console.print(f"In proportion (computed) that ends, by workers: {ends}.\n")
    _show(
        console,
        "A load of so many requests a second, Poisson arrivals",
        scale_table([scale(rate, costs) for rate in RATES], costs),
    )
    console.print(assumptions())
    console.print(f"Measured on: {machine()}.")
    return 0


def _show(console: Console, title: str, table: Table) -> None:
    console.print(f"{title}\n")
    console.print(table)


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
    sys.exit(main())
