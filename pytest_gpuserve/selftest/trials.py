"""Comparisons whose truth is known, made as a test makes them, and counted."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpuserve.comparison.holm import HolmCorrection
from pytest_gpuserve.comparison.side_by_side import Memory, SideBySide
from pytest_gpuserve.errors import GpuserveError
from pytest_gpuserve.experiment.pairing import Pairing
from pytest_gpuserve.experiment.shape import Terms
from pytest_gpuserve.gate.metric import METRICS, requests_needed
from pytest_gpuserve.gate.priors import learn_prior
from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.store.sequence import SequenceKey, Subject

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.experiment.shape import LoadShape
    from pytest_gpuserve.experiment.watch import Progress
    from pytest_gpuserve.gate.verdict import Judgement
    from pytest_gpuserve.measure.rounds import Round
    from pytest_gpuserve.store.history import History


@dataclass(frozen=True)
class Trial:
    """One comparison whose truth is known.

    Args:
        name: Of its kind, such as ``5 % slower``.
        number: Among those of its kind.
        base: What is compared with.
        candidate: What is judged.
    """

    name: str
    number: int
    base: Target
    candidate: Target


@dataclass(frozen=True)
class Outcome:
    """What a trial came to.

    Args:
        trial: Which.
        verdict: The worst of its metrics', as it decides a test: INVALID, REGRESSED, INCONCLUSIVE, else PASS.
        judgements: Of each metric that was looked at; after one that fails a test goes no further.
        rounds: What was measured.
        seconds: From its begin to its verdict, starts of servers included.
        error: Why there is no verdict, where a server failed.
    """

    trial: Trial
    verdict: Verdict
    judgements: tuple[Judgement, ...]
    rounds: tuple[Round, ...]
    seconds: float
    error: str = ""

    @property
    def windows(self) -> int:
        """Measured windows of both servers together."""
        return sum(len(block.windows) for measured in self.rounds for block in measured.blocks)


@dataclass(frozen=True)
class Setting:
    """How all trials are made.

    Args:
        shape: The load.
        metrics: Names of what is gated, in the order in which a test asks.
        host: Names the machine, for what is remembered.
        history: Remembers trials, from which later ones learn how far starts lie apart.
        foreign_cores: Cores that others may take of the host.
        budget_seconds: Most measuring time of one trial.
    """

    shape: LoadShape
    metrics: Sequence[str]
    host: str
    history: History | None
    foreign_cores: float
    budget_seconds: float


def run_trial(trial: Trial, setting: Setting, progress: Progress, note: Callable[[str], None]) -> Outcome:
    """Compare until every metric is decided, or one fails, or the budget is spent.

    Raises:
        LoadFailed: The load engine failed.
    """
    metrics = [METRICS[name] for name in setting.metrics]
    subject = Subject("selftest", "", setting.host, "selftest", {"load": str(setting.shape.workload())})
    key = SequenceKey(subject, trial.name, f"{trial.name} {trial.number} {time.time_ns()}", {})
    memory = Memory(setting.history, key, note)
    past = memory.past()
    terms = Terms(
        shape=setting.shape,
        requests_wanted=max(requests_needed(metric, metric.default_tolerance) for metric in metrics),
        most_foreign_cores=setting.foreign_cores,
        by_turns=False,
        seed=f"{trial.name} {trial.number}",
    )
    pairing = Pairing(trial.base, trial.candidate, terms, progress)
    paired = SideBySide(
        pairing,
        kind="against",
        name=trial.name,
        comparison=(trial.name,),
        memory=memory,
        prior_of=lambda metric: learn_prior(metric, (), past.get(metric.name, ())),
        claims=HolmCorrection(len(metrics)),
        most_foreign_cores=setting.foreign_cores,
    )
    began = time.monotonic()
    judgements: list[Judgement] = []
    error = ""
    try:
        for metric in metrics:
            judgement = paired.judge(metric, metric.default_tolerance)
            while judgement.verdict is Verdict.INCONCLUSIVE and not paired.exhausted:
                if paired.rounds and paired.seconds + paired.next_seconds > setting.budget_seconds:
                    break
                paired.more()
                judgement = paired.judge(metric, metric.default_tolerance)
            judgements.append(judgement)
            if not judgement.verdict.passes:
                break
        verdict = judgements[-1].verdict
    except GpuserveError as problem:
        verdict, error = Verdict.INVALID, str(problem)
    finally:
        pairing.close()
    return Outcome(trial, verdict, tuple(judgements), tuple(pairing.rounds), time.monotonic() - began, error)
