"""Load tools, run as users run them, with the CPU time of exactly their process tree: ours, wrk and hey."""

from __future__ import annotations

import json
import math
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

from pytest_gpuserve.process.child import Command, Process
from pytest_gpuserve.process.ports import free_port
from pytest_gpuserve.process.ready import Ask, http_probe, owned_port_probe, wait
from pytest_gpuserve.units import Deadline, format_seconds

ENDS_WITH_US: Final = ("setpriv", "--pdeathsig", "KILL")
"""A pytest that is killed takes its client with it: some would wait for their server for ever."""


@dataclass(frozen=True)
class Outcome:
    """Result of one run of a client.

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


Result = TypeVar("Result")


def in_turn(ours: Callable[[], Result], peer: Callable[[], Result], *, pairs: int) -> list[tuple[Result, Result]]:
    """Run both ``pairs`` times, each time the other one first, so that a drift of the machine favours neither."""
    results = []
    for number in range(pairs):
        if number % 2:
            theirs = peer()
            results.append((ours(), theirs))
        else:
            mine = ours()
            results.append((mine, peer()))
    return results


def is_kept(
    what: str,
    peer: str,
    values: Sequence[tuple[float, float]],
    write: Callable[[float], str] = format_seconds,
    *,
    least: float = 0.0,
    most: float = float("inf"),
) -> bool:
    """Print a row of the page's table, and tell whether the median of the pairs' ratios is within the bounds.

    Args:
        what: The fact.
        peer: Whom ours is compared with.
        values: Pairs of our value and the peer's.
        write: Makes text of a value.
        least: Smallest ratio that keeps the promise.
        most: Largest one.
    """
    ratios = [mine / theirs for mine, theirs in values]
    ours, theirs = (write(statistics.median(side)) for side in zip(*values, strict=True))
    median, spread = statistics.median(ratios), f"{min(ratios):.3f} to {max(ratios):.3f}, {len(ratios)} pairs"
    kept = least <= median <= most
    promise = f"promised {least:g} to {most:g}{'' if kept else ', **not kept**'}"
    print(f"| {what} | {ours} | {peer}: {theirs} | {median:.3f} | {spread} | {promise} |")  # noqa: T201 -- shown by -rP
    return kept


def cost_of_start(smallest: Callable[[], Outcome]) -> tuple[float, int]:
    """CPU seconds and requests of the smallest load of a client: the median of three."""
    loads = sorted((smallest() for _ in range(3)), key=lambda load: load.cpu_seconds)
    return loads[1].cpu_seconds, loads[1].requests


def cost(load: Outcome, start: tuple[float, int] = (0.0, 0)) -> float:
    """CPU seconds a request, less those of the start."""
    seconds, requests = start
    return (load.cpu_seconds - seconds) / (load.requests - requests)


UP_SECONDS = 30.0

NGINX = """
daemon off;
worker_processes 1;
worker_rlimit_nofile 16384;
error_log stderr warn;
pid {folder}/nginx.pid;
events {{ worker_connections 16384; }}
http {{
  access_log off;
  keepalive_requests 1000000000;
  keepalive_timeout 1h;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port} backlog=16384;
    location / {{ default_type text/plain; return 200 "ok"; }}
  }}
}}
"""
"""All that it writes is in a folder of ours, none of it in the system's."""


@contextmanager
def nginx(folder: Path) -> Iterator[str]:
    """Run an nginx of one worker that answers 200 to everything; gives its URL."""
    program = debian("nginx", "nginx-light")
    port = free_port()
    configuration = folder / "nginx.conf"
    configuration.write_text(NGINX.format(folder=folder, port=port))
    argv = (program, "-p", str(folder), "-c", str(configuration), "-e", "stderr")
    with up(argv, folder / "nginx.log", port, "nginx"):
        yield f"http://127.0.0.1:{port}/"


@dataclass(frozen=True)
class Timed:
    """A running server of known service time.

    Args:
        url: The address of the load.
        pid: Its process.
        service_seconds: Its time of service.
    """

    url: str
    pid: int
    service_seconds: float


@contextmanager
def timed(folder: Path, service_seconds: float) -> Iterator[Timed]:
    """Run a server of known service time."""
    port = free_port()
    program = Path(__file__).with_name("timed_server.py")
    argv = (sys.executable, str(program), str(port), repr(service_seconds))
    with up(argv, folder / "timed.log", port, "the timed server") as process:
        yield Timed(f"http://127.0.0.1:{port}/", process.pid, service_seconds)


@contextmanager
def up(argv: tuple[str, ...], log: Path, port: int, what: str) -> Iterator[Process]:
    """Run a server for the block, from when it answers on its port."""
    command = Command(argv, dict(os.environ), log.parent, log)
    with Process.start(command) as process:
        deadline = Deadline.after(UP_SECONDS)
        answers = http_probe("127.0.0.1", port, Ask("GET", "/"), deadline=deadline, process=process)
        wait([owned_port_probe(process, port), answers], process, deadline, what=what)
        yield process
