"""What tests of two real servers side by side share: an app that says when it worked, deployments of it, a round."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.experiment.handle import ServerHandle, Target
from pytest_gpuserve.experiment.pairing import Pairing
from pytest_gpuserve.experiment.shape import LoadShape, Terms
from pytest_gpuserve.load.schedule import Closed
from pytest_gpuserve.servers.app import App
from pytest_gpuserve.servers.mosec import Mosec
from tests.servers.deployments import Starts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pytest_gpuserve.load.schedule import Schedule
    from pytest_gpuserve.load.totals import RunningTotals
    from pytest_gpuserve.load.wire import Tick
    from pytest_gpuserve.measure.rounds import Arm
    from pytest_gpuserve.servers.base import Ask, ServerKind
    from pytest_gpuserve.servers.instance import Instance

FAKES: Final = Path(__file__).parents[1] / "fakes"
USERS: Final = 4

APP: Final = f"""\
import os, sys, time
sys.path.insert(0, {str(FAKES)!r})
from mosec import Server
from mosec_app import Work, options


class Watched(Work):
    def forward(self, data):
        with open(os.environ["WORKED"], "a") as log:
            log.write(f"{{time.monotonic_ns()}} {{len(data)}}\\n")
        return super().forward(data)


if __name__ == "__main__":
    memory = os.environ.get("MEMORY")
    if memory and not os.path.lexists(memory):
        os.symlink(str(os.getpid()), memory)
    elif memory and os.path.exists("/proc/" + os.readlink(memory)):
        sys.exit("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
    elif memory:
        os.unlink(memory)
        os.symlink(str(os.getpid()), memory)
    if options().exit_at_start is not None:
        sys.exit(options().exit_at_start)
    server = Server()
    server.append_worker(Watched, num=1, max_batch_size=options().max_batch_size, max_wait_time=1)
    server.run()
"""
"""The fake app, which also notes each batch in the file WORKED; of those that share a MEMORY only one can live."""


@dataclass
class Seen:
    """A progress line that nobody looks at."""

    ticks: int = 0
    cleared: int = 0
    fail_at: int | None = None

    def show(self, totals: RunningTotals, tick: Tick, seconds_left: float | None) -> None:
        """Hear of a tick."""
        del totals, tick, seconds_left
        self.ticks += 1
        if self.ticks == self.fail_at:
            raise ArithmeticError

    def clear(self) -> None:
        """Hear of the end."""
        self.cleared += 1


@dataclass
class Deployments:
    """Deployments in a folder, and what became of their starts.

    Args:
        folder: Of the app and its logs.
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

    def __post_init__(self) -> None:
        (self.folder / "app.py").write_text(APP)

    def target(
        self, arm: Arm, arguments: Mapping[str, float] | None = None, *, path: str = "/inference", memory: bool = False
    ) -> Target:
        """A deployment of the app, and a request that it answers in upper case."""
        environment = {"WORKED": str(self.folder / arm), **({"MEMORY": str(self.folder / "memory")} if memory else {})}
        known = {"work_ms": 3.0, "max_batch_size": USERS, **(arguments or {})}
        kind = Mosec(App("mosec_server", self.folder / "app.py", "app.py", known, environment=environment))

        @contextmanager
        def start(kind: ServerKind, ask: Ask, beside: Callable[[], None] | None = None) -> Iterator[Instance]:
            # The deployment that is asked for another path is one that was broken after its start.
            sound = type(ask)(ask.method, "/inference", ask.body, ask.headers)
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

    def worked(self, arm: Arm) -> list[tuple[int, int]]:
        """When a server began each batch, by the monotonic clock, and how many items it had."""
        lines = (self.folder / arm).read_text().splitlines()
        return [(int(at), int(items)) for at, items in map(str.split, lines)]


def terms(schedule: Schedule | None = None, *, by_turns: bool = False, foreign_cores: float = 1000.0) -> Terms:
    """How two are compared here: in so short a time as tells anything at all."""
    shape = LoadShape(schedule or Closed(USERS), warmup_seconds=0.3)
    return Terms(shape, requests_wanted=1, most_foreign_cores=foreign_cores, by_turns=by_turns, seed="a seed")


@contextmanager
def pairing(base: Target, candidate: Target, how: Terms, progress: Seen | None = None) -> Iterator[Pairing]:
    """A pairing that is closed with its block."""
    pair = Pairing(base, candidate, how, progress or Seen())
    try:
        yield pair
    finally:
        pair.close()
