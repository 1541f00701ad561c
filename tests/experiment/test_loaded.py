"""Signs, during a load, that not only the server was measured; and sessions, which measure disturbed starts again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Literal, cast
from unittest import mock

import msgspec
import pytest

from pytest_gpuserve.errors import LoadFailed, ServerFailed
from pytest_gpuserve.experiment import sampling
from pytest_gpuserve.experiment.handle import ServerHandle, Target
from pytest_gpuserve.experiment.loaded import CounterReading, LoadedServer, Measured, Progress
from pytest_gpuserve.experiment.shape import LoadShape
from pytest_gpuserve.experiment.telemetry import NO_TELEMETRY
from pytest_gpuserve.load.driver import Engines
from pytest_gpuserve.load.request import Request
from pytest_gpuserve.load.schedule import Closed, Constant, Objectives, Steps
from pytest_gpuserve.load.tick import together
from pytest_gpuserve.measure.counters import Counters
from pytest_gpuserve.measure.histogram import Histogram, bucket_of
from pytest_gpuserve.measure.window import Session, Start, Streams, Window
from pytest_gpuserve.process.secrets import secret_headers, without_secrets
from pytest_gpuserve.servers.instance import Instance
from pytest_gpuserve.verdict.reason import Reason, ReasonKind
from tests.support.builders import because, cached, kinds, said

SECOND_NS = 10**9
TOKEN = "hf_abcdefghijkl"


@dataclass
class _Server:
    """A server that has counted nothing, and perhaps dies."""

    dying: bool = False
    looked_seconds: list[float] = field(default_factory=list)

    def counters(self) -> Counters:
        return Counters(items=0, batches=0, requests=0)

    def death(self, *, grace_seconds: float = 0.0) -> str | None:
        self.looked_seconds.append(grace_seconds)
        return "it died" if self.dying and grace_seconds else None

    def shown(self, text: str, headers: Mapping[str, str]) -> str:
        return without_secrets(text, secret_headers(headers))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> _Server:
    """A server, whose clock stands still."""
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    return _Server()


def engines(*ticks: Window) -> Engines:
    """Load engines that report these ticks."""
    return cast("Engines", SimpleNamespace(next_tick=partial(next, iter(ticks))))


USERS = LoadShape(Closed(4))


def under_load(server: _Server, shape: LoadShape = USERS) -> LoadedServer:
    """It, with its load."""
    request = Request("GET", "/", headers={"Authorization": f"Bearer {TOKEN}"})
    return LoadedServer(cast("Instance", server), Target(cast("ServerHandle", None), (request,)), shape)


def judge(loaded: LoadedServer, ticks: Sequence[Window], windows: Sequence[Window] = ()) -> None:
    """Judge ticks, and windows that were made of them."""
    empty = Window(end_ns=SECOND_NS)
    loaded.measured[:] = [
        Measured(window, ticks if not number else []) for number, window in enumerate(windows or [empty])
    ]
    loaded.judge()


def test_a_window_knows_what_came_of_streams(server: _Server) -> None:
    """Tokens as the answers that ended correct the chunks; good answers only of a load with objectives."""
    times = Histogram({bucket_of(10**6): 2}, 2 * 10**6, 10**6)
    streams = Streams(times, times, times, tokens=7, with_usage=2)
    tick = Window(0, 0, SECOND_NS, requests=2, latency=times, streams=streams, good=1, unjudged=1)
    asked = LoadShape(Closed(4), goodput=Objectives(ttft=1.0))
    found = under_load(server, asked).window([tick], None)
    assert found is not None
    assert found.streams == streams
    assert (found.good, found.unjudged) == (1, 1)
    plain = under_load(server).window([Window(0, 0, SECOND_NS, requests=2, latency=times, good=0)], None)
    assert plain is not None
    assert (plain.streams, plain.good) == (None, None)


def test_what_each_worker_did_is_kept_small_and_judged_in_the_end(server: _Server) -> None:
    """The judged ticks name the late one of two workers; the shares of the workers leave out cut ticks."""
    loaded = under_load(server, LoadShape(Constant(50), processes=2))
    good = Histogram({bucket_of(1000): 50}, 50_000, 1000)
    late = Histogram({bucket_of(SECOND_NS): 50}, 50 * SECOND_NS, SECOND_NS)
    told = []
    for number, lag in enumerate([late, good]):
        each = Window(number, number * SECOND_NS, (number + 1) * SECOND_NS, requests=50, sent=50, due=50, cpu_ns=9)
        each = msgspec.structs.replace(each, latency=good, service=good, lag=good)
        told.append(together({"a": each, "b": msgspec.structs.replace(each, lag=lag)}))
    ticks = loaded.ticks(engines(*told), 2)
    judge(loaded, ticks)
    assert any(text.startswith("b: client late") for text in said(loaded.disturbances))
    loaded.disturbances.clear()
    judge(loaded, ticks[1:])
    assert ReasonKind.CLIENT_LATE not in kinds(loaded.disturbances)
    generous = under_load(server, LoadShape(Constant(50), processes=2, late_share=1e9))
    judge(generous, ticks)
    assert ReasonKind.CLIENT_LATE not in kinds(generous.disturbances)


def test_where_errors_are_allowed_they_hold_nobody_up(server: _Server) -> None:
    """A wait at each would part counters from windows; in the end the last may have been a dying server's first."""
    server.dying = True
    loaded = under_load(server, LoadShape(Closed(4), allowed_errors=0.5))
    failing = Window(0, 0, SECOND_NS, requests=9, errors={"timeout": 1})
    loaded.ticks(engines(*[failing] * 5), 5)
    assert (server.looked_seconds, loaded.problems) == ([0.0] * 5, [])
    judge(loaded, [failing])
    assert "it died" in said(loaded.problems)
    assert ReasonKind.REQUEST_ERRORS not in kinds(loaded.problems)


def test_what_repeats_a_request_is_shown_without_its_secret(server: _Server) -> None:
    """The body of an error, and an engine's log, are in the problem without the request's token; no window has them."""
    loaded, uncounted = under_load(server), under_load(server)
    with mock.patch.object(server, "counters", side_effect=ServerFailed(f"counters: status 403: no {TOKEN}")):
        uncounted.read_counters()
    assert said(uncounted.problems) == ("counters: status 403: no <Authorization>",)
    failing = Window(0, 0, SECOND_NS, errors={"status 500": 1}, error_samples={"status 500": f"b'who is {TOKEN}?\n'"})
    loaded.ticks(engines(failing), 1)
    loaded.lose(LoadFailed("the load engine died", log_tail=f"noise\nValueError: b'Bearer {TOKEN}'\n"))
    answer, loss = said(loaded.problems)
    assert "status 500: 1 (first: b'who is <Authorization>?" in answer
    assert "\n" not in answer
    assert TOKEN not in repr(loaded.window([failing], None))
    assert loss == "lost in mid-load: the load engine died: ValueError: b'Bearer <Authorization>'"


def test_a_reset_is_a_problem_and_no_ratio(server: _Server) -> None:
    """Fallen counters are reported by name, and the window has no counts."""
    loaded = under_load(server)
    before = CounterReading(Counters(items=8, batches=2), 0.0, 0.0)
    assert loaded.counted(before, CounterReading(Counters(items=3, batches=1), 1.0, 0.0)) is None
    (problem,) = loaded.problems
    assert problem.kind is ReasonKind.COUNTERS_WENT_BACK
    assert "items fell from 8 to 3" in problem.text


@pytest.mark.parametrize(("shape", "is_told"), [(USERS, True), (LoadShape(Steps(((1, 1.0),))), False)])
def test_a_cache_that_learns_prompts_under_load_is_told(server: _Server, shape: LoadShape, *, is_told: bool) -> None:
    """But of a load that is measured as a whole, which always comes as far."""
    loaded = under_load(server, shape)
    judge(loaded, [Window(0, 0, SECOND_NS, requests=80)], cached(*[0.0] * 4, *[0.9] * 4))
    assert (ReasonKind.UNLIKE_WORK in kinds(loaded.problems)) is is_told


@pytest.mark.parametrize(("expect", "kept"), [(None, "none"), (b"", "some")])
def test_answers_are_reported_only_where_one_is_expected(expect: bytes | None, kept: str) -> None:
    """A report of large answers ten times a second takes the time of the load engine."""
    running = mock.Mock(site=SimpleNamespace(host="h", port=1, tls=False))
    target = Target(cast("ServerHandle", None), (Request("GET", "/", expect=expect),))
    assert LoadedServer(running, target, USERS).plan(USERS.schedule).keep_answers == kept


def test_a_queue_that_grows_to_the_end_is_overload(server: _Server) -> None:
    """Each tick of an open loop adds its requests in flight to the course of the load."""
    loaded = under_load(server, LoadShape(Constant(200)))
    judge(loaded, [msgspec.structs.replace(load_tick(number), due=20, under_way=4 * number) for number in range(30)])
    assert any(text.startswith("overloaded: requests in flight grew") for text in said(loaded.problems))


@pytest.mark.parametrize("protocol", ["http", "sse", "grpc"])
def test_only_transfers_of_plain_http_are_timed(server: _Server, protocol: Literal["http", "sse", "grpc"]) -> None:
    """The server paces a stream, and the windows of HTTP/2: their times are unknown, not the client's."""
    loaded = under_load(server)
    loaded.target = replace(loaded.target, protocol=protocol)
    window = loaded.window([msgspec.structs.replace(load_tick(0), sending_ns=SECOND_NS, receiving_ns=0)], None)
    assert window is not None
    assert (window.sending_ns, window.receiving_ns) == ((SECOND_NS, 0) if protocol == "http" else (None, None))


def load_tick(number: int, *, late_beats: int = 0, cpu_share: float = 0.1) -> Window:
    """A tenth of a second of four users with answers after 20 ms; late beats are late by 100 ms each."""
    tick_ns = SECOND_NS // 10
    latency = Histogram({bucket_of(20_000_000): 20}, 20 * 20_000_000, 20_000_000)
    return Window(
        number,
        number * tick_ns,
        (number + 1) * tick_ns,
        requests=20,
        sent=20,
        latency=latency,
        in_flight_ns=4 * tick_ns,
        cpu_ns=round(cpu_share * tick_ns),
        late_beats=late_beats,
        late_beats_ns=late_beats * tick_ns,
    )


def disturbed(server: _Server, *ticks: Window, shape: LoadShape = USERS) -> list[list[ReasonKind]]:
    """Disturbances of windows of five ticks each."""
    loaded = under_load(server, shape)
    taken = loaded.ticks(engines(*ticks), len(ticks))
    windows = [taken[begin : begin + 5] for begin in range(0, len(taken), 5)]
    return [kinds(loaded.disturbed(each)) for each in windows]


def test_a_window_in_which_the_client_was_saturated_is_disturbed(server: _Server) -> None:
    """Only the window with a saturated client is disturbed; two engines that share one core are not."""
    ticks = [load_tick(number, cpu_share=0.95 if number < 5 else 0.5) for number in range(10)]
    assert disturbed(server, *ticks) == [[ReasonKind.CLIENT_SATURATED], []]
    assert disturbed(server, *ticks, shape=LoadShape(Closed(4), processes=2)) == [[], []]


@pytest.mark.parametrize("share", [0.95, 0.5])
def test_a_client_saturated_in_one_step_disturbs_the_load(server: _Server, share: float) -> None:
    """A load that is measured as a whole cannot repeat a window, and its mean hides a step."""
    loaded = under_load(server, LoadShape(Steps(((4, 1.0), (4, 9.0)))))
    for number, part in enumerate((0.1, share)):
        window = msgspec.structs.replace(cached(0.0)[0], cpu_ns=round(SECOND_NS * part / 2))
        loaded.measured.append(Measured(window, [load_tick(10 * number + tick, cpu_share=part) for tick in range(10)]))
    loaded.ticks(engines(load_tick(0)), 1)
    loaded.judge()
    assert (ReasonKind.CLIENT_SATURATED in kinds(loaded.disturbances)) is (share > 0.9)


@pytest.mark.parametrize(
    ("late_in", "expected"),
    [(2, [True, False]), (4, [True, True]), (9, [False, True])],
)
def test_what_was_under_way_in_a_standstill_is_answered_in_the_next_window(
    server: _Server, late_in: int, expected: list[bool]
) -> None:
    """If an engine paused at the end of a window, the next one has the delayed answers, and is dropped too."""
    ticks = [load_tick(number, late_beats=10 if number == late_in else 0) for number in range(10)]
    assert disturbed(server, *ticks) == [[ReasonKind.CLIENT_HELD_UP] * held_up for held_up in expected]


# -- sessions

LATE = "client late: by 3 ms"
DELAYED = because(LATE, kind=ReasonKind.CLIENT_LATE)
STOPPED = because("stopped", kind=ReasonKind.INTERRUPTED)
MOST_FOREIGN = 0.25


@dataclass
class Load:
    """Measurement of one start.

    Args:
        foreign: Cores that others took in it.
        problems: Problems of the load.
        disturbances: Disturbances of the load as a whole.
        cached: Share of the prompts that the server knew, in each window.
    """

    foreign: float = 0.0
    problems: tuple[Reason, ...] = ()
    disturbances: tuple[Reason, ...] = ()
    cached: tuple[float, ...] = (0.0,)

    def measure(self) -> Start:
        """Measure."""
        return Start(tuple(cached(*self.cached)), 1.0, foreign_cores=self.foreign)


@dataclass
class FakeTarget:
    """A server with the measurements of its starts; None raises Ctrl-C at a start."""

    loads: list[Load | None]
    telemetry_source: object = NO_TELEMETRY
    requests: tuple[()] = field(default=())

    @contextmanager
    def started(self) -> Iterator[Load]:
        """Start."""
        load = self.loads.pop(0)
        if load is None:
            raise KeyboardInterrupt
        yield load


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the measurement of a start."""
    monkeypatch.setattr(sampling, "LoadedServer", lambda load, *_: load)
    monkeypatch.setattr(sampling, "measure_start", lambda load, _monitor: load.measure())


GOOD, WRONG = Load(), because("wrong answers", kind=ReasonKind.WRONG_ANSWERS)
DISTURBED = Load(disturbances=DELAYED)


def took(cores: float) -> str:
    """Why a start was measured again."""
    return f"others took {cores:.2f} of the host's cores"


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize(
    ("loads", "starts", "problems", "interrupted"),
    [
        pytest.param(
            [GOOD, None],
            [(0.0,)],
            because("interrupted by Ctrl-C after 1 starts: not decided", kind=ReasonKind.INTERRUPTED),
            True,
            id="Ctrl-C between two starts keeps the first",
        ),
        pytest.param([Load(problems=STOPPED)], [(0.0,)], STOPPED, True, id="Ctrl-C under load"),
        pytest.param([Load(problems=WRONG)], [(0.0,)], WRONG, False, id="trouble ends a session early"),
        pytest.param(
            [Load(0.1), Load(0.9), Load(0.2)], [(0.1,), (0.2, took(0.9))], (), False, id="a busy host is waited for"
        ),
        pytest.param(
            [Load(0.9), Load(0.8), Load(0.7), Load(0.6)],
            [(0.7, took(0.9), took(0.8)), (0.6,)],
            (),
            False,
            id="but not for ever: the rest stands for the verdict to refuse it",
        ),
        pytest.param(
            [DISTURBED, GOOD, DISTURBED, GOOD], [(0.0, LATE), (0.0, LATE)], (), False, id="a late client is waited for"
        ),
        pytest.param(
            [DISTURBED] * 3,
            [(0.0, LATE, LATE)],
            DELAYED,
            False,
            id="a client that is late again and again",
        ),
        pytest.param([Load(0.0, WRONG, DELAYED)], [(0.0,)], (*WRONG, *DELAYED), False, id="trouble beside it"),
    ],
)
def test_a_session_is_the_starts_that_were_not_disturbed(
    loads: list[Load | None],
    starts: list[tuple[object, ...]],
    problems: tuple[Reason, ...],
    *,
    interrupted: bool,
) -> None:
    """The repeated start reports the dropped one; no start is made in vain."""
    target, kept = FakeTarget(list(loads)), list[Session]()
    came_through = False
    try:
        shape = LoadShape(Closed(1), foreign_cores=MOST_FOREIGN)
        sampling.take_session(cast("Target", target), shape, kept.append, cast("Progress", None))
    except KeyboardInterrupt:
        came_through = True
    assert came_through is interrupted
    (session,) = kept
    assert [(start.foreign_cores, *start.rejected) for start in session.starts] == starts
    assert session.problems == problems
    assert target.loads == []


@pytest.mark.usefixtures("scripted")
def test_a_cache_that_outlives_a_start_is_told() -> None:
    """As one that learns the prompts under load: the starts of one session are not of one work."""
    kept: list[Session] = []
    target = cast("Target", FakeTarget([Load(cached=(0.0,) * 4), Load(cached=(0.9,) * 4)]))
    sampling.take_session(target, LoadShape(Closed(1)), kept.append, cast("Progress", None))
    assert [problem.kind for problem in kept[0].problems] == [ReasonKind.UNLIKE_WORK]
