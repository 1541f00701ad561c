"""Checks for packages with a kind of server of their own, for use in their tests."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil
import pytest

from pytest_gpuserve.builds.relocation import Relocation
from pytest_gpuserve.errors import NotInRevision
from pytest_gpuserve.experiment.loaded import LoadedServer
from pytest_gpuserve.experiment.sampling import measure_start
from pytest_gpuserve.experiment.shape import LoadShape
from pytest_gpuserve.experiment.telemetry import TelemetryMonitor
from pytest_gpuserve.load.schedule import Closed
from pytest_gpuserve.load.validity import DISTURBANCES
from pytest_gpuserve.verdict.reason import ReasonKind

if TYPE_CHECKING:
    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.experiment.loaded import CounterReading
    from pytest_gpuserve.measure.counters import Counters
    from pytest_gpuserve.measure.window import Start
    from pytest_gpuserve.servers.base import ServerKind

BUSY: Final = DISTURBANCES | {ReasonKind.STUCK_REQUESTS}
"""Problems that other work on the machine can cause for a sound load of a sound server."""


def check_server_kind(target: Target, executed: Path | None = None, *, users: int = 12, seconds: float = 2.0) -> Start:
    """Start a server, load it, end it, and check every report of its kind.

    Every answer is right. Its counts in the measured windows equal those of its model in that time, and the sent
    requests. The parts of its cold start do not exceed the whole. It can be made with another interpreter. After its
    end no process or folder is left. A machine that is too busy skips the test.

    Args:
        target: A request with ``expect=...``, which the model executes as one item.
        executed: The file to which the model, right after each batch, appends a line that begins with its size
            and ``time.monotonic()``; None for a kind without counters.
        users: Number of concurrent users.
        seconds: Measured time.

    Returns:
        The measurement; settings and parts of the cold start are left to be asserted.
    """
    _check_description(target.server.kind)
    shape = LoadShape(Closed(users), seconds=seconds, warmup_seconds=0.5, check="all")
    with target.started() as instance:
        load = LoadedServer(instance, target, shape)
        start = measure_start(load, TelemetryMonitor())
        assert instance.process is not None, "the server was not started here"
        processes = [*instance.process.tree(), *map(psutil.Process, instance.members())]
    assert not [process for process in processes if process.is_running()], "the server left processes after its end"
    assert not instance.site.folder.exists(), f"the server left its folder after its end: {instance.site.folder}"

    assert {problem.kind for problem in load.problems} <= BUSY, load.problems
    assert start.answers_checked == start.answers > 0
    assert start.cold_start_seconds is not None
    assert 0 <= sum(start.cold_start_parts.values()) <= start.cold_start_seconds, start.cold_start_parts
    if not start.windows:
        pytest.skip(f"the machine is too busy: {load.problems}")
    if executed is None:
        assert start.total.counters is None, "the server counts, but the model's own notes are missing"
    else:
        readings = [(each.before, each.after) for each in load.measured if each.before and each.after]
        assert start.total.counters is not None, "read_counters() returns None"
        assert len(readings) == len(start.windows)
        _check_counters(start.total.counters, start.total.requests, readings, executed)
    return start


def _check_description(kind: ServerKind) -> None:
    """The description consists of texts, and the other build of a comparison is another server."""
    told = kind.workload()
    texts = [*told.items(), *kind.information().items()]
    assert all(isinstance(text, str) for pair in texts for text in pair), texts
    assert told == kind.workload(), "workload() changes from call to call"
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder, "python")
        other.symlink_to(sys.executable)
        try:
            moved = kind.relocated(Relocation(Path.cwd(), python=str(other)))
        except NotInRevision:
            return
    assert moved != kind, "relocated() changes nothing, and does not raise NotInRevision"


def _check_counters(
    counted: Counters, requests: int, readings: list[tuple[CounterReading, CounterReading]], executed: Path
) -> None:
    """A server's counts between these readings are its model's executions, and the requests."""
    lines = (line.split() for line in executed.read_text().splitlines())
    own = [
        int(size)
        for size, done, *_ in lines
        if any(before.at_seconds <= float(done) < after.at_seconds for before, after in readings)
    ]
    assert own, f"its model did not note a batch in {executed}"
    batch_seconds = sum(after.at_seconds - before.at_seconds for before, after in readings) / len(own)
    # An execution during a reading may count before or after it. Between two windows it counts in one of them.
    each = [reading for both in readings for reading in both]
    edges = [reading for reading in each if sum(reading is other for other in each) == 1]
    unsure = sum(2 + edge.took_seconds / batch_seconds for edge in edges)
    assert counted.batches == pytest.approx(len(own), rel=0.02, abs=unsure), "batches: counted, and by the model itself"
    ratio = pytest.approx(sum(own) / len(own), rel=0.02 + unsure / len(own))
    assert counted.items / counted.batches == ratio, "batching ratio: counted, and by the model itself"
    if counted.batch_sizes:
        # Triton counts a batch and its size one after the other; a reading may fall between.
        sizes = pytest.approx(sum(counted.batch_sizes.values()), abs=len(edges))
        assert counted.batches == sizes, counted.batch_sizes
    # The batches of the warm-up are not among them.
    sent = pytest.approx(requests, rel=0.1, abs=max(own) * unsure)
    assert counted.items == sent, "items: counted, and sent in the same time"
    if counted.requests is not None:
        assert counted.requests == sent, "requests: counted, and sent in the same time"
