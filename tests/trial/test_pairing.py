"""Rounds of two servers that are not there: how long turns are, what is thrown away, what is judged, and when."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from pytest_gpuserve.device.contention import CpuReading
from pytest_gpuserve.errors import GpuserveError, ServerFailed
from pytest_gpuserve.gate.sequential import BLOCKS
from pytest_gpuserve.load.schedule import Burst, Closed, Constant, Poisson
from pytest_gpuserve.load.totals import Totals, total
from pytest_gpuserve.load.wire import Latencies, Tick
from pytest_gpuserve.measure.rounds import ABBA, ARMS, BAAB, Side
from pytest_gpuserve.trial import by_turns, pairing
from pytest_gpuserve.trial.by_turns import TURNS_ALONE
from pytest_gpuserve.trial.contender import (
    MOST_TICKS,
    MOST_TICKS_FOR_REQUESTS,
    SETTLE_TICKS,
    Contender,
    Pace,
    _overload,
)
from pytest_gpuserve.trial.disturbed import MOST_AGAIN
from pytest_gpuserve.trial.handle import Target
from pytest_gpuserve.trial.pairing import MOST_REJECTED, BaseFailed, Pairing, Terms
from pytest_gpuserve.trial.shape import TICKS_A_WINDOW, LoadShape
from pytest_gpuserve.trial.telemeter import NOBODY, Telemeter
from tests.fakes.scripted_eyes import MIB, UUID, ScriptedEyes
from tests.servers.pairs import Seen
from tests.support.builders import window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import ExitStack

    from pytest_gpuserve.load.schedule import Schedule
    from pytest_gpuserve.measure.rounds import Arm
    from pytest_gpuserve.measure.window import Window
    from pytest_gpuserve.servers.instance import Instance
    from pytest_gpuserve.trial.handle import ServerHandle
    from pytest_gpuserve.trial.watch import Watch

TICK_NS = 100_000_000
TURN_NS = 5 * TICK_NS

# -- pace


def ticks(count: int, requests: int, latency_seconds: float) -> list[Tick]:
    """Ticks of so many requests each."""
    taken_ns = round(latency_seconds * 1e9)
    latency = Latencies({1: requests}, taken_ns * requests, taken_ns) if requests else Latencies()
    return [Tick(n, n * TICK_NS, (n + 1) * TICK_NS, requests=requests, latency=latency) for n in range(count)]


def pace(warmup: list[Tick], *, wanted: int = 1, seconds: float | None = None) -> Pace:
    """The pace of a server whose warm-up looked like this."""
    shape = LoadShape(Closed(4), seconds=seconds)
    return Contender("base", cast("Watch", None), shape, _warmup=warmup).pace(wanted)


@pytest.mark.parametrize(
    ("requests", "latency_seconds", "wanted", "expected"),
    [
        pytest.param(100, 0.001, 1, Pace(SETTLE_TICKS, TICKS_A_WINDOW), id="a fast server"),
        pytest.param(100, 0.001, 2400, Pace(SETTLE_TICKS, 12), id="a block has the requests that are wanted"),
        pytest.param(1, 0.001, 10**6, Pace(SETTLE_TICKS, MOST_TICKS_FOR_REQUESTS), id="but not at any price"),
        pytest.param(10, 0.05, 1, Pace(SETTLE_TICKS, 10), id="twenty latencies"),
        pytest.param(10, 0.4, 1, Pace(8, 80), id="a turn settles for two latencies"),
        pytest.param(1, 60.0, 1, Pace(MOST_TICKS, MOST_TICKS), id="but not for ever"),
        pytest.param(0, 0.0, 10**6, Pace(SETTLE_TICKS, TICKS_A_WINDOW), id="nothing known"),
    ],
)
def test_turns_are_as_long_as_the_warm_up_asks_for(
    requests: int, latency_seconds: float, wanted: int, expected: Pace
) -> None:
    """By its rate and by its mean latency, with bounds."""
    assert pace(ticks(10, requests, latency_seconds), wanted=wanted) == expected


def test_only_the_later_half_of_the_warm_up_counts() -> None:
    """The first requests of a fresh server say nothing of the later ones."""
    warmup = ticks(10, 10, 30.0)[:5] + ticks(10, 100, 0.001)[5:]
    assert pace(warmup) == Pace(SETTLE_TICKS, TICKS_A_WINDOW)


@pytest.mark.parametrize(("seconds", "expected"), [(0.5, 5), (4.0, 5), (8.0, 10), (40.0, 50)])
def test_longer_loads_have_longer_windows(seconds: float, expected: int) -> None:
    """The measured time of a start is that of eight windows, and never shorter than one."""
    assert pace(ticks(10, 100, 0.001), seconds=seconds).window == expected


def test_both_servers_have_the_slower_pace() -> None:
    """Of each part."""
    assert pairing._slower(Pace(2, 30), Pace(9, 5)) == Pace(9, 30)


# -- overload


def seen(requests: int, due: int) -> Totals:
    """Totals of an open loop."""
    return total([Tick(0, 0, 5 * TICK_NS, requests=requests, due=due)])


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
    assert bool(_overload(seen(requests, due), LoadShape(schedule))) == expected


# -- rounds of fakes


@dataclass
class Stage:
    """Where fakes of both servers play.

    Args:
        rate: Requests of the so manieth window of a server.
        trouble: What goes wrong in the so manieth window of a server.
        restless: What goes wrong as a server comes to rest for the so manieth time, from 1.
        verdict: What is wrong with all windows together.
        held_up: Whether the client was held up in the so manieth window of a server that was started as the so manieth.
        disturbed: What disturbed all windows together, of a server that was started as the so manieth.
        failing: Which of the starts fail, and how.
        varies: Whether what is sent differs from one time to another.
        eyes: Look at the card, where there is one; each turn takes half a second of theirs.
        notes: What was noted of it.
    """

    rate: Callable[[Arm, int], int] = lambda _arm, _number: 10
    trouble: Callable[[Arm, int], str] = lambda _arm, _number: ""
    restless: Callable[[Arm, int], str] = lambda _arm, _rests: ""
    verdict: Callable[[Arm], str] = lambda _arm: ""
    held_up: Callable[[int, int], bool] = lambda _start, _number: False
    disturbed: Callable[[int], str] = lambda _start: ""
    failing: Callable[[Arm, int], ServerFailed | None] = lambda _arm, _start: None
    varies: bool = False
    starts: list[Arm] = field(default_factory=list)
    alive: list[FakeContender] = field(default_factory=list)
    turns: list[tuple[Arm, Pace, int]] = field(default_factory=list)
    begun: list[tuple[Arm, bool]] = field(default_factory=list)
    eyes: ScriptedEyes = field(default_factory=ScriptedEyes)
    notes: list[str] = field(default_factory=list)


@dataclass(eq=False)
class FakeContender:
    """A server without a process."""

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
        """Say so."""
        return self.stage.varies

    def pace(self, requests_wanted: int) -> Pace:
        """Say how long."""
        return Pace(requests_wanted, 7)

    def turn(self, pace: Pace, *, seed: int) -> Window | None:
        """Be loaded."""
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
        """Say whether the client was held up."""
        return ("client held up: for 9 %",) if id(window) in self.held_up else ()

    def members(self) -> tuple[int, ...]:
        """There are no processes."""
        return ()

    def rest(self) -> None:
        """Rest."""
        if self.loading:
            self.rests += 1
            self.loading = False
            problem = self.stage.restless(self.arm, self.rests)
            self.problems.extend([problem] if problem else [])

    def warm_up(self, stack: ExitStack) -> None:
        """It is warm."""

    def discard(self, windows: Iterable[Window]) -> None:
        """Forget."""
        gone = {id(each) for each in windows}
        self.windows = [each for each in self.windows if id(each) not in gone]

    def judge(self) -> None:
        """Look at all."""
        problem, disturbance = self.stage.verdict(self.arm), self.stage.disturbed(self.start)
        self.problems.extend([problem] if problem else [])
        self.disturbances.extend([disturbance] if disturbance else [])

    def side(self) -> Side:
        """Tell."""
        return Side((1.0,), answers=len(self.windows))


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    """Have fakes instead of servers."""
    there = Stage()

    @contextmanager
    def living(one: FakeContender) -> Iterator[FakeContender]:
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
    ) -> FakeContender:
        number = len(there.starts)
        there.starts.append(arm)
        failure = there.failing(arm, number)
        if beside is not None:
            beside()
        if failure is not None:
            raise failure
        return stack.enter_context(living(FakeContender(arm, there, number)))

    monkeypatch.setattr(Contender, "started", started)
    return there


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Cores that others take, of each block to come; none after these."""
    taken: list[float] = []
    for module in (pairing, by_turns):
        monkeypatch.setattr(module, "our_processes", lambda _: [])
        monkeypatch.setattr(module, "read_cpu", lambda _ours: CpuReading(0.0, 0.0, 0.0, 0.0))
        monkeypatch.setattr(module, "cores_taken_by_others", lambda _before, _after: taken.pop(0) if taken else 0.0)
    return taken


def pair(*, by_turns: bool = False, telemeter: Telemeter = NOBODY) -> Pairing:
    """A pairing of fakes, whose seed makes it repeatable."""
    terms = Terms(LoadShape(Closed(4)), 3, most_foreign_cores=0.5, by_turns=by_turns, seed="s")
    target = Target(cast("ServerHandle", None), (), telemeter=telemeter)
    return Pairing(target, target, terms, Seen())


def test_a_round_goes_on_in_the_same_servers(stage: Stage, foreign: list[float]) -> None:
    """From the first look to the full round; then they end, and the next round has others."""
    del foreign
    both = pair()
    both.measure(3)
    assert (len(both.rounds), len(both.rounds[0].blocks), len(stage.alive), both.blocks_of_open_round) == (1, 3, 2, 3)
    assert not any(one.loading for one in stage.alive)
    both.measure(BLOCKS)
    assert (len(both.rounds), len(both.rounds[0].blocks), len(stage.alive), both.blocks_of_open_round) == (1, 6, 0, 0)
    assert len(stage.starts) == 2
    both.measure(BLOCKS)
    assert (len(both.rounds), len(stage.starts), len(stage.turns)) == (2, 4, 48)
    assert {block.order for measured in both.rounds for block in measured.blocks} == {ABBA, BAAB}
    assert {turn[1] for turn in stage.turns} == {Pace(3, 7)}


@pytest.mark.parametrize("varies", [False, True])
def test_what_varies_is_the_same_for_both_servers(stage: Stage, foreign: list[float], *, varies: bool) -> None:
    """Such a load begins afresh in each window, with a seed that both servers get once; another one may go on."""
    del foreign
    stage.varies = varies
    pair().measure(BLOCKS)
    seeds: dict[Arm, list[int]] = {arm: [seed for turn, _, seed in stage.turns if turn == arm] for arm in ARMS}
    assert seeds["base"] == seeds["candidate"]
    assert len(set(seeds["base"])) == 2 * BLOCKS
    begun = sum(afresh for _, afresh in stage.begun)
    assert begun == 4 * BLOCKS if varies else begun <= 3 * BLOCKS + 1


@pytest.mark.parametrize("rejected", [1, MOST_REJECTED, MOST_REJECTED + 4])
def test_blocks_that_others_disturbed_are_measured_again_up_to_a_bound(
    stage: Stage, foreign: list[float], rejected: int
) -> None:
    """A host that is never quiet is measured as it is, and what was thrown away is judged no more."""
    foreign += [0.6] * rejected
    both = pair()
    both.measure(3)
    (measured,) = both.rounds
    thrown = min(rejected, MOST_REJECTED)
    assert len(measured.blocks) == 3
    assert measured.rejected == thrown
    assert len(stage.turns) == 4 * (3 + thrown)
    assert measured.foreign_cores == (0.6 if rejected > MOST_REJECTED else 0.0)
    assert {arm: side.answers for arm, side in measured.sides.items()} == {"base": 6, "candidate": 6}
    both.close()


def test_servers_that_drift_apart_are_measured_on_once(stage: Stage, foreign: list[float]) -> None:
    """As long again; then the later half counts."""
    del foreign
    stage.rate = lambda arm, number: 100 + (10 * min(number, 12) if arm == "candidate" else 0)
    both = pair()
    both.measure(BLOCKS)
    (measured,) = both.rounds
    assert (len(stage.turns), len(measured.blocks), measured.rejected) == (48, BLOCKS, BLOCKS)
    assert {arm: side.answers for arm, side in measured.sides.items()} == {"base": 12, "candidate": 12}
    assert measured.windows("candidate")[0].requests == 220
    assert not stage.alive
    assert measured.problems == ()


@pytest.mark.parametrize("fresh_are_steady", [True, False])
def test_a_round_that_drifts_on_is_taken_again_once(
    stage: Stage, foreign: list[float], *, fresh_are_steady: bool
) -> None:
    """With fresh servers, and what was dropped is told; where these drift on too there is no steady state."""
    del foreign

    def rate(arm: Arm, number: int) -> int:
        steady = fresh_are_steady and len(stage.starts) > 2
        return 100 + (10 * number if arm == "candidate" and not steady else 0)

    stage.rate = rate
    both = pair()
    both.measure(3)
    both.measure(BLOCKS)
    (measured,) = both.rounds
    assert len(stage.starts) == 4
    assert not stage.alive
    assert len(measured.blocks) == BLOCKS
    assert [problem[:15] for problem in measured.problems] == ([] if fresh_are_steady else ["no steady state"])
    assert measured.rejected == (2 if fresh_are_steady else 3) * BLOCKS
    for arm in ARMS:
        assert len(measured.sides[arm].rejected) == 4 * BLOCKS
        assert all(text.startswith("no steady state") for text in measured.sides[arm].rejected)


def test_each_round_may_be_taken_again(stage: Stage, foreign: list[float]) -> None:
    """What happened in the one before is no reason to refuse the next."""
    del foreign
    stage.disturbed = lambda start: "client late: by 3 ms" if start in {0, 4} else ""
    both = pair()
    both.measure(3)
    both.measure(BLOCKS)
    both.measure(BLOCKS)
    assert [measured.problems for measured in both.rounds] == [(), ()]
    assert len(stage.starts) == 8
    assert [measured.rejected for measured in both.rounds] == [3, BLOCKS]


@pytest.mark.parametrize("by_turns", [False, True])
def test_a_late_client_disturbs_what_is_measured_again(stage: Stage, foreign: list[float], *, by_turns: bool) -> None:
    """Only where it is late again, side by side in the next round, or in each fresh start alone, is that a verdict."""
    del foreign
    stage.disturbed = lambda start: "client late: by 3 ms" if start == 1 else ""
    both = pair(by_turns=by_turns)
    both.measure(BLOCKS)
    (measured,) = both.rounds
    assert measured.problems == ()
    assert len(stage.starts) == (5 if by_turns else 4)
    assert {text for arm in ARMS for text in measured.sides[arm].rejected} <= {
        "client late: by 3 ms",
        "the base: client late: by 3 ms",
    }
    stage.disturbed = lambda _start: "client late: by 3 ms"
    both.measure(BLOCKS)
    assert any("client late: by 3 ms" in problem for problem in both.rounds[-1].problems)
    assert not stage.alive


def test_what_is_no_disturbance_is_not_taken_again(stage: Stage, foreign: list[float]) -> None:
    """A round with another problem stands, whatever disturbed it besides."""
    del foreign
    stage.disturbed = lambda _start: "client late: by 3 ms"
    stage.verdict = lambda arm: "wrong answers" if arm == "candidate" else ""
    both = pair()
    both.measure(BLOCKS)
    (measured,) = both.rounds
    assert "wrong answers" in measured.problems
    assert len(stage.starts) == 2


def test_servers_that_drift_together_are_steady_enough(stage: Stage, foreign: list[float]) -> None:
    """What both have in common is the machine's, and cancels."""
    del foreign
    stage.rate = lambda _arm, number: 100 + 10 * number
    both = pair()
    both.measure(BLOCKS)
    assert len(stage.turns) == 24
    assert both.rounds[0].problems == ()


@pytest.mark.parametrize("blocks", [3, BLOCKS])
@pytest.mark.parametrize("arm", ARMS)
def test_what_is_wrong_with_the_measurement_is_told_at_every_look(
    stage: Stage, foreign: list[float], arm: Arm, blocks: int
) -> None:
    """A verdict may be reached by the first one: it must not rest on a client that measured itself."""
    del foreign
    stage.verdict = lambda judged: "client saturated" if judged == arm else ""
    both = pair()
    both.measure(blocks)
    (measured,) = both.rounds
    assert measured.problems == ("client saturated" if arm == "candidate" else "the base: client saturated",)
    assert len(measured.blocks) == blocks
    assert not stage.alive


@pytest.mark.parametrize("arm", ARMS)
def test_trouble_ends_the_round_at_once(stage: Stage, foreign: list[float], arm: Arm) -> None:
    """With the blocks that were whole."""
    del foreign
    stage.trouble = lambda one, number: "wrong answers" if (one, number) == (arm, 5) else ""
    both = pair()
    both.measure(BLOCKS)
    (measured,) = both.rounds
    assert measured.problems == ("wrong answers" if arm == "candidate" else "the base: wrong answers",)
    assert len(measured.blocks) == 2
    assert not stage.alive


@pytest.mark.parametrize("arm", ARMS)
def test_what_shows_as_a_server_comes_to_rest_ends_the_round_at_once(
    stage: Stage, foreign: list[float], arm: Arm
) -> None:
    """The other one takes no further turn, and the block that was not whole is no part of it."""
    del foreign
    turns_before: list[int] = []

    def restless(one: Arm, rests: int) -> str:
        if (one, rests) != (arm, 2):
            return ""
        turns_before.append(len(stage.turns))
        return "lost in mid-load"

    stage.restless = restless
    both = pair()
    both.measure(BLOCKS)
    (measured,) = both.rounds
    assert measured.problems == ("lost in mid-load" if arm == "candidate" else "the base: lost in mid-load",)
    assert [len(stage.turns)] == turns_before
    assert len(measured.blocks) == len(stage.turns) // 4
    assert not stage.alive


# -- one at a time


def test_one_at_a_time_each_window_has_a_start(stage: Stage, foreign: list[float]) -> None:
    """A block of four, longer by so much as there are starts for fewer windows; each call is a round."""
    foreign += [0.0, 0.2, 0.1, 0.0]
    both = pair(by_turns=True)
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


@pytest.mark.parametrize("arm", ARMS)
def test_of_a_start_that_was_lost_nothing_else_is_judged(stage: Stage, foreign: list[float], arm: Arm) -> None:
    """Alone as side by side: what its client looked like then is no second reason."""
    del foreign
    stage.restless = lambda one, _: "lost in mid-load" if one == arm else ""
    stage.verdict = lambda one: "client saturated" if one == arm else ""
    both = pair(by_turns=True)
    both.measure(BLOCKS)
    (measured,) = both.rounds
    assert measured.problems == ("lost in mid-load" if arm == "candidate" else "the base: lost in mid-load",)
    assert stage.starts[-1] == arm
    assert not stage.alive


@pytest.mark.parametrize("words", ["CUDA out of memory", "std::bad_alloc", "killed by SIGKILL"])
def test_a_second_server_without_memory_is_started_after_the_first(
    stage: Stage, foreign: list[float], words: str
) -> None:
    """From then on for good; what was measured beside each other stays."""
    del foreign
    stage.failing = lambda arm, start: ServerFailed(f"{arm}: {words}") if start == 3 else None
    both = pair()
    both.measure(BLOCKS)
    both.measure(BLOCKS)
    both.measure(BLOCKS)
    assert [measured.by_turns for measured in both.rounds] == [False, True, True]
    assert both.by_turns
    assert len(stage.starts) == 2 + 2 + 4 + 4


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("words", ["CUDA out of memory", "no such file"])
def test_other_failures_are_failures(stage: Stage, foreign: list[float], arm: Arm, words: str) -> None:
    """One that does not fit even by itself fails, and what is no lack of memory is not helped by turns."""
    del foreign
    stage.failing = lambda failing, _start: ServerFailed(words) if failing == arm else None
    both = pair()
    with pytest.raises(GpuserveError, match=words) as caught:
        both.measure(3)
    assert caught.type is (ServerFailed if arm == "candidate" else BaseFailed)
    assert both.rounds == []
    assert both.by_turns is (words != "no such file")
    assert not stage.alive


# -- held up


@pytest.mark.parametrize("by_turns", [False, True])
def test_a_turn_in_which_the_client_was_held_up_is_measured_again(
    stage: Stage, foreign: list[float], *, by_turns: bool
) -> None:
    """Side by side with its block, alone with its start; and it is told."""
    del foreign
    stage.held_up = lambda start, number: (start, number) == (1, 0)
    both = pair(by_turns=by_turns)
    both.measure(BLOCKS)
    (measured,) = both.rounds
    assert (measured.problems, measured.rejected) == ((), 1)
    assert len(stage.turns) == (5 if by_turns else 4 * (BLOCKS + 1))
    reasons = [text for arm in ARMS for text in measured.sides[arm].rejected]
    assert reasons == ["client held up: for 9 %"] * (1 if by_turns else 4)
    assert {arm: side.answers for arm, side in measured.sides.items()} == dict.fromkeys(ARMS, 2 if by_turns else 12)


@pytest.mark.parametrize("by_turns", [False, True])
def test_a_client_that_is_held_up_again_and_again_makes_a_round_invalid(
    stage: Stage, foreign: list[float], *, by_turns: bool
) -> None:
    """After more than a third of a round, and with the reason."""
    del foreign
    stage.held_up = lambda _start, _number: True
    both = pair(by_turns=by_turns)
    both.measure(BLOCKS)
    (measured,) = both.rounds
    (problem,) = measured.problems
    assert problem.startswith("client held up: for 9 %; disturbed were ")
    assert measured.rejected == MOST_AGAIN + 1
    assert not stage.alive


# -- on a card

HOT = 0x40


def on_card(stage: Stage, *, by_turns: bool = False) -> Pairing:
    """A pairing of fakes at a card."""
    return pair(
        by_turns=by_turns, telemeter=Telemeter([UUID], lambda: stage.eyes, stage.notes.append, clock=stage.eyes.clock)
    )


def in_turn(stage: Stage, number: int) -> bool:
    """Whether this turn, from 1, is under way."""
    return len(stage.turns) == number and any(one.loading for one in stage.alive)


def test_a_round_on_a_card_is_told_what_the_card_did(stage: Stage, foreign: list[float]) -> None:
    """Each window and each side has it, with the power of both servers at rest; whose CPU time it was is not told."""
    del foreign
    both = on_card(stage)
    both.measure(BLOCKS)
    (measured,) = both.rounds
    assert (measured.problems, measured.rejected, stage.notes) == ((), 0, [])
    for arm in ARMS:
        joules = [each.cards.joules for each in measured.windows(arm) if each.cards is not None]
        assert joules == pytest.approx([50.0] * 12)
        side = measured.sides[arm]
        assert side.telemetry is not None
        assert side.telemetry.seconds == pytest.approx(6.0)
        assert (side.telemetry.server_cpu_seconds, side.rejected) == (None, ())
        assert side.idle_watts == pytest.approx(100.0)


@pytest.mark.parametrize("by_turns", [False, True])
def test_what_a_hot_card_disturbed_is_measured_again(stage: Stage, foreign: list[float], *, by_turns: bool) -> None:
    """Whole blocks side by side, alone one start; what was thrown away is judged no more."""
    del foreign
    stage.eyes.card = lambda _: {"clock_reasons": HOT if in_turn(stage, 2) else 0}
    both = on_card(stage, by_turns=by_turns)
    both.measure(BLOCKS)
    (measured,) = both.rounds
    assert measured.problems == ()
    assert measured.rejected == 1
    assert len(stage.turns) == (5 if by_turns else 4 * (BLOCKS + 1))
    assert {arm: side.answers for arm, side in measured.sides.items()} == dict.fromkeys(ARMS, 2 if by_turns else 12)
    assert all(each.cards is not None for arm in ARMS for each in measured.windows(arm))
    reasons = [text for arm in ARMS for text in measured.sides[arm].rejected]
    assert len(reasons) == (1 if by_turns else 4)
    assert all("HW_THERMAL_SLOWDOWN" in text for text in reasons)


@pytest.mark.parametrize("by_turns", [False, True])
def test_a_card_that_is_never_well_makes_a_round_invalid(stage: Stage, foreign: list[float], *, by_turns: bool) -> None:
    """Unlike a host that is never quiet, for the card of tomorrow may be well."""
    del foreign
    stage.eyes.card = lambda _: {"clock_reasons": HOT}
    both = on_card(stage, by_turns=by_turns)
    both.measure(BLOCKS)
    (measured,) = both.rounds
    (problem,) = measured.problems
    assert problem.startswith("throttled: ")
    assert measured.blocks == ()
    assert len(stage.turns) == (MOST_AGAIN + 1) * (1 if by_turns else 4)
    assert not stage.alive


@pytest.mark.parametrize("by_turns", [False, True])
def test_memory_that_is_not_given_back_makes_a_round_invalid(
    stage: Stage, foreign: list[float], *, by_turns: bool
) -> None:
    """Also where it shows only after the round's last look."""
    del foreign
    stage.eyes.card = lambda _: {"memory_used_bytes": (400 + (300 if stage.turns else 0)) * MIB}
    both = on_card(stage, by_turns=by_turns)
    both.measure(BLOCKS)
    (measured,) = both.rounds
    (problem,) = measured.problems
    assert problem.startswith("memory not given back")


def test_what_a_failed_start_left_behind_spoils_the_round_after_it(stage: Stage, foreign: list[float]) -> None:
    """A second server that found no memory, and kept what it had, is noted; the round by turns proves nothing."""
    del foreign
    stage.failing = lambda arm, start: ServerFailed(f"{arm}: CUDA out of memory") if start == 1 else None
    stage.eyes.card = lambda _: {"memory_used_bytes": (400 + (300 if stage.starts else 0)) * MIB}
    both = on_card(stage)
    both.measure(3)
    (measured,) = both.rounds
    assert measured.by_turns
    (problem,) = measured.problems
    assert problem.startswith("memory not given back")
    assert stage.notes == [problem]


def test_servers_that_end_after_a_look_may_spoil_their_round(stage: Stage, foreign: list[float]) -> None:
    """Memory that an open round's servers keep makes it invalid, though it was sound at its look."""
    del foreign
    stage.eyes.card = lambda _: {"memory_used_bytes": (400 + (300 if stage.turns else 0)) * MIB}
    both = on_card(stage)
    both.measure(3)
    assert not any(measured.problems for measured in both.rounds)
    both.close()
    (problem,) = both.rounds[0].problems
    assert problem.startswith("memory not given back")
