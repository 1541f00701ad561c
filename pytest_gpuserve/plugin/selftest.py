"""``pytest --gpuserve-selftest``: instead of a collection and its tests, comparisons whose truth is known."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING, Final

import pytest

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.load.progress import progress_line
from pytest_gpuserve.plugin.devices import find_devices, take_device, waiting
from pytest_gpuserve.plugin.session import FOREIGN_SHARE
from pytest_gpuserve.process.child import owned_folder
from pytest_gpuserve.report.selftest import selftest_report
from pytest_gpuserve.selftest.counts import summary
from pytest_gpuserve.selftest.server import Options, turns_of
from pytest_gpuserve.selftest.trials import (
    BATCH,
    GATED,
    SERVICE_SECONDS,
    SHAPE,
    TrialSettings,
    comparisons,
    interleaved,
)
from pytest_gpuserve.servers.instance import started
from pytest_gpuserve.store.history import History
from pytest_gpuserve.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from pytest_gpuserve.device import Device, Holder
    from pytest_gpuserve.experiment.handle import Starter
    from pytest_gpuserve.load.totals import RunningTotals
    from pytest_gpuserve.load.wire import Tick
    from pytest_gpuserve.plugin.options import Settings
    from pytest_gpuserve.report.selftest import SelftestResult
    from pytest_gpuserve.selftest.trials import FinishedTrial, Planned
    from pytest_gpuserve.servers.base import Ask, ServerKind
    from pytest_gpuserve.servers.instance import Instance

CYCLE_SECONDS: Final = 180.0
"""One comparison of each kind, roughly: fewer where starts are alike, more where the machine is busy."""

LEAST_BUDGET_SECONDS: Final = 60.0
"""Of one comparison: three rounds, without which little is decided before anything is learned."""

START_TIMEOUT_SECONDS: Final = 60.0

EVERY_SECONDS: Final = 0.5

_ERASE: Final = "\r\x1b[K"


class SelftestCommand:
    """Registered as a plugin when the self-test is asked for."""

    def __init__(self, config: pytest.Config, settings: Settings, minutes: float) -> None:
        self._settings = settings
        self._seconds = 60 * minutes
        self._plan = interleaved(max(1, round(self._seconds / CYCLE_SECONDS)))
        self._config = config
        self._passed: bool | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> bool:
        """Collect nothing."""
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self) -> bool:
        """Run the self-test."""
        if not self._config.pluginmanager.has_plugin("terminalreporter"):
            raise pytest.UsageError("--gpuserve-selftest has nowhere to print its result: leave out -p no:terminal")
        try:
            device, lock = take_device(
                find_devices(self._settings),
                wait_seconds=self._settings.lock_wait_seconds,
                on_wait=self._say_waiting,
            )
        except UsageProblem as problem:
            raise pytest.UsageError(str(problem)) from None
        with lock, owned_folder("gpuserve-selftest-") as (folder, _):
            self._run(device, folder)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Turn the result into an exit code: that no test was collected is as it should be."""
        if self._passed is not None:
            session.exitstatus = pytest.ExitCode.OK if self._passed else pytest.ExitCode.TESTS_FAILED

    def _run(self, device: Device, folder: Path) -> None:
        settings, plan = self._settings, self._plan
        setting = TrialSettings(
            shape=SHAPE,
            metrics=GATED,
            host=device.host.id,
            # Its own: what a self-test has learned is no history of a project's tests, nor the other way round.
            history=History(folder / "history"),
            foreign_cores=max(settings.foreign_cores, FOREIGN_SHARE * device.host.cores),
            # A single comparison that cannot be decided must not take the time of all others.
            budget_seconds=min(settings.budget_seconds, max(LEAST_BUDGET_SECONDS, self._seconds / 3)),
        )
        base = Options(turns=turns_of(SERVICE_SECONDS), max_batch=BATCH)
        self._say(
            f"gpuserve self-test: {len(plan)} comparisons of two small servers on {device.host.cores} cores of"
            f" {device.host.cpu}, in at most {format_seconds(self._seconds)} but for the last one"
        )
        notes: dict[str, None] = {}
        made: list[FinishedTrial] = []
        progress = _Progress(self._config, plan, self._seconds)
        try:
            for one in comparisons(
                plan,
                base,
                setting,
                _starter(device, folder),
                seconds=self._seconds,
                progress=progress.of,
                note=notes.setdefault,
            ):
                made.append(one)
                progress.made(one, len(made))
        except KeyboardInterrupt:
            self._report(summary(plan, made, interrupted=True), notes)
            raise
        result = summary(plan, made)
        self._report(result, notes)
        self._passed = not result.failures

    def _report(self, result: SelftestResult, notes: Iterable[str]) -> None:
        width = shutil.get_terminal_size((120, 24)).columns
        self._say("", selftest_report(result, width=width, color=self._reporter.hasmarkup), *notes)

    @property
    def _reporter(self) -> pytest.TerminalReporter:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        assert isinstance(reporter, pytest.TerminalReporter)
        return reporter

    def _say(self, *lines: str) -> None:
        for line in lines:
            self._reporter.write_line(line)

    def _say_waiting(self, holders: Sequence[Holder], wait_seconds: float) -> None:
        self._say(waiting(holders, wait_seconds))


class _Progress:
    """One line that is rewritten on a terminal; elsewhere a line a comparison. It is the ``Progress`` of each load."""

    def __init__(self, config: pytest.Config, plan: Sequence[Planned], seconds: float) -> None:
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        assert isinstance(reporter, pytest.TerminalReporter)
        self._reporter = reporter
        self._terminal = reporter.isatty and reporter.hasmarkup
        self._quiet = config.get_verbosity() < 0
        self._plan = plan
        self._ends = time.monotonic() + seconds
        self._head = ""
        self._shown_seconds = 0.0

    def of(self, planned: Planned) -> _Progress:
        """Watch a comparison that is about to begin."""
        self._head = f"{self._plan.index(planned) + 1}/{len(self._plan)} {planned.case.name}"
        return self

    def made(self, one: FinishedTrial, count: int) -> None:
        """Tell what a comparison came to."""
        if self._quiet or self._terminal:
            return
        outcome = one.outcome
        self._reporter.write_line(
            f"{self._head}: {outcome.verdict}, {format_seconds(outcome.seconds)}"
            f" ({count} made, {format_seconds(self._left())} left)"
        )
        self._reporter.flush()

    def show(self, totals: RunningTotals, tick: Tick, seconds_left: float | None) -> None:
        """See ``Progress``."""
        now = time.monotonic()
        if self._quiet or not self._terminal or now - self._shown_seconds < EVERY_SECONDS:
            return
        self._shown_seconds = now
        columns = shutil.get_terminal_size((120, 24)).columns - len(self._head) - 3
        line = progress_line(totals.totals(), tick, seconds_left or self._left(), columns)
        self._write(f"{_ERASE}{self._head}  {line}")

    def clear(self) -> None:
        """See ``Progress``."""
        if self._shown_seconds:
            self._write(_ERASE)
            self._shown_seconds = 0.0

    def _left(self) -> float:
        return max(0.0, self._ends - time.monotonic())

    def _write(self, text: str) -> None:
        self._reporter.write(text, flush=True)


def _starter(device: Device, folder: Path) -> Starter:
    """What starts servers on the device, all with one log, of which an error shows the end."""

    def start(kind: ServerKind, ask: Ask, beside: Callable[[], None] | None = None) -> AbstractContextManager[Instance]:
        return started(
            kind,
            ask,
            environment=device.environment(),
            log=folder / "servers.log",
            start_timeout_seconds=START_TIMEOUT_SECONDS,
            beside=beside,
        )

    return start
