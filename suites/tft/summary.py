"""All experiments of a run in one sorted table: ``python -m suites.tft.summary result.json summary.csv``.

pytest is the runner: its parameters are the configurations, and ``--lf`` continues a run that was cut off.
``--gpuserve-json=result.json`` keeps the status and numbers of each experiment. This module makes a table of that file.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

COLUMNS: Final = (
    "experiment",
    "status",
    "verdicts",
    "requests_per_second",
    "mean_ms",
    "p50_ms",
    "p99_ms",
    "server_batch",
)


def summary_rows(result: Mapping[str, Any], suite: str = "suites/tft/") -> list[dict[str, str]]:
    """Make a row of each test of a suite, sorted: passed ones by throughput, the best first.

    Args:
        result: Result from ``--gpuserve-json``.
        suite: Prefix of the tests' names.
    """
    tests = [test for test in result["tests"] if test["nodeid"].startswith(suite)]
    return [_row(test) for test in sorted(tests, key=_order)]


def main(arguments: Sequence[str]) -> None:
    """Write the table of the command line."""
    parser = argparse.ArgumentParser(description="All experiments of a run in one table", allow_abbrev=False)
    parser.add_argument("result", type=Path, help="what --gpuserve-json wrote")
    parser.add_argument("summary", type=Path, help="the CSV")
    options = parser.parse_args(arguments)
    rows = summary_rows(json.loads(options.result.read_text(encoding="utf-8")))
    with options.summary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _order(test: Mapping[str, Any]) -> tuple[bool, float, str]:
    throughput = (test["run"] or {}).get("throughput")
    return (test["outcome"] != "passed", -(throughput or 0.0), test["nodeid"])


def _row(test: Mapping[str, Any]) -> dict[str, str]:
    run = test["run"] or {}
    latency = run.get("latency") or {}
    verdicts = dict.fromkeys(verdict["verdict"] for verdict in test["verdicts"])
    numbers = {
        "requests_per_second": run.get("throughput"),
        **{f"{name}_ms": None if latency.get(name) is None else 1e3 * latency[name] for name in ("mean", "p50", "p99")},
        "server_batch": run.get("batching_ratio"),
    }
    return {
        "experiment": test["nodeid"].partition("::")[2],
        "status": test["outcome"],
        "verdicts": " ".join(verdicts),
        **{name: "" if value is None else f"{value:.6g}" for name, value in numbers.items()},
    }


if __name__ == "__main__":
    main(sys.argv[1:])
