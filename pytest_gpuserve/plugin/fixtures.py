"""The fixtures: they compose, and compute nothing. Heavy imports wait until a test uses a fixture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn, cast

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from pytest_gpuserve.compare.assertions import Baseline
    from pytest_gpuserve.compare.comparison import TestComparison
    from pytest_gpuserve.device import Device
    from pytest_gpuserve.experiment.handle import ServerHandle
    from pytest_gpuserve.fixture_types import Load, MakeDuel
    from pytest_gpuserve.plugin.server_factory import ServerFactory
    from pytest_gpuserve.plugin.session import GateSession


SESSION_NAME: Final = "gpuserve-session"
"""Name under which the session object is registered as a plugin."""


@pytest.fixture(scope="session")
def _gpuserve_session(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> GateSession:
    """The session object, made at the end of collection if a test lists this among its fixtures."""
    session = pytestconfig.pluginmanager.get_plugin(SESSION_NAME)
    if session is None:
        _fail_dynamic()
    made = cast("GateSession", session)
    made.equipment.temporary = tmp_path_factory
    return made


@pytest.fixture(scope="session")
def _gpuserve_measuring(_gpuserve_session: GateSession) -> GateSession:
    """The session object, with exclusive use of the device."""
    if not _gpuserve_session.measuring:
        _fail_dynamic()
    return _gpuserve_session


def _fail_dynamic() -> NoReturn:
    pytest.fail(
        "this fixture has to be among the arguments of a test or fixture. With request.getfixturevalue() it is too"
        " late to find the device and take its lock",
        pytrace=False,
    )


@pytest.fixture(scope="session")
def device(_gpuserve_session: GateSession) -> Device:
    """The device of this run: ``device.name`` (``cpu``, ``T4`` ...), ``device.is_gpu``."""
    return _gpuserve_session.here.device


@pytest.fixture(scope="session")
def full_size(_gpuserve_session: GateSession) -> bool:
    """True with ``--gpuserve-full``: the test should measure its full size, however long that takes."""
    return _gpuserve_session.settings.full


@pytest.fixture(scope="session")
def artifacts(_gpuserve_session: GateSession) -> Path:
    """The folder for tables and charts that tests write: ``--gpuserve-artifacts``, else in pytest's cache."""
    return _gpuserve_session.equipment.artifacts


@pytest.fixture
def _gpuserve_comparison(
    request: pytest.FixtureRequest, _gpuserve_measuring: GateSession
) -> Generator[TestComparison, None, None]:
    """The comparison of a test, which ``load`` and ``duel`` share; it ends the test's servers."""
    comparison = _gpuserve_measuring.begin_test(request.node)
    try:
        yield comparison
    finally:
        _gpuserve_measuring.end_test(comparison)


@pytest.fixture
def load(_gpuserve_comparison: TestComparison, _gpuserve_measuring: GateSession) -> Load:
    """Load a server and return a run: ``load(server.post(path, body=body), concurrency=16)``."""
    from pytest_gpuserve.fixture_types import Load

    equipment = _gpuserve_measuring.equipment
    return Load(_gpuserve_comparison, equipment.telemetry_source(), equipment.engine_source())


@pytest.fixture
def duel(_gpuserve_comparison: TestComparison, _gpuserve_measuring: GateSession) -> MakeDuel:
    """Load two servers side by side: ``duel(one.post(...), other.post(...), concurrency=16)``."""
    from pytest_gpuserve.fixture_types import MakeDuel

    equipment = _gpuserve_measuring.equipment
    return MakeDuel(_gpuserve_comparison, equipment.telemetry_source(), equipment.engine_source())


@pytest.fixture
def baseline() -> Baseline:
    """The base in an assertion: the stored baseline, or the build of ``--against``."""
    from pytest_gpuserve.compare.assertions import Baseline

    return Baseline()


@pytest.fixture(scope="session")
def gpuserve_servers(_gpuserve_session: GateSession, pytestconfig: pytest.Config) -> ServerFactory:
    """Factory of deployments of any kind of server, for fixtures of other packages."""
    from pytest_gpuserve.plugin.opening import known_distributions
    from pytest_gpuserve.plugin.server_factory import ServerFactory

    session = _gpuserve_session
    return ServerFactory(
        session.equipment.starter,
        session.shown_path,
        known_distributions(pytestconfig),
        torch_device="cuda" if session.here.device.is_gpu else "cpu",
    )


@pytest.fixture(scope="session")
def mosec_server(gpuserve_servers: ServerFactory) -> Callable[..., ServerHandle]:
    """Factory of mosec deployments: ``mosec_server("app.py")``."""
    return gpuserve_servers.mosec


@pytest.fixture(scope="session")
def litserve_server(gpuserve_servers: ServerFactory) -> Callable[..., ServerHandle]:
    """Factory of LitServe deployments: ``litserve_server("app.py")``."""
    return gpuserve_servers.litserve


@pytest.fixture(scope="session")
def triton_server(gpuserve_servers: ServerFactory) -> Callable[..., ServerHandle]:
    """Factory of Triton deployments: ``triton_server("models")``."""
    return gpuserve_servers.triton


@pytest.fixture(scope="session")
def pytriton_server(gpuserve_servers: ServerFactory) -> Callable[..., ServerHandle]:
    """Factory of pytriton deployments: ``pytriton_server("app.py", model="name")``."""
    return gpuserve_servers.pytriton


@pytest.fixture(scope="session")
def torch_worker(gpuserve_servers: ServerFactory) -> Callable[..., ServerHandle]:
    """Factory of torch workers: ``torch_worker("model.py:Model")``."""
    return gpuserve_servers.torch_worker


@pytest.fixture(scope="session")
def command_server(gpuserve_servers: ServerFactory) -> Callable[..., ServerHandle]:
    """Factory of deployments of any command: ``command_server(["serve", "--port={port}"])``."""
    return gpuserve_servers.command


@pytest.fixture(scope="session")
def remote_server(gpuserve_servers: ServerFactory) -> Callable[..., ServerHandle]:
    """Factory of handles of servers that run already: ``remote_server("http://HOST:PORT")``."""
    return gpuserve_servers.remote
