"""What the telemetry of a card costs the throughput of a load, measured in pairs.

    python -m tests.benchmarks.telemetry_cost --blocks 40

A real mosec server is loaded by 16 users without a pause, beside the sampler of a scripted card (a fake of NVML's C
library behind the real binding). In blocks of four windows of half a second the sampler runs in two and is stopped
(SIGSTOP) in the other two, in the order on-off-off-on or off-on-on-off by the toss of a coin; what it saw is read
once a window, as in a session. ``--work-ms 0`` loads the CPU alone, where the sampler takes what the server would
have; with more the server waits for each batch, as with an accelerator.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import signal
import statistics
import tempfile
from pathlib import Path

from pytest_gpuserve.device.telemetry import Sampling
from pytest_gpuserve.gate.student import t_quantile
from pytest_gpuserve.load.driver import Engines
from pytest_gpuserve.load.schedule import Closed
from pytest_gpuserve.load.totals import total
from pytest_gpuserve.load.wire import Plan
from pytest_gpuserve.process.module import module_command
from pytest_gpuserve.trial.shape import TICK_SECONDS, TICKS_A_WINDOW
from tests.fakes.nvml.build import build_fake_nvml
from tests.fakes.nvml.cards import T4, Script, write
from tests.servers.pairs import Deployments

USERS = 16
SETTLE_TICKS = 1


def measure(folder: Path, *, blocks: int, work_ms: float) -> list[float]:
    """The change of throughput by the sampler, as a logarithm, in each block."""
    card = folder / "card"
    card.mkdir()
    os.environ.update(write(Script((T4,)), card, library=build_fake_nvml(card).parent))
    target = Deployments(folder).target("base", {"work_ms": work_ms, "max_batch_size": USERS})
    coin = random.Random("telemetry")
    changes = []
    with (
        target.started() as instance,
        Sampling([T4.uuid], log=folder / "sampler", command=module_command("pytest_gpuserve.device.sampler")) as eyes,
    ):
        plan = Plan(
            endpoint=target.endpoint(instance),
            payloads=target.payloads(instance),
            schedule=Closed(USERS),
            tick_ns=round(TICK_SECONDS * 1e9),
            timeout_ns=10_000_000_000,
        )
        with Engines(plan, 1) as engines:
            eyes.watch(server=[process.pid for process in (instance.process,) if process is not None])
            for _ in range(10):
                engines.next_tick()
            for _ in range(blocks):
                rates: dict[bool, list[float]] = {True: [], False: []}
                for on in (True, False, False, True) if coin.random() < 0.5 else (False, True, True, False):
                    os.kill(eyes.pid, signal.SIGCONT if on else signal.SIGSTOP)
                    for _ in range(SETTLE_TICKS):
                        engines.next_tick()
                    totals = total([engines.next_tick() for _ in range(TICKS_A_WINDOW)])
                    if on:
                        eyes.seen()
                    rates[on].append(totals.requests / totals.seconds)
                changes.append(
                    statistics.fmean(map(math.log, rates[True])) - statistics.fmean(map(math.log, rates[False]))
                )
            os.kill(eyes.pid, signal.SIGCONT)
    return changes


def main() -> None:
    """Print the change with its 95 % interval."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--work-ms", type=float, default=0.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        changes = measure(Path(folder), blocks=options.blocks, work_ms=options.work_ms)
    mean = statistics.fmean(changes)
    margin = t_quantile(0.025, len(changes) - 1) * statistics.stdev(changes) / math.sqrt(len(changes))
    print(  # noqa: T201 -- what it is for
        f"telemetry changes throughput by {mean:+.2%} ({mean - margin:+.2%} to {mean + margin:+.2%}),"
        f" {len(changes)} blocks, {options.work_ms:g} ms a batch"
    )


if __name__ == "__main__":
    main()
