"""Runs the tests of a module by laps: each start of their servers serves them all, until every one is decided.

A test that is not decided after its round waits. When the tests after it in its module have had their round on the same
servers, these are started again, and the tests that wait run once more, in the opposite order, so that no test always
meets fresh servers. Only the last run of a test is reported. A test that waits alone is decided in one go.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import pytest

from pytest_gpuserve.plugin.collection import measures
from pytest_gpuserve.plugin.markers import runs_in_laps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RETRIES = ("reruns", "retries", "timeout")
"""Options of plugins that run a test again themselves, or end it after a time: of such a run each test is one run."""

RETRY_MARKERS = ("flaky", "timeout")

SHOWS_SETUP = ("setupshow", "setuponly", "setupplan")


def share_starts(one: pytest.Item, other: pytest.Item) -> bool:
    """Whether two tests that follow each other may load the same start of a server: those of one module do."""
    module = one.getparent(pytest.Module)
    return measures(other) and module is not None and module is other.getparent(pytest.Module)


class Laps:
    """Runs tests again that wait for a start.

    Args:
        session: pytest's.
        waits: Whether a test has ended undecided.
    """

    def __init__(self, session: pytest.Session, waits: Callable[[pytest.Item], bool]) -> None:
        self._session = session
        self._waits = waits
        self._waiting: list[pytest.Item] = []
        self._others_wait = False
        self._is_called = False

    def may_wait(self) -> bool:
        """Whether the test under way may end undecided: others of its module use the next start too."""
        return self._others_wait and self._is_called

    @contextmanager
    def in_call(self) -> Iterator[None]:
        """Within the function of a test, which can run again; a fixture cannot."""
        self._is_called = True
        try:
            yield
        finally:
            self._is_called = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run a test whose module has others that measure; of the last one of them, all that wait to their ends."""
        if not self._takes_laps(item):
            return None
        is_last = nextitem is None or not share_starts(item, nextitem) or not self._takes_laps(nextitem)
        if is_last and not self._waiting:
            return None
        lap = [item]
        while lap:
            current = lap.pop(0)
            self._others_wait = not is_last or bool(lap or self._waiting)
            try:
                reports = self._run(current)
            finally:
                self._others_wait = False
            waits = self._waits(current) and not any(report.failed for report in reports)
            waiting = [*self._waiting, current] if waits else self._waiting
            upcoming = lap or (waiting[::-1] if is_last else [])
            if self._finish(current, reports, upcoming[0] if upcoming else nextitem, waits=waits):
                self._waiting.append(current)
            if self._session.shouldfail or self._session.shouldstop:
                return True
            if is_last and not lap:
                lap, self._waiting = self._waiting[::-1], []
        if is_last:
            # Of a test whose teardown failed while it waited the module was to be kept.
            self._session._setupstate.teardown_exact(nextitem)  # noqa: SLF001 -- as pytest's own loop
        return True

    def _takes_laps(self, item: pytest.Item) -> bool:
        option = item.config.option
        return (
            measures(item)
            and runs_in_laps(item)
            and not any(getattr(option, name, None) for name in (*RETRIES, *SHOWS_SETUP))
            and not any(item.get_closest_marker(name) for name in RETRY_MARKERS)
        )

    @staticmethod
    def _run(item: pytest.Item) -> list[pytest.TestReport]:
        """Set a test up and call it, as pytest does; nobody is told of it yet."""
        if not getattr(item, "_request", True):
            item._initrequest()  # type: ignore[attr-defined] # noqa: SLF001 -- as pytest's own loop
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = [_phase(item, "setup", item.ihook.pytest_runtest_setup)]
        if reports[0].passed:
            reports.append(_phase(item, "call", item.ihook.pytest_runtest_call))
        return reports

    def _finish(
        self, item: pytest.Item, reports: list[pytest.TestReport], following: pytest.Item | None, *, waits: bool
    ) -> bool:
        """Tear a test down, and report of it unless it waits; whether it still does."""
        if not waits:
            self._report(item, reports)
        # Before itself a test is torn down but for what its module and class have set up.
        upcoming = item.parent if following is item else following
        if self._session.shouldfail or self._session.shouldstop:
            upcoming = None
        try:
            last = _phase(item, "teardown", item.ihook.pytest_runtest_teardown, nextitem=upcoming)
        finally:
            if hasattr(item, "_request"):
                item._request = False  # noqa: SLF001 -- as pytest's own loop
                item.funcargs = None  # type: ignore[attr-defined]
        if waits and not last.failed:
            return True
        if waits:
            self._report(item, reports)
        item.ihook.pytest_runtest_logreport(report=last)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return False

    @staticmethod
    def _report(item: pytest.Item, reports: list[pytest.TestReport]) -> None:
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)


def _phase(
    item: pytest.Item, when: Literal["setup", "call", "teardown"], hook: Callable[..., object], **more: object
) -> pytest.TestReport:
    """Run a phase of a test as pytest does, and make its report; nobody is told of it yet."""
    stops = (pytest.exit.Exception,) if item.config.option.usepdb else (pytest.exit.Exception, KeyboardInterrupt)
    call = pytest.CallInfo.from_call(lambda: hook(item=item, **more), when=when, reraise=stops)
    report: pytest.TestReport = item.ihook.pytest_runtest_makereport(item=item, call=call)
    if report.failed and not hasattr(report, "wasxfail"):
        item.ihook.pytest_exception_interact(node=item, call=call, report=report)
    return report
