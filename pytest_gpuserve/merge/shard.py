"""The shards that result files hold: one each, and of a file that was merged before all that it was made of."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from pytest_gpuserve.compare.result_file import read_result
from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.merge.record import Head, Place, ShownTest
from pytest_gpuserve.report.result_json import SCHEMA as RESULT_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Plain = dict[str, Any]
    """An object of JSON."""

    Kind = TypeVar("Kind")

SCHEMA: Final = "schema"
TESTS: Final = "tests"
SHARDS: Final = "shards"
REPLACED: Final = "replaced"

CLAIMED: Final = "claimed"
"""Field of a verdict that was held back: what it was before."""


@dataclass(frozen=True)
class Test:
    """A test of a shard.

    Args:
        shown: What is known of it.
        plain: The same as it stands in the file, whose further fields are kept.
    """

    # Not a test class, whatever its name looks like to pytest.
    __test__ = False

    shown: ShownTest
    plain: Plain

    @property
    def text(self) -> str:
        """By which it is told whether two are the same."""
        return canonical(self.plain)


@dataclass(frozen=True)
class Shard:
    """What one run of pytest has measured.

    Args:
        files: What people call the files that it is in.
        head: All of it but its tests.
        plain_head: The same as it stands in the file.
        tests: By their ids, in the order in which they ran.
    """

    files: tuple[str, ...]
    head: Head
    plain_head: Plain
    tests: Mapping[str, Test]

    @property
    def name(self) -> str:
        """What people call it."""
        return " and ".join(self.files)

    @property
    def device(self) -> str:
        """The name of what it was measured on; empty where it does not say."""
        name = self.head.gpu.get("name")
        return name if isinstance(name, str) else ""

    @property
    def is_idle(self) -> bool:
        """Whether it is of a runner to which no test that measures was dealt."""
        return self.head.shard is not None and not self.tests and not self.device


class _Listed(msgspec.Struct):
    tests: list[str]


class _Replaced(msgspec.Struct):
    shard: Place
    test: dict[str, Any]


def canonical(plain: object) -> str:
    """The one way to write plain values, so that equal ones are the same text."""
    return json.dumps(plain, sort_keys=True, separators=(",", ":"))


def held_back(verdict: Plain, reason: str) -> Plain:
    """A verdict as it stands in a file, made INCONCLUSIVE for a reason; `read_shards` takes it back."""
    return {
        **verdict,
        "verdict": "INCONCLUSIVE",
        "reasons": [*verdict.get("reasons", []), reason],
        CLAIMED: verdict["verdict"],
    }


def read_shards(name: str, data: bytes) -> list[Shard]:
    """Read the shards of a result file.

    Args:
        name: What people call the file.
        data: What is in it.

    Raises:
        UsageProblem: It is no result, is of another schema, or a field of it cannot be used; names the file.
    """
    if read_result(name, data).schema != RESULT_SCHEMA:
        raise UsageProblem(
            f"{name} was written by an older pytest-gpuserve, whose tolerances were of another unit",
            remedies=["merge the results of a run with the version that ran it"],
        )
    document: Plain = msgspec.json.decode(data)
    tests = _tests(name, document.pop(TESTS))
    document.pop(SCHEMA)
    if SHARDS not in document:
        return [_shard(name, document, tests)]
    parts = _as(name, document[SHARDS], list[dict[str, Any]])
    if not parts:
        raise UsageProblem(f"{name} cannot be merged again: it has no shards")
    elsewhere = [
        (each.shard, _tests(name, [each.test])) for each in _as(name, document.get(REPLACED, []), list[_Replaced])
    ]
    shards = []
    listed: set[str] = set()
    for number, part in enumerate(parts, start=1):
        nodeids = _as(name, part, _Listed).tests
        own = dict(tests)
        for place, found in elsewhere:
            if place == number:
                own.update(found)
        listed.update(nodeids)
        head = {field: value for field, value in part.items() if field != TESTS}
        shards.append(_shard(name, head, {nodeid: _result_of(name, own, nodeid) for nodeid in nodeids}))
    lost = sorted(set(tests) - listed)
    if lost:
        raise UsageProblem(f"{name} cannot be merged again: none of its shards has measured {', '.join(lost)}")
    return shards


def read_tests(name: str, plain: Plain) -> ShownTest:
    """Read a test as it stands in a file.

    Raises:
        UsageProblem: A field of it cannot be used; names the file.
    """
    return _as(name, plain, ShownTest)


def _shard(name: str, plain_head: Plain, tests: Mapping[str, Test]) -> Shard:
    return Shard((name,), _as(name, plain_head, Head), plain_head, tests)


def _result_of(name: str, tests: Mapping[str, Test], nodeid: str) -> Test:
    if nodeid not in tests:
        raise UsageProblem(f"{name} cannot be merged again: it has no result of {nodeid}")
    return tests[nodeid]


def _tests(name: str, plains: Iterable[Plain]) -> dict[str, Test]:
    tests: dict[str, Test] = {}
    for plain in plains:
        known = read_tests(name, plain)
        said = _as_said(plain, known)
        if tests.setdefault(known.nodeid, said) is not said:
            raise UsageProblem(f"{name} has the test {known.nodeid} twice")
        _check_runs(name, known)
    return tests


def _as_said(plain: Plain, known: ShownTest) -> Test:
    """The test as its own run said, before anything of it was held back."""
    if all(verdict.claimed is None for verdict in known.verdicts):
        return Test(known, plain)
    verdicts = [
        each
        if verdict.claimed is None
        else {
            **{field: value for field, value in each.items() if field != CLAIMED},
            "verdict": str(verdict.claimed),
            "reasons": verdict.reasons[:-1],
        }
        for each, verdict in zip(plain["verdicts"], known.verdicts, strict=True)
    ]
    said = {**plain, "verdicts": verdicts}
    return Test(msgspec.convert(said, ShownTest), said)


def _check_runs(name: str, test: ShownTest) -> None:
    """Check that each verdict is of a load that the test has.

    Raises:
        UsageProblem: One is not.
    """
    labels = {run.label for run in test.runs}
    for verdict in test.verdicts:
        if verdict.run not in labels:
            raise UsageProblem(
                f"{name} cannot be used: {test.nodeid} has a verdict of a load that it has not",
                found=f"the load {verdict.run!r}; there are {sorted(labels)}",
            )


def _as(name: str, plain: object, kind: type[Kind]) -> Kind:
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as problem:
        raise UsageProblem(
            f"{name} is no result of --gpuserve-json that can be merged",
            found=str(problem),
            remedies=["write it anew: pytest --gpuserve-json=FILE"],
        ) from None
