"""Runs the tests of a module in laps: all of them share each start of their servers, until each test is decided.

A test that is not decided after its round waits. The other tests of its module then have their round on the same
servers. After that the servers are started again, and the waiting tests run once more. They run in the opposite order,
so that the fresh servers do not always meet the same test. Only the last run of a test is reported. A test that waits
alone is decided in one go.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Literal

import pytest

from pytest_gpuserve.plugin.collection import measures, runs_in_laps

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

NOT_WITH: Final = ("setupshow", "setuponly", "setupplan", "stepwise")
"""Options of pytest that show each phase or resume the last run; with them each test is one run."""

SUBTESTS: Final = "subtests"
"""A fixture of pytest's whose blocks keep every error, including the one that ends a test to wait."""

LAPS_NAME: Final = "gpuserve-laps"
"""Name of the registered plugin."""

RUNNERS: Final = frozenset({"runner", LAPS_NAME})
"""pytest's own runner of tests. If another plugin replaces it, such as one that repeats failures, each test is one
run."""


def share_starts(one: pytest.Item, other: pytest.Item) -> bool:
    """Whether two consecutive tests may load the same start of a server: those of one module may."""
    module = one.getparent(pytest.Module)
    return measures(other) and module is not None and module is other.getparent(pytest.Module)


class Laps:
    """Repeats tests that wait for a start.

    Args:
        end_starts: Ends the running servers, on which all waiting tests have had their round.
        settled: Called when a test is reported, and no longer waits.
    """

    def __init__(
        self, session: pytest.Session, *, end_starts: Callable[[], None], settled: Callable[[pytest.Item], None]
    ) -> None:
        self._session = session
        self._end_starts = end_starts
        self._settled = settled
        # Tests that wait since this lap, and tests that are still to run in it.
        self._waiting: list[pytest.Item] = []
        self._lap: list[pytest.Item] = []
        self._is_last = False
        self._is_running = False
        self._others_wait = False
        self._is_called = False
        self._has_asked = False

    def may_wait(self) -> bool:
        """Whether the current test ends undecided to run again, because others of its module use the next start too."""
        self._has_asked = self._others_wait and self._is_called
        return self._has_asked

    @contextmanager
    def in_call(self) -> Iterator[None]:
        """Whether the code runs in a test's function, which can run again; a fixture cannot."""
        self._is_called = True
        try:
            yield
        finally:
            self._is_called = False

    @pytest.hookimpl(wrapper=True, tryfirst=True, specname="pytest_runtest_protocol")
    def pytest_gpuserve_run_laps(self, nextitem: pytest.Item | None) -> Generator[None, object, object]:
        """After the last test of a module, run the waiting tests, each inside the other plugins' wrappers."""
        result = yield
        if self._is_running or not self._is_last:
            return result
        self._is_running = True
        try:
            while self._waiting and not self._stops():
                self._end_starts()
                self._lap, self._waiting = self._waiting[::-1], []
                while self._lap and not self._stops():
                    current = self._lap.pop(0)
                    current.ihook.pytest_runtest_protocol(item=current, nextitem=nextitem)
        finally:
            self._waiting, self._lap = [], []
            self._is_last = self._is_running = False
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run a test whose module has others that measure, and report it unless it waits."""
        if not self._is_running:
            if not self._takes_laps(item):
                return None
            self._is_last = nextitem is None or not share_starts(item, nextitem) or not self._takes_laps(nextitem)
            if self._is_last and not self._waiting:
                self._is_last = False
                return None
        self._run(item, nextitem)
        return True

    def _takes_laps(self, item: pytest.Item) -> bool:
        others = {
            impl.plugin_name
            for impl in item.ihook.pytest_runtest_protocol.get_hookimpls()
            if not (impl.hookwrapper or impl.wrapper)
        } - RUNNERS
        return (
            measures(item)
            and runs_in_laps(item)
            and not others
            and SUBTESTS not in getattr(item, "fixturenames", ())
            and not any(getattr(item.config.option, name, None) for name in NOT_WITH)
        )

    def _run(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Run a test once, as pytest's own loop does.

        This function holds all uses of pytest's private names. CI runs the tests of laps with pytest 8.0, 8.4 and the
        newest 9.
        """
        hook = item.ihook
        if not getattr(item, "_request", True):
            # A repeated test: leftovers of its last run would be reported twice.
            item._initrequest()  # type: ignore[attr-defined] # noqa: SLF001 -- as pytest's own loop
            item.user_properties.clear()
            item._report_sections.clear()  # noqa: SLF001 -- pytest has no other way
        self._has_asked, self._others_wait = False, not self._is_last or bool(self._lap or self._waiting)
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        try:
            reports = [_phase(item, "setup", hook.pytest_runtest_setup)]
            if reports[0].passed:
                reports.append(_phase(item, "call", hook.pytest_runtest_call))
            waits = self._has_asked and not any(report.failed for report in reports)
            if not waits:
                for report in reports:
                    hook.pytest_runtest_logreport(report=report)
            following = self._following(item, nextitem, waits=waits)
            reports.append(_phase(item, "teardown", hook.pytest_runtest_teardown, nextitem=following))
        finally:
            self._others_wait = False
            if hasattr(item, "_request"):
                item._request = False  # noqa: SLF001 -- as pytest's own loop
                item.funcargs = None  # type: ignore[attr-defined]
        if waits and not reports[-1].failed:
            self._waiting.append(item)
            return
        self._settled(item)
        for report in reports if waits else reports[-1:]:
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        if waits and self._is_last and not self._lap and not self._waiting:
            # Its module was kept for a next run, which does not come.
            self._session._setupstate.teardown_exact(nextitem)  # noqa: SLF001 -- as pytest's own loop

    def _following(self, item: pytest.Item, nextitem: pytest.Item | None, *, waits: bool) -> pytest.Item | None:
        """The test that runs next, so that their common fixtures are not torn down."""
        if self._stops():
            return None
        if not self._is_last:
            return nextitem
        waiting = [*self._waiting, item] if waits else self._waiting
        to_run = self._lap or waiting[::-1]
        upcoming = to_run[0] if to_run else nextitem
        # Before a repeat, only the fixtures of its module and class stay.
        return item.parent if upcoming is item else upcoming  # type: ignore[return-value]

    def _stops(self) -> bool:
        return bool(self._session.shouldfail or self._session.shouldstop)


def _phase(
    item: pytest.Item, when: Literal["setup", "call", "teardown"], hook: Callable[..., object], **more: object
) -> pytest.TestReport:
    """Run a phase of a test as pytest does, and make its report, without logging it yet."""
    debugs = item.config.getoption("usepdb", default=False)  # absent under `-p no:debugging`
    stops = (pytest.exit.Exception,) if debugs else (pytest.exit.Exception, KeyboardInterrupt)
    call = pytest.CallInfo.from_call(lambda: hook(item=item, **more), when=when, reraise=stops)
    report: pytest.TestReport = item.ihook.pytest_runtest_makereport(item=item, call=call)
    if report.failed and not hasattr(report, "wasxfail"):
        item.ihook.pytest_exception_interact(node=item, call=call, report=report)
    return report
