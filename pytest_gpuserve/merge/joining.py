"""Shards put together: each test once, whoever has measured it, whatever the order of the files."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.merge.alike import check_alike, check_expected, check_measured
from pytest_gpuserve.merge.endings import problems_of
from pytest_gpuserve.merge.shard import canonical

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpuserve.merge.record import ShownTest
    from pytest_gpuserve.merge.shard import Shard, Test


@dataclass(frozen=True)
class Measured:
    """A test and the shard that has measured it.

    Args:
        shard: Its place among the shards.
        test: The test.
    """

    shard: int
    test: Test


@dataclass(frozen=True)
class Joined:
    """All shards.

    Args:
        shards: Those that are different, by when they began.
        tests: Each test once, in the order of the shards.
        replaced: Results of the same tests that do not count.
        notes: Why they do not, a line each.
        problems: Why shards are no pass, whatever their tests say, by the places of the shards.
    """

    shards: tuple[Shard, ...]
    tests: tuple[Measured, ...]
    replaced: tuple[Measured, ...] = ()
    notes: tuple[str, ...] = ()
    problems: Mapping[int, str] = field(default_factory=dict)


def join(shards: Iterable[Shard], *, rerun: bool = False, expected: int | None = None) -> Joined:
    """Put shards together.

    Args:
        shards: In any order; one may be there several times.
        rerun: Whether a test may have been run again: then its later result counts, but a regression goes away only
            in a run that went on with what was measured of it, for else whoever tries often enough is lucky.
        expected: How many shards there must be at least that are not of tests run again; None where nobody says.

    Raises:
        UsageProblem: The shards are not of one run, a test has two results, or a shard, or a test of a sound run that
            was dealt out, is missing.
    """
    known = _in_order(shards)
    check_alike(known, rerun=rerun)
    found: dict[str, list[Measured]] = {}
    for place, shard in enumerate(known):
        for nodeid, test in shard.tests.items():
            results = found.setdefault(nodeid, [])
            if all(test.text != other.test.text for other in results):
                results.append(Measured(place, test))
    tests, replaced, notes = [], [], []
    for results in found.values():
        if len(results) > 1 and not rerun:
            raise _twice(known, results)
        count = _last_word(known, results)
        tests.append(count)
        replaced += [each for each in results if each is not count]
        notes += _told(known, results, count)
    if expected is not None:
        check_expected(_first_runs(known), expected)
    problems = problems_of(known, rerun=rerun)
    if not problems:
        check_measured(known)
    orders = [{nodeid: place for place, nodeid in enumerate(shard.tests)} for shard in known]
    tests.sort(key=lambda each: (each.shard, orders[each.shard][each.test.shown.nodeid]))
    return Joined(known, tuple(tests), tuple(replaced), tuple(notes), problems)


def _first_runs(shards: Sequence[Shard]) -> list[str]:
    """The names of the shards that are not of tests run again: they have no test and no number of an earlier one."""
    names = []
    tests: set[str] = set()
    numbers: set[int] = set()
    for shard in shards:
        number = None if shard.head.shard is None else shard.head.shard.number
        if number not in numbers and tests.isdisjoint(shard.tests):
            names.append(shard.name)
        tests |= shard.tests.keys()
        numbers |= set() if number is None else {number}
    return names


def _in_order(shards: Iterable[Shard]) -> tuple[Shard, ...]:
    """Each shard once, by when it began; of one that was merged before some tests may be elsewhere."""
    known: dict[str, Shard] = {}
    for shard in shards:
        head = canonical(shard.plain_head)
        same = known.get(head)
        known[head] = shard if same is None else _one(same, shard)
    return tuple(known[head] for head in sorted(known, key=lambda head: (known[head].head.at or "", head)))


def _one(first: Shard, second: Shard) -> Shard:
    """Two files' parts of one shard.

    Raises:
        UsageProblem: They disagree on a test.
    """
    for nodeid, test in second.tests.items():
        other = first.tests.get(nodeid)
        if other is not None and other.text != test.text:
            raise UsageProblem(f"{first.name} and {second.name} are of the same run, and disagree on {nodeid}")
    tests = {**first.tests, **second.tests}
    files = tuple(sorted({*first.files, *second.files}))
    return replace(first, files=files, tests={nodeid: tests[nodeid] for nodeid in _order(first, second)})


def _order(first: Shard, second: Shard) -> list[str]:
    """Of the one that has all tests, else whatever does not depend on which of the two came first."""
    one, other = list(first.tests), list(second.tests)
    if one == other or set(one) > set(other):
        return one
    return other if set(other) > set(one) else sorted({*one, *other})


def _last_word(shards: Sequence[Shard], results: Sequence[Measured]) -> Measured:
    """Which of several results of a test counts; they come by when their shards began.

    Raises:
        UsageProblem: It is not known which one was the last.
    """
    count = results[0]
    for later in results[1:]:
        if _began(shards, later) <= _began(shards, count):
            raise _twice(shards, results)
        if _may_replace(count.test.shown, later.test.shown):
            count = later
    return count


def _may_replace(earlier: ShownTest, later: ShownTest) -> bool:
    """Whether no regression is lost, or the later run has all that was measured of it."""
    regressed = {verdict.run for verdict in earlier.verdicts if verdict.counts and verdict.verdict is Verdict.REGRESSED}
    before, after = ({run.label: set(run.sessions_at) for run in test.runs} for test in (earlier, later))
    return all(before[label] and before[label] <= after.get(label, set()) for label in regressed)


def _began(shards: Sequence[Shard], result: Measured) -> str:
    return shards[result.shard].head.at or ""


def _told(shards: Sequence[Shard], results: Sequence[Measured], count: Measured) -> list[str]:
    """Say of each result of a test that does not count why."""
    nodeid, at = count.test.shown.nodeid, _began(shards, count)
    lines = []
    for each in results:
        if each is count:
            continue
        other = f"{nodeid}: of the run that began at {_began(shards, each)} it was {each.test.shown.outcome}, which"
        if _began(shards, each) < at:
            lines.append(f"{other} does not count: it was run again at {at}")
        else:
            lines.append(
                f"{other} does not count: what had REGRESSED at {at} is not cleared by a new sample, but by a run that"
                " goes on with that one (keep pytest's cache between them: -o cache_dir=DIR)"
            )
    return lines


def _twice(shards: Sequence[Shard], results: Sequence[Measured]) -> UsageProblem:
    which = [f"{shards[each.shard].name} (began {_began(shards, each) or 'nobody knows when'})" for each in results]
    return UsageProblem(
        f"{results[0].test.shown.nodeid} has {len(results)} different results",
        found="\n".join(f"{each.test.shown.outcome} in {file}" for each, file in zip(results, which, strict=True)),
        remedies=[
            "leave out the file whose result is not meant",
            "let a test that was run again count as it was in the end: --rerun (it must be known when each run began)",
        ],
    )
