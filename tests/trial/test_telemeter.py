"""What a load makes of what its card did: windows measured again, runs that prove nothing, and what is told of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from pytest_gpuserve.device.contention import CpuReading
from pytest_gpuserve.device.sample import CardEvent, DeviceProcess, Unknown
from pytest_gpuserve.errors import LoadFailed
from pytest_gpuserve.load.answers import AnswerCheck
from pytest_gpuserve.load.request import Request
from pytest_gpuserve.load.schedule import Closed, Steps
from pytest_gpuserve.load.wire import Latencies, Tick
from pytest_gpuserve.measure.counters import Counters
from pytest_gpuserve.measure.histogram import bucket_of
from pytest_gpuserve.measure.window import CardUse
from pytest_gpuserve.trial import loaded, one_start
from pytest_gpuserve.trial.handle import Target
from pytest_gpuserve.trial.loaded import LoadedStart
from pytest_gpuserve.trial.shape import LoadShape
from pytest_gpuserve.trial.telemeter import NOBODY, Telemeter
from tests.fakes.scripted_eyes import MIB, QUIET, UUID, ScriptedEyes
from tests.servers.pairs import Seen

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from typing_extensions import Self

    from pytest_gpuserve.load.wire import Plan
    from pytest_gpuserve.measure.window import Start
    from pytest_gpuserve.servers.instance import Instance
    from pytest_gpuserve.trial.handle import ServerHandle

NS = 1_000_000_000
HOT = 0x40
TICK_REQUESTS = 10
LATENCY_NS = 40_000_000
SERVER_PID, MEMBER_PID, ENGINE_PID = 71, 72, 81


@dataclass
class World:
    """A server and its load engines that are not there, at a card that is scripted.

    Args:
        eyes: Look at the card.
        notes: What was noted.
        counted: What the server has answered.
        ticks: How many of the measured load the engines have reported.
        load_began_ns: When it began.
        lost_after_ticks: When an engine dies; None for never.
    """

    eyes: ScriptedEyes = field(default_factory=ScriptedEyes)
    notes: list[str] = field(default_factory=list)
    counted: int = 0
    ticks: int = 0
    load_began_ns: int = 0
    lost_after_ticks: int | None = None

    @property
    def telemeter(self) -> Telemeter:
        """The session's."""
        return Telemeter([UUID], lambda: self.eyes, self.notes.append, clock=self.eyes.clock)

    def instance(self, *, remote: bool = False) -> Instance:
        """The server."""
        return cast(
            "Instance",
            SimpleNamespace(
                kind=None,
                process=None if remote else SimpleNamespace(pid=SERVER_PID),
                members=lambda: [MEMBER_PID],
                counters=lambda: Counters(items=self.counted, batches=self.counted // 5, requests=self.counted),
                death=lambda **_: None,
                shown=lambda text, _: text,
                site=SimpleNamespace(host="127.0.0.1", port=1, tls=False),
                cold_start_seconds=1.0,
                cold_start_parts={},
                settings={},
            ),
        )

    def measure(self, shape: LoadShape | None = None, *, remote: bool = False) -> tuple[Start, list[str]]:
        """Load the server; what was measured, and why nothing may be concluded from it."""
        shape = shape or LoadShape(Closed(4), warmup_seconds=0.3)
        target = Target(cast("ServerHandle", None), (Request("GET", "/"),))
        self.eyes.live_until(self.eyes.now_ns + NS // 2)
        with self.telemeter.lookout(baseline_clock_mhz=shape.baseline_clock_mhz) as lookout:
            load = LoadedStart(self.instance(remote=remote), target, shape, AnswerCheck([None]), Seen(), lookout)
            found = load.measure()
        return found, [*load.problems, *lookout.problems()]


@dataclass
class FakeEngines:
    """Load engines whose ticks take no time but that of the eyes."""

    world: World
    plan: Plan
    processes: int = 1
    number: int = 0
    pids: tuple[int, ...] = (ENGINE_PID,)

    def __enter__(self) -> Self:
        self.world.load_began_ns = self.world.eyes.now_ns
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def halt(self, *, seed: int) -> None:
        """Rest."""

    def next_tick(self) -> Tick:
        """Ten requests in a tenth of a second; a schedule of steps ends after two seconds."""
        if self.number == self.world.lost_after_ticks:
            raise LoadFailed(
                "the load engine died", found="exit status 1", log_tail="noise\nnode-b/worker-1 was lost\n"
            )
        begin_ns = self.world.eyes.now_ns
        self.world.eyes.live_until(begin_ns + NS // 10)
        self.world.counted += TICK_REQUESTS
        self.world.ticks += 1
        self.number += 1
        return Tick(
            self.number - 1,
            begin_ns,
            begin_ns + NS // 10,
            requests=TICK_REQUESTS,
            latency=Latencies({bucket_of(LATENCY_NS): TICK_REQUESTS}, TICK_REQUESTS * LATENCY_NS, LATENCY_NS),
            cpu_ns=1_000_000,
            sent=TICK_REQUESTS,
            due=TICK_REQUESTS,
            in_flight_ns=4 * NS // 10,
            users=4,
            last=isinstance(self.plan.schedule, Steps) and self.number == 20,
        )


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """A world, which takes the place of engines and of the host."""
    made = World()
    monkeypatch.setattr(loaded, "Engines", lambda plan, processes, _source: FakeEngines(made, plan, processes))
    monkeypatch.setattr(loaded, "load_ceiling", lambda *_: None)
    monkeypatch.setattr(one_start, "read_cpu", lambda _: CpuReading(0.0, 0.0, 0.0, 0.0))
    monkeypatch.setattr(one_start, "our_processes", lambda _: [])
    return made


def since_load(world: World, begin: float, end: float, **values: object) -> Callable[[float], Mapping[str, object]]:
    """Have a card do something between two moments after the load's begin, in seconds."""

    def card(at_seconds: float) -> Mapping[str, object]:
        since = at_seconds - world.load_began_ns / NS
        return values if world.load_began_ns and begin <= since < end else {}

    return card


# -- windows


def test_an_undisturbed_start_is_told_what_its_card_did(world: World) -> None:
    """Each window has energy, memory, utilisation and clock; the start its telemetry and the power at rest."""
    measured, problems = world.measure()
    assert problems == []
    assert (len(measured.windows), measured.rejected, world.notes) == (8, (), [])
    for one in measured.windows:
        assert one.cards is not None
        assert one.cards.joules == pytest.approx(50.0)
        assert replace(one.cards, joules=None) == CardUse(None, 400 * MIB, 0.5, 1500.0)
    assert measured.idle_watts == pytest.approx(100.0)
    assert measured.telemetry is not None
    assert measured.telemetry.seconds == pytest.approx(4.0)
    assert measured.telemetry.server_cpu_seconds == pytest.approx(2.0)
    assert world.eyes.watched == ((ENGINE_PID,), (SERVER_PID, MEMBER_PID))


def test_an_engine_that_is_lost_in_mid_load_makes_it_invalid(world: World) -> None:
    """With what its log said last, by which a worker elsewhere is named; what was measured is kept."""
    world.lost_after_ticks = 20
    measured, problems = world.measure()
    assert problems == ["node-b/worker-1 was lost"]
    assert measured.windows


def test_an_engine_that_never_began_is_an_error(world: World) -> None:
    """There is nothing that could be kept, and its log says more than a line."""
    world.lost_after_ticks = 0
    with pytest.raises(LoadFailed):
        world.measure()


def test_disturbed_windows_are_measured_again(world: World) -> None:
    """With their requests and what the server counted in them they are gone, and as many others are measured."""
    # The warm-up takes 0.3 s and a window 0.5 s: the second and the third are touched.
    world.eyes.card = since_load(world, 1.0, 1.5, clock_reasons=HOT)
    measured, problems = world.measure()
    assert problems == []
    assert len(measured.windows) == 8
    assert len(measured.rejected) == 2
    assert all(f"{UUID}: thermal slowdown by the hardware" in text for text in measured.rejected)
    assert world.ticks == 3 + 10 * 5
    assert measured.requests == 8 * 5 * TICK_REQUESTS
    assert measured.counters is not None
    assert (measured.counters.requests, measured.counters.items) == (400, 400)
    assert measured.telemetry is not None
    assert measured.telemetry.cards[UUID].clock_reasons == {}


def test_the_last_window_is_judged_too(world: World) -> None:
    """Though it is not seen to its end when it ends: a sample after it is waited for."""
    world.eyes.card = since_load(world, 0.3 + 7 * 0.5 + 0.4, 0.3 + 8 * 0.5, clock_reasons=HOT)
    measured, problems = world.measure()
    assert (len(measured.windows), len(measured.rejected), problems) == (8, 1, [])
    assert world.ticks == 3 + 9 * 5


def test_a_throttled_run_is_invalid_and_ends_early(world: World) -> None:
    """When more than a third of the windows is lost whatever else is measured, no more are."""
    world.eyes.card = since_load(world, 0.0, 1e9, clock_reasons=HOT)
    measured, (problem,) = world.measure()
    assert problem.startswith("throttled: ")
    assert measured.windows == ()
    assert world.ticks <= 3 + 6 * 5


@pytest.mark.parametrize(("count", "invalid"), [(4, False), (5, True)])
def test_a_third_may_be_lost(world: World, count: int, *, invalid: bool) -> None:
    """Four of twelve are a third; with five of them the run is over."""
    world.eyes.card = since_load(world, 0.3, 0.3 + 0.5 * count - 0.1, clock_reasons=HOT)
    measured, problems = world.measure()
    assert bool(problems) is invalid
    assert len(measured.rejected) == count


@pytest.mark.parametrize(("baseline_mhz", "rejected"), [(None, 0), (1500.0, 0), (1600.0, 2)])
def test_a_slower_clock_than_the_baselines_is_a_disturbance(
    world: World, baseline_mhz: float | None, rejected: int
) -> None:
    """Where the baseline's is known; at 1510 MHz against 1600 MHz all windows are lost, and here only two."""
    slow = since_load(world, 0.3, 1.3, sm_clock_mhz=1510)
    world.eyes.card = lambda at: slow(at) or {"sm_clock_mhz": 1600}
    measured, problems = world.measure(LoadShape(Closed(4), warmup_seconds=0.3, baseline_clock_mhz=baseline_mhz))
    assert (len(measured.rejected), problems) == (rejected, [])


IDLE = {"sm_clock_mhz": 300, "clock_reasons": 0x1, "gpu_utilisation": 0.0}


@pytest.mark.parametrize(("busy_mhz", "rejected"), [(1500, False), (1350, True)])
def test_pauses_of_a_load_are_no_slower_clock(world: World, busy_mhz: int, *, rejected: bool) -> None:
    """A card that rests every other tenth of a second has the clock of its work, and is judged by that one."""
    world.eyes.card = lambda at: IDLE if round(at * 10) % 2 else {"sm_clock_mhz": busy_mhz}
    measured, problems = world.measure(LoadShape(Closed(4), warmup_seconds=0.3, baseline_clock_mhz=1500.0))
    assert [problem.partition(":")[0] for problem in problems] == ["throttled"] * rejected
    if not rejected:
        assert {one.cards and one.cards.sm_clock_mhz for one in measured.windows} == {1500.0}
        assert measured.telemetry is not None
        clock = measured.telemetry.cards[UUID].sm_clock_mhz
        assert clock is not None
        assert (clock.lowest, clock.peak) == (300, 1500)


def test_a_card_that_rests_all_the_time_has_no_clock_to_compare(world: World) -> None:
    """Its windows are neither rejected nor unknown, and no baseline learns a clock from them."""
    world.eyes.card = lambda _: IDLE
    measured, problems = world.measure(LoadShape(Closed(4), warmup_seconds=0.3, baseline_clock_mhz=1500.0))
    assert (problems, measured.rejected, world.notes) == ([], (), [])
    assert {one.cards and one.cards.sm_clock_mhz for one in measured.windows} == {None}


@pytest.mark.parametrize("hot", [False, True])
def test_a_schedule_that_ends_by_itself_cannot_be_measured_again(world: World, *, hot: bool) -> None:
    """All of it is measured or none; one disturbed window makes it invalid."""
    if hot:
        world.eyes.card = since_load(world, 0.7, 0.8, clock_reasons=HOT)
    measured, problems = world.measure(LoadShape(Steps(((4, 2.0),)), warmup_seconds=0.3))
    assert [problem.partition(":")[0] for problem in problems] == (["throttled"] if hot else [])
    assert len(measured.windows) == (3 if hot else 4)


# -- runs


FOREIGN = DeviceProcess(99, "other", 5 * MIB, ours=False)
OURS = DeviceProcess(SERVER_PID, "server", 5 * MIB, ours=True)
BLANK = dict.fromkeys(("energy_joules", *QUIET))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"processes": (OURS, FOREIGN)}, f"foreign process on {UUID}: process 99 (other, 5 MiB)"),
        ({"uncorrected_ecc": 2}, f"uncorrected ECC errors on {UUID}"),
    ],
)
def test_what_spoils_a_run_makes_it_invalid_at_once(world: World, values: Mapping[str, object], words: str) -> None:
    """Once, in words, and the load ends with it."""
    world.eyes.card = since_load(world, 1.0, 1e9, **values)
    _, (problem,) = world.measure()
    assert problem.startswith(words)
    assert world.ticks <= 3 + 4 * 5


@pytest.mark.parametrize(
    ("kind", "words"), [("xid", f"XID 79 on {UUID}: the card has fallen off"), ("lost", f"card lost: {UUID}")]
)
def test_errors_of_the_card_make_a_run_invalid(world: World, kind: str, words: str) -> None:
    """Those of the time of this start; older ones befell another."""
    for at_seconds, problems in ((-1.0, 0), (1.0, 1)):
        world.eyes.events = [CardEvent(round(at_seconds * NS), UUID, cast("Any", kind), 79 if kind == "xid" else 0)]
        _, found = world.measure()
        assert [text[: len(words)] for text in found] == [words] * problems


def test_a_foreign_process_before_the_start_is_seen(world: World) -> None:
    """Also where pids do not tell ours from theirs: nobody who is on the card before the start is ours."""
    world.eyes.card = lambda at: {"processes": (FOREIGN,) if at < 0.3 else ()}
    _, (problem,) = world.measure()
    assert problem.startswith(f"foreign process on {UUID}: process 99")


def test_whose_processes_are_there_may_be_unknown(world: World) -> None:
    """In a container none of the pids is ours: the run goes on, and says so."""
    world.eyes.card = since_load(world, 0.0, 1e9, processes=(FOREIGN,))
    _, problems = world.measure()
    assert problems == []
    (note,) = world.notes
    assert note.startswith(f"telemetry unknown: {UUID}: whose processes are on it")


def test_a_container_starts_before_it_is_known_for_ours(world: World) -> None:
    """What loads a model on the card is not called foreign before the server has told who it is."""
    with world.telemeter.lookout() as lookout:
        told_seconds = world.eyes.now_ns / NS + 3
        world.eyes.card = lambda at: {"processes": (FOREIGN if at <= told_seconds else OURS,)}
        world.eyes.live_until(round(told_seconds * NS))
        lookout.up(world.instance())
        world.eyes.live_until(world.eyes.now_ns + NS)
        lookout.judge([], wait=False)
    assert lookout.problems() == []


def test_a_dead_sampler_makes_a_run_invalid(world: World) -> None:
    """Nothing is known of the time after it, and no rule may pass."""

    def card(at_seconds: float) -> Mapping[str, object]:
        if at_seconds > 2.0:
            world.eyes.problem = "telemetry unknown: the sampler has ended (killed by SIGKILL)"
        return {}

    world.eyes.card = card
    _, (problem,) = world.measure()
    assert problem.startswith("telemetry unknown: the sampler has ended")


def test_unknown_reasons_are_said_and_the_run_goes_on(world: World) -> None:
    """Once what NVML said, once in how many windows; other values that a card does not have are not worth a line."""
    world.eyes.unknown = [
        Unknown(UUID, "clock-event reasons", "Not Supported"),
        Unknown(UUID, "PCIe sent", "Not Supported"),
        Unknown(UUID, "power", "Unknown Error"),
    ]
    world.eyes.card = lambda _: {"clock_reasons": None}
    measured, problems = world.measure()
    assert (problems, len(measured.windows)) == ([], 8)
    assert world.notes == [
        f"telemetry unknown in 8 of 8 windows, first: {UUID}: its clock-event reasons",
        f"telemetry unknown: clock-event reasons of {UUID}: Not Supported",
        f"telemetry unknown: power of {UUID}: Unknown Error",
    ]


@pytest.mark.parametrize("without", [False, True])
def test_a_card_without_ecc_is_not_asked_for_it(world: World, *, without: bool) -> None:
    """Of another one it is said that it is not known."""
    world.eyes.card = lambda _: {"uncorrected_ecc": None}
    world.eyes.unknown = [Unknown(UUID, "uncorrected ECC errors", "Not Supported")]
    telemeter = Telemeter(
        [UUID],
        lambda: world.eyes,
        world.notes.append,
        without_ecc=[UUID] if without else [],
        clock=world.eyes.clock,
    )
    with telemeter.lookout() as lookout:
        lookout.up(world.instance())
    assert lookout.problems() == []
    assert bool(world.notes) is not without


def test_a_card_of_which_nothing_is_known_makes_a_run_invalid(world: World) -> None:
    """At once: without any telemetry it may have been hot, slow or shared, and no gate may pass."""
    world.eyes.card = lambda _: BLANK
    world.eyes.unknown = [Unknown("", "NVML", "Driver Not Loaded")]
    _, (problem,) = world.measure()
    assert problem.startswith(f"nothing is known of {UUID}: NVML told none of its values")
    assert "telemetry unknown: NVML: Driver Not Loaded" in world.notes
    assert world.ticks <= 3 + 2 * 5


@pytest.mark.parametrize(
    ("baseline_mhz", "since_seconds", "invalid"),
    [(None, 0.0, False), (1500.0, 0.0, True), (1500.0, 2.0, True), (1500.0, 1e9, False)],
)
def test_an_unknown_clock_makes_a_run_invalid_where_the_baseline_has_one(
    world: World, baseline_mhz: float | None, since_seconds: float, *, invalid: bool
) -> None:
    """Whether the card was slower than the baseline's is asked there, and here not answered, if only at the end."""
    world.eyes.card = lambda at: {"sm_clock_mhz": None} if at >= since_seconds else {}
    _, problems = world.measure(LoadShape(Closed(4), warmup_seconds=0.3, baseline_clock_mhz=baseline_mhz))
    assert [problem.partition(":")[0] for problem in problems] == [f"SM clock of {UUID} unknown"] * invalid


def test_what_is_not_known_is_noted_once_a_session(world: World) -> None:
    """Texts that differ in their counts alone are one; another card is another text."""
    with world.telemeter.lookout() as lookout:
        for count in (4, 7):
            for uuid in ("GPU-1", "GPU-2"):
                lookout.note(f"telemetry unknown in {count} of 8 windows, first: {uuid}: its SM clock")
    assert world.notes == [
        f"telemetry unknown in 4 of 8 windows, first: {uuid}: its SM clock" for uuid in ("GPU-1", "GPU-2")
    ]


# -- around a start


def seldom(at_seconds: float, **values: object) -> Mapping[str, object]:
    """Show slow values once a second, as the sampler does."""
    none = {"uncorrected_ecc": None, "processes": None}
    return none if round(at_seconds * 10) % 10 else {"processes": (OURS,), **values}


@pytest.mark.parametrize("tenths", range(0, 10, 3))
@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"processes": (OURS, FOREIGN)}, f"foreign process on {UUID}"),
        ({"uncorrected_ecc": 1}, f"uncorrected ECC errors on {UUID}"),
    ],
)
def test_what_comes_in_the_last_moment_is_seen(
    world: World, values: Mapping[str, object], words: str, tenths: int
) -> None:
    """Slow values are looked at once more after the end: the errors are this start's, and not the next one's."""
    telemeter = world.telemeter
    late: list[float] = []
    world.eyes.card = lambda at: seldom(at, **(values if late and late[0] <= at < late[0] + 1.05 else {}))
    with telemeter.lookout() as lookout:
        lookout.up(world.instance())
        world.eyes.live_until(world.eyes.now_ns + 2 * NS + tenths * NS // 10)
        late.append(world.eyes.now_ns / NS - 0.01)
        lookout.judge([], wait=False)
        assert lookout.problems() == []
    assert [problem.partition(":")[0] for problem in lookout.problems()] == [words]


def test_the_look_after_an_end_is_the_one_before_the_next_start(world: World) -> None:
    """It is waited for once; from when the memory was given back on, what is seen is the next start's too."""
    telemeter = world.telemeter
    with telemeter.lookout() as first:
        first.up(world.instance())
    ended_ns = world.eyes.now_ns
    with telemeter.lookout() as second:
        assert second.server_began_ns == ended_ns
        assert second.since_ns == first.free_ns
    assert ended_ns - second.since_ns >= NS


def test_what_ends_is_no_foreign_process(world: World) -> None:
    """A server's process that has lost its parents, and is on the card still, was seen to be ours before."""
    orphan = DeviceProcess(SERVER_PID, None, None, ours=False)
    with world.telemeter.lookout() as lookout:
        lookout.up(world.instance())
        ends = world.eyes.now_ns / NS + 2
        world.eyes.card = lambda at: {"processes": (OURS,) if at < ends else (orphan,) if at < ends + 0.3 else ()}
        world.eyes.live_until(world.eyes.now_ns + 2 * NS)
    assert lookout.problems() == []


def test_old_samples_are_forgotten(world: World) -> None:
    """With the next start those of the last one are, unless a start that goes on needs them still."""
    telemeter = world.telemeter
    with telemeter.lookout() as first:
        world.eyes.live_until(10 * NS)
        assert world.eyes.needed_ns == 0
    with telemeter.lookout() as second:
        assert first.free_ns is not None
        assert first.free_ns - 3 * NS < world.eyes.needed_ns < second.since_ns
        needed_ns = world.eyes.needed_ns
        world.eyes.live_until(30 * NS)
        with telemeter.lookout():
            pass
        world.eyes.live_until(50 * NS)
        with telemeter.lookout():
            assert world.eyes.needed_ns == needed_ns


@pytest.mark.parametrize(
    ("kept_mib", "given_back_seconds", "invalid"), [(300, 2.0, False), (300, 60.0, True), (60, 60.0, False)]
)
def test_memory_has_to_be_given_back(world: World, kept_mib: int, given_back_seconds: float, *, invalid: bool) -> None:
    """But for what a driver keeps, and within some seconds of the server's end."""
    with world.telemeter.lookout() as lookout:
        lookout.up(world.instance())
        back = world.eyes.now_ns / NS + given_back_seconds
        world.eyes.card = lambda at: {"memory_used_bytes": (400 + (kept_mib if at < back else 0)) * MIB}
    assert [problem.partition(":")[0] for problem in lookout.problems()] == ["memory not given back"] * invalid


def test_a_failed_start_is_not_asked_for_its_memory(world: World) -> None:
    """Its own error is what is told, and the next start begins anew."""
    telemeter = world.telemeter
    with pytest.raises(ArithmeticError), telemeter.lookout() as lookout:
        raise ArithmeticError
    assert lookout.problems() == []
    ended_ns = world.eyes.now_ns
    with telemeter.lookout() as second:
        pass
    assert second.since_ns == ended_ns
    # Long enough to have seen who is there before the server is.
    assert second.server_began_ns - ended_ns >= NS


def test_without_a_card_nobody_looks(world: World) -> None:
    """No sampler is begun, and windows and starts have no telemetry, not zero."""
    telemeter = Telemeter([], lambda: pytest.fail("a sampler was begun"))
    with telemeter.lookout() as lookout:
        load = LoadedStart(
            world.instance(),
            Target(cast("ServerHandle", None), (Request("GET", "/"),)),
            LoadShape(Closed(4)),
            AnswerCheck([None]),
            Seen(),
            lookout,
        )
        measured = load.measure()
    telemeter.close()
    assert load.problems == []
    assert (measured.telemetry, measured.idle_watts, measured.rejected) == (None, None, ())
    assert {one.cards for one in measured.windows} == {None}


def test_of_somebody_elses_server_nothing_is_looked_at(world: World) -> None:
    """It may run on any card of any machine: telemetry is absent, which is said."""
    world.eyes.card = lambda _: {"clock_reasons": HOT, "processes": (FOREIGN,)}
    measured, problems = world.measure(remote=True)
    assert (measured.telemetry, measured.rejected, problems) == (None, (), [])
    (note,) = world.notes
    assert note.startswith("telemetry absent")


def test_the_sampler_is_begun_once_and_ended_once(world: World) -> None:
    """With the first start, for all; a session may end twice."""
    begun: list[int] = []

    def begin() -> ScriptedEyes:
        begun.append(1)
        return world.eyes

    telemeter = Telemeter([UUID], begin, world.notes.append, clock=world.eyes.clock)
    assert begun == []
    for _ in range(2):
        with telemeter.lookout():
            pass
    telemeter.close()
    telemeter.close()
    assert (begun, world.eyes.closed) == ([1], 1)
    NOBODY.close()
