"""Several real servers that share a load: each has its part, and one that fails or lags is named."""

from __future__ import annotations

import json
import sys
import urllib.request
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.experiment import server_arm
from pytest_gpuserve.experiment.loaded import LoadedStart
from pytest_gpuserve.experiment.replicas import for_replicas
from pytest_gpuserve.experiment.server_arm import Pace, ServerArm
from pytest_gpuserve.experiment.shape import LoadShape
from pytest_gpuserve.load.answers import AnswerCheck
from pytest_gpuserve.load.schedule import Burst, Closed
from pytest_gpuserve.measure.replicas import imbalance_of, replicas_of
from pytest_gpuserve.process.ports import free_port
from pytest_gpuserve.servers.command import CommandServer
from pytest_gpuserve.testing import Unseen
from tests.fakes.children.toolkit import HERE
from tests.plugin.conftest import is_busy
from tests.servers.deployments import Starts
from tests.servers.somebody import COUNTERS, FACTORY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_gpuserve.experiment.handle import ServerHandle, Target
    from pytest_gpuserve.gate.reason import Reason
    from pytest_gpuserve.load.schedule import Schedule
    from pytest_gpuserve.measure.window import Start
    from pytest_gpuserve.servers.instance import Instance

USERS: Final = 6
"""A multiple of two and of three replicas."""


@contextmanager
def replicas(folder: Path, *habits: str) -> Iterator[list[Instance]]:
    """Run a ``model_server.py`` with each of these habits, as somebody else would."""
    with ExitStack() as stack:
        started = []
        for number, habit in enumerate(habits):
            argv = ("{python}", str(HERE / "model_server.py"), "{port}", *habit.split())
            kind = CommandServer(argv, folder, "here", sys.executable)
            handle = Starts(folder / f"{number}.log").handle(kind)
            started.append(stack.enter_context(handle.get("/seen").started()))
        yield started


def remote(servers: list[Instance], **arguments: Any) -> ServerHandle:  # noqa: ANN401 -- whatever `remote_server` takes
    """The deployment that they are together."""
    return FACTORY.remote([f"http://127.0.0.1:{server.site.port}" for server in servers], **arguments)


def address(server: Instance) -> str:
    """What a replica is called."""
    return f"127.0.0.1:{server.site.port}"


def seen(server: Instance) -> dict[str, dict[str, int]]:
    """What a replica was sent."""
    with urllib.request.urlopen(f"http://{address(server)}/seen", timeout=30) as answer:
        found: dict[str, dict[str, int]] = json.load(answer)
        return found


def loaded(target: Target, schedule: Schedule | None = None) -> tuple[Start, list[Reason]]:
    """Load them for two seconds, or as long as a schedule takes; what is wrong besides what a busy machine does."""
    seconds = None if isinstance(schedule, Burst) else 2.0
    shape = LoadShape(schedule or Closed(USERS), seconds=seconds, warmup_seconds=0.5)
    check = AnswerCheck((request.expect for request in target.requests), wants_all=False)
    with target.started() as instance:
        load = LoadedStart(instance, target, for_replicas(shape, target), check, Unseen())
        start = load.measure()
    return start, [problem for problem in load.problems if not is_busy(problem)]


def fox(servers: list[Instance], **arguments: Any) -> Target:  # noqa: ANN401 -- whatever `remote_server` takes
    """A request to the deployment, with its right answer."""
    return remote(servers, **arguments).post("/infer", body=b"fox", expect=b"FOX")


def test_each_replica_has_its_part_of_a_load(tmp_path: Path) -> None:
    """What each did is what it says itself, together they are the load; their processes are known, and live on."""
    with replicas(tmp_path, "ms=20", "ms=20", "ms=20") as servers:
        target = fox(servers, counters=COUNTERS)
        with target.started() as instance:
            members = set(instance.members())
        start, problems = loaded(target)
        assert all(server.process is not None and server.process.exit_status() is None for server in servers)
        pids = {server.process.pid for server in servers if server.process is not None}
    assert problems == []
    assert pids <= members
    assert start.cold_start_seconds is None
    found = replicas_of(start.windows, start.counters)
    assert [each.name for each in found] == [address(server) for server in servers]
    assert sum(each.requests for each in found) == start.requests
    assert all(each.requests > 0 for each in found)
    assert start.counters is not None
    assert start.counters.requests == sum(each.counters.requests or 0 for each in found if each.counters is not None)


def test_each_is_warmed_up_and_called_by_its_own_name(tmp_path: Path) -> None:
    """Of a load that is measured as a whole no request may be a replica's first; a proxy goes by the host it names."""
    with replicas(tmp_path, "ms=2", "ms=2") as servers:
        target, shape = fox(servers), LoadShape(Burst(40, 8), warmup_seconds=0.3)
        with ExitStack() as stack:
            # Before a comparison, too, whose load has not begun yet.
            instance = stack.enter_context(target.started())
            ServerArm.of("candidate", instance, target, for_replicas(shape, target), Unseen()).warm_up(stack)
        before = [sum(seen(server)["bodies"].values()) for server in servers]
        start, problems = loaded(target, Burst(40, 8))
        sent = [seen(server) for server in servers]
        names = [address(server) for server in servers]
    assert problems == []
    assert start.requests == 40
    # One is the question whether it is ready, 20 are its part of the load.
    assert all(count > 1 for count in before)
    assert all(sum(each["bodies"].values()) - early > 21 for each, early in zip(sent, before, strict=True))
    assert [set(each["hosts"]) for each in sent] == [{name} for name in names]


def test_the_slow_one_is_named_and_makes_nothing_invalid(tmp_path: Path) -> None:
    """By what its users wait; a closed loop then sends it less."""
    with replicas(tmp_path, "ms=20", "ms=150", "ms=20") as servers:
        start, problems = loaded(fox(servers, counters=COUNTERS))
        slow = address(servers[1])
    assert problems == []
    each = replicas_of(start.windows, start.counters)
    counted = [replica.counters.requests or 0 for replica in each if replica.counters is not None]
    assert counted[1] < min(counted[0], counted[2]) / 2
    found = imbalance_of(each)
    assert found is not None
    # On a busy machine another one may be slow too, but not so slow.
    assert slow in found.much_slower
    assert found.busiest is not None
    assert found.busiest > 0.2


def test_all_of_them_must_be_ready(tmp_path: Path) -> None:
    """Those that are not are named, each with what was seen; and the one that is up, but without this route."""
    nobody = [free_port(), free_port()]
    with replicas(tmp_path, "ms=2", "refuse=404") as servers:
        urls = [f"http://127.0.0.1:{port}" for port in (nobody[0], servers[0].site.port, nobody[1])]
        asked = FACTORY.remote(urls, start_timeout=0.5).post("/infer", body=b"fox")
        with pytest.raises(ServerFailed, match="each of 3 replicas") as caught, asked.started():
            pass
        # It was asked until it had answered, and not again.
        assert sum(seen(servers[0])["bodies"].values()) == 1
        name = f"remote {address(servers[1])} server is up, but refuses POST /infer"
        with pytest.raises(ServerFailed, match=name), fox(servers).started():
            pass
    assert all(f":{port}/infer failed: ConnectionRefusedError" in caught.value.found for port in nobody)
    assert address(servers[0]) not in caught.value.found


def test_they_are_compared_side_by_side_as_one_server_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn of them is a window that knows each; what shows in one of them shows in the round."""
    monkeypatch.setattr(server_arm, "TICKS_A_WINDOW", 2)
    with replicas(tmp_path, "ms=20", "ms=20") as servers, ExitStack() as stack:
        target, names = fox(servers, counters=COUNTERS), [address(server) for server in servers]
        shape = for_replicas(LoadShape(Closed(USERS), warmup_seconds=0.3), target)
        one = ServerArm.of("candidate", stack.enter_context(target.started()), target, shape, Unseen())
        one.warm_up(stack)
        for seed in (1, 2):
            window = one.turn(Pace(2, 5), seed=seed)
            one.rest()
            assert window is not None
            assert [each.name for each in window.replicas] == names
            assert sum(each.requests for each in window.replicas) == window.requests
        one.judge()
        assert not [problem for problem in one.problems if not is_busy(problem)]
        counted = one.side().counters
        assert counted is not None
        assert set(counted.parts) == set(names)
