"""Tests that are dealt out to several runners, as pytest-split does it: what all runners together compare and run.

Each runner collects all tests and then drops those of the others. A claim of a regression has to stand among the
comparisons of all of them, so what was there before they were dealt out is remembered. Whoever makes one result of what
they have written has to know that none is missing, and that every test was somebody's: so a runner says which it had,
and one of whose tests none measures writes a result too.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import pytest

from pytest_gpuserve.plugin.collection import measures, measuring_ids, needs_device, plain_id
from pytest_gpuserve.plugin.options import read_settings
from pytest_gpuserve.plugin.outputs import UNLISTED, Form, Written, write_outputs
from pytest_gpuserve.process.secrets import masked
from pytest_gpuserve.units import utc_now

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

    from pytest_gpuserve.report.results import SessionResult, Unlisted

EVERY: Final = pytest.StashKey[tuple[pytest.Item, ...]]()
"""The tests of all runners, where there are several."""

HANDED: Final = "gpuserve_dealt"
"""What a worker of pytest-xdist tells its controller, which collects nothing, among its ``workeroutput``."""


@dataclass(frozen=True, slots=True)
class Part:
    """Which of several runners this is."""

    number: int
    of: int


@dataclass(frozen=True, slots=True)
class Dealt:
    """What one of several runners knows of the tests, once they were dealt out.

    Args:
        measuring: Ids of the tests of all runners that measure.
        unlisted: The others.
        is_idle: Whether none of its own needs a device, so that no session writes its result.
    """

    measuring: tuple[str, ...]
    unlisted: Unlisted
    is_idle: bool

    @classmethod
    def of(cls, every: Sequence[pytest.Item], own: Sequence[pytest.Item]) -> Dealt:
        """What is known by the tests of all runners and those of this one."""
        from pytest_gpuserve.report.results import Unlisted  # noqa: PLC0415 -- who measures nothing loads nothing

        return cls(
            tuple(measuring_ids(every)),
            Unlisted(dealt=_others(every), own=_others(own)),
            is_idle=not any(map(needs_device, own)),
        )


class BeforeTheyAreDealtOut:
    """A plugin that remembers the tests of all runners.

    pytest-split registers what deals them out when pytest is configured. Of hooks that want to be last the one that was
    registered last is, so this has to be registered before that: when hooks are declared.
    """

    def pytest_configure(self, config: pytest.Config) -> None:
        """Let one of several runners tell of itself."""
        part = part_of(config)
        if part is not None:
            config.pluginmanager.register(Runner(config, part))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: Sequence[pytest.Item]) -> None:
        """Remember what is left once ``-k`` and ``-m`` have selected."""
        if part_of(config) is not None:
            config.stash[EVERY] = tuple(items)


class Runner:
    """Registered as a plugin in one of several runners: tells which tests it had, and that it was there at all.

    Raises:
        pytest.UsageError: An option is wrong.
    """

    def __init__(self, config: pytest.Config, part: Part) -> None:
        self._config = config
        self._part = part
        self._settings = read_settings(config)
        self._began = utc_now()
        self._dealt: Dealt | None = None
        self._cut_short = False
        self._written = Written()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Know which tests there are, now that they were dealt out."""
        every = self._config.stash.get(EVERY, None)
        if every is not None and not self._config.option.collectonly:
            dealt = Dealt.of(every, session.items)
            self._know(dealt)
            of_worker = getattr(self._config, "workeroutput", None)
            if of_worker is not None:
                of_worker[HANDED] = asdict(dealt)
        return (yield)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:  # noqa: ANN401 -- pytest-xdist need not be installed
        """Take what a worker knows: each has collected all tests of this runner."""
        from pytest_gpuserve.report.results import Unlisted  # noqa: PLC0415 -- who measures nothing loads nothing

        # A worker that crashed has none.
        handed = (getattr(node, "workeroutput", None) or {}).get(HANDED)
        if handed is not None:
            self._know(Dealt(handed["measuring"], Unlisted(**handed["unlisted"]), is_idle=handed["is_idle"]))

    def pytest_keyboard_interrupt(self) -> None:
        """Know that not all tests were run."""
        self._cut_short = True

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, object, object]:
        """Write the result of a runner without a test that measures; last, when the exit status is known."""
        result = yield
        outputs = [output for output in self._settings.outputs if output.form is Form.JSON]
        if self._dealt is not None and self._dealt.is_idle and outputs:
            from pytest_gpuserve.report.names import with_texts  # noqa: PLC0415 -- who measures nothing loads nothing

            self._written = write_outputs(outputs, with_texts(self._result(session, self._dealt), masked))
            if self._written.failed:
                session.exitstatus = pytest.ExitCode.USAGE_ERROR
        return result

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say where that result is; with ``-q`` only that it is not there."""
        is_quiet = terminalreporter.config.get_verbosity() < 0
        for line in self._written.missing if is_quiet else self._written.lines:
            told = f"gpuserve: no test of group {self._part.number} measures; {line}"
            terminalreporter.write_line(masked(told))

    def _know(self, dealt: Dealt) -> None:
        self._dealt = dealt
        self._config.stash[UNLISTED] = dealt.unlisted

    def _result(self, session: pytest.Session, dealt: Dealt) -> SessionResult:
        """A result without tests and without a device, for none was needed."""
        from pytest_gpuserve.builds.checkout import read_revision  # noqa: PLC0415 -- of no use to most runs
        from pytest_gpuserve.report.results import Ending, SessionResult  # noqa: PLC0415 -- as above

        settings = self._settings
        revision = read_revision(settings.root, settings.baseline_dir)
        # Of tests that are only set up none is run.
        only_set_up = getattr(self._config.option, "setuponly", False)
        stopped = self._cut_short or session.shouldfail or session.shouldstop or only_set_up
        return SessionResult(
            gpu={},
            host={},
            tests=(),
            header=f"group {self._part.number} of {self._part.of}, in which no test measures",
            at=self._began,
            commit=revision.commit,
            clean=revision.clean,
            stored=not settings.side_by_side,
            update=settings.update.option,
            shard=(self._part.number, self._part.of),
            dealt=dealt.measuring,
            unlisted=dealt.unlisted,
            # All failures are of tests that the result does not list.
            ending=Ending(int(session.exitstatus), complete=not stopped, unlisted_failures=session.testsfailed),
        )


def part_of(config: pytest.Config) -> Part | None:
    """Which of several runners this is, by ``--group`` and ``--splits`` of pytest-split; None where it is alone."""
    number, of = config.getoption("group", None), config.getoption("splits", None)
    # Another plugin may call something else so.
    known = isinstance(number, int) and isinstance(of, int) and 1 <= number <= of
    return Part(number, of) if known else None


def tests_of_all_runners(session: pytest.Session) -> Sequence[pytest.Item]:
    """The tests of all runners, where they are dealt out by pytest-split; else those of this one."""
    return session.config.stash.get(EVERY, tuple(session.items))


def _others(items: Iterable[pytest.Item]) -> tuple[str, ...]:
    """The ids of those that do not measure."""
    return tuple(plain_id(item) for item in items if not measures(item))
