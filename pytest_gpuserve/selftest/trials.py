"""Comparisons whose truth is known: which builds are compared, and each made as a test makes it, within a time."""

from __future__ import annotations

import random
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.comparison.holm import HolmCorrection
from pytest_gpuserve.comparison.side_by_side import Memory, SideBySide
from pytest_gpuserve.errors import GpuserveError, NotInRevision, ServerFailed
from pytest_gpuserve.experiment.handle import ServerHandle
from pytest_gpuserve.experiment.pairing import Pairing
from pytest_gpuserve.experiment.shape import LoadShape, Terms
from pytest_gpuserve.gate.metric import METRICS, requests_needed
from pytest_gpuserve.gate.paired import learn_prior
from pytest_gpuserve.gate.reason import ReasonKind
from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.load.schedule import Closed
from pytest_gpuserve.measure.counters import Counters, StageTime
from pytest_gpuserve.process.command_line import module_command
from pytest_gpuserve.selftest.server import INFER, METRICS_PATH, PREFIX, Options
from pytest_gpuserve.servers.base import Launch, TellsNothing
from pytest_gpuserve.servers.metric_names import scrape
from pytest_gpuserve.store.sequence import SequenceKey, Subject

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import NoReturn

    from pytest_gpuserve.builds.relocation import Relocation
    from pytest_gpuserve.experiment.handle import Starter, Target
    from pytest_gpuserve.experiment.watch import Progress
    from pytest_gpuserve.gate.verdict import Judgement
    from pytest_gpuserve.measure.rounds import Round
    from pytest_gpuserve.servers.base import Site, Transport
    from pytest_gpuserve.servers.metric_names import MetricSample
    from pytest_gpuserve.store.history import History


@dataclass(frozen=True)
class BuiltIn(TellsNothing):
    """The server of ``selftest/server.py`` with these options."""

    options: Options
    name: str = field(default="self-test", init=False)
    ports: tuple[str, ...] = field(default=("http",), init=False)
    transport: Transport = field(default="http", init=False)
    health: str = field(default="", init=False)
    default_model: str = field(default="", init=False)
    python: str = field(default=sys.executable, init=False)

    def launch(self, site: Site) -> Launch:
        """See ``ServerKind``."""
        command = module_command("pytest_gpuserve.selftest.server", f"--port={site.port}", *self.options.flags())
        return Launch(argv=tuple(command), environment={}, cwd=site.folder)

    def read_counters(self, site: Site) -> Counters:
        """See ``ServerKind``."""
        return counters_of(scrape(site.port, METRICS_PATH))

    def workload(self) -> Mapping[str, str]:
        """See ``ServerKind``."""
        return {"server": self.name, **{name: str(value) for name, value in asdict(self.options).items()}}

    def information(self) -> Mapping[str, str]:
        """See ``ServerKind``."""
        return {}

    def relocated(self, relocation: Relocation) -> NoReturn:
        """Raise `NotInRevision`: the server is a part of this package."""
        raise NotInRevision(f"the self-test's server is a part of pytest-gpuserve, not of {relocation.revision}")


def counters_of(samples: list[MetricSample]) -> Counters:
    """Counters of a scrape. Raises `ServerFailed` where one is missing or unknown."""
    plain = {sample.name: sample.value for sample in samples if not sample.labels}
    labelled: dict[str, dict[str, float]] = {"batch_size": {}, "stage_seconds": {}, "stage_count": {}}
    try:
        for sample in samples:
            if sample.labels:
                (label,) = sample.labels.values()
                labelled[sample.name.removeprefix(f"{PREFIX}_").removesuffix("_total")][label] = sample.value
        stages = {
            stage: StageTime(seconds, round(labelled["stage_count"][stage]))
            for stage, seconds in labelled["stage_seconds"].items()
        }
        items, batches = round(plain[f"{PREFIX}_items_total"]), round(plain[f"{PREFIX}_batches_total"])
    except (LookupError, ValueError) as problem:
        raise ServerFailed("the counters of the self-test's server make no sense", found=repr(problem)) from None
    sizes = {size: round(count) for size, count in labelled["batch_size"].items()}
    return Counters(items=items, batches=batches, batch_sizes=sizes, stages=stages)


BATCH: Final = 16
"""Most requests of a batch of the server as it is; twice as many users keep its batches full."""

USERS: Final = 2 * BATCH

SERVICE_SECONDS: Final = 0.008
"""Work on a batch: with these users some 2000 answers a second, so that a window has the requests for a p99."""


class Truth(Enum):
    """How a candidate differs from its base, and so what its comparison should come to."""

    ALIKE = "no different"
    EDGE = "worse by just the tolerance of p50"
    WORSE = "worse by more than the tolerance"
    WRONG = "wrong answers"


@dataclass(frozen=True)
class Case:
    """One kind of candidate.

    Args:
        must_be_found: Whether it is so much worse that a comparison has to find it, not only not pass it.
        change: Options in which it differs.
    """

    name: str
    truth: Truth
    must_be_found: bool = False
    change: Mapping[str, int | float] = field(default_factory=dict)

    def of(self, base: Options) -> Options:
        """The candidate to a base."""
        return replace(base, **self.change)  # type: ignore[arg-type]


CASES: Final = (
    Case("wrong answers", Truth.WRONG, must_be_found=True, change={"wrong_every": 100}),
    Case("identical", Truth.ALIKE),
    Case("20 % slower", Truth.WORSE, must_be_found=True, change={"slower": 0.20}),
    Case("10 % slower", Truth.WORSE, must_be_found=True, change={"slower": 0.10}),
    # One batch in eighty, twice as long: 1.25 % of throughput, and half as much again of p99.
    Case("tail only", Truth.WORSE, change={"tail_every": 80, "tail_factor": 2.0}),
    Case("smaller batches", Truth.WORSE, change={"max_batch": BATCH * 3 // 4}),
    # Each answer takes 5 % longer, which is just what a p50 may; the throughput falls by 4.8 % of the 5 % that it may.
    Case("5 % slower", Truth.EDGE, change={"slower": 0.05}),
)
"""Those that decide whether the self-test passes come first, and the quickest of all: a short one reaches them."""


@dataclass(frozen=True)
class Planned:
    """One comparison that is to be made.

    Args:
        number: Among those of its kind, from 1.
    """

    case: Case
    number: int


def interleaved(times: int, *, seed: int = 0) -> tuple[Planned, ...]:
    """All cases so many times, in turns: first as they stand in `CASES`, then each time in another order.

    A machine has better and worse hours, which should come to all cases alike.
    """
    coin = random.Random(seed)  # noqa: S311 -- an order, not a secret
    plan: list[Planned] = []
    for number in range(1, times + 1):
        order = list(CASES)
        if number > 1:
            coin.shuffle(order)
        plan += [Planned(case, number) for case in order]
    return tuple(plan)


@dataclass(frozen=True)
class Trial:
    """One comparison whose truth is known; ``number`` counts those of its name."""

    name: str
    number: int
    base: Target
    candidate: Target


@dataclass(frozen=True)
class TrialResult:
    """The result of a trial.

    Args:
        verdict: The worst of its metrics', as it decides a test: INVALID, REGRESSED, INCONCLUSIVE, else PASS.
        judgements: Of each metric up to the first that fails a test.
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
class TrialSettings:
    """How all trials are made.

    Args:
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


def run_trial(trial: Trial, setting: TrialSettings, progress: Progress, note: Callable[[str], None]) -> TrialResult:
    """Compare until every metric is decided, one fails, or the budget is spent. Raises `LoadFailed`."""
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
    return TrialResult(trial, verdict, tuple(judgements), tuple(pairing.rounds), time.monotonic() - began, error)


GATED: Final = ("throughput", "latency.p99", "batching_ratio")
"""What every comparison gates, in the order in which a test would ask."""

SHAPE: Final = LoadShape(Closed(USERS), warmup_seconds=0.7, check="all")

TYPICAL_SECONDS: Final = 20.0
"""A comparison, before one of its kind was made."""

BODY: Final = b"the quick brown fox"


@dataclass(frozen=True)
class FinishedTrial:
    """A comparison that was made."""

    planned: Planned
    outcome: TrialResult

    @property
    def alarmed(self) -> bool:
        """Whether it says that the candidate is worse: REGRESSED, or where answers are wrong, INVALID for just that."""
        if self.planned.case.truth is not Truth.WRONG:
            return self.outcome.verdict is Verdict.REGRESSED
        return self.outcome.verdict is Verdict.INVALID and any(
            reason.kind is ReasonKind.WRONG_ANSWERS and not reason.about  # Of the base it would say whose.
            for judgement in self.outcome.judgements
            for reason in judgement.reasons
        )


def comparisons(
    plan: Sequence[Planned],
    base: Options,
    setting: TrialSettings,
    starter: Starter,
    *,
    seconds: float,
    progress: Callable[[Planned], Progress],
    note: Callable[[str], None],
) -> Iterator[FinishedTrial]:
    """Make the comparisons of a plan one by one; what does not fit into the time any more is left out.

    The first one is always made. A later one is begun if it should end in time, as far as those of its kind tell; it
    is never cut short, for that would decide by the clock what is found.

    Args:
        seconds: Time for all of it.

    Raises:
        KeyboardInterrupt: With no server left behind.
    """
    deadline = time.monotonic() + seconds
    longest: dict[str, float] = {}
    for number, planned in enumerate(plan):
        name = planned.case.name
        if number and time.monotonic() + longest.get(name, TYPICAL_SECONDS) > deadline:
            continue
        watcher = progress(planned)
        trial = Trial(name, planned.number, _target(base, starter), _target(planned.case.of(base), starter))
        try:
            outcome = run_trial(trial, setting, watcher, note)
        finally:
            watcher.clear()
        longest[name] = max(longest.get(name, 0.0), outcome.seconds)
        yield FinishedTrial(planned, outcome)


def _target(options: Options, starter: Starter) -> Target:
    return ServerHandle(BuiltIn(options), starter).post(INFER, body=BODY, expect=BODY.upper())
