"""One load carried by 1, 2, 4, 8 and 32 workers: rate, CPU time, memory, reports, and how right the merged p99 is.

    python -m tests.benchmarks.ray_scaling --rate 500

All workers are on this machine and share its cores, so what is told is what more workers cost, not what more hosts
bring. Every engine also writes its latencies down one by one (see ``recording``), and the p99 of all of them in one
list is what the merged one is held against.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Final

import numpy as np
import psutil

from pytest_gpuserve.load.driver import Engines
from pytest_gpuserve.load.ray.source import RayEngine
from pytest_gpuserve.load.schedule import Poisson
from pytest_gpuserve.load.totals import shares, total
from pytest_gpuserve.load.validity import reasons, share_reasons
from pytest_gpuserve.load.wire import frame
from pytest_gpuserve.units import format_bytes, format_fraction, format_rate
from tests.benchmarks.merged_p99 import Q, nearest_rank
from tests.benchmarks.nothing_served import null_server, plan
from tests.benchmarks.recording.sitecustomize import FOLDER_VARIABLE
from tests.benchmarks.rows import machine, parser_of, rich_table, show

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuserve.load.source import EngineSource
    from pytest_gpuserve.load.wire import Tick

WORKERS: Final = (1, 2, 4, 8, 32)
SECONDS: Final = 10
RECORDING: Final = Path(__file__).with_name("recording")

WARM_TICKS: Final = 10
LAST_TICKS: Final = 5
"""At the load's end, which is not the same moment for all workers."""

MAX_IN_FLIGHT: Final = 256
"""Where the machine stands still, the server's backlog must not overflow afterwards."""


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


def measure(source: EngineSource, workers: int, *, rate: float, raw: Path) -> Row:
    """Run a load of so many workers to its end.

    Args:
        source: Where they come from.
        workers: How many.
        rate: Requests a second, of all together.
        raw: Folder to which engines write their latencies.
    """
    others = set(raw.iterdir())
    schedule = Poisson(rate, max_in_flight=MAX_IN_FLIGHT)
    last_counted = 10 * SECONDS - LAST_TICKS
    with (
        null_server() as server,
        Engines(plan(server, schedule, requests=round(rate * SECONDS)), workers, source) as engines,
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
        carrier = engines.pids[0]
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
    report_bytes = sum(len(frame(tick)) for tick in counted)
    cells = {
        "answered": format_rate(known(totals.throughput)),
        "sent of due": format_fraction(known(totals.achieved)),
        "engines, of a core": format_fraction(totals.cpu_seconds / totals.seconds),
        "all processes, of a core": format_fraction(sum(spent.values()) / totals.seconds),
        "coordinator, of a core, and its memory": (
            f"{format_fraction(spent[carrier] / totals.seconds)}, {format_bytes(memory[carrier])}"
        ),
        "memory of all": format_bytes(sum(memory.values())),
        "reports read": f"{format_bytes(report_bytes / totals.seconds)}/s",
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


def main() -> None:
    """Print the table, a row at a time to standard error."""
    parser = parser_of(__doc__)
    parser.add_argument("--rate", type=float, default=500.0, help="requests a second, of all workers (default 500)")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name, RayEngine(None, "--engine") as ray:
        raw = Path(name, "raw")
        raw.mkdir()
        # Whoever starts an engine, it inherits these.
        os.environ[FOLDER_VARIABLE] = str(raw)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(RECORDING), os.environ.get("PYTHONPATH"))))
        ray.check()
        source = ray.source(Path(name, "cluster.log"))
        for workers in WORKERS:
            row = measure(source, workers, rate=arguments.rate, raw=raw)
            sys.stderr.write(f"{row}\n")
            rows.append(row)
    title = f"ray, {format_rate(arguments.rate)} Poisson, a server that does nothing (measured)"
    cells = [(str(row.workers), *row.cells.values()) for row in rows]
    show(rich_table(("workers", *rows[0].cells), cells, title=title), f"Measured on: {machine()}.")


if __name__ == "__main__":
    main()
