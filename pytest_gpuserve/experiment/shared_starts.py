"""The pair of servers that runs, and serves every load of its deployment, one load after the other.

A start is what a comparison costs and what varies most. Each load takes one round of blocks on a start; for its next
round it wants a fresh one, on which the other loads can take their next rounds too.
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
    """Two servers that run.

    Args:
        instances: The servers, in the order of their starts; none where they do not fit beside each other.
        monitor: Looks after the GPUs until both have ended.
        starts_together: Whether both started at the same time.
        start_seconds: How long it took until both answered.

    Attributes:
        stack: Ends both.
        circumstances: What else than their kinds made them what they are.
        is_measured: Whether the monitor has seen them at rest.
        in_use: Whether a load is under way.
        loads: Those that have taken a round, each with what hears of trouble that shows at the servers' end.
    """

    instances: Mapping[Arm, Instance]
    monitor: TelemetryMonitor
    starts_together: bool
    start_seconds: float = 0.0
    stack: ExitStack = field(default_factory=ExitStack)
    circumstances: object = None
    is_measured: bool = False
    in_use: bool = False
    loads: dict[str, Callable[[list[Reason]], None]] = field(default_factory=dict)


class SharedStarts:
    """Owns the one pair that runs, from its start to its end; whoever makes it ends it.

    Args:
        joined: Hears, once for each server, that the test under way goes on with it.
    """

    def __init__(self, joined: Callable[[Instance], None] = lambda _: None) -> None:
        self._joined = joined
        self._pair: StartedPair | None = None
        self._is_starting = False

    def find(self, load: str, targets: Mapping[Arm, Target], *, starts_together: bool) -> StartedPair | None:
        """The running pair, if it is of this deployment and answers, and the load has taken no round on it; else None.

        Args:
            load: Names the load among all of the session.
            targets: What it sends, where.
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
        """End the pair that runs, and start another, which is kept if it has servers.

        Args:
            targets: What will be sent, where.
            start: Starts both servers, which end with the stack.

        Raises:
            GpuserveError: As ``start`` does.
        """
        self.end()
        self._is_starting = True
        try:
            circumstances = _circumstances(targets)
            with ExitStack() as stack:
                pair = start(stack)
                if pair.instances:
                    pair.stack, pair.circumstances, self._pair = stack.pop_all(), circumstances, pair
        finally:
            self._is_starting = False
        return pair

    def make_room(self) -> bool:
        """End the pair before another server starts, unless that is one of its own or a load is under way.

        Returns:
            Whether there was one that has ended.
        """
        if self._is_starting or self._pair is None or self._pair.in_use:
            return False
        self.end()
        return True

    def end_used(self, load: str) -> None:
        """End the pair if a load has taken a round on it: whatever goes on with that load knows of its late trouble."""
        if self._pair is not None and load in self._pair.loads and not self._pair.in_use:
            self.end()

    def end(self) -> None:
        """End both servers, and tell every load that has taken a round of what trouble shows only then."""
        pair, self._pair = self._pair, None
        if pair is None:
            return
        # The slowest of them takes seconds.
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
    """What servers take from the outside: variables, the working folder, and the files that their kinds know of."""
    kinds = [(target.server.kind.workload(), target.server.kind.information()) for target in targets.values()]
    variables = {name: value for name, value in os.environ.items() if name not in VOLATILE}
    return kinds, variables, str(Path.cwd())


def _answers(target: Target, instance: Instance) -> bool:
    """Whether a server is ready for the first request of a load: it was started with that of another one."""
    try:
        first = target.readiness or target.requests[0]
        replace(target, requests=(first,), messages=target.messages[:1], sharing=None).ask(instance)
    except GpuserveError:
        return False
    return True
