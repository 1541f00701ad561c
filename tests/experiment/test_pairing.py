"""Rounds of two servers that are not there: how long turns are, what is thrown away, what is judged, and when."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from pytest_gpuserve.device.contention import CpuReading
from pytest_gpuserve.errors import GpuserveError, ServerFailed
from pytest_gpuserve.experiment import by_turns as by_turns_module
from pytest_gpuserve.experiment import pairing
from pytest_gpuserve.experiment.by_turns import TURNS_ALONE
from pytest_gpuserve.experiment.disturbed import MOST_AGAIN
from pytest_gpuserve.experiment.handle import Target
from pytest_gpuserve.experiment.pairing import MOST_REJECTED, BaseFailed, Pairing
from pytest_gpuserve.experiment.server_arm import (
    MOST_TICKS,
    MOST_TICKS_FOR_REQUESTS,
    SETTLE_TICKS,
    Pace,
    ServerArm,
    _overload,
)
from pytest_gpuserve.experiment.shape import TICKS_A_WINDOW, LoadShape, Terms
from pytest_gpuserve.experiment.telemetry import NOBODY, TelemetrySource
from pytest_gpuserve.gate.sequential import BLOCKS
from pytest_gpuserve.load.schedule import Burst, Closed, Constant, Poisson
from pytest_gpuserve.load.totals import total
from pytest_gpuserve.load.wire import Latencies, Tick
from pytest_gpuserve.measure.rounds import ABBA, ARMS, BAAB, Round, Side
from tests.fakes.scripted_eyes import MIB, UUID, ScriptedEyes
from tests.servers.pairs import Seen
from tests.support.builders import window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import ExitStack

    from pytest_gpuserve.experiment.handle import ServerHandle
    from pytest_gpuserve.experiment.watch import Watch
    from pytest_gpuserve.load.schedule import Schedule
    from pytest_gpuserve.measure.rounds import Arm
    from pytest_gpuserve.measure.window import Window
    from pytest_gpuserve.servers.instance import Instance

TICK_NS = 100_000_000
TURN_NS = 5 * TICK_NS
HOT = {"clock_reasons": 0x40}
LATE, HELD_UP, LOST = "client late: by 3 ms", "client held up: for 9 %", "lost in mid-load"

either_way = pytest.mark.parametrize("by_turns", [False, True])
either_arm = pytest.mark.parametrize("arm", ARMS)


def told(arm: Arm, problem: str) -> str:
    """A problem of a server, as a round tells it."""
    return problem if arm == "candidate" else f"the base: {problem}"


# -- pace and overload


def ticks(count: int, requests: int, latency_seconds: float) -> list[Tick]:
    """Ticks of so many requests each."""
    taken_ns = round(latency_seconds * 1e9)
    latency = Latencies({1: requests}, taken_ns * requests, taken_ns) if requests else Latencies()
    return [Tick(n, n * TICK_NS, (n + 1) * TICK_NS, requests=requests, latency=latency) for n in range(count)]


FAST = ticks(10, 100, 0.001)


@pytest.mark.parametrize(
    ("warmup", "seconds", "wanted", "expected"),
    [
        pytest.param(FAST, None, 1, Pace(SETTLE_TICKS, TICKS_A_WINDOW), id="a fast server"),
        pytest.param(FAST, None, 2400, Pace(SETTLE_TICKS, 12), id="a block has the requests that are wanted"),
        pytest.param(ticks(10, 1, 0.001), None, 10**6, Pace(SETTLE_TICKS, MOST_TICKS_FOR_REQUESTS), id="at a price"),
        pytest.param(ticks(10, 10, 0.05), None, 1, Pace(SETTLE_TICKS, 10), id="twenty latencies"),
        pytest.param(ticks(10, 10, 0.4), None, 1, Pace(8, 80), id="a turn settles for two latencies"),
        pytest.param(ticks(10, 1, 60.0), None, 1, Pace(MOST_TICKS, MOST_TICKS), id="but not for ever"),
        pytest.param(ticks(10, 0, 0.0), None, 10**6, Pace(SETTLE_TICKS, TICKS_A_WINDOW), id="nothing known"),
        pytest.param(ticks(5, 10, 30.0) + FAST[5:], None, 1, Pace(SETTLE_TICKS, TICKS_A_WINDOW), id="its later half"),
        pytest.param(FAST, 0.5, 1, Pace(SETTLE_TICKS, TICKS_A_WINDOW), id="never shorter than a window"),
        pytest.param(FAST, 4.0, 1, Pace(SETTLE_TICKS, TICKS_A_WINDOW), id="eight windows in a start"),
        pytest.param(FAST, 40.0, 1, Pace(SETTLE_TICKS, 50), id="a longer load has longer windows"),
    ],
)
def test_turns_are_as_long_as_the_warm_up_asks_for(
    warmup: list[Tick], seconds: float | None, wanted: int, expected: Pace
) -> None:
    """By its rate, its mean latency and the time that the user asked for, with bounds."""
    shape = LoadShape(Closed(4), seconds=seconds)
    assert ServerArm("base", cast("Watch", None), shape, _warmup=warmup).pace(wanted) == expected


@pytest.mark.parametrize(
    ("schedule", "requests", "due", "expected"),
    [
        (Constant(1.0), 10_000, 10_000, False),
        (Poisson(1.0), 9300, 10_000, False),
        (Poisson(1.0), 9100, 10_000, True),
        (Poisson(1.0), 64, 100, True),
        (Poisson(1.0), 65, 100, False),
        (Constant(1.0), 0, 3, False),
        (Closed(4), 0, 10_000, False),
        (Burst(9), 0, 10_000, False),
    ],
)
def test_an_open_loop_whose_requests_are_not_answered_is_overloaded(
    schedule: Schedule, requests: int, due: int, *, expected: bool
) -> None:
    """By more than chance makes of so many; other loads wait for their answers anyway."""
    seen = total([Tick(0, 0, 5 * TICK_NS, requests=requests, due=due)])
    assert bool(_overload(seen, LoadShape(schedule))) == expected


# -- rounds of fakes


@dataclass
class Stage:
    """Where fakes of both servers play; a server is named by its arm, or by its start, from 0.

    Args:
        rate: Requests of the so manieth window of a server.
        paces: Of servers whose pace is not what was wanted.
        trouble: What goes wrong in the so manieth window of a server.
        restless: What goes wrong as a server comes to rest for the so manieth time, from 1.
        verdict: What is wrong with all windows together.
        held_up: Whether the client was held up in the so manieth window of a start.
        disturbed: What disturbed all windows together, of a start.
        failing: Which of the starts fail, and how.
        varies: Whether what is sent differs from one time to another.
        foreign: Cores that others take, of each block to come; none after these.
        eyes: Look at the card, where there is one; each turn takes half a second of theirs.
        notes: What was noted of it.
    """

    rate: Callable[[Arm, int], int] = lambda _arm, _number: 10
    paces: dict[Arm, Pace] = field(default_factory=dict)
    trouble: Callable[[Arm, int], str] = lambda _arm, _number: ""
    restless: Callable[[Arm, int], str] = lambda _arm, _rests: ""
    verdict: Callable[[Arm], str] = lambda _arm: ""
    held_up: Callable[[int, int], bool] = lambda _start, _number: False
    disturbed: Callable[[int], str] = lambda _start: ""
    failing: Callable[[Arm, int], ServerFailed | None] = lambda _arm, _start: None
    varies: bool = False
    foreign: list[float] = field(default_factory=list)
    starts: list[Arm] = field(default_factory=list)
    alive: list[_Contender] = field(default_factory=list)
    turns: list[tuple[Arm, Pace, int]] = field(default_factory=list)
    begun: list[tuple[Arm, bool]] = field(default_factory=list)
    eyes: ScriptedEyes = field(default_factory=ScriptedEyes)
    notes: list[str] = field(default_factory=list)

    def pair(self, *, by_turns: bool = False, on_card: bool = False) -> Pairing:
        """A pairing of fakes, whose seed makes it repeatable."""
        telemetry_source = TelemetrySource([UUID], lambda: self.eyes, self.notes.append, clock=self.eyes.clock)
        target = Target(cast("ServerHandle", None), (), telemetry_source=telemetry_source if on_card else NOBODY)
        terms = Terms(LoadShape(Closed(4)), 3, most_foreign_cores=0.5, by_turns=by_turns, seed="s")
        return Pairing(target, target, terms, Seen())

    def round(self, *, by_turns: bool = False, on_card: bool = False) -> Round:
        """A round to its end, after which no server is left."""
        both = self.pair(by_turns=by_turns, on_card=on_card)
        both.measure(BLOCKS)
        assert not self.alive
        (measured,) = both.rounds
        return measured


@dataclass(eq=False)
class _Contender:
    """A server without a process; its methods are those of a `ServerArm`."""

    arm: Arm
    stage: Stage
    start: int = 0
    problems: list[str] = field(default_factory=list)
    disturbances: list[str] = field(default_factory=list)
    held_up: set[int] = field(default_factory=set)
    windows: list[Window] = field(default_factory=list)
    loading: bool = False
    taken: int = 0
    rests: int = 0
    instance: Instance = field(
        default_factory=lambda: cast("Instance", SimpleNamespace(process=SimpleNamespace(pid=7), members=tuple))
    )

    @property
    def varies(self) -> bool:
        return self.stage.varies

    def pace(self, requests_wanted: int) -> Pace:
        return self.stage.paces.get(self.arm, Pace(requests_wanted, 7))

    def turn(self, pace: Pace, *, seed: int) -> Window | None:
        assert not any(other.loading for other in self.stage.alive if other is not self), "two are loaded"
        self.stage.begun.append((self.arm, not self.loading))
        self.loading = True
        self.stage.turns.append((self.arm, pace, seed))
        trouble = self.stage.trouble(self.arm, self.taken)
        self.taken += 1
        if trouble:
            self.problems.append(trouble)
            return None
        begin_ns = self.stage.eyes.now_ns
        self.stage.eyes.live_until(begin_ns + TURN_NS)
        made = window((0.01,) * self.stage.rate(self.arm, self.taken - 1))
        self.windows.append(replace(made, begin_ns=begin_ns, end_ns=begin_ns + TURN_NS))
        if self.stage.held_up(self.start, self.taken - 1):
            self.held_up.add(id(self.windows[-1]))
        return self.windows[-1]

    def disturbed(self, window: Window) -> tuple[str, ...]:
        return (HELD_UP,) if id(window) in self.held_up else ()

    def members(self) -> tuple[int, ...]:
        return ()

    def rest(self) -> None:
        if self.loading:
            self.rests += 1
            self.loading = False
            self.problems.extend(filter(None, [self.stage.restless(self.arm, self.rests)]))

    def warm_up(self, stack: ExitStack) -> None:
        pass

    def discard(self, windows: Iterable[Window]) -> None:
        gone = {id(each) for each in windows}
        self.windows = [each for each in self.windows if id(each) not in gone]

    def judge(self) -> None:
        self.problems.extend(filter(None, [self.stage.verdict(self.arm)]))
        self.disturbances.extend(filter(None, [self.stage.disturbed(self.start)]))

    def side(self) -> Side:
        return Side((1.0,), answers=len(self.windows))


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    """Have fakes instead of servers, and of what others do on this host."""
    there = Stage()

    @contextmanager
    def living(one: _Contender) -> Iterator[_Contender]:
        there.alive.append(one)
        try:
            yield one
        finally:
            there.alive.remove(one)

    def started(
        arm: Arm,
        _target: object,
        _shape: object,
        _progress: object,
        stack: ExitStack,
        *,
        beside: Callable[[], None] | None = None,
    ) -> _Contender:
        number = len(there.starts)
        there.starts.append(arm)
        failure = there.failing(arm, number)
        if beside is not None:
            beside()
        if failure is not None:
            raise failure
        return stack.enter_context(living(_Contender(arm, there, number)))

    def cores_taken(_before: object, _after: object) -> float:
        return there.foreign.pop(0) if there.foreign else 0.0

    monkeypatch.setattr(ServerArm, "started", started)
    for module in (pairing, by_turns_module):
        monkeypatch.setattr(module, "our_processes", lambda _: [])
        monkeypatch.setattr(module, "read_cpu", lambda _ours: CpuReading(0.0, 0.0, 0.0, 0.0))
        monkeypatch.setattr(module, "cores_taken_by_others", cores_taken)
    return there


def answers(measured: Round) -> set[int]:
    """How many windows of a server are judged."""
    return {side.answers for side in measured.sides.values()}


def rejected(measured: Round) -> list[str]:
    """Why windows were thrown away."""
    return [text for arm in ARMS for text in measured.sides[arm].rejected]


def test_a_round_goes_on_in_the_same_servers(stage: Stage) -> None:
    """From the first look to the full round, at the slower pace; then they end, and the next round has others."""
    stage.paces["base"] = Pace(9, 5)
    both = stage.pair()
    both.measure(3)
    assert (len(both.rounds), len(both.rounds[0].blocks), len(stage.alive), both.blocks_of_open_round) == (1, 3, 2, 3)
    assert not any(one.loading for one in stage.alive)
    both.measure(BLOCKS)
    assert (len(both.rounds), len(both.rounds[0].blocks), len(stage.alive), both.blocks_of_open_round) == (1, 6, 0, 0)
    assert len(stage.starts) == 2
    both.measure(BLOCKS)
    assert (len(both.rounds), len(stage.starts), len(stage.turns)) == (2, 4, 48)
    assert {block.order for measured in both.rounds for block in measured.blocks} == {ABBA, BAAB}
    assert {turn[1] for turn in stage.turns} == {Pace(9, 7)}


@pytest.mark.parametrize("varies", [False, True])
def test_what_varies_is_the_same_for_both_servers(stage: Stage, *, varies: bool) -> None:
    """Such a load begins afresh in each window, with a seed that both servers get once; another one may go on."""
    stage.varies = varies
    stage.round()
    base, candidate = ([seed for turn, _, seed in stage.turns if turn == arm] for arm in ARMS)
    assert base == candidate
    assert len(set(base)) == 2 * BLOCKS
    begun = sum(afresh for _, afresh in stage.begun)
    assert begun == 4 * BLOCKS if varies else begun <= 3 * BLOCKS + 1


@pytest.mark.parametrize("disturbed", [1, MOST_REJECTED, MOST_REJECTED + 4])
def test_blocks_that_others_disturbed_are_measured_again_up_to_a_bound(stage: Stage, disturbed: int) -> None:
    """A host that is never quiet is measured as it is, and what was thrown away is judged no more."""
    stage.foreign += [0.6] * disturbed
    both = stage.pair()
    both.measure(3)
    (measured,) = both.rounds
    thrown = min(disturbed, MOST_REJECTED)
    assert (len(measured.blocks), measured.rejected, len(stage.turns)) == (3, thrown, 4 * (3 + thrown))
    assert measured.foreign_cores == (0.6 if disturbed > MOST_REJECTED else 0.0)
    assert answers(measured) == {6}
    both.close()


def test_servers_that_drift_apart_are_measured_on_once(stage: Stage) -> None:
    """As long again; then the later half counts."""
    stage.rate = lambda arm, number: 100 + (10 * min(number, 12) if arm == "candidate" else 0)
    measured = stage.round()
    assert (len(stage.turns), len(measured.blocks), measured.rejected) == (48, BLOCKS, BLOCKS)
    assert answers(measured) == {12}
    assert measured.windows("candidate")[0].requests == 220
    assert measured.problems == ()


def test_servers_that_drift_together_are_steady_enough(stage: Stage) -> None:
    """What both have in common is the machine's, and cancels."""
    stage.rate = lambda _arm, number: 100 + 10 * number
    assert stage.round().problems == ()
    assert len(stage.turns) == 24


@pytest.mark.parametrize("fresh_are_steady", [True, False])
def test_a_round_that_drifts_on_is_taken_again_once(stage: Stage, *, fresh_are_steady: bool) -> None:
    """With fresh servers, and what was dropped is told; where these drift on too there is no steady state."""

    def rate(arm: Arm, number: int) -> int:
        steady = fresh_are_steady and len(stage.starts) > 2
        return 100 + (10 * number if arm == "candidate" and not steady else 0)

    stage.rate = rate
    both = stage.pair()
    both.measure(3)
    both.measure(BLOCKS)
    (measured,) = both.rounds
    assert (len(stage.starts), stage.alive, len(measured.blocks)) == (4, [], BLOCKS)
    assert [problem[:15] for problem in measured.problems] == ([] if fresh_are_steady else ["no steady state"])
    assert measured.rejected == (2 if fresh_are_steady else 3) * BLOCKS
    for arm in ARMS:
        assert [text[:15] for text in measured.sides[arm].rejected] == ["no steady state"] * 4 * BLOCKS


def test_each_round_may_be_taken_again(stage: Stage) -> None:
    """What happened in the one before is no reason to refuse the next."""
    stage.disturbed = lambda start: LATE if start in {0, 4} else ""
    both = stage.pair()
    for blocks in (3, BLOCKS, BLOCKS):
        both.measure(blocks)
    assert [measured.problems for measured in both.rounds] == [(), ()]
    assert len(stage.starts) == 8
    assert [measured.rejected for measured in both.rounds] == [3, BLOCKS]


@either_way
def test_a_late_client_disturbs_what_is_measured_again(stage: Stage, *, by_turns: bool) -> None:
    """Only where it is late again, side by side in the next round, or in each fresh start alone, is that a verdict."""
    stage.disturbed = lambda start: LATE if start == 1 else ""
    both = stage.pair(by_turns=by_turns)
    both.measure(BLOCKS)
    (measured,) = both.rounds
    assert measured.problems == ()
    assert len(stage.starts) == (5 if by_turns else 4)
    assert set(rejected(measured)) <= {LATE, f"the base: {LATE}"}
    stage.disturbed = lambda _start: LATE
    both.measure(BLOCKS)
    assert any(LATE in problem for problem in both.rounds[-1].problems)
    assert not stage.alive


def test_what_is_no_disturbance_is_not_taken_again(stage: Stage) -> None:
    """A round with another problem stands, whatever disturbed it besides."""
    stage.disturbed = lambda _start: LATE
    stage.verdict = lambda arm: "wrong answers" if arm == "candidate" else ""
    assert "wrong answers" in stage.round().problems
    assert len(stage.starts) == 2


@pytest.mark.parametrize("blocks", [3, BLOCKS])
@either_arm
def test_what_is_wrong_with_the_measurement_is_told_at_every_look(stage: Stage, arm: Arm, blocks: int) -> None:
    """A verdict may be reached by the first one: it must not rest on a client that measured itself."""
    stage.verdict = lambda judged: "client saturated" if judged == arm else ""
    both = stage.pair()
    both.measure(blocks)
    (measured,) = both.rounds
    assert (measured.problems, len(measured.blocks)) == ((told(arm, "client saturated"),), blocks)
    assert not stage.alive


@pytest.mark.parametrize("at_rest", [False, True])
@either_arm
def test_trouble_ends_the_round_at_once(stage: Stage, arm: Arm, *, at_rest: bool) -> None:
    """In a turn or as its server comes to rest: nobody takes another turn, and only whole blocks are part of it."""
    turns_before: list[int] = []

    def trouble(one: Arm, number: int) -> str:
        if (one, number) != (arm, 2 if at_rest else 5):
            return ""
        turns_before.append(len(stage.turns))
        return LOST

    if at_rest:
        stage.restless = trouble
    else:
        stage.trouble = trouble
    measured = stage.round()
    assert measured.problems == (told(arm, LOST),)
    assert [len(stage.turns)] == turns_before
    assert len(measured.blocks) == (len(stage.turns) // 4 if at_rest else 2)


# -- one at a time


def test_one_at_a_time_each_window_has_a_start(stage: Stage) -> None:
    """A block of four, longer by so much as there are starts for fewer windows; each call is a round."""
    stage.foreign += [0.0, 0.2, 0.1, 0.0]
    both = stage.pair(by_turns=True)
    both.measure(3)
    both.measure(BLOCKS)
    assert [len(measured.blocks) for measured in both.rounds] == [1, 1]
    assert all(measured.by_turns for measured in both.rounds)
    assert stage.starts == [arm for measured in both.rounds for arm in measured.blocks[0].order]
    assert [arm for arm, _, _ in stage.turns] == stage.starts
    assert {turn[1] for turn in stage.turns} == {Pace(3, 7 * TURNS_ALONE)}
    assert both.rounds[0].foreign_cores == 0.2
    assert both.rounds[0].sides["base"].cold_start_seconds == (1.0, 1.0)
    assert not stage.alive


@either_arm
def test_of_a_start_that_was_lost_nothing_else_is_judged(stage: Stage, arm: Arm) -> None:
    """Alone as side by side: what its client looked like then is no second reason."""
    stage.restless = lambda one, _: LOST if one == arm else ""
    stage.verdict = lambda one: "client saturated" if one == arm else ""
    assert stage.round(by_turns=True).problems == (told(arm, LOST),)
    assert stage.starts[-1] == arm


@pytest.mark.parametrize("words", ["CUDA out of memory", "std::bad_alloc", "killed by SIGKILL"])
def test_a_second_server_without_memory_is_started_after_the_first(stage: Stage, words: str) -> None:
    """From then on for good; what was measured beside each other stays."""
    stage.failing = lambda arm, start: ServerFailed(f"{arm}: {words}") if start == 3 else None
    both = stage.pair()
    for _ in range(3):
        both.measure(BLOCKS)
    assert [measured.by_turns for measured in both.rounds] == [False, True, True]
    assert both.by_turns
    assert len(stage.starts) == 2 + 2 + 4 + 4


@either_arm
@pytest.mark.parametrize("words", ["CUDA out of memory", "no such file"])
def test_other_failures_are_failures(stage: Stage, arm: Arm, words: str) -> None:
    """One that does not fit even by itself fails, and what is no lack of memory is not helped by turns."""
    stage.failing = lambda failing, _start: ServerFailed(words) if failing == arm else None
    both = stage.pair()
    with pytest.raises(GpuserveError, match=words) as caught:
        both.measure(3)
    assert caught.type is (ServerFailed if arm == "candidate" else BaseFailed)
    assert (both.rounds, stage.alive) == ([], [])
    assert both.by_turns is (words != "no such file")


# -- held up, and on a card


def in_turn(stage: Stage, number: int) -> bool:
    """Whether this turn, from 1, is under way."""
    return len(stage.turns) == number and any(one.loading for one in stage.alive)


@pytest.mark.parametrize("hot", [False, True])
@either_way
def test_a_turn_that_was_disturbed_is_measured_again(stage: Stage, *, by_turns: bool, hot: bool) -> None:
    """By a client held up or by a hot card: side by side with its block, alone with its start; and it is told."""
    if hot:
        stage.eyes.card = lambda _: HOT if in_turn(stage, 2) else {}
    else:
        stage.held_up = lambda start, number: (start, number) == (1, 0)
    measured = stage.round(by_turns=by_turns, on_card=hot)
    assert (measured.problems, measured.rejected) == ((), 1)
    assert len(stage.turns) == (5 if by_turns else 4 * (BLOCKS + 1))
    reasons = rejected(measured)
    assert len(reasons) == (1 if by_turns else 4)
    assert all(("HW_THERMAL_SLOWDOWN" if hot else HELD_UP) in text for text in reasons)
    assert answers(measured) == {2 if by_turns else 12}
    assert all((each.cards is not None) is hot for arm in ARMS for each in measured.windows(arm))


@pytest.mark.parametrize("hot", [False, True])
@either_way
def test_what_is_disturbed_again_and_again_makes_a_round_invalid(stage: Stage, *, by_turns: bool, hot: bool) -> None:
    """After more than a third of a round, with the reason: unlike a busy host a hot card may be well tomorrow."""
    if hot:
        stage.eyes.card = lambda _: HOT
    else:
        stage.held_up = lambda _start, _number: True
    measured = stage.round(by_turns=by_turns, on_card=hot)
    (problem,) = measured.problems
    assert problem.startswith("throttled: " if hot else f"{HELD_UP}; disturbed were ")
    assert (measured.rejected, measured.blocks) == (MOST_AGAIN + 1, ())
    assert len(stage.turns) == (MOST_AGAIN + 1) * (1 if by_turns else 4)


def test_a_round_on_a_card_is_told_what_the_card_did(stage: Stage) -> None:
    """Each window and each side has it, with the power of both servers at rest; whose CPU time it was is not told."""
    measured = stage.round(on_card=True)
    assert (measured.problems, measured.rejected, stage.notes) == ((), 0, [])
    for arm in ARMS:
        joules = [each.cards.joules for each in measured.windows(arm) if each.cards is not None]
        assert joules == pytest.approx([50.0] * 12)
        side = measured.sides[arm]
        assert side.telemetry is not None
        assert side.telemetry.seconds == pytest.approx(6.0)
        assert (side.telemetry.server_cpu_seconds, side.rejected) == (None, ())
        assert side.idle_watts == pytest.approx(100.0)


@pytest.mark.parametrize(
    ("by_turns", "blocks"),
    [
        pytest.param(False, BLOCKS, id="after a round"),
        pytest.param(True, BLOCKS, id="by turns"),
        pytest.param(False, 3, id="after a first look at which the round was sound"),
    ],
)
def test_memory_that_is_not_given_back_makes_a_round_invalid(stage: Stage, blocks: int, *, by_turns: bool) -> None:
    """Also where it shows only after the round's last look."""
    stage.eyes.card = lambda _: {"memory_used_bytes": (400 + (300 if stage.turns else 0)) * MIB}
    both = stage.pair(by_turns=by_turns, on_card=True)
    both.measure(blocks)
    if both.blocks_of_open_round:
        assert both.rounds[0].problems == ()
        both.close()
    ((problem,),) = (measured.problems for measured in both.rounds)
    assert problem.startswith("memory not given back")


def test_what_a_failed_start_left_behind_spoils_the_round_after_it(stage: Stage) -> None:
    """A second server that found no memory, and kept what it had, is noted; the round by turns proves nothing."""
    stage.failing = lambda arm, start: ServerFailed(f"{arm}: CUDA out of memory") if start == 1 else None
    stage.eyes.card = lambda _: {"memory_used_bytes": (400 + (300 if stage.starts else 0)) * MIB}
    measured = stage.round(on_card=True)
    assert measured.by_turns
    (problem,) = measured.problems
    assert problem.startswith("memory not given back")
    assert stage.notes == [problem]
