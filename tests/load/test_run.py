"""A load is run to its end, until enough is known, or until Ctrl-C; what was measured is never lost or whitewashed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from pytest_gpuserve.errors import LoadFailed
from pytest_gpuserve.load import run
from pytest_gpuserve.load.answers import AnswerCheck
from pytest_gpuserve.load.driver import Engines
from pytest_gpuserve.load.run import Outcome, answer_reasons, run_load
from pytest_gpuserve.load.schedule import Closed
from pytest_gpuserve.load.validity import ReasonKind
from pytest_gpuserve.load.wire import Answers, Endpoint, Latencies, Plan, Tick
from pytest_gpuserve.measure.histogram import bucket_of
from tests.fakes.children.toolkit import alive, eventually
from tests.fakes.http_server import plan, serving

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.load.source import EngineSource
    from pytest_gpuserve.load.totals import RunningTotals, Totals

TICK_NS = 100_000_000
LATENCY_NS = 1_000_000
USERS = 2
PLAN = Plan(Endpoint("http", "127.0.0.1", 1), ((b"a",), (b"b",)), Closed(USERS), TICK_NS, 10**10)
REQUESTS = USERS * TICK_NS // LATENCY_NS
"""Of a tick of two users who are always waiting."""


def tick(
    number: int, *, last: bool = False, errors: dict[str, int] | None = None, answers: Sequence[Answers] = ()
) -> Tick:
    """Make a tick of which everything is sound but what is given."""
    latency = Latencies({bucket_of(LATENCY_NS): REQUESTS}, REQUESTS * LATENCY_NS, LATENCY_NS)
    return Tick(
        number=number,
        begin_ns=number * TICK_NS,
        end_ns=(number + 1) * TICK_NS,
        requests=REQUESTS,
        latency=latency,
        sent=REQUESTS,
        due=REQUESTS,
        errors=errors or {},
        error_samples=dict.fromkeys(errors or {}, "a sample"),
        answers=list(answers),
        in_flight=USERS,
        in_flight_ns=USERS * TICK_NS,
        cpu_ns=TICK_NS // 10,
        users=USERS,
        last=last,
    )


class Simulated:
    """Stands in for the engines: reports these ticks, and raises what is among them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, reports: Sequence[Tick | BaseException]) -> None:
        self.reports = list(reports)
        self.ended = False
        monkeypatch.setattr(run, "Engines", lambda _plan, _processes, _source: self)

    def __enter__(self) -> Simulated:  # noqa: PYI034 -- Python 3.10 has no ``Self``
        return self

    def __exit__(self, *_: object) -> None:
        self.ended = True

    def next_tick(self) -> Tick:
        """Report."""
        report = self.reports.pop(0)
        if isinstance(report, BaseException):
            raise report
        return report


def kinds(outcome: Outcome) -> list[ReasonKind]:
    """What speaks against it."""
    return [reason.kind for reason in outcome.reasons]


def test_all_ticks_up_to_the_last_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left out, and nothing speaks against a sound load."""
    engines = Simulated(monkeypatch, [tick(0), tick(1), tick(2, last=True)])
    outcome = run_load(PLAN)
    assert (outcome.totals.requests, outcome.totals.nanoseconds) == (3 * REQUESTS, 3 * TICK_NS)
    assert (kinds(outcome), outcome.interrupted, engines.ended) == ([], False, True)


def test_the_load_ends_when_enough_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """``until`` and ``on_tick`` see what was measured so far, after every tick."""
    Simulated(monkeypatch, [tick(number) for number in range(9)])
    seen: list[tuple[int, int]] = []
    outcome = run_load(
        PLAN,
        until=lambda totals: totals.requests >= 4 * REQUESTS,
        on_tick=lambda totals, tick: seen.append((totals.totals().requests, tick.number)),
    )
    assert outcome.totals.requests == 4 * REQUESTS
    assert seen == [(REQUESTS, 0), (2 * REQUESTS, 1), (3 * REQUESTS, 2), (4 * REQUESTS, 3)]


def test_of_the_warm_up_only_errors_and_wrong_answers_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its requests nor its time: but a server that failed while it warmed up has failed."""
    wrong = Answers(0, b"wrong", 3, 5)
    Simulated(
        monkeypatch, [tick(0, errors={"reset": 2}), tick(1, answers=[wrong]), tick(2), tick(3), tick(4, last=True)]
    )
    check = AnswerCheck([b"right", None])
    outcome = run_load(PLAN, warmup_ns=2 * TICK_NS, check=check)
    totals = outcome.totals
    assert (totals.requests, totals.latency.total, totals.nanoseconds) == (3 * REQUESTS, 3 * REQUESTS, 3 * TICK_NS)
    assert (totals.errors, totals.error_samples) == ({"reset": 2}, {"reset": "a sample"})
    assert totals.in_flight == USERS
    assert kinds(outcome) == [ReasonKind.ERRORS, ReasonKind.WRONG]


def test_a_load_that_is_all_warm_up_measured_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no pass."""
    Simulated(monkeypatch, [tick(0), tick(1, last=True)])
    assert kinds(run_load(PLAN, warmup_ns=10 * TICK_NS)) == [ReasonKind.NOTHING]


def test_ctrl_c_keeps_what_was_measured_and_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first reason says so; the engines are ended; nobody who is waiting measures a ceiling."""
    engines = Simulated(monkeypatch, [tick(0), tick(1), KeyboardInterrupt()])
    asked: list[Totals] = []
    outcome = run_load(PLAN, ceiling=asked.append)
    assert (outcome.totals.requests, outcome.interrupted, engines.ended) == (2 * REQUESTS, True, True)
    assert kinds(outcome) == [ReasonKind.INTERRUPTED]
    assert "not decided" in outcome.reasons[0].text
    assert asked == []


def test_ctrl_c_before_anything_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to show, and that is said too."""
    Simulated(monkeypatch, [KeyboardInterrupt()])
    outcome = run_load(PLAN)
    assert (outcome.interrupted, kinds(outcome)) == (True, [ReasonKind.INTERRUPTED, ReasonKind.NOTHING])


def test_ctrl_c_while_the_ceiling_is_measured_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured before is still told, as not decided."""
    Simulated(monkeypatch, [tick(0, last=True)])

    def interrupted(_totals: Totals) -> float:
        raise KeyboardInterrupt

    outcome = run_load(PLAN, ceiling=interrupted)
    assert (outcome.totals.requests, kinds(outcome)) == (REQUESTS, [ReasonKind.INTERRUPTED])


def lost(worker: str = "10.0.0.1/worker-1") -> LoadFailed:
    """What the engines raise whose worker is gone."""
    return LoadFailed("the load engine died", log_tail=f"noise\n\n{worker} was lost in mid-load: its node has died\n")


def test_a_load_that_is_lost_keeps_what_was_measured_and_is_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first reason names who was lost; the engines are ended; what the client reaches is of no use any more."""
    engines = Simulated(monkeypatch, [tick(0), tick(1), lost()])
    asked: list[Totals] = []
    outcome = run_load(PLAN, ceiling=asked.append)
    assert (outcome.totals.requests, outcome.interrupted, engines.ended) == (2 * REQUESTS, False, True)
    assert kinds(outcome) == [ReasonKind.LOST]
    assert outcome.reasons[0].text == "10.0.0.1/worker-1 was lost in mid-load: its node has died"
    assert asked == []


def test_a_load_that_is_lost_in_its_warm_up_measured_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It had begun, and says both."""
    Simulated(monkeypatch, [tick(0), lost()])
    assert kinds(run_load(PLAN, warmup_ns=10 * TICK_NS)) == [ReasonKind.LOST, ReasonKind.NOTHING]


def test_what_else_speaks_against_a_load_that_is_lost_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors and wrong answers may be why it was lost."""
    Simulated(monkeypatch, [tick(0, errors={"reset": 1}, answers=[Answers(0, b"wrong", 1, 0)]), lost()])
    found = kinds(run_load(PLAN, check=AnswerCheck([b"right", None])))
    assert found == [ReasonKind.LOST, ReasonKind.ERRORS, ReasonKind.WRONG]


def test_a_load_that_never_began_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to keep, and its log says more than a line."""
    engines = Simulated(monkeypatch, [lost()])
    with pytest.raises(LoadFailed) as caught:
        run_load(PLAN)
    assert caught.value.log_tail
    assert engines.ended


def test_the_ceiling_is_asked_for_with_all_that_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands in the outcome; one that nobody knows is no reason by itself."""
    for ceiling in (1.0, None):
        Simulated(monkeypatch, [tick(0), tick(1, last=True)])
        asked: list[int] = []

        def tell(totals: Totals, ceiling: float | None = ceiling, asked: list[int] = asked) -> float | None:
            asked.append(totals.requests)
            return ceiling

        outcome = run_load(PLAN, ceiling=tell)
        assert (kinds(outcome), outcome.ceiling_per_second) == ([], ceiling)
        assert asked == [2 * REQUESTS]


def test_no_ceiling_is_asked_for_where_nothing_was_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no size of an answer to measure it with."""
    Simulated(monkeypatch, [Tick(0, 0, TICK_NS, errors={"reset": 1}, last=True)])
    asked: list[Totals] = []
    assert kinds(run_load(PLAN, ceiling=asked.append)) == [ReasonKind.ERRORS, ReasonKind.NOTHING]
    assert asked == []


def test_errors_may_be_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the share that was given, and not without it."""
    for allowed, expected in ((0.0, [ReasonKind.ERRORS]), (0.1, [])):
        Simulated(monkeypatch, [tick(0, errors={"reset": 1}, last=True)])
        assert kinds(run_load(PLAN, allowed_errors=allowed)) == expected


def test_the_first_wrong_answer_is_named_and_all_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """By request and payload; those that belong to another request are told apart."""
    ticks = [
        tick(0, answers=[Answers(0, b"A", 10, 0)]),
        tick(1, answers=[Answers(1, b"A", 2, 41), Answers(0, b"x", 1, 30)]),
        tick(2, answers=[Answers(0, b"y", 1, 70)], last=True),
    ]
    Simulated(monkeypatch, ticks)
    outcome = run_load(PLAN, check=AnswerCheck([b"A", b"B"]))
    (reason,) = outcome.reasons
    assert reason.kind is ReasonKind.WRONG
    assert reason.text.startswith(
        "wrong answers: 4 of 14 checked, 2 of them right for another request; the first: request 30 (payload 0): "
    )


def test_answers_that_could_not_be_checked_are_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something was expected, and nothing compared."""
    Simulated(monkeypatch, [tick(0, last=True)])
    outcome = run_load(PLAN, check=AnswerCheck([b"A", b"B"]))
    assert kinds(outcome) == [ReasonKind.UNKNOWN]
    assert f"{REQUESTS} of {REQUESTS} answers could not be checked" in outcome.reasons[0].text


def test_who_wants_all_answers_checked_is_told_of_each_that_was_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some are enough unless all were asked for."""
    answers = [Answers(0, b"A", REQUESTS - 1, 0)]
    for wants_all, expected in ((False, []), (True, [ReasonKind.UNKNOWN])):
        Simulated(monkeypatch, [msgspec.structs.replace(tick(0, answers=answers, last=True), unchecked=1)])
        check = AnswerCheck([b"A", b"B"], wants_all=wants_all)
        assert kinds(run_load(PLAN, check=check)) == expected


def test_where_nothing_is_expected_nothing_is_missed() -> None:
    """A check without expectations complains of nothing."""
    check = AnswerCheck([None, None])
    check.check(tick(0))
    assert answer_reasons(check, []) == []


def test_a_real_load_is_measured_to_its_end() -> None:
    """The server and the outcome agree on the number of requests."""
    with serving() as server:
        outcome = run_load(plan(server.port, "/ok?ms=1", requests=60), processes=2)
        assert (outcome.totals.requests, server.seen("/ok").requests) == (60, 60)
        assert (outcome.totals.error_count, outcome.interrupted) == (0, False)


def test_no_engine_outlives_an_exception_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a callback raises comes through, after the engines have ended."""
    pids: list[int] = []

    class Watched(Engines):
        def __init__(self, plan: Plan, processes: int, source: EngineSource) -> None:
            super().__init__(plan, processes, source)
            pids.extend(self.pids)

    monkeypatch.setattr(run, "Engines", Watched)

    def fail(_totals: RunningTotals, _tick: Tick) -> None:
        raise ZeroDivisionError

    with serving() as server, pytest.raises(ZeroDivisionError):
        run_load(plan(server.port), processes=2, on_tick=fail)
    assert len(pids) == 2
    for pid in pids:
        eventually(lambda pid=pid: not alive(pid), f"engine {pid} is gone")  # type: ignore[misc]  # mypy cannot infer lambdas with defaults
