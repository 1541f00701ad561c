"""Results of several runners as one: what is told, what is refused, and that the order of files does not matter."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.merge.shards import read_shard
from pytest_gpuserve.report.schema import read_result
from tests.merge.merge_files import HOST, T4, a_test, ending, merged, regressed, shard, verdicts_of
from tests.support.builders import OTHER_COMMIT, judgement

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpuserve.gate.verdict import ReferenceKind
    from pytest_gpuserve.report.schema import Plain


OTHER_CARD = {**T4, "pci_bus_id": "0000:00:1f.0", "card_id": "sha256:2"}
OTHER_HOST = {"id": "host-b", "cores": 8}


def test_two_shards_are_one_result() -> None:
    """Tests of both are there, as their shards wrote them, later versions' fields too, in a file that is a result."""
    one = shard(a_test("test_a"), began=5)
    one["tests"][0]["run"]["of_a_later_version"] = {"x": [1.5, None]}
    other = shard(regressed("test_b"), began=1, gpu=OTHER_CARD, host=OTHER_HOST, comparisons={"planned": 1, "among": 2})
    both = merged(one, other)
    assert verdicts_of(both) == {"test_b": "REGRESSED", "test_a": "PASS"}
    assert not both.has_passed
    plain = both.plain()
    assert (plain["at"], plain["commit"]) == ("2025-01-02T03:00:01+00:00", one["commit"])
    assert plain["tests"] == [*other["tests"], *one["tests"]]
    assert plain["comparisons"] == {"planned": 2, "among": 2}
    read = read_result("both.json", json.dumps(plain).encode())
    assert [test.outcome for test in read.tests] == ["failed", "passed"]


def test_cards_of_one_name_are_listed() -> None:
    """Several cards on several hosts are told apart; only facts that are the same stay, so that no host is named."""
    both = merged(
        shard(a_test("test_a"), shard={"number": 1, "of": 2}),
        shard(a_test("test_b"), began=1, gpu=OTHER_CARD, host=OTHER_HOST, shard={"number": 2, "of": 2}),
    )
    assert both.places == (
        "result 1 of 2: group 1 of 2, T4 at 0000:00:1e.0 on host host-a, 1 test, began 2025-01-02T03:00:00+00:00",
        "result 2 of 2: group 2 of 2, T4 at 0000:00:1f.0 on host host-b, 1 test, began 2025-01-02T03:00:01+00:00",
    )
    assert both.header == "T4, 2 results merged, 2 comparisons planned"
    assert both.plain()["gpu"] == {"name": "T4", "product": "Tesla T4"}
    assert both.plain()["host"] == {"cores": 8}
    assert merged(shard(a_test("test_a")), shard(a_test("test_b"), began=1)).plain()["host"] == HOST


@pytest.mark.parametrize(
    ("outcome", "passes"),
    [("skipped", True), ("failed", False), ("error", False), ("interrupted", False), ("odd", False)],
)
def test_only_what_is_known_to_pass_passes(outcome: str, *, passes: bool) -> None:
    """One test that did not is enough, an outcome that nobody knows is none, and shards without a test do not pass."""
    assert merged(shard(a_test("test_a")), shard(a_test("test_b", outcome=outcome), began=1)).has_passed is passes
    assert not merged(shard(), shard(began=1)).has_passed


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ({"commit": OTHER_COMMIT}, "not of the same code"),
        ({"commit": None}, "not of the same code"),
        ({"gpu": {**T4, "name": "A100"}}, "not of devices of one name"),
        ({"gpu": {}}, "does not name the device"),
        ({"mode": "update"}, "did the same"),
        ({"mode": None}, "did the same"),
    ],
)
def test_results_of_different_runs_are_refused(head: Mapping[str, Any], said: str) -> None:
    """Other code, another device, or something else that was done: the error names both files."""
    with pytest.raises(UsageProblem, match=said) as problem:
        merged(shard(a_test("test_a"), mode="gate"), shard(a_test("test_b"), **{"mode": "gate", **head}))
    assert "b.json" in str(problem.value)


def test_a_shard_that_is_missing_is_missed() -> None:
    """By numbers of one split, which all have, or by `--expect`, for which a file given twice is one."""
    one, three = (shard(a_test(f"test_{each}"), began=each, shard={"number": each, "of": 3}) for each in (1, 3))
    with pytest.raises(UsageProblem, match="of 3 results 1 is missing") as problem:
        merged(one, three)
    assert "--group=2" in str(problem.value)
    assert merged(one, three, shard(a_test("test_2"), began=2, shard={"number": 2, "of": 3})).has_passed
    for number in ({"number": 2, "of": 2}, None):
        with pytest.raises(UsageProblem, match="not of one suite"):
            merged(one, shard(a_test("test_b"), began=1, shard=number))
    plain = shard(a_test("test_a"))
    assert merged(plain, shard(a_test("test_b"), began=1), expected=2).has_passed
    with pytest.raises(UsageProblem, match="only 1 results"):
        merged(plain, plain, expected=2)


def test_what_differs_without_forbidding_it_is_noted() -> None:
    """Other versions, uncommitted changes, unknown code and notes of the shards are told, each once."""
    both = merged(
        shard(a_test("test_a"), clean=False, notes=["a note"], software={"torch": "2.4", "mosec": "0.9"}),
        shard(a_test("test_b"), began=1, notes=["a note"], software={"torch": "2.5", "mosec": "0.9"}),
    )
    assert both.notes == (
        "a note",
        "measured with changes that are not committed: nobody can say that they were the same everywhere",
        "versions of torch differ: 2.4, 2.5",
    )
    assert both.plain()["software"] == {"mosec": "0.9"}
    assert both.plain()["clean"] is False
    unknown = merged(shard(a_test("test_a"), commit=None), shard(a_test("test_b"), began=1, commit=None))
    assert any("code under test is not known" in note for note in unknown.notes)


@pytest.mark.parametrize(("kind", "stored"), [("baseline", True), ("against", False)])
def test_whether_baselines_are_asked_is_known_by_a_verdict(kind: ReferenceKind, *, stored: bool) -> None:
    """Where a run did not say what it did."""
    assert merged(shard(regressed("test_a", kind=kind))).result().stored is stored


def test_a_test_with_two_results_is_refused() -> None:
    """Both files and outcomes are named, and what helps."""
    with pytest.raises(UsageProblem, match="test_a has 2 different results") as problem:
        merged(shard(a_test("test_a")), shard(regressed("test_a"), began=1))
    assert all(text in str(problem.value) for text in ("passed in a.json", "failed in b.json"))


def test_the_same_result_twice_is_one() -> None:
    """A file that is given twice adds nothing; a merged one cannot be merged again."""
    one, other = shard(a_test("test_a")), shard(a_test("test_b"), began=1)
    both = merged(one, other)
    assert merged(one, other, one).plain() == both.plain()
    with pytest.raises(UsageProblem, match="was merged already"):
        merged(both.plain(), one)


DAMAGES: list[tuple[Callable[[Plain], object], str]] = [
    (lambda plain: plain.update(schema=3), "newer pytest-gpuserve"),
    (lambda plain: plain.update(schema=1), "whose tolerances were of another unit"),
    (lambda plain: plain.pop("gpu"), "gpu"),
    (lambda plain: plain["tests"][0]["verdicts"][0].update(verdict="FINE"), "FINE"),
    (lambda plain: plain["tests"][0]["verdicts"][0].update(run="other"), "a load that it has not"),
    (lambda plain: plain["tests"][0]["verdicts"][0].update(metric="beauty"), "beauty"),
    (lambda plain: plain["tests"][0]["verdicts"][0].update(reference=None), "without a value and a reference"),
    (lambda plain: plain["tests"][0]["verdicts"][0].update(adjusted_p=2), "adjusted_p"),
    (lambda plain: plain["tests"].append(plain["tests"][0]), "twice"),
    (lambda plain: plain.update(mode="dream"), "mode"),
    # It would become a line of its own below the command that is proposed.
    (lambda plain: plain["tests"][0]["run"].update(base={"name": "x", "options": ["--against=x\nrm -r /"]}), "options"),
]
"""What can be wrong with a file, and what is said of it."""


@pytest.mark.parametrize(("damage", "said"), DAMAGES)
def test_a_damaged_file_is_refused(damage: Callable[[Plain], object], said: str) -> None:
    """Whatever is wrong with it is told with its name, and nothing of it is used."""
    plain = shard(a_test("test_a"))
    damage(plain)
    with pytest.raises(UsageProblem, match=said) as problem:
        merged(plain)
    assert "a.json" in str(problem.value)


@settings(max_examples=15)
@given(st.one_of(st.binary(max_size=200), st.text(max_size=100).map(str.encode), st.just(b"[]"), st.just(b"{}")))
def test_what_is_no_result_is_a_users_mistake(data: bytes) -> None:
    """Whatever is in a file, it is refused in words."""
    with pytest.raises(UsageProblem, match="odd file"):
        read_shard("odd file", data)


@st.composite
def shards(draw: st.DrawFn) -> list[Plain]:
    """Files of shards, each with tests of its own; claims with and without a p-value, on one host or several."""
    found = []
    for number in range(draw(st.integers(1, 4))):
        names = [f"test_{number}[{each}]" for each in range(draw(st.integers(0, 3)))]
        tests = [regressed(name) if draw(st.booleans()) else a_test(name) for name in names]
        claims = sum(test.outcome == "failed" for test in tests)
        p_values = draw(st.lists(st.sampled_from([None, 0.0001, 0.012, 0.03]), min_size=claims, max_size=claims))
        places = [place for place, test in enumerate(tests) if test.outcome == "failed"]
        found.append(
            shard(
                *tests,
                began=draw(st.integers(0, 2)),
                host=draw(st.sampled_from([HOST, OTHER_HOST])),
                notes=[draw(st.sampled_from(["", "a note", f"note {number}"]))],
                verdicts={place: {"adjusted_p": p} for place, p in zip(places, p_values, strict=True)},
                comparisons=draw(st.sampled_from([None, {"planned": 9, "among": 9}, {"planned": 2, "among": 40}])),
            )
        )
    return found


@settings(max_examples=15)
@given(data=st.data(), files=shards())
def test_the_order_of_files_and_a_file_twice_change_nothing(data: st.DataObject, files: list[Plain]) -> None:
    """The result is the same to the byte."""
    whole = json.dumps(merged(*files).plain())
    assert json.dumps(merged(*data.draw(st.permutations(files))).plain()) == whole
    assert json.dumps(merged(*files, data.draw(st.sampled_from(files))).plain()) == whole


@settings(max_examples=15)
@given(text=st.text(max_size=40), notes=st.lists(st.text(max_size=20), max_size=3))
def test_any_text_is_kept_as_it_is(text: str, notes: list[str]) -> None:
    """Ids, reasons and notes are texts, whatever is in them."""
    odd = a_test(f"test_a[{text}]", judgement(Verdict.INCONCLUSIVE, reasons=(text,)), outcome="failed")
    both = merged(shard(odd, notes=notes), shard(a_test("test_b"), began=1))
    assert both.tests[0].nodeid == odd.nodeid
    assert both.tests[0].runs[0].judgements[0].reasons == odd.runs[0].judgements[0].reasons


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
