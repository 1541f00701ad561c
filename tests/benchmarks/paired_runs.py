"""Comparisons of real mosec servers whose truth is known: false alarms, detections and the time that they take.

    python tests/benchmarks/paired_runs.py --same 60 --slower5 30 --slower10 20 --log runs.jsonl

Each comparison is made as a test makes it (fresh starts, blocks by turns, looks, family of three metrics, what earlier
comparisons taught about this machine), and logged as a line of JSON, so that a run that was cut short goes on where it
ended. The servers wait 10 ms for each batch, as one does that has an accelerator, or with ``--computing`` multiply
matrices, so that all of the machine's noise is in them; the slower candidate takes 5 or 10 % more of it. ``--report``
only counts what is logged.
Beside the log, ``runs.rounds.jsonl`` has the rounds as ``tests.benchmarks.verdicts`` reads them.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpuserve.device.host import read_host
from pytest_gpuserve.experiment.handle import ServerHandle
from pytest_gpuserve.experiment.shape import LoadShape
from pytest_gpuserve.load.schedule import Closed
from pytest_gpuserve.selftest.trials import Outcome, Setting, Trial, run_trial
from pytest_gpuserve.servers.app import App
from pytest_gpuserve.servers.instance import started
from pytest_gpuserve.servers.mosec import Mosec
from pytest_gpuserve.store.history import History
from pytest_gpuserve.units import utc_now

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.measure.window import Window
    from pytest_gpuserve.servers.base import Ask, ServerKind
    from pytest_gpuserve.servers.instance import Instance

APPS = Path(__file__).parents[1] / "fakes"
WORK_MS = 10.0
PRODUCTS = 400
USERS = 32
BATCH = 16
SLOWER = {"same": 0.0, "slower5": 0.05, "slower10": 0.10}
METRICS = ("throughput", "latency.p99", "batching_ratio")
WINDOWS_A_ROUND = 20
"""What the fresh starts of a round cost, in windows; as in the simulations of the method."""

FIXED_ROUNDS = 8
FIXED_WINDOWS = FIXED_ROUNDS * (24 + WINDOWS_A_ROUND)
"""The fixed design, which always measures all rounds of which the looks stop early."""


class Silent:
    """Nobody watches."""

    def show(self, *_arguments: object) -> None:
        """Say nothing."""

    def clear(self) -> None:
        """Say nothing."""


def main() -> int:
    """Run what is missing, and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in SLOWER:
        parser.add_argument(f"--{name}", type=int, default=0, metavar="N", help=f"comparisons of kind {name}")
    parser.add_argument("--log", type=Path, default=Path("paired_runs.jsonl"), help="where comparisons are logged")
    parser.add_argument("--budget", type=float, default=300.0, help="most measuring seconds of a comparison")
    parser.add_argument("--foreign-cores", type=float, default=0.25, help="cores that others may take in a block")
    parser.add_argument("--computing", action="store_true", help="servers that compute, not servers that wait")
    parser.add_argument("--report", action="store_true", help="only count what is logged")
    arguments = parser.parse_args()
    logged = [json.loads(line) for line in arguments.log.read_text().splitlines()] if arguments.log.exists() else []
    if not arguments.report:
        wanted = {name: getattr(arguments, name) for name in SLOWER}
        missing = [
            (name, number)
            for name, count in wanted.items()
            for number in range(count)
            if not any(line["kind"] == name and line["number"] == number for line in logged)
        ]
        # Mixed, so that an hour of the machine does not favour one kind.
        random.Random(0).shuffle(missing)
        logged += run(missing, arguments)
    say(report(logged))
    return 0


def run(missing: list[tuple[str, int]], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Make the comparisons, and log each."""
    lines = []
    setting = Setting(
        shape=LoadShape(Closed(USERS), warmup_seconds=0.5),
        metrics=METRICS,
        host=read_host().id,
        history=History(arguments.log.with_suffix(".history").absolute()),
        foreign_cores=arguments.foreign_cores,
        budget_seconds=arguments.budget,
    )
    with tempfile.TemporaryDirectory() as folder:
        for kind, number in missing:
            base, candidate = (
                target(server(slower, computes=arguments.computing), Path(folder)) for slower in (0.0, SLOWER[kind])
            )
            outcome = run_trial(Trial(kind, number, base, candidate), setting, Silent(), say)
            shown = line_of(outcome)
            lines.append(shown)
            append(arguments.log, [shown])
            append(arguments.log.with_suffix(".rounds.jsonl"), rounds_of(outcome))
            say(kind, number, shown["verdict"], shown["rounds"], f"{shown['seconds']:.0f} s", shown["changes"])
    return lines


def append(path: Path, lines: list[dict[str, Any]]) -> None:
    """Add lines of JSON to a file."""
    with path.open("a") as file:
        file.writelines(f"{json.dumps(line)}\n" for line in lines)


def say(*words: object) -> None:
    """Print at once: a run takes an hour, and people look at its log."""
    print(*words, flush=True)  # noqa: T201 -- a command


def server(slower: float, *, computes: bool) -> Mosec:
    """One that waits, or computes, so much more in each batch than it should."""
    app = "matmul_app.py" if computes else "mosec_app.py"
    work = {"products": round(PRODUCTS * (1 + slower))} if computes else {"work_ms": WORK_MS * (1 + slower)}
    return Mosec(App("mosec_server", APPS / app, app, {**work, "max_batch_size": BATCH}))


def target(kind: Mosec, logs: Path) -> Target:
    """The request to a server."""

    def start(kind: ServerKind, ask: Ask, beside: Callable[[], None] | None = None) -> AbstractContextManager[Instance]:
        # Libraries of linear algebra would else take both cores.
        environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        log = Path(tempfile.mkstemp(dir=logs, suffix=".log")[1])
        return started(kind, ask, environment=environment, log=log, start_timeout_seconds=60, beside=beside)

    return ServerHandle(kind, start).post("/inference", body=b"fox", expect=b"FOX")


def line_of(outcome: Outcome) -> dict[str, Any]:
    """What is logged of a comparison."""
    judged = {judgement.metric.name: judgement for judgement in outcome.judgements}
    changes = {name: judgement.change for name, judgement in judged.items()}
    return {
        "kind": outcome.trial.name,
        "number": outcome.trial.number,
        "at": utc_now(),
        "verdict": str(outcome.verdict),
        "verdicts": {name: str(judgement.verdict) for name, judgement in judged.items()},
        "changes": {name: None if change is None else round(change, 4) for name, change in changes.items()},
        "intervals": {name: judgement.interval for name, judgement in judged.items()},
        "reasons": [reason for judgement in outcome.judgements for reason in judgement.reasons],
        "rounds": len(outcome.rounds),
        "windows": outcome.windows,
        "rejected": sum(measured.rejected for measured in outcome.rounds),
        "foreign_cores": max((measured.foreign_cores for measured in outcome.rounds), default=None),
        "seconds": outcome.seconds,
        "error": outcome.error,
    }


def rounds_of(outcome: Outcome) -> list[dict[str, Any]]:
    """Its full rounds, as recorded rounds are written; latencies in milliseconds."""
    letters = {"base": "A", "candidate": "B"}
    return [
        {
            "tag": outcome.trial.name,
            "slow": SLOWER[outcome.trial.name],
            "round": number,
            "order": ["A", "B"] if measured.first == "base" else ["B", "A"],
            "win": [
                [index, letters[arm], *_numbers(window)]
                for index, block in enumerate(measured.blocks)
                for arm, window in zip(block.order, block.windows, strict=True)
            ],
        }
        for number, measured in enumerate(outcome.rounds)
        if not measured.problems
    ]


def _numbers(window: Window) -> list[float]:
    quantiles = [1000 * window.latency.quantile(q) for q in (0.5, 0.9, 0.95, 0.99)]
    mean = 1000 * window.latency_sum_seconds / window.requests
    batch = (window.items or 0) / (window.batches or 1)
    # Windows do not keep their moment; nothing of the bench asks for it.
    return [window.throughput, batch, *quantiles, mean, 0.0]


def report(logged: list[dict[str, Any]]) -> str:
    """Count what is logged, in a Markdown table."""
    lines = [
        "| candidate | comparisons | REGRESSED | INCONCLUSIVE | INVALID | PASS | median time | windows, median |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind in SLOWER:
        ours = [line for line in logged if line["kind"] == kind]
        if not ours:
            continue
        verdicts = [line["verdict"] for line in ours]
        counts = [verdicts.count(name) for name in ("REGRESSED", "INCONCLUSIVE", "INVALID")]
        counts.append(sum(verdict in {"PASS", "IMPROVED"} for verdict in verdicts))
        charged = statistics.median(line["windows"] + WINDOWS_A_ROUND * line["rounds"] for line in ours)
        seconds = statistics.median(line["seconds"] for line in ours)
        share = f"{charged:.0f} ({charged / FIXED_WINDOWS:.0%} of the fixed design's {FIXED_WINDOWS})"
        lines.append(f"| {' | '.join(map(str, (kind, len(ours), *counts, f'{seconds:.0f} s', share)))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
