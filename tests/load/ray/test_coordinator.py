"""One process speaks for workers on many hosts: their clocks, their losses, their silence, one load after the other."""

from __future__ import annotations

import asyncio
import functools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuserve.errors import LoadFailed
from pytest_gpuserve.load import driver as driver_module
from pytest_gpuserve.load.ray import coordinator, pool, source
from pytest_gpuserve.load.ray.actors import CONNECT_SECONDS
from pytest_gpuserve.load.ray.cluster import Versions
from pytest_gpuserve.load.ray.coordinator import LEAST_LEAD_NS
from pytest_gpuserve.load.wire import Begin, HostProcess
from tests.fakes.scripted_workers import TICK_NS, Script, ScriptedCluster, coordinated

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence

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


@asynccontextmanager
async def loading(*scripts: Script, parts: int = 2) -> AsyncIterator[tuple[ScriptedCluster, ScriptedOwner]]:
    """A load that has begun."""
    cluster = ScriptedCluster(scripts)
    async with coordinated(cluster, parts) as owner:
        await owner.ready()
        await owner.begin(cluster)
        yield cluster, owner


def report(cluster: ScriptedCluster, number: int = 0, *, last: bool = False) -> None:
    """Have the worker of each part report a tick."""
    for part in {worker.part for worker in cluster.placed if worker.part is not None}:
        cluster.of(part).report(number, last=last)


async def fails(owner: ScriptedOwner, told: str) -> None:
    """Wait for the end of the load, which says so."""
    with pytest.raises(LoadFailed, match=told):
        await owner.next()


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
            report(cluster, 0)
            report(cluster, 1, last=True)
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
async def test_the_begin_is_moved_only_where_a_worker_could_miss_it() -> None:
    """One that is far away is kept; a near one is as far ahead as four of the longest calls."""
    cluster = ScriptedCluster()
    async with coordinated(cluster) as owner:
        await owner.ready()
        late_ns = cluster.clock.now_ns() + 3 * SECOND
        owner.coordinator.order(Begin(late_ns))
        await owner.until(lambda: all(worker.begun_ns for worker in cluster.placed))
        assert all(abs(worker.begun_ns[0] - late_ns) < MS for worker in cluster.placed)
    cluster = ScriptedCluster([Script(first_ns=200 * MS)])
    async with coordinated(cluster) as owner:
        await owner.ready()
        ordered_ns = await owner.begin(cluster)
        assert cluster.placed[0].begun_ns[0] - ordered_ns >= 4 * 200 * MS


@in_a_loop
async def test_a_load_begins_anew_with_another_seed() -> None:
    """Before its begin, in mid-load and after its end; ticks of the load before are not told after readiness."""
    cluster = ScriptedCluster()
    async with coordinated(cluster) as owner:
        await owner.ready()
        owner.again(8)
        await owner.ready()
        await owner.begin(cluster)
        report(cluster)
        await owner.tick()
        cluster.of(0).report(1)
        owner.again(9)
        await owner.ready()
        await owner.begin(cluster, times=2)
        report(cluster, last=True)
        assert (await owner.tick()).last
        owner.again(10)
        await owner.ready()
    assert [worker.seeds for worker in cluster.placed] == [[7, 8, 9, 10]] * 2
    assert [len(worker.begun_ns) for worker in cluster.placed] == [2, 2]


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
    # Workers beside a server on our loopback load it.
    async with coordinated(ScriptedCluster(), host="127.0.0.1") as owner:
        await owner.ready()


# -- workers that are lost, or hang


@pytest.mark.parametrize("method", ["versions", "node", "start", "location", "clock"])
@in_a_loop
async def test_a_worker_that_dies_before_the_begin_is_replaced(method: str) -> None:
    """Wherever it dies; the other takes its part, under a name that tells its own node."""
    async with loading(Script(dies_in=method)) as (cluster, owner):
        report(cluster, last=True)
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
        report(cluster, last=True)
        assert (await owner.tick()).last
        cluster.of(2).die()
        owner.again(9)
        await owner.ready()
        await owner.until(lambda: cluster.of(2).seeds[-1] == 9)
        await owner.begin(cluster)
    assert [worker.ended for worker in cluster.placed] == [False, True, True, False, False]
    assert [cluster.placed[number].seeds for number in (1, 3)] == [[7], [7, 8, 9]]


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of a script answers at once, or never."""
    for module in (coordinator, pool):
        monkeypatch.setattr(module, "CALL_SECONDS", 0.5)
    monkeypatch.setattr(pool, "START_SECONDS", 0.5)
    monkeypatch.setattr(pool, "MOST_PLACE_SECONDS", 0.5)
    monkeypatch.setattr(coordinator, "HALT_SECONDS", 0.5)


def hangs(name: str) -> str:
    """What is said of a worker that does not answer."""
    return f"^{name} did not answer in 500 ms: its process, its node or the way to it hangs$"


HANGS = hangs("10.0.0.1/worker-1")
BAD_CLOCK = Script(way_ns=6 * MS)
NO_PLACE = r"worker-1 of 2 found no place in .*2 logical CPUs, 0 of them free.*load\(processes=N\), or --workers N"


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize(
    ("scripts", "told", "placed"),
    [
        *[
            pytest.param([Script(), Script(hangs_in=method)], HANGS, 2, id=f"hangs in {method}")
            for method in ("identities", "start", "location", "clock")
        ],
        pytest.param([Script(), Script(hangs_in="node")], hangs("worker-1 of 2"), 2, id="hangs before it has a name"),
        # After as many as there are workers, with the last one's reason.
        pytest.param(
            [Script(dies_in="start")] * 9,
            r"lost before the load began, after 2 others.*its process has died",
            None,
            id="keep dying",
        ),
        # Another node would fare no better: it is not replaced.
        pytest.param(
            [Script(), Script(refuses="no.such:80: Name or service not known")],
            r"^10.0.0.1/worker-1: no.such:80: Name or service not known$",
            2,
            id="cannot start",
        ),
        pytest.param(
            [Script(versions=Versions("3.11.7", "2.60.0", "0.0.9"))],
            r"^10.0.0.0/worker-0 .*0.0.9, here 0.1.0.*pip install pytest-gpuserve==0.1.0$",
            2,
            id="another version",
        ),
        # It would load its own loopback.
        pytest.param(
            [Script(sees=False)], r"10.0.0.0/worker-0 runs on another host.*127.0.0.1", 2, id="not on the server's host"
        ),
        # After the time that a growing cluster has.
        pytest.param([Script(), Script(never_placed=True)], NO_PLACE, 2, id="no place"),
    ],
)
@in_a_loop
async def test_what_keeps_a_load_from_its_begin_is_told(
    scripts: Sequence[Script], told: str, placed: int | None
) -> None:
    """Of a server on our loopback; with the worker's name, and what would help."""
    cluster = ScriptedCluster(scripts)
    async with coordinated(cluster, host="127.0.0.1") as owner:
        with pytest.raises(LoadFailed, match=told):
            await owner.ready()
        assert placed in (None, len(cluster.placed))
    assert all(worker.ended for worker in cluster.placed[:3] if worker.script.dies_in)
    assert all(worker.seeds == [] for worker in cluster.placed if worker.script.versions.package == "0.0.9")


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize(
    ("script", "hangs_in", "told"),
    [
        (Script(dies_in="begin"), "", r"10.0.0.1/worker-1 was lost as the load began"),
        # One that began later than the others would leave a hole in the schedule.
        (Script(begin_ns=SECOND), "", r"10.0.0.1/worker-1 heard of the begin too late, by 9\d\d ms"),
        (Script(), "begin", HANGS),
        # After a pause its clock has to be measured again first.
        (Script(), "clock", HANGS),
    ],
    ids=["dies", "too late", "hangs", "hangs when asked for the time"],
)
@in_a_loop
async def test_a_worker_that_misses_the_begin_ends_the_load(script: Script, hangs_in: str, told: str) -> None:
    """Who was not told to begin cannot take part."""
    cluster = ScriptedCluster([Script(), script])
    async with coordinated(cluster) as owner:
        await owner.ready()
        cluster.of(1).hangs_in = hangs_in
        cluster.clock.at_ns += 10 * SECOND
        owner.coordinator.order(Begin(0))
        await fails(owner, told)


@pytest.mark.parametrize(
    ("deed", "told"),
    [
        (lambda worker: worker.die(), r"^10.0.0.1/worker-1 was lost in mid-load: its node has died$"),
        (lambda worker: worker.tell(problem="the engine died"), r"^10.0.0.1/worker-1: the engine died$"),
        # A gap in a worker's numbers is never passed over.
        (lambda worker: worker.report(1), r"10.0.0.1/worker-1 reports tick 1 after -1"),
        (
            lambda worker: worker.news.put_nowait(ValueError("no\nnews")),
            r"^10.0.0.1/worker-1 was lost in mid-load: no news$",
        ),
    ],
    ids=["dies", "its engine dies", "a lost report", "nonsense"],
)
@in_a_loop
async def test_a_worker_that_fails_in_mid_load_ends_it_with_its_name(
    deed: Callable[[ScriptedWorker], None], told: str
) -> None:
    """It is not replaced: what it would have sent is missing."""
    async with loading() as (cluster, owner):
        cluster.of(0).report(0)
        deed(cluster.of(1))
        await fails(owner, told)
    assert len(cluster.placed) == 2


@in_a_loop
async def test_a_silent_worker_ends_the_load_with_its_name() -> None:
    """Without a tick of it for 15 s; those that report are not blamed."""
    async with loading() as (cluster, owner):
        report(cluster)
        await owner.tick()
        cluster.clock.at_ns += 10 * SECOND
        cluster.of(0).report(1)
        await owner.until(cluster.of(0).news.empty)
        await asyncio.sleep(0.05)
        assert not owner.running.done()
        cluster.clock.at_ns += 6 * SECOND
        await fails(owner, r"^10.0.0.1/worker-1 reported nothing for 15.0 s$")


@in_a_loop
async def test_a_worker_whose_load_is_over_may_be_silent() -> None:
    """One with less to do waits for the others as long as these take."""
    async with loading() as (cluster, owner):
        cluster.of(0).report(0, last=True)
        cluster.of(1).report(0)
        assert not (await owner.tick()).last
        for number in range(1, 5):
            cluster.clock.at_ns += 10 * SECOND
            cluster.of(1).report(number, last=number == 4)
            assert list((await owner.tick()).workers) == ["10.0.0.1/worker-1"]
        assert owner.reports.empty()


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize(
    ("hangs_in", "anew", "told"),
    [
        # A load of which a clock is not known has not ended well.
        ("clock", False, HANGS),
        ("clock", True, HANGS),
        ("again", True, HANGS),
        # It hears of the order, and its engine hangs.
        ("", True, r"^not ready to begin again in 500 ms: 10.0.0.1/worker-1$"),
    ],
)
@in_a_loop
async def test_a_worker_that_hangs_at_the_end_or_when_a_load_begins_anew_is_named(
    hangs_in: str, told: str, *, anew: bool
) -> None:
    """Whether it hears of that or not."""
    async with loading() as (cluster, owner):
        cluster.of(1).hangs_in, cluster.of(1).silent = hangs_in, not hangs_in
        if anew:
            owner.again(8)
        else:
            report(cluster, last=True)
        await fails(owner, told)


def test_a_worker_that_hangs_is_named_before_the_owner_gives_up() -> None:
    """After a begin, and before the first; the owner knows no names."""
    assert pool.CALL_SECONDS < driver_module.SILENCE_SECONDS
    assert coordinator.SILENCE_SECONDS < driver_module.SILENCE_SECONDS
    placed = CONNECT_SECONDS + pool.MOST_PLACE_SECONDS
    assert placed + pool.START_SECONDS + 4 * pool.CALL_SECONDS < source.READY_SECONDS
    assert coordinator.HALT_SECONDS + pool.CALL_SECONDS < source.READY_SECONDS


# -- clocks


@in_a_loop
async def test_a_clock_that_is_not_known_well_enough_has_its_worker_replaced_once() -> None:
    """Ways of 6 ms leave a clock unknown by 6 ms; the second such worker of a part is an error with its name."""
    for scripts in ([BAD_CLOCK], [BAD_CLOCK] * 2):
        cluster = ScriptedCluster(scripts)
        async with coordinated(cluster, 1) as owner:
            if len(scripts) == 1:
                await owner.ready()
                assert [worker.ended for worker in cluster.placed] == [True, False]
            else:
                await fails(owner, r"the clock of 10.0.0.1/worker-0 is known only to within 6.0\d ms")


@pytest.mark.parametrize("moved_ns", [-20 * MS, 20 * MS])
@in_a_loop
async def test_a_clock_that_goes_away_ends_the_load(moved_ns: int) -> None:
    """Seen in what it reports, while the load goes on."""
    async with loading() as (cluster, owner):
        report(cluster)
        await owner.tick()
        cluster.of(1).moved_ns = moved_ns
        for number in (1, 2):
            cluster.of(1).report(number)
        await fails(owner, r"the clock of 10.0.0.1/worker-1 went away from this host's")


@pytest.mark.parametrize("anew", [False, True])
@in_a_loop
async def test_a_clock_that_has_gone_away_by_the_end_is_found(*, anew: bool) -> None:
    """Measured again before the last tick is told, and before the load begins anew."""
    async with loading() as (cluster, owner):
        report(cluster, last=not anew)
        if anew:
            await owner.tick()
            owner.again(8)
        cluster.of(1).moved_ns = 7 * MS
        await fails(owner, r"the clock of 10.0.0.1/worker-1 went .* by (6.9\d|7.00) ms at least")


@in_a_loop
async def test_a_little_drift_is_borne() -> None:
    """Below what matters for ticks of 100 ms; from the next load on it is reckoned with, also after a long pause."""
    async with loading() as (cluster, owner):
        cluster.of(1).moved_ns = 3 * MS
        report(cluster)
        await owner.tick()
        for seed, moved_ns, pause_ns in ((8, 3 * MS, 0), (9, 60 * MS, 10 * SECOND)):
            owner.again(seed)
            await owner.ready()
            cluster.of(1).moved_ns = moved_ns
            cluster.clock.at_ns += pause_ns
            await owner.begin(cluster, times=seed - 6)
            assert abs(cluster.of(0).begun_ns[-1] - (cluster.of(1).begun_ns[-1] - moved_ns)) < MS


@in_a_loop
async def test_a_worker_of_which_little_is_heard_is_asked_for_the_time() -> None:
    """After 13 s without a report its clock is known to some 7 ms; a few calls tell more of it."""
    async with loading() as (cluster, owner):
        worker = cluster.of(1)
        for number in range(2):
            asked, polled = worker.asked, worker.polled
            cluster.clock.at_ns += 13 * SECOND
            report(cluster, number)
            await owner.tick()
            # It is asked for news again when its clock is known.
            await owner.until(lambda polled=polled: worker.polled > polled)  # type: ignore[misc]
            assert worker.asked == asked + pool.ROUNDS


@in_a_loop
async def test_when_a_clock_is_not_known_any_more_the_load_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """After half a minute without a report it could have drifted by 15 ms; that is no measurement of its time."""
    monkeypatch.setattr(coordinator, "SILENCE_SECONDS", 60.0)
    async with loading() as (cluster, owner):
        cluster.clock.at_ns += 30 * SECOND
        cluster.of(1).report(0)
        await fails(owner, r"when 10.0.0.1/worker-1 did what it reports is not known: its clock is")


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
