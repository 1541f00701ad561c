"""Takes a session: fresh starts of a server, each warmed up and then loaded window by window."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psutil

from pytest_gpuserve.device.contention import cores_taken_by_others, read_cpu
from pytest_gpuserve.errors import ServerFailed, UsageProblem
from pytest_gpuserve.load.driver import Engine
from pytest_gpuserve.load.request import check_answer
from pytest_gpuserve.load.wire import Plan, Tick
from pytest_gpuserve.measure.histogram import Histogram
from pytest_gpuserve.measure.steady import truncate
from pytest_gpuserve.measure.window import Session, Start, Window
from pytest_gpuserve.servers.instance import HOST, Instance
from pytest_gpuserve.units import format_seconds, utc_now

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpuserve.servers.base import Counters
    from pytest_gpuserve.trial.handle import Target

TICK_SECONDS = 0.1
TICKS_A_WINDOW = 5

SATURATED_SHARE = 0.9
"""Above this share of a core the engine measures itself rather than the server."""

LENGTHEN_AT_MOST = 3
"""A start is measured up to so many times as long as asked, if its quantiles need more requests."""

DEATH_GRACE_SECONDS = 1.0
"""After errors, how long to look whether the server is dying, before the errors are taken for the cause."""

STUCK_SECONDS = 1.0
"""A shorter wait is not called stuck, however fast the other answers were."""

REMEMBERED_ANSWERS = 4096
"""Distinct answers whose check is remembered; the check of a repeated answer is then free."""


@dataclass(frozen=True)
class LoadShape:
    """The load of a run.

    Args:
        concurrency: Users of the closed loop: each sends its next request when its last one was answered.
        seconds: Measured time of a start.
        warmup_seconds: Loaded time before it, which is thrown away.
        starts: Fresh starts a session, two at least.
        timeout_seconds: After which a request is an error.
        requests_wanted: A start is lengthened (up to three times) to reach so many requests.
    """

    concurrency: int
    seconds: float = 4.0
    warmup_seconds: float = 1.0
    starts: int = 2
    timeout_seconds: float = 10.0
    requests_wanted: int = 0

    def __post_init__(self) -> None:
        if type(self.concurrency) is not int or self.concurrency < 1:
            raise UsageProblem(f"load(concurrency=...) is a whole number of users, not {self.concurrency!r}")
        if type(self.starts) is not int:
            raise UsageProblem(f"load(starts=...) is a whole number, not {self.starts!r}")
        if self.starts < 2:
            raise UsageProblem(
                f"load(starts={self.starts}): a session has two fresh starts at least",
                remedies=["starts of one build differ by more than windows of one start do; leave starts=... out"],
            )
        for name in ("seconds", "warmup_seconds", "timeout_seconds"):
            value = getattr(self, name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not (number and math.isfinite(value) and value > 0):
                argument = "timeout" if name == "timeout_seconds" else name
                raise UsageProblem(f"load({argument}=...) is a number of seconds above 0, not {value!r}")

    def workload(self) -> Mapping[str, str]:
        """What a baseline must have in common with it.

        How long it was looked at is no part of it; the number of starts is, for sessions of more starts vary less.
        """
        return {"load": "closed loop", "concurrency": str(self.concurrency), "starts": str(self.starts)}

    @property
    def windows(self) -> int:
        """Measured windows of a start; at least four, because half of them may be cut."""
        return max(4, round(self.seconds / (TICK_SECONDS * TICKS_A_WINDOW)))


def take_session(target: Target, shape: LoadShape) -> Session:
    """Start the server ``shape.starts`` times and load each.

    Trouble under load ends the session early and stands in its ``problems``: what was measured until then is kept,
    but nothing may be concluded from it.

    Args:
        target: The request and its deployment.
        shape: The load.

    Raises:
        ServerFailed: The server could not be started.
        LoadFailed: The load engine failed.
    """
    at = utc_now()
    checks = _Checks(target)
    starts: list[Start] = []
    batch_sizes: Counter[str] = Counter()
    problems: list[str] = []
    for _ in range(shape.starts):
        with target.started() as instance:
            load = _LoadedStart(instance, target, shape, checks)
            start = load.measure()
        if start.windows:
            starts.append(start)
        batch_sizes.update(load.batch_sizes)
        problems.extend(load.problems)
        if problems:
            break
    if not problems and target.request.expect is not None and not checks.checked:
        problems.append(f"none of {checks.answers} answers could be checked: each is larger than the engine passes on")
    return Session(
        starts=tuple(starts),
        at=at,
        problems=tuple(problems),
        batch_sizes=dict(batch_sizes),
        answers=checks.answers,
        answers_checked=checks.checked,
    )


class _Checks:
    """Compares answers with what the test expects, in the pytest process and so off the timing path."""

    def __init__(self, target: Target) -> None:
        self._expect = target.request.expect
        self._known: dict[bytes, str | None] = {}
        self.answers = 0
        self.checked = 0

    def wrong(self, tick: Tick) -> tuple[int, str]:
        """Return how many answers of a tick were wrong, and what was wrong with the first of them."""
        self.answers += tick.requests
        count, first = 0, ""
        for answer in tick.answers:
            if answer.body not in self._known:
                if len(self._known) >= REMEMBERED_ANSWERS:
                    self._known.clear()
                self._known[answer.body] = check_answer(self._expect, answer.body)
            complaint = self._known[answer.body]
            if self._expect is not None:
                self.checked += answer.count
            if complaint is not None:
                count += answer.count
                first = first or complaint
        return count, first


@dataclass
class _LoadedStart:
    """One start under load."""

    instance: Instance
    target: Target
    shape: LoadShape
    checks: _Checks
    problems: list[str] = field(default_factory=list)
    batch_sizes: dict[str, int] = field(default_factory=dict)
    oldest_ns: int = 0

    def measure(self) -> Start:
        """Warm up, measure, lengthen where needed, cut off what was not steady."""
        request, shape = self.target.request, self.shape
        plan = Plan(
            host=HOST,
            port=self.instance.port,
            payload=request.to_bytes(HOST, self.instance.port),
            head=request.method == "HEAD",
            connections=shape.concurrency,
            tick_ns=round(TICK_SECONDS * 1e9),
            timeout_ns=round(shape.timeout_seconds * 1e9),
        )
        windows: list[Window] = []
        with Engine(plan) as engine:
            self._ticks(engine, max(1, round(shape.warmup_seconds / TICK_SECONDS)))
            readings = [self._read_counters()]
            cpu = read_cpu(_our_processes())
            wanted = shape.windows
            while len(windows) < wanted and not self.problems:
                window, reading = self._window(engine, readings[-1])
                windows.append(window)
                readings.append(reading)
                if len(windows) == wanted:
                    wanted = self._lengthened(windows)
            taken = cores_taken_by_others(cpu, read_cpu(_our_processes()))
        if self.problems:
            return Start(tuple(windows), self.instance.cold_start_seconds)
        cut = truncate([window.throughput for window in windows])
        self._check_stuck(windows)
        first, last = readings[cut.discard], readings[-1]
        if first is not None and last is not None:
            self.batch_sizes = _difference(first, last)
        if not cut.steady:
            self.problems.append(
                f"no steady state: after {len(windows)} windows of {TICK_SECONDS * TICKS_A_WINDOW:.1f} s the"
                " throughput still changed; give it longer with load(..., warmup_seconds=...)"
            )
        return Start(
            tuple(windows[cut.discard :]),
            self.instance.cold_start_seconds,
            discarded=cut.discard,
            steady=cut.steady,
            foreign_cores=taken,
        )

    def _check_stuck(self, windows: list[Window]) -> None:
        """Requests without an answer have no latency: a server that has lost some of its users looks fast."""
        slowest_seconds = max(window.latency_max_seconds for window in windows)
        oldest_seconds = self.oldest_ns / 1e9
        if oldest_seconds > max(STUCK_SECONDS, 2 * slowest_seconds):
            self.problems.append(
                f"stuck requests: at the end one had waited {format_seconds(oldest_seconds)} for its answer, while the"
                f" slowest that was answered took {format_seconds(slowest_seconds)}; if the server is that uneven,"
                " measure longer: load(..., seconds=...)"
            )

    def _lengthened(self, windows: list[Window]) -> int:
        """How many windows the start should have, now that some are known."""
        base = self.shape.windows
        cut = truncate([window.throughput for window in windows])
        wanted = len(windows)
        if not cut.steady:
            wanted = max(wanted, 2 * base)
        kept = windows[cut.discard :]
        requests = sum(window.requests for window in kept)
        if 0 < requests < self.shape.requests_wanted:
            missing = (self.shape.requests_wanted - requests) / (requests / len(kept))
            wanted = max(wanted, len(windows) + math.ceil(missing))
        return min(wanted, LENGTHEN_AT_MOST * base)

    def _window(self, engine: Engine, before: Counters | None) -> tuple[Window, Counters | None]:
        ticks = self._ticks(engine, TICKS_A_WINDOW)
        after = self._read_counters() if not self.problems else None
        counts: Counter[int] = Counter()
        errors: Counter[str] = Counter()
        for tick in ticks:
            counts.update(tick.buckets)
            errors.update(tick.errors)
        seconds = sum(tick.end_ns - tick.begin_ns for tick in ticks) / 1e9
        cpu_seconds = sum(tick.cpu_ns for tick in ticks) / 1e9
        if cpu_seconds > SATURATED_SHARE * seconds:
            self.problems.append(
                f"client saturated: the load engine used {cpu_seconds / seconds:.0%} of a core, so it measured itself"
            )
        items = batches = None
        if before is not None and after is not None:
            items, batches = after.items - before.items, after.batches - before.batches
            if items < 0 or batches < 0:
                self.problems.append("the server's counters went backwards: a worker of it was restarted under load")
                items = batches = None
        window = Window(
            seconds=seconds,
            requests=sum(tick.requests for tick in ticks),
            errors=dict(errors),
            latency=Histogram(dict(counts)),
            latency_sum_seconds=sum(tick.latency_sum_ns for tick in ticks) / 1e9,
            latency_max_seconds=max(tick.latency_max_ns for tick in ticks) / 1e9,
            items=items,
            batches=batches,
            client_cpu_seconds=cpu_seconds,
        )
        return window, after

    def _ticks(self, engine: Engine, count: int) -> list[Tick]:
        """Take ticks until there are so many, or there is trouble; one at least."""
        ticks = []
        for _ in range(count):
            tick = engine.next_tick()
            ticks.append(tick)
            self.oldest_ns = tick.oldest_ns
            wrong, complaint = self.checks.wrong(tick)
            # A dying server first shows as a hundred reset connections, which would hide the cause.
            death = self.instance.death(grace_seconds=DEATH_GRACE_SECONDS if tick.errors else 0.0)
            if death is not None:
                self.problems.append(death)
            elif tick.errors:
                kinds = ", ".join(f"{kind}: {number}" for kind, number in sorted(tick.errors.items()))
                samples = "; ".join(f"{kind}: {text}" for kind, text in sorted(tick.error_samples.items()))
                self.problems.append(f"request errors ({kinds}); first of each kind: {samples}")
            if wrong:
                self.problems.append(f"wrong answers: {wrong} of {tick.requests}; the first: {complaint}")
            if self.problems:
                break
        return ticks

    def _read_counters(self) -> Counters | None:
        try:
            return self.instance.counters()
        except ServerFailed as problem:
            death = self.instance.death()
            self.problems.append(death or str(problem))
            return None


def _our_processes() -> list[psutil.Process]:
    """This process and all below it: the engine, the keepers, and through them the servers."""
    own = psutil.Process()
    return [own, *own.children(recursive=True)]


def _difference(first: Counters, last: Counters) -> dict[str, int]:
    sizes = {size: count - first.batch_sizes.get(size, 0) for size, count in last.batch_sizes.items()}
    return {size: count for size, count in sizes.items() if count > 0}
