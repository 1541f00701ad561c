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


class _Checked(msgspec.Struct, frozen=True):
    """A schedule whose numbers are checked.

    Raises:
        UsageProblem: A number is out of range, a list is empty, or times go back.
    """

    def __post_init__(self) -> None:
        for each in msgspec.structs.fields(self):
            what, value = f"{type(self).__name__}({each.name}=...)", getattr(self, each.name)
            if each.type is float:
                _number(what, value, zero=each.default == 0)
            elif each.type is int or (each.type == int | None and value is not None):
                _whole(what, value, 1)

    def workload(self) -> dict[str, str]:
        """Facts that a baseline must have in common with it."""
        raise NotImplementedError


class _Users(_Checked, frozen=True, kw_only=True):
    """Users, each of whom sends the next request when the last one is answered.

    Args:
        think_seconds: Pause of a user between an answer and the next request.
    """

    think_seconds: float = 0.0

    def _thinking(self) -> dict[str, str]:
        return {"think_seconds": f"{self.think_seconds:g}"} if self.think_seconds else {}


class Closed(_Users, frozen=True, tag="closed"):
    """A constant number of users.

    Args:
        users: Their number.
    """

    users: int

    def workload(self) -> dict[str, str]:
        """Facts that a baseline must have in common with it."""
        return {"load": "closed loop", "concurrency": str(self.users), **self._thinking()}


class Steps(_Users, frozen=True, tag="steps"):
    """Users whose number changes in steps; the last step's end is the load's end.

    Args:
        steps: Number of users and seconds of each step. A user who is taken away leaves after the current answer.
    """

    steps: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        msgspec.structs.force_setattr(self, "steps", _pairs("Steps([...])", "(users, seconds)", self.steps))
        for users, seconds in self.steps:
            _whole("the users of a step", users, 1)
            _number("the seconds of a step", seconds)

    @property
    def seconds(self) -> float:
        """Duration of all steps."""
        return math.fsum(seconds for _, seconds in self.steps)

    def workload(self) -> dict[str, str]:
        """Facts that a baseline must have in common with it."""
        steps = ", ".join(f"{users} for {seconds:g} s" for users, seconds in self.steps)
        return {"load": "stepped users", "steps": steps, **self._thinking()}


class _Arrivals(_Checked, frozen=True, kw_only=True):
    """An open loop: requests are due at times that do not depend on answers.

    Args:
        max_in_flight: Ceiling on requests in flight. Due requests beyond it wait in the client, and their latency
            counts.
    """

    max_in_flight: int | None = None

    def arrivals(self, seed: int, part: int = 0, parts: int = 1) -> Iterator[Arrival]:
        """Return a part's share of the schedule; only random ones depend on the seed."""
        raise NotImplementedError

    def _held(self) -> dict[str, str]:
        return {} if self.max_in_flight is None else {"max_in_flight": str(self.max_in_flight)}


class Constant(_Arrivals, frozen=True, tag="constant"):
    """Endless arrivals with equal gaps.

    Args:
        rate: Requests a second.
    """

    rate: float

    def arrivals(self, seed: int, part: int = 0, parts: int = 1) -> Iterator[Arrival]:
        """Return a part's share of the schedule."""
        del seed
        return (Arrival(round(number * NANOSECONDS / self.rate), number) for number in count(part, parts))

    def workload(self) -> dict[str, str]:
        """Facts that a baseline must have in common with it."""
        return {"load": "open loop, constant", "rate": f"{self.rate:g}", **self._held()}


class Poisson(_Arrivals, frozen=True, tag="poisson"):
    """Endless independent arrivals, like those of many independent users.

    Args:
        rate: Requests a second, on average.
    """

    rate: float

    def arrivals(self, seed: int, part: int = 0, parts: int = 1) -> Iterator[Arrival]:
        """Return a part's share of the schedule."""
        return _accumulated(_exponential(seed, self.rate), part, parts)

    def workload(self) -> dict[str, str]:
        """Facts that a baseline must have in common with it."""
        return {"load": "open loop, Poisson", "rate": f"{self.rate:g}", **self._held()}


class Gamma(_Arrivals, frozen=True, tag="gamma"):
    """Endless arrivals with gamma-distributed gaps: smoother than Poisson (shape above 1) or burstier (below).

    Args:
        rate: Requests a second, on average.
        shape: Shape of the gaps' distribution, whose squared coefficient of variation is ``1 / shape``; 1 is Poisson.
    """

    rate: float
    shape: float

    def arrivals(self, seed: int, part: int = 0, parts: int = 1) -> Iterator[Arrival]:
        """Return a part's share of the schedule."""
        draw = random.Random(seed)  # noqa: S311 -- reproducible, not secret
        scale = 1 / (self.rate * self.shape)
        return _accumulated(starmap(draw.gammavariate, repeat((self.shape, scale))), part, parts)

    def workload(self) -> dict[str, str]:
        """Facts that a baseline must have in common with it."""
        return {"load": "open loop, gamma", "rate": f"{self.rate:g}", "shape": f"{self.shape:g}", **self._held()}


class Trace(_Arrivals, frozen=True, tag="trace"):
    """A recorded load, replayed once.

    Args:
        requests: Due time in seconds from the begin, and index of the payload, for each request.
    """

    requests: tuple[tuple[float, int], ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        pairs = _pairs("Trace([...])", "(seconds, payload)", self.requests)
        msgspec.structs.force_setattr(self, "requests", pairs)
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

    def arrivals(self, seed: int, part: int = 0, parts: int = 1) -> Iterator[Arrival]:
        """Return a part's share of the schedule."""
        del seed
        return (
            Arrival(round(seconds * NANOSECONDS), number, index)
            for number, (seconds, index) in islice(enumerate(self.requests), part, None, parts)
        )

    def workload(self) -> dict[str, str]:
        """Facts that a baseline must have in common with it."""
        text = ";".join(f"{float(seconds)!r},{index}" for seconds, index in self.requests)
        return {"load": "trace", "requests": str(len(self.requests)), "trace": digest(text), **self._held()}


class Burst(_Arrivals, frozen=True, tag="burst"):
    """All requests due at once, as a queue that was filled while the server was away.

    Args:
        requests: Number of requests.
    """

    requests: int

    def arrivals(self, seed: int, part: int = 0, parts: int = 1) -> Iterator[Arrival]:
        """Return a part's share of the schedule."""
        del seed
        return (Arrival(0, number) for number in range(part, self.requests, parts))

    def workload(self) -> dict[str, str]:
        """Facts that a baseline must have in common with it."""
        return {"load": "burst", "requests": str(self.requests), **self._held()}


ClosedSchedule = Closed | Steps
OpenSchedule = Constant | Poisson | Gamma | Trace | Burst
Schedule = Closed | Steps | Constant | Poisson | Gamma | Trace | Burst


def is_open(schedule: Schedule) -> bool:
    """Whether requests are sent without regard to answers."""
    return isinstance(schedule, _Arrivals)


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
    if not pairs or any(len(each) != 2 for each in pairs):
        raise UsageProblem(f"{what} takes a list of at least one {pair}")
    return pairs
