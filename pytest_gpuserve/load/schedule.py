"""Schedules of requests: closed loops of users, and open loops whose arrivals are fixed before the load begins.

Every schedule is absolute and reproducible: times count from the begin of the load, and come from a seeded generator,
never from the end of another action. So a stalled client is late, and reports that, instead of silently offering less
load.

Engines that share an open loop divide its arrivals: among ``parts`` engines, the one of part ``part`` sends every
``parts``-th arrival from number ``part`` on. Together they send, to the nanosecond, what one alone would.
"""

from __future__ import annotations

import math
import random
from itertools import accumulate, count, islice, repeat, starmap
from operator import sub, truediv
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.units import digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

NANOSECONDS = 1_000_000_000

LEAST: Final = 1e-9
MOST: Final = 1e9
"""Smallest and largest rate, number of seconds or shape: values beyond them are mistakes."""


class Arrival(NamedTuple):
    """A request of an open loop.

    Args:
        at_ns: Due time, from the begin of the load.
        number: Number of the request in the whole load, from 0.
        index: Index of its payload; None leaves that to the rotation.
    """

    at_ns: int
    number: int
    index: int | None = None  # type: ignore[assignment]  # nobody searches an arrival as a tuple


class Closed(msgspec.Struct, frozen=True, tag="closed"):
    """Users, each of whom sends the next request when the last one is answered.

    Args:
        users: Constant number of users.
        think_seconds: Pause of a user between an answer and the next request.

    Raises:
        UsageProblem: A number is out of range.
    """

    users: int
    think_seconds: float = 0.0

    def __post_init__(self) -> None:
        _whole("Closed(users=...)", self.users, 1)
        _number("Closed(think_seconds=...)", self.think_seconds, zero=True)

    def workload(self) -> dict[str, str]:
        """Facts that a baseline must have in common with it."""
        return {"load": "closed loop", "concurrency": str(self.users), **_thinking(self.think_seconds)}


class Steps(msgspec.Struct, frozen=True, tag="steps"):
    """Users whose number changes in steps; the last step's end is the load's end.

    Args:
        steps: Number of users and seconds of each step. A user who is taken away leaves after the current answer.
        think_seconds: Pause of a user between an answer and the next request.

    Raises:
        UsageProblem: A number is out of range, or the list is empty.
    """

    steps: tuple[tuple[int, float], ...]
    think_seconds: float = 0.0

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "steps", _pairs("Steps([...])", "(users, seconds)", self.steps))
        if not self.steps:
            raise UsageProblem("Steps([...]) needs at least one (users, seconds)")
        for users, seconds in self.steps:
            _whole("the users of a step", users, 1)
            _number("the seconds of a step", seconds)
        _number("Steps(think_seconds=...)", self.think_seconds, zero=True)

    @property
    def seconds(self) -> float:
        """Duration of all steps."""
        return math.fsum(seconds for _, seconds in self.steps)

    def workload(self) -> dict[str, str]:
        """Facts that a baseline must have in common with it."""
        steps = ", ".join(f"{users} for {seconds:g} s" for users, seconds in self.steps)
        return {"load": "stepped users", "steps": steps, **_thinking(self.think_seconds)}


class Constant(msgspec.Struct, frozen=True, tag="constant"):
    """An open loop with equal gaps.

    Args:
        rate: Requests a second.
        max_in_flight: Ceiling on requests in flight. Due requests beyond it wait in the client, and their latency
            counts.

    Raises:
        UsageProblem: A number is out of range.
    """

    rate: float
    max_in_flight: int | None = None

    def __post_init__(self) -> None:
        _number("Constant(rate=...)", self.rate)
        _ceiling(self.max_in_flight)

    def arrivals(self, seed: int, part: int = 0, parts: int = 1) -> Iterator[Arrival]:
        """Return a part's share of the endless schedule; the seed has no effect."""
        del seed
        return (Arrival(round(number * NANOSECONDS / self.rate), number) for number in count(part, parts))

    def workload(self) -> dict[str, str]:
        """Facts that a baseline must have in common with it."""
        return {"load": "open loop, constant", "rate": f"{self.rate:g}", **_held(self.max_in_flight)}


class Poisson(msgspec.Struct, frozen=True, tag="poisson"):
    """An open loop of independent arrivals, like those of many independent users.

    Args:
        rate: Requests a second, on average.
        max_in_flight: Ceiling on requests in flight. Due requests beyond it wait in the client, and their latency
            counts.

    Raises:
        UsageProblem: A number is out of range.
    """

    rate: float
    max_in_flight: int | None = None

    def __post_init__(self) -> None:
        _number("Poisson(rate=...)", self.rate)
        _ceiling(self.max_in_flight)

    def arrivals(self, seed: int, part: int = 0, parts: int = 1) -> Iterator[Arrival]:
        """Return a part's share of the endless schedule of this seed."""
        return _accumulated(_exponential(seed, self.rate), part, parts)

    def workload(self) -> dict[str, str]:
        """Facts that a baseline must have in common with it."""
        return {"load": "open loop, Poisson", "rate": f"{self.rate:g}", **_held(self.max_in_flight)}


class Gamma(msgspec.Struct, frozen=True, tag="gamma"):
    """An open loop with gamma-distributed gaps: smoother than Poisson (shape above 1) or burstier (below).

    Args:
        rate: Requests a second, on average.
        shape: Shape of the gaps' distribution, whose squared coefficient of variation is ``1 / shape``; 1 is Poisson.
        max_in_flight: Ceiling on requests in flight. Due requests beyond it wait in the client, and their latency
            counts.

    Raises:
        UsageProblem: A number is out of range.
    """

    rate: float
    shape: float
    max_in_flight: int | None = None

    def __post_init__(self) -> None:
        _number("Gamma(rate=...)", self.rate)
        _number("Gamma(shape=...)", self.shape)
        _ceiling(self.max_in_flight)

    def arrivals(self, seed: int, part: int = 0, parts: int = 1) -> Iterator[Arrival]:
        """Return a part's share of the endless schedule of this seed."""
        draw = random.Random(seed)  # noqa: S311 -- reproducible, not secret
        scale = 1 / (self.rate * self.shape)
        return _accumulated(starmap(draw.gammavariate, repeat((self.shape, scale))), part, parts)

    def workload(self) -> dict[str, str]:
        """Facts that a baseline must have in common with it."""
        return {
            "load": "open loop, gamma",
            "rate": f"{self.rate:g}",
            "shape": f"{self.shape:g}",
            **_held(self.max_in_flight),
        }


class Trace(msgspec.Struct, frozen=True, tag="trace"):
    """A recorded load, replayed once.

    Args:
        requests: Due time in seconds from the begin, and index of the payload, for each request.
        max_in_flight: Ceiling on requests in flight. Due requests beyond it wait in the client, and their latency
            counts.

    Raises:
        UsageProblem: A number is out of range, times go back, or the list is empty.
    """

    requests: tuple[tuple[float, int], ...]
    max_in_flight: int | None = None

    def __post_init__(self) -> None:
        pairs = _pairs("Trace([...])", "(seconds, payload)", self.requests)
        msgspec.structs.force_setattr(self, "requests", pairs)
        if not self.requests:
            raise UsageProblem("Trace([...]) needs at least one (seconds, payload)")
        before = 0.0
        for number, (seconds, index) in enumerate(self.requests):
            _number(f"the time of request {number} of a Trace", seconds, zero=True)
            _whole(f"the payload of request {number} of a Trace", index, 0)
            if seconds < before:
                raise UsageProblem(
                    f"the times of a Trace must rise, but request {number} is due at {seconds:g} s,"
                    f" after one at {before:g} s"
                )
            before = seconds
        _ceiling(self.max_in_flight)

    def arrivals(self, seed: int, part: int = 0, parts: int = 1) -> Iterator[Arrival]:
        """Return a part's share of the schedule; the seed has no effect."""
        del seed
        return (
            Arrival(round(seconds * NANOSECONDS), number, index)
            for number, (seconds, index) in islice(enumerate(self.requests), part, None, parts)
        )

    def workload(self) -> dict[str, str]:
        """Facts that a baseline must have in common with it."""
        text = ";".join(f"{float(seconds)!r},{index}" for seconds, index in self.requests)
        return {
            "load": "trace",
            "requests": str(len(self.requests)),
            "trace": digest(text),
            **_held(self.max_in_flight),
        }


class Burst(msgspec.Struct, frozen=True, tag="burst"):
    """All requests due at once, as a queue that was filled while the server was away.

    Args:
        requests: Number of requests.
        max_in_flight: Ceiling on requests in flight. Due requests beyond it wait in the client, and their latency
            counts.

    Raises:
        UsageProblem: A number is out of range.
    """

    requests: int
    max_in_flight: int | None = None

    def __post_init__(self) -> None:
        _whole("Burst(requests=...)", self.requests, 1)
        _ceiling(self.max_in_flight)

    def arrivals(self, seed: int, part: int = 0, parts: int = 1) -> Iterator[Arrival]:
        """Return a part's share of the schedule; the seed has no effect."""
        del seed
        return (Arrival(0, number) for number in range(part, self.requests, parts))

    def workload(self) -> dict[str, str]:
        """Facts that a baseline must have in common with it."""
        return {"load": "burst", "requests": str(self.requests), **_held(self.max_in_flight)}


ClosedSchedule = Closed | Steps
OpenSchedule = Constant | Poisson | Gamma | Trace | Burst
Schedule = Closed | Steps | Constant | Poisson | Gamma | Trace | Burst


def is_open(schedule: Schedule) -> bool:
    """Whether requests are sent without regard to answers."""
    return not isinstance(schedule, (Closed, Steps))


def is_finite(schedule: Schedule) -> bool:
    """Whether the schedule ends by itself."""
    return isinstance(schedule, (Steps, Trace, Burst))


def _exponential(seed: int, rate: float) -> Iterator[float]:
    """Exponential gaps by inversion of their distribution, like ``random.expovariate``, but entirely in C.

    Every part draws the gaps of all parts, so the time for one gap bounds the rate of the whole load.
    """
    draw = random.Random(seed)  # noqa: S311 -- reproducible, not secret
    # The complement of [0, 1), whose logarithm always exists.
    uniform = map(sub, repeat(1.0), starmap(draw.random, repeat(())))
    return map(truediv, map(math.log, uniform), repeat(-rate))


def _accumulated(gaps: Iterator[float], part: int, parts: int) -> Iterator[Arrival]:
    # Summed as floats and rounded last, because rounded gaps would shift the rate of a fast schedule. All gaps are
    # summed in one order, so that times do not depend on the number of parts.
    own = islice(accumulate(gaps), part, None, parts)
    return (Arrival(round(seconds * NANOSECONDS), part + place * parts) for place, seconds in enumerate(own))


def _thinking(seconds: float) -> dict[str, str]:
    return {"think_seconds": f"{seconds:g}"} if seconds else {}


def _held(max_in_flight: int | None) -> dict[str, str]:
    return {} if max_in_flight is None else {"max_in_flight": str(max_in_flight)}


def _ceiling(max_in_flight: int | None) -> None:
    if max_in_flight is not None:
        _whole("max_in_flight", max_in_flight, 1)


def _whole(what: str, value: object, least: int) -> None:
    if type(value) is not int or value < least:
        raise UsageProblem(f"{what} must be a whole number of at least {least}, not {value!r}")


def _number(what: str, value: object, *, zero: bool = False) -> None:
    # Plain types only, because a NumPy number is a float, but cannot be sent to the engine.
    if type(value) in {int, float} and (0 if zero else LEAST) <= value <= MOST:  # type: ignore[operator]  # as just found
        return
    raise UsageProblem(f"{what} must be a plain number {'of at least 0' if zero else 'above 0'}, not {value!r}")


def _pairs(what: str, pair: str, value: Iterable[Iterable[Any]]) -> tuple[tuple[Any, ...], ...]:
    """Make tuples of the pairs, so that equal lists give equal and hashable schedules."""
    try:
        pairs = tuple(tuple(each) for each in value)
    except TypeError:
        pairs = ((),)
    if any(len(each) != 2 for each in pairs):
        raise UsageProblem(f"{what} takes a list of {pair}")
    return pairs
