"""The tools that people use today: where each is, how it is run, and what it says of a run."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass

import pytest

from tests.benchmarks.clients import Ended, run


@dataclass(frozen=True)
class Outcome:
    """What came of one run of a client.

    Args:
        requests: Answered well; there were no others.
        cpu_seconds: User and system time of the client's whole process tree, start-up included.
        throughput: Requests a second, as the client says.
        p50_seconds: Median latency, as the client says; NaN where it was not asked.
        p99_seconds: The 99th percentile, likewise.
    """

    requests: int
    cpu_seconds: float
    throughput: float
    p50_seconds: float = float("nan")
    p99_seconds: float = float("nan")


def wrk(url: str, *, connections: int, seconds: int) -> Outcome:
    """Run wrk with one thread; skips where it is missing."""
    argv = [debian("wrk", "wrk"), "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", url]
    ended = run(argv, within_seconds=seconds + 30)
    _none_of(ended, "Socket errors", "Non-2xx")
    return Outcome(
        int(_find(r"(\d+) requests in", ended)),
        ended.cpu_seconds,
        float(_find(r"Requests/sec:\s+([\d.]+)", ended)),
        _duration(_find(r"50%\s+([\d.]+\w+)", ended)),
        _duration(_find(r"99%\s+([\d.]+\w+)", ended)),
    )


def hey(url: str, *, connections: int, requests: int) -> Outcome:
    """Run hey; skips where it is missing."""
    ended = run([debian("hey", "hey"), "-n", str(requests), "-c", str(connections), url])
    _none_of(ended, "Error distribution")
    # It sends a whole number of requests from each worker.
    answered = int(_find(r"\[200\]\s+(\d+) responses", ended))
    return Outcome(answered, ended.cpu_seconds, float(_find(r"Requests/sec:\s+([\d.]+)", ended)))


def debian(program: str, package: str) -> str:
    """Return the path of a program; skips where it is missing, naming Debian's package of it."""
    # Debian keeps servers where a user's PATH does not lead.
    found = shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
    if found is None:
        pytest.skip(f"no {program}: apt-get install {package}")
    return found


def _find(pattern: str, ended: Ended) -> str:
    match = re.search(pattern, ended.output)
    assert match, f"no {pattern!r} in:\n{ended.output}\n{ended.trouble}"
    return match[1]


def _none_of(ended: Ended, *words: str) -> None:
    for word in words:
        assert word not in ended.output, ended.output


def _duration(text: str) -> float:
    """Read what wrk writes: ``5.07ms``."""
    match = re.fullmatch(r"([\d.]+)(us|ms|s|m)", text)
    assert match, text
    return float(match[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}[match[2]]
