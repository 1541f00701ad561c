"""How the runs of all shards ended: a result lists only tests that measure, and others fail or are never run.

What pytest itself said is in the file, and a shard whose list cannot be the whole truth is no pass: pytest was stopped,
could not collect a file, or failed for what is not listed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.merge.shard import Shard

PASSING: Final = frozenset({"passed", "skipped"})
"""Outcomes of tests by which pytest does not fail; any other one is a failure, known or not."""

NO_TESTS: Final = 5
"""pytest's exit status where there was no test to run."""

_MEANINGS: Final = {
    2: "it was interrupted, or a file could not be collected",
    3: "an internal error",
    4: "a wrong argument, or something could not be written",
    NO_TESTS: "there were no tests",
}
"""Of pytest's exit statuses, but those of tests that have all passed or have not."""


def problem_of(shard: Shard) -> str:
    """Why the tests that a shard lists do not tell how its run ended; empty if they do."""
    ending = shard.head.ending
    if ending is None:
        return "it is not known how pytest ended: this was written by an older pytest-gpuserve, so run it again"
    status = ending.exit_status
    if status not in {0, 1}:
        return f"pytest ended with exit status {status}: {_MEANINGS.get(status, 'its output says why')}"
    if not ending.complete:
        return "pytest ended before all of its tests were run: run all of them"
    if ending.unlisted_failures:
        count = ending.unlisted_failures
        return (
            f"{count} failure{'s' if count > 1 else ''} of tests that measure nothing, or of files that could not be"
            " collected: the output of pytest says which"
        )
    if status and all(test.shown.outcome in PASSING for test in shard.tests.values()):
        return f"pytest ended with exit status {status}, though all tests that are listed have passed"
    return ""


def problems_of(shards: Sequence[Shard]) -> dict[int, str]:
    """Why shards are no pass, whatever their tests say, by their places."""
    return {
        place: problem
        for place, shard in enumerate(shards)
        if not _was_dealt_nothing(shard) and (problem := problem_of(shard))
    }


def _was_dealt_nothing(shard: Shard) -> bool:
    """Whether pytest found no test to run because all that there are were for other runners."""
    head = shard.head
    if not shard.is_idle or head.unlisted is None or head.ending is None or head.ending.exit_status != NO_TESTS:
        return False
    return not head.unlisted.own and bool(head.dealt or head.unlisted.dealt)
