"""The one stateful object of a run that measures: it owns the device lock, the baselines and the results."""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import cached_property, partial
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.closing import print_closing, write_results
from pytest_gpuserve.comparisons import planned_comparisons
from pytest_gpuserve.errors import BaselineUnusable, GpuserveError
from pytest_gpuserve.items import measures, measuring_ids, plain_id
from pytest_gpuserve.outcomes import Outcomes
from pytest_gpuserve.outputs import Written
from pytest_gpuserve.process.secrets import without_secrets
from pytest_gpuserve.progress import ProgressLine
from pytest_gpuserve.report.commands import code_before
from pytest_gpuserve.report.explain import headline
from pytest_gpuserve.report.junit import PROBLEM, properties
from pytest_gpuserve.session.account import Account
from pytest_gpuserve.session.equipment import Equipment
from pytest_gpuserve.session.explaining import explained
from pytest_gpuserve.session.folders import Folders
from pytest_gpuserve.session.judges import Judges
from pytest_gpuserve.session.opening import open_session
from pytest_gpuserve.settings import Update
from pytest_gpuserve.sharding import tests_of_all_runners
from pytest_gpuserve.store.history import History
from pytest_gpuserve.trial.arena import Arena
from pytest_gpuserve.trial.claims import Claims
from pytest_gpuserve.trial.machine import Machine
from pytest_gpuserve.unused import all_was_run, asking_tests, settle_unused

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from pytest_gpuserve.load.source import EngineSource
    from pytest_gpuserve.report.results import SessionResult
    from pytest_gpuserve.settings import Settings
    from pytest_gpuserve.trial.handle import Starter
    from pytest_gpuserve.trial.judging import TestJudge
    from pytest_gpuserve.trial.telemeter import Telemeter


class GateSession:
    """Registered as a plugin when a test needs the device.

    Args:
        session: pytest's session, after its collection.
        settings: What was asked.
        measuring: Whether tests will measure, so that the device must be ours alone.

    Raises:
        DeviceProblem: The device is not there, or another session kept it too long.
        UsageProblem: git does not know the revision to compare with, or what is to make the loads cannot, or the
            storage of the baselines does not let them be read, or written where they are to be.
    """

    def __init__(self, session: pytest.Session, settings: Settings, *, measuring: bool) -> None:
        self._settings = settings
        self._session = session
        self._opened = open_session(session.config, settings, measuring=measuring)
        self.here = self._opened.here
        self.measuring = measuring
        self._outcomes = Outcomes()
        self._written = Written()
        # What could not be collected.
        self._unlisted_failures = session.testsfailed
        self._cut_short = False
        self._notes = list(self._opened.notes)
        self._folders = Folders(settings, session.config)
        self._equipment = Equipment(
            self.here.device,
            engine=self._opened.engine,
            logs=self._folders.logs,
            logged=self._outcomes.logged,
            note=self._note,
        )
        self._account = Account(session, self._opened, self._folders, measuring=measuring)
        # A worker of pytest-xdist collects all tests too, so that it reckons with the comparisons of all workers. What
        # others have upheld it does not know: its claims need be surer than they had to be, never less sure.
        self._claims = Claims(planned_comparisons(tests_of_all_runners(session)))
        try:
            progress = ProgressLine(session.config, rewrites=not settings.ci)
            self._judges = Judges(self._opened, self._new_arena(progress), progress)
        except BaseException:
            self._opened.lock.release()
            raise

    def _new_arena(self, progress: ProgressLine) -> Arena:
        settings, opponents, remembered = self._settings, self._opened.opponents, self._folders.remembered()
        return Arena(
            here=self.here,
            opponents=opponents,
            history=None if remembered is None else History(remembered),
            claims=self._claims,
            note=self._note,
            progress=progress,
            machine=Machine(self.here.device, self._note),
            against=partial(opponents.find, revision=settings.against, python=settings.against_python)
            if settings.side_by_side
            else None,
        )

    def _note(self, line: str) -> None:
        if line not in self._notes:
            self._notes.append(line)

    # -- for the fixtures

    def judge(self, item: pytest.Item) -> TestJudge:
        """The judge of a test; one that is run again goes on with the sessions that it has."""
        return self._judges.begin(item)

    def starter(self, tmp_path_factory: pytest.TempPathFactory, start_timeout_seconds: float) -> Starter:
        """What starts servers on this session's device, each with a log file of its own."""
        return self._equipment.starter(tmp_path_factory, start_timeout_seconds)

    def telemeter(self, tmp_path_factory: pytest.TempPathFactory) -> Telemeter:
        """Who looks at the card while this session loads servers on it: from the first load to the session's end."""
        return self._equipment.telemeter(tmp_path_factory)

    def engine_source(self, tmp_path_factory: pytest.TempPathFactory) -> EngineSource:
        """Where the engines of all loads come from."""
        return self._equipment.engine_source(tmp_path_factory)

    @property
    def root(self) -> Path:
        """The project's root folder."""
        return self._settings.root

    @property
    def full(self) -> bool:
        """Whether the published sizes are wanted."""
        return self._settings.full

    def artifacts(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """The folder for what tests make; it is there."""
        return self._folders.artifacts(tmp_path_factory)

    def shown_path(self, path: Path) -> str:
        """A file as baselines name it: relative to the project, or by its name alone where it lies outside.

        An absolute path would make another workload of it on every machine, and of a temporary one in every run.
        """
        root = self._settings.root
        return path.relative_to(root).as_posix() if path.is_relative_to(root) else f".../{path.name}"

    def closing(self) -> SessionResult:
        """What this run has to say so far."""
        tests = self._outcomes.results(self._judges.reported)
        return self._account.result(tests, self._notes, among=self._claims.planned)

    # -- hooks: a test

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Know whose servers are started from here on."""
        self._outcomes.begin(plain_id(item))

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> Generator[None, object, object]:
        """A test that came to its end has not passed yet: nothing in it may have failed unnoticed, or be undecided."""
        try:
            result = yield
        except BaseException as problem:
            judge = self._judges.find(plain_id(pyfuncitem))
            if judge is not None:
                # By Ctrl-C it has no outcome, and nothing more is told of it.
                judge.ended_early = not isinstance(problem, (KeyboardInterrupt, pytest.exit.Exception))
            if isinstance(problem, pytest.skip.Exception):
                # What the test has found until then must not hide behind what it lacks.
                _fail_unheld(judge)
            raise
        judge = self._judges.find(plain_id(pyfuncitem))
        if judge is None:
            return result
        _fail_unheld(judge)
        if judge.skip_reason():
            pytest.skip(judge.skip_reason())
        return result

    def pytest_assertrepr_compare(self, left: object, right: object) -> list[str] | None:
        """Explain a failed comparison."""
        revision = self.here.revision
        recording = self._settings.update is not Update.NOTHING
        lines = explained(
            left,
            right,
            gpu=self.here.device.name,
            stored=not self._settings.side_by_side,
            before="" if recording else code_before(revision.commit, clean=revision.clean),
        )
        if lines is not None:
            self._outcomes.explained(lines)
        return lines

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Keep the outcome of a test that loads, and write what a recording measured once it has passed to its end."""
        report = yield
        if not measures(item):
            return report
        nodeid = plain_id(item)
        self._outcomes.keep(nodeid, report)
        report.user_properties += properties(
            (measurement.result() for measurement in self._judges.reported(nodeid)),
            lambda text: without_secrets(text, os.environ),
        )
        beyond = self._outcomes.beyond_pytest(nodeid)
        if beyond:
            report.user_properties.append((PROBLEM, beyond))
        judge = self._judges.find(nodeid)
        if judge is not None and report.when == "teardown" and self._outcomes.passed(nodeid):
            try:
                self._notes.extend(judge.record())
            except BaselineUnusable as problem:
                report.outcome = "failed"
                report.longrepr = str(problem)
                self._outcomes.keep(nodeid, report)
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the failures that no test of the result tells of."""
        if report.failed and report.nodeid not in self._listed:
            self._unlisted_failures += 1

    @cached_property
    def _listed(self) -> frozenset[str]:
        """The tests that the result lists, by the ids that reports have."""
        return frozenset(item.nodeid for item in self._session.items if measures(item))

    # -- hooks: the session

    def pytest_report_collectionfinish(self, config: pytest.Config) -> list[str]:
        """Say on what and against what we measure."""
        header = self._account.header
        return [f"gpuserve: {header}"] if config.get_verbosity() >= 0 else []

    def pytest_keyboard_interrupt(self) -> None:
        """Say what was measured of the test that was cut short, and that it decides nothing."""
        self._cut_short = True
        for nodeid, measurements in self._judges.measurements().items():
            for measurement in measurements:
                if measurement.interrupted:
                    self._outcomes.interrupt(nodeid)
                    self._notes.append(f"{nodeid}: {measurement.so_far()}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Look for unused baselines, write the results, and give the device back."""
        try:
            self._settle_unused(session)
            closing = self.closing()
            stopped = self._cut_short or session.shouldfail or session.shouldstop
            complete = not stopped and {test.nodeid for test in closing.tests}.issuperset(measuring_ids(session.items))
            self._written = write_results(
                session,
                self._settings.outputs,
                closing,
                complete=complete,
                unlisted_failures=self._unlisted_failures,
            )
        finally:
            self._end()

    def _settle_unused(self, session: pytest.Session) -> None:
        if not all_was_run(session):
            return
        measured, remove = self._judges.measurements(), self._settings.update is Update.ALL
        try:
            settle_unused(asking_tests(session), measured, self._opened.ledger, remove=remove, note=self._note)
        except GpuserveError as problem:
            self._notes.append(f"ERROR: {problem}")
            session.exitstatus = pytest.ExitCode.USAGE_ERROR

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table, what was written, and what is left over."""
        print_closing(terminalreporter, self.closing(), self._written.lines)

    def pytest_unconfigure(self) -> None:
        """Remove the worktrees and give the device back, however the session ended."""
        self._end()

    def _end(self) -> None:
        with ExitStack() as stack:
            stack.callback(self._opened.close)
            stack.callback(self._equipment.close)
            # First of all, for after Ctrl-C a comparison's servers may still be up, and are looked at to their end.
            stack.callback(self._judges.close)


def _fail_unheld(judge: TestJudge | None) -> None:
    unheld = [] if judge is None else [headline(judgement) for judgement in judge.unheld()]
    if unheld:
        pytest.fail("\n".join(["a comparison does not hold, but nothing asserted it", *unheld]), pytrace=False)
