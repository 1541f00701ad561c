"""Result files as the shards of one run, put together: each test once, whoever has measured it, in whatever order."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.report.names import some_of
from pytest_gpuserve.report.schema import OF_COST, TestRecord, read_result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pytest_gpuserve.report.schema import Plain, ResultRecord

MERGED: Final = "merged"
"""Field of a merged file: how many results it is made of."""

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

NOT_STATED: Final = "not told"

_NONE_WRITTEN: Final = "look for the runner that has written none: it has broken down, or lacks --gpuserve-json"

MODES: Final = {
    None: NOT_STATED,
    "gate": "gating against stored baselines",
    "against": "side by side with another revision or interpreter",
    "update": "recording baselines",
    "update-new": "recording baselines that are missing",
}
"""What a run did, in words."""


@dataclass(frozen=True)
class ShardTest:
    """A test of a shard.

    Args:
        plain: The same as it stands in the file, whose further fields are kept.
    """

    record: TestRecord
    plain: Plain

    @classmethod
    def of(cls, plain: Plain) -> ShardTest:
        """A test as it stands in a file that was read."""
        return cls(msgspec.convert(plain, TestRecord), plain)

    @property
    def text(self) -> str:
        """By which it is told whether two are the same."""
        return _canonical(self.plain)


@dataclass(frozen=True)
class Shard:
    """What one run of pytest has measured.

    Args:
        tests: By their ids, in the order in which they ran.
        text: By which it is told whether two are the same.
    """

    name: str
    result: ResultRecord
    tests: Mapping[str, ShardTest]
    text: str

    @property
    def device(self) -> str:
        """The name of what it was measured on; empty where it does not say."""
        name = self.result.gpu.get("name")
        return name if isinstance(name, str) else ""

    @property
    def is_idle(self) -> bool:
        """Whether it is of a runner to which no test that measures was dealt."""
        return self.result.shard is not None and not self.tests and not self.device


def read_shard(name: str, data: bytes) -> Shard:
    """Read a result file.

    Raises:
        UsageProblem: It is no result, was merged already, is of another schema, or a field of it cannot be used.
    """
    result = read_result(name, data)
    if result.schema == OF_COST:
        raise UsageProblem(
            f"{name} was written by an older pytest-gpuserve, whose tolerances were of another unit",
            remedies=["merge the results of a run with the version that ran it"],
        )
    document: Plain = msgspec.json.decode(data)
    if MERGED in document:
        raise UsageProblem(f"{name} was merged already", remedies=["merge the runners' own files, all at once"])
    tests: dict[str, ShardTest] = {}
    for record, plain in zip(result.tests, document["tests"], strict=True):
        if record.nodeid in tests:
            raise UsageProblem(f"{name} has the test {record.nodeid} twice")
        tests[record.nodeid] = ShardTest(record, plain)
        _check_runs(name, record)
    return Shard(name, result, tests, _canonical(document))


def _canonical(plain: Plain) -> str:
    """The one way to write plain values, so that equal ones are the same text."""
    return json.dumps(plain, sort_keys=True, separators=(",", ":"))


def _check_runs(name: str, test: TestRecord) -> None:
    """Check that each verdict is of a load that the test has."""
    labels = {run.label for run in test.runs}
    for verdict in test.verdicts:
        if verdict.run not in labels:
            raise UsageProblem(
                f"{name} cannot be used: {test.nodeid} has a verdict of a load that it has not",
                found=f"the load {verdict.run!r}; there are {sorted(labels)}",
            )


def _problem_of(shard: Shard) -> str:
    """Why the tests that a shard lists do not tell how its run ended; empty if they do."""
    ending = shard.result.ending
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
    if status and all(test.record.outcome in PASSING for test in shard.tests.values()):
        return f"pytest ended with exit status {status}, though all tests that are listed have passed"
    return ""


def _problems_of(shards: Sequence[Shard]) -> dict[int, str]:
    """Why shards are no pass, whatever their tests say, by their places."""
    return {
        place: problem
        for place, shard in enumerate(shards)
        if not _was_dealt_nothing(shard) and (problem := _problem_of(shard))
    }


def _was_dealt_nothing(shard: Shard) -> bool:
    """Whether pytest found no test to run because all that there are were for other runners."""
    result = shard.result
    if not shard.is_idle or result.unlisted is None or result.ending is None or result.ending.exit_status != NO_TESTS:
        return False
    return not result.unlisted.own and bool(result.dealt or result.unlisted.dealt)


def _check_alike(shards: Sequence[Shard]) -> None:
    """Check that shards are of one run."""
    for shard in shards:
        if not shard.device and not shard.is_idle:
            raise UsageProblem(f"{shard.name} does not name the device that it was measured on")
    # What a runner does that measures nothing is of no matter, but for which code it does it.
    busy = [shard for shard in shards if not shard.is_idle]
    if not busy:
        raise UsageProblem(
            "none of the results has a test that measures",
            found=some_of([shard.name for shard in shards]),
            remedies=["merge them with those of the other groups"],
        )
    _check(
        shards,
        lambda shard: shard.result.commit or NOT_STATED,
        "the results are not of the same code",
        "merge what was measured at one commit",
    )
    _check(
        busy,
        lambda shard: shard.device,
        "the results are not of devices of one name",
        "merge those of each device into one of its own",
    )
    _check(
        busy,
        lambda shard: MODES[shard.result.mode],
        "the results are not of runs that did the same",
        "merge those that gate, and not those that record or compare with something else",
    )
    _check(
        busy,
        lambda shard: shard.result.against or NOT_STATED,
        "the results were not measured beside the same code",
        "let all runners compare with one commit: --against=HASH",
    )
    _check_complete(shards)


def _check_measured(shards: Sequence[Shard]) -> None:
    """Check that every test that was dealt out was one of some shard, whether it measures or not."""
    dealt = {nodeid for shard in shards for nodeid in shard.result.dealt or ()}
    lost = sorted(dealt - {nodeid for shard in shards for nodeid in shard.tests})
    # A shard that does not say which tests it had may have had any of them.
    if not _silent(shards):
        said = [shard.result.unlisted for shard in shards if shard.result.unlisted is not None]
        others = {nodeid for each in said for nodeid in each.dealt}
        lost += sorted(others - {nodeid for each in said for nodeid in each.own})
    if lost:
        raise UsageProblem(
            f"{len(lost)} test{'s were' if len(lost) > 1 else ' was'} run by none of the runners",
            found=some_of(lost),
            remedies=["let all deal them out alike: the same checkout, the same selection, the same .test_durations"],
        )


def _check_expected(shards: Sequence[Shard], expected: int) -> None:
    """Check that there are as many shards as there should be at least."""
    if len(shards) < expected:
        raise UsageProblem(
            f"--expect={expected}: there are only {len(shards)} results, so not all tests were measured",
            found=", ".join(shard.name for shard in shards) or "none",
            remedies=[f"{_NONE_WRITTEN}, or had no test that measures: then expect fewer"],
        )


def remarks(shards: Sequence[Shard]) -> list[str]:
    """What of the shards differs, or is not known, and does not forbid to merge them; a line each."""
    results = [shard.result for shard in shards]
    lines = []
    if len(shards) > 1 and results[0].commit is None:
        lines.append("the code under test is not known: nobody can say that it was the same everywhere")
    if len(shards) > 1 and any(result.commit is not None and not result.clean for result in results):
        lines.append("measured with changes that are not committed: nobody can say that they were the same everywhere")
    software = [shard.result.software for shard in shards if not shard.is_idle]
    for name in sorted({name for versions in software for name in versions}):
        found = sorted({versions.get(name, "none") for versions in software})
        if len(found) > 1:
            lines.append(f"versions of {name} differ: {some_of(found)}")
    silent = _silent(shards)
    if silent:
        lines.append(
            "nobody can say whether all tests that measure nothing were run: it is not known which there were in"
            f" {some_of(silent)}"
        )
    return lines


def _silent(shards: Sequence[Shard]) -> list[str]:
    """The shards of a suite that was dealt out that do not say which of its other tests they had."""
    results = [shard.result for shard in shards]
    numbers = {result.shard.number for result in results if result.shard is not None and result.unlisted is None}
    return [f"group {number}" for number in sorted(numbers)]


def _check(shards: Sequence[Shard], fact: Callable[[Shard], str], problem: str, remedy: str) -> None:
    found: dict[str, list[str]] = {}
    for shard in shards:
        found.setdefault(fact(shard), []).append(shard.name)
    if len(found) > 1:
        raise UsageProblem(
            problem,
            found="\n".join(f"{value}: {some_of(names)}" for value, names in found.items()),
            remedies=[remedy],
        )


def _check_complete(shards: Sequence[Shard]) -> None:
    """Check the numbers of shards that have one: a runner that has broken down has written nothing."""
    numbered = {shard.result.shard.number for shard in shards if shard.result.shard is not None}
    if not numbered:
        return
    _check(
        shards,
        lambda shard: NOT_STATED if shard.result.shard is None else f"one of {shard.result.shard.of}",
        "the results are not of one suite that was dealt out",
        "merge the results of one `--splits=N`",
    )
    of = next(shard.result.shard.of for shard in shards if shard.result.shard is not None)
    missing = [str(number) for number in range(1, of + 1) if number not in numbered]
    if missing:
        raise UsageProblem(
            f"of {of} results {len(missing)} {'are' if len(missing) > 1 else 'is'} missing, so not all tests were"
            " measured",
            found=f"no result of --group={some_of(missing)}",
            remedies=[_NONE_WRITTEN],
        )


@dataclass(frozen=True)
class JoinedTest:
    """A test and the shard that has measured it.

    Args:
        shard: Its place among the shards.
    """

    shard: int
    test: ShardTest


@dataclass(frozen=True)
class Joined:
    """All shards.

    Args:
        shards: Those that are different, by when they began.
        tests: Each test once, in the order of the shards.
        problems: Why shards are no pass, whatever their tests say, by the places of the shards.
    """

    shards: tuple[Shard, ...]
    tests: tuple[JoinedTest, ...]
    problems: Mapping[int, str] = field(default_factory=dict)


def join(shards: Iterable[Shard], *, expected: int | None = None) -> Joined:
    """Put shards together.

    Args:
        shards: In any order; one may be there several times.
        expected: How many shards there must be at least; None where nobody says.

    Raises:
        UsageProblem: The shards are not of one run, a test has two results, or a shard, or a test of a sound run that
            was dealt out, is missing.
    """
    known = _in_order(shards)
    _check_alike(known)
    if expected is not None:
        _check_expected(known, expected)
    found: dict[str, JoinedTest] = {}
    for place, shard in enumerate(known):
        for nodeid, test in shard.tests.items():
            first = found.setdefault(nodeid, JoinedTest(place, test))
            if first.test.text != test.text:
                raise _twice(known, first, JoinedTest(place, test))
    problems = _problems_of(known)
    if not problems:
        _check_measured(known)
    return Joined(known, tuple(found.values()), problems)


def _in_order(shards: Iterable[Shard]) -> tuple[Shard, ...]:
    """Each shard once, by when it began."""
    known = {(shard.result.at or "", shard.text): shard for shard in shards}
    return tuple(known[key] for key in sorted(known))


def _twice(shards: Sequence[Shard], *results: JoinedTest) -> UsageProblem:
    began = [shards[each.shard].result.at or "nobody knows when" for each in results]
    return UsageProblem(
        f"{results[0].test.record.nodeid} has {len(results)} different results",
        found="\n".join(
            f"{each.test.record.outcome} in {shards[each.shard].name} (began {at})"
            for each, at in zip(results, began, strict=True)
        ),
        remedies=["leave out the file whose result is not meant: of a runner that ran again, the older one"],
    )
