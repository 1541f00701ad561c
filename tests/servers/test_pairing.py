"""Two real servers side by side: whose turn it is, what is measured, what goes wrong, and that nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.experiment import server_arm
from pytest_gpuserve.experiment.server_arm import ServerArm
from pytest_gpuserve.load.schedule import Burst, Steps
from pytest_gpuserve.measure.rounds import ABBA, ARMS, BAAB, round_point
from pytest_gpuserve.verdict.metric import METRICS
from pytest_gpuserve.verdict.sequential import BLOCKS
from tests.plugin.conftest import REPOSITORY, is_busy
from tests.servers.pairs import USERS, Deployments, Seen, pairing, terms
from tests.servers.processes import command_lines, descendants, end_and_look, listening
from tests.support.reasons import said

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpuserve.experiment.server_arm import Pace
    from pytest_gpuserve.load.schedule import Schedule
    from pytest_gpuserve.measure.rounds import Arm, Round
    from pytest_gpuserve.measure.window import Window


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for apps and for the servers' temporary files, short enough for Unix sockets in it."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as name:
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield Path(name)


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """What happens does not depend on how long it takes."""
    monkeypatch.setattr(server_arm, "LEAST_TICKS", 1)


@pytest.fixture(autouse=True)
def nothing_remains(folder: Path) -> Iterator[None]:
    """Fail a test that leaves a folder behind; what it leaves of processes fails any test."""
    yield
    assert not list(folder.glob("gpuserve-*"))


def trouble(measured: Round) -> list[str]:
    """The problems of a round that do not stem from a busy machine."""
    return [problem for problem in said(measured.problems) if not is_busy(problem)]


# -- a round


def test_a_round_of_two_servers_one_at_a_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six blocks in ABBA or BAAB of two starts, at two looks; while one is loaded the other one rests, and lives."""
    there = Deployments(folder)
    turns: list[tuple[Arm, Window]] = []
    ticks_of_turns: set[int] = set()
    turn = ServerArm.turn

    def watched(one: ServerArm, pace: Pace, *, seed: int) -> Window | None:
        window = turn(one, pace, seed=seed)
        if window is not None:
            ticks_of_turns.add(len(one._turns[-1].ticks))
            turns.append((one.arm, window))
        return window

    monkeypatch.setattr(ServerArm, "turn", watched)
    with pairing(there.target("base"), there.target("candidate", "ms=40"), terms()) as pair:
        pair.measure(3)
        (first,) = pair.rounds
        if first.problems:
            assert not trouble(first)
            pytest.skip(f"the machine is too busy: {first.problems}")
        assert pair.blocks_of_open_round == len(first.blocks) == 3
        trees = [instance.process.tree() for _, instance in there.started if instance.process]
        assert all(process.num_threads() > 0 for tree in trees for process in tree)
        assert there.running == 2
        pair.measure(BLOCKS)
        (whole,) = pair.rounds
        if len(there.started) > 2:
            pytest.skip(f"the machine is too busy: {whole.sides}")
        assert there.running == pair.blocks_of_open_round == 0
        assert not trouble(whole)
    assert len(there.started) == 2
    # Of servers that drifted apart the round is as long again, and its first half is left out.
    assert whole.blocks[:3] == first.blocks or whole.rejected >= BLOCKS
    assert whole.first == first.first == there.launched[0]
    kept = [window for block in whole.blocks for window in block.windows]
    spans = [(arm, each.begin_ns, each.end_ns) for arm, each in turns if any(each is window for window in kept)]
    assert [arm for arm, _, _ in spans] == [arm for block in whole.blocks for arm in block.order]
    assert {block.order for block in whole.blocks} <= {ABBA, BAAB}
    assert len(ticks_of_turns) == 1
    if not whole.problems:
        assert len(whole.blocks) == BLOCKS
        assert all(window.requests and window.items for arm in ARMS for window in whole.windows(arm))
    # Four times the work: far more than what any machine adds.
    assert round_point(METRICS["throughput"], whole, 0.05).x > 0.2
    check_one_rests(there, spans)
    for arm in ARMS:
        side = whole.sides[arm]
        assert side.cold_start_seconds == (next(i.cold_start_seconds for a, i in there.started if a == arm),)
        assert side.answers == side.answers_checked > sum(window.requests for window in whole.windows(arm))
        assert side.counters is not None
        assert side.counters.items == sum(window.items or 0 for window in whole.windows(arm))


def check_one_rests(there: Deployments, spans: list[tuple[Arm, int, int]]) -> None:
    """While one is loaded the other one works on nothing but what was under way when its turn ended."""
    idle, busy = 0, 0
    for arm in ARMS:
        begun = there.worked(arm)
        for loaded, begin_ns, end_ns in spans:
            answers = sum(begin_ns <= at_ns < end_ns for at_ns in begun)
            busy += answers if loaded == arm else 0
            idle += answers if loaded != arm else 0
            assert loaded == arm or answers <= USERS
    assert idle < busy / 20


@pytest.mark.parametrize("schedule", [Burst(12), Steps(((1, 0.1), (3, 0.15)))])
def test_a_schedule_that_ends_by_itself_is_a_window(folder: Path, schedule: Schedule) -> None:
    """All of it, afresh in each window, with all of the server's work for it and for nothing else."""
    there = Deployments(folder)
    with pairing(there.target("base"), there.target("candidate"), terms(schedule)) as pair:
        pair.measure(1)
    (measured,) = pair.rounds
    assert not trouble(measured)
    assert len(measured.blocks) == 1
    for window in (window for arm in ARMS for window in measured.windows(arm)):
        assert window.items == window.requests
        assert not isinstance(schedule, Burst) or window.requests == schedule.requests
        # Where the machine stood still as it began, it begins late, and ends when it was to.
        assert not isinstance(schedule, Steps) or window.seconds >= schedule.seconds / 2


# -- one at a time


def test_two_servers_that_do_not_fit_start_one_at_a_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the second does not find memory beside the first: a block of four fresh starts, of which none overlap."""
    monkeypatch.setattr("pytest_gpuserve.experiment.pairing.TURNS_ALONE", 1)
    there = Deployments(folder)
    memory = f"memory={folder / 'memory'}"
    base, candidate = there.target("base", memory), there.target("candidate", "ms=40", memory)
    with pairing(base, candidate, terms()) as pair:
        pair.measure(3)
        assert pair.one_at_a_time
        assert pair.blocks_of_open_round == 0
    (measured,) = pair.rounds
    assert there.most_running == 1
    assert not trouble(measured)
    assert measured.one_at_a_time
    # The first one was started before the second one failed.
    arms = [arm for arm, _ in there.started]
    if measured.problems:
        pytest.skip(f"the machine is too busy: {measured.problems}")
    (block,) = measured.blocks
    assert block.order in (ABBA, BAAB)
    assert len(arms) == 1 + len(block.order) + measured.rejected
    if not measured.rejected:
        assert arms[1:] == list(block.order)
    assert {arm: len(side.cold_start_seconds) for arm, side in measured.sides.items()} == {"base": 2, "candidate": 2}
    assert round_point(METRICS["throughput"], measured, 0.05).x > 0.2


# -- trouble


@pytest.mark.parametrize(
    ("arm", "habit", "path", "expected"),
    [
        ("base", "die=200", "/infer", "the command server died under load (killed by SIGKILL)"),
        ("base", "wrong=100", "/infer", "wrong answers"),
        ("candidate", "", "/nowhere", "request errors (status 404"),
    ],
)
def test_trouble_of_one_server_ends_the_round(folder: Path, arm: Arm, habit: str, path: str, expected: str) -> None:
    """It stands in the round's problems, with whose it is; no server runs on."""
    there = Deployments(folder)
    other: Arm = "candidate" if arm == "base" else "base"
    targets = {arm: there.target(arm, habit, path=path), other: there.target(other)}
    with pairing(targets["base"], targets["candidate"], terms()) as pair:
        for _ in range(2):
            if not pair.rounds or not pair.rounds[-1].problems:
                pair.measure(BLOCKS)
        assert there.running == 0
        assert "load.engine" not in command_lines(descendants(os.getpid()))
    whose = "the base: " if arm == "base" else ""
    problems = trouble(pair.rounds[-1])
    assert problems, pair.rounds
    assert all(problem.startswith(f"{whose}{expected}") for problem in problems)
    assert len(pair.rounds[-1].blocks) < BLOCKS


# -- the end


def test_an_exception_ends_both_servers(folder: Path) -> None:
    """Whatever goes wrong in the midst of a round; what was not measured to a look is no round."""
    there = Deployments(folder)
    with pairing(there.target("base"), there.target("candidate"), terms(), Seen(fail_at=12)) as pair:
        with pytest.raises(ArithmeticError):
            pair.measure(BLOCKS)
        assert there.running == 0
        assert sorted(arm for arm, _ in there.started) == sorted(ARMS)
        assert pair.rounds == []


PROGRAM = """
import sys, tempfile
from pathlib import Path
from tests.servers.pairs import Deployments, Seen, pairing, terms

class Told(Seen):
    def show(self, *seen):
        super().show(*seen)
        # The warm-up of each, and some turns.
        if self.ticks == 20:
            print("loaded", flush=True)

there = Deployments(Path(sys.argv[1]))
base, candidate = (there.target(arm, *sys.argv[2:]) for arm in ("base", "candidate"))
with pairing(base, candidate, terms(), Told()) as pair:
    pair.measure(3)
    pair.measure(6)
    pair.measure(6)
"""


@pytest.mark.parametrize(("how", "habits"), [(signal.SIGINT, ["segment"]), (signal.SIGKILL, ["segment", "breed"])])
def test_nothing_is_left_of_a_killed_comparison(folder: Path, how: signal.Signals, habits: list[str]) -> None:
    """After Ctrl-C or kill -9 there is no process, no port, no shared memory and no folder of either server."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder), *habits],
        cwd=REPOSITORY,
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"loaded\n"
            all_below = descendants(process.pid)
            assert len(listening(all_below)) == 2
            assert command_lines(all_below).count("pytest_gpuserve.load.engine") == 2
            end_and_look(process, how, all_below, folder)
        finally:
            process.kill()
