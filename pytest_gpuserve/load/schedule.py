"""When requests are sent: closed loops of users, and open loops whose arrivals are fixed before the load begins.

Every schedule is absolute and reproducible: times count from the begin of the load, drawn from a seeded generator, and
never from when something was done. So a stalled client is late, and says so, instead of quietly offering less load.

Engines that share an open loop deal its arrivals out: of ``parts`` of them the one of part ``part`` sends every
``parts``-th from number ``part`` on. Together they send, to the nanosecond, what one alone would.
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
"""Smallest and largest rate, number of seconds or shape: beyond them a mistake is surer than a wish."""


class Arrival(NamedTuple):
    """A request of an open loop.

    Args:
        at_ns: When it is due, from the begin of the load.
        number: Which request of the whole load it is, from 0.
        index: Which of the payloads it carries; None leaves that to the rotation.
    """

    at_ns: int
    number: int
    index: int | None = None  # type: ignore[assignment]  # nobody searches an arrival as a tuple


class Closed(msgspec.Struct, frozen=True, tag="closed"):
    """Users, each of whom sends the next request when the last was answered.

    Args:
        users: How many, all the time.
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
        """What a baseline must have in common with it."""
        return {"load": "closed loop", "concurrency": str(self.users), **_thinking(self.think_seconds)}


class Steps(msgspec.Struct, frozen=True, tag="steps"):
    """Users whose number changes in steps; the last step's end is the load's end.

    Args:
        steps: Each step's number of users and how many seconds they stay. A user who is taken away leaves after the
            answer that they wait for.
        think_seconds: Pause of a user between an answer and the next request.

    Raises:
        UsageProblem: A number is out of range, or there is no step.
    """

    steps: tuple[tuple[int, float], ...]
    think_seconds: float = 0.0

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "steps", _pairs("Steps([...])", "(users, seconds)", self.steps))
        if not self.steps:
            raise UsageProblem("Steps([...]) has one (users, seconds) at least")
        for users, seconds in self.steps:
            _whole("the users of a step", users, 1)
            _number("the seconds of a step", seconds)
        _number("Steps(think_seconds=...)", self.think_seconds, zero=True)

    @property
    def seconds(self) -> float:
        """How long it lasts."""
        return math.fsum(seconds for _, seconds in self.steps)

    def workload(self) -> dict[str, str]:
        """What a baseline must have in common with it."""
        steps = ", ".join(f"{users} for {seconds:g} s" for users, seconds in self.steps)
        return {"load": "stepped users", "steps": steps, **_thinking(self.think_seconds)}


class Constant(msgspec.Struct, frozen=True, tag="constant"):
    """An open loop with equal gaps.

    Args:
        rate: Requests a second.
        max_in_flight: Ceiling on requests under way; what is due beyond it waits in the client, and its latency counts.

    Raises:
        UsageProblem: A number is out of range.
    """

    rate: float
    max_in_flight: int | None = None

    def __post_init__(self) -> None:
        _number("Constant(rate=...)", self.rate)
        _ceiling(self.max_in_flight)

    def arrivals(self, seed: int, part: int = 0, parts: int = 1) -> Iterator[Arrival]:
        """Return a part's share of the endless schedule; without chance in it the seed changes nothing."""
        del seed
        return (Arrival(round(number * NANOSECONDS / self.rate), number) for number in count(part, parts))

    def workload(self) -> dict[str, str]:
        """What a baseline must have in common with it."""
        return {"load": "open loop, constant", "rate": f"{self.rate:g}", **_held(self.max_in_flight)}


class Poisson(msgspec.Struct, frozen=True, tag="poisson"):
    """An open loop of independent arrivals: what many users who know nothing of each other make.

    Args:
        rate: Requests a second, on average.
        max_in_flight: Ceiling on requests under way; what is due beyond it waits in the client, and its latency counts.

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
        """What a baseline must have in common with it."""
        return {"load": "open loop, Poisson", "rate": f"{self.rate:g}", **_held(self.max_in_flight)}


class Gamma(msgspec.Struct, frozen=True, tag="gamma"):
    """An open loop with gamma-distributed gaps: smoother than Poisson (shape above 1) or burstier (below).

    Args:
        rate: Requests a second, on average.
        shape: Of the gaps' distribution, whose squared coefficient of variation is ``1 / shape``; 1 is Poisson.
        max_in_flight: Ceiling on requests under way; what is due beyond it waits in the client, and its latency counts.

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
        """What a baseline must have in common with it."""
        return {
            "load": "open loop, gamma",
            "rate": f"{self.rate:g}",
            "shape": f"{self.shape:g}",
            **_held(self.max_in_flight),
        }


class Trace(msgspec.Struct, frozen=True, tag="trace"):
    """A recorded load, replayed once.

    Args:
        requests: For each request when it is due, in seconds from the begin, and which payload it carries.
        max_in_flight: Ceiling on requests under way; what is due beyond it waits in the client, and its latency counts.

    Raises:
        UsageProblem: A number is out of range, times go back, or there is no request.
    """

    requests: tuple[tuple[float, int], ...]
    max_in_flight: int | None = None

    def __post_init__(self) -> None:
        pairs = _pairs("Trace([...])", "(seconds, payload)", self.requests)
        msgspec.structs.force_setattr(self, "requests", pairs)
        if not self.requests:
            raise UsageProblem("Trace([...]) has one (seconds, payload) at least")
        before = 0.0
        for number, (seconds, index) in enumerate(self.requests):
            _number(f"the time of request {number} of a Trace", seconds, zero=True)
            _whole(f"the payload of request {number} of a Trace", index, 0)
            if seconds < before:
                raise UsageProblem(
                    f"the times of a Trace rise, but request {number} is due at {seconds:g} s,"
                    f" after one at {before:g} s"
                )
            before = seconds
        _ceiling(self.max_in_flight)

    def arrivals(self, seed: int, part: int = 0, parts: int = 1) -> Iterator[Arrival]:
        """Return a part's share of the schedule; without chance in it the seed changes nothing."""
        del seed
        return (
            Arrival(round(seconds * NANOSECONDS), number, index)
            for number, (seconds, index) in islice(enumerate(self.requests), part, None, parts)
        )

    def workload(self) -> dict[str, str]:
        """What a baseline must have in common with it."""
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
        requests: How many.
        max_in_flight: Ceiling on requests under way; what is due beyond it waits in the client, and its latency counts.

    Raises:
        UsageProblem: A number is out of range.
    """

    requests: int
    max_in_flight: int | None = None

    def __post_init__(self) -> None:
        _whole("Burst(requests=...)", self.requests, 1)
        _ceiling(self.max_in_flight)

    def arrivals(self, seed: int, part: int = 0, parts: int = 1) -> Iterator[Arrival]:
        """Return a part's share of the schedule; without chance in it the seed changes nothing."""
        del seed
        return (Arrival(0, number) for number in range(part, self.requests, parts))

    def workload(self) -> dict[str, str]:
        """What a baseline must have in common with it."""
        return {"load": "burst", "requests": str(self.requests), **_held(self.max_in_flight)}


ClosedSchedule = Closed | Steps
OpenSchedule = Constant | Poisson | Gamma | Trace | Burst
Schedule = Closed | Steps | Constant | Poisson | Gamma | Trace | Burst


def is_open(schedule: Schedule) -> bool:
    """Whether requests are sent without regard to answers."""
    return not isinstance(schedule, (Closed, Steps))


def is_finite(schedule: Schedule) -> bool:
    """Whether it ends by itself."""
    return isinstance(schedule, (Steps, Trace, Burst))


def _exponential(seed: int, rate: float) -> Iterator[float]:
    """Exponential gaps by inversion of their distribution, as ``random.expovariate`` has them, but in C alone.

    Every part draws those of all parts, so what one takes bounds the rate of the whole load.
    """
    draw = random.Random(seed)  # noqa: S311 -- reproducible, not secret
    # Of [0, 1) the complement, whose logarithm is always known.
    uniform = map(sub, repeat(1.0), starmap(draw.random, repeat(())))
    return map(truediv, map(math.log, uniform), repeat(-rate))


def _accumulated(gaps: Iterator[float], part: int, parts: int) -> Iterator[Arrival]:
    # Summed as floats and rounded last: rounding each gap would shift the rate of a fast schedule. All gaps are summed,
    # in one order, so that no time depends on how many parts there are.
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
        raise UsageProblem(f"{what} is a whole number of {least} at least, not {value!r}")


def _number(what: str, value: object, *, zero: bool = False) -> None:
    # Plain types only: a NumPy number is a float, but cannot be sent to the engine.
    if type(value) in {int, float} and (0 if zero else LEAST) <= value <= MOST:  # type: ignore[operator]  # as just found
        return
    raise UsageProblem(f"{what} is a plain number {'of 0 at least' if zero else 'above 0'}, not {value!r}")


def _pairs(what: str, pair: str, value: Iterable[Iterable[Any]]) -> tuple[tuple[Any, ...], ...]:
    """Make tuples of whatever holds the pairs, so that a list gives the same schedule, which others can share."""
    try:
        pairs = tuple(tuple(each) for each in value)
    except TypeError:
        pairs = ((),)
    if any(len(each) != 2 for each in pairs):
        raise UsageProblem(f"{what} takes a list of {pair}")
    return pairs
