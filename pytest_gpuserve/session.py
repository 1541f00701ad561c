"""The one stateful object of a run that measures: it owns the device lock, the baselines and the results."""

from __future__ import annotations

import os
import re
import shlex
import sys
from contextlib import ExitStack
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final

import msgspec
import pytest

from pytest_gpuserve.closing import print_closing, write_results
from pytest_gpuserve.comparisons import compared_metrics, planned_comparisons
from pytest_gpuserve.device import DeviceLock, read_software
from pytest_gpuserve.device.card import UNSUPPORTED
from pytest_gpuserve.device.telemetry import Sampling
from pytest_gpuserve.devices import find_devices, take_device, waiting
from pytest_gpuserve.errors import BaselineUnusable, GpuserveError
from pytest_gpuserve.load.ray.address import ClusterAddress
from pytest_gpuserve.load.ray.source import RayEngine
from pytest_gpuserve.load.source import LOCAL
from pytest_gpuserve.markers import leave_out, one_at_a_time, tolerance_of, tolerances
from pytest_gpuserve.options import ENGINE_OPTION, MEASURING, Settings, Update, plain_id
from pytest_gpuserve.outcomes import Outcomes
from pytest_gpuserve.outputs import Written
from pytest_gpuserve.process.module import module_command
from pytest_gpuserve.process.secrets import secret_headers, without_secrets
from pytest_gpuserve.progress import ProgressLine, say
from pytest_gpuserve.report.commands import command_for
from pytest_gpuserve.report.explain import explain, headline
from pytest_gpuserve.report.header import Header
from pytest_gpuserve.report.junit import properties
from pytest_gpuserve.report.results import SessionResult
from pytest_gpuserve.servers.instance import Instance, started
from pytest_gpuserve.servers.remote import Remote, reached
from pytest_gpuserve.sharding import part_of, tests_of_all_runners
from pytest_gpuserve.store.elsewhere.opening import shared_files
from pytest_gpuserve.store.files import LocalFiles
from pytest_gpuserve.store.history import History
from pytest_gpuserve.store.stock import stock_of
from pytest_gpuserve.trial.arena import Arena
from pytest_gpuserve.trial.assertions import Measured, Reference
from pytest_gpuserve.trial.changes import attributed, other_changes
from pytest_gpuserve.trial.claims import Claims
from pytest_gpuserve.trial.dueling import Ratio
from pytest_gpuserve.trial.here import Here
from pytest_gpuserve.trial.judging import TestJudge
from pytest_gpuserve.trial.ledger import Ledger
from pytest_gpuserve.trial.opponents import Opponents
from pytest_gpuserve.trial.policy import Policy
from pytest_gpuserve.trial.provenance import read_revision
from pytest_gpuserve.trial.telemeter import NOBODY, Telemeter
from pytest_gpuserve.units import utc_now
from pytest_gpuserve.unused import all_was_run, settle_unused

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from pytest_gpuserve.device import Device, Holder
    from pytest_gpuserve.gate.verdict import ReferenceKind
    from pytest_gpuserve.load.source import EngineSource
    from pytest_gpuserve.servers.base import Ask, ServerKind
    from pytest_gpuserve.store.files import BaselineFiles
    from pytest_gpuserve.trial.handle import Starter
    from pytest_gpuserve.trial.measurement import Measurement

FOREIGN_SHARE: Final = 0.05
"""Share of a host's cores that others may always take: a large machine is never quite idle."""

OFFLINE: Final = "baselines as of {}, when they were fetched last: --baseline-offline asks for no newer ones"

LOG_NAME: Final = re.compile(r"[^A-Za-z0-9_.-]+")


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
        devices = find_devices(settings)
        self._opponents = Opponents(settings.root)
        # Before a device is waited for, and long before the first test: git may not know the revision.
        self._against_name = (
            self._opponents.name_of(revision=settings.against, python=settings.against_python) if measuring else ""
        )
        self._engine = _engine_on_ray(settings, measuring=measuring)
        self._files, as_of = _baseline_files(settings, devices[0].name, measuring=measuring)
        software, revision = read_software(), read_revision(settings.root, settings.baseline_dir)
        device, self._lock = self._take_device(devices, measuring=measuring)
        self.here = Here(device, software, revision, occasion=utc_now())
        self._ledger = Ledger(settings.baseline_dir / device.name, self.here, self._files)
        self._judges: dict[str, TestJudge] = {}
        self._outcomes = Outcomes()
        self._written = Written()
        # What could not be collected.
        self._unlisted_failures = session.testsfailed
        self._cut_short = False
        self._notes: list[str] = [OFFLINE.format(as_of)] if as_of else []
        self._log_folder: Path | None = None
        self._progress = ProgressLine(session.config, rewrites=not settings.ci)
        self._starts = 0
        self._artifacts: Path | None = None
        # Before comparisons are counted: those of a test that is left out are not made.
        leave_out(tests_of_all_runners(session), is_gpu=device.is_gpu, full=settings.full)
        # A worker of pytest-xdist collects all tests too, so that it reckons with the comparisons of all workers. What
        # others have upheld it does not know: its claims need be surer than they had to be, never less sure.
        self._claims = Claims(planned_comparisons(tests_of_all_runners(session)))
        self._telemeter = NOBODY
        self.measuring = measuring
        try:
            self._arena = self._make_arena(session)
        except BaseException:
            self._lock.release()
            raise

    def _take_device(self, devices: Sequence[Device], *, measuring: bool) -> tuple[Device, DeviceLock]:
        """Of devices alike a free one, for us alone; without taking its lock if we do not measure."""
        if not measuring:
            return devices[0], DeviceLock(devices[0].lock_key, command=shlex.join(sys.argv))
        return take_device(
            devices,
            wait_seconds=self._settings.lock_wait_seconds,
            on_wait=self._say_waiting,
            command=getattr(self._session.config, "workerinput", {}).get("mainargv", sys.argv),
        )

    def _make_arena(self, session: pytest.Session) -> Arena:
        settings = self._settings
        # Absent under `-p no:cacheprovider`.
        cache: pytest.Cache | None = getattr(session.config, "cache", None)
        against = settings.against is not None or settings.against_python is not None
        return Arena(
            here=self.here,
            opponents=self._opponents,
            # Without pytest's cache there is nowhere to remember, and `--cache-clear` has to forget.
            history=None if cache is None else History(cache.mkdir("gpuserve")),
            claims=self._claims,
            note=self._note,
            progress=self._progress,
            against=partial(self._opponents.find, revision=settings.against, python=settings.against_python)
            if against
            else None,
        )

    def _note(self, line: str) -> None:
        if line not in self._notes:
            self._notes.append(line)

    # -- for the fixtures

    def judge(self, item: pytest.Item) -> TestJudge:
        """The judge of a test; one that is run again goes on with the sessions that it has."""
        settings = self._settings
        nodeid = plain_id(item)
        self._progress.begin(nodeid)
        set_by_markers = tolerances(item, self.here.device.name)
        foreign_skips = self.here.device.card is None and not settings.ci and not settings.missing_asked
        judge = TestJudge(
            nodeid,
            ledger=self._ledger,
            arena=self._arena,
            policy=Policy(
                record_new=settings.update is not Update.NOTHING,
                record_all=settings.update is Update.ALL,
                record_sessions=settings.record_sessions,
                reason=settings.reason,
                skip_missing=not settings.missing_fails,
                skip_foreign=foreign_skips,
                skip_inconclusive=not settings.inconclusive_fails,
                budget_seconds=settings.budget_seconds,
                foreign_cores=max(settings.foreign_cores, FOREIGN_SHARE * self.here.host.cores),
                confirm=settings.confirm,
                one_at_a_time=one_at_a_time(item, self.here.device.name),
                metrics=compared_metrics(item),
            ),
            tolerance_of=lambda metric: tolerance_of(metric, set_by_markers),
            card=self.here.device.card,
            earlier=self._judges.get(nodeid),
            progress=self._progress,
            looked=self._progress.look,
            told=lambda label, judgement: item.ihook.pytest_gpuserve_judged(
                nodeid=nodeid, label=label, judgement=judgement
            ),
        )
        self._judges[nodeid] = judge
        return judge

    def starter(self, tmp_path_factory: pytest.TempPathFactory, start_timeout_seconds: float) -> Starter:
        """What starts servers on this session's device, each with a log file of its own."""

        def start(kind: ServerKind, ask: Ask) -> AbstractContextManager[Instance]:
            self._starts += 1
            log = self._logs(tmp_path_factory) / f"{self._starts:03d}-{LOG_NAME.sub('-', kind.name)}.log"
            if isinstance(kind, Remote):
                return reached(kind, ask, timeout_seconds=start_timeout_seconds)
            return started(
                kind,
                ask,
                environment=self.here.device.environment(),
                log=log,
                start_timeout_seconds=start_timeout_seconds,
                launched=lambda given: self._outcomes.logged(log, {**given, **secret_headers(ask.headers)}),
            )

        return start

    def telemeter(self, tmp_path_factory: pytest.TempPathFactory) -> Telemeter:
        """Who looks at the card while this session loads servers on it: from the first load to the session's end."""
        card = self.here.device.card
        if self._telemeter is NOBODY and card is not None:
            lacks_ecc = card.ecc is False or card.unknown.get("ecc") == UNSUPPORTED
            self._telemeter = Telemeter(
                [card.uuid],
                lambda: Sampling(
                    [card.uuid],
                    log=self._logs(tmp_path_factory) / "telemetry.log",
                    command=module_command("pytest_gpuserve.device.sampler"),
                ),
                self._note,
                without_ecc=[card.uuid] if lacks_ecc else [],
            )
        return self._telemeter

    def engine_source(self, tmp_path_factory: pytest.TempPathFactory) -> EngineSource:
        """Where the engines of all loads come from."""
        return LOCAL if self._engine is None else self._engine.source(self._logs(tmp_path_factory) / "ray.log")

    @property
    def full(self) -> bool:
        """Whether the published sizes are wanted."""
        return self._settings.full

    def artifacts(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """The folder for what tests make; it is there."""
        if self._artifacts is None:
            cache: pytest.Cache | None = getattr(self._session.config, "cache", None)
            if self._settings.artifacts_dir is not None:
                self._artifacts = self._settings.artifacts_dir
                self._artifacts.mkdir(parents=True, exist_ok=True)
            elif cache is not None:
                self._artifacts = cache.mkdir("gpuserve-artifacts")
            else:
                self._artifacts = tmp_path_factory.mktemp("gpuserve-artifacts")
        return self._artifacts

    def _logs(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        if self._log_folder is None:
            self._log_folder = tmp_path_factory.mktemp("gpuserve-logs")
        return self._log_folder

    def shown_path(self, path: Path) -> str:
        """A file as baselines name it: relative to the project, or by its name alone where it lies outside.

        An absolute path would make another workload of it on every machine, and of a temporary one in every run.
        """
        root = self._settings.root
        return path.relative_to(root).as_posix() if path.is_relative_to(root) else f".../{path.name}"

    def closing(self) -> SessionResult:
        """What this run has to say so far."""
        card = self.here.device.card
        places = self._unknown_facts()
        if self._arena.against is None:
            places.append(f"baselines: {self._ledger.shown(self._settings.baseline_dir / self.here.device.name)}")
        if self._log_folder is not None:
            places.append(f"server logs: {self._log_folder}")
        if self._artifacts is not None and self._artifacts.is_dir() and any(self._artifacts.iterdir()):
            places.append(f"tables and charts: {self._artifacts}")
        return SessionResult(
            gpu={
                **msgspec.to_builtins(self.here.device_record()),
                **({"unknown": dict(card.unknown)} if card is not None else {}),
            },
            host=msgspec.to_builtins(self.here.host_record()),
            tests=self._outcomes.results(self._measurements),
            notes=tuple(self._notes),
            places=tuple(places),
            header=self._header,
            at=self.here.occasion,
            commit=self.here.revision.commit,
            clean=self.here.revision.clean,
            software=dict(self.here.software),
            stored=self._arena.against is None,
            update=self._settings.update.option,
            shard=None if (part := part_of(self._session.config)) is None else (part.number, part.of),
            planned=planned_comparisons(self._session.items),
            among=self._claims.planned,
            dealt=() if part is None else tuple(_measuring(tests_of_all_runners(self._session))),
            against=self._against_name,
        )

    # -- hooks

    def pytest_report_collectionfinish(self, config: pytest.Config) -> list[str]:
        """Say on what and against what we measure."""
        header = self._header
        return [f"gpuserve: {header}"] if config.get_verbosity() >= 0 else []

    @cached_property
    def _header(self) -> str:
        """On what and against what is measured; where nobody asks for it at the beginning, as for a report only."""
        settings, device = self._settings, self.here.device
        product = device.card.product if device.card else f"{device.host.cpu}, {device.host.cores} cores"
        mode = {
            Update.NOTHING: "gating against",
            Update.MISSING: "recording what is missing in",
            Update.ALL: "recording into",
        }[settings.update]
        what = f"{mode} {self._ledger.shown(settings.baseline_dir / device.name)}"
        if self._against_name:
            what = f"side by side with {self._against_name}"
        header = Header(
            device=device.name,
            product=product,
            mode=what,
            budget_seconds=settings.budget_seconds,
            comparisons=planned_comparisons(self._session.items),
            stock=""
            if self._against_name or not self.measuring
            else str(stock_of(settings.baseline_dir / device.name)),
            engine="" if self._engine is None else str(self._engine),
        )
        return str(header)

    def pytest_assertrepr_compare(self, left: object, right: object) -> list[str] | None:
        """Explain a failed comparison."""
        if not isinstance(left, (Measured, Ratio)) or not isinstance(right, (Reference, int, float)):
            return None
        judge = left.run.judge
        assert isinstance(judge, TestJudge)
        kind: ReferenceKind = "duel" if isinstance(left, Ratio) else "limit"
        if isinstance(right, Reference):
            kind = right.kind
        judgement = judge.judgement(left.run, left.metric, kind)
        compared = judge.compared(left.run, judgement)
        lines = explain(
            judgement,
            other_changes(left.metric, *compared),
            command_for(
                judgement,
                judge.nodeid,
                self.here.device.name,
                stored=kind == "baseline" and self._arena.against is None,
            ),
            attributed(*compared),
        )
        return [without_secrets(line, os.environ) for line in lines]

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> Generator[None, object, object]:
        """A test that came to its end has not passed yet: nothing in it may have failed unnoticed, or be undecided."""
        try:
            result = yield
        except BaseException as problem:
            judge = self._judges.get(plain_id(pyfuncitem))
            if judge is not None:
                # By Ctrl-C it has no outcome, and nothing more is told of it.
                judge.ended_early = not isinstance(problem, (KeyboardInterrupt, pytest.exit.Exception))
            if isinstance(problem, pytest.skip.Exception):
                # What the test has found until then must not hide behind what it lacks.
                _fail_unheld(judge)
            raise
        judge = self._judges.get(plain_id(pyfuncitem))
        if judge is None:
            return result
        _fail_unheld(judge)
        if judge.skip_reason():
            pytest.skip(judge.skip_reason())
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Keep the outcome of a test that loads, and write what a recording measured once it has passed to its end."""
        report = yield
        if MEASURING not in getattr(item, "fixturenames", ()):
            return report
        nodeid = plain_id(item)
        self._outcomes.keep(nodeid, report)
        report.user_properties += properties(
            (measurement.result() for measurement in self._measurements(nodeid)),
            lambda text: without_secrets(text, os.environ),
        )
        judge = self._judges.get(nodeid)
        if judge is not None and report.when == "teardown" and self._outcomes.passed(nodeid):
            try:
                self._notes.extend(judge.record())
            except BaselineUnusable as problem:
                report.outcome = "failed"
                report.longrepr = str(problem)
                self._outcomes.keep(nodeid, report)
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Know whose servers are started from here on."""
        self._outcomes.begin(plain_id(item))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the failures that no test of the result tells of."""
        if report.failed and report.nodeid not in self._listed:
            self._unlisted_failures += 1

    @cached_property
    def _listed(self) -> frozenset[str]:
        """The tests that the result lists, by the ids that reports have."""
        return frozenset(item.nodeid for item in self._session.items if MEASURING in getattr(item, "fixturenames", ()))

    def pytest_keyboard_interrupt(self) -> None:
        """Say what was measured of the test that was cut short, and that it decides nothing."""
        self._cut_short = True
        for nodeid, judge in self._judges.items():
            for measurement in judge.measurements:
                if measurement.interrupted:
                    self._outcomes.interrupt(nodeid)
                    self._notes.append(f"{nodeid}: {measurement.so_far()}")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table, what was written, and what is left over."""
        print_closing(terminalreporter, self.closing(), self._written.lines)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Look for unused baselines, write the results, and give the device back."""
        try:
            self._settle_unused(session)
            closing = self.closing()
            stopped = self._cut_short or session.shouldfail or session.shouldstop
            complete = not stopped and {test.nodeid for test in closing.tests}.issuperset(_measuring(session.items))
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
        measured = {nodeid: judge.measurements for nodeid, judge in self._judges.items()}
        remove = self._settings.update is Update.ALL
        try:
            settle_unused(session.items, measured, self._ledger, remove=remove, note=self._note)
        except GpuserveError as problem:
            self._notes.append(f"ERROR: {problem}")
            session.exitstatus = pytest.ExitCode.USAGE_ERROR

    def pytest_unconfigure(self) -> None:
        """Remove the worktrees and give the device back, however the session ended."""
        self._end()

    def _end(self) -> None:
        with ExitStack() as stack:
            stack.callback(self._lock.release)
            stack.callback(self._files.close)
            stack.callback(self._opponents.close)
            stack.callback(self._telemeter.close)
            if self._engine is not None:
                stack.callback(self._engine.close)
            # First of all, for after Ctrl-C a comparison's servers may still be up, and are looked at to their end.
            for judge in self._judges.values():
                stack.callback(judge.close)

    # -- the pieces

    def _unknown_facts(self) -> list[str]:
        """What of the card could not be read though it should have been: a rule may have needed it."""
        card = self.here.device.card
        unknown = {} if card is None else card.unknown
        return [
            f"unknown of {self.here.device.name}: {fact}: {reason}"
            for fact, reason in unknown.items()
            if reason != UNSUPPORTED
        ]

    def _measurements(self, nodeid: str) -> list[Measurement]:
        judge = self._judges.get(nodeid)
        return [] if judge is None else judge.reported

    def _say_waiting(self, holders: Sequence[Holder], wait_seconds: float) -> None:
        say(self._session.config, waiting(holders, wait_seconds))


def _measuring(items: Iterable[pytest.Item]) -> Iterator[str]:
    """The ids of those that measure."""
    return (plain_id(item) for item in items if MEASURING in getattr(item, "fixturenames", ()))


def _baseline_files(settings: Settings, device: str, *, measuring: bool) -> tuple[BaselineFiles, str]:
    """Where the baselines of this session are, and of when they are where that is not now.

    A storage is not asked for a session that measures nothing.

    Raises:
        UsageProblem: The storage that they are in does not let them be read, or written where they are to be.
    """
    if settings.baseline_address is None:
        return LocalFiles(), ""
    updates = settings.update is not Update.NOTHING
    files = shared_files(
        settings.baseline_address,
        device,
        needed=measuring,
        updates=updates,
        offline=settings.baseline_offline,
    )
    return files, files.as_of


def _engine_on_ray(settings: Settings, *, measuring: bool) -> RayEngine | None:
    """What makes the loads on Ray, if something is to; checked, if there will be loads.

    Raises:
        UsageProblem: Ray is not installed, or the cluster cannot be joined or runs other versions.
    """
    choice = settings.load_engine
    if choice == "local":
        return None
    engine = RayEngine(choice if isinstance(choice, ClusterAddress) else None, ENGINE_OPTION)
    if measuring:
        engine.check()
    return engine


def _fail_unheld(judge: TestJudge | None) -> None:
    unheld = [] if judge is None else [headline(judgement) for judgement in judge.unheld()]
    if unheld:
        pytest.fail("\n".join(["a comparison does not hold, but nothing asserted it", *unheld]), pytrace=False)
