"""The request rate that the load engine itself reaches on this host, as a reference for measurements."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

import pytest_gpuserve
from pytest_gpuserve.device.host import read_host
from pytest_gpuserve.errors import GpuserveError, LoadFailed
from pytest_gpuserve.load.driver import Engines
from pytest_gpuserve.load.request import Request
from pytest_gpuserve.load.schedule import Closed
from pytest_gpuserve.load.totals import Totals, total
from pytest_gpuserve.load.wire import Endpoint, Plan
from pytest_gpuserve.process.command_line import module_command

if TYPE_CHECKING:
    from collections.abc import Iterator

USERS: Final = 16
TICK_NS: Final = 100_000_000
WARMUP_TICKS: Final = 2
TICKS: Final = 5
LARGEST_BYTES: Final = 1 << 24


def load_ceiling(plan: Plan, processes: int, totals: Totals) -> float | None:
    """Return how many requests a second the engines of a load reach together on this host.

    A number to hold a load against; it stems from another hour, and so decides nothing.

    Args:
        plan: The load.
        processes: Engines that shared it; more than there are cores reach no more.
        totals: What it came to.

    Returns:
        None where it is not known: only of plain HTTP/1.1 there is a server that does nothing.

    Raises:
        UsageProblem: GPUSERVE_HOST is set to something that is not a name.
    """
    endpoint = plan.endpoint
    if endpoint.protocol != "http" or not endpoint.port or endpoint.tls is not None or not totals.requests:
        return None
    largest = max(len(form) for forms in plan.payloads for form in forms)
    one = client_ceiling(largest, totals.bytes_received // totals.requests)
    if one is None:
        return None
    return one * min(processes, read_host().cores)


def client_ceiling(request_bytes: int, answer_bytes: int, *, cache: Path | None = None) -> float | None:
    """Return how many requests a second one engine reaches on this host, against a server that does nothing.

    Measured in a second the first time, and remembered for this host, version and size (the next power of two).

    Returns:
        None where it cannot be measured.

    Raises:
        UsageProblem: GPUSERVE_HOST is set to something that is not a name.
    """
    sizes = _rounded(request_bytes), _rounded(answer_bytes)
    file = _cache_file() if cache is None else cache
    key = _key(*sizes)
    known = {} if file is None else _read(file)
    if key not in known:
        try:
            known[key] = measure_ceiling(*sizes)
        except (GpuserveError, OSError):
            return None
        if file is not None:
            _write(file, known)
    return known[key]


def measure_ceiling(request_bytes: int, answer_bytes: int) -> float:
    """Measure requests a second of one engine against the null server.

    Raises:
        LoadFailed: The engine or the null server failed.
        OSError: The null server could not be started.
    """
    payload = _request(request_bytes)
    with _null_server(len(payload), answer_bytes) as port:
        plan = Plan(
            endpoint=Endpoint("http", "127.0.0.1", port),
            payloads=((payload,),),
            schedule=Closed(USERS),
            tick_ns=TICK_NS,
            timeout_ns=10 * 1_000_000_000,
            keep_answers="none",
        )
        with Engines(plan) as engines:
            ticks = [engines.next_tick() for _ in range(WARMUP_TICKS + TICKS)]
    totals = total(ticks[WARMUP_TICKS:])
    if totals.errors or not totals.requests:
        raise LoadFailed("the null server could not be loaded", found=str(dict(totals.errors)))
    # By its CPU time, and not by the clock: it had to wait for the null server, which shares the host with it.
    return totals.requests / totals.cpu_seconds


def _request(size: int) -> bytes:
    """A request of so many bytes, less a digit that its length may lose; or of the fewest that it can have."""
    # Of one length whatever the port will be: the null server does not look at what it is called.
    host = ("127.0.0.1", 80)
    # The head carries the body's length, whose own length is settled beforehand.
    head = len(Request("POST", "/", b"n" * size).to_bytes(*host)) - size
    return Request("POST", "/", b"n" * max(0, size - head)).to_bytes(*host)


@contextlib.contextmanager
def _null_server(request_bytes: int, answer_bytes: int) -> Iterator[int]:
    """Run a null server for requests of exactly so many bytes; yields its port."""
    with subprocess.Popen(
        module_command("pytest_gpuserve.load.null_server", str(request_bytes), str(answer_bytes)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line.strip().isdigit():
                raise LoadFailed("the null server did not start", found=repr(line))
            yield int(line)
        finally:
            process.kill()


def _rounded(size: int) -> int:
    """The next power of two: what differs by less is the same to the kernel."""
    return min(LARGEST_BYTES, 1 << max(6, (size - 1).bit_length()))


def _key(request_bytes: int, answer_bytes: int) -> str:
    host = read_host()
    version = ".".join(map(str, sys.version_info[:3]))
    return f"{host.id} {host.cores} {pytest_gpuserve.__version__} {version} {request_bytes} {answer_bytes}"


def _cache_file() -> Path | None:
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        # A user without a home, as containers have them.
        return None
    return folder / "pytest-gpuserve" / "client-ceilings.json"


def _read(file: Path) -> dict[str, float]:
    try:
        known = msgspec.json.decode(file.read_bytes(), type=dict[str, float])
    except (OSError, msgspec.DecodeError):
        # A cache that is gone or damaged costs a second.
        return {}
    return {key: value for key, value in known.items() if value > 0}


def _write(file: Path, known: dict[str, float]) -> None:
    """Replace the cache in one step; where that is not allowed there is none."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=file.parent)
        try:
            os.write(handle, msgspec.json.format(msgspec.json.encode(dict(sorted(known.items())))))
            Path(name).replace(file)
        except OSError:
            Path(name).unlink()
        finally:
            os.close(handle)
