"""A load is run to its end, until enough is known, or until Ctrl-C; what was measured is never lost or whitewashed."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from pytest_gpuserve.errors import LoadFailed
from pytest_gpuserve.load.__main__ import LoadOutcome, run_load
from pytest_gpuserve.load.answers import AnswerCheck
from pytest_gpuserve.load.schedule import Closed, Constant
from pytest_gpuserve.load.tick import together
from pytest_gpuserve.load.validity import lost_in_mid_load
from pytest_gpuserve.load.wire import Endpoint, Plan
from pytest_gpuserve.measure.window import AnswerCount, Window
from pytest_gpuserve.verdict.reason import ReasonKind
from tests.fakes.scripted_engines import TICK_NS, alike, reporting, tick_of

LATENCY_NS = 1_000_000
USERS = 2
PLAN = Plan(Endpoint("http", "127.0.0.1", 1), ((b"a",), (b"b",)), Closed(USERS), TICK_NS, 10**10)
REQUESTS = USERS * TICK_NS // LATENCY_NS
"""Time in flight of a tick of two users who are always waiting."""


def tick(number: int, *, errors: dict[str, int] | None = None, **more: Any) -> Window:  # noqa: ANN401 -- of the tick
    """A sound tick with these changes."""
    failed = {"errors": errors or {}, "error_samples": dict.fromkeys(errors or {}, "a sample")}
    return tick_of(number, REQUESTS, LATENCY_NS, **{"under_way": USERS, **failed, **more})


def lost() -> LoadFailed:
    """Error of engines whose worker is gone."""
    return LoadFailed("it died", log_tail="noise\n\nits node has died\n")


def kinds(outcome: LoadOutcome) -> list[ReasonKind]:
    """Kinds of the reasons."""
    return [reason.kind for reason in outcome.reasons]


def test_of_the_warm_up_only_errors_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its requests nor its time: but a server that failed while it warmed up has failed."""
    warmup = [tick(0, errors={"reset": 2}), tick(1)]
    reporting(monkeypatch, [*warmup, tick(2), tick(3), tick(4, last=True)])
    outcome = run_load(PLAN, warmup_ns=2 * TICK_NS)
    totals = outcome.totals
    assert (totals.requests, totals.latency.total, totals.nanoseconds) == (3 * REQUESTS, 3 * REQUESTS, 3 * TICK_NS)
    assert (totals.errors, totals.error_samples) == ({"reset": 2}, {"reset": "a sample"})
    assert totals.in_flight == USERS
    assert kinds(outcome) == [ReasonKind.REQUEST_ERRORS]


@pytest.mark.parametrize(
    ("reports", "warmup", "expected"),
    [
        ([tick(0), tick(1, last=True)], 0, []),
        ([tick(0), tick(1, last=True)], 10, [ReasonKind.NOTHING_MEASURED]),
        ([tick(0), KeyboardInterrupt()], 0, [ReasonKind.INTERRUPTED]),
        ([KeyboardInterrupt()], 0, [ReasonKind.INTERRUPTED, ReasonKind.NOTHING_MEASURED]),
        ([tick(0), lost()], 0, [ReasonKind.LOAD_LOST]),
        ([tick(0), lost()], 10, [ReasonKind.LOAD_LOST, ReasonKind.NOTHING_MEASURED]),
        # Errors may be why it was lost.
        ([tick(0, errors={"reset": 1}), lost()], 0, [ReasonKind.LOAD_LOST, ReasonKind.REQUEST_ERRORS]),
        (
            [Window(0, 0, TICK_NS, errors={"a": 1}, last=True)],
            0,
            [ReasonKind.REQUEST_ERRORS, ReasonKind.NOTHING_MEASURED],
        ),
    ],
)
def test_a_load_that_is_cut_short_keeps_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, reports: list[Window | BaseException], warmup: int, expected: list[ReasonKind]
) -> None:
    """By Ctrl-C or a loss, which is the first reason."""
    engines = reporting(monkeypatch, reports)
    outcome = run_load(PLAN, warmup_ns=warmup * TICK_NS)
    assert (kinds(outcome), engines.__exit__.call_count) == (expected, 1)
    measured = 0 if warmup else REQUESTS * sum(isinstance(report, Window) and report.requests > 0 for report in reports)
    assert outcome.totals.requests == measured
    if ReasonKind.INTERRUPTED in expected:
        assert "not decided" in outcome.reasons[0].text
    if ReasonKind.LOAD_LOST in expected:
        assert outcome.reasons[0].text == "lost in mid-load: it died: its node has died"


@pytest.mark.parametrize(
    ("lag_ns", "grows", "expected"),
    [(1000, 0, []), (1000, 10, [ReasonKind.OVERLOADED]), (300_000, 0, [ReasonKind.CLIENT_LATE])],
)
def test_a_load_is_judged_by_its_queue_and_by_each_engine(
    monkeypatch: pytest.MonkeyPatch, lag_ns: int, grows: int, expected: list[ReasonKind]
) -> None:
    """A queue that grows to the end is overload; an engine that is late by itself is named."""

    def report(number: int) -> Window:
        service, lag = alike(REQUESTS, LATENCY_NS), alike(REQUESTS, 1000)
        sound = tick(number, under_way=grows * number, service=service, lag=lag, last=number == 29)
        return together({"engine 0": sound, "engine 1": replace(sound, lag=alike(REQUESTS, lag_ns))})

    reporting(monkeypatch, [report(number) for number in range(30)])
    outcome = run_load(replace(PLAN, schedule=Constant(4000.0)), processes=2)
    assert kinds(outcome) == expected
    assert all(reason.about == "engine 1" for reason in outcome.reasons if lag_ns > 1000)


@pytest.mark.parametrize(
    ("found", "log", "told"),
    [
        # By the last line of its log; without one, by its exit status.
        ("exit status 1", "noise\n\nMemoryError:\x1b[1m no\troom\n \n", "it died: MemoryError:\\x1b[1m no room"),
        ("exit status -9", "", "it died: exit status -9"),
        ("", "", "it died"),
    ],
)
def test_a_loss_is_told_in_one_line_and_once(found: str, log: str, told: str) -> None:
    """The reason has how the engine ended, without terminal escape sequences."""
    reason = lost_in_mid_load(LoadFailed("it died", found=found, log_tail=log))
    assert reason.kind is ReasonKind.LOAD_LOST
    assert reason.text == f"lost in mid-load: {told}"


def test_a_load_that_never_began_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any measurement the error has the whole log."""
    engines = reporting(monkeypatch, [lost()])
    with pytest.raises(LoadFailed) as caught:
        run_load(PLAN)
    assert caught.value.log_tail
    assert engines.__exit__.call_count == 1


# -- answers


def tick_with(*answers: AnswerCount, requests: int | None = None) -> Window:
    """A tick with these answers; more requests if some were not passed on."""
    count = sum(answer.count for answer in answers)
    return Window(0, 0, 1, requests=count if requests is None else requests, answers=list(answers))


def told(check: AnswerCheck) -> str:
    """Text of the one reason."""
    (reason,) = check.reasons()
    return reason.text


def test_a_wrong_answer_is_told_with_its_request() -> None:
    """The report has the count, the first request, the payload and the expectation; kept back answers do not count."""
    check = AnswerCheck([b"one", b"two"])
    right, wrong, first = AnswerCount(0, b"one", 5, 0), AnswerCount(1, b"2", 3, 7), AnswerCount(0, b"1", 1, 3)
    check.check(tick_with(right, AnswerCount(1, b"two", 4, 1), requests=15))
    assert (check.answers, check.checked, check.wrong, check.mixed_up) == (15, 9, 0, 0)
    check.check(tick_with(right, wrong, first))
    assert told(check) == "wrong answers: 4 of 18 checked; the first: request 3 (payload 0): expected b'one', got b'1'"
    assert (check.answers, check.checked, check.wrong, check.mixed_up) == (24, 18, 4, 0)


def test_mixed_up_answers_are_recognised() -> None:
    """An answer may be wrong for its own payload and right for another's; a check of the user's may raise any error."""
    asked: list[bytes] = []

    def is_three(body: bytes) -> bool:
        asked.append(body)
        if not body.startswith(b"three"):
            raise KeyError("label")
        return True

    check = AnswerCheck([None, b"one", b"two", is_three])
    answers = [AnswerCount(3, b"one", 1, 11), AnswerCount(1, b"three!", 2, 10)]
    check.check(tick_with(*answers, AnswerCount(0, b"x", 4, 1), AnswerCount(2, b"x", 1, 12)))
    assert (check.answers, check.checked, check.wrong, check.mixed_up) == (8, 4, 4, 3)
    assert told(check) == (
        "wrong answers: 4 of 4 checked, 3 of them right for another request;"
        " the first: request 10 (payload 1): the answer to payload 3: answers are mixed up"
    )
    # An answer is checked once, however often it comes.
    check.check(tick_with(*answers))
    assert (check.wrong, sorted(asked)) == (7, [b"one", b"three!", b"x"])
    # Expectations may overlap; only a wrong answer is looked for elsewhere.
    overlapping = AnswerCheck([bool, b"two"])
    overlapping.check(tick_with(AnswerCount(0, b"two", 1, 0)))
    assert not overlapping.wrong


@pytest.mark.parametrize(
    ("expected", "checked", "wants_all", "found"),
    [
        ([b"A", b"B"], 0, False, [ReasonKind.ANSWERS_UNCHECKED]),
        ([b"A", b"B"], 9, False, []),
        ([b"A", b"B"], 9, True, [ReasonKind.ANSWERS_UNCHECKED]),
        ([None, None], 0, False, []),
    ],
)
def test_answers_that_could_not_be_checked_are_not_a_pass(
    expected: list[bytes | None], checked: int, found: list[ReasonKind], *, wants_all: bool
) -> None:
    """With an expectation and no comparison the load fails; some comparisons are enough unless all were requested."""
    check = AnswerCheck(expected, wants_all=wants_all)
    answers = [AnswerCount(0, b"A", checked, 0)] if checked else []
    check.check(Window(0, 0, 1, requests=10, unchecked=10 - checked, answers=answers))
    reasons = check.reasons()
    assert [reason.kind for reason in reasons] == found
    if found:
        assert f"{10 - checked} of 10 answers could not be checked" in reasons[0].text
