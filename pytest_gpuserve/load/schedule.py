"""Schedules of requests, and objectives of their answers.

A schedule is a closed loop of users, or an open loop whose arrivals are fixed before the load begins. Every schedule is
absolute and reproducible: times count from the begin of the load, and come from a seeded generator, never from the end
of another action. So a stalled client is late, and reports that, instead of silently offering less load.

Engines that share an open loop divide its arrivals: among ``parts`` engines, the one of part ``part`` sends every
``parts``-th arrival from number ``part`` on. Together they send, to the nanosecond, what one alone would.
"""

from __future__ import annotations

import random
from itertools import accumulate, count, islice, repeat, starmap
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

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
    index: int | None = None  # type: ignore[assignment]  # an arrival is never searched as a tuple


class _Checked(msgspec.Struct, frozen=True):
    """A schedule whose numbers are checked.

    Raises:
        UsageProblem: A number is out of range, a list is empty, or times go back.
    """

    _load: ClassVar[str]

    def __post_init__(self) -> None:
        for each in msgspec.structs.fields(self):
            what, value = f"{type(self).__name__}({each.name}=...)", getattr(self, each.name)
            if each.type is float:
                _number(what, value, zero=each.default == 0)
            elif each.type is int or (each.type == int | None and value is not None):
                check_whole(what, value, 1)

    def workload(self) -> dict[str, str]:
        """Facts in which a baseline must agree with this schedule."""
        return {"load": self._load, **self._facts()}

    def _facts(self) -> dict[str, str]:
        """Fields that differ from their defaults."""
        given = [each for each in msgspec.structs.fields(self) if getattr(self, each.name) != each.default]
        values = {each.name: getattr(self, each.name) for each in given}
        return {each.name: f"{values[each.name]:g}" if each.type is float else str(values[each.name]) for each in given}


class _Users(_Checked, frozen=True, kw_only=True):
    """Users, each of whom sends the next request when the last one is answered."""

    think_seconds: float = 0.0


class Closed(_Users, frozen=True, tag="closed"):
    """A constant number of users.

    Args:
        users: Number of users.
        think_seconds: Pause of a user between an answer and the next request.
    """

    _load = "closed loop"
    users: int

    def _facts(self) -> dict[str, str]:
        facts = super()._facts()
        return {"concurrency": facts.pop("users"), **facts}


class Steps(_Users, frozen=True, tag="steps"):
    """Users whose number changes in steps; the last step's end is the load's end.

    Args:
        steps: Number of users and seconds of each step. A user who is taken away leaves after the current answer.
        think_seconds: Pause of a user between an answer and the next request.
    """

    _load = "stepped users"
    steps: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        msgspec.structs.force_setattr(self, "steps", _pairs("Steps([...])", "(users, seconds)", self.steps))
        for users, seconds in self.steps:
            check_whole("the users of a step", users, 1)
            _number("the seconds of a step", seconds)

    def _facts(self) -> dict[str, str]:
        steps = ", ".join(f"{users} for {seconds:g} s" for users, seconds in self.steps)
        return {**super()._facts(), "steps": steps}


class _Arrivals(_Checked, frozen=True, kw_only=True):
    """An open loop: requests are due at times that do not depend on answers."""

    max_in_flight: int | None = None

    def arrivals(self, seed: int, part: int = 0, parts: int = 1) -> Iterator[Arrival]:
        """Return the arrivals that one of several load engines sends.

        Every engine makes the times of all, so that they do not depend on the number of engines.
        """
        own = islice(enumerate(self._due_seconds(seed)), part, None, parts)
        # Rounded last, because rounded gaps would shift the rate of a fast schedule.
        return (Arrival(round(seconds * NANOSECONDS), number) for number, seconds in own)

    def _due_seconds(self, seed: int) -> Iterable[float]:
        """Due times of all arrivals, from the begin of the load."""
        raise NotImplementedError


class Constant(_Arrivals, frozen=True, tag="constant"):
    """Endless arrivals with equal gaps.

    Args:
        rate: Requests a second.
        max_in_flight: Ceiling on requests in flight. Due requests beyond it wait in the client, and their latency
            counts.
    """

    _load = "open loop, constant"
    rate: float

    def _due_seconds(self, seed: int) -> Iterable[float]:
        del seed
        return (number / self.rate for number in count())


class Poisson(_Arrivals, frozen=True, tag="poisson"):
    """Endless independent arrivals, like those of many independent users.

    Args:
        rate: Requests a second, on average.
        max_in_flight: Ceiling on requests in flight. Due requests beyond it wait in the client, and their latency
            counts.
    """

    _load = "open loop, Poisson"
    rate: float

    def _due_seconds(self, seed: int) -> Iterable[float]:
        draw = random.Random(seed)  # noqa: S311 -- reproducible, not secret
        return accumulate(starmap(draw.expovariate, repeat((self.rate,))))


class Gamma(_Arrivals, frozen=True, tag="gamma"):
    """Endless arrivals with gamma-distributed gaps: smoother than Poisson (shape above 1) or burstier (below).

    Args:
        rate: Requests a second, on average.
        shape: Shape of the gaps' distribution, whose squared coefficient of variation is ``1 / shape``; 1 is Poisson.
        max_in_flight: Ceiling on requests in flight. Due requests beyond it wait in the client, and their latency
            counts.
    """

    _load = "open loop, gamma"
    rate: float
    shape: float

    def _due_seconds(self, seed: int) -> Iterable[float]:
        draw = random.Random(seed)  # noqa: S311 -- reproducible, not secret
        scale = 1 / (self.rate * self.shape)
        return accumulate(starmap(draw.gammavariate, repeat((self.shape, scale))))


class Trace(_Arrivals, frozen=True, tag="trace"):
    """A recorded load, replayed once.

    Args:
        requests: Due time of each request in seconds from the start of the load, and its index in
            ``server.rotate([...])``.
        max_in_flight: Ceiling on requests in flight. Due requests beyond it wait in the client, and their latency
            counts.
    """

    _load = "trace"
    requests: tuple[tuple[float, int], ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        pairs = _pairs("Trace([...])", "(seconds, payload)", self.requests)
        msgspec.structs.force_setattr(self, "requests", pairs)
        before = 0.0
        for number, (seconds, index) in enumerate(self.requests):
            _number(f"the time of request {number} of a Trace", seconds, zero=True)
            check_whole(f"the payload of request {number} of a Trace", index, 0)
            if seconds < before:
                raise UsageProblem(
                    f"the times of a Trace must rise, but request {number} is due at {seconds:g} s,"
                    f" after one at {before:g} s"
                )
            before = seconds

    def arrivals(self, seed: int, part: int = 0, parts: int = 1) -> Iterator[Arrival]:
        """Return the arrivals that one of several load engines sends."""
        own = super().arrivals(seed, part, parts)
        return (Arrival(at_ns, number, self.requests[number][1]) for at_ns, number, _ in own)

    def _due_seconds(self, seed: int) -> Iterable[float]:
        del seed
        return (seconds for seconds, _ in self.requests)

    def _facts(self) -> dict[str, str]:
        text = ";".join(f"{float(seconds)!r},{index}" for seconds, index in self.requests)
        return {**super()._facts(), "requests": str(len(self.requests)), "trace": digest(text)}


class Burst(_Arrivals, frozen=True, tag="burst"):
    """All requests due at once, as a queue that was filled while the server was away.

    Args:
        requests: Number of requests.
        max_in_flight: Ceiling on requests in flight. Due requests beyond it wait in the client, and their latency
            counts.
    """

    _load = "burst"
    requests: int

    def _due_seconds(self, seed: int) -> Iterable[float]:
        del seed
        return repeat(0.0, self.requests)


ClosedSchedule = Closed | Steps
OpenSchedule = Constant | Poisson | Gamma | Trace | Burst
Schedule = Closed | Steps | Constant | Poisson | Gamma | Trace | Burst


def is_open(schedule: Schedule) -> bool:
    """Whether requests are sent without regard to answers."""
    return isinstance(schedule, _Arrivals)


def is_finite(schedule: Schedule) -> bool:
    """Whether the schedule ends by itself."""
    return isinstance(schedule, (Steps, Trace, Burst))


def check_whole(what: str, value: object, least: int, most: int | None = None) -> None:
    """Raise UsageProblem unless a value is a whole number in this range."""
    if type(value) is not int or value < least or (most is not None and value > most):
        bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise UsageProblem(f"{what} must be a whole number {bounds}, not {value!r}")


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


class Objectives(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits in seconds. An answer is good if it meets all of them.

    Goodput is that of Y. Zhong et al. ("DistServe: Disaggregating Prefill and Decoding for Goodput-optimized Large
    Language Model Serving", OSDI 2024), and of vLLM's ``bench serve --goodput``. An answer of one token does not have a
    TPOT, so it meets every ``tpot``.

    Args:
        ttft: Most seconds until the first chunk with content.
        tpot: Most seconds for each token after the first.
        latency: Most seconds until the last byte, or until a stream's last chunk with content.

    Raises:
        UsageProblem: All objectives are missing, or one is not a number above 0.
    """

    ttft: float | None = None
    tpot: float | None = None
    latency: float | None = None

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in self.__struct_fields__ if getattr(self, name) is not None}
        for name, value in given.items():
            _number(f"Objectives({name}=...)", value)
        if not given:
            raise UsageProblem("Objectives() needs at least one objective", remedies=["Objectives(ttft=200 * ms)"])

    def __str__(self) -> str:
        """``ttft <= 0.2 s, tpot <= 0.03 s``; unique to the objectives, because it is part of the workload."""
        known = {name: getattr(self, name) for name in self.__struct_fields__}
        return ", ".join(f"{name} <= {float(limit)!r} s" for name, limit in known.items() if limit is not None)

    @property
    def is_of_streams(self) -> bool:
        """Whether only a stream can meet the objectives."""
        return self.ttft is not None or self.tpot is not None

    def met(self, latency_ns: int, ttft_ns: int | None, tpot_ns: int | None) -> bool | None:
        """Whether an answer meets all objectives; None if that depends on an unknown value."""
        limits = ((self.latency, latency_ns), (self.ttft, ttft_ns), (self.tpot, tpot_ns))
        asked = [(limit * 1e9, found_ns) for limit, found_ns in limits if limit is not None]
        if any(found_ns is not None and found_ns > limit_ns for limit_ns, found_ns in asked):
            return False
        return None if any(found_ns is None for _, found_ns in asked) else True
