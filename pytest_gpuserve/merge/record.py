"""What is read of a result file beyond what a comparison reads of it: all that a report shows, and whose it is."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from pytest_gpuserve.compare.result_file import Count, Number, RunRecord, VerdictRecord

# msgspec reads the annotations of what it decodes.
from pytest_gpuserve.gate.verdict import ReferenceKind, Verdict  # noqa: TC001

Mode = Literal["gate", "against", "update", "update-new"]
"""What a run did: judge by stored baselines, judge beside another revision or interpreter, or record."""

Place = Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
Probability = Annotated[float, msgspec.Meta(ge=0, le=1)]


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
    asserted: bool = True
    overruled: bool = False
    adjusted_p: Probability | None = None

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
