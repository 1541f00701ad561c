"""Fixtures of the tests of loads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_gpuserve.load.engine import http1
from tests.fakes.http_connection import FakeOpening
from tests.fakes.http_server import Serving, serving


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    """Give a server that misbehaves on request; what it saw is of all tests of the module."""
    with serving() as running:
        yield running


@pytest.fixture(scope="module")
def no_network() -> Iterator[None]:
    """Let slots be opened by the test instead of a network."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http1, "Opening", FakeOpening)
        yield
