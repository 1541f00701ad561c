"""Searches of real servers whose capacity is known."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.load.answers import AnswerCheck
from pytest_gpuserve.load.source import LOCAL
from pytest_gpuserve.measure.capacity import Finding, Objective
from pytest_gpuserve.servers.app import App
from pytest_gpuserve.servers.command import CommandServer
from pytest_gpuserve.servers.mosec import Mosec
from pytest_gpuserve.trial.capacity.shape import SearchShape, search_shape
from pytest_gpuserve.trial.capacity.start import SearchedStart
from tests.fakes.children.toolkit import HERE
from tests.fakes.simulated_queue import capacity_of_exponential
from tests.servers.deployments import Starts, Unseen

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpuserve.measure.capacity import Search
    from pytest_gpuserve.measure.window import Start
    from pytest_gpuserve.trial.handle import Target

RATE = 200.0
P90 = Objective(0.90, 0.050)
MOSEC_APP = HERE.parent / "mosec_app.py"
FOREIGN_CORES = 0.25
"""Of a quiet machine others take fewer."""


def queue(folder: Path, *habits: str) -> Target:
    """A server that is a queue with one worker."""
    argv = ("{python}", str(HERE / "queue_server.py"), "{port}", str(RATE), *habits)
    handle = Starts(folder / "log").handle(CommandServer(argv, folder, "the queue", sys.executable))
    return handle.post("/infer", body=b"fox", expect=b"FOX")


def shape(seconds: float = 2.4, *, quantile: str = "p90") -> SearchShape:
    """A short search."""
    return search_shape(
        {quantile: P90.seconds},
        precision=0.5,
        arrivals="poisson",
        seconds=seconds,
        warmup_seconds=0.5,
        starts=2,
        timeout=None,
        processes=1,
        seed=0,
        check="all",
        allowed_errors=0.0,
        source=LOCAL,
    )


class Heard(Unseen):
    """A progress line that remembers what was searched."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def probe(self, text: str) -> None:
        """Hear of a probe."""
        self.texts.append(text)


def searched(target: Target, how: SearchShape) -> tuple[Start, list[str], Heard]:
    """Start it, search it, end it; what was found, what is wrong with it, and what a person would have seen."""
    check = AnswerCheck((request.expect for request in target.requests), wants_all=True)
    heard = Heard()
    with target.started() as instance:
        searching = SearchedStart(instance, target, how, check, heard)
        start = searching.measure()
    assert check.checked > 0
    return start, searching.problems, heard


def search_of(start: Start) -> Search:
    """Its search."""
    assert start.search is not None
    return start.search


def skip_where_busy(start: Start) -> None:
    """What a search finds on a machine that is shown to do other work says nothing of the search."""
    clients = [probe.client for probe in search_of(start).probes if probe.client]
    if start.foreign_cores > FOREIGN_CORES or clients:
        pytest.skip(f"the machine is too busy: others took {start.foreign_cores:.2f} cores; {clients}")


def test_the_capacity_of_a_real_queue_is_found(tmp_path: Path) -> None:
    """Of an M/M/1 server the known capacity lies in or next to the interval; probes are told as they are made."""
    start, problems, heard = searched(queue(tmp_path), shape())
    search = search_of(start)
    # Down to a request a second or so: some rate is met on any machine.
    assert any(probe.finding is Finding.MET for probe in search.probes), problems
    if problems:
        skip_where_busy(start)
    assert problems == []
    assert search.low is not None
    assert search.high is not None
    # Whatever else a machine does, it makes no server faster; slower only for a while.
    capacity = capacity_of_exponential(RATE, P90)
    assert search.low <= 1.3 * capacity
    assert search.high >= capacity / 2
    assert heard.texts[0] == "warming up"
    assert heard.texts[-1] == ""
    assert all(text.startswith("trying ") for text in heard.texts[1:-1])
    assert len(heard.texts) >= len(search.probes) + 2
    (window,) = start.windows
    assert window.requests == search.at(search.low, Finding.MET)[-1].requests


@pytest.mark.slow
def test_a_server_that_refuses_what_is_too_much_has_a_capacity(tmp_path: Path) -> None:
    """Errors at a rate say that it is too high, and are no INVALID."""
    start, problems, _ = searched(queue(tmp_path, "constant", "refuses=20"), shape())
    if problems:
        skip_where_busy(start)
    assert problems == []
    search = search_of(start)
    assert search.high is not None
    assert search.high <= RATE * 1.3
    assert any("503" in probe.reason for probe in search.probes)


def test_an_objective_that_cannot_be_met_is_told(tmp_path: Path) -> None:
    """Service times alone exceed it: there is no capacity, and the text says what was seen at the lowest rate."""
    # Of p99 the lowest rate that is tried is above what this server can, so that one is tried only.
    start, problems, _ = searched(queue(tmp_path, "constant", "slow=20"), shape(1.2, quantile="p99"))
    (problem,) = problems
    assert problem.startswith("objective missed: at ")
    assert search_of(start).value is None


def test_a_server_that_dies_is_no_overload(tmp_path: Path) -> None:
    """Its death ends the search, and is what is told."""
    argv = ("{python}", str(HERE / "model_server.py"), "{port}", "die=400")
    handle = Starts(tmp_path / "log").handle(CommandServer(argv, tmp_path, "here", sys.executable))
    target = handle.post("/infer", body=b"fox", expect=b"FOX")
    _, problems, _ = searched(target, replace(shape(), warmup_seconds=0.1))
    assert any("ended" in problem or "died" in problem or "killed" in problem for problem in problems), problems


@pytest.mark.slow
def test_a_server_that_counts_has_no_other_client(tmp_path: Path) -> None:
    """What it counted from rest to rest is what was sent to it, also at rates that are too much for it."""
    pytest.importorskip("mosec")
    app = App("mosec_server", MOSEC_APP, MOSEC_APP.name, {"work_ms": 20.0, "max_batch_size": 4})
    target = Starts(tmp_path / "log").handle(Mosec(app)).post("/inference", body=b"fox", expect=b"FOX")
    start, problems, _ = searched(target, shape())
    assert any(probe.finding is Finding.MISSED for probe in search_of(start).probes)
    assert not any(problem.startswith(("another client", "compiled")) for problem in problems), problems


@pytest.mark.slow
def test_a_longer_search_is_closer(tmp_path: Path) -> None:
    """With the default time and precision the known capacity is found within 15 %."""
    how = replace(shape(9.6), precision=0.05)
    start, problems, _ = searched(queue(tmp_path), how)
    skip_where_busy(start)
    assert problems == []
    value = search_of(start).value
    assert value is not None
    assert value == pytest.approx(capacity_of_exponential(RATE, P90), rel=0.15)
