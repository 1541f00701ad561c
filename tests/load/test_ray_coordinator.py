"""One process speaks for workers on many hosts: their clocks, their losses, their silence, one load after the other."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuserve.errors import LoadFailed
from pytest_gpuserve.load import engine_process
from pytest_gpuserve.load.ray import coordinator, crew, source
from pytest_gpuserve.load.ray.actors import CONNECT_SECONDS
from pytest_gpuserve.load.ray.coordinator import LEAST_LEAD_NS
from pytest_gpuserve.load.ray.versions import Versions
from pytest_gpuserve.load.wire import Begin, HostProcess
from tests.fakes.scripted_workers import STARTED_NS, TICK_NS, Script, ScriptedCluster, coordinated

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from tests.fakes.scripted_workers import ScriptedOwner, ScriptedWorker

MS = 1_000_000
SECOND = 1000 * MS
DAY = 86_400 * SECOND

_Test = TypeVar("_Test", bound="Callable[..., Coroutine[Any, Any, None]]")


def in_a_loop(test: _Test) -> Callable[..., None]:
    """Run a test in an event loop of its own."""

    @functools.wraps(test)
    def run(*args: object, **named: object) -> None:
        asyncio.run(test(*args, **named))

    return run


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits half a second for what a clock set by hand says at once."""
    monkeypatch.setattr(coordinator, "LOOK_SECONDS", 0.005)


# -- a load


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(-DAY, 365 * DAY), min_size=1, max_size=4))
def test_all_begin_at_one_time_and_their_ticks_are_told_in_ours(ahead: list[int]) -> None:
    """Whatever their clocks say: one begin, later than ordered by the lead, and ticks of one time; calls take 10 us."""

    async def load() -> None:
        cluster = ScriptedCluster([Script(ahead_ns=ns) for ns in ahead])
        async with coordinated(cluster, len(ahead)) as owner:
            await owner.ready()
            ordered_ns = await owner.begin(cluster)
            for part in range(len(ahead)):
                cluster.of(part).report(0)
                cluster.of(part).report(1, last=True)
            first, second = await owner.tick(), await owner.tick()
        assert list(first.workers) == [f"10.0.0.{part}/worker-{part}" for part in range(len(ahead))]
        begins_ns = [tick.begin_ns for tick in first.workers.values()]
        assert max(begins_ns) - min(begins_ns) < MS
        assert first.begin_ns == sum(begins_ns) // len(begins_ns)
        assert min(begins_ns) >= ordered_ns + LEAST_LEAD_NS - MS
        assert [first.workers[name].end_ns for name in first.workers] == [
            tick.begin_ns for tick in second.workers.values()
        ]
        for number, tick in enumerate((first, second), 1):
            assert tick.end_ns == pytest.approx(first.begin_ns + number * TICK_NS, rel=0, abs=MS)
        assert (first.last, second.last) == (False, True)
        # To within what is known of a clock: each way of a call takes 10 us.
        begun = [worker.begun_ns[0] - worker.script.ahead_ns for worker in cluster.placed]
        assert max(begun) - min(begun) < MS

    asyncio.run(load())


@in_a_loop
async def test_a_begin_that_is_far_away_is_not_moved() -> None:
    """Only one that the slowest worker could miss is."""
    cluster = ScriptedCluster()
    async with coordinated(cluster) as owner:
        await owner.ready()
        late_ns = cluster.clock.now_ns() + 3 * SECOND
        owner.coordinator.order(Begin(late_ns))
        await owner.until(lambda: all(worker.begun_ns for worker in cluster.placed))
        assert all(abs(worker.begun_ns[0] - late_ns) < MS for worker in cluster.placed)


@in_a_loop
async def test_slow_calls_move_the_begin() -> None:
    """It is as far ahead as four of the longest calls, where that is more than the least lead."""
    cluster = ScriptedCluster([Script(first_ns=200 * MS)])
    async with coordinated(cluster) as owner:
        await owner.ready()
        ordered_ns = await owner.begin(cluster)
        assert cluster.placed[0].begun_ns[0] - ordered_ns >= 4 * 200 * MS


@in_a_loop
async def test_a_load_begins_anew_with_another_seed() -> None:
    """In mid-load and after its end; ticks of the load before are not told after readiness."""
    cluster = ScriptedCluster()
    async with coordinated(cluster) as owner:
        await owner.ready()
        await owner.begin(cluster)
        for worker in cluster.placed:
            worker.report(0)
        await owner.tick()
        cluster.of(0).report(1)
        owner.again(8)
        await owner.ready()
        await owner.begin(cluster, times=2)
        for worker in cluster.placed:
            worker.report(0, last=True)
        assert (await owner.tick()).last
        owner.again(9)
        await owner.ready()
    assert [worker.seeds for worker in cluster.placed] == [[7, 8, 9], [7, 8, 9]]
    assert [len(worker.begun_ns) for worker in cluster.placed] == [2, 2]


@in_a_loop
async def test_a_load_that_was_not_begun_begins_anew() -> None:
    """An owner may change its mind about the seed first."""
    cluster = ScriptedCluster()
    async with coordinated(cluster) as owner:
        await owner.ready()
        owner.again(8)
        await owner.ready()
    assert all(worker.seeds == [7, 8] for worker in cluster.placed)


# -- workers that are lost


@pytest.mark.parametrize("method", ["versions", "node", "start", "whereabouts", "clock"])
@in_a_loop
async def test_a_worker_that_dies_before_the_begin_is_replaced(method: str) -> None:
    """Wherever it dies; the other takes its part, under a name that tells its own node."""
    cluster = ScriptedCluster([Script(dies_in=method)])
    async with coordinated(cluster) as owner:
        await owner.ready()
        await owner.begin(cluster)
        for part in range(2):
            cluster.of(part).report(0, last=True)
        tick = await owner.tick()
    assert cluster.placed[0].ended
    assert len(cluster.placed) == 3
    assert sorted(tick.workers) == ["10.0.0.1/worker-1", "10.0.0.2/worker-0"]


@in_a_loop
async def test_a_worker_that_dies_between_loads_is_replaced_with_the_newest_seed() -> None:
    """Also one that dies while all make themselves ready, and one after its load has ended."""
    cluster = ScriptedCluster()
    async with coordinated(cluster, 3) as owner:
        await owner.ready()
        cluster.of(1).die()
        await owner.until(lambda: len(cluster.placed) == 4 and cluster.of(1) is cluster.placed[3])
        owner.again(8)
        await owner.ready()
        await owner.begin(cluster)
        for part in range(3):
            cluster.of(part).report(0, last=True)
        assert (await owner.tick()).last
        cluster.of(2).die()
        owner.again(9)
        await owner.ready()
        await owner.until(lambda: cluster.of(2).seeds[-1] == 9)
        await owner.begin(cluster)
    assert [worker.ended for worker in cluster.placed] == [False, True, True, False, False]
    assert cluster.placed[1].seeds == [7]
    assert cluster.placed[3].seeds == [7, 8, 9]
    assert len(cluster.placed) == 5


@in_a_loop
async def test_workers_that_keep_dying_are_not_replaced_for_ever() -> None:
    """After as many as there are workers the load fails, with the last one's reason."""
    cluster = ScriptedCluster([Script(dies_in="start")] * 9)
    async with coordinated(cluster) as owner:
        with pytest.raises(LoadFailed, match=r"lost before the load began, after 2 others.*its process has died"):
            await owner.ready()
    assert all(worker.ended for worker in cluster.placed[:3])


@in_a_loop
async def test_a_worker_that_dies_in_mid_load_ends_it_with_its_name() -> None:
    """It is not replaced: what it would have sent is missing."""
    cluster = ScriptedCluster()
    async with coordinated(cluster) as owner:
        await owner.ready()
        await owner.begin(cluster)
        cluster.of(0).report(0)
        cluster.of(1).die()
        with pytest.raises(LoadFailed, match=r"^10.0.0.1/worker-1 was lost in mid-load: its node has died$"):
            await owner.next()
    assert len(cluster.placed) == 2


@in_a_loop
async def test_a_worker_that_dies_as_the_load_begins_ends_it_with_its_name() -> None:
    """Who was not told to begin cannot take part."""
    cluster = ScriptedCluster([Script(), Script(dies_in="begin")])
    async with coordinated(cluster) as owner:
        await owner.ready()
        owner.coordinator.order(Begin(0))
        with pytest.raises(LoadFailed, match=r"10.0.0.1/worker-1 was lost as the load began"):
            await owner.next()


@in_a_loop
async def test_a_silent_worker_ends_the_load_with_its_name() -> None:
    """Without a tick of it for 15 s; those that report are not blamed."""
    cluster = ScriptedCluster()
    async with coordinated(cluster) as owner:
        await owner.ready()
        await owner.begin(cluster)
        for worker in cluster.placed:
            worker.report(0)
        await owner.tick()
        cluster.clock.at_ns += 10 * SECOND
        cluster.of(0).report(1)
        await owner.until(cluster.of(0).news.empty)
        await asyncio.sleep(0.05)
        assert not owner.running.done()
        cluster.clock.at_ns += 6 * SECOND
        with pytest.raises(LoadFailed, match=r"^10.0.0.1/worker-1 reported nothing for 15.0 s$"):
            await owner.next()


@in_a_loop
async def test_a_worker_whose_load_is_over_may_be_silent() -> None:
    """One with less to do waits for the others as long as these take."""
    cluster = ScriptedCluster()
    async with coordinated(cluster) as owner:
        await owner.ready()
        await owner.begin(cluster)
        cluster.of(0).report(0, last=True)
        cluster.of(1).report(0)
        assert not (await owner.tick()).last
        for number in range(1, 5):
            cluster.clock.at_ns += 10 * SECOND
            cluster.of(1).report(number, last=number == 4)
            assert list((await owner.tick()).workers) == ["10.0.0.1/worker-1"]
        assert owner.reports.empty()


@in_a_loop
async def test_an_engine_that_fails_ends_the_load_with_its_workers_name() -> None:
    """In mid-load, and before it."""
    for begun in (True, False):
        cluster = ScriptedCluster()
        async with coordinated(cluster) as owner:
            await owner.ready()
            if begun:
                await owner.begin(cluster)
            cluster.of(1).tell(problem="the load engine died (exit status -9)")
            with pytest.raises(LoadFailed, match=r"^10.0.0.1/worker-1: the load engine died \(exit status -9\)$"):
                await owner.next()


@in_a_loop
async def test_a_report_that_was_lost_ends_the_load() -> None:
    """A gap in a worker's numbers is never passed over."""
    cluster = ScriptedCluster()
    async with coordinated(cluster) as owner:
        await owner.ready()
        await owner.begin(cluster)
        cluster.of(0).report(0)
        cluster.of(1).report(1)
        with pytest.raises(LoadFailed, match=r"10.0.0.1/worker-1 reports tick 1 after -1"):
            await owner.next()


# -- workers that hang


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of a script answers at once, or never."""
    for module in (coordinator, crew):
        monkeypatch.setattr(module, "CALL_SECONDS", 0.3)
    monkeypatch.setattr(crew, "START_SECONDS", 0.3)
    monkeypatch.setattr(coordinator, "HALT_SECONDS", 0.3)


HANGS = r"{} did not answer in 300 ms: its process, its node or the way to it hangs"


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("method", ["node", "identities", "start", "whereabouts", "clock"])
@in_a_loop
async def test_a_worker_that_hangs_before_it_is_ready_is_named(method: str) -> None:
    """Stopped, and not dead: no call to it ever fails."""
    async with coordinated(ScriptedCluster([Script(), Script(hangs_in=method)]), host="127.0.0.1") as owner:
        name = "worker-1 of 2" if method == "node" else "10.0.0.1/worker-1"
        with pytest.raises(LoadFailed, match=f"^{HANGS.format(name)}$"):
            await owner.ready()


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("method", ["clock", "begin"])
@in_a_loop
async def test_a_worker_that_hangs_as_the_load_begins_is_named(method: str) -> None:
    """Also where its clock has to be measured again first."""
    cluster = ScriptedCluster()
    async with coordinated(cluster) as owner:
        await owner.ready()
        cluster.of(1).hangs_in = method
        cluster.clock.at_ns += 10 * SECOND
        owner.coordinator.order(Begin(0))
        with pytest.raises(LoadFailed, match=f"^{HANGS.format('10.0.0.1/worker-1')}$"):
            await owner.next()


@pytest.mark.usefixtures("patience")
@in_a_loop
async def test_a_worker_that_hangs_at_the_end_of_a_load_is_named() -> None:
    """A load of which a clock is not known has not ended well."""
    cluster = ScriptedCluster()
    async with coordinated(cluster) as owner:
        await owner.ready()
        await owner.begin(cluster)
        cluster.of(1).hangs_in = "clock"
        for worker in cluster.placed:
            worker.report(0, last=True)
        with pytest.raises(LoadFailed, match=f"^{HANGS.format('10.0.0.1/worker-1')}$"):
            await owner.next()


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("method", ["again", "clock"])
@in_a_loop
async def test_a_worker_that_hangs_when_a_load_begins_anew_is_named(method: str) -> None:
    """Whether it hears of that or not."""
    cluster = ScriptedCluster()
    async with coordinated(cluster) as owner:
        await owner.ready()
        await owner.begin(cluster)
        cluster.of(1).hangs_in = method
        owner.again(8)
        with pytest.raises(LoadFailed, match=f"^{HANGS.format('10.0.0.1/worker-1')}$"):
            await owner.next()


@pytest.mark.usefixtures("patience")
@in_a_loop
async def test_a_worker_that_never_gets_ready_again_is_named() -> None:
    """It heard of the order, and its engine hangs."""
    cluster = ScriptedCluster()
    async with coordinated(cluster) as owner:
        await owner.ready()
        await owner.begin(cluster)
        cluster.of(1).silent = True
        owner.again(8)
        with pytest.raises(LoadFailed, match=r"^not ready to begin again in 300 ms: 10.0.0.1/worker-1$"):
            await owner.next()


def test_a_worker_that_hangs_is_named_before_the_owner_gives_up() -> None:
    """After a begin, and before the first; the owner knows no names."""
    assert crew.CALL_SECONDS < engine_process.SILENCE_SECONDS
    assert coordinator.SILENCE_SECONDS < engine_process.SILENCE_SECONDS
    placed = CONNECT_SECONDS + crew.MOST_PLACE_SECONDS
    assert placed + crew.START_SECONDS + 4 * crew.CALL_SECONDS < source.READY_SECONDS
    assert coordinator.HALT_SECONDS + crew.CALL_SECONDS < source.READY_SECONDS


@in_a_loop
async def test_a_worker_whose_answer_makes_no_sense_ends_the_load_by_name() -> None:
    """Whatever goes wrong with who follows it: the load is not left waiting."""
    cluster = ScriptedCluster()
    async with coordinated(cluster) as owner:
        await owner.ready()
        await owner.begin(cluster)
        cluster.of(1).news.put_nowait(ValueError("no\nnews"))
        with pytest.raises(LoadFailed, match=r"^10.0.0.1/worker-1 was lost in mid-load: no news$"):
            await owner.next()


# -- who may take part


@in_a_loop
async def test_an_engine_that_cannot_start_is_told_with_its_reason() -> None:
    """Another node would fare no better: it is not replaced."""
    cluster = ScriptedCluster([Script(), Script(refuses="no.such:80: Name or service not known")])
    async with coordinated(cluster) as owner:
        with pytest.raises(LoadFailed, match=r"^10.0.0.1/worker-1: no.such:80: Name or service not known$"):
            await owner.ready()
    assert len(cluster.placed) == 2


@in_a_loop
async def test_a_node_of_another_version_is_told() -> None:
    """Before it is given anything to do."""
    cluster = ScriptedCluster([Script(versions=Versions("3.11.7", "2.60.0", "0.0.9"))])
    async with coordinated(cluster) as owner:
        with pytest.raises(LoadFailed, match=r"10.0.0.0/worker-0 .*0.0.9.*pip install pytest-gpuserve==0.1.0"):
            await owner.ready()
    assert cluster.placed[0].seeds == []


@in_a_loop
async def test_a_worker_elsewhere_loads_no_server_of_our_loopback() -> None:
    """It would load its own; beside the server it may."""
    async with coordinated(ScriptedCluster([Script(sees=False)]), host="127.0.0.1") as owner:
        with pytest.raises(LoadFailed, match=r"10.0.0.0/worker-0 runs on another host.*127.0.0.1"):
            await owner.ready()
    async with coordinated(ScriptedCluster(), host="127.0.0.1") as owner:
        await owner.ready()


@in_a_loop
async def test_a_worker_without_a_place_is_told_with_the_room_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the time that a growing cluster has; and how fewer are asked for, in a test and on the command line."""
    monkeypatch.setattr(crew, "MOST_PLACE_SECONDS", 0.05)
    async with coordinated(ScriptedCluster([Script(), Script(never_placed=True)])) as owner:
        told = r"worker-1 of 2 found no place in .*2 logical CPUs, 0 of them free.*load\(processes=N\), or --workers N"
        with pytest.raises(LoadFailed, match=told):
            await owner.ready()


@in_a_loop
async def test_processes_that_run_here_are_told_with_readiness_and_those_elsewhere_are_not() -> None:
    """Of two workers the one that sees our processes; and of who takes the place of one that was lost."""
    cluster = ScriptedCluster([Script(), Script(sees=False)])
    async with coordinated(cluster) as owner:
        assert (await owner.ready()).processes == (HostProcess(0, 7),)
        cluster.of(1).die()
        await owner.until(lambda: len(cluster.placed) == 3 and cluster.of(1) is cluster.placed[2])
        owner.again(8)
        assert (await owner.ready()).processes == (HostProcess(0, 7), HostProcess(1, 7))


# -- clocks


@in_a_loop
async def test_a_clock_that_is_not_known_well_enough_has_its_worker_replaced_once() -> None:
    """Ways of 6 ms leave a clock unknown by 6 ms; the second such worker of a part is an error with its name."""
    cluster = ScriptedCluster([Script(way_ns=6 * MS)])
    async with coordinated(cluster, 1) as owner:
        await owner.ready()
    assert [worker.ended for worker in cluster.placed] == [True, False]
    cluster = ScriptedCluster([Script(way_ns=6 * MS)] * 2)
    async with coordinated(cluster, 1) as owner:
        with pytest.raises(LoadFailed, match=r"the clock of 10.0.0.1/worker-0 is known only to within 6.0\d ms"):
            await owner.ready()


@pytest.mark.parametrize("moved_ns", [-20 * MS, 20 * MS])
@in_a_loop
async def test_a_clock_that_goes_away_ends_the_load(moved_ns: int) -> None:
    """Seen in what it reports, while the load goes on."""
    cluster = ScriptedCluster()
    async with coordinated(cluster) as owner:
        await owner.ready()
        await owner.begin(cluster)
        for worker in cluster.placed:
            worker.report(0)
        await owner.tick()
        cluster.of(1).moved_ns = moved_ns
        for number in (1, 2):
            cluster.of(1).report(number)
        with pytest.raises(LoadFailed, match=r"the clock of 10.0.0.1/worker-1 went away from this host's"):
            await owner.next()


@pytest.mark.parametrize("anew", [False, True])
@in_a_loop
async def test_a_clock_that_has_gone_away_by_the_end_is_found(*, anew: bool) -> None:
    """Measured again before the last tick is told, and before the load begins anew."""
    cluster = ScriptedCluster()
    async with coordinated(cluster) as owner:
        await owner.ready()
        await owner.begin(cluster)
        for worker in cluster.placed:
            worker.report(0, last=not anew)
        if anew:
            await owner.tick()
            owner.again(8)
        cluster.of(1).moved_ns = 7 * MS
        with pytest.raises(LoadFailed, match=r"the clock of 10.0.0.1/worker-1 went .* by (6.9\d|7.00) ms at least"):
            await owner.next()


@in_a_loop
async def test_a_little_drift_is_borne() -> None:
    """Below what matters for ticks of 100 ms; from the next load on it is reckoned with, also after a long pause."""
    cluster = ScriptedCluster()
    async with coordinated(cluster) as owner:
        await owner.ready()
        await owner.begin(cluster)
        cluster.of(1).moved_ns = 3 * MS
        for worker in cluster.placed:
            worker.report(0)
        await owner.tick()
        owner.again(8)
        await owner.ready()
        await owner.begin(cluster, times=2)
        assert abs(cluster.of(0).begun_ns[1] - (cluster.of(1).begun_ns[1] - 3 * MS)) < MS
        owner.again(9)
        await owner.ready()
        cluster.of(1).moved_ns = 60 * MS
        cluster.clock.at_ns += 10 * SECOND
        await owner.begin(cluster, times=3)
        assert abs(cluster.of(0).begun_ns[2] - (cluster.of(1).begun_ns[2] - 60 * MS)) < MS


async def reported_for(cluster: ScriptedCluster, owner: ScriptedOwner, ticks: int) -> None:
    """Have both workers report so many ticks, each a tenth of a second of our time after the one before.

    By our clock each begins where the one before ended, and each worker's was when it was, to within 2 ms.
    """
    await owner.ready()
    await owner.begin(cluster)
    began_ns = {part: cluster.of(part).begun_ns[0] for part in range(2)}
    ended_ns: dict[str, int] = {}
    for number in range(ticks):
        cluster.clock.at_ns += TICK_NS
        for part in range(2):
            cluster.of(part).report(number)
        tick = await owner.tick()
        for part, (name, each) in enumerate(tick.workers.items()):
            assert each.begin_ns == ended_ns.get(name, each.begin_ns)
            ended_ns[name] = each.end_ns
            script = cluster.of(part).script
            theirs_ns = began_ns[part] + (number + 1) * TICK_NS - script.ahead_ns - STARTED_NS
            assert abs(each.end_ns - STARTED_NS - theirs_ns / (1 + script.drift_ppm / 1e6)) < 2 * MS


@in_a_loop
async def test_clocks_that_drift_are_followed_for_minutes() -> None:
    """At 100 ppm apart they are out by 20 ms after 100 s, and no report is told by more than 2 ms wrong."""
    cluster = ScriptedCluster([Script(ahead_ns=DAY, drift_ppm=100), Script(ahead_ns=-DAY, drift_ppm=-100)])
    async with coordinated(cluster) as owner:
        await reported_for(cluster, owner, 1000)


@in_a_loop
async def test_a_drift_of_half_a_tick_ends_the_load() -> None:
    """Ticks of the same number are then of other times; at 400 ppm that is after two minutes."""
    cluster = ScriptedCluster([Script(drift_ppm=400)])
    async with coordinated(cluster) as owner:
        with pytest.raises(LoadFailed, match=r"the clock of 10.0.0.0/worker-0 has drifted by 50.\d ms .* NTP"):
            await reported_for(cluster, owner, 2000)


@in_a_loop
async def test_a_clock_that_runs_much_too_fast_ends_the_load() -> None:
    """At 1 % durations are wrong by as much; no step of it is large, and together they are."""
    cluster = ScriptedCluster([Script(drift_ppm=10_000)])
    async with coordinated(cluster) as owner:
        with pytest.raises(LoadFailed, match=r"the clock of 10.0.0.0/worker-0 went away from this host's"):
            await reported_for(cluster, owner, 20)


def asked_for(worker: ScriptedWorker, times: int) -> bool:
    """Whether it was asked for the time so often."""
    return worker.asked >= times


@in_a_loop
async def test_a_worker_of_which_little_is_heard_is_asked_for_the_time() -> None:
    """After 13 s without a report its clock is known to some 7 ms; a few calls tell more of it."""
    cluster = ScriptedCluster()
    async with coordinated(cluster) as owner:
        await owner.ready()
        await owner.begin(cluster)
        asked = cluster.of(1).asked
        for number in range(2):
            cluster.clock.at_ns += 13 * SECOND
            for worker in cluster.placed:
                worker.report(number)
            await owner.tick()
            await owner.until(functools.partial(asked_for, cluster.of(1), asked + crew.ROUNDS))
            asked = cluster.of(1).asked


@in_a_loop
async def test_when_a_clock_is_not_known_any_more_the_load_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """After half a minute without a report it could have drifted by 15 ms; that is no measurement of its time."""
    monkeypatch.setattr(coordinator, "SILENCE_SECONDS", 60.0)
    cluster = ScriptedCluster()
    async with coordinated(cluster) as owner:
        await owner.ready()
        await owner.begin(cluster)
        cluster.clock.at_ns += 30 * SECOND
        cluster.of(1).report(0)
        with pytest.raises(LoadFailed, match=r"when 10.0.0.1/worker-1 did what it reports is not known: its clock is"):
            await owner.next()


@in_a_loop
async def test_who_hears_of_the_begin_too_late_is_named() -> None:
    """A worker that began later than the others would leave a hole in the schedule."""
    cluster = ScriptedCluster([Script(), Script(begin_ns=SECOND)])
    async with coordinated(cluster) as owner:
        await owner.ready()
        owner.coordinator.order(Begin(0))
        with pytest.raises(LoadFailed, match=r"10.0.0.1/worker-1 heard of the begin too late, by 9\d\d ms"):
            await owner.next()


# -- the end


@pytest.mark.parametrize("placed", [False, True])
@in_a_loop
async def test_a_cancelled_coordinator_leaves_no_task(*, placed: bool) -> None:
    """Whether it still looks for workers or loads."""
    cluster = ScriptedCluster([Script(never_placed=not placed)])
    async with coordinated(cluster) as owner:
        await owner.until(lambda: len(cluster.placed) == 2)
        if placed:
            await owner.ready()
            await owner.begin(cluster)
    assert asyncio.all_tasks() == {asyncio.current_task()}
