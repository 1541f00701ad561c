"""One load carried by 1, 2, 4, 8 and 32 workers: rate, CPU time, memory, reports, and how right the merged p99 is.

    python -m tests.benchmarks.ray_scaling --engine ray --rate 2000 --seconds 10
    python -m tests.benchmarks.ray_scaling --engine local

All workers are on this machine and share its cores, so what is told is what more workers cost, not what more hosts
bring. Every engine also writes its latencies down one by one (see ``recording``), and the p99 of all of them in one
list is what the merged one is held against.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Final

import numpy as np
import psutil
from rich.console import Console

from pytest_gpuserve.load.driver import Engines
from pytest_gpuserve.load.ray.source import RayEngine
from pytest_gpuserve.load.schedule import Poisson
from pytest_gpuserve.load.shares import share_reasons, shares
from pytest_gpuserve.load.source import LOCAL
from pytest_gpuserve.load.totals import total
from pytest_gpuserve.load.validity import reasons
from pytest_gpuserve.load.wire import frame
from pytest_gpuserve.units import format_bytes, format_fraction, format_rate, format_seconds
from tests.benchmarks.merged_p99 import Q, nearest_rank
from tests.benchmarks.nothing_served import null_server, plan
from tests.benchmarks.recording.sitecustomize import FOLDER_VARIABLE
from tests.benchmarks.rows import machine, rich_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.table import Table

    from pytest_gpuserve.load.source import EngineSource
    from pytest_gpuserve.load.wire import Tick

WORKERS: Final = (1, 2, 4, 8, 32)
RECORDING: Final = Path(__file__).with_name("recording")

WARM_TICKS: Final = 10
LAST_TICKS: Final = 5
"""At the load's end, which is not the same moment for all workers."""

MAX_IN_FLIGHT: Final = 256
"""Where the machine stands still, the server's backlog must not overflow afterwards."""

WIDTH: Final = 260


@dataclass(frozen=True)
class Row:
    """A load of so many workers.

    Args:
        workers: How many.
        cells: What is told of it, by the name of the column.
    """

    workers: int
    cells: dict[str, str]


def look(value: Callable[[psutil.Process], float], *, without: int) -> dict[int, float]:
    """Ask something of every process below this one but that one; one that has just ended says nothing."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if process.pid != without:
                found[process.pid] = value(process)
    return found


def cpu_seconds(process: psutil.Process) -> float:
    """CPU time of a process."""
    times = process.cpu_times()
    return float(times.user + times.system)


def own_bytes(process: psutil.Process) -> float:
    """Memory of a process, of what it shares its share."""
    return float(process.memory_full_info().pss)


def measure(source: EngineSource, workers: int, *, rate: float, seconds: float, raw: Path) -> Row:
    """Run a load of so many workers to its end.

    Args:
        source: Where they come from.
        workers: How many.
        rate: Requests a second, of all together.
        seconds: How long.
        raw: Folder to which engines write their latencies.
    """
    others = set(raw.iterdir())
    schedule = Poisson(rate, max_in_flight=MAX_IN_FLIGHT)
    last_counted = round(10 * seconds) - LAST_TICKS
    with (
        null_server() as server,
        Engines(plan(server, schedule, requests=round(rate * seconds)), workers, source) as engines,
    ):
        before: dict[int, float] = {}
        after: dict[int, float] = {}
        memory: dict[int, float] = {}
        ticks: list[Tick] = []
        while not ticks or not ticks[-1].last:
            ticks.append(engines.next_tick())
            if len(ticks) == WARM_TICKS:
                before = look(cpu_seconds, without=server.pid)
            elif len(ticks) == last_counted:
                after = look(cpu_seconds, without=server.pid)
                memory = look(own_bytes, without=server.pid)
        carrier = None if source is LOCAL else engines.pids[0]
    counted = ticks[WARM_TICKS:last_counted]
    totals = total(counted)
    spent = {pid: seconds - before.get(pid, 0.0) for pid, seconds in after.items()}
    trouble = reasons(totals, schedule=schedule, processes=workers, cores=os.cpu_count())
    trouble += share_reasons(shares(counted), schedule, among=os.cpu_count())

    latency = total(ticks).latency
    hands = [np.fromfile(file, dtype=np.int64).tolist() for file in sorted(set(raw.iterdir()) - others)]
    whole = [latency_ns for hand in hands for latency_ns in hand]
    assert len(whole) == latency.total, f"{len(whole)} latencies were written down, and {latency.total} reported"
    assert len([hand for hand in hands if hand]) == workers
    exact_ns = nearest_rank(whole, Q)
    p99 = known(latency.quantile(Q))
    averaged_ns = fmean(nearest_rank(hand, Q) for hand in hands)
    # Without a process between, what was read here are the workers' own reports.
    reports = [part for tick in counted for part in (() if carrier else tick.workers.values()) or (tick,)]
    report_bytes = sum(len(frame(report)) for report in reports)
    cells = {
        "answered": format_rate(known(totals.throughput)),
        "sent of due": format_fraction(known(totals.achieved)),
        "engine CPU a request": format_seconds(known(totals.cpu_seconds_a_request)),
        "all processes' CPU a request": format_seconds(sum(spent.values()) / totals.requests),
        "a worker's engine, of a core": format_fraction(totals.cpu_seconds / totals.seconds / workers),
        "coordinator, of a core": "" if carrier is None else format_fraction(spent[carrier] / totals.seconds),
        "its memory": "" if carrier is None else format_bytes(memory[carrier]),
        "memory of all": format_bytes(sum(memory.values())),
        "reports read": f"{format_bytes(report_bytes / totals.seconds)}/s",
        "send lag p99": format_seconds(known(totals.lag.quantile(Q))),
        "p99": format_seconds(p99),
        "merged p99 off by": f"{100 * (p99 * 1e9 / exact_ns - 1):+.3f} %",
        "mean of p99s off by": f"{100 * (averaged_ns / exact_ns - 1):+.1f} %",
        # Of which sorts the reasons are why nothing could be concluded from it.
        "invalid": ", ".join(sorted({str(reason.kind) for reason in trouble})),
    }
    return Row(workers, cells)


def known(value: float | None) -> float:
    """What a load with enough requests always has."""
    assert value is not None
    return value


def table(rows: Sequence[Row], *, engine: str, rate: float) -> Table:
    """The rows for people."""
    title = f"{engine}, {format_rate(rate)} Poisson, a server that does nothing (measured)"
    header = ("workers", *(rows[0].cells if rows else ()))
    return rich_table(header, [(str(row.workers), *row.cells.values()) for row in rows], title=title)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table, a row at a time to standard error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("local", "ray"), default="ray")
    parser.add_argument("--rate", type=float, default=2_000.0, help="requests a second, of all workers (default 2000)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load, 3 at least (default 10)")
    parser.add_argument("--workers", type=int, nargs="+", default=WORKERS, metavar="N")
    arguments = parser.parse_args(argv)
    rows = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        raw = folder / "raw"
        raw.mkdir()
        # Whoever starts an engine, it inherits these.
        os.environ[FOLDER_VARIABLE] = str(raw)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(RECORDING), os.environ.get("PYTHONPATH"))))
        source: EngineSource = LOCAL
        if arguments.engine == "ray":
            ray = stack.enter_context(RayEngine(None, "--engine"))
            ray.check()
            source = ray.source(folder / "cluster.log")
        for workers in arguments.workers:
            row = measure(source, workers, rate=arguments.rate, seconds=arguments.seconds, raw=raw)
            sys.stderr.write(f"{row}\n")
            rows.append(row)
    console = Console(width=WIDTH)
    console.print(table(rows, engine=arguments.engine, rate=arguments.rate))
    console.print(f"Measured on: {machine()}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
