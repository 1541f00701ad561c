"""Several results as one: what counts of them, as a result file and as what reports are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.gate.metric import METRICS
from pytest_gpuserve.gate.verdict import Judgement
from pytest_gpuserve.merge.claims import claims_that_do_not_stand, planned_of_all
from pytest_gpuserve.merge.joining import MODES, NOT_TOLD, PASSING, Joined, join, remarks
from pytest_gpuserve.merge.shard import MERGED, SCHEMA, TESTS, held_back, read_tests
from pytest_gpuserve.report.names import printable
from pytest_gpuserve.report.next_step import next_step
from pytest_gpuserve.report.remarks import bases_lines, problem_lines, reason_lines
from pytest_gpuserve.report.result_json import SCHEMA as RESULT_SCHEMA
from pytest_gpuserve.report.results import RunResult, SessionResult, TestResult
from pytest_gpuserve.report.terminal import table
from pytest_gpuserve.report.totals import totals_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pytest_gpuserve.merge.shard import Head, Plain, Shard, ShownRun, ShownTest, ShownVerdict


def merged_text(
    result: SessionResult,
    written: Sequence[str],
    *,
    width: int,
    color: bool,
    shown: Callable[[str], str] = str,
) -> str:
    """Write what came of it.

    Args:
        result: All results as one.
        written: Where it was written to, a line each.
        width: Columns of the terminal.
        color: Whether it understands colours.
        shown: Makes each text in it fit to be shown, before it is laid out.
    """
    tests = [test for test in result.tests if any(run.judgements for run in test.runs)]
    drawn = table(tests, width=width, color=color, shown=shown)
    lines = (
        *bases_lines(tests),
        *reason_lines(tests),
        *problem_lines(result.tests, shown),
        *result.notes,
        *result.places,
        *written,
        totals_line(result),
        *next_step(result).splitlines(),
    )
    told = [printable(shown(line)) for line in lines if line]
    # The table has colours, and what it takes in is made printable by itself.
    return "\n".join([printable(shown(f"gpuserve: {result.header}")), *(["", drawn, ""] if drawn else []), *told])


_UPDATES: Final = {"update": "--baseline-update", "update-new": "--baseline-update-new"}


@dataclass(frozen=True)
class Merged:
    """Several results as one.

    Args:
        joined: What it is made of.
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
        said = (note for shard in self.joined.shards for note in shard.head.notes)
        told = (f"{self._name(place)} is no pass: {problem}" for place, problem in self.joined.problems.items())
        return tuple(dict.fromkeys((*said, *told, *remarks(self.joined.shards))))

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
        return tuple(f"{self._name(place)}: {_told(shard)}" for place, shard in enumerate(self.joined.shards))

    def result(self) -> SessionResult:
        """All of it, for reports. What was measured in detail is in the shards' own.

        A run that did not end as its tests say is in it as an error, so that no report takes it for a pass.
        """
        shards, busy, first = self.joined.shards, self._busy, self._first
        results = {f"result {number}": _told(shard) for number, shard in self._numbered()}
        return SessionResult(
            gpu={**_common(shard.head.gpu for shard in busy), "results": results},
            host=_common(shard.head.host for shard in busy),
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
            software=_common(shard.head.software for shard in busy),
            stored=first.mode != "against" if first.mode is not None else self._asks_baselines,
            update=_UPDATES.get(first.mode or "", ""),
            against=first.against or "",
        )

    def plain(self) -> Plain:
        """All of it as a result file."""
        shards, busy, first = self.joined.shards, self._busy, self._first
        return {
            SCHEMA: RESULT_SCHEMA,
            "at": self._at or None,
            "commit": first.commit,
            "clean": None if first.commit is None else self._clean,
            "software": _common(shard.head.software for shard in busy),
            # Where they differ nothing is said of them all: a host's id is missing then, so that nobody takes what
            # several have measured for the sample of one.
            "gpu": _common(shard.head.gpu for shard in busy),
            "host": _common(shard.head.host for shard in busy),
            "mode": first.mode,
            "against": first.against,
            "header": self.header,
            "comparisons": {"planned": self.planned, "among": self.planned},
            "notes": list(self.notes),
            TESTS: list(self.plain_tests),
            MERGED: len(shards),
        }

    @property
    def _busy(self) -> tuple[Shard, ...]:
        """The shards that could measure, of which there is one at least."""
        return tuple(shard for shard in self.joined.shards if not shard.is_idle)

    @property
    def _first(self) -> Head:
        """Where all of them agree, the word of the first."""
        return self._busy[0].head

    @property
    def _at(self) -> str:
        return min((shard.head.at for shard in self.joined.shards if shard.head.at), default="")

    @property
    def _clean(self) -> bool:
        return all(shard.head.clean for shard in self.joined.shards)

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
        expected: As for `join`.

    Raises:
        UsageProblem: They cannot be merged.
    """
    joined = join(shards, expected=expected)
    refused = claims_that_do_not_stand(joined)
    plain_tests, tests = [], []
    for measured in joined.tests:
        shown, plain = measured.test.shown, measured.test.plain
        name = joined.shards[measured.shard].name
        reasons = {place: refused.get((shown.nodeid, place)) for place in range(len(shown.verdicts))}
        if any(reasons.values()):
            verdicts = [
                held_back(verdict, reason) if (reason := reasons[place]) else verdict
                for place, verdict in enumerate(plain["verdicts"])
            ]
            plain = {**plain, "verdicts": verdicts}
            shown = read_tests(name, plain)
        plain_tests.append(plain)
        tests.append(_result(name, shown))
    return Merged(joined, planned_of_all(joined), tuple(plain_tests), tuple(tests))


def _result(name: str, test: ShownTest) -> TestResult:
    runs = [_run(name, test, run) for run in test.runs]
    return TestResult(test.nodeid, test.outcome, runs, test.problem)


def _run(name: str, test: ShownTest, run: ShownRun) -> RunResult:
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


def _judgement(name: str, test: ShownTest, verdict: ShownVerdict) -> Judgement:
    metric = METRICS.get(verdict.metric)
    if metric is None:
        raise UsageProblem(
            f"{name} cannot be used: {test.nodeid} has a verdict of a metric that this version does not know",
            found=verdict.metric,
            remedies=["upgrade with `pip install --upgrade pytest-gpuserve`"],
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
            reasons=verdict.as_reasons,
            overruled=verdict.overruled,
            windows=verdict.windows,
            asserted=verdict.asserted,
        )
    except ValueError as problem:
        raise UsageProblem(
            f"{name} cannot be used: {test.nodeid} has a verdict that none can be", found=str(problem)
        ) from None


def _told(shard: Shard) -> str:
    """On what, where and when it was measured, and how much."""
    head = shard.head
    place = head.gpu.get("pci_bus_id")
    number = "" if head.shard is None else f"group {head.shard.number} of {head.shard.of}, "
    if shard.is_idle:
        return f"{number}no test that measures, began {head.at or NOT_TOLD}"
    count = len(shard.tests)
    return (
        f"{number}{head.gpu['name']}{f' at {place}' if place else ''} on host {head.host.get('id') or NOT_TOLD},"
        f" {count} test{'s' if count != 1 else ''}, began {head.at or NOT_TOLD}"
    )


def _common(all_facts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The facts that all have, and alike."""
    first, *rest = all_facts
    return {
        name: value for name, value in first.items() if all(name in facts and facts[name] == value for facts in rest)
    }
