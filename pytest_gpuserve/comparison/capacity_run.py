"""What a test holds of a search: ``run.capacity >= baseline.capacity``, the interval, and the probes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

from pytest_gpuserve.comparison.assertions import Measured
from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.experiment.observed import Observed
from pytest_gpuserve.gate.metric import CAPACITY, METRICS
from pytest_gpuserve.measure.points import NotMeasured
from pytest_gpuserve.measure.window import searches_of

if TYPE_CHECKING:
    from pytest_gpuserve.comparison.assertions import Run
    from pytest_gpuserve.measure.capacity import Search
    from pytest_gpuserve.measure.window import Session

_GATED: Final = frozenset({*METRICS, "latency"}) - {CAPACITY, "cold_start"}
_SEEN: Final = frozenset(name for name in vars(Observed) if not name.startswith("_"))


class CapacityRun:
    """What was found of a server's capacity.

    It has the capacity and the cold start of each start, and nothing else to gate: a search loads a server at many
    rates, so that throughput and latencies are those of no load that a baseline could have in common with it.

    Args:
        run: What was measured.
    """

    def __init__(self, run: Run) -> None:
        self.run = run

    @property
    def capacity(self) -> Measured:
        """Requests a second, the mean over the starts; higher is better."""
        return Measured(self.run, METRICS[CAPACITY])

    @property
    def cold_start(self) -> Measured:
        """See ``Run``."""
        return self.run.cold_start

    @property
    def searches(self) -> tuple[Search, ...]:
        """The search of each start, with its probes."""
        return tuple(searches_of(self.run.sessions))

    @property
    def interval(self) -> tuple[float, float]:
        """Around the capacities of all starts, requests a second.

        From the lowest of the rates that were shown to meet the objective to the highest of those that were shown to
        miss it, a pair for each start.

        Raises:
            NotMeasured: A start has no such interval.
        """
        ends = [(search.low, search.high) for search in self.searches]
        known = [(low, high) for low, high in ends if low is not None and high is not None]
        if not known or len(known) < len(ends):
            raise NotMeasured(f"{CAPACITY} is not known of every start: {'; '.join(self.problems) or 'nothing found'}")
        return min(low for low, _ in known), max(high for _, high in known)

    @property
    def sessions(self) -> list[Session]:
        """What was measured, the first look first; a comparison may add to it."""
        return self.run.sessions

    @property
    def problems(self) -> tuple[str, ...]:
        """Why nothing may be concluded from it; empty when all is well."""
        return self.run.problems

    def __bool__(self) -> NoReturn:
        raise UsageProblem(
            "a search is neither true nor false", remedies=["write `assert run.capacity >= baseline.capacity`"]
        )

    def __getattr__(self, name: str) -> NoReturn:
        if name in _GATED | _SEEN:
            what = "gate" if name in _GATED else "look at"
            raise UsageProblem(
                f"load.capacity(...) has no {name}: it loads the server at many rates",
                remedies=[f"{what} its {name} under one load: load(..., schedule=Poisson(rate=...))"],
            )
        raise AttributeError(f"a search has no {name!r}; it has capacity, cold_start, interval and searches")
