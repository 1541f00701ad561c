"""The server fixtures: each is a method of `ServerFactory`. Heavy imports wait until a test asks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuserve.experiment.handle import ServerHandle
    from pytest_gpuserve.plugin.server_factory import ServerFactory
    from pytest_gpuserve.plugin.session import GateSession
    from pytest_gpuserve.roofline import Work


@pytest.fixture(scope="session")
def _gpuserve_servers(_gpuserve_session: GateSession, tmp_path_factory: pytest.TempPathFactory) -> ServerFactory:
    """What makes deployments in this session."""
    from pytest_gpuserve.plugin.server_factory import ServerFactory

    session = _gpuserve_session
    return ServerFactory(partial(session.starter, tmp_path_factory), session.shown_path, session.root)


@pytest.fixture(scope="session")
def mosec_server(_gpuserve_servers: ServerFactory) -> Callable[..., ServerHandle]:
    """Factory of mosec deployments, for fixtures of any scope; see ``ServerFactory.mosec``."""
    return _gpuserve_servers.mosec


@pytest.fixture(scope="session")
def litserve_server(_gpuserve_servers: ServerFactory) -> Callable[..., ServerHandle]:
    """Factory of LitServe deployments; see ``ServerFactory.litserve``."""
    return _gpuserve_servers.litserve


@pytest.fixture(scope="session")
def triton_server(_gpuserve_servers: ServerFactory) -> Callable[..., ServerHandle]:
    """Factory of Triton deployments; see ``ServerFactory.triton``."""
    return _gpuserve_servers.triton


@pytest.fixture(scope="session")
def pytriton_server(_gpuserve_servers: ServerFactory) -> Callable[..., ServerHandle]:
    """Factory of pytriton deployments; see ``ServerFactory.pytriton``."""
    return _gpuserve_servers.pytriton


@pytest.fixture(scope="session")
def torch_worker(_gpuserve_servers: ServerFactory) -> Callable[..., ServerHandle]:
    """Factory of torch workers; see ``ServerFactory.torch_worker``."""
    return _gpuserve_servers.torch_worker


@pytest.fixture(scope="session")
def command_server(_gpuserve_servers: ServerFactory) -> Callable[..., ServerHandle]:
    """Factory of deployments of any command with a port; see ``ServerFactory.command``."""
    return _gpuserve_servers.command


@pytest.fixture(scope="session")
def remote_server(_gpuserve_servers: ServerFactory) -> Callable[..., ServerHandle]:
    """Factory of handles of servers that somebody else runs; see ``ServerFactory.remote``."""
    return _gpuserve_servers.remote


@pytest.fixture(scope="session")
def count_flops(_gpuserve_servers: ServerFactory) -> Callable[..., Work]:
    """Counter of what a request to a torch model costs; see ``ServerFactory.count_flops``."""
    return _gpuserve_servers.count_flops
