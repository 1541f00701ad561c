"""Two real servers side by side; what becomes of trouble in a round is tested in tests/experiment without servers."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.experiment.pairing import Pairing
from pytest_gpuserve.experiment.shape import LoadShape
from pytest_gpuserve.experiment.shared_starts import SharedStarts
from pytest_gpuserve.load.schedule import Closed
from pytest_gpuserve.measure.rounds import ARMS, round_point
from pytest_gpuserve.servers.command import CommandServer
from pytest_gpuserve.verdict.evidence import BLOCKS
from pytest_gpuserve.verdict.metric import METRICS
from tests.fakes.children.toolkit import HERE
from tests.plugin.conftest import is_busy
from tests.servers.deployments import COUNTERS, Starts

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpuserve.experiment.handle import Target

USERS = 4


def target(starts: Starts, worked: Path, *habits: str) -> Target:
    """A request to ``model_server.py``, which notes in a file when it begins each answer."""
    argv = ("{python}", str(HERE / "model_server.py"), "{port}", f"worked={worked}", *habits)
    kind = CommandServer(argv, worked.parent, "here", sys.executable, counters=COUNTERS)
    return starts.handle(kind).post("/infer", body=b"fox", expect=b"FOX")


def test_one_server_rests_while_the_other_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round finds the slower server, and each server answers and counts the requests of its own turns alone."""
    monkeypatch.setattr("pytest_gpuserve.experiment.shape.LEAST_TICKS", 1)
    starts = {arm: Starts(tmp_path / f"log-{arm}") for arm in ARMS}
    shape = LoadShape(Closed(USERS), warmup_seconds=0.3, requests_wanted=(1,), foreign_cores=1000.0)
    base = target(starts["base"], tmp_path / "base")
    candidate = target(starts["candidate"], tmp_path / "candidate", "ms=40")
    owner = SharedStarts()
    pair = Pairing(
        base, candidate, shape, lambda _: None, tolerance=0.05, one_at_a_time=False, seed="a seed", starts=owner
    )
    try:
        pair.measure(BLOCKS)
    finally:
        pair.close()
        owner.end()
    (measured,) = pair.rounds
    assert all(map(is_busy, measured.problems)), measured.problems
    if measured.problems or any(len(each.instances) > 1 for each in starts.values()):
        pytest.skip(f"the machine is too busy: {measured.problems or measured.starts}")
    assert measured.blocks == BLOCKS
    # Four times the work: far more than any machine adds.
    assert round_point(METRICS["throughput"], measured, 0.05).x > 0.2
    turns = [(arm, window) for arm in ARMS for window in measured.windows(arm)]
    idle, busy = 0, 0
    for arm in ARMS:
        begun = [int(line) for line in (tmp_path / arm).read_text().splitlines()]
        for loaded, window in turns:
            answers = sum(window.begin_ns <= at_ns < window.end_ns for at_ns in begun)
            busy += answers if loaded == arm else 0
            idle += answers if loaded != arm else 0
            # It may still answer what was under way when its turn ended.
            assert loaded == arm or answers <= USERS
        (start,) = measured.starts[arm]
        assert start.answers == start.answers_checked > start.total.requests
        assert all(window.counters is not None and window.counters.items for window in start.windows)
    assert idle < busy / 20
