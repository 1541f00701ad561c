"""The pytest plugin: options, markers, fixtures, and the session that is made when a test measures.

Nothing heavy is imported here: a project that uses none of our fixtures pays for this file and no more.
"""

from __future__ import annotations

import os
import sysconfig
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuserve import hookspecs
from pytest_gpuserve.errors import GpuserveError, UsageProblem
from pytest_gpuserve.fixtures import (
    _gpuserve_judge,
    _gpuserve_measuring,
    _gpuserve_session,
    baseline,
    device,
    duel,
    load,
)
from pytest_gpuserve.markers import MARKER_HELP, tolerances
from pytest_gpuserve.options import (
    COLLECTED,
    MEASURING,
    NEEDS_DEVICE,
    SELFTEST_NAME,
    SESSION_NAME,
    add_options,
    read_settings,
)
from pytest_gpuserve.process.secrets import without_secrets
from pytest_gpuserve.server_fixtures import (
    _gpuserve_servers,
    command_server,
    litserve_server,
    mosec_server,
    pytriton_server,
    remote_server,
    torch_worker,
    triton_server,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

__all__ = [
    "_gpuserve_judge",
    "_gpuserve_measuring",
    "_gpuserve_servers",
    "_gpuserve_session",
    "baseline",
    "command_server",
    "device",
    "duel",
    "litserve_server",
    "load",
    "mosec_server",
    "pytriton_server",
    "remote_server",
    "torch_worker",
    "triton_server",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare options and ini settings."""
    add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the hooks that we offer."""
    pluginmanager.add_hookspecs(hookspecs)


def pytest_configure(config: pytest.Config) -> None:
    """Check the options, before anything is collected."""
    config.addinivalue_line("markers", MARKER_HELP)
    settings = read_settings(config)
    if settings.json_path is not None and not config.option.collectonly and not _is_xdist_worker(config):
        # Whatever happens to this run, nobody must take an older run's result for it.
        settings.json_path.unlink(missing_ok=True)
    if settings.selftest_minutes is not None:
        from pytest_gpuserve.selftest_command import SelftestCommand

        config.pluginmanager.register(SelftestCommand(config, settings, settings.selftest_minutes), SELFTEST_NAME)


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Refuse a device that was asked for by name and is not there, before a long collection."""
    config = session.config
    settings = read_settings(config)
    if settings.gpu not in {"auto", "cpu"} and not config.option.collectonly and not _is_xdist_worker(config):
        from pytest_gpuserve.devices import find_devices

        _or_usage_error(lambda: find_devices(settings))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Remember what there was before any selection: what a deselected test uses is not unused."""
    config.stash[COLLECTED] = {item.nodeid for item in items}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Check the markers, and make the session object if a test needs it; first, so that it can add to the header."""
    config = session.config
    for item in session.items:
        tolerances(item)
    ours = [item for item in session.items if NEEDS_DEVICE in getattr(item, "fixturenames", ())]
    if not ours or config.option.collectonly:
        return
    from pytest_gpuserve.session import GateSession

    measuring = any(_measures(item) for item in ours)
    config.pluginmanager.register(
        _or_usage_error(
            lambda: GateSession(session, read_settings(config), measuring=measuring and not _is_xdist_worker(config))
        ),
        SESSION_NAME,
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse to measure beside other workers of pytest-xdist: they would measure each other."""
    if _is_xdist_worker(item.config) and _measures(item):
        pytest.fail(
            "a measuring test cannot run under pytest-xdist: the workers would measure each other;"
            " run it with -n0, or deselect it here",
            pytrace=False,
        )


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    """Show our errors as what they say, without a traceback through our code."""
    try:
        return (yield)
    except GpuserveError as problem:
        raise pytest.fail.Exception(_located(problem), pytrace=False) from None


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup() -> Generator[None, object, object]:
    """The same for errors in fixtures."""
    try:
        return (yield)
    except GpuserveError as problem:
        raise pytest.fail.Exception(_located(problem), pytrace=False) from None


def _located(problem: GpuserveError) -> str:
    """The text of an error, with the line of the user's code that led to it."""
    others = (str(Path(__file__).parent), sysconfig.get_path("stdlib"), "<")
    for frame in reversed(traceback.extract_tb(problem.__traceback__)):
        if not frame.filename.startswith(others) and "site-packages" not in frame.filename:
            return without_secrets(f"{Path(frame.filename).name}:{frame.lineno}: {problem}", os.environ)
    return without_secrets(str(problem), os.environ)


def _or_usage_error(call: Any) -> Any:  # noqa: ANN401 -- passes through whatever the call returns
    try:
        return call()
    except UsageProblem as problem:
        raise pytest.UsageError(str(problem)) from None


def _measures(item: pytest.Item) -> bool:
    return MEASURING in getattr(item, "fixturenames", ())


def _is_xdist_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")
