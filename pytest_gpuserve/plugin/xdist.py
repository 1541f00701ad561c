"""Several workers of pytest-xdist that measure, each on a card of its own, and the controller that reports for all.

A worker leases a card as any run does. With the reports of a test it hands over what it measured, so that of a worker
that crashes only the test under way is lost, which the controller says. The controller measures nothing and holds no
lock.
"""

from __future__ import annotations

import base64
import dataclasses
import os
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pytest

from pytest_gpuserve.plugin.collection import measures, plain_id
from pytest_gpuserve.plugin.options import Update
from pytest_gpuserve.plugin.outputs import Written
from pytest_gpuserve.process.secrets import masked

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from pytest_gpuserve.plugin.options import Settings
    from pytest_gpuserve.report.results import SessionResult, TestResult

CONTROLLER_INPUT: Final = "gpuserve"
"""What the controller passes to a worker, among its ``workerinput``."""

HANDED: Final = "gpuserve_handed"
"""What a worker hands over, as an attribute of a test's report and at its end among its ``workeroutput``."""

TEST: Final = "gpuserve_test"
"""The id that can be typed of the test that a report is of, as an attribute of that report: its own may be another."""

PROBLEM: Final = "gpuserve_problem"
"""A user's mistake that a worker found, among its ``workeroutput``."""

FIRST: Final = "gw0"
"""The worker that says for all what is measured against what, as pytest-xdist calls it."""

T = TypeVar("T")

_PHASES: Final = ("setup", "call", "teardown")


def is_worker(config: pytest.Config) -> bool:
    """Whether this process is a worker of pytest-xdist."""
    return hasattr(config, "workerinput")


def worker_count(config: pytest.Config) -> int:
    """How many workers there are, in the controller and in each of them; 0 without pytest-xdist."""
    if is_worker(config):
        return int(_input(config)["workercount"])
    distributed = getattr(config.option, "dist", "no") != "no" and not config.option.collectonly
    return len(config.option.tx or ()) if distributed else 0


def each_runs_all(config: pytest.Config) -> bool:
    """Whether every worker runs every test (``--dist=each``)."""
    if is_worker(config):
        return bool(_input(config).get(CONTROLLER_INPUT, {}).get("each"))
    return str(getattr(config.option, "dist", "no")) == "each"


def controller_pid(config: pytest.Config) -> int | None:
    """Of a worker, the process of its controller; None elsewhere."""
    return _input(config).get(CONTROLLER_INPUT, {}).get("controller") if is_worker(config) else None


def hand_problem(config: pytest.Config, problem: str) -> None:
    """Let the controller of a worker that ends because of a user's mistake tell which one; it tells it once for all."""
    config.workeroutput[PROBLEM] = problem  # type: ignore[attr-defined]


class XdistWorker:
    """Registered as a plugin in a worker, after the session: hands over what it measures."""

    def __init__(self, config: pytest.Config, closing: Callable[[], SessionResult]) -> None:
        self._config = config
        self._closing = closing
        self._handed: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self) -> None:
        """Say before the first test on what and against what is measured: the controller hears of it with a test."""
        if _input(self._config)["workerid"] != FIRST or self._config.get_verbosity() < 0:
            return
        from pytest_gpuserve.plugin.progress import say  # noqa: PLC0415 -- who measures nothing loads nothing
        from pytest_gpuserve.report.remarks import of_workers  # noqa: PLC0415 -- as above

        header = of_workers(self._closing().header, worker_count(self._config))
        if header:
            say(self._config, f"gpuserve: {masked(header)}")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Say with a test's first report that it measures, and with its last one what it has measured."""
        report = yield
        if measures(item) and report.when in {"setup", "teardown"}:
            nodeid = plain_id(item)
            tests = {nodeid} if report.when == "teardown" else set()
            self._handed |= tests
            setattr(report, TEST, _shown(nodeid))
            setattr(report, HANDED, self._packed(tests))
        return report

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Hand over the rest: of a test that Ctrl-C cut short there is no last report."""
        rest = {test.nodeid for test in self._closing().tests} - self._handed
        self._config.workeroutput[HANDED] = self._packed(rest)  # type: ignore[attr-defined]

    def _packed(self, nodeids: set[str]) -> str:
        closing = self._closing()
        handed = dataclasses.replace(closing, tests=tuple(test for test in closing.tests if test.nodeid in nodeids))
        return pack(_shown(handed))


def _shown(value: T) -> T:
    """Without secrets: here, for a fixture may have set variables of which the controller does not know."""
    from pytest_gpuserve.report.names import with_texts  # noqa: PLC0415 -- who measures nothing loads nothing

    shown: T = with_texts(value, masked)
    return shown


class XdistController:
    """Registered as a plugin in the controller: gathers what workers hand over, and reports it as one run."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self._config = config
        self._settings = settings
        self._nodes: list[Any] = []
        self._workers: dict[str, SessionResult] = {}
        self._plain: dict[str, str] = {}
        self._worker_of: dict[str, str] = {}
        self._tests: dict[str, TestResult] = {}
        self._closing: SessionResult | None = None
        self._written = Written()

    def pytest_configure_node(self, node: Any) -> None:  # noqa: ANN401 -- pytest-xdist need not be installed
        """Tell a worker what it cannot know by itself."""
        node.workerinput[CONTROLLER_INPUT] = {"controller": os.getpid(), "each": each_runs_all(self._config)}
        self._nodes.append(node)

    def pytest_testnodedown(self, node: Any) -> None:  # noqa: ANN401 -- as above
        """Tell a user's mistake that a worker has found; the others have found the same one."""
        problem = _output(node).get(PROBLEM)
        if problem is not None:
            raise pytest.UsageError(problem)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take what comes with a report; first, for it is nothing to whoever else reads reports."""
        node = getattr(report, "node", None)
        if node is None:
            return
        packed = report.__dict__.pop(HANDED, None)
        if packed is not None:
            plain = self._plain[report.nodeid] = report.__dict__.pop(TEST)
            self._worker_of[plain] = node.gateway.id
            self._take(node.gateway.id, unpack(packed))
        elif report.when not in _PHASES:
            # Made up by pytest-xdist for the test under way in a worker that crashed.
            plain = self._plain.get(report.nodeid) or self._without_group(report.nodeid)
            self._worker_of[plain] = node.gateway.id
            self._tests.pop(plain, None)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Make one result of all, and write it; last, when pytest-xdist has ended the workers."""
        for node in self._nodes:
            packed = _output(node).get(HANDED)
            if packed is not None:
                self._take(node.gateway.id, unpack(packed))
        # A crash in a run that measured nothing is for pytest alone to tell, but a result file that was asked for is
        # never without the test that was under way. A step's summary nobody has asked for.
        asked = any(output.ours for output in self._settings.outputs)
        if not self._workers and not (self._worker_of and asked):
            return
        from pytest_gpuserve.plugin.terminal import write_results  # noqa: PLC0415 -- who measures nothing loads nothing

        self._closing = self._merged()
        self._written = write_results(session, self._settings.outputs, self._closing)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print one table for all workers."""
        if self._closing is not None:
            from pytest_gpuserve.plugin.terminal import print_closing  # noqa: PLC0415 -- who measures nothing loads nothing

            print_closing(terminalreporter, self._closing, self._written)

    def _without_group(self, nodeid: str) -> str:
        """The id that can be typed of a test that has sent no report: its name and parameters, without what follows."""
        if str(getattr(self._config.option, "dist", "no")) != "loadgroup":
            return nodeid
        file, colons, name = nodeid.rpartition("::")
        end = name.find("@", name.rfind("]") + 1)
        return nodeid if end < 0 else f"{file}{colons}{name[:end]}"

    def _take(self, worker: str, closing: SessionResult) -> None:
        self._workers[worker] = closing
        for test in closing.tests:
            self._worker_of[test.nodeid] = worker
            # At the end again, where it is run again: as they ended.
            self._tests.pop(test.nodeid, None)
            self._tests[test.nodeid] = test

    def _merged(self) -> SessionResult:
        from pytest_gpuserve.report.remarks import of_workers  # noqa: PLC0415 -- who measures nothing loads nothing
        from pytest_gpuserve.report.results import SessionResult, TestResult  # noqa: PLC0415 -- as above

        lost = {nodeid: worker for nodeid, worker in self._worker_of.items() if nodeid not in self._tests}
        workers = self._workers.values()
        first = next(iter(workers), SessionResult({}, {}, ()))
        notes = dict.fromkeys(note for closing in workers for note in closing.notes)
        if self._settings.update is Update.ALL:
            notes["unused baselines are not looked for under pytest-xdist: for these run with -n0"] = None
        return dataclasses.replace(
            first,
            gpu={**first.gpu, "workers": {name: self._facts(name, closing) for name, closing in self._named()}},
            tests=(*self._tests.values(), *(TestResult(nodeid, "error") for nodeid in lost)),
            header=of_workers(first.header, len(self._workers)),
            # Those of a second load were not planned, and only the worker that has measured it knows of them.
            among=min((closing.among for closing in workers), default=0),
            notes=(
                *notes,
                *(f"{nodeid}: lost, for its worker {worker} ended before it did" for nodeid, worker in lost.items()),
            ),
            places=(
                *self._shared(),
                *dict.fromkeys(place for closing in workers for place in closing.places),
            ),
        )

    def _named(self) -> list[tuple[str, SessionResult]]:
        """The workers in the order in which they were started."""
        started = [node.gateway.id for node in self._nodes]
        return sorted(self._workers.items(), key=lambda each: started.index(each[0]))

    def _facts(self, worker: str, closing: SessionResult) -> Mapping[str, Any]:
        """Its device, and which tests ran on it: cards of a kind differ in what is only information."""
        return {**closing.gpu, "tests": [nodeid for nodeid, by in self._worker_of.items() if by == worker]}

    def _shared(self) -> list[str]:
        cards = [
            f"{name} on {closing.gpu.get('name')} at {closing.gpu.get('pci_bus_id') or 'an unknown place'}"
            for name, closing in self._named()
            if closing.gpu.get("card_id")
        ]
        if len(cards) < 2:
            return []
        cores = next(iter(self._workers.values())).host.get("cores")
        return [f"workers: {', '.join(cards)}; they share the host's {cores} cores"]


def pack(closing: SessionResult) -> str:
    """Encode what a worker has measured as text, because other plugins may write reports as JSON."""
    import msgspec  # noqa: PLC0415 -- who measures nothing loads nothing

    # Not as JSON, which has no infinity.
    return base64.b85encode(msgspec.msgpack.encode(closing)).decode()


def unpack(text: str) -> SessionResult:
    """Decode what a worker handed over.

    Raises:
        ValueError: It is no result.
    """
    import msgspec  # noqa: PLC0415 -- who measures nothing loads nothing

    from pytest_gpuserve.report.results import SessionResult  # noqa: PLC0415 -- as above

    try:
        return msgspec.msgpack.decode(base64.b85decode(text), type=SessionResult)
    except (ValueError, RecursionError) as problem:
        raise ValueError(f"a worker handed over something that is no result: {problem}") from None


def _input(config: pytest.Config) -> dict[str, Any]:
    return config.workerinput  # type: ignore[attr-defined, no-any-return]


def _output(node: Any) -> Mapping[str, Any]:  # noqa: ANN401 -- as above
    # A worker that crashed has none.
    return getattr(node, "workeroutput", None) or {}
