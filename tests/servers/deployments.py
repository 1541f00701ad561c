"""Deployments of any kind, described, started and loaded without a session of pytest."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from pytest_gpuserve.experiment.handle import ServerHandle, Target
from pytest_gpuserve.experiment.loaded import LoadedServer
from pytest_gpuserve.experiment.sampling import measure_start
from pytest_gpuserve.experiment.shape import LoadShape
from pytest_gpuserve.experiment.telemetry import TelemetryMonitor
from pytest_gpuserve.load.schedule import Closed
from pytest_gpuserve.plugin.server_factory import ServerFactory
from pytest_gpuserve.servers.instance import started
from pytest_gpuserve.servers.metric_names import MetricNames
from pytest_gpuserve.servers.remote import reached
from tests.fakes.children.toolkit import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pytest_gpuserve.load.schedule import Schedule
    from pytest_gpuserve.measure.counters import Counters
    from pytest_gpuserve.measure.window import Start
    from pytest_gpuserve.process.ready import Ask
    from pytest_gpuserve.servers.base import ServerKind
    from pytest_gpuserve.servers.instance import Instance
    from pytest_gpuserve.verdict.reason import Reason

COUNTERS = MetricNames(items="items", batches="batches", requests="requests")
"""Counters of ``model_server.py``."""

FACTORY = ServerFactory(lambda seconds: partial(cast("Any", reached), timeout_seconds=seconds), str)
"""Describes servers without a session of pytest, and reaches remote ones."""

UNTYPED: Any = FACTORY
"""The same for arguments that a type checker would refuse."""


@dataclass
class Starts:
    """Starts deployments, and remembers the instances.

    Args:
        log: File of their output.
        timeout_seconds: Time for a start.
        instances: The started ones.
    """

    log: Path
    timeout_seconds: float = 60.0
    instances: list[Instance] = field(default_factory=list)

    @contextmanager
    def start(self, kind: ServerKind, ask: Ask, beside: Callable[[], None] | None = None) -> Iterator[Instance]:
        """Start a deployment, as a ``Starter``."""
        with started(
            kind, ask, environment={}, log=self.log, start_timeout_seconds=self.timeout_seconds, beside=beside
        ) as instance:
            self.instances.append(instance)
            yield instance

    def handle(self, kind: ServerKind) -> ServerHandle:
        """A handle of a deployment of this kind."""
        return ServerHandle(kind, self.start)


def loaded(
    target: Target, *, users: int = 4, seconds: float = 2.0, schedule: Schedule | None = None
) -> tuple[Start, list[Reason], Instance]:
    """Start a target, load it with a closed loop (or a schedule that ends by itself), and end it.

    Returns:
        The measurement, its problems, and the loaded instance.
    """
    shape = LoadShape(Closed(users), seconds=seconds, warmup_seconds=0.5)
    if schedule is not None:
        shape = LoadShape(schedule, warmup_seconds=0.5)
    with target.started() as instance:
        load = LoadedServer(instance, target, shape)
        start = measure_start(load, TelemetryMonitor())
    return start, load.problems, instance


def counted(instance: Instance, requests: int | None = None) -> Counters:
    """Counters of a server at so many requests: some servers count an answer after they sent it."""
    found: list[Counters] = []

    def all_counted() -> bool:
        counters = instance.counters()
        assert counters is not None
        found.append(counters)
        return requests is None or counters.requests == requests

    eventually(all_counted, f"{requests} requests are counted")
    return found[-1]
