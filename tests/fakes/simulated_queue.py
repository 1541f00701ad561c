"""A queue whose latencies are known by theory, searched for its capacity without a server, a clock or a socket."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.experiment.capacity.planning import Looks, Planner, Try, least_rate, search_for, settle_seconds
from pytest_gpuserve.experiment.capacity.probing import Probing
from pytest_gpuserve.experiment.shape import TICK_SECONDS
from pytest_gpuserve.gate.reason import ReasonKind
from pytest_gpuserve.load.durations import Durations
from pytest_gpuserve.load.schedule import Poisson
from pytest_gpuserve.load.totals import total
from pytest_gpuserve.load.validity import reasons
from pytest_gpuserve.load.wire import Tick
from pytest_gpuserve.measure.histogram import bucket_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpuserve.measure.capacity import Objective, Probe, Search
    from pytest_gpuserve.measure.objectives import Objectives

LAG_NS: Final = 100_000
"""By so much each request is sent late."""


@dataclass(frozen=True)
class Queue:
    """Requests that arrive by chance and are served in order by the first of several workers that is free.

    Args:
        service: Draws a service time in seconds.
        workers: How many there are.
        tpot: Of streams: draws the TPOT in seconds of a request, whose time in the queue is its TTFT. None of answers
            that are no streams.
    """

    service: Callable[[Random], float]
    workers: int = 1
    tpot: Callable[[Random], float] | None = None

    def ticks(
        self, rate: float, arrivals: Random, services: Random | None = None, objectives: Objectives | None = None
    ) -> Iterator[Tick]:
        """Load it, from an empty queue on; endless.

        Args:
            rate: Requests a second.
            arrivals: When they come.
            services: How long each takes; None where the same chance draws both.
            objectives: What a good answer has to meet; None where nobody asks.
        """
        services = arrivals if services is None else services
        free = [0.0] * self.workers
        due = arrivals.expovariate(rate)
        ends: list[tuple[float, float]] = []
        for number in itertools.count():
            begin, end = number * TICK_SECONDS, (number + 1) * TICK_SECONDS
            arrived, under_way = 0, 0.0
            while due < end:
                done = max(due, free[0]) + self.service(services)
                heapq.heapreplace(free, done)
                heapq.heappush(ends, (done, done - due))
                arrived += 1
                due += arrivals.expovariate(rate)
            latencies = []
            while ends and ends[0][0] < end:
                done, took = heapq.heappop(ends)
                latencies.append(round(took * 1e9))
                under_way += done - max(begin, done - took)
            under_way += sum(end - max(begin, done - took) for done, took in ends)
            counts = Counter(map(bucket_of, latencies))
            taken = Durations(dict(counts), sum(latencies), max(latencies, default=0))
            paces = [] if self.tpot is None else [round(self.tpot(services) * 1e9) for _ in latencies]
            found = zip(latencies, paces, strict=False)
            yield Tick(
                number,
                round(number * TICK_SECONDS * 1e9),
                round(end * 1e9),
                requests=len(latencies),
                latency=taken,
                service=taken,
                ttft=taken if paces else Durations(),
                tpot=Durations(dict(Counter(map(bucket_of, paces))), sum(paces), max(paces, default=0)),
                good=0 if objectives is None else sum(bool(objectives.met(took, took, pace)) for took, pace in found),
                lag=Durations({bucket_of(LAG_NS): arrived}, arrived * LAG_NS, LAG_NS) if arrived else Durations(),
                due=arrived,
                sent=arrived,
                in_flight=len(ends),
                in_flight_ns=round(under_way * 1e9),
                cpu_ns=1_000_000,
            )


def streams(rate: float, tpot_seconds: float) -> Queue:
    """A server of streams whose TTFT is the time in an M/M/1 queue, and whose TPOT is exponential with this mean."""
    return Queue(lambda random: random.expovariate(rate), tpot=lambda random: random.expovariate(1 / tpot_seconds))


def exponential(rate: float) -> Queue:
    """One worker with exponential service times: an M/M/1 queue."""
    return Queue(lambda random: random.expovariate(rate))


def capacity_of_exponential(rate: float, objective: Objective) -> float:
    """The capacity of an M/M/1 queue: its time in the system is exponential with the rate of service less arrivals.

    L. Kleinrock, "Queueing Systems", volume 1 (1975), 5.6: ``P(T > t) = exp(-(mu - lambda) t)``.
    """
    return rate + math.log(objective.allowed) / objective.seconds


def search_queue(
    queue: Queue,
    objective: Objective,
    guess: float,
    random: Random,
    *,
    known: float | None = None,
    seed: int | None = None,
) -> Search:
    """Search it as a start of a server is searched.

    Args:
        queue: The server.
        objective: What it has to meet.
        guess: Requests a second that users reach who wait for each answer.
        random: Arrivals and service times.
        known: The capacity of an earlier start; None for none.
        seed: Of the samples' arrivals; None for such as no other search has.
    """
    least = least_rate(objective, None)
    planner = Planner.beginning(guess=guess, known=known, precision=0.05, least=least)
    common = random.random() if seed is None else seed
    lengths: list[Looks] = []
    settle_ticks = math.ceil(settle_seconds(objective) / TICK_SECONDS)

    def take(which: Try, _: Search) -> Probe:
        rate, number = which.rate, which.sample
        if number is None:
            looks, arrivals = Looks.at(rate, objective, None), random
        else:
            lengths.append(Looks.of_sample(rate, objective, None))
            looks, arrivals = lengths[0], Random(f"{common} {number}")
        probing = Probing(objective, rate, looks, is_sample=number is not None, is_patient=which.is_last_resort)
        measured: list[Tick] = []
        for tick in itertools.islice(queue.ticks(rate, arrivals, random, objective.each), settle_ticks, None):
            measured.append(tick)
            if probing.add(tick):
                totals = total(measured)
                found = reasons(totals, schedule=Poisson(rate), processes=1)
                probe = probing.look(totals, [reason for reason in found if reason.kind is ReasonKind.OVERLOADED])
                if probe is not None:
                    return probe
        raise AssertionError("a probe ends at its last look")

    return search_for(objective, planner, take)


def loaded_seconds(search: Search) -> float:
    """For how long a server is loaded by the rates of a search, what is thrown away included."""
    return sum(probe.seconds + settle_seconds(search.objective) for probe in search.probes)
