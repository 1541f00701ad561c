"""Result files as shards of one run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

import msgspec

from pytest_gpuserve.compare.result_file import Count, Number, RunRecord, VerdictRecord, read_result
from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.gate.reason import Reason, ReasonKind
from pytest_gpuserve.gate.verdict import ReferenceKind, Verdict  # noqa: TC001 -- msgspec reads the annotations
from pytest_gpuserve.report.result_json import SCHEMA as RESULT_SCHEMA

Mode = Literal["gate", "against", "update", "update-new"]
"""What a run did: judge by stored baselines, judge beside another revision or interpreter, or record."""

_KINDS: Final = {str(kind): kind for kind in ReasonKind}

Place = Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
Probability = Annotated[float, msgspec.Meta(ge=0, le=1)]


class ShownWhy(msgspec.Struct, frozen=True):
    """What a program decides by of a `Reason`; a kind that this version does not know is a remark."""

    kind: str
    about: str = ""
    commit: Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{7,64})?\Z")] = ""
    seconds: Annotated[float, msgspec.Meta(ge=0, lt=1e9)] | None = None


class ShownVerdict(VerdictRecord, frozen=True, kw_only=True):
    """A ``gate.verdict.Judgement``.

    Args:
        adjusted_p: Of a claim of REGRESSED the p-value, adjusted for all looks; None where the file does not say.
    """

    reference_kind: ReferenceKind
    verdict: Verdict
    reference: Number | None = None
    change: Number | None = None
    interval: tuple[Number, Number] | None = None
    detectable: Number | None = None
    rounds: Count = 0
    windows: Count = 0
    reasons: list[str] = msgspec.field(default_factory=list)
    why: list[ShownWhy] = msgspec.field(default_factory=list)
    asserted: bool = True
    overruled: bool = False
    adjusted_p: Probability | None = None

    @property
    def as_reasons(self) -> tuple[Reason, ...]:
        """Its reasons as values; of a file that has no kinds, or not of each, remarks."""
        if len(self.why) != len(self.reasons):
            return tuple(Reason(ReasonKind.REMARK, text) for text in self.reasons)
        return tuple(
            Reason(_KINDS.get(why.kind, ReasonKind.REMARK), text, why.about, why.commit, why.seconds)
            for text, why in zip(self.reasons, self.why, strict=True)
        )

    @property
    def counts(self) -> bool:
        """Whether it decides something."""
        return self.asserted and not self.overruled


class ShownRun(RunRecord, frozen=True, kw_only=True):
    """A load of a test."""

    load: dict[str, str] = msgspec.field(default_factory=dict)
    server: dict[str, str] = msgspec.field(default_factory=dict)


class ShownTest(msgspec.Struct, frozen=True):
    """A test that measured."""

    # Not a test class, whatever its name looks like to pytest.
    __test__ = False

    nodeid: str
    outcome: str
    verdicts: list[ShownVerdict]
    run: ShownRun | None = None
    more_runs: list[ShownRun] = []
    problem: str = ""

    @property
    def runs(self) -> list[ShownRun]:
        """All its loads."""
        return [*([] if self.run is None else [self.run]), *self.more_runs]


class ShardNumber(msgspec.Struct, frozen=True):
    """Which of several shards it is.

    Args:
        number: From 1.
        of: How many there are.
    """

    number: Place
    of: Place


class Comparisons(msgspec.Struct, frozen=True):
    """How many comparisons a run reckoned with.

    Args:
        planned: Of its own tests.
        among: Among how many its claims had to stand: with those of the other shards, where it knew of them.
    """

    planned: Count
    among: Count


class Unlisted(msgspec.Struct, frozen=True):
    """A ``report.results.Unlisted``."""

    dealt: list[str]
    own: list[str]


class Ending(msgspec.Struct, frozen=True):
    """A ``report.results.Ending``."""

    exit_status: int
    complete: bool
    unlisted_failures: Count


class Head(msgspec.Struct, frozen=True):
    """All of a result but its tests; what a file does not say is None or empty.

    Args:
        gpu: Facts of the device.
        host: Facts of the host.
        at: When it began, ISO 8601 in UTC.
        commit: The code under test.
        clean: Whether it was that commit, unchanged.
        software: Versions.
        notes: A line each.
        mode: What the run did.
        header: On what and against what was measured, in a line.
        shard: Which of several shards it is.
        comparisons: How many comparisons it reckoned with.
        dealt: Of one of several shards, the ids of the tests of all of them that measure.
        unlisted: Of one of several shards, the tests that measure nothing.
        against: Whom it was measured beside; None where comparisons are with stored baselines.
        ending: How pytest ended.
    """

    gpu: dict[str, Any]
    host: dict[str, Any]
    at: str | None = None
    commit: str | None = None
    clean: bool | None = None
    software: dict[str, str] = {}
    notes: list[str] = []
    mode: Mode | None = None
    header: str = ""
    shard: ShardNumber | None = None
    comparisons: Comparisons | None = None
    dealt: list[str] | None = None
    unlisted: Unlisted | None = None
    against: str | None = None
    ending: Ending | None = None


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
    reasons, why = verdict.get("reasons", []), verdict.get("why", [])
    # In a file of an earlier version reasons have no kinds.
    why = why if len(why) == len(reasons) else [{"kind": str(ReasonKind.REMARK)} for _ in reasons]
    return {
        **verdict,
        "verdict": "INCONCLUSIVE",
        "reasons": [*reasons, reason],
        "why": [*why, {"kind": str(ReasonKind.CHANCE)}],
    }


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
