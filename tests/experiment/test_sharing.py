"""Loads through shared memory: each request under way has its place, answers are whole, and nothing is left."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from pytest_gpuserve.errors import LoadFailed, UsageProblem
from pytest_gpuserve.experiment.handle import ServerHandle, Target, slots_needed
from pytest_gpuserve.experiment.loaded import LoadedStart
from pytest_gpuserve.experiment.server_arm import Pace, ServerArm
from pytest_gpuserve.experiment.shape import LoadShape
from pytest_gpuserve.gate.reason import ReasonKind
from pytest_gpuserve.load.answers import AnswerCheck
from pytest_gpuserve.load.kserve import decode_http
from pytest_gpuserve.load.schedule import Burst, Closed, Constant, Gamma, Poisson, Steps, Trace
from pytest_gpuserve.load.shared_memory import FOLDER, PREFIX
from pytest_gpuserve.testing import Unseen
from tests.fakes.memory_server import MemoryServer, memory_server
from tests.plugin.conftest import is_busy

np = pytest.importorskip("numpy")

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_gpuserve.gate.reason import Reason
    from pytest_gpuserve.load.schedule import Schedule
    from pytest_gpuserve.measure.rounds import Arm
    from pytest_gpuserve.measure.window import Start
    from pytest_gpuserve.servers.base import ServerKind

X = np.arange(1, 6, dtype=np.float32)
PLACE = {"Y": 2 * X.nbytes}
QUEUED = SimpleNamespace(name="torch worker", transport="queue", ports=(), default_model="m")


@pytest.fixture(scope="module")
def server() -> Iterator[MemoryServer]:
    """A server that does as it should."""
    with memory_server() as there:
        yield there


def doubling(server: MemoryServer, x: Any = X, **arguments: Any) -> Target:  # noqa: ANN401 -- arrays; whatever infer takes
    """A request through shared memory, with the right answer."""
    given = {"expect": {"Y": 2 * x}, "shared_memory": PLACE, **arguments}
    return server.handle.infer({"X": x}, model="double", **given)


def loaded(target: Target, shape: LoadShape, progress: Unseen | None = None) -> tuple[LoadedStart, Start, AnswerCheck]:
    """Load it."""
    check = AnswerCheck((request.expect for request in target.requests), wants_all=shape.check == "all")
    with target.started() as instance:
        load = LoadedStart(instance, target, shape, check, progress or Unseen())
        return load, load.measure(), check


def shape_of(schedule: Schedule, **arguments: Any) -> LoadShape:  # noqa: ANN401 -- whatever a shape takes
    """A short load of which all answers are checked."""
    return LoadShape(schedule, **{"warmup_seconds": 0.2, "check": "all", **arguments})


def ours() -> list[Path]:
    """Files of this process."""
    return list(FOLDER.glob(f"{PREFIX}{os.getpid()}-*"))


def sound(problems: list[Reason]) -> bool:
    """Whether nothing is wrong but what a busy machine does."""
    return all(map(is_busy, problems))


@pytest.mark.parametrize(
    ("schedule", "processes", "places"),
    [
        (Steps(((5, 0.6),)), 1, 5),
        (Burst(60, max_in_flight=6), 3, 6),
        (Trace(tuple((index // 10 / 20, index % 2) for index in range(30)), max_in_flight=3), 1, 3),
    ],
)
def test_a_load_through_shared_memory(server: MemoryServer, schedule: Schedule, processes: int, places: int) -> None:
    """Every answer is read from the place of its request and is right, however many engines share the load.

    A user's function sees what the server would have sent.
    """
    server.places.clear()
    before = server.in_body
    seen: list[Any] = []

    def noted(body: bytes) -> bool:
        seen.append(decode_http(body)["Y"].tolist())
        return True

    target = server.handle.rotate([doubling(server), doubling(server, X + 10, expect=noted)], shuffled=True)
    load, start, check = loaded(target, shape_of(schedule, processes=processes))
    assert sound(load.problems), load.problems
    assert check.checked == check.answers >= start.requests > 5
    assert seen
    assert all(numbers == (2 * X + 20).tolist() for numbers in seen)
    # A slot takes 64 bytes here; a busy machine may not have needed all of them.
    assert server.places <= {64 * slot for slot in range(places)}
    assert len(server.places) > 1
    # The first request, which tells whether the model answers, carries its tensors.
    assert server.in_body == before + 1
    assert server.most_regions == 2
    assert not ours()
    assert not server.regions


@pytest.mark.parametrize(
    ("habit", "expect", "words"),
    [
        ("right", {"Y": X}, "output 'Y': 5 of 5"),
        ("right", b"{}", "wrong answers"),
        *(("silent", expect, "'Y' was not written to its place") for expect in ({"Y": 2 * X}, lambda _: True)),
        *(("in_body", expect, "'Y' came in the answer, not") for expect in ({"Y": 2 * X}, lambda _: True)),
    ],
)
def test_a_wrong_answer_is_told(habit: Any, expect: Any, words: str) -> None:  # noqa: ANN401 -- literals; of any kind
    """Whatever is expected: what was in its place before, or came by another way, was not measured."""
    with memory_server(habit) as server:
        load, _, _ = loaded(doubling(server, expect=expect), shape_of(Burst(3, max_in_flight=1)))
        wrong = [problem.text for problem in load.problems if problem.kind is ReasonKind.WRONG_ANSWERS]
        assert any(words in text for text in wrong), load.problems
        assert not server.regions


def test_ctrl_c_leaves_nothing(server: MemoryServer) -> None:
    """The memory is forgotten by the server and removed, and what was measured is kept."""

    class Pressing(Unseen):
        """Presses Ctrl-C at the first tick."""

        def show(self, *_: object) -> None:
            """Press."""
            assert len(ours()) == len(server.regions) == 2
            raise KeyboardInterrupt

    load, _, _ = loaded(doubling(server), shape_of(Closed(2)), Pressing())
    assert load.interrupted
    assert not ours()
    assert not server.regions


def test_memory_is_mapped_only_for_the_owner() -> None:
    """A server that is closed with a token is shown it; without it the server's words are told, and nothing is left."""
    with memory_server(token="secret") as server:
        load, _, check = loaded(doubling(server), shape_of(Burst(4, max_in_flight=1)))
        assert sound(load.problems)
        assert check.checked >= 4
        stranger = replace(doubling(server), server=ServerHandle(server.remote(), server.handle.starter))
        with pytest.raises(LoadFailed, match=r"status 403: .*not its owner"):
            loaded(stranger, shape_of(Burst(4, max_in_flight=1)))
    assert not ours()


def test_two_servers_side_by_side_have_memory_of_their_own() -> None:
    """Each its own two regions, until both end."""
    with memory_server() as one, memory_server() as other, ExitStack() as stack:
        shape = shape_of(Burst(6, max_in_flight=2))
        arms: dict[Arm, MemoryServer] = {"base": one, "candidate": other}
        targets = {arm: doubling(there) for arm, there in arms.items()}
        server_arms = [
            ServerArm.of(arm, stack.enter_context(target.started()), target, shape, Unseen())
            for arm, target in targets.items()
        ]
        for server_arm in server_arms:
            server_arm.warm_up(stack)
        assert len(ours()) == 4
        assert not one.regions.keys() & other.regions.keys()
        for server_arm in server_arms:
            window = server_arm.turn(Pace(1, 1), seed=1)
            assert window is not None, server_arm.problems
            assert window.requests == 6
            server_arm.judge()
            assert sound(server_arm.problems)
        stack.close()
        assert not one.regions
        assert not other.regions
    assert not ours()


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [(Closed(7), 7), (Steps(((2, 1.0), (5, 1.0), (1, 1.0))), 5), (Poisson(10.0, max_in_flight=3), 3), (Burst(9, 2), 2)],
)
def test_a_place_for_each_request_under_way(schedule: Schedule, expected: int) -> None:
    """As many as the schedule can have under way at the same time."""
    assert slots_needed(schedule) == expected


@pytest.mark.parametrize("schedule", [Constant(5.0), Poisson(5.0), Gamma(5.0, 2.0), Burst(5), Trace(((0.0, 0),))])
def test_a_load_without_a_ceiling_is_refused(server: MemoryServer, schedule: Schedule) -> None:
    """With what helps; without shared memory there is nothing to refuse."""
    name = type(schedule).__name__
    words = rf"needs a ceiling(.*\n)*.*{name} without max_in_flight(.*\n)*.*{name}\(\.\.\., max_in_flight=64\)"
    with pytest.raises(UsageProblem, match=words):
        doubling(server).check_schedule(schedule)
    server.handle.infer({"X": X}, model="double").check_schedule(schedule)


@pytest.mark.parametrize(
    ("host", "schedule", "words"),
    [
        ("127.0.0.1", Constant(5.0), "needs a ceiling"),
        ("192.0.2.7", Closed(1), r"192.0.2.7 has no memory in common(.*\n)*.*leave out shared_memory"),
    ],
)
def test_what_is_refused_makes_no_memory(server: MemoryServer, host: str, schedule: Schedule, words: str) -> None:
    """And a server on another machine is not asked for anything."""
    with pytest.raises(UsageProblem, match=words), doubling(server).shared(server.instance(host), schedule):
        pytest.fail("it was opened")
    assert not ours()


def test_what_cannot_go_through_shared_memory_is_refused(server: MemoryServer) -> None:
    """Where the request is described."""
    for wrong in ({}, {"Y": 0}, {"Y": "20"}, ["Y"]):
        with pytest.raises(UsageProblem, match=r"infer\(shared_memory=\.\.\.\)"):
            doubling(server, shared_memory=wrong)
    with pytest.raises(UsageProblem, match=r"either outputs=... or shared_memory"):
        doubling(server, outputs=["Y"])
    with pytest.raises(UsageProblem, match="leave out shared_memory"):
        ServerHandle(cast("ServerKind", QUEUED), server.handle.starter).infer({"X": X}, shared_memory=PLACE)
    plain = server.handle.infer({"X": X}, model="double")
    with pytest.raises(UsageProblem, match="through shared memory and others cannot be mixed"):
        server.handle.rotate([doubling(server), plain])
    with pytest.raises(UsageProblem, match="have the same outputs"):
        server.handle.rotate([doubling(server), doubling(server, shared_memory={"Y": 64})])


def test_it_is_another_workload(server: MemoryServer) -> None:
    """A baseline of the one says nothing of the other; the size of the places is no part of it."""
    plain = server.handle.infer({"X": X}, model="double", outputs=["Y"])
    words = doubling(server).fingerprint()
    assert words == {**plain.fingerprint(), "tensors": "system shared memory"}
    assert doubling(server, shared_memory={"Y": 64}).fingerprint() == words
    assert server.handle.rotate([doubling(server)]).fingerprint() == words
