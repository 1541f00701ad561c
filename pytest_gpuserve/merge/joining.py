"""Shards put together: each test once, whoever has measured it, whatever the order of the files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.merge.alike import check_alike, check_expected, check_measured
from pytest_gpuserve.merge.endings import problems_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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
        problems: Why shards are no pass, whatever their tests say, by the places of the shards.
    """

    shards: tuple[Shard, ...]
    tests: tuple[Measured, ...]
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
    check_alike(known)
    if expected is not None:
        check_expected(known, expected)
    found: dict[str, Measured] = {}
    for place, shard in enumerate(known):
        for nodeid, test in shard.tests.items():
            first = found.setdefault(nodeid, Measured(place, test))
            if first.test.text != test.text:
                raise _twice(known, first, Measured(place, test))
    problems = problems_of(known)
    if not problems:
        check_measured(known)
    return Joined(known, tuple(found.values()), problems)


def _in_order(shards: Iterable[Shard]) -> tuple[Shard, ...]:
    """Each shard once, by when it began."""
    known = {(shard.head.at or "", shard.text): shard for shard in shards}
    return tuple(known[key] for key in sorted(known))


def _twice(shards: Sequence[Shard], *results: Measured) -> UsageProblem:
    began = [shards[each.shard].head.at or "nobody knows when" for each in results]
    return UsageProblem(
        f"{results[0].test.shown.nodeid} has {len(results)} different results",
        found="\n".join(
            f"{each.test.shown.outcome} in {shards[each.shard].name} (began {at})"
            for each, at in zip(results, began, strict=True)
        ),
        remedies=["leave out the file whose result is not meant: of a runner that ran again, the older one"],
    )
