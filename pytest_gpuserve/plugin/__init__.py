"""The pytest plugin: options, markers, fixtures, and the session that is made when a test measures.

Heavy modules are not imported here: a project without our fixtures pays for 20 small modules, and no library.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from pytest_gpuserve.errors import GpuserveError, UsageProblem
from pytest_gpuserve.plugin import fixtures
from pytest_gpuserve.plugin.callers import located
from pytest_gpuserve.plugin.collection import (
    COLLECTED,
    FULL_HELP,
    MARKER,
    MARKER_HELP,
    PublishedSizes,
    check_markers,
    measures,
    needs_device,
)
from pytest_gpuserve.plugin.options import add_options, is_worker, read_settings
from pytest_gpuserve.plugin.outputs import clear_outputs

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

DOCS: Final = Path(__file__).parents[1] / "docs"
"""Folder of the pages."""

NO_NAME: Final = ("auto", "cpu")
"""Values of ``--gpu`` that do not name a GPU."""

TELLS_ONLY: Final = ("collectonly", "help", "markers", "showfixtures", "show_fixtures_per_test", "cacheshow")
"""pytest's options that run no test."""

REFUSED: Final = pytest.StashKey[str]()
"""Key for a user's mistake in a worker of pytest-xdist, which would look like a crash if raised there."""

UNDER_XDIST: Final = (
    "a measuring test cannot run under pytest-xdist, whose workers would disturb each other: run it with -n0, and one"
    " job on each GPU (CUDA_VISIBLE_DEVICES)"
)

NO_ASSERTS: Final = (
    "python -O removes assert statements, so a comparison may not fail its test: run pytest without -O and"
    " PYTHONOPTIMIZE (a server can have it: env={'PYTHONOPTIMIZE': '1'})"
)


class Hooks:
    """Hooks that the plugin offers to others."""

    def pytest_gpuserve_distributions(self) -> Sequence[str]:  # type: ignore[empty-body]
        """Called once: names of installed distributions, as on the package index, whose versions baselines keep."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare options and ini settings."""
    add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare our hooks, and register the fixtures, and early the plugin that has to see the tests first."""
    pluginmanager.add_hookspecs(Hooks)
    pluginmanager.register(fixtures)
    pluginmanager.register(PublishedSizes())


def pytest_gpuserve_distributions() -> Sequence[str]:
    """Name the distributions of the servers that we know."""
    from pytest_gpuserve.device.host import DEFAULT_DISTRIBUTIONS

    return DEFAULT_DISTRIBUTIONS


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Print the folder of the pages if ``--gpuserve-docs`` is given."""
    if not config.option.gpuserve_docs:
        return None
    print(DOCS)  # noqa: T201 -- an answer on the command line
    return int(pytest.ExitCode.OK)


def pytest_configure(config: pytest.Config) -> None:
    """Check the options, before anything is collected."""
    config.addinivalue_line("markers", MARKER_HELP)
    config.addinivalue_line("markers", FULL_HELP)
    settings = read_settings(config)
    if is_worker(config):
        return
    if not any(getattr(config.option, name, False) for name in TELLS_ONLY):
        clear_outputs(settings.outputs)


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Refuse a named device that is absent, before a long collection."""
    config = session.config
    if is_worker(config) or config.option.collectonly:
        return
    settings = read_settings(config)
    if settings.gpu not in NO_NAME:
        from pytest_gpuserve.plugin.opening import find_device

        _or_usage_error(lambda: find_device(settings))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Remember the tests before any selection, because entries of deselected tests are not unused."""
    config.stash[COLLECTED] = {item.nodeid for item in items}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Check the markers, and make the session object if needed; runs first, so that it can add to the header."""
    try:
        _make_session(session)
    except pytest.UsageError as problem:
        if not is_worker(session.config):
            raise
        session.config.stash[REFUSED] = str(problem)


def _make_session(session: pytest.Session) -> None:
    config = session.config
    for item in session.items:
        check_markers(item)
    ours = [item for item in session.items if needs_device(item)]
    if not ours or config.option.collectonly:
        return
    from pytest_gpuserve.plugin.laps import LAPS_NAME
    from pytest_gpuserve.plugin.session import GateSession

    settings = read_settings(config)
    measuring = any(map(measures, ours)) and not is_worker(config)
    if measuring and sys.flags.optimize:
        raise pytest.UsageError(NO_ASSERTS)
    made = _or_usage_error(lambda: GateSession(session, settings, measuring=measuring))
    config.pluginmanager.register(made, fixtures.SESSION_NAME)
    config.pluginmanager.register(made.laps, LAPS_NAME)


@pytest.hookimpl(tryfirst=True, specname="pytest_runtest_setup")
def pytest_gpuserve_refuse(item: pytest.Item) -> None:
    """Refuse to measure beside other workers of pytest-xdist; tests that do not measure run there.

    This is not part of the wrapper, which must not raise before the other wrappers have begun.
    """
    if not is_worker(item.config):
        return
    mistake = item.config.stash.get(REFUSED, "")
    if mistake and (needs_device(item) or item.get_closest_marker(MARKER)):
        pytest.fail(mistake, pytrace=False)
    if measures(item):
        pytest.fail(UNDER_XDIST, pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    """Show our errors in fixtures by their text, without a traceback through our code.

    pytest keeps the error of a fixture for all tests of its scope and raises it again in each. A wrapper around the
    fixture's setup would handle only the first of them.
    """
    try:
        return (yield)
    except GpuserveError as problem:
        raise pytest.fail.Exception(located(problem), pytrace=False) from None


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    """The same for errors in tests."""
    try:
        return (yield)
    except GpuserveError as problem:
        raise pytest.fail.Exception(located(problem), pytrace=False) from None


def _or_usage_error(call: Any) -> Any:  # noqa: ANN401 -- passes through whatever the call returns
    try:
        return call()
    except UsageProblem as problem:
        raise pytest.UsageError(str(problem)) from None
