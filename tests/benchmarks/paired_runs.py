"""Comparisons of real mosec servers whose truth is known: false alarms, detections and the time that they take.

    python -m tests.benchmarks.paired_runs --same 60 --slower5 30 --slower10 20 --log runs.jsonl

Each comparison is made as a test makes it (fresh starts, blocks by turns, looks, family of three metrics, what earlier
comparisons taught about this machine), and logged as a line of JSON, so that a run that was cut short goes on where it
ended; with no number it only counts what is logged. The servers wait 10 ms for each batch, as one does that has an
accelerator; the slower candidate waits 5 or 10 % longer.
Beside the log, ``runs.rounds.jsonl`` has the rounds as ``tests.benchmarks.verdicts`` reads them.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpuserve.device.host import read_host
from pytest_gpuserve.experiment.handle import ServerHandle
from pytest_gpuserve.experiment.shape import LoadShape
from pytest_gpuserve.load.schedule import Closed
from pytest_gpuserve.selftest.trials import Trial, TrialResult, TrialSettings, run_trial
from pytest_gpuserve.servers.app import App
from pytest_gpuserve.servers.instance import started
from pytest_gpuserve.servers.mosec import Mosec
from pytest_gpuserve.store.history import History
from pytest_gpuserve.testing import Unseen
from pytest_gpuserve.units import utc_now
from tests.benchmarks.rows import parser_of, rich_table, show

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from rich.table import Table

    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.measure.window import Window
    from pytest_gpuserve.servers.base import Ask, ServerKind
    from pytest_gpuserve.servers.instance import Instance

APP = Path(__file__).parents[1] / "fakes" / "mosec_app.py"
WORK_MS = 10.0
USERS = 32
BATCH = 16
SLOWER = {"same": 0.0, "slower5": 0.05, "slower10": 0.10}
BUDGET_SECONDS = 300.0
FOREIGN_CORES = 0.25
"""That others may take in a block."""

METRICS = ("throughput", "latency.p99", "batching_ratio")
WINDOWS_A_ROUND = 20
"""What the fresh starts of a round cost, in windows; as in the simulations of the method."""

FIXED_ROUNDS = 8
FIXED_WINDOWS = FIXED_ROUNDS * (24 + WINDOWS_A_ROUND)
"""The fixed design, which always measures all rounds of which the looks stop early."""


def main() -> None:
    """Run what is missing, and print the counts."""
    parser = parser_of(__doc__)
    for name in SLOWER:
        parser.add_argument(f"--{name}", type=int, default=0, metavar="N", help=f"comparisons of kind {name}")
    parser.add_argument("--log", type=Path, default=Path("paired_runs.jsonl"), help="where comparisons are logged")
    arguments = parser.parse_args()
    logged = [json.loads(line) for line in arguments.log.read_text().splitlines()] if arguments.log.exists() else []
    missing = [
        (name, number)
        for name in SLOWER
        for number in range(getattr(arguments, name))
        if not any(line["kind"] == name and line["number"] == number for line in logged)
    ]
    # Mixed, so that an hour of the machine does not favour one kind.
    random.Random(0).shuffle(missing)
    logged += run(missing, arguments.log)
    show(report(logged))


def run(missing: list[tuple[str, int]], log: Path) -> list[dict[str, Any]]:
    """Make the comparisons, and log each."""
    lines = []
    setting = TrialSettings(
        shape=LoadShape(Closed(USERS), warmup_seconds=0.5),
        metrics=METRICS,
        host=read_host().id,
        history=History(log.with_suffix(".history").absolute()),
        foreign_cores=FOREIGN_CORES,
        budget_seconds=BUDGET_SECONDS,
    )
    with tempfile.TemporaryDirectory() as folder:
        for kind, number in missing:
            base, candidate = (target(server(slower), Path(folder)) for slower in (0.0, SLOWER[kind]))
            outcome = run_trial(Trial(kind, number, base, candidate), setting, Unseen(), say)
            shown = line_of(outcome)
            lines.append(shown)
            append(log, [shown])
            append(log.with_suffix(".rounds.jsonl"), rounds_of(outcome))
            say(kind, number, shown["verdict"], shown["rounds"], f"{shown['seconds']:.0f} s", shown["changes"])
    return lines


def append(path: Path, lines: list[dict[str, Any]]) -> None:
    """Add lines of JSON to a file."""
    with path.open("a") as file:
        file.writelines(f"{json.dumps(line)}\n" for line in lines)


def say(*words: object) -> None:
    """Print at once: a run takes an hour, and people look at its log."""
    print(*words, flush=True)  # noqa: T201 -- a command


def server(slower: float) -> Mosec:
    """One that waits so much longer in each batch than it should."""
    work = {"work_ms": WORK_MS * (1 + slower), "max_batch_size": BATCH}
    return Mosec(App("mosec_server", APP, APP.name, work))


def target(kind: Mosec, logs: Path) -> Target:
    """The request to a server."""

    def start(kind: ServerKind, ask: Ask, beside: Callable[[], None] | None = None) -> AbstractContextManager[Instance]:
        log = Path(tempfile.mkstemp(dir=logs, suffix=".log")[1])
        return started(kind, ask, environment={}, log=log, start_timeout_seconds=60, beside=beside)

    return ServerHandle(kind, start).post("/inference", body=b"fox", expect=b"FOX")


def line_of(outcome: TrialResult) -> dict[str, Any]:
    """What is logged of a comparison."""
    judged = {judgement.metric.name: judgement for judgement in outcome.judgements}
    changes = {name: judgement.change for name, judgement in judged.items()}
    return {
        "kind": outcome.trial.name,
        "number": outcome.trial.number,
        "at": utc_now(),
        "verdict": str(outcome.verdict),
        "changes": {name: None if change is None else round(change, 4) for name, change in changes.items()},
        "reasons": [reason for judgement in outcome.judgements for reason in judgement.reasons],
        "rounds": len(outcome.rounds),
        "windows": outcome.windows,
        "seconds": outcome.seconds,
        "error": outcome.error,
    }


def rounds_of(outcome: TrialResult) -> list[dict[str, Any]]:
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


def report(logged: list[dict[str, Any]]) -> Table:
    """Count what is logged."""
    rows = []
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
        rows.append([kind, *map(str, (len(ours), *counts)), f"{seconds:.0f} s", share])
    header = ("candidate", "comparisons", "REGRESSED", "INCONCLUSIVE", "INVALID", "PASS", "median time")
    return rich_table((*header, "windows, median"), rows, words=["candidate"])


if __name__ == "__main__":
    main()
