"""Rounds of two servers that are not there: how long turns are, what is thrown away, what is judged, and when."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_gpuserve.device.gpu_probe import GpuProcess
from pytest_gpuserve.errors import GpuserveError, LoadFailed, ServerFailed
from pytest_gpuserve.experiment.loaded import overload
from pytest_gpuserve.experiment.pairing import MOST_AGAIN, MOST_REJECTED, BaseFailed
from pytest_gpuserve.experiment.shape import LEAST_TICKS, MOST_TICKS, SECONDS, SETTLE_TICKS, LoadShape, Pace, pace_of
from pytest_gpuserve.load.schedule import Closed, Poisson, Schedule, Steps
from pytest_gpuserve.measure.histogram import Histogram
from pytest_gpuserve.measure.rounds import ABBA, ARMS, BAAB, Arm, Round
from pytest_gpuserve.measure.window import Window, total
from pytest_gpuserve.verdict.evidence import BLOCKS
from pytest_gpuserve.verdict.reason import ReasonKind
from tests.experiment.conftest import LOST, USERS, Stage, either_arm, either_way, told
from tests.fakes.scripted_engines import MIB, TICK_NS
from tests.support.builders import kinds, said

NS = 1_000_000_000
HOT = {"clock_reasons": 0x40}
LATE, HELD_UP = 2, 5
"""Late beats in half a second: so many disturb the whole of a start, and so many each window by itself."""

LATE_TEXT = "client held up"


# -- pace and overload


def ticks(count: int, requests: int, latency_seconds: float) -> list[Window]:
    """Ticks of so many requests each."""
    taken_ns = round(latency_seconds * 1e9)
    latency = Histogram({1: requests}, taken_ns * requests, taken_ns) if requests else Histogram()
    return [Window(n, n * TICK_NS, (n + 1) * TICK_NS, requests=requests, latency=latency) for n in range(count)]


FAST = ticks(10, 100, 0.001)


@pytest.mark.parametrize(
    ("warmup", "seconds", "wanted", "expected"),
    [
        pytest.param(FAST, None, 1, Pace(SETTLE_TICKS, LEAST_TICKS), id="a fast server"),
        pytest.param(
            FAST, None, 2400, Pace(SETTLE_TICKS, 7), id="two blocks have the requests that are wanted, and a tenth more"
        ),
        pytest.param(ticks(10, 10, 0.001), None, 1000, Pace(SETTLE_TICKS, 19), id="of a slow server three blocks"),
        pytest.param(ticks(10, 8, 0.001), None, 1000, Pace(SETTLE_TICKS, LEAST_TICKS), id="what nothing reaches"),
        pytest.param(ticks(10, 10, 0.05), None, 1, Pace(SETTLE_TICKS, 10), id="so many latencies"),
        pytest.param(ticks(10, 10, 0.4), None, 1, Pace(8, 80), id="a turn settles for two latencies"),
        pytest.param(ticks(10, 1, 60.0), None, 1, Pace(MOST_TICKS, MOST_TICKS), id="but not for ever"),
        pytest.param(ticks(10, 0, 0.0), None, 10**6, Pace(SETTLE_TICKS, LEAST_TICKS), id="nothing known"),
        pytest.param(ticks(5, 10, 30.0) + FAST[5:], None, 1, Pace(SETTLE_TICKS, LEAST_TICKS), id="its later half"),
        pytest.param(FAST, 40.0, 1, Pace(SETTLE_TICKS, 40), id="a longer load has longer windows"),
    ],
)
def test_turns_are_as_long_as_the_warm_up_asks_for(
    warmup: list[Window], seconds: float | None, wanted: int, expected: Pace
) -> None:
    """The length follows from rate, mean latency and the user's time, within bounds."""
    shape = LoadShape(Closed(4), seconds=seconds, requests_wanted=(wanted,))
    assert pace_of(warmup, shape, 0.05) == expected


@pytest.mark.parametrize(
    ("tolerance", "fast", "slow"), [(0.02, 4, 200), (0.05, 4, 80), (0.1, 4, 40), (0.15, 3, 32), (0.3, 3, 32)]
)
def test_windows_are_as_long_as_the_tolerance_needs(tolerance: float, fast: int, slow: int) -> None:
    """By how many answers each holds, or 0.4 s; of a tolerance that few servers miss by chance less."""
    for warmup, window in ((FAST, fast), (ticks(10, 10, 0.4), min(slow, MOST_TICKS))):
        assert pace_of(warmup, LoadShape(Closed(4), requests_wanted=(1,)), tolerance).window == window


@pytest.mark.parametrize(
    ("schedule", "requests", "due", "expected"),
    [
        (Poisson(1.0), 9300, 10_000, False),
        (Poisson(1.0), 9100, 10_000, True),
        (Poisson(1.0), 64, 100, True),
        (Poisson(1.0), 65, 100, False),
        (Closed(4), 0, 10_000, False),
    ],
)
def test_an_open_loop_whose_requests_are_not_answered_is_overloaded(
    schedule: Schedule, requests: int, due: int, *, expected: bool
) -> None:
    """By more than chance makes of so many; other loads wait for their answers anyway."""
    seen = total([Window(0, 0, 5 * TICK_NS, requests=requests, due=due)])
    assert bool(overload(seen, schedule)) == expected


# -- rounds


def windows(measured: Round) -> set[int]:
    """Number of judged windows of a server."""
    return {len(measured.windows(arm)) for arm in ARMS}


def lags(measured: Round) -> list[int]:
    """Number of sends in the judged windows of each server."""
    return [Window.pooled(measured.windows(arm)).lag.total for arm in ARMS]


def rejected(measured: Round) -> list[str]:
    """Why windows were thrown away."""
    return [text for arm in ARMS for start in measured.starts[arm] for text in start.rejected]


def test_a_warm_up_waits_for_the_first_answers_of_a_slow_server(stage: Stage) -> None:
    """A warm-up of 0.3 s goes on until its later half has an answer, which tells how long windows have to be."""
    stage.rate = lambda arm, number: 0 if number == -1 and stage.asked.count((arm, "tick")) <= 20 else 100
    stage.pair().measure(3)
    asked = [what for arm, what in stage.asked if arm == "base"]
    assert asked[: asked.index("halt")] == ["ready", *["tick"] * 21]


def test_a_warm_up_without_an_answer_ends_with_the_timeout_of_a_request(stage: Stage) -> None:
    """A server that answers nothing does not hold the round up for longer."""
    stage.rate = lambda _arm, _number: 0
    measured = stage.round(replace(USERS, timeout_seconds=1.0))
    asked = [what for arm, what in stage.asked if arm == "base"]
    assert asked[: asked.index("halt")].count("tick") == 13
    assert {*kinds(measured.problems)} == {ReasonKind.NOTHING_MEASURED}


def test_a_round_goes_on_in_the_same_servers(stage: Stage) -> None:
    """From the first look to the full round, at the slower pace; the next round has others, and these end before."""
    # Twenty latencies of the base are eight ticks.
    stage.rate = lambda arm, number: 10 if (arm, number) == ("base", -1) else 100
    both = stage.pair()
    both.measure(3)
    assert (len(both.rounds), both.rounds[0].blocks, len(stage.running), both.blocks_of_open_round) == (1, 3, 2, 3)
    assert not any(one.loading for one in stage.running)
    assert [what for arm, what in stage.asked if arm == "base"][:5] == ["ready", "tick", "tick", "tick", "halt"]
    both.measure(BLOCKS)
    assert (len(both.rounds), both.rounds[0].blocks, len(stage.running), both.blocks_of_open_round) == (1, 6, 2, 0)
    assert len(stage.starts) == 2
    both.measure(BLOCKS)
    assert (len(both.rounds), len(stage.starts), len(stage.running)) == (2, 4, 2)
    # Eight ticks are two windows of the stage.
    assert {tuple(stage.turns[at : at + 8 : 2]) for at in range(0, len(stage.turns), 8)} == {ABBA, BAAB}
    assert {window.requests for each in both.rounds for arm in ARMS for window in each.windows(arm)} == {8 * 100}


@pytest.mark.parametrize(
    ("schedule", "requests"), [(Closed(4), 1), (Closed(4), 2), (Poisson(1000.0), 1)], ids=["one", "several", "open"]
)
def test_what_varies_is_the_same_for_both_servers(stage: Stage, schedule: Schedule, requests: int) -> None:
    """Such a load begins afresh in each window, with a seed that both servers get once; another one may go on."""
    both = stage.pair(LoadShape(schedule, warmup_seconds=0.3), requests=requests)
    both.measure(BLOCKS)
    begun = sum(what == "begin" for _, what in stage.asked)
    varies = requests > 1 or schedule != Closed(4)
    assert begun == 4 * BLOCKS if varies else begun <= 3 * BLOCKS + 1
    base, candidate = ([seed for seed in stage.seeds[arm] if seed] for arm in ARMS)
    assert base == candidate
    assert len(set(base)) == (2 * BLOCKS if schedule != Closed(4) else 0)


@pytest.mark.parametrize("disturbed", [1, MOST_REJECTED, MOST_REJECTED + 4])
def test_blocks_that_others_disturbed_are_measured_again_up_to_a_bound(stage: Stage, disturbed: int) -> None:
    """A host that is never quiet is measured as it is, and what was thrown away is judged no more."""
    stage.foreign += [0.6] * disturbed
    both = stage.pair()
    both.measure(3)
    (measured,) = both.rounds
    thrown = min(disturbed, MOST_REJECTED)
    assert (measured.blocks, len(stage.turns)) == (3, 4 * (3 + thrown))
    assert measured.foreign_cores == (0.6 if disturbed > MOST_REJECTED else 0.0)
    assert lags(measured) == [6 * 400] * 2
    both.close()


def test_servers_that_drift_apart_are_measured_on_once(stage: Stage) -> None:
    """As long again; then the later half counts."""
    stage.rate = lambda arm, number: 100 + (10 * min(number, 12) if arm == "candidate" else 0)
    measured = stage.round()
    assert (len(stage.turns), measured.blocks) == (48, BLOCKS)
    assert lags(measured) == [12 * 400, 12 * 880]
    assert {window.requests for window in measured.windows("candidate")} == {220 * LEAST_TICKS}
    assert measured.problems == ()


def test_servers_that_drift_together_are_steady_enough(stage: Stage) -> None:
    """Common drift is the machine's, and cancels."""
    stage.rate = lambda _arm, number: 100 + 10 * number
    assert stage.round().problems == ()
    assert len(stage.turns) == 24


@pytest.mark.parametrize("fresh_are_steady", [True, False])
def test_a_round_that_drifts_on_is_taken_again_once(stage: Stage, *, fresh_are_steady: bool) -> None:
    """The round is repeated with fresh servers and reported; after a second drift the reason is *no steady state*."""

    def rate(arm: Arm, number: int) -> int:
        steady = fresh_are_steady and len(stage.starts) > 2
        return 100 + (10 * number if arm == "candidate" and not steady else 0)

    stage.rate = rate
    both = stage.pair()
    both.measure(3)
    both.measure(BLOCKS)
    (measured,) = both.rounds
    assert (len(stage.starts), len(stage.running), measured.blocks) == (4, 2 * fresh_are_steady, BLOCKS)
    assert kinds(measured.problems) == ([] if fresh_are_steady else [ReasonKind.NO_STEADY_STATE])
    for arm in ARMS:
        told_of = measured.starts[arm][0].rejected
        assert [text.partition(":")[0] for text in told_of] == ["no steady state"] * 4 * BLOCKS


def test_a_round_that_ends_early_leaves_the_next_one_its_chance(stage: Stage) -> None:
    """The next may be taken again once, too, and repeats none of what was thrown away before."""
    stage.late = lambda start, _: LATE if start in {0, 4} else 0
    both = stage.pair()
    for blocks in (3, BLOCKS):
        both.measure(blocks)
        both.close()
    assert [(measured.problems, measured.blocks) for measured in both.rounds] == [((), 3), ((), BLOCKS)]
    assert [len(rejected(measured)) for measured in both.rounds] == [4 * 3, 4 * BLOCKS]


@either_way
def test_a_late_client_disturbs_what_is_measured_again(stage: Stage, *, alone: bool) -> None:
    """Only where it is late again, side by side in the next round, or in each fresh start alone, is that a verdict."""

    def late(number: int) -> int:
        # A window of five ticks, as alone, is late in one of them too.
        return 0 if alone and number % 5 == 1 else LATE

    stage.late = lambda start, number: late(number) if start == 1 else 0
    both = stage.pair(alone=alone)
    both.measure(BLOCKS)
    (measured,) = both.rounds
    assert measured.problems == ()
    assert len(stage.starts) == (5 if alone else 4)
    assert all(LATE_TEXT in text for text in rejected(measured))
    stage.late = lambda _, number: late(number)
    both.measure(BLOCKS)
    assert ReasonKind.CLIENT_HELD_UP in kinds(both.rounds[-1].problems)
    assert not stage.running


@pytest.mark.parametrize("late", [0, LATE])
@pytest.mark.parametrize("blocks", [3, BLOCKS])
@either_arm
def test_what_is_wrong_with_the_measurement_is_told_at_every_look(
    stage: Stage, arm: Arm, blocks: int, late: int
) -> None:
    """The first look may reach a verdict; a round with such a problem stays, even if it was disturbed too."""
    stage.compiling, stage.late = {arm}, lambda *_: late
    both = stage.pair()
    both.measure(blocks)
    (measured,) = both.rounds
    (compiled,) = (problem for problem in measured.problems if problem.kind is ReasonKind.COMPILED_UNDER_LOAD)
    assert compiled.text.startswith(told(arm, "compiled under load: "))
    assert (len(measured.problems) > 1, measured.blocks, len(stage.starts)) == (late > 0, blocks, 2)
    assert not stage.running


# -- one at a time


def test_one_at_a_time_each_window_has_a_start(stage: Stage) -> None:
    """Each call is a round of a block of four, on a busy host too; each window is a whole start."""
    stage.foreign += [0.0, 0.9, 0.1, 0.0]
    both = stage.pair(alone=True)
    both.measure(3)
    both.measure(BLOCKS)
    assert [measured.blocks for measured in both.rounds] == [1, 1]
    assert all(measured.one_at_a_time for measured in both.rounds)
    assert stage.turns == stage.starts
    assert {tuple(stage.turns[:4]), tuple(stage.turns[4:])} <= {ABBA, BAAB}
    seconds = [window.seconds for measured in both.rounds for arm in ARMS for window in measured.windows(arm)]
    assert seconds == pytest.approx([SECONDS] * 8)
    assert all(len(start.windows) > 1 for measured in both.rounds for arm in ARMS for start in measured.starts[arm])
    assert both.rounds[0].foreign_cores == 0.9
    assert [start.cold_start_seconds for start in both.rounds[0].starts["base"]] == [1.0, 1.0]
    assert not stage.running


VLLM_IS_FULL = "Free memory on device cuda:0 (7.3/79.2 GiB) on startup is less than desired GPU memory utilization"


@pytest.mark.parametrize(
    "words",
    [
        *("CUDA out of memory", "std::bad_alloc", "killed by SIGKILL"),
        *(VLLM_IS_FULL, "No available memory for the cache blocks", "Not enough memory. Please try to increase"),
    ],
)
def test_a_second_server_without_memory_is_started_after_the_first(stage: Stage, words: str) -> None:
    """From then on for good; what was measured beside each other stays."""
    stage.failing = lambda arm, start: ServerFailed(f"{arm}: {words}") if start == 3 else None
    both = stage.pair()
    for _ in range(3):
        both.measure(BLOCKS)
    assert [measured.one_at_a_time for measured in both.rounds] == [False, True, True]
    assert both.one_at_a_time
    assert len(stage.starts) == 2 + 2 + 4 + 4


@pytest.mark.parametrize(("mib", "back", "left"), [(900, 4.0, False), (300, 9.0, True)])
def test_memory_of_two_servers_that_do_not_fit_is_waited_for(
    stage: Stage, mib: int, back: float, *, left: bool
) -> None:
    """They give it back before the next start, or its round is invalid: it would count as memory of that start."""
    stage.failing = lambda arm, start: ServerFailed(f"{arm}: out of memory") if start == 1 else None
    stage.eyes.gpu = lambda at: {"memory_bytes": (400 + (mib if stage.starts and at < back else 0)) * MIB}
    both = stage.pair(on_gpu=True)
    both.measure(BLOCKS)
    assert [kinds(measured.problems) for measured in both.rounds] == [[ReasonKind.MEMORY_NOT_GIVEN_BACK] * left]


@either_arm
@pytest.mark.parametrize("words", ["CUDA out of memory", "no such file"])
def test_other_failures_are_failures(stage: Stage, arm: Arm, words: str) -> None:
    """A server that does not fit even alone fails; other failures are not solved by alternation."""
    stage.failing = lambda failing, _start: ServerFailed(words) if failing == arm else None
    both = stage.pair()
    with pytest.raises(GpuserveError, match=words) as caught:
        both.measure(3)
    assert caught.type is (ServerFailed if arm == "candidate" else BaseFailed)
    assert (both.rounds, stage.running) == ([], [])
    assert both.one_at_a_time is (words != "no such file")


@either_way
def test_ctrl_c_leaves_neither_servers_nor_a_part_of_a_round(stage: Stage, *, alone: bool) -> None:
    """Ctrl-C reaches pytest, all servers have ended, and only the rounds before it stay."""
    both = stage.pair(alone=alone)
    both.measure(BLOCKS)

    def rate(_arm: Arm, number: int) -> int:
        if number >= 0:
            raise KeyboardInterrupt
        return 10

    stage.rate = rate
    with pytest.raises(KeyboardInterrupt):
        both.measure(BLOCKS)
    assert ([measured.problems for measured in both.rounds], stage.running) == ([()], [])


# -- held up, and on a GPU


@pytest.mark.parametrize("hot", [False, True])
@either_way
def test_a_turn_that_was_disturbed_is_measured_again(stage: Stage, *, alone: bool, hot: bool) -> None:
    """A held up client or a hot GPU repeats a block, or a window of a start; the repeat is reported."""
    if hot:
        stage.eyes.gpu = lambda _: HOT if stage.in_turn(2) and stage.running[-1].measured < LEAST_TICKS else {}
    else:
        stage.late = lambda start, number: HELD_UP if (start, number) == (1, 0) else 0
    measured = stage.round(alone=alone, on_gpu=hot)
    assert measured.problems == ()
    assert len(stage.turns) == 4 * (1 if alone else BLOCKS + 1)
    reasons = rejected(measured)
    assert len(reasons) == (1 if alone else 4)
    assert all(("HW_THERMAL_SLOWDOWN" if hot else LATE_TEXT) in text for text in reasons)
    assert windows(measured) == {2 if alone else 12}
    assert all((each.gpus is not None) is hot for arm in ARMS for each in measured.windows(arm))


@pytest.mark.parametrize("hot", [False, True])
@either_way
def test_what_is_disturbed_again_and_again_makes_a_round_invalid(stage: Stage, *, alone: bool, hot: bool) -> None:
    """After more than a third of a round, with the reason: unlike a busy host a hot GPU may be well tomorrow."""
    if hot:
        stage.eyes.gpu = lambda _: HOT
    else:
        stage.late = lambda *_: HELD_UP
    measured = stage.round(alone=alone, on_gpu=hot)
    (problem,) = measured.problems
    assert problem.kind is (ReasonKind.THROTTLED if hot else ReasonKind.CLIENT_HELD_UP)
    assert " windows were disturbed" in problem.text
    assert measured.blocks == 0
    assert len(stage.turns) == (1 if alone else 4 * (MOST_AGAIN + 1))


@either_way
def test_a_foreign_process_beside_a_server_makes_a_round_invalid(stage: Stage, *, alone: bool) -> None:
    """The servers' own processes are known from when they are up."""
    own, foreign = GpuProcess(7, "server", MIB), GpuProcess(99, "other", MIB)
    stage.eyes.gpu = lambda _: {"processes": (own, foreign) if stage.turns else (own,) if stage.running else ()}
    measured = stage.round(alone=alone, on_gpu=True)
    assert kinds(measured.problems) == [ReasonKind.FOREIGN_PROCESS]


@pytest.mark.parametrize(("alone", "blocks"), [(True, BLOCKS), (False, 3)])
def test_memory_that_is_not_given_back_makes_a_round_invalid(stage: Stage, blocks: int, *, alone: bool) -> None:
    """Also where it shows only after the round's last look."""
    stage.eyes.gpu = lambda _: {"memory_bytes": (400 + (300 if stage.turns else 0)) * MIB}
    both = stage.pair(alone=alone, on_gpu=True)
    both.measure(blocks)
    if both.blocks_of_open_round:
        assert both.rounds[0].problems == ()
        both.close()
        stage.owner.end()
    ((problem,),) = (measured.problems for measured in both.rounds)
    assert problem.kind is ReasonKind.MEMORY_NOT_GIVEN_BACK
    assert alone or stage.notes == [problem.text]


def test_an_error_after_the_last_block_is_that_load_s_own(stage: Stage) -> None:
    """The next load of the same servers would meet it first, so they end, both at the same time."""
    both = stage.pair(on_gpu=True)
    both.measure(3)
    assert both.rounds[0].problems == ()
    late = stage.eyes.now_ns / NS
    stage.eyes.gpu = lambda at: {"uncorrected_ecc": int(at >= late)}
    stage.eyes.live_until(stage.eyes.now_ns + NS)
    both.close()
    assert kinds(both.rounds[0].problems) == [ReasonKind.GPU_ERROR]
    # Each end is awaited for seconds.
    assert (stage.ending, stage.running) == ([2, 2], [])


@either_way
def test_a_load_that_does_not_begin_is_an_error(stage: Stage, *, alone: bool) -> None:
    """No measurement is lost with it, and no server goes on."""
    stage.lost = ("base", "tick", 0)
    both = stage.pair(alone=alone)
    with pytest.raises(LoadFailed, match="the load engine died"):
        both.measure(BLOCKS)
    assert (both.rounds, stage.running) == ([], [])


OPEN, STEPS = (LoadShape(schedule, warmup_seconds=0.3) for schedule in (Poisson(1000.0), Steps(((4, 0.5),))))


@pytest.mark.parametrize(
    ("shape", "what", "number", "alone"),
    [
        pytest.param(USERS, "tick", 1, False, id="in the warm-up"),
        pytest.param(USERS, "tick", 1, True, id="in the warm-up of a start alone"),
        pytest.param(USERS, "begin", 0, False, id="as a turn begins"),
        pytest.param(USERS, "tick", 6, False, id="in a turn"),
        pytest.param(USERS, "tick", 6, True, id="in a start alone"),
        pytest.param(OPEN, "halt", 1, False, id="before an open loop begins"),
        pytest.param(STEPS, "halt", 2, False, id="after what is measured as a whole"),
        pytest.param(STEPS, "halt", 2, True, id="after a whole start alone"),
    ],
)
@either_arm
def test_a_load_that_is_lost_makes_its_round_invalid(
    stage: Stage, arm: Arm, shape: LoadShape, what: str, number: int, *, alone: bool
) -> None:
    """The reason names the server and the worker; the servers end, no turn follows, and nothing else is judged."""
    stage.lost, stage.compiling = (arm, what, number), {arm}
    both = stage.pair(shape, alone=alone)
    both.measure(BLOCKS)
    (measured,) = both.rounds
    assert stage.is_lost
    assert [problem.kind for problem in measured.problems] == [ReasonKind.LOAD_LOST]
    assert said(measured.problems) == (told(arm, LOST),)
    assert measured.blocks == (0 if alone else len(stage.turns) // 4) < BLOCKS
    assert set(measured.starts) == set(ARMS)
    assert (stage.running, both.blocks_of_open_round) == ([], 0)
    assert "begin" not in {each for _, each in stage.asked[stage.lost_at :]}
    # By turns no other start is made for a round that is lost.
    assert stage.starts[-1] == arm if alone else sorted(stage.starts) == list(ARMS)
    # Another round has engines of its own, and is sound.
    stage.lost, stage.compiling = None, set()
    both.measure(BLOCKS)
    assert both.rounds[1].problems == ()
    assert both.rounds[1].blocks == (1 if alone else BLOCKS)
