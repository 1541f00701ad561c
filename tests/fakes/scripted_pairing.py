"""A pairing by which rounds are not measured but made up: seeded, at once, with a change that is known.

It stands for `experiment.pairing.Pairing` where a test is about what is made of rounds. As there, a round stays open
until it is full, and whoever begins anew with the rounds of an earlier one cannot go on with its last.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import cast

from pytest_gpuserve.compare.side_by_side import SideBySide
from pytest_gpuserve.experiment.pairing import Pairing
from pytest_gpuserve.measure.rounds import ABBA, ARMS, BAAB, Arm, Round
from pytest_gpuserve.measure.window import Start, Window
from pytest_gpuserve.store.kept import KeptFolder, KeptMetric, KeptRounds, Memory, Pair, Subject
from pytest_gpuserve.verdict.evidence import BLOCKS, Prior, default_prior
from tests.support.builders import AT, because, window_at


@dataclass(frozen=True)
class Build:
    """Differences between two servers and their noise, on the scale of log cost.

    Args:
        change: Cost of the candidate minus that of the base; positive is worse.
        start_sd: Standard deviation between two starts of one build.
        window_sd: Standard deviation between two windows of one start.
        requests: Answers in a window.
        drift: Growth of the candidate's cost from block to block.
    """

    change: float = 0.0
    start_sd: float = 0.004
    window_sd: float = 0.004
    requests: int = 1000
    drift: float = 0.0


@dataclass
class ScriptedPairing:
    """A `Pairing` whose rounds are made up.

    Args:
        build: Differences and noise of the servers.
        seed: Seed of the noise; rounds of one seed are the same ones in every comparison.
        rounds: Rounds that were measured before; grows.
        one_at_a_time: Whether only one server runs at a time.
        problems: Reasons against any conclusion, in words, by the number of the round, from 0.
        failures: Exceptions in place of rounds, by their numbers.
        start_in_blocks: See `Pairing`; by default so dear that every round is whole.
        starts_together: See `Pairing`.
        measured: Number of calls of `measure`.
        closed: Number of calls of `close`.
    """

    build: Build = field(default_factory=Build)
    seed: int = 0
    rounds: list[Round] = field(default_factory=list)
    one_at_a_time: bool = False
    problems: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    failures: Mapping[int, Exception] = field(default_factory=dict)
    start_in_blocks: float = math.inf
    starts_together: bool = True
    measured: int = 0
    closed: int = 0
    _is_open: bool = False

    @property
    def blocks_of_open_round(self) -> int:
        """See `Pairing`."""
        return self.rounds[-1].blocks if self._is_open else 0

    def measure(self, blocks: int) -> None:
        """See `Pairing`."""
        self.measured += 1
        number = len(self.rounds) - self._is_open
        if number in self.failures:
            raise self.failures[number]
        if self._is_open:
            self.rounds.pop()
        self.rounds.append(self._round(number, 1 if self.one_at_a_time else blocks))
        self._is_open = not self.one_at_a_time and blocks < BLOCKS

    def on_late_trouble(self) -> None:
        """Do nothing; its listener replaces it."""

    def close(self) -> None:
        """See `Pairing`."""
        self.closed += 1
        self._is_open = False

    def _round(self, number: int, blocks: int) -> Round:
        random = Random(f"{self.seed} {number}")
        starts = {"base": 0.0, "candidate": self.build.change + random.gauss(0.0, self.build.start_sd * math.sqrt(2))}
        measured: dict[Arm, list[Window]] = {arm: [] for arm in ARMS}
        for block in range(blocks):
            order = random.choice((ABBA, BAAB))
            drift = {"base": 0.0, "candidate": block * self.build.drift}
            costs = [starts[arm] + drift[arm] + random.gauss(0.0, self.build.window_sd) for arm in order]
            for arm, cost in zip(order, costs, strict=True):
                measured[arm].append(window_at(cost, requests=self.build.requests))
        return Round(
            {
                arm: tuple(
                    Start(tuple(served), 1.5, answers=blocks, answers_checked=blocks)
                    for served in ([[window] for window in windows] if self.one_at_a_time else [windows])
                )
                for arm, windows in measured.items()
            },
            AT,
            one_at_a_time=self.one_at_a_time,
            problems=because(*self.problems.get(number, ())),
        )


class KeptInMemory(KeptFolder):
    """A folder that is gone with the test: counting takes too many saves for a disk.

    Attributes:
        kept: Saved rounds, by the test's id.
    """

    def __init__(self) -> None:
        super().__init__(Path("nowhere"), _fail)
        self.kept: dict[str, KeptRounds] = {}

    def load(self, pair: Pair) -> KeptRounds | None:
        """See `KeptFolder`."""
        return self.kept.get(pair.subject.nodeid)

    def save(self, pair: Pair, rounds: Sequence[Round], metrics: Mapping[str, KeptMetric]) -> None:
        """See `KeptFolder`."""
        self.kept[pair.subject.nodeid] = KeptRounds(pair, AT, dict(metrics), tuple(rounds))


def a_comparison(
    pairing: ScriptedPairing | None = None,
    *,
    history: KeptFolder | None = None,
    prior: Prior | None = None,
    name: str = "test_x.py::test_a",
) -> SideBySide:
    """A comparison by a scripted pairing, which goes on with a history's rounds of the pair of that name.

    Args:
        pairing: Takes the rounds; its own are replaced by those of the history.
        history: Place of remembered rounds; None for nowhere.
        prior: Prior of every metric; None for the default one.
        name: Name of the test.
    """
    pairing = pairing or ScriptedPairing()
    pair = Pair(Subject(name, "", "host-a", "cpu", {}), base="b" * 40, candidate="c" * 64, software={})
    memory = Memory(history, pair)
    pairing.rounds = list(memory.rounds)
    return SideBySide(
        pairing=cast("Pairing", pairing),
        kind="against",
        name="the base",
        memory=memory,
        prior_of=lambda metric: prior or default_prior(metric),
        most_foreign_cores=0.25,
    )


def _fail(line: str) -> None:
    raise AssertionError(line)
