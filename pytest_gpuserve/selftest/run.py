"""Makes the comparisons of the self-test, within a time."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.experiment.handle import ServerHandle
from pytest_gpuserve.experiment.shape import LoadShape
from pytest_gpuserve.gate.reason import ReasonKind
from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.load.schedule import Closed
from pytest_gpuserve.selftest.kind import BuiltIn
from pytest_gpuserve.selftest.plan import USERS, Truth
from pytest_gpuserve.selftest.server import INFER
from pytest_gpuserve.selftest.trials import Trial, run_trial

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pytest_gpuserve.experiment.handle import Starter, Target
    from pytest_gpuserve.experiment.watch import Progress
    from pytest_gpuserve.selftest.plan import Planned
    from pytest_gpuserve.selftest.server import Options
    from pytest_gpuserve.selftest.trials import TrialResult, TrialSettings

METRICS: Final = ("throughput", "latency.p99", "batching_ratio")
"""What every comparison gates, in the order in which a test would ask."""

SHAPE: Final = LoadShape(Closed(USERS), warmup_seconds=0.7, check="all")

TYPICAL_SECONDS: Final = 20.0
"""A comparison, before one of its kind was made."""

BODY: Final = b"the quick brown fox"


@dataclass(frozen=True)
class Made:
    """A comparison that was made.

    Args:
        planned: Which.
        outcome: What it came to.
    """

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
) -> Iterator[Made]:
    """Make the comparisons of a plan one by one; what does not fit into the time any more is left out.

    The first one is always made. A later one is begun if it should end in time, as far as those of its kind tell; it
    is never cut short, for that would decide by the clock what is found.

    Args:
        plan: What to compare, in order.
        base: The server as it is.
        setting: How.
        starter: Starts servers.
        seconds: Time for all of it.
        progress: Who watches the next one.
        note: Hears what could not be remembered.

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
        yield Made(planned, outcome)


def _target(options: Options, starter: Starter) -> Target:
    return ServerHandle(BuiltIn(options), starter).post(INFER, body=BODY, expect=BODY.upper())
