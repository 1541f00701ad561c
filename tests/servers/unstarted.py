"""A factory of deployments that are described, and never started."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuserve.server_factory import ServerFactory

if TYPE_CHECKING:
    from pytest_gpuserve.trial.handle import Starter


def no_start(_: float) -> Starter:
    """What the factory starts with: nothing is started here."""

    def start(*_: object) -> Any:  # noqa: ANN401 -- never returns
        pytest.fail("it was started")

    return start


FACTORY = ServerFactory(no_start, str, Path(__file__).parent)

UNTYPED: Any = FACTORY
"""The same for what a type checker would refuse."""
