"""A real mosec whose model takes twice as long is explained by computation, from mosec's own counters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.load.run import run_load
from pytest_gpuserve.load.schedule import Closed
from pytest_gpuserve.load.wire import Endpoint, Plan
from pytest_gpuserve.measure.counters import Counters, counted_between
from pytest_gpuserve.measure.profile import Profile, QueueFrom, profile_of
from pytest_gpuserve.measure.window import Client, Window
from pytest_gpuserve.report.attribution import attribution
from pytest_gpuserve.servers.app import App
from pytest_gpuserve.servers.base import HOST, Ask
from pytest_gpuserve.servers.instance import started
from pytest_gpuserve.servers.mosec import Mosec

if TYPE_CHECKING:
    from pytest_gpuserve.servers.instance import Instance

pytest.importorskip("mosec")

APP = Path(__file__).parents[1] / "fakes" / "mosec_app.py"
WORK_MS = 20.0
USERS = 8
"""As many as a batch takes: all of them are in one batch or wait for it."""

REQUEST = f"POST /inference HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 3\r\n\r\nfox".encode()
TICK_NS = 250_000_000
SECONDS = 2


def counters(instance: Instance) -> Counters:
    """What mosec counts now."""
    found = instance.counters()
    assert found is not None
    return found


def measured(work_ms: float, log: Path) -> Profile:
    """The profile of a fresh start whose batches take so long."""
    kind = Mosec(App("mosec_server", APP, "mosec_app.py", {"work_ms": work_ms, "max_batch_size": USERS}))
    ask = Ask("POST", "/inference", b"fox", {})
    with started(kind, ask, environment={}, log=log, start_timeout_seconds=60) as instance:
        plan = Plan(
            Endpoint("http", HOST, instance.site.port),
            ((REQUEST,),),
            Closed(USERS),
            TICK_NS,
            10 * 10**9,
            nanoseconds=SECONDS * 10**9,
        )
        before = counters(instance)
        totals = run_load(plan).totals
        after = counters(instance)
    assert not totals.errors
    counted = counted_between(before, after)
    window = Window(
        seconds=totals.seconds,
        requests=totals.requests,
        errors={},
        latency=totals.latency.histogram,
        latency_sum_seconds=totals.latency.sum_ns / 1e9,
        latency_max_seconds=totals.latency.max_ns / 1e9,
        items=counted.items,
        batches=counted.batches,
        client_cpu_seconds=totals.cpu_seconds,
        stages=counted.stages,
    )
    return profile_of([window], Client(lag=totals.lag.histogram))


def test_twice_the_work_is_found_in_computation(tmp_path: Path) -> None:
    """Computation doubles and is named; that the client was later is no part of it."""
    before = measured(WORK_MS, tmp_path / "before.log")
    after = measured(2 * WORK_MS, tmp_path / "after.log")
    for profile in (before, after):
        assert profile.queue_from is QueueFrom.SERVER
        assert profile.outside_seconds is not None
        assert profile.formation_seconds is not None
        assert profile.items_per_batch is not None
        assert 1 <= profile.items_per_batch <= USERS
    assert before.compute_seconds is not None
    assert after.compute_seconds is not None
    assert before.client_lag_seconds is not None
    assert after.client_lag_seconds is not None
    # Sleeping takes as long as it says, or somewhat longer on a busy machine.
    assert 1.5 < after.compute_seconds / before.compute_seconds < 2.7
    added_lag = after.client_lag_seconds - before.client_lag_seconds
    assert added_lag < (after.compute_seconds - before.compute_seconds) / 2
    lines = attribution(before, after)
    assert lines[0].startswith("moved with it: ")
    assert "compute per batch" in lines[0]
    assert "not counted: clocks" in lines
