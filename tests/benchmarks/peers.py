"""The tools that people use today: where each is, how it is run, and what it says of a run."""

from __future__ import annotations

import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

from tests.benchmarks.clients import Ended, run

PEERS_VARIABLE = "GPUSERVE_BENCH_PEERS"
"""Names the virtual environment that has perf_analyzer and Triton; by default it is the one that runs pytest."""

PEERS_PACKAGES = "nvidia-pytriton==0.7.0 tritonclient==2.50.0 nvidia-cuda-runtime-cu12"

PERF_ANALYZER_SECONDS = 40.0
"""Several times what it takes here."""


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


def perf_analyzer(protocol: str, port: int, *, model: str, shape: str, connections: int, requests: int) -> Outcome:
    """Run perf_analyzer against Triton; skips where it is missing.

    It calls synchronously, as by default: its asynchronous mode takes more CPU time.

    Args:
        protocol: ``http`` or ``grpc``.
        port: Triton's port for it.
        model: The model's name.
        shape: Its input and shape, such as ``IN:16``.
        connections: Requests under way.
        requests: How many; Triton's own counters agree that it sends exactly so many.

    Raises:
        Endless: It hung, as version 2.50.0 was seen to do over HTTP.
    """
    program, libraries = _perf_analyzer()
    argv = [program, "-m", model, "-i", protocol, "-u", f"127.0.0.1:{port}", "-b", "1", "--shape", shape]
    argv += ["--concurrency-range", str(connections), "--request-count", str(requests), "--sync"]
    path = os.pathsep.join(filter(None, [libraries, os.environ.get("LD_LIBRARY_PATH", "")]))
    ended = run(argv, env={"LD_LIBRARY_PATH": path}, within_seconds=PERF_ANALYZER_SECONDS)
    count = int(_find(r"Request count: (\d+)", ended))
    return Outcome(count, ended.cpu_seconds, float(_find(r"Throughput: ([\d.]+)", ended)))


def peers_folder() -> Path:
    """Where perf_analyzer and Triton are looked for."""
    return Path(os.environ.get(PEERS_VARIABLE) or sys.prefix)


def site_packages(package: str) -> Path:
    """Return the folder of Python packages in which this one is; skips where it is missing."""
    found = [folder for folder in peers_folder().glob("lib/python3.*/site-packages") if (folder / package).exists()]
    if not found:
        _skip_without_peers(package)
    return found[0]


def _perf_analyzer() -> tuple[str, str]:
    program = peers_folder() / "bin" / "perf_analyzer"
    if not program.exists():
        _skip_without_peers("perf_analyzer")
    libraries = site_packages("nvidia/cuda_runtime/lib") / "nvidia/cuda_runtime/lib"
    return str(program), str(libraries)


def _skip_without_peers(what: str) -> NoReturn:
    pytest.skip(
        f"no {what} in {peers_folder()}: apt-get install libb64-0d; python3.11 -m venv PEERS; "
        f"PEERS/bin/pip install {PEERS_PACKAGES}; {PEERS_VARIABLE}=PEERS"
    )


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
