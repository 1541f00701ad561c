"""Tests that were run again: the last result counts, but no regression is cleared by trying one's luck."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.errors import UsageProblem
from tests.merge.merge_files import a_test, again, at, merged, regressed, shard, verdicts_of

if TYPE_CHECKING:
    from pytest_gpuserve.merge.merged import Merged
    from pytest_gpuserve.merge.shard import Plain

FIRST = (at(0), at(2))
CONTINUED = (*FIRST, at(11))


def outcomes(result: Merged) -> dict[str, str]:
    """The outcome of each test, by its name."""
    return {test.nodeid.rpartition("::")[2]: test.outcome for test in result.tests}


def test_the_last_result_counts() -> None:
    """Not the best one: of an error and a pass, whatever the order of files; it is told."""
    first = shard(a_test("test_a", outcome="error"), a_test("test_b"))
    second = shard(a_test("test_a"), began=10)
    for files in ([first, second], [second, first]):
        both = merged(*files, rerun=True)
        assert outcomes(both) == {"test_a": "passed", "test_b": "passed"}
        assert both.has_passed
        assert any("test_a: of the run that began at" in note and "run again" in note for note in both.notes)
    both = merged(shard(a_test("test_a")), shard(a_test("test_a", outcome="error"), began=10), rerun=True)
    assert outcomes(both) == {"test_a": "error"}


def test_a_new_sample_clears_no_regression() -> None:
    """Who tries often enough is lucky: only a run that goes on with all that was measured finds otherwise."""
    first = shard(regressed("test_a", sessions_at=FIRST))
    lucky = shard(a_test("test_a", sessions_at=(at(11), at(12))), began=10)
    for files in ([first, lucky], [lucky, first]):
        both = merged(*files, rerun=True)
        assert verdicts_of(both) == {"test_a": "REGRESSED"}
        assert not both.has_passed
        assert any("cache_dir" in note for note in both.notes)
    assert merged(first, shard(a_test("test_a", sessions_at=CONTINUED), began=10), rerun=True).has_passed
    last = shard(a_test("test_a", sessions_at=(*FIRST, at(21))), began=20)
    assert outcomes(merged(lucky, last, first, rerun=True)) == {"test_a": "passed"}


@pytest.mark.parametrize("known", [True, False])
def test_which_was_the_last_must_be_known(known: bool) -> None:  # noqa: FBT001 -- a parameter
    """Two results of one moment are none, with `--rerun` too."""
    first = shard(a_test("test_a"), notes=["first"])
    second = shard(a_test("test_a", outcome="error"), began=0, notes=["second"])
    if not known:
        first["at"] = second["at"] = None
    with pytest.raises(UsageProblem, match="2 different results"):
        merged(first, second, rerun=True)


def test_the_order_of_attempts_does_not_matter() -> None:
    """In one step or in several, whatever comes first: every result stays in the merged file."""
    files: list[Plain] = [
        shard(regressed("test_a", sessions_at=FIRST), a_test("test_b")),
        shard(a_test("test_a", sessions_at=CONTINUED), began=10),
        shard(a_test("test_a", outcome="error"), began=20),
        shard(a_test("test_c"), began=1),
    ]
    whole = merged(*files, rerun=True).plain()
    assert [len(part["tests"]) for part in whole["shards"]] == [2, 1, 1, 1]
    for one in range(len(files)):
        for other in range(one):
            rest = [file for place, file in enumerate(files) if place not in {one, other}]
            steps = again(merged(files[one], files[other], rerun=True))
            assert merged(*rest, steps, rerun=True).plain() == whole
    with pytest.raises(UsageProblem, match="--rerun"):
        merged(*files)
