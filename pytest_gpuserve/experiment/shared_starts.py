"""The running pair of servers, which serves the loads of its deployment one after the other.

Starts are the main cost and the main source of variation of a comparison. Each load takes one round of blocks on a
start. For its next round it needs a fresh start, on which the other loads can take their next rounds too.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.errors import GpuserveError

VOLATILE: Final = frozenset({"PYTEST_CURRENT_TEST"})
"""Variables that differ from test to test."""

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.experiment.telemetry import TelemetryMonitor
    from pytest_gpuserve.measure.rounds import Arm
    from pytest_gpuserve.servers.instance import Instance
    from pytest_gpuserve.verdict.reason import Reason


@dataclass
class StartedPair:
    """Two running servers.

    Args:
        instances: The servers, in the order of their starts.
        monitor: Watches the GPU until both have ended.
        starts_together: Whether both started at the same time.
        start_seconds: Time until both answered.

    Attributes:
        stack: Ends both.
        circumstances: Outside facts that shaped the servers, besides their kinds.
        in_use: Whether a load is running.
        loads: Loads that have taken a round, each with its listener for trouble at the servers' end.
    """

    instances: Mapping[Arm, Instance]
    monitor: TelemetryMonitor
    starts_together: bool
    start_seconds: float = 0.0
    stack: ExitStack = field(default_factory=ExitStack)
    circumstances: object = None
    in_use: bool = False
    loads: dict[str, Callable[[list[Reason]], None]] = field(default_factory=dict)


class SharedStarts:
    """Owner of the one running pair, from its start to its end. The creator has to end it.

    Args:
        joined: Called once for each server that the current test reuses.
    """

    def __init__(self, joined: Callable[[Instance], None] = lambda _: None) -> None:
        self._joined = joined
        self._pair: StartedPair | None = None
        self._is_starting = False

    def find(self, load: str, targets: Mapping[Arm, Target], *, starts_together: bool) -> StartedPair | None:
        """The running pair if it has this deployment, answers, and is new to the load; else None.

        Args:
            load: Name of the load, unique in the session.
            targets: Requests and deployments of the load.
            starts_together: Whether both servers may start at the same time.
        """
        pair = self._pair
        if pair is None or pair.in_use or load in pair.loads or pair.starts_together is not starts_together:
            return None
        if any(pair.instances[arm].kind != target.server.kind for arm, target in targets.items()):
            return None
        if pair.circumstances != _circumstances(targets):
            return None
        if not all(_answers(target, pair.instances[arm]) for arm, target in targets.items()):
            return None
        for instance in pair.instances.values():
            self._joined(instance)
        return pair

    def begin(self, targets: Mapping[Arm, Target], start: Callable[[ExitStack], StartedPair]) -> StartedPair:
        """End the running pair, and start another one.

        Args:
            targets: Requests and deployments of the load.
            start: Starts both servers, which end with the stack; what it raises is raised.
        """
        self.end()
        self._is_starting = True
        try:
            circumstances = _circumstances(targets)
            with ExitStack() as stack:
                pair = start(stack)
                pair.stack, pair.circumstances, self._pair = stack.pop_all(), circumstances, pair
        finally:
            self._is_starting = False
        return pair

    def make_room(self) -> bool:
        """End the pair before another server starts, except for one of its own servers or during a load.

        Returns:
            Whether a pair has ended.
        """
        if self._is_starting or self._pair is None or self._pair.in_use:
            return False
        self.end()
        return True

    def end_used(self, load: str) -> None:
        """End the pair if a load has taken a round on it, so that the load learns of late trouble before it goes on."""
        if self._pair is not None and load in self._pair.loads and not self._pair.in_use:
            self.end()

    def end(self) -> None:
        """End both servers, and tell every load that has taken a round about trouble that shows only then."""
        pair, self._pair = self._pair, None
        if pair is None:
            return
        # Wait for the slowest of them, which takes seconds.
        for instance in pair.instances.values():
            if instance.process is not None:
                instance.process.ask_to_end()
        pair.stack.close()
        late = pair.monitor.problems()
        if late:
            for problem in late:
                pair.monitor.note(problem.text)
            for on_trouble in pair.loads.values():
                on_trouble(late)


def _circumstances(targets: Mapping[Arm, Target]) -> object:
    """Outside inputs of servers: variables, the working folder, and the files that their kinds name."""
    kinds = [(target.server.kind.workload(), target.server.kind.information()) for target in targets.values()]
    variables = {name: value for name, value in os.environ.items() if name not in VOLATILE}
    return kinds, variables, str(Path.cwd())


def _answers(target: Target, instance: Instance) -> bool:
    """Whether a server is ready for a load's first request, because it was started with that of another load."""
    try:
        first = target.readiness or target.requests[0]
        replace(target, requests=(first,), messages=target.messages[:1], sharing=None).ask(instance)
    except GpuserveError:
        return False
    return True
