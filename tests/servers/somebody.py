"""A factory of server descriptions without a session of pytest, which also reaches remote servers."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

from pytest_gpuserve.plugin.server_factory import ServerFactory
from pytest_gpuserve.servers.metric_names import MetricNames
from pytest_gpuserve.servers.remote import reached

COUNTERS = MetricNames(items="items", batches="batches", requests="requests")
"""Of ``model_server.py``."""


FACTORY = ServerFactory(lambda seconds: partial(cast("Any", reached), timeout_seconds=seconds), str)

UNTYPED: Any = FACTORY
"""The same for what a type checker would refuse."""
