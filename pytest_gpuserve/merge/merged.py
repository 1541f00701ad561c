"""Several results as one: what counts of them, as a result file and as what reports are made of.

A claim of REGRESSED that each shard upholds may be none among the comparisons of all shards.
A shard counts its own comparisons (``gate/sequential.py``), and with N of them each shard may be wrong in alpha of
its runs, all together in up to N times as many. So here M is the sum over all shards:

- a claim stands that its shard has upheld among at least M comparisons, as one does that knows of the others' tests;
- of the others those stand that Holm's step-down upholds, by the p-value that the file has of each, adjusted for looks;
- one without a p-value does not stand.

The second starts from the claims of the first as upheld ones. Those are all in Holm's set for M, as a shard never
reckons with more upheld claims than there are in all, so what stands is never more than what Holm upholds of all.

What does not stand is INCONCLUSIVE: in a run by itself it would have been measured on. It is no pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.gate.metric import METRICS
from pytest_gpuserve.gate.reason import Reason, ReasonKind
from pytest_gpuserve.gate.sequential import ALPHA, Family
from pytest_gpuserve.gate.verdict import Judgement, Verdict
from pytest_gpuserve.merge.shards import MERGED, MODES, NOT_STATED, PASSING, Joined, ShardTest, join, remarks
from pytest_gpuserve.report.names import printable
from pytest_gpuserve.report.next_step import next_step
from pytest_gpuserve.report.remarks import bases_lines, problem_lines, reason_lines, totals_line
from pytest_gpuserve.report.results import RunResult, SessionResult, TestResult
from pytest_gpuserve.report.schema import SCHEMA, UPGRADE
from pytest_gpuserve.report.terminal import table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpuserve.merge.shards import Shard
    from pytest_gpuserve.report.schema import Plain, ResultRecord, RunRecord, TestRecord, VerdictRecord


UPHELD: Final = frozenset({"baseline", "against"})
"""Kinds of references of which a run's claims are upheld; of a limit nothing is claimed beyond it."""

PLANNED: Final = UPHELD | {"duel"}
"""Kinds of references that are reckoned with."""

USUAL: Final = sum(not metric.on_request for metric in METRICS.values())
"""Comparisons of a test of which nothing is known, as `pytest_gpuserve.plugin.collection` counts them."""

Reasons = dict[tuple[str, int], str]
"""Why verdicts do not stand, by the id of the test and the place of the verdict in it."""

_KINDS: Final = {str(kind): kind for kind in ReasonKind}

_UPDATES: Final = {"update": "--baseline-update", "update-new": "--baseline-update-new"}


def merged_text(
    result: SessionResult,
    written: Sequence[str],
    *,
    width: int,
    color: bool,
) -> str:
    """Write what came of it."""
    tests = [test for test in result.tests if any(run.judgements for run in test.runs)]
    drawn = table(tests, width=width, color=color)
    lines = (
        *bases_lines(tests),
        *reason_lines(tests),
        *problem_lines(result.tests),
        *result.notes,
        *result.places,
        *written,
        totals_line(result),
        *next_step(result).splitlines(),
    )
    below = [printable(line) for line in lines if line]
    # The table has colours, and what it takes in is made printable by itself.
    return "\n".join([printable(f"gpuserve: {result.header}"), *(["", drawn, ""] if drawn else []), *below])


@dataclass(frozen=True)
class Merged:
    """Several results as one.

    Args:
        planned: Among how many comparisons its claims stand.
        plain_tests: Its tests as they stand in a result file.
        tests: Its tests as reports know them.
    """

    joined: Joined
    planned: int
    plain_tests: tuple[Plain, ...]
    tests: tuple[TestResult, ...]

    @property
    def has_passed(self) -> bool:
        """Whether there is a test, and none that failed, and all runs ended as their tests say."""
        return bool(self.tests) and not self.joined.problems and all(test.outcome in PASSING for test in self.tests)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the shards noted, and what is to be said of their being put together; a line each."""
        said = (note for shard in self.joined.shards for note in shard.result.notes)
        problems = (f"{self._name(place)} is no pass: {problem}" for place, problem in self.joined.problems.items())
        return tuple(dict.fromkeys((*said, *problems, *remarks(self.joined.shards))))

    @property
    def header(self) -> str:
        """On what, what and how much was measured, in a line."""
        first, count = self._first, len(self.joined.shards)
        mode = "" if first.mode is None else f"{MODES[first.mode]}, "
        return (
            f"{first.gpu['name']}, {mode}{count} result{'s' if count > 1 else ''} merged,"
            f" {self.planned} comparison{'s' if self.planned != 1 else ''} planned"
        )

    @property
    def places(self) -> tuple[str, ...]:
        """What each shard was measured on, a line each."""
        return tuple(f"{self._name(place)}: {_measured_on(shard)}" for place, shard in enumerate(self.joined.shards))

    def result(self) -> SessionResult:
        """All of it, for reports. What was measured in detail is in the shards' own.

        A run that did not end as its tests say is in it as an error, so that no report takes it for a pass.
        """
        shards, busy, first = self.joined.shards, self._busy, self._first
        results = {f"result {number}": _measured_on(shard) for number, shard in self._numbered()}
        return SessionResult(
            gpu={**_common(shard.result.gpu for shard in busy), "results": results},
            host=_common(shard.result.host for shard in busy),
            tests=(
                *self.tests,
                *(
                    TestResult(self._name(place), "error", problem=f"{shards[place].name}: {problem}")
                    for place, problem in self.joined.problems.items()
                ),
            ),
            notes=self.notes,
            places=self.places,
            header=self.header,
            at=self._at,
            commit=first.commit,
            clean=self._clean,
            software=_common(shard.result.software for shard in busy),
            stored=first.mode != "against" if first.mode is not None else self._asks_baselines,
            update=_UPDATES.get(first.mode or "", ""),
            against=first.against or "",
        )

    def plain(self) -> Plain:
        """All of it as a result file."""
        shards, busy, first = self.joined.shards, self._busy, self._first
        return {
            "schema": SCHEMA,
            "at": self._at or None,
            "commit": first.commit,
            "clean": None if first.commit is None else self._clean,
            "software": _common(shard.result.software for shard in busy),
            # Where they differ nothing is said of them all: a host's id is missing then, so that nobody takes what
            # several have measured for the sample of one.
            "gpu": _common(shard.result.gpu for shard in busy),
            "host": _common(shard.result.host for shard in busy),
            "mode": first.mode,
            "against": first.against,
            "header": self.header,
            "comparisons": {"planned": self.planned, "among": self.planned},
            "notes": list(self.notes),
            "tests": list(self.plain_tests),
            MERGED: len(shards),
        }

    @property
    def _busy(self) -> tuple[Shard, ...]:
        """The shards that could measure, of which there is one at least."""
        return tuple(shard for shard in self.joined.shards if not shard.is_idle)

    @property
    def _first(self) -> ResultRecord:
        """Where all of them agree, the word of the first."""
        return self._busy[0].result

    @property
    def _at(self) -> str:
        return min((shard.result.at for shard in self.joined.shards if shard.result.at), default="")

    @property
    def _clean(self) -> bool:
        return all(shard.result.clean for shard in self.joined.shards)

    @property
    def _asks_baselines(self) -> bool:
        return any(
            judgement.reference_kind == "baseline"
            for test in self.tests
            for run in test.runs
            for judgement in run.judgements
        )

    def _name(self, place: int) -> str:
        return f"result {place + 1} of {len(self.joined.shards)}"

    def _numbered(self) -> Iterable[tuple[int, Shard]]:
        return enumerate(self.joined.shards, start=1)


def merge(shards: Sequence[Shard], *, expected: int | None = None) -> Merged:
    """Make one result of several.

    Args:
        shards: At least one, in any order.

    Raises:
        UsageProblem: They cannot be merged.
    """
    joined = join(shards, expected=expected)
    refused = claims_that_do_not_stand(joined)
    plain_tests, tests = [], []
    for each in joined.tests:
        test = _with_claims_held_back(each.test, refused)
        plain_tests.append(test.plain)
        tests.append(_result(joined.shards[each.shard].name, test.record))
    return Merged(joined, planned_of_all(joined), tuple(plain_tests), tuple(tests))


def _with_claims_held_back(test: ShardTest, refused: Reasons) -> ShardTest:
    """A test with those claims made INCONCLUSIVE that do not stand."""
    reasons = [refused.get((test.record.nodeid, place)) for place in range(len(test.record.verdicts))]
    if not any(reasons):
        return test
    verdicts = [
        _held_back(verdict, reason) if reason else verdict
        for verdict, reason in zip(test.plain["verdicts"], reasons, strict=True)
    ]
    return ShardTest.of({**test.plain, "verdicts": verdicts})


def _held_back(verdict: Plain, reason: str) -> Plain:
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


def _result(name: str, test: TestRecord) -> TestResult:
    runs = [_run(name, test, run) for run in test.runs]
    return TestResult(test.nodeid, test.outcome, runs, test.problem)


def _run(name: str, test: TestRecord, run: RunRecord) -> RunResult:
    return RunResult(
        label=run.label,
        sessions=(),
        judgements=tuple(_judgement(name, test, verdict) for verdict in test.verdicts if verdict.run == run.label),
        load=run.load,
        server=run.server,
        base=None if run.base is None else run.base.name,
        base_options=() if run.base is None else tuple(run.base.options),
        workload=run.workload or {},
        settles=run.settles,
    )


def _judgement(name: str, test: TestRecord, verdict: VerdictRecord) -> Judgement:
    metric = METRICS.get(verdict.metric)
    if metric is None:
        raise UsageProblem(
            f"{name} cannot be used: {test.nodeid} has a verdict of a metric that this version does not know",
            found=verdict.metric,
            remedies=[UPGRADE],
        )
    try:
        return Judgement(
            metric,
            verdict.verdict,
            verdict.reference_kind,
            value=verdict.value,
            reference=verdict.reference,
            change=verdict.change,
            interval=verdict.interval,
            tolerance=verdict.tolerance,
            detectable=verdict.detectable,
            rounds=verdict.rounds,
            reasons=_reasons(verdict),
            overruled=verdict.overruled,
            windows=verdict.windows,
            asserted=verdict.asserted,
        )
    except ValueError as problem:
        raise UsageProblem(
            f"{name} cannot be used: {test.nodeid} has a verdict that none can be", found=str(problem)
        ) from None


def _reasons(verdict: VerdictRecord) -> tuple[Reason, ...]:
    """Its reasons as values; of a file that has no kinds, or not of each, remarks."""
    if len(verdict.why) != len(verdict.reasons):
        return tuple(Reason(ReasonKind.REMARK, text) for text in verdict.reasons)
    return tuple(
        Reason(_KINDS.get(why.kind, ReasonKind.REMARK), text, why.about, why.commit, why.seconds)
        for text, why in zip(verdict.reasons, verdict.why, strict=True)
    )


def _measured_on(shard: Shard) -> str:
    """On what, where and when it was measured, and how much."""
    result = shard.result
    place = result.gpu.get("pci_bus_id")
    number = "" if result.shard is None else f"group {result.shard.number} of {result.shard.of}, "
    if shard.is_idle:
        return f"{number}no test that measures, began {result.at or NOT_STATED}"
    count = len(shard.tests)
    return (
        f"{number}{result.gpu['name']}{f' at {place}' if place else ''} on host {result.host.get('id') or NOT_STATED},"
        f" {count} test{'s' if count != 1 else ''}, began {result.at or NOT_STATED}"
    )


def _common(all_facts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The facts that all have, and alike."""
    first, *rest = all_facts
    return {
        name: value for name, value in first.items() if all(name in facts and facts[name] == value for facts in rest)
    }


def _planned_of(shard: Shard) -> int:
    """How many comparisons a shard has made, or would have made."""
    return _counted(shard) + _not_made(shard)


def planned_of_all(joined: Joined) -> int:
    """Among how many comparisons a claim has to stand."""
    made = sum(_compared(each.test.record) for each in joined.tests)
    return max(1, made + sum(map(_not_made, joined.shards)))


def claims_that_do_not_stand(joined: Joined) -> Reasons:
    """Why verdicts of REGRESSED do not stand among the comparisons of all shards."""
    planned = planned_of_all(joined)
    upheld = 0
    open_claims: list[tuple[float, tuple[str, int]]] = []
    refused: Reasons = {}
    for each in joined.tests:
        test, among = each.test.record, _among(joined.shards[each.shard])
        for place, verdict in enumerate(test.verdicts):
            if not (verdict.counts and verdict.verdict is Verdict.REGRESSED and verdict.reference_kind in UPHELD):
                continue
            if among >= planned:
                upheld += 1
            elif verdict.adjusted_p is not None:
                open_claims.append((verdict.adjusted_p, (test.nodeid, place)))
            else:
                refused[test.nodeid, place] = (
                    f"REGRESSED among the {among} comparisons of its own run, but there are {planned} in all, and its"
                    " p-value is not in the file: one of so many looks like that by chance"
                )
    family = Family(planned, min(upheld, planned))
    for p, where in sorted(open_claims):
        if family.upholds(p):
            family = family.with_claim()
        else:
            refused[where] = (
                f"REGRESSED by itself (p = {p:.2g} of {ALPHA:g}), but not among the {planned} comparisons of all"
                " shards: one of so many looks like that by chance"
            )
    return refused


def _among(shard: Shard) -> int:
    """How many comparisons the shard has reckoned with when it upheld its claims, at least."""
    own = _planned_of(shard)
    return own if shard.result.comparisons is None else shard.result.comparisons.among


def _counted(shard: Shard) -> int:
    return sum(_compared(test.record) for test in shard.tests.values())


def _not_made(shard: Shard) -> int:
    """How many comparisons were planned and are in no test's result."""
    planned = 0 if shard.result.comparisons is None else shard.result.comparisons.planned
    return max(0, planned - _counted(shard))


def _compared(test: TestRecord) -> int:
    settled = {run.label: run.label if run.settles is None else run.settles for run in test.runs}
    found = {(settled[verdict.run], verdict.metric) for verdict in test.verdicts if verdict.reference_kind in PLANNED}
    if test.verdicts or test.outcome in {"passed", "skipped"}:
        return len(found)
    return USUAL
