"""What all exports share: every load has a name of its own, and nothing unknown or unsound has a number."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given

from pytest_gpuserve.gate.metric import METRICS
from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.report.exports import LONGEST_NAME_BYTES, json_text, loads_of, plain
from pytest_gpuserve.report.results import TestResult
from tests.report.exported import NAMES, load_of, named, one_test, result_of
from tests.support.builders import judgement, session, start, window

if TYPE_CHECKING:
    from pytest_gpuserve.gate.verdict import Judgement
    from pytest_gpuserve.measure.window import Session


def test_names_that_masking_makes_alike_are_told_apart() -> None:
    """Two tests, or two loads, whose names differed in a secret alone do not become one."""
    result = result_of(
        TestResult("t::a[<X>]", "passed", [load_of(label="<X>"), load_of(label="<X>")]),
        TestResult("t::a[<X>]", "passed", [load_of()]),
    )
    loads = list(loads_of(result))
    assert [(load.test, load.label) for load in loads] == [
        ("t::a[<X>]", "<X>"),
        ("t::a[<X>]", "<X> #2"),
        ("t::a[<X>] #2", ""),
    ]
    assert len({load.name for load in loads}) == 3


@given(NAMES)
def test_names_are_printable_distinct_and_short_enough(nodeids: list[str]) -> None:
    """Whatever tests are called, each load has one printable line of its own, which UTF-8 can write."""
    names = [load.name for load in loads_of(named(*nodeids))]
    assert len(set(names)) == len(nodeids)
    assert all(name.isprintable() for name in names)
    assert all(len(name.encode()) <= LONGEST_NAME_BYTES for name in names)


UNSOUND = session(problems=("3 requests failed",))
SHARED = judgement(Verdict.INVALID, reasons=("the host was shared",))
SHARED_BATCHES = judgement(Verdict.INVALID, "batching_ratio", reasons=("the host was shared",))


@pytest.mark.parametrize(
    ("judgements", "sessions"),
    [
        pytest.param((judgement(),), (session(), UNSOUND), id="a session with a problem"),
        pytest.param((SHARED,), (session(),), id="others used the host, which the verdict alone says"),
        pytest.param((judgement(Verdict.PASS), SHARED_BATCHES), (session(),), id="one verdict of two says so"),
    ],
)
def test_what_is_not_sound_has_no_numbers(judgements: tuple[Judgement, ...], sessions: tuple[Session, ...]) -> None:
    """It takes the numbers of its load away, and leaves its verdicts and the other loads."""
    bad, fine = load_of(*judgements, sessions=sessions), load_of(judgement(Verdict.PASS), label="load 2")
    load, other = loads_of(one_test(bad, fine))
    assert (load.known(), load.summary) == ({}, None)
    assert len(load.rows) == len(judgements)
    assert other.summary is not None


@pytest.mark.parametrize("sessions", [(), (session(start(window((), items=None, batches=None))),)])
def test_a_load_without_an_answer_has_no_numbers(sessions: tuple[Session, ...]) -> None:
    """Nothing measured, or nothing answered, is nothing known: no zero stands for it."""
    (load,) = loads_of(one_test(load_of(sessions=sessions)))
    assert load.summary is None
    assert METRICS["throughput"] not in load.known()


def test_facts_are_printable() -> None:
    """At any depth; numbers stay, None goes, and NaN is refused."""
    facts = {"a": None, "b": {"c": ["x\n", None, 1.5, True]}, "d": 0}
    assert plain(facts) == {"b": {"c": ["x\\n", None, 1.5, True]}, "d": 0}
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_text([float("nan")])
    assert json_text(["ü"]).isascii()
