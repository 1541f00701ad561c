"""The one stateful object of a run that measures: it owns the device lock, the baselines and the results."""

from __future__ import annotations

from contextlib import ExitStack
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import pytest

from pytest_gpuserve.builds.checkout import read_revision
from pytest_gpuserve.compare.assertions import Measured, Ratio, Reference
from pytest_gpuserve.compare.comparison import TestComparison, WaitsForStart
from pytest_gpuserve.compare.measurement import Bench, Policy, may_screen
from pytest_gpuserve.compare.stored import compared
from pytest_gpuserve.errors import BaselineUnusable, GpuserveError
from pytest_gpuserve.experiment.shared_starts import SharedStarts
from pytest_gpuserve.plugin.collection import all_tests, all_was_run, measures, one_at_a_time, tolerances
from pytest_gpuserve.plugin.laps import Laps, share_starts
from pytest_gpuserve.plugin.opening import Equipment
from pytest_gpuserve.plugin.options import Update
from pytest_gpuserve.plugin.outcomes import Outcomes
from pytest_gpuserve.plugin.outputs import Written, write_outputs
from pytest_gpuserve.plugin.terminal import Durations, ProgressLines, print_closing
from pytest_gpuserve.process.secrets import masked
from pytest_gpuserve.report.attribution import attributed, other_changes
from pytest_gpuserve.report.explain import explain, headline
from pytest_gpuserve.report.names import with_texts
from pytest_gpuserve.report.next_step import code_before, steps_of
from pytest_gpuserve.report.result_json import properties
from pytest_gpuserve.report.results import SessionResult
from pytest_gpuserve.report.terminal import header_line
from pytest_gpuserve.store.baseline import stock_of
from pytest_gpuserve.store.kept import KeptFolder

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from pytest_gpuserve.plugin.options import Settings
    from pytest_gpuserve.report.results import RunResult
    from pytest_gpuserve.verdict.verdict import ReferenceKind


SESSIONS_ON_A_GPU: Final = 3
"""Sessions that a recording takes of each load. The screen and the prior of a comparison read their spread."""

SESSIONS_ON_CPU: Final = 1
"""On ``cpu`` neither reads it: one session gives the numbers that an entry shows, and that a later recording is held
against."""

NOTHING_CONCLUDED: Final = "INVALID: these loads prove nothing"

FOREIGN_SHARE: Final = 0.05
"""Share of a host's cores that others may always take: a large machine is never quite idle."""

_MODES: Final = {
    Update.NOTHING: "gating against",
    Update.MISSING: "recording missing entries in",
    Update.ALL: "recording into",
}


class GateSession:
    """The session, registered as a plugin if a test needs the device; fixtures use its parts. Raises as `Equipment`.

    Args:
        measuring: Whether tests will measure, so that they need the device for themselves.
    """

    def __init__(self, session: pytest.Session, settings: Settings, *, measuring: bool) -> None:
        self.settings = settings
        self.measuring = measuring
        self._outcomes = Outcomes()
        self._written = Written()
        self._goes_on = False
        self._notes: list[str] = []
        self._comparisons: dict[str, TestComparison] = {}
        self._told: set[tuple[str, str]] = set()
        self._progress = ProgressLines(session.config)
        self._starts = SharedStarts(self._outcomes.joined)
        self.equipment = Equipment(
            session.config,
            settings,
            measuring=measuring,
            logged=self._outcomes.logged,
            note=self._note,
            make_room=self._starts.make_room,
        )
        self.here = self.equipment.here
        mode = "against" if settings.side_by_side else settings.update.name
        self._durations = Durations(session.config, f"{self.here.device.name} {mode}")
        self.laps = Laps(session, end_starts=self._starts.end, settled=self._settled)
        try:
            self._bench = self._new_bench()
        except BaseException:
            self.equipment.close()
            raise

    def _new_bench(self) -> Bench:
        settings, reference_builds = self.settings, self.equipment.reference_builds
        remembered = self.equipment.remembered()
        return Bench(
            here=self.here,
            baselines=self.equipment.baseline_store,
            reference_builds=reference_builds,
            kept=None if remembered is None else KeptFolder(remembered, self._note),
            progress=self._progress.show,
            against=partial(reference_builds.find, revision=settings.against, python=settings.against_python)
            if settings.side_by_side
            else None,
            starts=self._starts,
        )

    def _note(self, line: str) -> None:
        if line not in self._notes:
            self._notes.append(line)

    # -- for the fixtures

    def begin_test(self, item: pytest.Item) -> TestComparison:
        """Make the comparison of a test; a repeated test continues with its sessions."""
        settings, device = self.settings, self.here.device
        self._progress.begin(item.nodeid)
        comparison = TestComparison(
            item.nodeid,
            bench=self._bench,
            policy=Policy(
                record_new=settings.update is not Update.NOTHING,
                record_all=settings.update is Update.ALL,
                record_sessions=settings.record_sessions
                or (SESSIONS_ON_A_GPU if may_screen(device) else SESSIONS_ON_CPU),
                reason=settings.reason,
                skip_missing=not settings.missing_fails,
                skip_inconclusive=not settings.inconclusive_fails,
                budget_seconds=settings.budget_seconds,
                foreign_cores=max(settings.foreign_cores, FOREIGN_SHARE * device.host.cores),
                stored_only=settings.stored_only,
                one_at_a_time=one_at_a_time(item, device.name),
                tolerances=tolerances(item, device.name),
            ),
            may_wait=self.laps.may_wait,
            earlier=self._comparisons.get(item.nodeid),
            on_look=self._progress.look,
        )
        self._comparisons[item.nodeid] = comparison
        return comparison

    def end_test(self, comparison: TestComparison) -> None:
        """End the loads of a test, and its servers unless the next test uses them.

        Unreported problems fail the test, including shutdown problems of earlier tests.
        """
        try:
            comparison.close()
        finally:
            if not self._goes_on:
                self._starts.end()
        _fail_invalid(self._untold_problems(comparison))

    def shown_path(self, path: Path) -> str:
        """Name of a file in baselines: relative to the project, or only its name if it is outside.

        With an absolute path every machine, and with a temporary one every run, would have another workload.
        """
        root = self.settings.root
        return path.relative_to(root).as_posix() if path.is_relative_to(root) else f".../{path.name}"

    # -- of all tests

    def _settled(self, item: pytest.Item) -> None:
        comparison = self._comparisons.get(item.nodeid)
        if comparison is not None:
            comparison.waits = False

    def _untold_problems(self, own: TestComparison | None = None) -> list[str]:
        """Unreported problems, each once: those of a test that ends, and late ones of earlier tests."""
        found = []
        for nodeid, comparison in self._comparisons.items():
            if comparison.waits:
                # A repeated test is INVALID in its repeat.
                continue
            for problem in comparison.unjudged_problems():
                if (nodeid, problem) not in self._told:
                    self._told.add((nodeid, problem))
                    found.append(problem if comparison is own else f"{nodeid}: {problem}")
        return found

    def _loads(self, nodeid: str) -> list[RunResult]:
        """Loads of a test, for reports."""
        comparison = self._comparisons.get(nodeid)
        return [] if comparison is None else [measurement.result() for measurement in comparison.measurements]

    @property
    def _baselines(self) -> str:
        """Place of the baselines, for people."""
        return str(self.settings.baseline_dir / self.here.device.name)

    @cached_property
    def _header(self) -> str:
        """Header lines: device and reference of the measurement."""
        equipment, settings, device = self.equipment, self.settings, self.here.device
        stored = not equipment.against_name
        return header_line(
            device.name,
            device.gpu.product if device.gpu else f"{device.host.cpu}, {device.host.cores} cores",
            f"{_MODES[settings.update]} {self._baselines}" if stored else f"side by side with {equipment.against_name}",
            budget_seconds=settings.budget_seconds,
            stock=stock_of(settings.baseline_dir / device.name) if stored and self.measuring else None,
            engine="" if equipment.engine is None else equipment.engine.name,
        )

    def closing(self) -> SessionResult:
        """Result of this run so far, without secrets; its texts decide nothing."""
        here, settings = self.here, self.settings
        stored = not settings.side_by_side
        result = SessionResult(
            gpu=msgspec.structs.asdict(here.device_record()),
            host=msgspec.to_builtins(here.host_record()),
            tests=self._outcomes.results(self._loads),
            notes=tuple(self._notes),
            places=(*([f"baselines: {self._baselines}"] if stored else []), *self.equipment.places()),
            header=self._header,
            at=here.occasion,
            commit=here.revision.commit,
            clean=here.revision.clean,
            software=dict(here.software),
            stored=stored,
            update=settings.update.option,
            against=self.equipment.against_name,
        )
        known: SessionResult = with_texts(result, masked)
        return known

    # -- hooks: a test

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Set the test that owns all servers that are started from now on."""
        self._outcomes.begin(item.nodeid)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        """End the running servers unless the next test uses them, even if this one never loaded them."""
        self._goes_on = nextitem is not None and share_starts(item, nextitem)
        try:
            result = yield
        finally:
            if not self._goes_on:
                self._starts.end()
        if not self._goes_on:
            _fail_invalid(self._untold_problems())
        if self._outcomes.passed(item.nodeid):
            # Fixtures may compare after the test's function has ended.
            _fail_unheld(self._comparisons.get(item.nodeid))
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self) -> Generator[None, object, object]:
        """Note that a test's function runs. That of unittest does not come here, and so cannot run again."""
        with self.laps.in_call():
            return (yield)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Check a test that has reached its end: no comparison may have failed unnoticed, or be undecided."""
        try:
            result = yield
        except WaitsForStart:
            # pytest and other plugins see this run as skipped; it is not reported.
            pytest.skip("not decided yet: the test goes on when its servers are started again")
        except pytest.skip.Exception:
            # Findings of the test so far must not be hidden by the missing verdict.
            _fail_unheld(self._comparisons.get(item.nodeid))
            raise
        comparison = self._comparisons.get(item.nodeid)
        if comparison is None or comparison.waits:
            return result
        _fail_unheld(comparison)
        if comparison.skip_reason():
            pytest.skip(comparison.skip_reason())
        return result

    def pytest_assertrepr_compare(self, left: object, right: object) -> list[str] | None:
        """Explain a failed comparison, headline first; None if it is not one of ours."""
        if isinstance(right, (Measured, Ratio)):
            left, right = right, left
        if not isinstance(left, (Measured, Ratio)) or not isinstance(right, (Reference, int, float)):
            return None
        loads = (measurement for comparison in self._comparisons.values() for measurement in comparison.measurements)
        measurement = next((measurement for measurement in loads if measurement.run is left.run), None)
        if measurement is None:
            return None
        kind: ReferenceKind = "duel" if isinstance(left, Ratio) else "limit"
        if isinstance(right, Reference):
            kind = "baseline"
        judgement, nodeid = measurement.answers[left.metric.name, kind], measurement.nodeid
        sessions = compared(measurement, judgement)
        revision = self.here.revision
        recording = self.settings.update is not Update.NOTHING
        before = "" if recording else code_before(revision.commit, clean=revision.clean)
        by_stored = kind == "baseline" and not self.settings.side_by_side
        lines = explain(
            judgement,
            other_changes(left.metric, *sessions),
            steps_of(judgement, nodeid, self.here.device.name, before=before) if by_stored else (),
            attributed(*sessions),
        )
        shown = [masked(line) for line in lines]
        self._outcomes.explained(shown)
        return shown

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Keep the outcome of a test that loads, and write its recording once it has passed to its end."""
        report = yield
        self._durations.add(report)
        if not measures(item):
            return report
        nodeid = item.nodeid
        self._outcomes.keep(nodeid, report)
        report.user_properties += properties(with_texts(load, masked) for load in self._loads(nodeid))
        comparison = self._comparisons.get(nodeid)
        if comparison is not None and report.when == "teardown" and self._outcomes.passed(nodeid):
            try:
                self._notes.extend(comparison.record())
            except BaselineUnusable as problem:
                report.outcome = "failed"
                report.longrepr = str(problem)
                self._outcomes.keep(nodeid, report)
        return report

    # -- hooks: the session

    def pytest_report_collectionfinish(self, config: pytest.Config, items: Sequence[pytest.Item]) -> list[str]:
        """Show device, reference, and the estimated duration."""
        warnings = [line for text in self.equipment.warnings for line in f"gpuserve: {text}".splitlines()]
        lines = [self._header, self._durations.line(items)] if config.get_verbosity() >= 0 else []
        return [*(f"gpuserve: {line}" for line in lines if line), *warnings]

    def pytest_keyboard_interrupt(self) -> None:
        """Show the state of the interrupted test, and that it decides nothing."""
        for nodeid, comparison in self._comparisons.items():
            for measurement in comparison.measurements:
                if measurement.interrupted:
                    self._outcomes.interrupt(nodeid)
                    self._notes.append(f"{nodeid}: {measurement.so_far()}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Look for unused baselines, write the results, and release the device."""
        self._settle_undecided(session)
        self._durations.keep()
        try:
            self._settle_unused(session)
            self._settle_checkout()
            for line in self.equipment.reference_builds.remarks():
                self._note(line)
            self._written = write_outputs(self.settings.outputs, self.closing())
            if self._written.missing:
                session.exitstatus = pytest.ExitCode.USAGE_ERROR
        finally:
            self._end()

    def _settle_undecided(self, session: pytest.Session) -> None:
        """Report tests that wait, and problems at the end of running servers; neither lets a run pass."""
        self._starts.end()
        undecided = [nodeid for nodeid, comparison in self._comparisons.items() if comparison.waits]
        late = self._untold_problems()
        for nodeid in undecided:
            self._outcomes.interrupt(nodeid)
            self._note(f"{nodeid}: not decided when the run ended; another run continues it")
        if late:
            self._note("; ".join([NOTHING_CONCLUDED, *late]))
        if (undecided or late) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _settle_unused(self, session: pytest.Session) -> None:
        """Report unused entries of the run's baseline files, or remove them."""
        if not all_was_run(session):
            return
        baselines, used = self.equipment.baseline_store, dict[Path, set[str]]()
        for comparison in self._comparisons.values():
            for measurement in comparison.measurements:
                used.setdefault(measurement.baseline_key.path, set()).add(measurement.baseline_key.entry)
        # A test that was skipped before it measured, or left out, leaves its file undecided.
        for item in all_tests(session):
            ran = self._comparisons.get(item.nodeid)
            if measures(item) and (ran is None or not ran.measurements):
                used.pop(baselines.key_of(item.nodeid, "").path, None)
        try:
            for path, entries in used.items():
                for unused in baselines.unused(path, entries):
                    if self.settings.update is Update.ALL:
                        baselines.remove(path, [unused])
                        self._note(f"{unused}: unused, removed from {path}")
                    else:
                        self._note(f"{unused}: unused in {path}; remove it with --baseline-update")
        except GpuserveError as problem:
            self._notes.append(f"ERROR: {problem}")
            session.exitstatus = pytest.ExitCode.USAGE_ERROR

    def _settle_checkout(self) -> None:
        """Forget the rounds if files changed during the run: later servers started from other files than the first."""
        kept = [memory for memory in self._bench.memories.values() if memory.rounds]
        if kept and read_revision(self.settings.root, self.settings.baseline_dir).content != self.here.revision.content:
            for memory in kept:
                memory.forget()
            self._note(
                "files of this checkout changed during the run, so its verdicts may be about both states, and a re-run"
                " begins anew. If the run itself wrote them, let git ignore them (git status)"
            )

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table, the recordings, and open points."""
        print_closing(terminalreporter, self.closing(), self._written)

    def pytest_unconfigure(self) -> None:
        """Remove the worktrees and release the device, after any end of the session."""
        self._end()

    def _end(self) -> None:
        with ExitStack() as stack:
            stack.callback(self.equipment.close)
            stack.callback(self._starts.end)
            # First, because after Ctrl-C a comparison's servers may still be up, and are watched to their end.
            for comparison in self._comparisons.values():
                stack.callback(comparison.close)


def _fail_invalid(problems: Sequence[str]) -> None:
    if problems:
        pytest.fail(masked("\n".join([NOTHING_CONCLUDED, *problems])), pytrace=False)


def _fail_unheld(comparison: TestComparison | None) -> None:
    unheld = [] if comparison is None else [headline(judgement) for judgement in comparison.unheld]
    if unheld:
        pytest.fail("\n".join(["a comparison does not hold, but no assert contains it", *unheld]), pytrace=False)
