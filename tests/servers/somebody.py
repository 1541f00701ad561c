"""A factory of server descriptions without a session of pytest, which also reaches remote servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpuserve.plugin.server_factory import ServerFactory
from pytest_gpuserve.servers.metric_names import MetricNames
from pytest_gpuserve.servers.remote import RemoteServer, reached

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from pytest_gpuserve.experiment.handle import Starter
    from pytest_gpuserve.process.ready import Ask
    from pytest_gpuserve.servers.base import ServerKind
    from pytest_gpuserve.servers.instance import Instance

COUNTERS = MetricNames(items="items", batches="batches", requests="requests")
"""Of ``model_server.py``."""


def start_of(timeout_seconds: float) -> Starter:
    """Starter of remote servers in a session."""

    def start(kind: ServerKind, ask: Ask, beside: Callable[[], None] | None = None) -> AbstractContextManager[Instance]:
        assert isinstance(kind, RemoteServer)
        return reached(kind, ask, timeout_seconds=timeout_seconds, beside=beside)

    return start


FACTORY = ServerFactory(start_of, str)

UNTYPED: Any = FACTORY
"""The same for what a type checker would refuse."""
