"""The one stateful object of a run that measures: it owns the device lock, the baselines and the results."""

from __future__ import annotations

from contextlib import ExitStack
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final

import msgspec
import pytest

from pytest_gpuserve.compare.assertions import Measured, Ratio, Reference
from pytest_gpuserve.compare.context import Policy, WaitsForStart
from pytest_gpuserve.compare.judging import TestGate, attributed, other_changes
from pytest_gpuserve.compare.paired_runner import PairedRunner
from pytest_gpuserve.compare.screen import may_screen
from pytest_gpuserve.device.gpu import UNSUPPORTED
from pytest_gpuserve.device.host_reading import NoReading, read_host
from pytest_gpuserve.errors import BaselineUnusable, GpuserveError
from pytest_gpuserve.experiment.shared_starts import SharedStarts
from pytest_gpuserve.plugin.collection import (
    all_was_run,
    asking_tests,
    measures,
    settle_unused,
)
from pytest_gpuserve.plugin.laps import Laps, share_starts
from pytest_gpuserve.plugin.markers import one_at_a_time, tolerance_of, tolerances
from pytest_gpuserve.plugin.opening import Equipment, Folders, open_session
from pytest_gpuserve.plugin.options import Update
from pytest_gpuserve.plugin.outcomes import Outcomes
from pytest_gpuserve.plugin.outputs import Written
from pytest_gpuserve.plugin.progress import ProgressLines
from pytest_gpuserve.plugin.terminal import print_closing, write_results
from pytest_gpuserve.process.secrets import masked
from pytest_gpuserve.report.explain import explain, headline
from pytest_gpuserve.report.junit import PROBLEM, properties
from pytest_gpuserve.report.names import with_texts
from pytest_gpuserve.report.next_step import closer_command, code_before, command_for
from pytest_gpuserve.report.remarks import header_line
from pytest_gpuserve.report.results import SessionResult
from pytest_gpuserve.store.files import stock_of
from pytest_gpuserve.store.kept import KeptFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from pathlib import Path

    from pytest_gpuserve.compare.measurement import Measurement
    from pytest_gpuserve.plugin.opening import Opened
    from pytest_gpuserve.plugin.options import Settings
    from pytest_gpuserve.report.results import TestResult
    from pytest_gpuserve.verdict.verdict import ReferenceKind


def explained(left: object, right: object, *, gpu: str, stored: bool, before: str) -> list[str] | None:
    """Explain a failed comparison, headline first; None where it is none of ours.

    Args:
        stored: Whether ``baseline`` is a stored one.
        before: The revision beside which it can be looked at more closely; empty where there is none.
    """
    if not isinstance(left, (Measured, Ratio)) or not isinstance(right, (Reference, int, float)):
        return None
    judge = left.run.judge
    assert isinstance(judge, TestGate)
    kind: ReferenceKind = "duel" if isinstance(left, Ratio) else "limit"
    if isinstance(right, Reference):
        kind = "baseline"
    judgement = judge.judgement(left.run, left.metric, kind)
    compared = judge.compared(left.run, judgement)
    by_stored = kind == "baseline" and stored
    lines = explain(
        judgement,
        other_changes(left.metric, *compared),
        command_for(judgement, judge.nodeid, gpu, stored=by_stored),
        attributed(*compared),
        closer=closer_command(judgement, judge.nodeid, gpu, before=before) if by_stored else "",
    )
    return [masked(line) for line in lines]


class Account:
    """Makes the header and the result of a session.

    Args:
        measuring: Whether tests will measure.
    """

    def __init__(
        self,
        session: pytest.Session,
        opened: Opened,
        folders: Folders,
        *,
        measuring: bool,
    ) -> None:
        self._session = session
        self._opened = opened
        self._settings = opened.settings
        self._folders = folders
        self._measuring = measuring

    @cached_property
    def header(self) -> str:
        """On what and against what is measured; where nobody asks for it at the beginning, as for a report only."""
        opened, settings, device = self._opened, self._settings, self._opened.here.device
        product = device.gpu.product if device.gpu else f"{device.host.cpu}, {device.host.cores} cores"
        mode = {
            Update.NOTHING: "gating against",
            Update.MISSING: "recording what is missing in",
            Update.ALL: "recording into",
        }[settings.update]
        what = f"{mode} {self._baselines}"
        if opened.against_name:
            what = f"side by side with {opened.against_name}"
        return header_line(
            device.name,
            product,
            what,
            budget_seconds=settings.budget_seconds,
            stock=""
            if opened.against_name or not self._measuring
            else str(stock_of(settings.baseline_dir / device.name)),
            engine="" if opened.engine is None else opened.engine.name,
        )

    def result(self, tests: tuple[TestResult, ...], notes: Iterable[str]) -> SessionResult:
        """What the session has to say so far."""
        here, settings = self._opened.here, self._settings
        gpu, stored = here.device.gpu, not settings.side_by_side
        return SessionResult(
            gpu={
                **msgspec.to_builtins(here.device_record()),
                **({"unknown": dict(gpu.unknown)} if gpu is not None else {}),
            },
            host=msgspec.to_builtins(here.host_record()),
            tests=tests,
            notes=tuple(notes),
            places=(
                *self._unknown_facts(),
                *([f"baselines: {self._baselines}"] if stored else []),
                *self._folders.places(),
            ),
            header=self.header,
            at=here.occasion,
            commit=here.revision.commit,
            clean=here.revision.clean,
            software=dict(here.software),
            stored=stored,
            update=settings.update.option,
            against=self._opened.against_name,
        )

    @property
    def _baselines(self) -> str:
        """Where they are, as people call it."""
        return str(self._settings.baseline_dir / self._opened.here.device.name)

    def _unknown_facts(self) -> list[str]:
        """What of the GPU could not be read though it should have been: a rule may have needed it."""
        device = self._opened.here.device
        unknown = {} if device.gpu is None else device.gpu.unknown
        return [
            f"unknown of {device.name}: {fact}: {reason}" for fact, reason in unknown.items() if reason != UNSUPPORTED
        ]


NOTHING_CONCLUDED: Final = "INVALID: nothing can be concluded from these loads"

FOREIGN_SHARE: Final = 0.05
"""Share of a host's cores that others may always take: a large machine is never quite idle."""


class TestGates:
    """Makes a judge for each test that loads, and keeps it.

    Args:
        may_wait: Whether the test under way may end undecided, to run again on the next start of its servers.
    """

    def __init__(
        self, opened: Opened, paired_runner: PairedRunner, progress: ProgressLines, may_wait: Callable[[], bool]
    ) -> None:
        self._settings = opened.settings
        self._here = opened.here
        self._baseline_store = opened.baseline_store
        self._paired_runner = paired_runner
        self._progress = progress
        self._may_wait = may_wait
        self._told: set[tuple[str, str]] = set()
        self._judges: dict[str, TestGate] = {}

    def begin(self, item: pytest.Item) -> TestGate:
        """Make the judge of a test; one that is run again goes on with the sessions that it has."""
        nodeid = item.nodeid
        self._progress.begin(nodeid)
        set_by_markers = tolerances(item, self._here.device.name)
        judge = TestGate(
            nodeid,
            baseline_store=self._baseline_store,
            paired_runner=self._paired_runner,
            policy=self._policy(item),
            tolerance_of=lambda metric: tolerance_of(metric, set_by_markers),
            may_wait=self._may_wait,
            earlier=self._judges.get(nodeid),
            on_look=self._progress.look,
        )
        self._judges[nodeid] = judge
        return judge

    def find(self, nodeid: str) -> TestGate | None:
        """The judge of a test; None where it has none so far."""
        return self._judges.get(nodeid)

    def unjudged_problems(self, own: TestGate | None = None) -> list[str]:
        """Problems that no comparison has named, each once: of a test that ends, and late ones of those before it."""
        found = []
        for nodeid, judge in self._judges.items():
            if judge.waits:
                # It runs again, and is INVALID then.
                continue
            for problem in judge.unjudged_problems():
                if (nodeid, problem) not in self._told:
                    self._told.add((nodeid, problem))
                    found.append(problem if judge is own else f"{nodeid}: {problem}")
        return found

    def waiting(self) -> list[str]:
        """Tests that have ended undecided, and have not run again."""
        return [nodeid for nodeid, judge in self._judges.items() if judge.waits]

    def measurements(self) -> dict[str, list[Measurement]]:
        """The loads that tests asked for, by their ids."""
        return {nodeid: judge.measurements for nodeid, judge in self._judges.items()}

    def measurements_of(self, nodeid: str) -> list[Measurement]:
        """The loads that a test asked for."""
        judge = self._judges.get(nodeid)
        return [] if judge is None else judge.measurements

    def close(self) -> None:
        """End the servers of comparisons that are still up, as after Ctrl-C; may be called again."""
        with ExitStack() as stack:
            for judge in self._judges.values():
                stack.callback(judge.close)

    def _policy(self, item: pytest.Item) -> Policy:
        settings, device = self._settings, self._here.device
        return Policy(
            record_new=settings.update is not Update.NOTHING,
            record_all=settings.update is Update.ALL,
            record_sessions=settings.record_sessions,
            reason=settings.reason,
            skip_missing=not settings.missing_fails,
            skip_inconclusive=not settings.inconclusive_fails,
            budget_seconds=settings.budget_seconds,
            foreign_cores=max(settings.foreign_cores, FOREIGN_SHARE * device.host.cores),
            stored_only=settings.stored_only,
            one_at_a_time=one_at_a_time(item, device.name),
            named=frozenset(tolerances(item, device.name)),
        )


class GateSession:
    """Registered as a plugin when a test needs the device; its parts are what fixtures ask. Raises as `open_session`.

    Args:
        measuring: Whether tests will measure, so that the device must be ours alone.
    """

    def __init__(self, session: pytest.Session, settings: Settings, *, measuring: bool) -> None:
        self.settings = settings
        self._session = session
        self._opened = open_session(session.config, settings, measuring=measuring)
        self.here = self._opened.here
        self.measuring = measuring
        self._outcomes = Outcomes()
        self._written = Written()
        self._goes_on = False
        self._notes = list(self._opened.notes)
        self.folders = Folders(settings, session.config)
        self._starts = SharedStarts(self._outcomes.joined)
        self.equipment = Equipment(
            self.here.device,
            engine=self._opened.engine,
            logs=self.folders.logs,
            logged=self._outcomes.logged,
            note=self._note,
            make_room=self._starts.make_room,
        )
        self._account = Account(session, self._opened, self.folders, measuring=measuring)
        self.laps = Laps(session, end_starts=self._starts.end, settled=self._settled)
        try:
            progress = ProgressLines(session.config)
            paired_runner = self._new_paired_runner(progress)
            self.gates = TestGates(self._opened, paired_runner, progress, self.laps.may_wait)
        except BaseException:
            self._opened.lock.release()
            raise

    def _new_paired_runner(self, progress: ProgressLines) -> PairedRunner:
        settings, reference_builds, remembered = (
            self.settings,
            self._opened.reference_builds,
            self.folders.remembered(),
        )
        return PairedRunner(
            here=self.here,
            reference_builds=reference_builds,
            kept=None if remembered is None else KeptFolder(remembered, self._note),
            progress=progress,
            read_host=self._read_host,
            against=partial(reference_builds.find, revision=settings.against, python=settings.against_python)
            if settings.side_by_side
            else None,
            starts=self._starts,
        )

    def _read_host(self) -> float | None:
        """How fast the host is, where stored numbers may count."""
        if not may_screen(self.here.device):
            return None
        try:
            return read_host()
        except NoReading as problem:
            self._note(f"{problem.summary}: {problem.found}")
            return None

    def _note(self, line: str) -> None:
        if line not in self._notes:
            self._notes.append(line)

    # -- for the fixtures

    def end_test(self, judge: TestGate) -> list[str]:
        """End the loads of a test, and its servers where the next test has no use for them.

        Returns:
            Problems that nobody has been told of; also those of earlier tests that showed only at their servers' end.
        """
        try:
            judge.close()
        finally:
            if not self._goes_on:
                self._starts.end()
        return self.gates.unjudged_problems(judge)

    def _settled(self, item: pytest.Item) -> None:
        judge = self.gates.find(item.nodeid)
        if judge is not None:
            judge.waits = False

    def shown_path(self, path: Path) -> str:
        """A file as baselines name it: relative to the project, or by its name alone where it lies outside.

        An absolute path would make another workload of it on every machine, and of a temporary one in every run.
        """
        root = self.settings.root
        return path.relative_to(root).as_posix() if path.is_relative_to(root) else f".../{path.name}"

    def closing(self) -> SessionResult:
        """What this run has to say so far."""
        tests = self._outcomes.results(self.gates.measurements_of)
        return self._account.result(tests, self._notes)

    # -- hooks: a test

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Know whose servers are started from here on."""
        self._outcomes.begin(item.nodeid)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        """End the servers that run where the next test has no use for them, also if this one never came to a load."""
        self._goes_on = nextitem is not None and share_starts(item, nextitem)
        try:
            result = yield
        finally:
            if not self._goes_on:
                self._starts.end()
        late = [] if self._goes_on else self.gates.unjudged_problems()
        if late:
            pytest.fail(masked("\n".join([NOTHING_CONCLUDED, *late])), pytrace=False)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> Generator[None, object, object]:
        """A test that came to its end has not passed yet: nothing in it may have failed unnoticed, or be undecided."""
        try:
            with self.laps.in_call():
                result = yield
        except WaitsForStart:
            # To others this run of it is one that was skipped; nobody is told of it.
            pytest.skip("not decided yet: it goes on when its servers are started again")
        except pytest.skip.Exception:
            # What the test has found until then must not hide behind what it lacks.
            _fail_unheld(self.gates.find(pyfuncitem.nodeid))
            raise
        judge = self.gates.find(pyfuncitem.nodeid)
        if judge is None or judge.waits:
            return result
        _fail_unheld(judge)
        if judge.skip_reason():
            pytest.skip(judge.skip_reason())
        return result

    def pytest_assertrepr_compare(self, left: object, right: object) -> list[str] | None:
        """Explain a failed comparison."""
        revision = self.here.revision
        recording = self.settings.update is not Update.NOTHING
        lines = explained(
            left,
            right,
            gpu=self.here.device.name,
            stored=not self.settings.side_by_side,
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
        nodeid = item.nodeid
        self._outcomes.keep(nodeid, report)
        report.user_properties += properties(
            with_texts(measurement.result(), masked) for measurement in self.gates.measurements_of(nodeid)
        )
        beyond = self._outcomes.beyond_pytest(nodeid)
        if beyond:
            report.user_properties.append((PROBLEM, beyond))
        judge = self.gates.find(nodeid)
        if judge is not None and report.when == "teardown" and self._outcomes.passed(nodeid):
            try:
                self._notes.extend(judge.record())
            except BaselineUnusable as problem:
                report.outcome = "failed"
                report.longrepr = str(problem)
                self._outcomes.keep(nodeid, report)
        return report

    # -- hooks: the session

    def pytest_report_collectionfinish(self, config: pytest.Config) -> list[str]:
        """Say on what and against what we measure."""
        header = self._account.header
        warnings = [line for text in self._opened.warnings for line in f"gpuserve: {text}".splitlines()]
        return [*([f"gpuserve: {header}"] if config.get_verbosity() >= 0 else []), *warnings]

    def pytest_keyboard_interrupt(self) -> None:
        """Say what was measured of the test that was cut short, and that it decides nothing."""
        for nodeid, measurements in self.gates.measurements().items():
            for measurement in measurements:
                if measurement.interrupted:
                    self._outcomes.interrupt(nodeid)
                    self._notes.append(f"{nodeid}: {measurement.so_far()}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Look for unused baselines, write the results, and give the device back."""
        self._settle_undecided(session)
        try:
            self._settle_unused(session)
            for line in self._opened.reference_builds.remarks():
                self._note(line)
            closing = self.closing()
            self._written = write_results(session, self.settings.outputs, closing)
        finally:
            self._end()

    def _settle_undecided(self, session: pytest.Session) -> None:
        """Tell of tests that wait, and of trouble at the end of servers that still ran; neither lets a run pass."""
        self._starts.end()
        undecided, late = self.gates.waiting(), self.gates.unjudged_problems()
        for nodeid in undecided:
            self._outcomes.interrupt(nodeid)
            self._note(f"{nodeid}: not decided when the run ended; run it again, it goes on where it was")
        if late:
            self._note("; ".join([NOTHING_CONCLUDED, *late]))
        if (undecided or late) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _settle_unused(self, session: pytest.Session) -> None:
        if not all_was_run(session):
            return
        measured, remove = self.gates.measurements(), self.settings.update is Update.ALL
        try:
            settle_unused(asking_tests(session), measured, self._opened.baseline_store, remove=remove, note=self._note)
        except GpuserveError as problem:
            self._notes.append(f"ERROR: {problem}")
            session.exitstatus = pytest.ExitCode.USAGE_ERROR

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table, what was written, and what is left over."""
        print_closing(terminalreporter, self.closing(), self._written)

    def pytest_unconfigure(self) -> None:
        """Remove the worktrees and give the device back, however the session ended."""
        self._end()

    def _end(self) -> None:
        with ExitStack() as stack:
            stack.callback(self._opened.close)
            stack.callback(self.equipment.close)
            stack.callback(self._starts.end)
            # First of all, for after Ctrl-C a comparison's servers may still be up, and are looked at to their end.
            stack.callback(self.gates.close)


def _fail_unheld(judge: TestGate | None) -> None:
    unheld = [] if judge is None else [headline(judgement) for judgement in judge.unheld()]
    if unheld:
        pytest.fail("\n".join(["a comparison does not hold, but nothing asserted it", *unheld]), pytrace=False)
