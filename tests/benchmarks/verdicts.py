"""Recorded rounds through the paired verdict and through other tools' rules: how often each is wrong, and how fast.

    python -m tests.benchmarks.verdicts tests/benchmarks/recorded_rounds/*.jsonl
    python -m tests.benchmarks.verdicts tests/benchmarks/recorded_rounds/*.jsonl --metric p99

A line of a file is a round, as JSON. ``win`` lists its windows in the order of time, each as [block, arm, requests/s,
mean batch size, p50, p90, p95, p99, ...]; arm "A" is the base, "B" the candidate. ``slow`` is by how much the candidate
really was slower, as a fraction; without it, both are the same build.

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
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import NormalDist, fmean, median
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pytest_benchmark.utils import PercentageRegressionCheck

from pytest_gpuserve.verdict.evidence import (
    BLOCKS,
    LEVELS,
    LOOKS,
    RoundPoint,
    default_prior,
    first_look,
    paired_evidence,
)
from pytest_gpuserve.verdict.metric import Growth, Metric, log_cost, metric_by_option
from pytest_gpuserve.verdict.verdict import Verdict

Numbers: TypeAlias = NDArray[np.float64]
Rule: TypeAlias = Callable[[Numbers, Numbers], bool]
"""Whether a candidate is called slower, by log costs of the base's and of its windows in the order of time."""


COLUMNS: Final = ("throughput", "batching_ratio", "p50", "p90", "p95", "p99")
"""Metrics of a window, by their options."""

SLOWDOWNS: Final = (0.0, 0.02, 0.03, 0.05, 0.10)
MOST_ROUNDS: Final = LOOKS[-1][0]
START_WINDOWS: Final = 20
"""Cost of starting and warming up both servers of a round, in windows."""

FIXED_ROUNDS: Final = 4
"""Of the rules with a fixed number."""


@dataclass(frozen=True)
class RecordedRound:
    """One fresh start of both servers.

    Attributes:
        blocks: Log costs of the base's and of the candidate's windows, a pair for each block, in the order of time.
        slower: By how much the candidate really was slower, as a fraction.
    """

    blocks: tuple[tuple[list[float], list[float]], ...]
    slower: float = 0.0

    @property
    def windows(self) -> int:
        """Windows of both servers."""
        return sum(len(base) + len(candidate) for base, candidate in self.blocks)

    def arm(self, place: int) -> list[float]:
        """Log costs of one server's windows: 0 is the base, 1 the candidate."""
        return [cost for block in self.blocks for cost in block[place]]

    def swapped(self) -> RecordedRound:
        """The same with base and candidate exchanged."""
        return replace(self, blocks=tuple((candidate, base) for base, candidate in self.blocks))

    def point(self, blocks: int, log_cost_more: float = 0.0) -> RoundPoint:
        """The first blocks as they are judged; positive is worse."""
        compared = self.blocks[:blocks]
        return RoundPoint(tuple(fmean(candidate) - fmean(base) + log_cost_more for base, candidate in compared))


def read_rounds(path: Path, metric: Metric) -> list[RecordedRound]:
    """All rounds of a file, of one number of their windows."""
    rounds = []
    for line in path.read_text(encoding="utf-8").splitlines():
        read = json.loads(line)
        blocks: dict[int, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
        for block, arm, *values in read["win"]:
            blocks[block]["AB".index(arm)].append(log_cost(metric, values[COLUMNS.index(metric.option)]))
        rounds.append(RecordedRound(tuple(blocks.values()), read.get("slow", 0.0)))
    return rounds


# -- by which other tools call a build slower; none knows which windows share a server start


def mean_worse(base: Numbers, candidate: Numbers, *, growth: float) -> bool:
    """pytest-benchmark's ``--benchmark-compare-fail=mean:5%``, by its own code: the means' ratio and nothing else."""
    check = PercentageRegressionCheck("mean", 100 * growth)  # type: ignore[no-untyped-call]
    now, then = ({"mean": float(np.exp(costs).mean())} for costs in (candidate, base))
    return check.fails(now, then) is not None  # type: ignore[no-untyped-call]


def mann_whitney(base: Numbers, candidate: Numbers) -> bool:
    """The candidate's windows rank higher than the base's, one-sided at .05."""
    return mann_whitney_p(base, candidate) < 0.05


def asv(base: Numbers, candidate: Numbers, *, growth: float) -> bool:
    """asv's: the medians differ by more than a factor, and Mann-Whitney says so at p < .002, two-sided."""
    beyond = np.median(candidate) - np.median(base) > math.log1p(growth)
    return bool(beyond) and 2 * mann_whitney_p(base, candidate) < 0.002


def mann_whitney_p(base: Numbers, candidate: Numbers) -> float:
    """One-sided p-value that the candidate's values are no larger, by the normal approximation corrected for ties."""
    count, other = len(candidate), len(base)
    total = count + other
    _, place, ties = np.unique(np.concatenate([candidate, base]), return_inverse=True, return_counts=True)
    ranks = (np.cumsum(ties) - (ties - 1) / 2)[place]
    u = ranks[:count].sum() - count * (count + 1) / 2
    variance = count * other / 12 * (total + 1 - (ties**3 - ties).sum() / (total * (total - 1)))
    if variance <= 0:
        return 1.0
    return NormalDist().cdf(-(u - count * other / 2 - 0.5) / math.sqrt(variance))


@dataclass(frozen=True)
class Row:
    """Outcomes of one rule.

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
    """Compared measurements.

    Attributes:
        metric: The judged metric.
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
        pools: dict[float, list[RecordedRound]] = {0.0: []}
        for round_ in (round_ for path in files for round_ in read_rounds(path, metric)):
            pools.setdefault(round_.slower, []).append(round_)
        assert all(len(pool) >= max(MOST_ROUNDS, 2 * FIXED_ROUNDS) for pool in pools.values()), "too few rounds"
        return cls(metric, Growth(metric.default_tolerance), pools.pop(0.0), pools, repetitions)

    @property
    def slowdowns(self) -> list[float]:
        """The settings, with the largest acceptable growth."""
        return sorted({*SLOWDOWNS, self.growth})

    def rows(self) -> list[Row]:
        """Every rule's."""
        rules: dict[str, Rule] = {
            f"pytest-benchmark, mean:{100 * self.growth:g}%": partial(mean_worse, growth=self.growth),
            "Mann-Whitney, p < .05": mann_whitney,
            f"asv, factor {1 + self.growth:g}, p < .002": partial(asv, growth=self.growth),
        }
        rows = [self._paired()]
        for servers, draw in (("side by side", partial(_some, count=FIXED_ROUNDS)), ("apart", self._apart)):
            rows += [self._fixed(name, rule, servers, draw) for name, rule in rules.items()]
        return rows

    def _paired(self) -> Row:
        some = partial(_some, count=MOST_ROUNDS)
        draws = self._drawn(some, self.same)
        ends = {slower: [self._verdict(rounds, math.log1p(slower)) for rounds in draws] for slower in self.slowdowns}
        really = {
            slower: [self._verdict(rounds, 0.0) for rounds in self._drawn(some, pool)]
            for slower, pool in self.slowed.items()
        }
        return Row(
            "pytest-gpuserve, paired",
            "side by side",
            {slower: _share(verdict is Verdict.REGRESSED for verdict, _ in of) for slower, of in ends.items()},
            {slower: _share(verdict is Verdict.REGRESSED for verdict, _ in of) for slower, of in really.items()},
            {slower: _share(verdict.passes for verdict, _ in of) for slower, of in ends.items()},
            {slower: median(windows for _, windows in of) for slower, of in ends.items()},
        )

    def _verdict(self, rounds: Sequence[RecordedRound], more: float) -> tuple[Verdict, int]:
        """Look until it is decided: the verdict, and the windows that it took."""
        prior = default_prior(self.metric)
        points = [round_.point(BLOCKS, more) for round_ in rounds]
        verdict, windows = Verdict.INCONCLUSIVE, 0
        for look in range(first_look(self.metric), len(LOOKS)):
            begun, blocks = LOOKS[look]
            last = rounds[begun - 1]
            if blocks < BLOCKS and len(last.blocks) <= blocks:
                continue
            left = last.blocks[blocks:]
            windows = begun * START_WINDOWS + sum(round_.windows for round_ in rounds[:begun])
            windows -= sum(len(base) + len(candidate) for base, candidate in left)
            known = [*points[: begun - 1], last.point(blocks, more)]
            verdict = paired_evidence(self.metric, known, prior, most_growth=self.growth, levels=LEVELS[look]).verdict
            if verdict is not Verdict.INCONCLUSIVE:
                break
        return verdict, windows

    def _fixed(self, name: str, rule: Rule, servers: str, draw: Callable[..., list[RecordedRound]]) -> Row:
        draws = self._drawn(draw, self.same)
        alarms = {slower: _alarms(rule, draws, math.log1p(slower)) for slower in self.slowdowns}
        really = {slower: _alarms(rule, self._drawn(draw, pool), 0.0) for slower, pool in self.slowed.items()}
        windows = median(FIXED_ROUNDS * START_WINDOWS + sum(round_.windows for round_ in rounds) for rounds in draws)
        passes = {slower: 1 - rate for slower, rate in alarms.items()}
        return Row(name, servers, alarms, really, passes, dict.fromkeys(self.slowdowns, windows))

    def _drawn(
        self,
        draw: Callable[[np.random.Generator, Sequence[RecordedRound]], list[RecordedRound]],
        pool: Sequence[RecordedRound],
    ) -> list[list[RecordedRound]]:
        """Comparisons from a pool; identical builds with base and candidate exchanged at random."""
        random = np.random.default_rng(0)
        drawn = [draw(random, pool) for _ in range(self.repetitions)]
        if pool is not self.same:
            return drawn
        return [[r.swapped() for r in rounds] if random.random() < 0.5 else rounds for rounds in drawn]

    def _apart(self, random: np.random.Generator, pool: Sequence[RecordedRound]) -> list[RecordedRound]:
        """The base of rounds in a row, with the candidate of other rounds in a row."""
        if pool is self.same:
            # Two stretches that do not overlap; who is the base is drawn later.
            first, second = sorted(random.integers(0, len(pool) - 2 * FIXED_ROUNDS + 1, 2).tolist())
            second += FIXED_ROUNDS
        else:
            first, second = (int(random.integers(0, len(each) - FIXED_ROUNDS + 1)) for each in (self.same, pool))
        bases, candidates = self.same[first : first + FIXED_ROUNDS], pool[second : second + FIXED_ROUNDS]
        return [
            RecordedRound(
                tuple((old[0], new[1]) for old, new in zip(base.blocks, candidate.blocks, strict=False)),
            )
            for base, candidate in zip(bases, candidates, strict=True)
        ]


def _some(random: np.random.Generator, pool: Sequence[RecordedRound], *, count: int) -> list[RecordedRound]:
    """Different rounds in a random order."""
    return [pool[int(place)] for place in random.permutation(len(pool))[:count]]


def _alarms(rule: Rule, draws: Sequence[Sequence[RecordedRound]], more: float) -> float:
    arms = (
        [np.array([cost for round_ in rounds for cost in round_.arm(place)]) for place in (0, 1)] for rounds in draws
    )
    return _share(rule(base, candidate + more) for base, candidate in arms)


def _share(flags: Iterable[bool]) -> float:
    counted = list(flags)
    return sum(counted) / len(counted)


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table to be pasted."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Print how often the candidate is called slower; what neither passes nor is called slower is INCONCLUSIVE."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="recorded rounds, JSON lines")
    parser.add_argument("--metric", choices=COLUMNS, default="throughput")
    parser.add_argument("--repetitions", type=int, default=2_000, help="comparisons a number (default 2000)")
    arguments = parser.parse_args(argv)
    bench = Bench.of(arguments.files, metric_by_option(arguments.metric), arguments.repetitions)
    rows = bench.rows()
    put_in = [f"+{100 * slower:g} %" for slower in bench.slowdowns[1:]]
    really = [f"really +{100 * slower:g} %" for slower in bench.slowed]
    windows = ["windows, same build", f"at +{100 * bench.growth:g} %"]
    cells = [
        (
            *(row.rule, row.servers),
            *(f"{rate:.3f}" for rate in (*row.alarms.values(), *row.recorded_alarms.values())),
            *(f"{row.windows[slower]:g}" for slower in (0.0, bench.growth)),
        )
        for row in rows
    ]
    passes = rows[0].passes
    print(f"{bench.metric.name}, growth {100 * bench.growth:g} %")  # noqa: T201 -- a program
    print(markdown(["rule", "servers run", "same build", *put_in, *really, *windows], cells))  # noqa: T201 -- a program
    print(f"paired, passes: {passes[0.0]:.3f} when identical, {passes[bench.growth]:.3f} at the edge")  # noqa: T201


if __name__ == "__main__":
    main()
