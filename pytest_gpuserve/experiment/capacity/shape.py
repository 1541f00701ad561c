"""The search for a capacity, as its test asked for it."""

from __future__ import annotations

import resource
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal, cast

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.experiment.shape import LoadShape
from pytest_gpuserve.load.driver import most_under_way
from pytest_gpuserve.load.engine.loop import OWN_FILES
from pytest_gpuserve.load.schedule import Closed, Constant, Poisson
from pytest_gpuserve.measure.capacity import Objective
from pytest_gpuserve.measure.objectives import Objectives

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.load.schedule import Schedule
    from pytest_gpuserve.load.source import EngineSource
    from pytest_gpuserve.load.totals import Totals

Arrivals = Literal["poisson", "constant"]

PRECISION: Final = 0.05

USERS: Final = 16
"""Who wait for each answer, and by whose rate the first one is guessed."""

LONGEST_OBJECTIVE: Final = 10.0
"""Seconds. A rate is tried for so many times as long that a search of slower answers takes hours."""

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

    Its schedule is that of the users who warm the server up and whose rate gives the first guess. Its goodput is what
    the objective asks of each answer, so that the engine counts those that meet it.

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
        others = {*self.schedule.workload(), "goodput"}
        words = {name: word for name, word in super().workload().items() if name not in others}
        objective = self.objective
        allowed = f"{objective.name} <= {objective.seconds:g} s" if objective.each is None else str(objective)
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

    def for_answers(self, seen: Totals) -> Self:
        """The same search, by what an answer takes under the objectives, or where these leave it open, has taken.

        Args:
            seen: Answers of the load, before rates are tried; where a TPOT is asked for they say how many tokens they
                have.
        """
        each = self.objective.each
        if each is None or each.latency is not None:
            return self
        ttft, latency = seen.ttft.mean or 0.0, seen.latency.mean or 0.0
        rest = latency - ttft if each.tpot is None else each.tpot * max(0.0, seen.usage_tokens / seen.with_usage - 1)
        seconds = (ttft if each.ttft is None else each.ttft) + rest
        return replace(self, objective=replace(self.objective, seconds=seconds))

    def for_users(self, least: int) -> Self:
        """The same search, by so many users at least until rates are tried."""
        users = most_under_way(self.schedule)
        return self if users is None or users >= least else replace(self, schedule=Closed(least))


def search_shape(
    objectives: Mapping[str, float | Objectives | None],
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
        objectives: Seconds, or what each answer has to meet, by the quantile's name, ``p99``; one of them is given.
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
            f"load.capacity(...) takes one objective of {', '.join(objectives)}",
            found=", ".join(given) or "none",
            remedies=[
                "load.capacity(server.post(...), p99=50 * ms)",
                "several at once, of each answer: p99=Objectives(ttft=200 * ms, tpot=30 * ms)",
            ],
        )
    ((name, value),) = given.items()
    each = value if isinstance(value, Objectives) else None
    limits = each.limits if each is not None else {"latency": cast("float", value)}
    if not all(_is_number(limit) and 1e-5 <= limit <= LONGEST_OBJECTIVE for limit in limits.values()):
        raise UsageProblem(
            f"load.capacity({name}=...) is a latency of 0.00001 to {LONGEST_OBJECTIVE:g} seconds, or Objectives of such"
            f" times, not {value!r}",
            remedies=[
                f"from pytest_gpuserve import ms; load.capacity(..., {name}=50 * ms)",
                "of slower answers gate the latency at a rate: load(..., schedule=Poisson(rate=...), seconds=...)",
            ],
        )
    # How long answers take is known when some have come.
    longest = float(limits.get("latency", LONGEST_OBJECTIVE))
    if timeout is None:
        timeout = max(10.0, 4 * longest)
    if not (_is_number(timeout) and timeout > max(limits.values())):
        raise UsageProblem(
            f"load.capacity({name}={value}, timeout={timeout!r}): a request has to be given more time than the"
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
        goodput=each,
        objective=Objective(int(name.removeprefix("p")) / 100, longest, each),
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
