"""Real engines against a real server: exact counts, an end with their owner, and no silence about trouble."""

from __future__ import annotations

import gc
import hashlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.errors import LoadFailed
from pytest_gpuserve.load.driver import Engines
from pytest_gpuserve.load.engine import __main__ as engine_main
from pytest_gpuserve.load.engine import pipes
from pytest_gpuserve.load.engine.outputs import OutputPlaces
from pytest_gpuserve.load.engine.reactor import Reactor
from pytest_gpuserve.load.engine.tally import DISTINCT_ANSWER_BYTES, DISTINCT_ANSWERS
from pytest_gpuserve.load.request import Request
from pytest_gpuserve.load.schedule import Burst, Closed, Constant, Steps, Trace
from pytest_gpuserve.load.source import LocalEngines
from pytest_gpuserve.load.wire import BEAT_NS, Outputs, Tick, unwritten
from pytest_gpuserve.measure.histogram import bucket_of
from pytest_gpuserve.process.ports import free_port
from tests.fakes.children.toolkit import ROOT, alive, eventually
from tests.fakes.http_server import SAFETY_SECONDS, Serving, Totals, plan, serving
from tests.fakes.load_processes import owner_of_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from pytest_gpuserve.load.schedule import Schedule
    from pytest_gpuserve.load.source import Launch
    from pytest_gpuserve.load.wire import Latencies, Plan

ENDS_SECONDS = 10.0
"""The engine must be gone so soon after its owner: a promise to users."""


@pytest.fixture
def server() -> Iterator[Serving]:
    """Give a server of its own to each test, so that all that it saw is of this test."""
    with serving() as running:
        yield running


def digests(port: int, schedule: Schedule, *, payloads: int, requests: int | None = None) -> tuple[Plan, list[bytes]]:
    """Plan a load of so many different bodies; also returns the server's answer to each of them."""
    bodies = [b"body %d" % index for index in range(payloads)]
    forms = tuple((Request("POST", "/digest", body).to_bytes("127.0.0.1", port),) for body in bodies)
    whole = plan(port, schedule=schedule, requests=requests)
    whole = msgspec.structs.replace(whole, payloads=forms, keep_answers="all")
    return whole, [hashlib.sha256(body).hexdigest().encode() for body in bodies]


def above(durations: Latencies, seconds: float) -> int:
    """Return how many are surely longer."""
    return sum(count for bucket, count in durations.counts.items() if bucket > bucket_of(round(seconds * 1e9)))


# -- the load


def test_the_closed_loop_keeps_every_user_busy_on_one_connection(server: Serving) -> None:
    """The server sees exactly as many connections, and as many requests at once, as there are users."""
    total = 200
    with Engines(plan(server.port, f"/ok?ms=5&total={total}", connections=8)) as engine:
        totals = Totals(engine).take_all(total, 8)
        seen = server.seen("/ok")
    assert (totals.requests, totals.errors) == (total, {})
    assert (seen.requests, seen.connections, seen.most_at_once) == (total + 8, 8, 8)


def test_the_latency_is_that_of_the_server_and_little_more(server: Serving) -> None:
    """Over the same requests the sum of latencies lies above the server's own sum, and not far above."""
    total = 40
    with Engines(plan(server.port, f"/ok?ms=50&total={total}")) as engine:
        totals = Totals(engine).take_all(total, 4)
        seen = server.seen("/ok")
    assert seen.service_ns <= totals.latency_sum_ns <= 3 * seen.service_ns


@pytest.mark.parametrize(
    ("target", "body", "slow"),
    [
        ("/ok?read_ms=200", b"x" * (1 << 24), "sending_ns"),
        ("/big?write_ms=200", b"x", "receiving_ns"),
        ("/ok?ms=200", b"x", ""),
    ],
)
def test_slow_transfers_are_timed(server: Serving, target: str, body: bytes, slow: str) -> None:
    """The pauses of a server that reads, or writes, slowly are in the one sum, and not in the other; its work in none.

    More than the kernel keeps for it cannot be sent before it reads. The client may see the first half of an answer
    late, hence the margin.
    """
    with Engines(plan(server.port, target, connections=2, requests=6, body=body)) as engine:
        totals = Totals(engine).take_to_end()
    assert (totals.requests, totals.errors) == (6, {})
    sums = {name: sum(getattr(tick, name) for tick in totals.ticks) for name in ("sending_ns", "receiving_ns")}
    pauses_ns = 6 * 200_000_000
    for name, found in sums.items():
        if name == slow:
            assert pauses_ns / 2 < found < totals.latency_sum_ns
        else:
            assert found < pauses_ns / 4
    assert sums["sending_ns"] + sums["receiving_ns"] < totals.latency_sum_ns
    if not slow:
        assert sums == {"sending_ns": 0, "receiving_ns": 0}


def test_the_figures_of_a_tick_agree_with_each_other(server: Serving) -> None:
    """Ticks follow each other without gap; histogram, sum, maximum and answers are of the same requests."""
    with Engines(plan(server.port, "/ok?ms=1")) as engine:
        totals = Totals(engine).take_until(lambda totals, _: totals.requests > 100, "requests")
    for last, tick in pairwise(totals.ticks):
        assert last.end_ns == tick.begin_ns <= tick.end_ns
        assert last.number + 1 == tick.number
    for tick in totals.ticks:
        assert sum(tick.latency.counts.values()) == tick.requests
        assert sum(answers.count for answers in tick.answers) + tick.unchecked == tick.requests
        assert tick.latency.max_ns <= tick.latency.sum_ns <= tick.latency.max_ns * max(1, tick.requests)
        assert 0 <= tick.in_flight <= 4
        assert tick.bytes_received == tick.requests * len(b"right")
        assert 0 <= tick.in_flight_ns <= 4 * (tick.end_ns - tick.begin_ns)
    assert sum(tick.cpu_ns for tick in totals.ticks) > 0


def test_a_limit_by_requests_is_exact_and_ends_with_a_last_tick(server: Serving) -> None:
    """Of 50 requests the server sees 50, over three processes, and the last tick leaves none under way."""
    with Engines(plan(server.port, "/ok?ms=2", connections=7, requests=50), 3) as engines:
        totals = Totals(engines).take_to_end()
    assert (totals.requests, totals.sent, totals.errors, totals.in_flight) == (50, 50, {}, 0)
    assert server.seen("/ok").requests == 50


def test_a_limit_by_requests_ends_a_load_that_no_server_answers() -> None:
    """Each refused connection is one of the requests: the load ends, with as many errors as it had requests."""
    with Engines(plan(free_port(), connections=6, requests=20), 2) as engines:
        totals = Totals(engines).take_to_end()
    assert (totals.requests, totals.sent, totals.errors) == (0, 0, {"connection refused": 20})


def test_a_limit_by_time_waits_for_what_is_under_way(server: Serving) -> None:
    """Answers that take longer than the load are counted, and all that the server saw is answered."""
    with Engines(plan(server.port, "/ok?ms=400", connections=3, seconds=0.1)) as engines:
        totals = Totals(engines).take_to_end()
    assert (totals.requests, totals.in_flight) == (3, 0)
    assert server.seen("/ok").requests == 3
    assert totals.ticks[-1].end_ns - totals.ticks[0].begin_ns >= 400_000_000


def test_users_come_and_go_in_steps(server: Serving) -> None:
    """The most at once is that of the fullest step, over two processes, and the end is the last step's."""
    steps = Steps(((2, 0.1), (9, 0.6), (1, 0.1)))
    whole = plan(server.port, "/ok?ms=5", schedule=steps)
    with Engines(whole, 2) as engines:
        totals = Totals(engines).take_to_end()
    seen = server.seen("/ok")
    assert (seen.most_at_once, seen.connections) == (9, 9)
    assert seen.requests == totals.requests == totals.sent
    # Ticks end on time, also where an engine began late; with the 40th of them the load ends.
    assert totals.ticks[-1].number >= 800_000_000 // whole.tick_ns - 1


@pytest.mark.parametrize("schedule", [Closed(6), Constant(2000.0), Burst(60)], ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("shuffled", [False, True])
def test_processes_share_a_load_without_loss_or_double(server: Serving, schedule: Schedule, *, shuffled: bool) -> None:
    """60 requests with 60 bodies over three processes: the server answers each body once, and each number is one."""
    whole, expected = digests(server.port, schedule, payloads=60, requests=60)
    with Engines(msgspec.structs.replace(whole, shuffled=shuffled, seed=3), 3) as engines:
        totals = Totals(engines).take_to_end()
    answers = [answer for tick in totals.ticks for answer in tick.answers]
    assert totals.answers == Counter(expected)
    assert [(answer.index, answer.body) for answer in sorted(answers, key=lambda answer: answer.index)] == [
        *enumerate(expected)
    ]
    assert sorted(answer.number for answer in answers) == list(range(60))
    in_turn = all(answer.number == answer.index for answer in answers)
    assert in_turn is not shuffled


@dataclass(frozen=True)
class OnePart(LocalEngines):
    """Of all workers of a load this one alone."""

    part: int = 0

    def launches(self, workers: int) -> Sequence[Launch]:
        """The worker of that part."""
        return super().launches(workers)[self.part : self.part + 1]


@pytest.mark.parametrize(("payloads", "processes"), [(2, 2), (6, 4), (3, 2)])
def test_each_process_of_a_closed_loop_sends_all_payloads(server: Serving, payloads: int, processes: int) -> None:
    """Also where their numbers have a common divisor: else one would only ever send the cheap ones."""
    each = 10 * payloads
    whole, expected = digests(server.port, Closed(processes), payloads=payloads, requests=each * processes)
    found: Counter[bytes] = Counter()
    for part in range(processes):
        with Engines(whole, processes, OnePart(part=part)) as engines:
            answers = Totals(engines).take_to_end().answers
        assert set(answers) == set(expected)
        found.update(answers)
    assert found == Counter(dict.fromkeys(expected, each * processes // payloads))


def test_a_trace_is_replayed_with_its_payloads(server: Serving) -> None:
    """Each request carries the body that the trace names, and is not sent before its time."""
    trace = Trace(((0.0, 2), (0.1, 0), (0.1, 2), (0.3, 1)))
    whole, expected = digests(server.port, trace, payloads=3)
    with Engines(whole) as engines:
        totals = Totals(engines).take_to_end()
    assert totals.answers == Counter([expected[2], expected[0], expected[2], expected[1]])
    numbers = {(answer.number, answer.index) for tick in totals.ticks for answer in tick.answers}
    assert numbers >= {(0, 2), (1, 0), (3, 1)}
    # Ticks end on time, also where an engine began late.
    assert totals.ticks[-1].number >= 300_000_000 // whole.tick_ns


def test_the_ceiling_holds_over_all_processes(server: Serving) -> None:
    """A burst of 60 with at most 5 at once, over two processes: the server never sees more, and what waited says so."""
    with Engines(plan(server.port, "/ok?ms=30", schedule=Burst(60, max_in_flight=5)), 2) as engines:
        totals = Totals(engines).take_to_end()
    seen = server.seen("/ok")
    assert (seen.requests, seen.most_at_once, seen.connections) == (60, 5, 5)
    assert (totals.due, totals.sent, totals.requests, totals.held) == (60, 60, 60, 55)
    latency_ns = sum(tick.latency.sum_ns for tick in totals.ticks)
    service_ns = sum(tick.service.sum_ns for tick in totals.ticks)
    # On average a request waits for half of the others, 5 at a time.
    assert latency_ns > 4 * service_ns > 4 * seen.service_ns


def test_an_open_loop_does_not_wait_for_answers(server: Serving) -> None:
    """Of a server that never answers all 30 requests are sent, and each expires once."""
    schedule = Constant(500.0)
    whole = plan(server.port, "/never", schedule=schedule, requests=30, timeout_seconds=0.2)
    with Engines(whole) as engines:
        totals = Totals(engines).take_to_end()
    assert (totals.errors, totals.sent, totals.requests) == ({"timeout": 30}, 30, 0)
    assert server.seen("/never").most_at_once == 30


def test_a_connection_that_the_server_closes_is_replaced(server: Serving) -> None:
    """With `Connection: close` every request has a connection of its own, and none is an error."""
    for schedule in (Closed(3), Constant(1000.0, max_in_flight=3)):
        with Engines(plan(server.port, "/close", schedule=schedule, requests=30)) as engines:
            totals = Totals(engines).take_to_end()
        assert (totals.requests, totals.errors) == (30, {})
    seen = server.seen("/close")
    assert (seen.requests, seen.connections) == (60, 60)


def test_a_stopped_engine_is_late_and_says_so(server: Serving) -> None:
    """Who was due while the engine stood still is late by the rest of it, in lag and latency, request by request.

    The service time hides it. The ticks' boundaries stay where they were: their numbers catch up.
    """
    rate, late_seconds = 400.0, 0.2
    whole = plan(server.port, schedule=Constant(rate), seconds=2.0)
    with Engines(whole) as engines:
        totals = Totals(engines).take_until(lambda totals, _: totals.requests > 10, "a load")
        begin, end = stand_still(engines.pids[0], 0.6)
        totals.take_to_end()
    expected = int(rate * (end - begin - late_seconds)) - 1
    assert sum(above(tick.lag, late_seconds) for tick in totals.ticks) >= expected
    assert sum(above(tick.latency, late_seconds) for tick in totals.ticks) >= expected
    assert sum(above(tick.service, late_seconds) for tick in totals.ticks) < expected / 2
    assert totals.requests == totals.due == 800
    assert any(
        tick.begin_ns > end * 1e9 and tick.end_ns - totals.ticks[0].begin_ns < (tick.number + 2) * whole.tick_ns
        for tick in totals.ticks
    )


def stand_still(pid: int, seconds: float) -> tuple[float, float]:
    """Stop a process for so long; return a time by which it stood still, and one at which it still did."""
    os.kill(pid, signal.SIGSTOP)
    try:
        eventually(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "it stands still")
        begin = time.perf_counter()
        time.sleep(seconds)
        return begin, time.perf_counter()
    finally:
        os.kill(pid, signal.SIGCONT)


def test_an_engine_that_does_not_run_misses_its_beats(server: Serving) -> None:
    """As many as the time in which it stood still has, each in the tick in which it was due, and late by the rest."""
    still_ns = 300_000_000
    with Engines(plan(server.port, "/ok?ms=1", seconds=1.5)) as engines:
        totals = Totals(engines).take_until(lambda totals, _: totals.requests > 10, "a load")
        begin, end = stand_still(engines.pids[0], still_ns / 1e9)
        totals.take_to_end()
    inside = [tick for tick in totals.ticks if begin * 1e9 <= tick.begin_ns and tick.end_ns <= end * 1e9]
    assert len(inside) >= 10
    for tick in inside:
        beats = (tick.end_ns - tick.begin_ns) / BEAT_NS
        assert abs(tick.late_beats - beats) <= 1
        rest_ns = end * 1e9 - (tick.begin_ns + tick.end_ns) / 2
        assert tick.late_beats_ns / tick.late_beats >= rest_ns - BEAT_NS
    missed = sum(tick.late_beats for tick in totals.ticks)
    assert missed >= still_ns / BEAT_NS - 1
    assert sum(tick.late_beats_ns for tick in totals.ticks) >= still_ns * (missed - 1) / 2.5


@given(st.data())
def test_late_beats_belong_to_the_time_in_which_they_were_due(data: st.DataObject) -> None:
    """However a tick is cut: none is lost, none counted twice, and each is in the part that holds it."""
    ends_ns = data.draw(st.lists(st.integers(101, 999), unique=True, max_size=5).map(sorted))
    due_ns = data.draw(st.lists(st.integers(100, 1000), unique=True).map(sorted))
    tick = Tick(7, 100, 1000, late_beats=99)
    late = [(due, 1 << place) for place, due in enumerate(due_ns)]
    parts = engine_main.spread(tick, ends_ns, 0, 0, late)
    for part in parts:
        within = [late_ns for due, late_ns in late if part.begin_ns <= due < part.end_ns or due == part.end_ns == 1000]
        assert (part.late_beats, part.late_beats_ns) == (len(within), sum(within))


def test_ticks_of_several_engines_end_together(server: Serving) -> None:
    """One that stands still for a while reports the same ticks as the other, by number, and none is missing."""
    with Engines(plan(server.port, "/ok?ms=1", connections=2, seconds=1.0), 2) as engines:
        totals = Totals(engines).take_until(lambda totals, _: totals.requests > 10, "a load")
        stand_still(engines.pids[1], 0.3)
        totals.take_to_end()
    assert [tick.number for tick in totals.ticks] == list(range(len(totals.ticks)))
    assert len(totals.ticks) >= 1_000_000_000 // plan(1).tick_ns
    assert totals.requests == server.seen("/ok").requests


def test_an_engine_that_ends_late_does_not_end_before_the_others(server: Serving) -> None:
    """One of two stands still when its last answer comes, and finds it before its overdue ticks: they come first.

    Each tick ends before the next boundary but one, and not before the one that came before it.
    """
    # The second engine has one request, the first one another after that.
    whole = plan(server.port, "/ok?ms=200", schedule=Trace(((0.0, 0), (0.0, 0), (0.4, 0))))
    for _ in range(4):
        with Engines(whole, 2) as engines:
            totals = Totals(engines)
            begin_ns = totals.take().begin_ns
            # Shortly before the answer, so that it is there before any timer.
            time.sleep(max(0.0, begin_ns / 1e9 + 0.196 - time.perf_counter()))
            stand_still(engines.pids[1], 0.15)
            totals.take_to_end()
        assert totals.requests == 3
        for last, tick in pairwise(totals.ticks):
            assert last.end_ns <= tick.end_ns
            assert tick.begin_ns <= tick.end_ns < begin_ns + (tick.number + 2) * whole.tick_ns
        assert [tick.number for tick in totals.ticks] == list(range(len(totals.ticks)))


@given(
    st.integers(0, 10**12),
    st.lists(st.integers(0, 10**10), max_size=6, unique=True).map(sorted),
    st.integers(1, 10**10),
    st.integers(0, 10**11),
)
def test_a_tick_is_cut_without_loss(begin_ns: int, ends_ns: list[int], rest_ns: int, under_way_ns: int) -> None:
    """The parts follow each other up to now; counts are in the last one, the time under way is shared by length."""
    ends_ns = [begin_ns - 10**9 + end_ns for end_ns in ends_ns]
    end_ns = max([begin_ns, *ends_ns]) + rest_ns
    whole = Tick(
        7,
        begin_ns,
        end_ns,
        requests=5,
        in_flight=3,
        in_flight_ns=under_way_ns,
        oldest_ns=1,
        sending_ns=None,
        receiving_ns=9,
        users=2,
        last=True,
    )
    parts = engine_main.spread(whole, ends_ns, 4, 6)
    assert [part.number for part in parts] == list(range(7, 8 + len(ends_ns)))
    assert [part.end_ns for part in parts] == [*ends_ns, end_ns]
    assert sum(part.in_flight_ns for part in parts) == under_way_ns
    assert sum(part.receiving_ns or 0 for part in parts) == 9
    assert {part.sending_ns for part in parts} == {None}
    assert None not in {part.receiving_ns for part in parts}
    assert sum(part.end_ns - part.begin_ns for part in parts) == end_ns - begin_ns
    for part in parts:
        assert part.end_ns <= begin_ns or part.begin_ns >= begin_ns
        assert part.in_flight_ns * (end_ns - begin_ns) <= (under_way_ns + len(parts)) * (
            part.end_ns - part.begin_ns
        ) + len(parts) * (end_ns - begin_ns)
    assert [(part.requests, part.in_flight, part.users, part.last) for part in parts] == [
        *[(0, 4, 6, False)] * len(ends_ns),
        (5, 3, 2, True),
    ]


# -- shared memory


def test_a_place_is_blank_once_it_was_taken_or_given_up(tmp_path: Path) -> None:
    """What was left for one request is not there for the next one; other places keep theirs."""
    file = tmp_path / "outputs"
    file.write_bytes(b"old." * 3)
    places = OutputPlaces(Outputs(str(file), 4))
    assert file.read_bytes() == unwritten(12)
    with file.open("r+b") as server:
        server.write(b"aaaabbbbcccc")
    assert places.take(0) == b"aaaa"
    places.blank(1)
    assert [places.take(place) for place in range(3)] == [unwritten(4), unwritten(4), b"cccc"]


@pytest.mark.parametrize(("content", "reason"), [(None, "No such file"), (b"", "empty")])
def test_shared_memory_that_cannot_be_read_is_told_as_such(tmp_path: Path, content: bytes | None, reason: str) -> None:
    """With the file and the reason, and not as trouble with the server."""
    file = tmp_path / "outputs"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(LoadFailed) as caught:
        Engines(msgspec.structs.replace(plan(1, connections=1), outputs=Outputs(str(file), 4)))
    assert str(file) in caught.value.log_tail
    assert reason in caught.value.log_tail
    assert "127.0.0.1" not in caught.value.log_tail
    assert "Traceback" not in caught.value.log_tail


# -- answers


def test_distinct_answers_arrive_with_exact_counts(server: Serving) -> None:
    """Each of ten bodies is reported as often as it was sent."""
    with Engines(plan(server.port, "/numbered?distinct=10&total=200")) as engine:
        totals = Totals(engine).take_all(200, 4)
    assert totals.answers == {b"%d" % number: 20 for number in range(10)}
    assert totals.unchecked == 0


@pytest.mark.parametrize("size", [0, 2_000])
def test_a_report_is_bounded_whatever_the_answers_are(server: Serving, size: int) -> None:
    """Bodies that are all different are kept up to the bounds of number and bytes, the rest is counted as unchecked."""
    total = DISTINCT_ANSWERS * 2 if size == 0 else 2 * DISTINCT_ANSWER_BYTES // size
    target = f"/numbered?distinct=1000000&bytes={size}"
    # One tick for all of them: its length is far beyond the time that they take.
    slowly = msgspec.structs.replace(
        plan(server.port, target, connections=16, requests=total), tick_ns=round(SAFETY_SECONDS * 1e9)
    )
    with Engines(slowly) as engine:
        (tick,) = Totals(engine).take_to_end().ticks
    assert tick.requests == total == sum(answers.count for answers in tick.answers) + tick.unchecked
    assert len(tick.answers) <= DISTINCT_ANSWERS
    assert sum(len(answers.body) for answers in tick.answers) <= DISTINCT_ANSWER_BYTES
    assert tick.unchecked > 0


def test_very_large_answers_are_all_passed_on(server: Serving) -> None:
    """60 different answers of a megabyte, all asked for: each arrives, is the server's, and the load ends."""
    whole = plan(server.port, "/numbered?distinct=1000000&bytes=1000000", requests=60)
    with Engines(msgspec.structs.replace(whole, keep_answers="all")) as engine:
        totals = Totals(engine).take_to_end()
    assert totals.answers.total() + totals.unchecked == totals.requests == 60
    assert set(totals.answers) <= {b"%d" % number + b"." * 1_000_000 for number in range(60)}
    # A tick has room for 32 of them.
    assert len(totals.answers) >= 32


def test_a_reader_that_pauses_loses_nothing_and_stalls_nothing(server: Serving) -> None:
    """In two seconds without reading the engine goes on, tick by tick, although the pipe has long been full."""
    pause_ns = 2_000_000_000
    whole = plan(server.port, "/numbered?distinct=1000000&bytes=4000&ms=5")
    with Engines(msgspec.structs.replace(whole, keep_answers="all", nanoseconds=pause_ns)) as engine:
        totals = Totals(engine)
        totals.take()
        time.sleep(pause_ns / 1e9)
        totals.take_to_end()
    assert totals.requests == totals.answers.total() == server.seen("/numbered").requests
    assert (totals.unchecked, set(totals.answers.values())) == (0, {1})
    assert [tick.number for tick in totals.ticks] == list(range(len(totals.ticks)))
    assert sum(map(len, totals.answers)) > 2 * pipes.PIPE_BYTES
    assert max(tick.end_ns - tick.begin_ns for tick in totals.ticks) < pause_ns / 2


# -- the outbox


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Let the engine's standard output be a pipe; gives the end to read from."""
    reading, writing = os.pipe()
    monkeypatch.setattr(pipes, "STDOUT", writing)
    yield reading
    os.close(reading)
    os.close(writing)


def test_reports_wait_in_order_for_a_slow_reader(pipe: int) -> None:
    """Far more than the pipe holds is put without waiting, and read in pieces exactly as it was put."""
    reactor = Reactor()
    outbox = pipes.Outbox(reactor)
    reports = [bytes([number]) * (number * 40_000 + 1) for number in range(20)]
    for report in reports:
        outbox.put(report)
    expected = b"".join(reports)
    assert len(expected) > 4 * pipes.PIPE_BYTES
    received = bytearray()

    def read() -> None:
        received.extend(os.read(pipe, 30_000))
        if len(received) < len(expected):
            reactor.at(time.perf_counter_ns(), read)
        else:
            reactor.stop()

    reactor.at(0, read)
    reactor.run()
    reactor.close()
    assert received == expected


def test_reports_that_nobody_reads_end_the_engine(pipe: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before memory runs out, and in words."""
    # So much that five megabytes are enough, and four are not, whether the pipe holds one or only the usual 64 kB.
    monkeypatch.setattr(pipes, "MOST_PENDING_BYTES", (4 << 20) - 10_000)
    reactor = Reactor()
    outbox = pipes.Outbox(reactor)
    for _ in range(5):
        outbox.put(bytes(1 << 20))
    with pytest.raises(pipes.Unread, match="were not read"):
        outbox.put(b"")
    reactor.close()


def test_the_owner_is_told_that_it_read_too_slowly(server: Serving) -> None:
    """An engine that gave up on its reader ends as LoadFailed with that reason, not as a short measurement."""
    # A megabyte a tick: the first body of each is kept.
    whole = msgspec.structs.replace(plan(server.port, "/big"), tick_ns=2_000_000)
    with Engines(whole) as engines:
        totals = Totals(engines)
        (pid,) = engines.pids
        eventually(lambda: not alive(pid), "the engine gives up")
        with pytest.raises(LoadFailed, match="died") as caught:
            totals.take_to_end()
    assert "were not read" in caught.value.log_tail
    assert "Traceback" not in caught.value.log_tail


# -- the process


def test_a_large_message_is_read_in_a_time_that_its_size_explains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading 32 MB takes not much longer than taking as much from a pipe takes at least."""
    data = bytes(32 << 20)

    def seconds(read: Callable[[], object]) -> float:
        reading, writing = os.pipe()

        def write() -> None:
            for place in range(0, len(data), 1 << 16):
                os.write(writing, data[place : place + (1 << 16)])

        writer = threading.Thread(target=write)
        monkeypatch.setattr(pipes, "STDIN", reading)
        writer.start()
        try:
            begin = time.thread_time()
            found = read()
            taken = time.thread_time() - begin
            assert found == data
            return taken
        finally:
            writer.join()
            os.close(reading)
            os.close(writing)

    def at_least() -> bytearray:
        found = bytearray()
        while len(found) < len(data):
            found += os.read(pipes.STDIN, 1 << 20)
        return found

    taken = min(seconds(lambda: pipes.read_exactly(len(data), os.getppid())) for _ in range(3))
    assert taken < 8 * min(seconds(at_least) for _ in range(3))


@pytest.mark.parametrize("told", [False, True])
def test_an_engine_that_was_not_told_to_begin_ends_with_its_owner(server: Serving, *, told: bool) -> None:
    """Killed before the plan, or before the begin, while a fork of it holds the pipes open."""
    program = f"""
import os, time
from pytest_gpuserve.load.engine_process import EngineProcess
from pytest_gpuserve.load.source import LOCAL
from tests.fakes.http_server import plan
engine = EngineProcess(LOCAL.launches(1)[0].command, 5)
if {told}:
    engine.tell(plan({server.port}))
    engine.wait_ready(20)
copy = os.fork()
if copy == 0:
    time.sleep(600)
print(engine.pid, copy, flush=True)
time.sleep(600)
"""
    with owner_of_engine(program) as (process, engine, _):
        process.kill()
        eventually(lambda: not alive(engine), "the engine is gone", ENDS_SECONDS)


def test_garbage_is_collected_where_lanes_were_lost_and_not_too_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused requests leave none; lost lanes do, and theirs waits until a second has passed since the last time."""
    collections: list[int] = []
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    engine = engine_main.Engine(plan(1), os.getppid())
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
    begin_ns = 1 << 40
    try:
        monkeypatch.setattr(gc, "collect", lambda: collections.append(engine._loop.losses))
        for losses, seconds in [(0, 0.0), (1, 0.5), (1, 0.6), (3, 1.4), (4, 1.5), (4, 2.0), (5, 2.4), (5, 2.5)]:
            engine._loop.losses = losses
            engine._collect(begin_ns + round(seconds * 1e9))
    finally:
        monkeypatch.undo()
        engine._loop.close()
        engine._reactor.close()
    assert collections == [1, 4, 5]


def owner(
    port: int, *, fork: bool, reads: bool = True
) -> AbstractContextManager[tuple[subprocess.Popen[str], int, int]]:
    """Run a process that owns an engine which is read, or not; see `owner_of_engine`."""
    target = "/ok?ms=5" if reads else "/numbered?distinct=1000000&bytes=100000&ms=20"
    program = f"""
import msgspec, os, sys, time
from pytest_gpuserve.load.driver import Engines
from tests.fakes.http_server import plan
whole = plan({port}, {target!r}, requests=None if {reads} else 100)
engine = Engines(msgspec.structs.replace(whole, keep_answers="all"))
engine.next_tick()
copy = os.fork() if {fork} else 1
if copy == 0:
    time.sleep(600)
print(engine.pids[0], copy if {fork} else 0, flush=True)
while True:
    engine.next_tick() if {reads} else time.sleep(600)
"""
    return owner_of_engine(program)


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("fork", [False, True])
def test_the_engine_ends_when_its_owner_is_killed(server: Serving, *, fork: bool, reads: bool) -> None:
    """After kill -9 of the owner the engine is gone, even where a fork of the owner holds its pipes open.

    So is one that has done its work, and only waits for the last reports to be read.
    """
    with owner(server.port, fork=fork, reads=reads) as (process, engine, _):
        if not reads:
            eventually(lambda: server.seen("/numbered").requests == 100, "its work is done")
        assert alive(engine)
        process.send_signal(signal.SIGKILL)
        eventually(lambda: not alive(engine), "the engine is gone", ENDS_SECONDS)


def test_ctrl_c_is_not_for_the_engine(server: Serving) -> None:
    """A SIGINT to the whole group of its owner reaches the owner alone, which ends the engine in good order."""
    program = f"""
import psutil
from pytest_gpuserve.load.driver import Engines
from tests.fakes.http_server import plan
with Engines(plan({server.port}, "/ok?ms=5")) as engines:
    engine = psutil.Process(engines.pids[0])
    try:
        print("loading", flush=True)
        while True:
            engines.next_tick()
    except KeyboardInterrupt:
        print(engine.is_running() and engine.status() != psutil.STATUS_ZOMBIE, flush=True)
print(engines._engines[0]._process.returncode, flush=True)
"""
    argv = [sys.executable, "-c", program]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "loading\n"
            os.killpg(process.pid, signal.SIGINT)
            assert process.communicate(timeout=SAFETY_SECONDS)[0].split() == ["True", "0"]
        finally:
            process.kill()


@pytest.mark.parametrize(
    "place",
    [
        "loop.Loop.ready",
        "closed_loop.ClosedLoop._next",
        "http1.HttpLane._take",
        "tally.Tally.close",
        "tally.Tally.settle",
    ],
)
def test_a_crash_inside_the_engine_is_shown_with_its_traceback(
    server: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """An exception that nobody foresaw ends the engine, is not counted as the server's, and is shown."""
    module = place.split(".", maxsplit=1)[0]
    sabotage = f"""
from pytest_gpuserve.load.engine import {module}
def fail(*_, **__):
    raise ArithmeticError("unforeseen")
{place} = fail
"""
    (tmp_path / "sitecustomize.py").write_text(sabotage)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with Engines(plan(server.port, "/ok")) as engine, pytest.raises(LoadFailed, match="died") as caught:
        Totals(engine).take_until(lambda *_: False, "its end")
    assert caught.value.found == "exit status 1"
    assert "Traceback" in caught.value.log_tail
    assert "ArithmeticError: unforeseen" in caught.value.log_tail


def test_the_engine_may_open_as_many_files_as_the_hard_limit_says(server: Serving) -> None:
    """Whatever the soft limit of the process that starts it."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(200, before[1]), before[1]))
    try:
        with Engines(plan(server.port, "/ok?ms=200", connections=300, requests=300)) as engines:
            limits = psutil.Process(engines.pids[0]).rlimit(psutil.RLIMIT_NOFILE)
            totals = Totals(engines).take_to_end()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert limits == (before[1], before[1])
    assert (totals.requests, totals.errors) == (300, {})


def test_refused_users_leave_nothing_behind() -> None:
    """Hundreds of refused connections do not make the engine, which has no garbage collector, grow."""
    with Engines(plan(free_port(), connections=200)) as engine:
        process = psutil.Process(engine.pids[0])
        totals = Totals(engine).take_until(lambda totals, _: totals.ended > 1000, "refusals")
        before = process.memory_info().rss
        totals.take_until(lambda totals, _: totals.ended > 4000, "more refusals")
        grown = process.memory_info().rss - before
    assert grown < 3000 * 300, f"{grown} bytes for 3000 refusals"
