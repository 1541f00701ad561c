"""Effects of GPU telemetry on a load: repeated windows, runs that prove nothing, and their reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import cast

import pytest

from pytest_gpuserve.device.gpu_probe import GpuProcess
from pytest_gpuserve.device.sampler import SamplerProcess
from pytest_gpuserve.experiment.handle import ServerHandle, Target
from pytest_gpuserve.experiment.loaded import LoadedServer
from pytest_gpuserve.experiment.sampling import measure_start
from pytest_gpuserve.experiment.shape import LoadShape
from pytest_gpuserve.experiment.telemetry import NO_TELEMETRY, TelemetrySource
from pytest_gpuserve.load.driver import EngineSource
from pytest_gpuserve.load.request import Request
from pytest_gpuserve.load.schedule import Closed, Steps
from pytest_gpuserve.load.wire import Plan
from pytest_gpuserve.measure.counters import Counters
from pytest_gpuserve.measure.window import GpuUse, Start
from pytest_gpuserve.servers.instance import Instance
from pytest_gpuserve.verdict.reason import Reason, ReasonKind
from tests.fakes.scripted_engines import (
    MIB,
    QUIET,
    TICK_REQUESTS,
    ScriptedEngines,
    ScriptedEyes,
    scripted_instance,
    stand_in,
)
from tests.support.builders import cases, kinds

NS = 1_000_000_000
WARMUP_TICKS, WINDOW_TICKS = 3, 5
SERVER_PID, MEMBER_PID, ENGINE_PID = 71, 72, 81

HOT = {"clock_reasons": 0x40}
BLANK = dict.fromkeys(("joules", *QUIET))
FOREIGN = GpuProcess(99, "other", 5 * MIB)
OURS = GpuProcess(SERVER_PID, "server", 5 * MIB)


@dataclass
class Alone:
    """A server and its load engines that are not there, at a GPU that is scripted.

    Args:
        eyes: Look at the GPU.
        notes: Notes of the monitor.
        ticks: How many the engines have reported.
        load_began_ns: When the load began, with its warm-up.
    """

    eyes: ScriptedEyes = field(default_factory=ScriptedEyes)
    notes: list[str] = field(default_factory=list)
    ticks: int = 0
    load_began_ns: int = 0

    def __post_init__(self) -> None:
        self.telemetry_source = self.eyes.source(self.notes)

    def engines(self, plan: Plan, _processes: int, _source: EngineSource) -> ScriptedEngines:
        """Replace `Engines`."""
        self.load_began_ns = self.eyes.now_ns
        return ScriptedEngines(plan, self.passing, pids=(ENGINE_PID,))

    def passing(self) -> int:
        """Let a tick pass."""
        self.ticks += 1
        return self.eyes.pass_tick()

    def counters(self) -> Counters:
        """Counters of the server."""
        counted = self.ticks * TICK_REQUESTS
        return Counters(items=counted, batches=counted // 5, requests=counted)

    def instance(self, *, remote: bool = False) -> Instance:
        """The server."""
        process = None if remote else SimpleNamespace(pid=SERVER_PID)
        return scripted_instance(process=process, members=lambda: [MEMBER_PID], counters=self.counters)

    def measure(
        self,
        *,
        schedule: Closed | Steps = Closed(4),  # noqa: B008 -- it is frozen
        baseline_mhz: float | None = None,
        remote: bool = False,
        telemetry_source: TelemetrySource | None = None,
    ) -> tuple[Start, list[Reason]]:
        """Load the server; return the measurement and the reasons against it."""
        shape = LoadShape(schedule, warmup_seconds=WARMUP_TICKS / 10, baseline_clock_mhz=baseline_mhz)
        target = Target(cast("ServerHandle", None), (Request("GET", "/"),))
        self.eyes.live_until(self.eyes.now_ns + NS // 2)
        with (telemetry_source or self.telemetry_source).monitor(baseline_clock_mhz=baseline_mhz) as monitor:
            load = LoadedServer(self.instance(remote=remote), target, shape)
            found = measure_start(load, monitor)
        return found, [*load.problems, *load.disturbances, *monitor.problems()]

    def since_load(self, begin: float, end: float, **values: object) -> Callable[[float], Mapping[str, object]]:
        """Have a GPU do something between two moments after the load's begin, in seconds."""

        def gpu(at_seconds: float) -> Mapping[str, object]:
            since = at_seconds - self.load_began_ns / NS
            return values if self.load_began_ns and begin <= since < end else {}

        return gpu


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Alone:
    """A server, which takes the place of engines and of the host."""
    made = Alone()
    stand_in(monkeypatch, made.engines)
    return made


# -- windows


def test_an_undisturbed_start_is_told_what_its_gpu_did(server: Alone) -> None:
    """Each window has energy, memory, utilisation and clock."""
    measured, problems = server.measure()
    assert (len(measured.windows), measured.rejected, problems, server.notes) == (8, (), [], [])
    for one in measured.windows:
        assert one.gpus is not None
        assert one.gpus.joules == pytest.approx(50.0)
        assert replace(one.gpus, joules=None) == GpuUse(None, 400 * MIB, 0.5, 1500.0)


@pytest.mark.parametrize(
    ("begin", "end", "rejected", "left"),
    [
        pytest.param(1.2, 1.7, 2, 8, id="two windows are touched"),
        pytest.param(4.2, 4.3, 1, 8, id="the last window"),
        pytest.param(0.3, 2.2, 4, 8, id="a third, four of twelve"),
        pytest.param(1.0, 3.6, 5, 1, id="more than a third"),
        pytest.param(0.0, 1e9, 5, 0, id="all"),
    ],
)
def test_disturbed_windows_are_measured_again(
    server: Alone, begin: float, end: float, rejected: int, left: int
) -> None:
    """They are gone with their requests and counts; when more than a third is lost anyway the run ends as invalid."""
    server.eyes.gpu = server.since_load(begin, end, **HOT)
    measured, problems = server.measure()
    assert kinds(problems) == ([] if left == 8 else [ReasonKind.THROTTLED])
    assert (len(measured.rejected), len(measured.windows)) == (rejected, left)
    assert all("thermal slowdown by the hardware" in text for text in measured.rejected)
    assert server.ticks == WARMUP_TICKS + (left + rejected) * WINDOW_TICKS
    assert measured.total.requests == left * WINDOW_TICKS * TICK_REQUESTS
    if left:
        assert measured.total.counters is not None
        assert measured.total.counters.requests == measured.total.counters.items == measured.total.requests


@pytest.mark.parametrize("hot", [False, True])
def test_a_schedule_that_ends_by_itself_cannot_be_measured_again(server: Alone, *, hot: bool) -> None:
    """All of it is measured or none; one disturbed window disturbs the start."""
    if hot:
        server.eyes.gpu = server.since_load(0.7, 0.8, **HOT)
    measured, problems = server.measure(schedule=Steps(((4, 2.0),)))
    assert kinds(problems) == [ReasonKind.THROTTLED] * hot
    assert len(measured.windows) == (3 if hot else 4)


# -- runs


def since(begin: float, **values: object) -> Callable[[Alone], Callable[[float], Mapping[str, object]]]:
    """A GPU that does something from a moment after the load's begin on."""
    return lambda server: server.since_load(begin, 1e9, **values)


@cases(
    "gpu, kind, words",
    {
        "another's process": (
            since(1.0, processes=(OURS, FOREIGN)),
            ReasonKind.FOREIGN_PROCESS,
            "foreign process on the GPU: process 99 (other, 5 MiB)",
        ),
        # Also where pids do not tell ours from theirs: nobody who is on the GPU before the start is ours.
        "one before the start": (
            lambda _: lambda at: {"processes": (FOREIGN,) if at < 1.2 else ()},
            ReasonKind.FOREIGN_PROCESS,
            "foreign process on the GPU: process 99",
        ),
        "memory before the start, of processes that are not listed": (
            lambda _: lambda at: {"memory_bytes": 1025 * MIB if at < 1.7 else 400 * MIB},
            ReasonKind.FOREIGN_PROCESS,
            "foreign use of the GPU: it was 0 % busy, 1025 MiB in use before the server's start",
        ),
        "a blind driver": (
            lambda _: lambda _: BLANK,
            ReasonKind.GPU_UNKNOWN,
            "the GPU was not seen: NVML reported no value of it; ",
        ),
    },
)
def test_what_spoils_a_run_makes_it_invalid_at_once(
    server: Alone, gpu: Callable[[Alone], Callable[[float], Mapping[str, object]]], kind: ReasonKind, words: str
) -> None:
    """Once, in words, and the load ends with it; also where the GPU may have been hot, slow or shared."""
    server.eyes.gpu = gpu(server)
    _, (problem,) = server.measure()
    assert problem.kind is kind
    assert problem.text.startswith(words)
    assert server.ticks <= WARMUP_TICKS + 6 * WINDOW_TICKS


@pytest.mark.parametrize(
    ("at_seconds", "number", "befell"),
    [(0, 79, False), (7.0, 79, True), (5, 45, True), (7.0, 45, False)],
)
def test_errors_of_the_gpu_make_a_run_invalid(server: Alone, at_seconds: float, number: int, *, befell: bool) -> None:
    """Errors within this start count, and an application's only under load, because its end logs them too."""
    server.eyes.gpu = lambda at: {"xids": (number,) if at == at_seconds else ()}
    measured, problems = server.measure()
    assert befell or 5 < measured.windows[-1].end_ns / NS < 7.0
    expected = [(ReasonKind.GPU_ERROR, f"XID {number}")] * befell
    assert [(problem.kind, problem.about) for problem in problems] == expected


def test_an_error_of_the_application_that_broke_the_load_off_counts(server: Alone) -> None:
    """It comes after the last whole window, and tells why the server died."""
    with server.telemetry_source.monitor() as monitor:
        monitor.up(server.instance())
        died_ns = server.eyes.now_ns + NS
        server.eyes.gpu = lambda at: {"xids": (31,) if died_ns - 0.15 * NS < at * NS <= died_ns else ()}
        server.eyes.live_until(died_ns)
        monitor.look()
        assert kinds(monitor.problems()) == [ReasonKind.GPU_ERROR]


def test_a_server_on_the_cpu_is_no_measurement_of_the_gpu(server: Alone) -> None:
    """It names the setting of that kind of server; the load ends with its first window."""
    server.eyes.gpu = lambda _: {"utilisation": 0.0}
    _, (problem,) = server.measure()
    assert problem.kind is ReasonKind.GPU_UNUSED
    assert 'move the model and its inputs in the Worker with .to("cuda")' in problem.text
    assert server.ticks <= WARMUP_TICKS + 3 * WINDOW_TICKS


def test_a_server_starts_before_it_is_known_for_ours(server: Alone) -> None:
    """A process that loads a model on the GPU is not foreign before the server has reported its pids."""
    with server.telemetry_source.monitor() as monitor:
        told_seconds = server.eyes.now_ns / NS + 3
        server.eyes.gpu = lambda at: {"processes": (FOREIGN if at <= told_seconds else OURS,)}
        server.eyes.live_until(round(told_seconds * NS))
        monitor.up(server.instance())
        server.eyes.live_until(server.eyes.now_ns + NS)
        monitor.look()
    assert monitor.problems() == []


def test_a_dead_sampler_makes_a_run_invalid(server: Alone) -> None:
    """The time after it is unknown, and no rule may pass."""

    def gpu(at_seconds: float) -> Mapping[str, object]:
        if at_seconds > 2.0:
            server.eyes.problem = "telemetry unknown: the sampler has ended (killed by SIGKILL)"
        return {}

    server.eyes.gpu = gpu
    _, (problem,) = server.measure()
    assert problem.text.startswith("telemetry unknown: the sampler has ended")


def test_values_that_a_gpu_does_not_have_are_said_and_the_run_goes_on(server: Alone) -> None:
    """Those on which a rule rests, in one line; a run with the others says nothing."""
    server.eyes.gpu = lambda _: {"clock_reasons": None, "uncorrected_ecc": None, "joules": None}
    measured, problems = server.measure()
    assert (problems, len(measured.windows)) == ([], 8)
    assert server.notes == ["telemetry unknown: clock-event reasons"]


@pytest.mark.parametrize(("baseline_mhz", "invalid"), [(None, False), (1500.0, True)])
def test_an_unknown_clock_makes_a_run_invalid_where_the_baseline_has_one(
    server: Alone, baseline_mhz: float | None, *, invalid: bool
) -> None:
    """The rule on the clock needs it with such a baseline; without one it does not matter."""
    server.eyes.gpu = lambda _: {"sm_clock_mhz": None}
    _, problems = server.measure(baseline_mhz=baseline_mhz)
    assert kinds(problems) == [ReasonKind.GPU_UNKNOWN] * invalid


# -- around a start


@pytest.mark.parametrize(
    ("kept_mib", "given_back_seconds", "invalid"), [(300, 2.0, False), (300, 60.0, True), (60, 60.0, False)]
)
def test_memory_has_to_be_given_back(server: Alone, kept_mib: int, given_back_seconds: float, *, invalid: bool) -> None:
    """It must be free within some seconds of the server's end, except what a driver keeps."""
    with server.telemetry_source.monitor() as monitor:
        monitor.up(server.instance())
        back = server.eyes.now_ns / NS + given_back_seconds
        server.eyes.gpu = lambda at: {"memory_bytes": (400 + (kept_mib if at < back else 0)) * MIB}
    assert kinds(monitor.problems()) == [ReasonKind.MEMORY_NOT_GIVEN_BACK] * invalid


def test_the_next_start_begins_behind_one_that_failed(server: Alone) -> None:
    """Memory that others held before the start is not foreign if they give it back in time; the monitor looks first."""
    back = 5.0

    def fail() -> None:
        with server.telemetry_source.monitor():
            server.eyes.gpu = lambda at: {"memory_bytes": (400 + (2000 if at < back else 0)) * MIB}
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fail()
    with server.telemetry_source.monitor() as second:
        assert back <= second.since_ns / NS < back + 0.5
        assert second.server_began_ns - second.since_ns >= NS
        second.look()
    assert second.problems() == []


def test_without_a_gpu_nobody_looks(server: Alone) -> None:
    """Windows and starts have no telemetry, not zero."""
    measured, problems = server.measure(telemetry_source=NO_TELEMETRY)
    assert (problems, measured.rejected) == ([], ())
    assert {one.gpus for one in measured.windows} == {None}


def test_of_somebody_elses_server_nothing_is_looked_at(server: Alone) -> None:
    """It may run on any GPU of any machine: telemetry is absent, which is said."""
    server.eyes.gpu = lambda _: {**HOT, "processes": (FOREIGN,)}
    measured, problems = server.measure(remote=True)
    assert ({one.gpus for one in measured.windows}, measured.rejected, problems) == ({None}, (), [])
    (note,) = server.notes
    assert note.startswith("telemetry absent")


def test_the_sampler_is_begun_once_and_ended_once(server: Alone) -> None:
    """With the first start, for all; a session may end twice."""
    begun: list[int] = []

    def begin() -> SamplerProcess:
        begun.append(1)
        return cast("SamplerProcess", server.eyes)

    telemetry_source = TelemetrySource(begin, clock=server.eyes.clock)
    assert begun == []
    for _ in range(2):
        with telemetry_source.monitor():
            pass
    telemetry_source.close()
    telemetry_source.close()
    assert (begun, server.eyes.closed) == ([1], 1)
    NO_TELEMETRY.close()
