"""Searches of real servers whose capacity is known."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.experiment.capacity.shape import SearchShape, search_shape
from pytest_gpuserve.experiment.capacity.start import SearchedStart
from pytest_gpuserve.gate.reason import ReasonKind
from pytest_gpuserve.load.answers import AnswerCheck
from pytest_gpuserve.load.source import LOCAL
from pytest_gpuserve.measure.capacity import Objective, ProbeOutcome
from pytest_gpuserve.servers.command import CommandServer
from pytest_gpuserve.testing import Unseen
from tests.fakes.children.toolkit import HERE
from tests.fakes.simulated_queue import capacity_of_exponential
from tests.servers.deployments import Starts

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.gate.reason import Reason
    from pytest_gpuserve.measure.capacity import Search
    from pytest_gpuserve.measure.window import Start

RATE = 200.0
P90 = Objective(0.90, 0.050)
FOREIGN_CORES = 0.25
"""Of a quiet machine others take fewer."""


def queue(folder: Path, *habits: str) -> Target:
    """A server that is a queue with one worker."""
    return fox(folder, "queue_server.py", str(RATE), *habits)


def fox(folder: Path, program: str, *arguments: str) -> Target:
    """A request to a server of such a program."""
    argv = ("{python}", str(HERE / program), "{port}", *arguments)
    handle = Starts(folder / "log").handle(CommandServer(argv, folder, "here", sys.executable))
    return handle.post("/infer", body=b"fox", expect=b"FOX")


def shape() -> SearchShape:
    """A short search."""
    return search_shape(
        {"p90": P90.seconds},
        precision=0.5,
        arrivals="poisson",
        seconds=2.4,
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


def searched(target: Target, how: SearchShape) -> tuple[Start, Search, list[Reason], Heard]:
    """Start it, search it, end it; what was found, what is wrong with it, and what a person would have seen."""
    check = AnswerCheck((request.expect for request in target.requests), wants_all=True)
    heard = Heard()
    with target.started() as instance:
        searching = SearchedStart(instance, target, how, check, heard)
        start = searching.measure()
    assert check.checked > 0
    assert start.search is not None
    return start, start.search, searching.problems, heard


def check_sound(start: Start, search: Search, problems: list[Reason]) -> None:
    """What a search finds on a machine that is shown to do other work says nothing of the search."""
    clients = [probe.client for probe in search.probes if probe.client]
    if problems and (start.foreign_cores > FOREIGN_CORES or clients):
        pytest.skip(f"the machine is too busy: others took {start.foreign_cores:.2f} cores; {clients}")
    assert problems == []


def test_the_capacity_of_a_real_queue_is_found(tmp_path: Path) -> None:
    """Of an M/M/1 server the known capacity lies in or next to the interval; probes are told as they are made."""
    start, search, problems, heard = searched(queue(tmp_path), shape())
    # Down to a request a second or so: some rate is met on any machine.
    assert any(probe.finding is ProbeOutcome.MET for probe in search.probes), problems
    check_sound(start, search, problems)
    assert search.low is not None
    assert search.high is not None
    # Whatever else a machine does, it makes no server faster; slower only for a while.
    capacity = capacity_of_exponential(RATE, P90)
    assert search.low <= 1.3 * capacity
    assert search.high >= capacity / 2
    assert (heard.texts[0], heard.texts[-1]) == ("warming up", "")
    assert all(text.startswith("trying ") for text in heard.texts[1:-1])
    assert len(heard.texts) >= len(search.probes) + 2
    (window,) = start.windows
    assert window.requests == search.at(search.low, ProbeOutcome.MET)[-1].requests


@pytest.mark.slow
def test_a_server_that_refuses_what_is_too_much_has_a_capacity(tmp_path: Path) -> None:
    """Errors at a rate say that it is too high, and are no INVALID."""
    start, search, problems, _ = searched(queue(tmp_path, "constant", "refuses=20"), shape())
    check_sound(start, search, problems)
    assert search.high is not None
    assert search.high <= RATE * 1.3
    assert any("503" in probe.reason for probe in search.probes)


def test_a_server_that_dies_is_no_overload(tmp_path: Path) -> None:
    """Its death ends the search, and is what is told."""
    how = replace(shape(), warmup_seconds=0.1)
    _, _, problems, _ = searched(fox(tmp_path, "model_server.py", "die=400"), how)
    assert ReasonKind.SERVER_FAILED in [problem.kind for problem in problems], problems
