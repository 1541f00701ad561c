"""How pytest ended on each runner: what no list of tests tells is no pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuserve.errors import UsageProblem
from tests.merge.merge_files import a_test, ending, merged, shard
from tests.support.builders import OTHER_COMMIT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.report.schema import Plain


ODD: list[tuple[dict[str, Any] | None, str]] = [
    (None, "older pytest-gpuserve"),
    (ending(2), "exit status 2: it was interrupted"),
    (ending(3), "exit status 3: an internal error"),
    (ending(4), "exit status 4"),
    (ending(5), "exit status 5"),
    (ending(77), "exit status 77: its output says why"),
    (ending(0, complete=False), "before all of its tests were run"),
    (ending(1, unlisted_failures=2), "2 failures of tests that measure nothing"),
    (ending(1), "exit status 1, though all tests that are listed have passed"),
]
"""Endings of a run whose listed tests have all passed, and what is said of each."""


@pytest.mark.parametrize(("ended", "said"), ODD)
@pytest.mark.parametrize("listed", [True, False])
def test_a_run_that_did_not_end_well_is_no_pass(ended: dict[str, Any] | None, said: str, *, listed: bool) -> None:
    """Whatever its tests say, and where it lists none: it is named with what is wrong."""
    odd = shard(*([a_test("test_b")] if listed else []), began=1)
    odd["ending"] = ended
    both = merged(shard(a_test("test_a")), odd, expected=2)
    assert not both.has_passed
    *_, problem = both.result().tests
    assert (problem.nodeid, problem.outcome) == ("result 2 of 2", "error")
    assert problem.problem.startswith("b.json: ")
    assert said in problem.problem
    assert any("result 2 of 2 is no pass: " in note and said in note for note in both.notes)


def group(number: int, *names: str, began: int = 0, **head: Any) -> Plain:  # noqa: ANN401 -- fields of the file
    """The result of one of two groups."""
    return shard(*map(a_test, names), began=began, shard={"number": number, "of": 2}, **head)


def test_a_test_that_no_runner_ran_is_missed() -> None:
    """Runners that deal out differently leave tests to nobody, which are named; a runner that was stopped has not."""
    dealt = [a_test(f"test_{name}").nodeid for name in "abcd"]
    one, other = group(1, "test_a", "test_b", dealt=dealt), group(2, "test_d", began=1, dealt=dealt[:2])
    with pytest.raises(UsageProblem, match="1 test was run by none") as problem:
        merged(one, other)
    assert dealt[2] in str(problem.value)
    assert dealt[3] not in str(problem.value)
    assert merged(one, group(2, "test_c", "test_d", began=1, dealt=dealt)).has_passed
    assert not merged(one, group(2, began=1, dealt=dealt, ending=ending(2))).has_passed
    # One without a test that measures writes a result too.
    with pytest.raises(UsageProblem, match="missing") as missing:
        merged(group(1, "test_a"))
    assert "--gpuserve-json" in str(missing.value)


def test_what_was_measured_beside_different_code_is_not_one() -> None:
    """Two bases are two comparisons; each is named."""
    one, other = (
        shard(a_test(f"test_{place}"), began=place, mode="against", against=f"main ({name * 12})")
        for place, name in enumerate("ab")
    )
    with pytest.raises(UsageProblem, match="beside the same code") as problem:
        merged(one, other)
    assert "main (aaaaaaaaaaaa): a.json" in str(problem.value)
    other["against"] = one["against"]
    assert merged(one, other).plain()["against"] == "main (aaaaaaaaaaaa)"


# -- runners to which no test that measures was dealt


def idle(number: int, *own: str, dealt: Sequence[str] = (), status: int = 0, **head: Any) -> Plain:  # noqa: ANN401 -- fields of the file
    """The result of one of two groups, in which no test measures: it names no device."""
    fields = {
        "shard": {"number": number, "of": 2},
        "unlisted": {"dealt": [*own, *dealt], "own": list(own)},
        "ending": ending(status),
    }
    return shard(began=3, gpu={}, host={}, **{**fields, **head})


def busy(number: int, name: str, *own: str, dealt: Sequence[str] = (), **head: Any) -> Plain:  # noqa: ANN401 -- as above
    """The result of one of two groups with one test that measures."""
    return group(number, name, unlisted={"dealt": [*own, *dealt], "own": list(own)}, **head)


def test_a_group_without_a_test_that_measures_is_counted() -> None:
    """It is no device's, and all that is said of devices, of what was done and beside whom is of the others."""
    measured = busy(2, "test_a", "plain_b", dealt=["plain_a"], mode="against", against="main", began=5)
    both = merged(idle(1, "plain_a", dealt=["plain_b"], mode="gate"), measured, expected=2)
    assert both.has_passed
    assert (
        both.header == "T4, side by side with another revision or interpreter, 2 results merged, 1 comparison planned"
    )
    assert both.places[0] == "result 1 of 2: group 1 of 2, no test that measures, began 2025-01-02T03:00:03+00:00"
    plain = both.plain()
    assert (plain["gpu"], plain["against"]) == (measured["gpu"], "main")
    assert both.notes == ()


def test_what_fails_where_nothing_measures_is_no_pass() -> None:
    """A failed test counts there, a run that was stopped and other code too; alone such groups are no result."""
    measured = busy(2, "test_a")
    assert not merged(idle(1, ending=ending(1, unlisted_failures=1)), measured).has_passed
    assert not merged(idle(1, ending=ending(2)), measured).has_passed
    with pytest.raises(UsageProblem, match="not of the same code"):
        merged(idle(1, commit=OTHER_COMMIT), measured)
    with pytest.raises(UsageProblem, match="none of the results has a test that measures") as problem:
        merged(idle(1, "plain_a"), idle(2, "plain_b"))
    assert "a.json, b.json" in str(problem.value)


@pytest.mark.parametrize(
    ("without", "passes"),
    [
        (idle(1, dealt=["plain_a"], status=5), True),
        # Nobody had any test, or it is not known, or it had one that was not run.
        (idle(1, status=5), False),
        (idle(1, dealt=["plain_a"], status=5, unlisted=None), False),
        (idle(1, "plain_b", dealt=["plain_a"], status=5), False),
        (idle(1, dealt=["plain_a"], status=4), False),
    ],
)
def test_a_group_to_which_nothing_was_dealt_is_well(without: Plain, passes: bool) -> None:  # noqa: FBT001 -- a parameter
    """By its exit status there were no tests: they were all for the others."""
    assert merged(without, busy(2, "test_a", "plain_a")).has_passed is passes


def test_a_test_that_measures_nothing_and_was_nobodys_is_missed() -> None:
    """Runners that deal out differently leave such tests to nobody, and they are named; so is what is not known."""
    one = busy(1, "test_a", "plain_a", dealt=["plain_b", "plain_c"])
    with pytest.raises(UsageProblem, match="1 test was run by none") as problem:
        merged(one, idle(2, "plain_c", dealt=["plain_a", "plain_b"]))
    assert problem.value.found == "plain_b"
    assert merged(one, idle(2, "plain_b", "plain_c", dealt=["plain_a"])).has_passed
    both = merged(group(1, "test_a"), busy(2, "test_b", "plain_a", dealt=["plain_b"], began=1))
    assert both.has_passed
    assert both.notes[-1].endswith("it is not known which there were in group 1")
    assert not merged(shard(a_test("test_a")), shard(a_test("test_b"), began=1)).notes
