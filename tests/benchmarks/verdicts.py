"""Recorded rounds through the paired verdict and through other tools' rules: how often each is wrong, and how fast.

    python tests/benchmarks/verdicts.py tests/benchmarks/recorded_rounds/*.jsonl
    python tests/benchmarks/verdicts.py tests/benchmarks/recorded_rounds/*.jsonl --metric p99

From rounds of one build, comparisons are drawn at random: which rounds, in which order, and which of the two servers
is the base. A slowdown is put in by adding to the candidate's log costs. The paired verdict knows nothing but its
default prior. The other rules have a fixed number of rounds, and get the windows in two ways: *apart*, as these tools
are used, the base's from one stretch of time and the candidate's from another; and *side by side*, both from the same
rounds, as the paired verdict does it. Rounds that say that their candidate was slower are not slowed any more.

Starting and warming up both servers of a round is charged as 20 windows. p99 of an arm in a block is the geometric
mean of its windows' p99, since the files hold no histograms.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

import numpy as np
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[2]))

from pytest_gpuserve.gate.metric import Growth, Metric, metric_by_option
from pytest_gpuserve.gate.paired import RoundPoint, default_prior, paired_verdict
from pytest_gpuserve.gate.sequential import BLOCKS, LOOKS, first_look, levels
from pytest_gpuserve.gate.verdict import Verdict
from tests.benchmarks.recorded import COLUMNS, RecordedBlock, RecordedRound, Unreadable, read_rounds
from tests.benchmarks.rows import rich_table
from tests.benchmarks.verdict_rules import rules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rich.table import Table

    from tests.benchmarks.verdict_rules import Rule

SLOWDOWNS: Final = (0.0, 0.02, 0.03, 0.05, 0.10)
MOST_ROUNDS: Final = LOOKS[-1][0]
START_WINDOWS: Final = 20
"""What starting and warming up both servers of a round costs, in windows."""

WIDTH: Final = 200
"""Columns of a table whose lines are not folded, so that it can be pasted as Markdown."""

BAD_INPUT: Final = 2


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
        rounds: How many rounds the rules with a fixed number have.
        repetitions: How many comparisons are drawn for each number.
        seed: Of the draws.
    """

    metric: Metric
    growth: Growth
    same: Sequence[RecordedRound]
    slowed: dict[float, list[RecordedRound]]
    rounds: int
    repetitions: int
    seed: int

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
            verdict, _, _ = paired_verdict(self.metric, known, prior, most_growth=self.growth, level=levels()[look])
            if verdict is not Verdict.INCONCLUSIVE:
                break
        return verdict, windows

    def _fixed(self, name: str, rule: Rule, servers: str, draw: Callable[..., list[RecordedRound]]) -> Row:
        draws = self._drawn(draw, self.same)
        alarms = {slower: self._alarms(rule, draws, math.log1p(slower)) for slower in self.slowdowns}
        recorded = {slower: self._alarms(rule, self._drawn(draw, pool), 0.0) for slower, pool in self.slowed.items()}
        windows = median(self.rounds * START_WINDOWS + sum(round_.windows for round_ in rounds) for rounds in draws)
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
        random = np.random.default_rng(self.seed)
        drawn = [draw(random, pool) for _ in range(self.repetitions)]
        if pool is not self.same:
            return drawn
        return [[r.swapped() for r in rounds] if random.random() < 0.5 else rounds for rounds in drawn]

    def _side_by_side(self, random: np.random.Generator, pool: Sequence[RecordedRound]) -> list[RecordedRound]:
        return _some(random, pool, count=self.rounds)

    def _apart(self, random: np.random.Generator, pool: Sequence[RecordedRound]) -> list[RecordedRound]:
        """The base of rounds in a row, with the candidate of other rounds in a row."""
        if pool is self.same:
            # Two stretches that do not overlap; who is the base is drawn later.
            first, second = sorted(random.integers(0, len(pool) - 2 * self.rounds + 1, 2).tolist())
            second += self.rounds
        else:
            first, second = (int(random.integers(0, len(each) - self.rounds + 1)) for each in (self.same, pool))
        return [
            RecordedRound(
                tuple(
                    RecordedBlock(old.base, new.candidate)
                    for old, new in zip(base.blocks, candidate.blocks, strict=False)
                )
            )
            for base, candidate in zip(
                self.same[first : first + self.rounds], pool[second : second + self.rounds], strict=True
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


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 2 for input that cannot be used."""
    parser = argparse.ArgumentParser(
        prog="verdicts.py", description="Recorded rounds through the paired verdict and through other tools' rules."
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="recorded rounds, JSON lines")
    parser.add_argument("--metric", choices=COLUMNS, default="throughput")
    parser.add_argument(
        "--growth",
        type=_fraction,
        help="largest growth of the cost, as a fraction; as much as the metric's default tolerance if left out",
    )
    parser.add_argument("--rounds", type=_count, default=4, help="rounds of the other rules (default 4, at least 2)")
    parser.add_argument("--repetitions", type=_count, default=2_000, help="comparisons a number (default 2000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    arguments = parser.parse_args(argv)
    metric = metric_by_option(arguments.metric)
    try:
        rounds = [round_ for path in arguments.files for round_ in read_rounds(path, metric)]
        bench = _bench(arguments, metric, rounds)
    except Unreadable as error:
        sys.stderr.write(f"verdicts.py: {error}\n")
        return BAD_INPUT
    rows = bench.rows()
    if arguments.json:
        numbers = {
            "metric": metric.name,
            "growth": bench.growth,
            "rounds": len(bench.same),
            "rounds_slowed": {slower: len(pool) for slower, pool in bench.slowed.items()},
            "repetitions": bench.repetitions,
            "rows": [asdict(row) for row in rows],
        }
        sys.stdout.write(json.dumps(numbers, indent=1) + "\n")
        return 0
    console = Console(width=WIDTH)
    console.print(table(bench, rows))
    passes = rows[0].passes
    console.print(
        f"The paired verdict passes {passes[0.0]:.3f} of identical builds and {passes[bench.growth]:.3f} of those"
        f" that are slower by as much as is accepted; what neither passes nor is called slower is INCONCLUSIVE."
    )
    return 0


def _bench(arguments: argparse.Namespace, metric: Metric, rounds: Sequence[RecordedRound]) -> Bench:
    same = [round_ for round_ in rounds if round_.slower == 0]
    slowed: dict[float, list[RecordedRound]] = {}
    for round_ in rounds:
        if round_.slower:
            slowed.setdefault(round_.slower, []).append(round_)
    needed = max(MOST_ROUNDS, 2 * arguments.rounds)
    if len(same) < needed:
        raise Unreadable(f"{len(same)} rounds of one build in the files, and {needed} are needed")
    for slower, pool in slowed.items():
        needed = max(MOST_ROUNDS, arguments.rounds)
        if len(pool) < needed:
            raise Unreadable(f"{len(pool)} rounds slower by {slower:g} in the files, and {needed} are needed")
    growth = Growth(metric.default_tolerance if arguments.growth is None else arguments.growth)
    return Bench(metric, growth, same, slowed, arguments.rounds, arguments.repetitions, arguments.seed)


def _fraction(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"must be a fraction above 0, such as 0.05, not {text}")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 2:
        raise argparse.ArgumentTypeError(f"must be 2 or more, not {text}")
    return value


if __name__ == "__main__":
    sys.exit(main())
