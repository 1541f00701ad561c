"""Recorded rounds through the paired verdict and through other tools' rules: how often each is wrong, and how fast.

    python -m tests.benchmarks.verdicts tests/benchmarks/recorded_rounds/*.jsonl
    python -m tests.benchmarks.verdicts tests/benchmarks/recorded_rounds/*.jsonl --metric p99

From rounds of one build, comparisons are drawn at random: which rounds, in which order, and which of the two servers
is the base. A slowdown is put in by adding to the candidate's log costs. The paired verdict knows nothing but its
default prior. The other rules have a fixed number of rounds, and get the windows in two ways: *apart*, as these tools
are used, the base's from one stretch of time and the candidate's from another; and *side by side*, both from the same
rounds, as the paired verdict does it. Rounds that say that their candidate was slower are not slowed any more.

Starting and warming up both servers of a round is charged as 20 windows. p99 of an arm in a block is the geometric
mean of its windows' p99, since the files hold no histograms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_gpuserve.verdict.metric import Growth, Metric, metric_by_option
from pytest_gpuserve.verdict.paired import RoundPoint, default_prior, paired_evidence
from pytest_gpuserve.verdict.sequential import BLOCKS, LEVELS, LOOKS, first_look
from pytest_gpuserve.verdict.verdict import Verdict
from tests.benchmarks.recorded import COLUMNS, RecordedBlock, RecordedRound, read_rounds
from tests.benchmarks.rows import parser_of, rich_table, show
from tests.benchmarks.verdict_rules import rules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rich.table import Table

    from tests.benchmarks.verdict_rules import Rule

SLOWDOWNS: Final = (0.0, 0.02, 0.03, 0.05, 0.10)
MOST_ROUNDS: Final = LOOKS[-1][0]
START_WINDOWS: Final = 20
"""What starting and warming up both servers of a round costs, in windows."""

FIXED_ROUNDS: Final = 4
"""Of the rules with a fixed number."""

SEED: Final = 0


@dataclass(frozen=True)
class Row:
    """What became of one rule.

    Attributes:
        rule: Its name.
        servers: How the windows were measured.
        alarms: How often the candidate was called slower, by the slowdown that was put in; at 0 it is wrong.
        recorded_alarms: The same of candidates that were really slower, by how much.
        passes: How often the candidate passed, by the slowdown that was put in.
        windows: Time to a verdict, median, by the slowdown that was put in.
    """

    rule: str
    servers: str
    alarms: dict[float, float]
    recorded_alarms: dict[float, float]
    passes: dict[float, float]
    windows: dict[float, float]


@dataclass(frozen=True)
class Bench:
    """What is compared.

    Attributes:
        metric: What is judged.
        growth: Largest acceptable growth of the cost.
        same: Rounds of one build.
        slowed: Rounds whose candidate was really slower, by how much.
        repetitions: How many comparisons are drawn for each number.
    """

    metric: Metric
    growth: Growth
    same: Sequence[RecordedRound]
    slowed: dict[float, list[RecordedRound]]
    repetitions: int

    @classmethod
    def of(cls, files: Iterable[Path], metric: Metric, repetitions: int) -> Bench:
        """The bench of what some files hold, at the metric's default tolerance."""
        same: list[RecordedRound] = []
        slowed: dict[float, list[RecordedRound]] = {}
        for round_ in (round_ for path in files for round_ in read_rounds(path, metric)):
            (slowed.setdefault(round_.slower, []) if round_.slower else same).append(round_)
        assert len(same) >= max(MOST_ROUNDS, 2 * FIXED_ROUNDS), "too few rounds of one build"
        assert all(len(pool) >= MOST_ROUNDS for pool in slowed.values()), "too few rounds of a slowed build"
        return cls(metric, Growth(metric.default_tolerance), same, slowed, repetitions)

    @property
    def slowdowns(self) -> list[float]:
        """What is put in; the largest acceptable growth too."""
        return sorted({*SLOWDOWNS, self.growth})

    def rows(self) -> list[Row]:
        """Every rule's."""
        rows = [self._paired()]
        for servers, draw in (("side by side", self._side_by_side), ("apart", self._apart)):
            rows += [self._fixed(name, rule, servers, draw) for name, rule in rules(self.growth).items()]
        return rows

    def _paired(self) -> Row:
        draws = self._drawn(partial(_some, count=MOST_ROUNDS), self.same)
        ends = {slower: [self._verdict(rounds, math.log1p(slower)) for rounds in draws] for slower in self.slowdowns}
        recorded = {
            slower: [self._verdict(rounds, 0.0) for rounds in self._drawn(partial(_some, count=MOST_ROUNDS), pool)]
            for slower, pool in self.slowed.items()
        }
        return Row(
            "pytest-gpuserve, paired",
            "side by side",
            {slower: _share(verdict is Verdict.REGRESSED for verdict, _ in of) for slower, of in ends.items()},
            {slower: _share(verdict is Verdict.REGRESSED for verdict, _ in of) for slower, of in recorded.items()},
            {slower: _share(verdict.passes for verdict, _ in of) for slower, of in ends.items()},
            {slower: median(windows for _, windows in of) for slower, of in ends.items()},
        )

    def _verdict(self, rounds: Sequence[RecordedRound], log_cost: float) -> tuple[Verdict, int]:
        """Look until it is decided: the verdict, and the windows that it took."""
        prior = default_prior(self.metric)
        points = [_point(round_, len(round_.blocks), log_cost) for round_ in rounds]
        verdict, windows = Verdict.INCONCLUSIVE, 0
        for look in range(first_look(self.metric), len(LOOKS)):
            begun, blocks = LOOKS[look]
            known = points[:begun]
            last = rounds[begun - 1]
            windows = begun * START_WINDOWS + sum(round_.windows for round_ in rounds[:begun])
            if blocks < BLOCKS:
                if len(last.blocks) <= blocks:
                    continue
                known = [*points[: begun - 1], _point(last, blocks, log_cost)]
                windows -= sum(len(block.base) + len(block.candidate) for block in last.blocks[blocks:])
            verdict = paired_evidence(self.metric, known, prior, most_growth=self.growth, levels=LEVELS[look]).verdict
            if verdict is not Verdict.INCONCLUSIVE:
                break
        return verdict, windows

    def _fixed(self, name: str, rule: Rule, servers: str, draw: Callable[..., list[RecordedRound]]) -> Row:
        draws = self._drawn(draw, self.same)
        alarms = {slower: self._alarms(rule, draws, math.log1p(slower)) for slower in self.slowdowns}
        recorded = {slower: self._alarms(rule, self._drawn(draw, pool), 0.0) for slower, pool in self.slowed.items()}
        windows = median(FIXED_ROUNDS * START_WINDOWS + sum(round_.windows for round_ in rounds) for rounds in draws)
        return Row(
            name,
            servers,
            alarms,
            recorded,
            {slower: 1 - rate for slower, rate in alarms.items()},
            dict.fromkeys(self.slowdowns, windows),
        )

    def _alarms(self, rule: Rule, draws: Sequence[Sequence[RecordedRound]], log_cost: float) -> float:
        return _share(
            rule(
                np.array([cost for round_ in rounds for cost in round_.base]),
                np.array([cost for round_ in rounds for cost in round_.candidate]) + log_cost,
            )
            for rounds in draws
        )

    def _drawn(
        self,
        draw: Callable[[np.random.Generator, Sequence[RecordedRound]], list[RecordedRound]],
        pool: Sequence[RecordedRound],
    ) -> list[list[RecordedRound]]:
        """Comparisons from a pool; identical builds with base and candidate exchanged at random."""
        random = np.random.default_rng(SEED)
        drawn = [draw(random, pool) for _ in range(self.repetitions)]
        if pool is not self.same:
            return drawn
        return [[r.swapped() for r in rounds] if random.random() < 0.5 else rounds for rounds in drawn]

    def _side_by_side(self, random: np.random.Generator, pool: Sequence[RecordedRound]) -> list[RecordedRound]:
        return _some(random, pool, count=FIXED_ROUNDS)

    def _apart(self, random: np.random.Generator, pool: Sequence[RecordedRound]) -> list[RecordedRound]:
        """The base of rounds in a row, with the candidate of other rounds in a row."""
        if pool is self.same:
            # Two stretches that do not overlap; who is the base is drawn later.
            first, second = sorted(random.integers(0, len(pool) - 2 * FIXED_ROUNDS + 1, 2).tolist())
            second += FIXED_ROUNDS
        else:
            first, second = (int(random.integers(0, len(each) - FIXED_ROUNDS + 1)) for each in (self.same, pool))
        return [
            RecordedRound(
                tuple(
                    RecordedBlock(old.base, new.candidate)
                    for old, new in zip(base.blocks, candidate.blocks, strict=False)
                )
            )
            for base, candidate in zip(
                self.same[first : first + FIXED_ROUNDS], pool[second : second + FIXED_ROUNDS], strict=True
            )
        ]


def _some(random: np.random.Generator, pool: Sequence[RecordedRound], *, count: int) -> list[RecordedRound]:
    """Different rounds in a random order."""
    return [pool[int(place)] for place in random.permutation(len(pool))[:count]]


def _point(round_: RecordedRound, blocks: int, log_cost: float) -> RoundPoint:
    return RoundPoint(tuple(block.difference + log_cost for block in round_.blocks[:blocks]))


def _share(flags: Iterable[bool]) -> float:
    counted = list(flags)
    return sum(counted) / len(counted)


def table(bench: Bench, rows: Sequence[Row]) -> Table:
    """The rows for people; it is Markdown too."""
    really = [f"really +{100 * slower:g} %" for slower in bench.slowed]
    sizes = [f"{len(pool)} ({name})" for name, pool in zip(really, bench.slowed.values(), strict=True)]
    title = (
        f"{bench.metric.name}, growth {100 * bench.growth:g} %; how often the candidate is called slower;"
        f" {bench.repetitions} comparisons each, from {', '.join([str(len(bench.same)), *sizes])} rounds"
    )
    header = ["rule", "servers run", "same build", *(f"+{100 * slower:g} %" for slower in bench.slowdowns[1:]), *really]
    header += ["windows, same build", f"at +{100 * bench.growth:g} %"]
    cells = [
        (
            row.rule,
            row.servers,
            *(f"{rate:.3f}" for rate in (*row.alarms.values(), *row.recorded_alarms.values())),
            f"{row.windows[0.0]:g}",
            f"{row.windows[bench.growth]:g}",
        )
        for row in rows
    ]
    return rich_table(header, cells, words=("rule", "servers run"), title=title)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = parser_of(__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="recorded rounds, JSON lines")
    parser.add_argument("--metric", choices=COLUMNS, default="throughput")
    parser.add_argument("--repetitions", type=int, default=2_000, help="comparisons a number (default 2000)")
    arguments = parser.parse_args(argv)
    bench = Bench.of(arguments.files, metric_by_option(arguments.metric), arguments.repetitions)
    rows = bench.rows()
    passes = rows[0].passes
    show(
        table(bench, rows),
        f"The paired verdict passes {passes[0.0]:.3f} of identical builds and {passes[bench.growth]:.3f} of those"
        " that are slower by as much as is accepted; what neither passes nor is called slower is INCONCLUSIVE.",
    )


if __name__ == "__main__":
    main()
