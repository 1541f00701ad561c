"""A real mosec whose model takes twice as long is explained by computation, from mosec's own counters."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gpuserve.measure.breakdown import Profile, QueueFrom, profile_of
from pytest_gpuserve.report.attribution import attribution
from pytest_gpuserve.servers.app import App
from pytest_gpuserve.servers.mosec import Mosec
from tests.plugin.conftest import is_busy
from tests.servers.deployments import Starts, loaded

pytest.importorskip("mosec")

APP = Path(__file__).parents[1] / "fakes" / "mosec_app.py"
WORK_MS = 20.0
USERS = 8
"""As many as a batch takes: all of them are in one batch or wait for it."""


def measured(work_ms: float, log: Path) -> Profile:
    """The profile of a fresh start whose batches take so long."""
    kind = Mosec(App("mosec_server", APP, "mosec_app.py", {"work_ms": work_ms, "max_batch_size": USERS}))
    target = Starts(log).handle(kind).post("/inference", body=b"fox", expect=b"FOX")
    start, problems, _ = loaded(target, users=USERS)
    assert not [problem for problem in problems if not is_busy(problem)]
    return profile_of(start.windows, start.client)


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
