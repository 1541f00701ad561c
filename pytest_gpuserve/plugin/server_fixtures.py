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
def gpuserve_servers(
    _gpuserve_session: GateSession, pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> ServerFactory:
    """What makes deployments of any kind of server, for fixtures of packages that bring one; see ``ServerFactory``."""
    from pytest_gpuserve.plugin.opening import known_distributions
    from pytest_gpuserve.plugin.server_factory import ServerFactory

    session = _gpuserve_session
    starter_of = partial(session.starter, tmp_path_factory)
    return ServerFactory(starter_of, session.shown_path, session.root, known_distributions(pytestconfig))


@pytest.fixture(scope="session")
def mosec_server(gpuserve_servers: ServerFactory) -> Callable[..., ServerHandle]:
    """Factory of mosec deployments, for fixtures of any scope; see ``ServerFactory.mosec``."""
    return gpuserve_servers.mosec


@pytest.fixture(scope="session")
def litserve_server(gpuserve_servers: ServerFactory) -> Callable[..., ServerHandle]:
    """Factory of LitServe deployments; see ``ServerFactory.litserve``."""
    return gpuserve_servers.litserve


@pytest.fixture(scope="session")
def triton_server(gpuserve_servers: ServerFactory) -> Callable[..., ServerHandle]:
    """Factory of Triton deployments; see ``ServerFactory.triton``."""
    return gpuserve_servers.triton


@pytest.fixture(scope="session")
def pytriton_server(gpuserve_servers: ServerFactory) -> Callable[..., ServerHandle]:
    """Factory of pytriton deployments; see ``ServerFactory.pytriton``."""
    return gpuserve_servers.pytriton


@pytest.fixture(scope="session")
def torch_worker(gpuserve_servers: ServerFactory) -> Callable[..., ServerHandle]:
    """Factory of torch workers; see ``ServerFactory.torch_worker``."""
    return gpuserve_servers.torch_worker


@pytest.fixture(scope="session")
def command_server(gpuserve_servers: ServerFactory) -> Callable[..., ServerHandle]:
    """Factory of deployments of any command with a port; see ``ServerFactory.command``."""
    return gpuserve_servers.command


@pytest.fixture(scope="session")
def remote_server(gpuserve_servers: ServerFactory) -> Callable[..., ServerHandle]:
    """Factory of handles of servers that somebody else runs; see ``ServerFactory.remote``."""
    return gpuserve_servers.remote


@pytest.fixture(scope="session")
def count_flops(gpuserve_servers: ServerFactory) -> Callable[..., Work]:
    """Counter of what a request to a torch model costs; see ``ServerFactory.count_flops``."""
    return gpuserve_servers.count_flops
