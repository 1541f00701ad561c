"""Result files as shards of one run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from pytest_gpuserve.compare.result_file import read_result
from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.merge.record import Head, ShownTest
from pytest_gpuserve.report.result_json import SCHEMA as RESULT_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Plain = dict[str, Any]
    """An object of JSON."""

    Kind = TypeVar("Kind")

SCHEMA: Final = "schema"
TESTS: Final = "tests"
MERGED: Final = "merged"
"""Field of a merged file: how many results it is made of."""


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
        name: What people call the file that it is in.
        head: All of it but its tests.
        plain_head: The same as it stands in the file.
        tests: By their ids, in the order in which they ran.
    """

    name: str
    head: Head
    plain_head: Plain
    tests: Mapping[str, Test]

    @property
    def text(self) -> str:
        """By which it is told whether two are the same."""
        return canonical([self.plain_head, [test.plain for test in self.tests.values()]])

    @property
    def device(self) -> str:
        """The name of what it was measured on; empty where it does not say."""
        name = self.head.gpu.get("name")
        return name if isinstance(name, str) else ""

    @property
    def is_idle(self) -> bool:
        """Whether it is of a runner to which no test that measures was dealt."""
        return self.head.shard is not None and not self.tests and not self.device


def canonical(plain: object) -> str:
    """The one way to write plain values, so that equal ones are the same text."""
    return json.dumps(plain, sort_keys=True, separators=(",", ":"))


def held_back(verdict: Plain, reason: str) -> Plain:
    """A verdict as it stands in a file, made INCONCLUSIVE for a reason."""
    return {**verdict, "verdict": "INCONCLUSIVE", "reasons": [*verdict.get("reasons", []), reason]}


def read_shard(name: str, data: bytes) -> Shard:
    """Read a result file.

    Args:
        name: What people call the file.
        data: What is in it.

    Raises:
        UsageProblem: It is no result, was merged already, is of another schema, or a field of it cannot be used.
    """
    if read_result(name, data).schema != RESULT_SCHEMA:
        raise UsageProblem(
            f"{name} was written by an older pytest-gpuserve, whose tolerances were of another unit",
            remedies=["merge the results of a run with the version that ran it"],
        )
    document: Plain = msgspec.json.decode(data)
    tests = _tests(name, document.pop(TESTS))
    document.pop(SCHEMA)
    if MERGED in document:
        raise UsageProblem(f"{name} was merged already", remedies=["merge the runners' own files, all at once"])
    return Shard(name, _as(name, document, Head), document, tests)


def read_tests(name: str, plain: Plain) -> ShownTest:
    """Read a test as it stands in a file.

    Raises:
        UsageProblem: A field of it cannot be used; names the file.
    """
    return _as(name, plain, ShownTest)


def _tests(name: str, plains: Iterable[Plain]) -> dict[str, Test]:
    tests: dict[str, Test] = {}
    for plain in plains:
        known = read_tests(name, plain)
        said = Test(known, plain)
        if tests.setdefault(known.nodeid, said) is not said:
            raise UsageProblem(f"{name} has the test {known.nodeid} twice")
        _check_runs(name, known)
    return tests


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
