"""Our own load engine, run as a user runs it: by its command line."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.benchmarks.clients import Ended, started
from tests.benchmarks.pairs import Contestant
from tests.benchmarks.peers import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PROGRAM = [sys.executable, "-m", "pytest_gpuserve.load"]


MOST_SECONDS = 120.0
"""How long a load may take, several times what the longest takes."""


@dataclass(frozen=True)
class Report:
    """The JSON of a load.

    Args:
        requests: Answered well.
        throughput: Answered requests a second.
        latency: By name (``mean``, ``p50``, ..., ``max``), seconds; of an open loop from the intended send. NaN is
            a percentile that so few requests cannot tell.
        service: Likewise from the actual send; None for a closed loop.
        send_lag_p50: Seconds.
        send_lag_p99: Seconds.
        valid: Whether the engine trusts its own numbers.
        reasons: Why not.
        tree_cpu_seconds: CPU time of the command with all that it started, from start to end.
    """

    requests: int
    throughput: float
    latency: Mapping[str, float]
    service: Mapping[str, float] | None
    send_lag_p50: float
    send_lag_p99: float
    valid: bool
    reasons: Sequence[str]
    tree_cpu_seconds: float

    def outcome(self) -> Outcome:
        """The part of it that the peers report as well."""
        return Outcome(self.requests, self.tree_cpu_seconds, self.throughput, self.latency["p50"], self.latency["p99"])


def command(url: str, **options: object) -> list[str]:
    """Return the command line; ``max_in_flight=1`` becomes ``--max-in-flight 1``."""
    argv = [*PROGRAM, url, "--json"]
    for name, value in options.items():
        argv += [f"--{name.replace('_', '-')}", str(value)]
    return argv


def report(ended: Ended) -> Report:
    """Read what a load printed.

    Raises:
        AssertionError: It printed no JSON, or a request failed.
    """
    try:
        printed: dict[str, Any] = json.loads(ended.output)
    except ValueError:
        raise AssertionError(f"status {ended.status}, no JSON:\n{ended.output}\n{ended.trouble}") from None
    assert printed["errors"] == 0, ended.output
    return Report(
        requests=printed["requests"],
        throughput=printed["throughput"],
        latency=_numbers(printed["latency"]),
        service=printed["service"] and _numbers(printed["service"]),
        **_numbers({name: printed[name] for name in ("send_lag_p50", "send_lag_p99")}),
        valid=printed["valid"],
        reasons=printed["reasons"],
        tree_cpu_seconds=ended.cpu_seconds,
    )


def load(argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> Report:
    """Run a load to its end.

    Args:
        argv: From `command`.
        env: Variables on top of this process's.
    """
    with started(argv, env=env) as client:
        return report(client.end(MOST_SECONDS))


def contestant(url: str, *, concurrency: int, requests: int, **options: object) -> Contestant:
    """Return our side of a comparison of costs: a closed loop, and one request a user as its smallest load.

    Args:
        url: What is loaded.
        concurrency: Users.
        requests: Of a load.
        options: As for `command`.
    """

    def run(count: int) -> Outcome:
        return load(command(url, concurrency=concurrency, requests=count, **options)).outcome()

    return Contestant(partial(run, requests), partial(run, concurrency))


def _numbers(printed: Mapping[str, float | None]) -> dict[str, float]:
    return {name: math.nan if value is None else value for name, value in printed.items()}
