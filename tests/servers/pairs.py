"""What tests of two real servers side by side share: deployments of them, and how a round is taken."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.experiment.handle import ServerHandle, Target
from pytest_gpuserve.experiment.pairing import Pairing
from pytest_gpuserve.experiment.shape import LoadShape, Terms
from pytest_gpuserve.load.schedule import Closed
from pytest_gpuserve.servers.command import CommandServer
from tests.fakes.children.toolkit import HERE
from tests.servers.deployments import Starts
from tests.servers.somebody import COUNTERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pytest_gpuserve.load.schedule import Schedule
    from pytest_gpuserve.load.tick import Tick
    from pytest_gpuserve.measure.rounds import Arm
    from pytest_gpuserve.servers.base import Ask, ServerKind
    from pytest_gpuserve.servers.instance import Instance

USERS: Final = 4


@dataclass
class Seen:
    """A progress line that nobody looks at."""

    ticks: int = 0
    fail_at: int | None = None

    def show(self, totals: Tick) -> None:
        """Hear of a tick."""
        del totals
        self.ticks += 1
        if self.ticks == self.fail_at:
            raise ArithmeticError


@dataclass
class Deployments:
    """Deployments in a folder, and what became of their starts.

    Args:
        folder: Of their logs.
        started: The instances, in the order in which they were up, each with whose it is.
        launched: Whose processes were started, in that order.
        running: How many run now.
        most_running: How many ran at the same time at most.
    """

    folder: Path
    started: list[tuple[Arm, Instance]] = field(default_factory=list)
    launched: list[Arm] = field(default_factory=list)
    running: int = 0
    most_running: int = 0

    def target(self, arm: Arm, *habits: str, path: str = "/infer") -> Target:
        """A deployment of ``model_server.py`` that notes when it worked, and a request that it answers."""
        argv = ("{python}", str(HERE / "model_server.py"), "{port}", f"worked={self.folder / arm}", *habits)
        kind = CommandServer(argv, self.folder, "here", sys.executable, counters=COUNTERS)

        @contextmanager
        def start(kind: ServerKind, ask: Ask, beside: Callable[[], None] | None = None) -> Iterator[Instance]:
            # The deployment that is asked for another path is one that was broken after its start.
            sound = replace(ask, path="/infer")
            self.launched.append(arm)
            with Starts(self.folder / f"log-{arm}").start(kind, sound, beside) as instance:
                self.started.append((arm, instance))
                self.running += 1
                self.most_running = max(self.most_running, self.running)
                try:
                    yield instance
                finally:
                    self.running -= 1

        return ServerHandle(kind, start).post(path, body=b"fox", expect=b"FOX")

    def worked(self, arm: Arm) -> list[int]:
        """When a server began each answer, by the monotonic clock."""
        return [int(line) for line in (self.folder / arm).read_text().splitlines()]


def terms(schedule: Schedule | None = None, *, one_at_a_time: bool = False, foreign_cores: float = 1000.0) -> Terms:
    """How two are compared here: in so short a time as tells anything at all."""
    shape = LoadShape(schedule or Closed(USERS), warmup_seconds=0.3, requests_wanted=(1,), foreign_cores=foreign_cores)
    return Terms(shape, tolerance=0.05, one_at_a_time=one_at_a_time, seed="a seed")


@contextmanager
def pairing(base: Target, candidate: Target, how: Terms, progress: Seen | None = None) -> Iterator[Pairing]:
    """A pairing that is closed with its block."""
    pair = Pairing(base, candidate, how, progress or Seen())
    try:
        yield pair
    finally:
        pair.close()
