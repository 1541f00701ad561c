"""The search for a capacity, as its test asked for it."""

from __future__ import annotations

import resource
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.experiment.shape import LoadShape
from pytest_gpuserve.load.driver import most_under_way
from pytest_gpuserve.load.engine.loop import OWN_FILES
from pytest_gpuserve.load.schedule import Closed, Constant, Poisson
from pytest_gpuserve.measure.capacity import Objective

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.load.schedule import Schedule
    from pytest_gpuserve.load.source import EngineSource

Arrivals = Literal["poisson", "constant"]

PRECISION: Final = 0.05

USERS: Final = 16
"""Who wait for each answer, and by whose rate the first one is guessed."""

LONGEST_OBJECTIVE: Final = 3.0
"""Seconds. Between two rates a server is given five for what is under way, and a rate is tried for too short a time to
tell good latencies that are longer from a queue that grows."""

LEAST_IN_FLIGHT: Final = 256
OBJECTIVES_IN_FLIGHT: Final = 8
"""Requests under way are bounded by what comes in so many times the objective: beyond it the queue only grows."""


@dataclass
class KnownCapacity:
    """What the starts of a load were found to do, whichever build they are of: around that the next one is searched.

    Args:
        capacity: Of the last one, requests a second; None before there was one.
    """

    capacity: float | None = None


@dataclass(frozen=True, kw_only=True)
class SearchShape(LoadShape):
    """A search: a load at many rates, one after the other.

    Its schedule is that of the users who warm the server up and whose rate gives the first guess.

    Args:
        objective: What the capacity has to meet.
        precision: Ratio less 1 of two neighbouring rates at which the search ends.
        arrivals: When requests are due.
        probe_seconds: Measured time of a rate at most, unless a low rate or the objective takes longer; None for the
            usual.
        known: What is known of the load already, shared by all copies of its shape. It changes where a search begins,
            not what it finds.

    Raises:
        UsageProblem: An argument is out of range.
    """

    objective: Objective
    precision: float = PRECISION
    arrivals: Arrivals = "poisson"
    probe_seconds: float | None = None
    known: KnownCapacity = field(default_factory=KnownCapacity, compare=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (_is_number(self.precision) and 0.005 <= self.precision <= 0.5):
            raise UsageProblem(
                f"load.capacity(precision=...) is a fraction from 0.005 to 0.5, not {self.precision!r}",
                remedies=["precision=0.05"],
            )
        if self.arrivals not in {"poisson", "constant"}:
            raise UsageProblem(f"load.capacity(arrivals=...) is 'poisson' or 'constant', not {self.arrivals!r}")
        if self.probe_seconds is not None and not (_is_number(self.probe_seconds) and self.probe_seconds >= 1.2):
            raise UsageProblem(
                f"load.capacity(seconds=...) is a number of seconds for each rate, 1.2 at least, not"
                f" {self.probe_seconds!r}"
            )

    @property
    def users(self) -> None:
        """None: those of its schedule only begin the search."""

    def workload(self) -> Mapping[str, str]:
        """See ``LoadShape``; how closely it is searched is no part of it."""
        words = {name: word for name, word in super().workload().items() if name not in self.schedule.workload()}
        allowed = f"{self.objective.name} <= {self.objective.seconds:g} s"
        return {"load": f"capacity, {self.arrivals} arrivals", "objective": allowed, **words}

    def at(self, rate: float) -> Schedule:
        """The load of a rate, with as many requests under way as are wanted and the limit on open files allows."""
        _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = min(self.in_flight_at(rate), self.processes * max(1, files - OWN_FILES))
        if self.arrivals == "constant":
            return Constant(rate, max_in_flight=most)
        return Poisson(rate, max_in_flight=most)

    def in_flight_at(self, rate: float) -> int:
        """The most requests that are to be under way at a rate: more are only waiting."""
        return max(LEAST_IN_FLIGHT, self.processes, round(OBJECTIVES_IN_FLIGHT * rate * self.objective.seconds))

    def for_users(self, least: int) -> Self:
        """The same search, by so many users at least until rates are tried."""
        users = most_under_way(self.schedule)
        return self if users is None or users >= least else replace(self, schedule=Closed(least))


def search_shape(
    objectives: Mapping[str, float | None],
    *,
    precision: float,
    arrivals: Arrivals,
    seconds: float | None,
    warmup_seconds: float,
    starts: int,
    timeout: float | None,
    processes: int,
    seed: int,
    check: Literal["all", "some"],
    allowed_errors: float,
    source: EngineSource,
) -> SearchShape:
    """Make the shape of what a test asked for.

    Args:
        objectives: Seconds by the quantile's name, ``p99``; one of them is given.
        precision: See ``SearchShape``.
        arrivals: See ``SearchShape``.
        seconds: Measured time of a rate at most.
        warmup_seconds: See ``LoadShape``.
        starts: See ``LoadShape``.
        timeout: Seconds after which a request is an error; None for ten, or what leaves the objective room.
        processes: See ``LoadShape``.
        seed: See ``LoadShape``.
        check: See ``LoadShape``.
        allowed_errors: See ``LoadShape``.
        source: See ``LoadShape``.

    Raises:
        UsageProblem: An argument is out of range, or there is not one objective.
    """
    given = {name: value for name, value in objectives.items() if value is not None}
    if len(given) != 1:
        raise UsageProblem(
            f"load.capacity(...) takes one latency objective of {', '.join(objectives)}",
            found=", ".join(given) or "none",
            remedies=["load.capacity(server.post(...), p99=50 * ms)"],
        )
    ((name, value),) = given.items()
    if not (_is_number(value) and 1e-5 <= value <= LONGEST_OBJECTIVE):
        raise UsageProblem(
            f"load.capacity({name}=...) is a latency of 0.00001 to {LONGEST_OBJECTIVE:g} seconds, not {value!r}",
            remedies=[
                f"from pytest_gpuserve import ms; load.capacity(..., {name}=50 * ms)",
                "of slower answers gate the latency at a rate: load(..., schedule=Poisson(rate=...), seconds=...)",
            ],
        )
    if timeout is None:
        timeout = max(10.0, 4 * value)
    if not (_is_number(timeout) and timeout > value):
        raise UsageProblem(
            f"load.capacity({name}={value:g}, timeout={timeout!r}): a request has to be given more time than the"
            " objective allows it",
            remedies=["leave timeout=... out"],
        )
    return SearchShape(
        # Each process needs a user at least; what is no number is refused below.
        schedule=Closed(max(USERS, processes) if type(processes) is int else USERS),
        warmup_seconds=warmup_seconds,
        starts=starts,
        timeout_seconds=timeout,
        processes=processes,
        seed=seed,
        check=check,
        allowed_errors=allowed_errors,
        source=source,
        objective=Objective(int(name.removeprefix("p")) / 100, float(value)),
        precision=precision,
        arrivals=arrivals,
        probe_seconds=seconds,
    )


def check_searchable(target: Target) -> None:
    """See that a target can be sent at any rate.

    Raises:
        UsageProblem: It goes through shared memory, of which each request under way takes a slot.
    """
    if target.sharing is not None:
        raise UsageProblem(
            "load.capacity(...) sends at rates that nobody knows beforehand, and shared memory has room for so many"
            " requests under way only",
            remedies=["leave out shared_memory={...}"],
        )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -1e300 < value < 1e300
