"""Load tools, run as users run them, with the CPU time of exactly their process tree: ours, wrk and hey."""

from __future__ import annotations

import json
import math
import os
import re
import resource
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

ENDS_WITH_US: Final = ("setpriv", "--pdeathsig", "KILL")
"""A pytest that is killed takes its client with it: some would wait for their server for ever."""


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
    p50_seconds: float = math.nan
    p99_seconds: float = math.nan


def our_command(url: str, **options: object) -> list[str]:
    """The command line of our engine; ``max_in_flight=1`` becomes ``--max-in-flight=1``."""
    given = (f"--{name.replace('_', '-')}={value}" for name, value in options.items())
    return [sys.executable, "-m", "pytest_gpuserve.load", url, "--json", *given]


def our_report(output: str) -> Mapping[str, Any]:
    """The JSON that our engine printed, in which no request may have failed."""
    report: dict[str, Any] = json.loads(output)
    assert report["errors"] == 0, output
    return report


def ours(url: str, **options: object) -> tuple[Mapping[str, Any], Outcome]:
    """Run our engine to its end: all that it says, and the part that the others say as well."""
    output, cpu_seconds = _run(our_command(url, **options), statuses={0, 1})
    report = our_report(output)
    p50, p99 = (report["latency"][name] or math.nan for name in ("p50", "p99"))
    return report, Outcome(report["requests"], cpu_seconds, report["throughput"], p50, p99)


def wrk(url: str, *, connections: int, seconds: int) -> Outcome:
    """Run wrk with one thread; skips where it is missing."""
    argv = [debian("wrk", "wrk"), "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", url]
    output, cpu_seconds = _run(argv)
    assert not re.search("Socket errors|Non-2xx", output), output
    return Outcome(
        int(_find(r"(\d+) requests in", output)),
        cpu_seconds,
        float(_find(r"Requests/sec:\s+([\d.]+)", output)),
        _duration(_find(r"50%\s+([\d.]+\w+)", output)),
        _duration(_find(r"99%\s+([\d.]+\w+)", output)),
    )


def hey(url: str, *, connections: int, requests: int) -> Outcome:
    """Run hey; skips where it is missing."""
    output, cpu_seconds = _run([debian("hey", "hey"), "-n", str(requests), "-c", str(connections), url])
    assert "Error distribution" not in output, output
    # It sends a whole number of requests from each worker.
    answered = int(_find(r"\[200\]\s+(\d+) responses", output))
    return Outcome(answered, cpu_seconds, float(_find(r"Requests/sec:\s+([\d.]+)", output)))


def debian(program: str, package: str) -> str:
    """The path of a program; skips where it is missing, naming Debian's package of it."""
    # Debian keeps servers where a user's PATH does not lead.
    found = shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
    if found is None:
        pytest.skip(f"no {program}: apt-get install {package}")
    return found


def _run(argv: Sequence[str], statuses: Container[int] = (0,)) -> tuple[str, float]:
    """Run a client to its end: what it wrote, and the CPU time of all its processes, which it has waited for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([*ENDS_WITH_US, *argv], capture_output=True, text=True, timeout=120, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode in statuses, f"{argv!r} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def _find(pattern: str, output: str) -> str:
    match = re.search(pattern, output)
    assert match, f"no {pattern!r} in:\n{output}"
    return match[1]


def _duration(text: str) -> float:
    """Read what wrk writes: ``5.07ms``."""
    match = re.fullmatch(r"([\d.]+)(us|ms|s|m)", text)
    assert match, text
    return float(match[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}[match[2]]
