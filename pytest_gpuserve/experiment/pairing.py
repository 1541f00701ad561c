"""Takes rounds of two servers: alternately, or start by start if only one fits at a time."""

from __future__ import annotations

import math
import random
import re
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.errors import GpuserveError, ServerFailed
from pytest_gpuserve.experiment.loaded import LoadedServer, host_watched
from pytest_gpuserve.experiment.sampling import is_interrupted, take_starts
from pytest_gpuserve.experiment.shape import Pace, pace_of
from pytest_gpuserve.experiment.shared_starts import StartedPair
from pytest_gpuserve.measure.conditions import MOST_REJECTED_SHARE, too_many_rejected
from pytest_gpuserve.measure.points import NotMeasured
from pytest_gpuserve.measure.rounds import ABBA, ARMS, BAAB, TURNS, Round, of_arm, round_point
from pytest_gpuserve.measure.steady import drifts
from pytest_gpuserve.measure.window import Start
from pytest_gpuserve.units import utc_now
from pytest_gpuserve.verdict.evidence import BLOCKS
from pytest_gpuserve.verdict.metric import METRICS
from pytest_gpuserve.verdict.reason import Reason, ReasonKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.experiment.loaded import HostUse, Measured, Progress
    from pytest_gpuserve.experiment.shape import LoadShape
    from pytest_gpuserve.experiment.shared_starts import SharedStarts
    from pytest_gpuserve.experiment.telemetry import TelemetryMonitor
    from pytest_gpuserve.measure.rounds import Arm
    from pytest_gpuserve.servers.instance import Instance

MOST_AGAIN: Final = round(BLOCKS * MOST_REJECTED_SHARE / (1 - MOST_REJECTED_SHARE))
"""Most repeated blocks of a round; more repeats would mean that a whole round loses too large a share."""

MOST_REJECTED: Final = 3
"""Most blocks of a round that are thrown away because others used the host.

A host that is never quiet is measured as it is, because both servers suffer alike.
"""

_NO_MEMORY: Final = re.compile(
    r"out of memory|OutOfMemory|cannot allocate memory|bad_alloc|MemoryError|killed by SIGKILL"
    # vLLM and SGLang reserve most of the GPU's memory, and say this if another server has it.
    r"|free memory on device .* is less than|no available memory for the cache|not enough memory",
    re.IGNORECASE,
)


class BaseFailed(GpuserveError):
    """The base could not be started."""


class _DoNotFit(Exception):
    """Two servers do not fit into memory together; the monitor knows what they left on the GPU."""

    def __init__(self, monitor: TelemetryMonitor) -> None:
        super().__init__()
        self.monitor = monitor


@dataclass
class _Open:
    """An open round; its stack ends the load, not the servers.

    Args:
        again: Number of blocks that were repeated because GPU or client were disturbed.
        rejected: Number of blocks that were repeated because others used the host.
    """

    pair: StartedPair
    servers: dict[Arm, LoadedServer]
    at: str
    pace: Pace
    stack: ExitStack
    again: int = 0
    rejected: int = 0

    @property
    def blocks(self) -> int:
        """Number of measured blocks."""
        return min(len(server.measured) for server in self.servers.values()) // TURNS

    @property
    def problems(self) -> tuple[Reason, ...]:
        """Reasons why the round proves nothing, each with its server."""
        return _of_both(self, lambda server: server.problems)


class Pairing:
    """Two deployments under one load. The creator closes the pairing, so that no load outlives it.

    Args:
        base: The reference.
        candidate: The judged deployment.
        shape: The load, which is the same for both.
        progress: Shown the progress of the loads.
        rounds: Earlier rounds of the same pair.
        tolerance: The throughput's tolerance: a tighter one makes a window longer.
        one_at_a_time: Whether only one of the servers may run at a time.
        seed: Seed of the coins, and name of the load.
        starts: Owns the servers, which go on for other loads.

    Attributes:
        rounds: Rounds, the newest last; that one may still grow.
        one_at_a_time: Whether only one server runs at a time, by choice or because two did not fit.
        on_late_trouble: Called when trouble shows at the end of the servers, after the round was full.
        starts_together: Whether both servers of a round start at the same time, because cold starts are not compared.
    """

    def __init__(
        self,
        base: Target,
        candidate: Target,
        shape: LoadShape,
        progress: Progress,
        rounds: Iterable[Round] = (),
        *,
        tolerance: float,
        one_at_a_time: bool,
        seed: str,
        starts: SharedStarts,
    ) -> None:
        self.rounds: list[Round] = list(rounds)
        self.one_at_a_time = one_at_a_time
        self._targets: Mapping[Arm, Target] = {"base": base, "candidate": candidate}
        self._shape, self._tolerance, self._seed = shape, tolerance, seed
        self._progress = progress
        self._starts = starts
        self._open: _Open | None = None
        # Reasons of windows of a dropped round, which the next one repeats.
        self._dropped: Mapping[Arm, tuple[str, ...]] | None = None
        self.on_late_trouble: Callable[[], None] = lambda: None
        self.starts_together = True

    @property
    def blocks_of_open_round(self) -> int:
        """Blocks of the open round; 0 without one."""
        return self._open.blocks if self._open is not None else 0

    @property
    def start_in_blocks(self) -> float:
        """Time that the open round took before its first block, as a multiple of a block.

        If other loads use the servers too, it is this load's part of their start.
        """
        opened = self._open
        assert opened is not None
        start_seconds = opened.pair.start_seconds / len(opened.pair.loads)
        warmup_seconds = len(ARMS) * self._shape.warmup_seconds
        measured_seconds = sum(window.seconds for server in opened.servers.values() for window in server.windows)
        return (start_seconds + warmup_seconds) * opened.blocks / measured_seconds

    def measure(self, blocks: int) -> None:
        """Measure until the open round, or a new one, has so many blocks.

        Trouble ends the round and its servers, and appears in its ``problems``. So does the loss of a running load. A
        round that was disturbed as a whole, by a late client or by servers that still drift, is dropped. It is taken
        again with fresh servers, and a second disturbed round is trouble.

        Raises:
            BaseFailed: The base could not be started.
            ServerFailed: The candidate could not be started.
            LoadFailed: A load could not be begun.
        """
        try:
            while not self._measured(blocks):
                pass
        except BaseException:
            self._end_servers()
            if self.rounds and not self.rounds[-1].blocks and not self.rounds[-1].problems:
                self.rounds.pop()
            raise

    def _measured(self, blocks: int) -> bool:
        """Measure until a round has so many blocks; return whether it has, and was not dropped."""
        left: Iterable[Reason] = ()
        if not self.one_at_a_time:
            try:
                return self._fill(self._open or self._opened(), blocks)
            except _DoNotFit as problem:
                self.one_at_a_time, left = True, problem.monitor.problems()
        self._take_one_at_a_time(left)
        return True

    def close(self) -> None:
        """End the load; its servers go on for other loads."""
        opened, self._dropped = self._open, None
        if opened is not None:
            opened.pair.monitor.look()
            self._end_load()
            late = opened.pair.monitor.problems()
            if late:
                # Otherwise the next load of these servers would have them.
                self._hear_late(late)
                self._starts.end()

    def _end_load(self) -> None:
        if self._open is not None:
            opened, self._open = self._open, None
            try:
                opened.stack.close()
            finally:
                opened.pair.in_use = False

    def _end_servers(self) -> None:
        try:
            self._end_load()
        finally:
            self._starts.end()

    def _hear_late(self, problems: list[Reason]) -> None:
        """Invalidate the last round, which is that of the servers that have just ended."""
        if self.rounds:
            last = self.rounds[-1]
            self.rounds[-1] = replace(last, problems=(*last.problems, *problems))
            self.on_late_trouble()

    # -- one at a time

    def _take_one_at_a_time(self, left: Iterable[Reason]) -> None:
        """Measure a block of four fresh starts, one after the other, which is a round. Each counts as one window.

        Args:
            left: Problems that two servers have left on the GPU, which do not fit together.
        """
        self._starts.end()
        coin = self._coin(len(self.rounds))
        order = ABBA if coin.random() < 0.5 else BAAB
        # Both servers are measured for the same time, and both suffer alike on a host that is never quiet.
        shape = replace(
            self._shape,
            seed=self._shape.seed + coin.randrange(1 << 30),
            # Both starts of a server hold the requests of a quantile together.
            requests_wanted=tuple(-(-requests // TURNS) for requests in self._shape.requests_wanted),
            requests=None,
            until=None,
            foreign_cores=math.inf,
        )
        at = utc_now()
        taken, problems = take_starts(order, self._targets, self._start, shape, self._progress)
        if is_interrupted(problems):
            raise KeyboardInterrupt
        problems[:0] = left
        starts = {
            # A block that was broken off is not evidence.
            arm: tuple(replace(start, windows=()) if problems else start for start in known)
            for arm, known in taken.items()
        }
        self.rounds.append(Round(starts, at, one_at_a_time=True, problems=tuple(problems)))

    # -- two at a time

    def _opened(self) -> _Open:
        """Begin a round. Raises as `_start_both`."""
        pair = self._starts.find(self._seed, self._targets, starts_together=self.starts_together)
        if pair is None:
            pair = self._starts.begin(self._targets, self._start_both)
        at, pair.in_use = utc_now(), True
        dropped = self._dropped or {}
        with ExitStack() as stack:
            servers = {
                arm: LoadedServer(instance, self._targets[arm], self._shape, self._progress, dropped.get(arm, ()))
                for arm, instance in pair.instances.items()
            }
            for server in servers.values():
                server.warm_up(stack)
            paces = [pace_of(server.warmup, self._shape, self._tolerance) for server in servers.values()]
            # One pace for both: windows of different lengths would be different measurements.
            pace = Pace(max(pace.settle for pace in paces), max(pace.window for pace in paces))
            self._open = opened = _Open(pair, servers, at, pace, stack.pop_all())
        self.rounds.append(self._record(opened))
        pair.loads[self._seed] = self._hear_late
        return opened

    def _start_both(self, stack: ExitStack) -> StartedPair:
        """Start both servers, at the same time if cold starts are not compared.

        Raises:
            _DoNotFit: The two do not fit into memory together, so that they have to alternate.
            BaseFailed: The base could not be started.
            ServerFailed: The candidate could not be started.
        """
        # The GPU is checked once more, only after both have ended.
        monitor = stack.enter_context(self._targets["candidate"].telemetry_source.monitor())
        first, second = order = ARMS if self._coin(len(self.rounds)).random() < 0.5 else ARMS[::-1]
        began = time.monotonic()
        up: dict[Arm, Instance] = {}
        failed: dict[Arm, GpuserveError] = {}

        def start(arm: Arm, beside: Callable[[], None] | None = None) -> None:
            try:
                up[arm] = stack.enter_context(self._start(arm, beside))
            except GpuserveError as problem:
                failed[arm] = problem

        if self.starts_together:
            start(first, lambda: start(second, lambda: None))
        else:
            start(first)
            if not failed:
                start(second)
        if not failed:
            start_seconds = time.monotonic() - began
            monitor.up(*up.values())
            return StartedPair({arm: up[arm] for arm in order}, monitor, self.starts_together, start_seconds)
        tried = len(up) + len(failed)
        if tried == len(order) and all(map(_lacks_memory, failed.values())):
            raise _DoNotFit(monitor)
        # The first failure, because the other may be its consequence.
        raise next((problem for problem in failed.values() if not _lacks_memory(problem)), next(iter(failed.values())))

    @contextmanager
    def _start(self, arm: Arm, beside: Callable[[], None] | None = None) -> Iterator[Instance]:
        """Start a server, which ends with the block.

        Raises:
            BaseFailed: It is the base, and could not be started.
            ServerFailed: It is the candidate, and could not be started.
        """
        with ExitStack() as stack:
            try:
                instance = stack.enter_context(self._targets[arm].started(beside))
            except ServerFailed as problem:
                if arm == "candidate":
                    raise
                raise BaseFailed(
                    f"the base of the comparison could not be started: {problem.summary}",
                    found=problem.found,
                    looked=problem.looked,
                    remedies=problem.remedies,
                    log_tail=problem.log_tail,
                ) from problem
            yield instance

    def _coin(self, *numbers: int) -> random.Random:
        """A fair coin, which shows the same again for the same comparison and numbers."""
        return random.Random(" ".join(map(str, (self._seed, *numbers))))  # noqa: S311 -- not a secret

    def _fill(self, opened: _Open, blocks: int) -> bool:
        """Measure until the round has so many blocks; return whether it has, and was not dropped."""
        self._take_blocks(opened, blocks)
        surplus = TURNS * max(0, opened.blocks - BLOCKS)
        for server in opened.servers.values():
            server.rest()
            del server.measured[:surplus]
        if not opened.problems:
            # Also before the round goes on: its present blocks may reach a verdict.
            for server in opened.servers.values():
                server.judge()
        why = _of_both(opened, lambda server: server.disturbances)
        if why and self._dropped is None and not opened.problems:
            return self._drop(opened, why, surplus)
        for server in opened.servers.values():
            server.problems.extend(server.disturbances)
        problems = opened.problems
        self.rounds[-1] = self._record(opened)
        if problems or opened.blocks >= BLOCKS:
            self._dropped = None
            if problems:
                # Another load would meet this problem too.
                self._end_servers()
            else:
                self.close()
        return True

    def _take_blocks(self, opened: _Open, blocks: int) -> None:
        """Take blocks, twice as many while servers drift; to drift even then is a disturbance."""
        wanted = blocks
        while True:
            while opened.blocks < wanted and not opened.problems:
                self._block(opened)
            if opened.problems or opened.blocks < BLOCKS or not self._drifts(opened):
                return
            if wanted > BLOCKS:
                text = (
                    "no steady state: the difference between the servers was still changing after"
                    f" {opened.blocks} blocks; give them longer with load(..., warmup_seconds=...)"
                )
                opened.servers["candidate"].disturbances.append(Reason(ReasonKind.NO_STEADY_STATE, text))
                return
            wanted = 2 * BLOCKS

    def _drop(self, opened: _Open, why: Iterable[Reason], surplus: int) -> bool:
        """Drop a round, to be taken again; return whether it stays because it has other problems too."""
        self.rounds[-1] = self._record(opened)
        self._end_servers()
        if self.rounds[-1].problems:
            return True
        self.rounds.pop()
        text = "; ".join(map(str, why))
        self._dropped = {
            arm: (*server.rejected, *[text] * (surplus + len(server.measured)))
            for arm, server in opened.servers.items()
        }
        return False

    def _block(self, opened: _Open) -> None:
        """Measure a block, which counts unless it was disturbed, or broken off by trouble."""
        servers, shape, blocks = opened.servers, self._shape, opened.blocks
        coin = self._coin(len(self.rounds), blocks + opened.rejected + opened.again)
        order = ABBA if coin.random() < 0.5 else BAAB
        # Random arrivals differ between windows of a server, and are the same for both servers.
        seeds = [shape.seed + coin.randrange(1 << 30) for _ in range(TURNS)]
        window_ticks = None if shape.finite else opened.pace.window
        turns: list[tuple[Arm, Measured]] = []
        with host_watched(servers.values()) as use:
            for number, arm in enumerate(order):
                servers[_other(arm)].rest()
                if servers[arm].varies:
                    # A continued load would have other requests than the one that the other server begins with.
                    servers[arm].rest()
                seed = seeds[order[:number].count(arm)]
                measured = None if opened.problems else servers[arm].turn(opened.pace.settle, window_ticks, seed=seed)
                if measured is None:
                    break
                turns.append((arm, measured))
        if len(turns) == len(order) and self._counts(opened, turns, use):
            for server in servers.values():
                server.use.foreign_cores = max(server.use.foreign_cores, use.foreign_cores)
            return
        for server in servers.values():
            del server.measured[TURNS * blocks :]
        if len(turns) < len(order):
            opened.pair.monitor.look()
            servers["candidate"].problems.extend(opened.pair.monitor.problems())

    def _counts(self, opened: _Open, turns: Sequence[tuple[Arm, Measured]], use: HostUse) -> bool:
        """Whether a block was not disturbed, or has been measured again too often."""
        if use.foreign_cores > self._shape.foreign_cores and opened.rejected < MOST_REJECTED:
            opened.rejected += 1
            return False
        # The wait for the next sample does not hold the load up: its ticks come meanwhile and are counted.
        judged = opened.pair.monitor.judge([measured.window for _, measured in turns])
        found: dict[Reason, None] = {}
        for (arm, measured), (_, reasons) in zip(turns, judged, strict=True):
            found |= dict.fromkeys((*reasons, *opened.servers[arm].disturbed(measured.ticks)))
        for arm, server in opened.servers.items():
            windows = [window for (of, _), (window, _) in zip(turns, judged, strict=True) if of == arm]
            server.settle(windows, tuple(found))
        problems = opened.servers["candidate"].problems
        problems.extend(opened.pair.monitor.problems())
        opened.again += bool(found)
        if opened.again > MOST_AGAIN:
            problems.extend(too_many_rejected([each for server in opened.servers.values() for each in server.tried]))
        return not found

    def _drifts(self, opened: _Open) -> bool:
        """Whether one server changes relative to the other; a common drift is the machine's, and cancels."""
        starts = {
            arm: (Start(tuple(server.windows[-TURNS * BLOCKS :]), None),) for arm, server in opened.servers.items()
        }
        metric = METRICS["throughput"]
        try:
            return drifts(round_point(metric, Round(starts, ""), metric.default_tolerance).differences)
        except NotMeasured:
            return False

    def _record(self, opened: _Open) -> Round:
        starts = {arm: (server.record(),) for arm, server in opened.servers.items()}
        return Round(starts, opened.at, together=opened.pair.starts_together, problems=opened.problems)


def _of_both(opened: _Open, what: Callable[[LoadedServer], Iterable[Reason]]) -> tuple[Reason, ...]:
    """Combine texts about both servers, each with its server."""
    return tuple(reason for arm, server in opened.servers.items() for reason in of_arm(arm, what(server)))


def _other(arm: Arm) -> Arm:
    return "base" if arm == "candidate" else "candidate"


def _lacks_memory(problem: GpuserveError) -> bool:
    return _NO_MEMORY.search(f"{problem}\n{problem.log_tail}") is not None
