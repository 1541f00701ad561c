"""Takes rounds of two servers: alternately, or start by start if only one fits at a time."""

from __future__ import annotations

import random
import re
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.device.cpu import cores_taken_by_others, read_cpu
from pytest_gpuserve.errors import GpuserveError, ServerFailed
from pytest_gpuserve.experiment.server_arm import Pace, ServerArm
from pytest_gpuserve.experiment.shared_starts import SharedStarts, StartedPair
from pytest_gpuserve.experiment.watch import our_processes
from pytest_gpuserve.measure.conditions import MOST_REJECTED_SHARE, too_many_rejected
from pytest_gpuserve.measure.counters import added
from pytest_gpuserve.measure.points import NotMeasured
from pytest_gpuserve.measure.rounds import ABBA, ARMS, BAAB, Arm, ArmResult, Block, Round, of_arm, round_point
from pytest_gpuserve.measure.steady import drifts
from pytest_gpuserve.measure.window import Client
from pytest_gpuserve.units import utc_now
from pytest_gpuserve.verdict.metric import METRICS
from pytest_gpuserve.verdict.reason import Reason, ReasonKind
from pytest_gpuserve.verdict.sequential import BLOCKS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.experiment.shape import Terms
    from pytest_gpuserve.experiment.telemetry import TelemetrySource
    from pytest_gpuserve.experiment.watch import Progress
    from pytest_gpuserve.measure.rounds import Arm
    from pytest_gpuserve.measure.window import Window
    from pytest_gpuserve.servers.instance import Instance

MOST_AGAIN: Final = round(BLOCKS * MOST_REJECTED_SHARE / (1 - MOST_REJECTED_SHARE))
"""Most repeated blocks of a round; more repeats would mean that a whole round loses too large a share."""


@dataclass
class Disturbed:
    """Disturbances of the GPU and the client during a round.

    Args:
        turns: Servers of all turns, with the reasons to measure them again; the turns of a block share its reasons.
        again: Number of repeats.
    """

    turns: list[tuple[Arm, tuple[Reason, ...]]] = field(default_factory=list)
    again: int = 0

    def add(self, found: Iterable[tuple[Arm, tuple[Reason, ...]]]) -> bool:
        """Add the turns of a block, or one turn; return whether they have to be measured again."""
        turns = list(found)
        together = tuple(dict.fromkeys(reason for _, reasons in turns for reason in reasons))
        self.turns += [(arm, together) for arm, _ in turns]
        self.again += bool(together)
        return bool(together)

    def invalid(self) -> list[Reason]:
        """Reasons why the turns prove nothing, if the conditions were never good for long."""
        return too_many_rejected([reasons for _, reasons in self.turns]) if self.again > MOST_AGAIN else []

    def reasons(self, of: Arm) -> tuple[str, ...]:
        """Reasons why windows of a server were measured again, one text each."""
        return tuple("; ".join(map(str, reasons)) for arm, reasons in self.turns if arm == of and reasons)


TURNS_ALONE: Final = BLOCKS
"""Factor of the window length for servers that do not run at the same time, because each window needs a start."""


@dataclass(frozen=True, slots=True)
class _TurnAlone:
    """Record of a server that was measured alone."""

    window: Window | None
    side: ArmResult
    foreign_cores: float
    problems: list[Reason]


def round_one_at_a_time(
    start: Callable[[Arm, ExitStack], ServerArm], terms: Terms, telemetry_source: TelemetrySource, *, number: int
) -> Round:
    """Measure a block of four fresh starts, one after the other, which is a round.

    Args:
        start: Starts a server, which ends with the stack.
        terms: Terms of the comparison.
        telemetry_source: The sampler of the GPUs.
        number: Number of the round, for its coins.

    Raises:
        ServerFailed: A server could not be started.
        LoadFailed: A load could not be begun.
    """
    coin = random.Random(f"{terms.seed} {number}")  # noqa: S311 -- a fair coin, not a secret
    order = ABBA if coin.random() < 0.5 else BAAB
    seed = terms.shape.seed + coin.randrange(1 << 30)
    at = utc_now()
    windows: list[Window] = []
    sides: dict[Arm, list[ArmResult]] = {arm: [] for arm in ARMS}
    problems: list[Reason] = []
    disturbed = Disturbed()
    foreign_cores = 0.0
    for arm in order:
        turn = _turn(start, arm, terms, telemetry_source, seed=seed, disturbed=disturbed)
        while turn is None and not problems:
            problems.extend(disturbed.invalid())
            turn = None if problems else _turn(start, arm, terms, telemetry_source, seed=seed, disturbed=disturbed)
        if turn is not None:
            foreign_cores = max(foreign_cores, turn.foreign_cores)
            sides[arm].append(turn.side)
            windows.extend([turn.window] if turn.window is not None else [])
            problems.extend(turn.problems)
        if problems:
            break
    whole = len(windows) == len(order)
    return Round(
        blocks=(Block(order, tuple(windows)),) if whole else (),
        first=order[0],
        sides={arm: replace(_joined(known), rejected=disturbed.reasons(arm)) for arm, known in sides.items()},
        at=at,
        one_at_a_time=True,
        rejected=disturbed.again,
        foreign_cores=foreign_cores,
        problems=tuple(problems),
    )


def _turn(
    start: Callable[[Arm, ExitStack], ServerArm],
    arm: Arm,
    terms: Terms,
    telemetry_source: TelemetrySource,
    *,
    seed: int,
    disturbed: Disturbed,
) -> _TurnAlone | None:
    """Measure a window of a fresh start; None if it is to be measured again."""
    with telemetry_source.monitor() as monitor, ExitStack() as stack:
        server_arm = start(arm, stack)
        monitor.up(server_arm.instance)
        pace = server_arm.pace(terms.shape.requests_wanted, terms.tolerance)
        # While the server runs: after its end its use would be taken for that of others.
        cpu = read_cpu(our_processes(server_arm.members()))
        window = server_arm.turn(Pace(pace.settle, pace.window * TURNS_ALONE), seed=seed)
        taken = cores_taken_by_others(cpu, read_cpu(our_processes(server_arm.members())))
        server_arm.rest()
        again = False
        if window is not None:
            ((window, reasons),) = monitor.judge([window], wait=True)
            reasons += server_arm.disturbed(window)
            if not reasons and not server_arm.problems:
                server_arm.judge()
                reasons = tuple(server_arm.disturbances)
            again = disturbed.add([(arm, reasons)])
        side = server_arm.side()
        problems = of_arm(arm, server_arm.problems)
    problems += monitor.problems()
    if again and not problems:
        return None
    return _TurnAlone(None if again else window, side, taken, problems)


def _joined(sides: list[ArmResult]) -> ArmResult:
    sizes: dict[str, int] = {}
    # The record is None if the other server's first start was in trouble.
    last = sides[-1] if sides else ArmResult(())
    for side in sides:
        for size, count in side.batch_sizes.items():
            sizes[size] = sizes.get(size, 0) + count
    return ArmResult(
        cold_start_seconds=tuple(seconds for side in sides for seconds in side.cold_start_seconds),
        client=Client.pooled(side.client for side in sides),
        batch_sizes=sizes,
        answers=sum(side.answers for side in sides),
        answers_checked=sum(side.answers_checked for side in sides),
        cold_start_parts=last.cold_start_parts,
        settings=last.settings,
        counters=added([side.counters for side in sides if side.counters is not None]),
    )


MOST_REJECTED: Final = 3
"""Most blocks of a round that are thrown away because others used the host.

A host that is never quiet is measured as it is, because both servers suffer alike.
"""

_NO_MEMORY: Final = re.compile(
    r"out of memory|OutOfMemory|cannot allocate memory|bad_alloc|MemoryError|killed by SIGKILL", re.IGNORECASE
)


class BaseFailed(GpuserveError):
    """The base could not be started."""


@dataclass(frozen=True, slots=True)
class _Dropped:
    """A round that was disturbed as a whole, and is taken again."""

    reasons: Mapping[Arm, tuple[str, ...]]
    blocks: int


@dataclass
class _Open:
    """An open round; its stack ends the load, not the servers."""

    pair: StartedPair
    server_arms: dict[Arm, ServerArm]
    at: str
    pace: Pace
    stack: ExitStack
    blocks: list[Block] = field(default_factory=list)
    rejected: int = 0
    disturbed: Disturbed = field(default_factory=Disturbed)
    foreign_cores: float = 0.0
    extended: bool = False
    before: _Dropped = _Dropped({}, 0)


class Pairing:
    """Two deployments under one load. The creator closes the pairing, so that no load outlives it.

    Args:
        base: The reference.
        candidate: The judged deployment.
        terms: Terms of the comparison.
        progress: Shown the progress of the loads.
        rounds: Earlier rounds of the same pair.
        starts: Owns the servers, which go on for other loads; None if only this pairing uses them.

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
        terms: Terms,
        progress: Progress,
        rounds: Iterable[Round] = (),
        *,
        starts: SharedStarts | None = None,
    ) -> None:
        self.rounds: list[Round] = list(rounds)
        self.one_at_a_time = terms.one_at_a_time
        self._targets: Mapping[Arm, Target] = {"base": base, "candidate": candidate}
        self._terms = terms
        self._progress = progress
        self._telemetry_source = candidate.telemetry_source
        self._starts = SharedStarts() if starts is None else starts
        self._is_alone = starts is None
        self._open: _Open | None = None
        self._dropped: _Dropped | None = None
        self.on_late_trouble: Callable[[], None] = lambda: None
        self.starts_together = True

    @property
    def blocks_of_open_round(self) -> int:
        """Blocks of the open round; 0 without one."""
        return len(self._open.blocks) if self._open is not None else 0

    @property
    def start_in_blocks(self) -> float:
        """Time that the open round took before its first block, as a multiple of a block.

        If other loads use the servers too, it is this load's part of their start.
        """
        opened = self._open
        assert opened is not None
        start_seconds = opened.pair.start_seconds / len(opened.pair.loads)
        warmup_seconds = len(ARMS) * self._terms.shape.warmup_seconds
        measured_seconds = sum(window.seconds for block in opened.blocks for window in block.windows)
        return (start_seconds + warmup_seconds) * len(opened.blocks) / measured_seconds

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
        if self.one_at_a_time:
            self._take_one_at_a_time()
            return True
        opened = self._open
        if opened is None:
            opened, problems = self._opened()
            if opened is None:
                self._take_one_at_a_time(problems)
                return True
        return self._fill(opened, blocks)

    def close(self) -> None:
        """End the load, and the servers if no other load uses them."""
        opened, self._dropped = self._open, None
        if self._is_alone:
            self._end_servers()
        elif opened is not None:
            self._end_load()

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

    def _take_one_at_a_time(self, problems: Iterable[Reason] = ()) -> None:
        self._starts.end()
        measured = round_one_at_a_time(self._started, self._terms, self._telemetry_source, number=len(self.rounds))
        self.rounds.append(replace(measured, problems=(*problems, *measured.problems)))

    # -- two at a time

    def _opened(self) -> tuple[_Open | None, list[Reason]]:
        """Begin a round, or None if the two servers do not fit into memory; also return leftover problems."""
        pair = self._starts.find(self._terms.seed, self._targets, starts_together=self.starts_together)
        if pair is None:
            pair = self._starts.begin(self._targets, self._start_both)
        if not pair.instances:
            left = pair.monitor.problems()
            for problem in left:
                pair.monitor.note(problem.text)
            return None, left
        at, pair.in_use = utc_now(), True
        with ExitStack() as stack:
            server_arms = {
                arm: ServerArm.of(arm, instance, self._targets[arm], self._terms.shape, self._progress)
                for arm, instance in pair.instances.items()
            }
            for server_arm in server_arms.values():
                server_arm.warm_up(stack)
            terms = self._terms
            paces = (arm.pace(terms.shape.requests_wanted, terms.tolerance) for arm in server_arms.values())
            pace = _slower(*paces)
            if not pair.is_measured:
                pair.monitor.up(*pair.instances.values())
                pair.is_measured = True
            self._open = opened = _Open(pair, server_arms, at, pace, stack.pop_all())
        opened.before = self._dropped or opened.before
        self.rounds.append(self._record(opened))
        pair.loads[self._terms.seed] = self._hear_late
        return opened, []

    def _start_both(self, stack: ExitStack) -> StartedPair:
        """Start both servers, at the same time if cold starts are not compared.

        Returns:
            A pair without servers if the two do not fit into memory together, so that they have to alternate.
        """
        # The GPU is checked once more, only after both have ended.
        monitor = stack.enter_context(self._telemetry_source.monitor())
        coin = random.Random(f"{self._terms.seed} {len(self.rounds)}")  # noqa: S311 -- a fair coin, not a secret
        first, second = order = ARMS if coin.random() < 0.5 else ARMS[::-1]
        began = time.monotonic()
        up: dict[Arm, Instance] = {}
        failed: dict[Arm, GpuserveError] = {}

        def start(arm: Arm, beside: Callable[[], None] | None = None) -> None:
            try:
                up[arm] = self._start(arm, stack, beside)
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
            return StartedPair({arm: up[arm] for arm in order}, monitor, self.starts_together, start_seconds)
        tried = len(up) + len(failed)
        if tried == len(order) and all(map(_lacks_memory, failed.values())):
            self.one_at_a_time = True
            return StartedPair({}, monitor, self.starts_together)
            # The first failure, because the other may be its consequence.
        raise next((problem for problem in failed.values() if not _lacks_memory(problem)), next(iter(failed.values())))

    def _start(self, arm: Arm, stack: ExitStack, beside: Callable[[], None] | None = None) -> Instance:
        """Start a server, which ends with the stack."""
        with _as_base_failure(arm):
            return stack.enter_context(self._targets[arm].started(beside))

    def _started(self, arm: Arm, stack: ExitStack) -> ServerArm:
        instance = self._start(arm, stack)
        server_arm = ServerArm.of(arm, instance, self._targets[arm], self._terms.shape, self._progress)
        server_arm.warm_up(stack)
        return server_arm

    def _fill(self, opened: _Open, blocks: int) -> bool:
        """Measure until the round has so many blocks; return whether it has, and was not dropped."""
        drift = self._take_blocks(opened, blocks)
        for server_arm in opened.server_arms.values():
            server_arm.rest()
            server_arm.discard(window for block in opened.blocks[:-BLOCKS] for window in block.windows)
            # Also before the round goes on: its present blocks may reach a verdict.
        if not self._problems(opened):
            for server_arm in opened.server_arms.values():
                server_arm.judge()
        why = [*drift, *_of_both(opened, lambda server_arm: server_arm.disturbances)]
        if why and self._dropped is None and not self._problems(opened):
            return self._drop(opened, why)
        opened.server_arms["candidate"].problems.extend(drift)
        for server_arm in opened.server_arms.values():
            server_arm.problems.extend(server_arm.disturbances)
        problems = self._problems(opened)
        self.rounds[-1] = self._record(opened)
        if problems or len(opened.blocks) >= BLOCKS:
            self._dropped = None
            if problems:
                # Another load would meet this problem too.
                self._end_servers()
            else:
                self.close()
        return True

    def _take_blocks(self, opened: _Open, blocks: int) -> list[Reason]:
        """Take blocks, twice as many while servers drift; return whether they still drift."""
        wanted = blocks
        while True:
            while len(opened.blocks) < wanted and not self._problems(opened):
                self._block(opened)
            steady = len(opened.blocks) < BLOCKS or not self._drifts(opened.blocks[-BLOCKS:])
            if steady or self._problems(opened):
                return []
            if opened.extended:
                text = (
                    "no steady state: the difference between the servers was still changing after"
                    f" {len(opened.blocks)} blocks; give them longer with load(..., warmup_seconds=...)"
                )
                return [Reason(ReasonKind.NO_STEADY_STATE, text)]
            opened.extended = True
            wanted = 2 * BLOCKS

    def _drop(self, opened: _Open, why: Iterable[Reason]) -> bool:
        """Drop a round, to be taken again; return whether it stays because it has other problems too."""
        self.rounds[-1] = self._record(opened)
        self._end_servers()
        if self.rounds[-1].problems:
            return True
        self.rounds.pop()
        text = "; ".join(map(str, why))
        self._dropped = _Dropped(
            {
                arm: opened.disturbed.reasons(arm) + tuple(text for block in opened.blocks for _ in block.of(arm))
                for arm in ARMS
            },
            opened.rejected + len(opened.blocks),
        )
        return False

    def _block(self, opened: _Open) -> None:
        number = len(opened.blocks) + opened.rejected
        name = f"{self._terms.seed} {len(self.rounds)} {number}"
        coin = random.Random(name)  # noqa: S311 -- a fair coin, not a secret
        order = ABBA if coin.random() < 0.5 else BAAB
        # Random arrivals differ between windows of a server, and are the same for both servers.
        seeds = [self._terms.shape.seed + coin.randrange(1 << 30) for _ in range(len(order) // 2)]
        cpu = read_cpu(our_processes(_members(opened.server_arms.values())))
        windows: list[Window] = []
        for arm in order:
            server_arm = opened.server_arms[arm]
            opened.server_arms[_other(arm)].rest()
            if server_arm.varies:
                # A continued load would have other requests than the one that the other server begins with.
                server_arm.rest()
            if self._problems(opened):
                return
            window = server_arm.turn(opened.pace, seed=seeds[order[: len(windows)].count(arm)])
            if window is None:
                return
            windows.append(window)
        taken = cores_taken_by_others(cpu, read_cpu(our_processes(_members(opened.server_arms.values()))))
        if taken > self._terms.shape.foreign_cores and opened.rejected - opened.disturbed.again < MOST_REJECTED:
            opened.rejected += 1
            for server_arm in opened.server_arms.values():
                server_arm.discard(windows)
            return
        # The wait for the next sample does not hold the load up: its ticks come meanwhile and are counted.
        judged = opened.pair.monitor.judge(windows, wait=True)
        opened.server_arms["candidate"].problems.extend(opened.pair.monitor.problems())
        if opened.disturbed.add(
            (arm, reasons + opened.server_arms[arm].disturbed(window))
            for arm, (window, reasons) in zip(order, judged, strict=True)
        ):
            opened.rejected += 1
            opened.server_arms["candidate"].problems.extend(opened.disturbed.invalid())
            for server_arm in opened.server_arms.values():
                server_arm.discard(windows)
            return
        opened.foreign_cores = max(opened.foreign_cores, taken)
        opened.blocks.append(Block(order, tuple(window for window, _ in judged)))

    def _drifts(self, blocks: list[Block]) -> bool:
        """Whether one server changes relative to the other; a common drift is the machine's, and cancels."""
        measured = Round(tuple(blocks), "base", {}, "")
        try:
            point = round_point(METRICS["throughput"], measured, METRICS["throughput"].default_tolerance)
        except NotMeasured:
            return False
        return drifts(point.differences)

    @staticmethod
    def _problems(opened: _Open) -> tuple[Reason, ...]:
        return _of_both(opened, lambda server_arm: server_arm.problems)

    def _record(self, opened: _Open) -> Round:
        return Round(
            blocks=tuple(opened.blocks[-BLOCKS:]),
            first=next(iter(opened.pair.instances)),
            sides={
                arm: replace(
                    server_arm.side(),
                    rejected=opened.before.reasons.get(arm, ()) + opened.disturbed.reasons(arm),
                )
                for arm, server_arm in opened.server_arms.items()
            },
            at=opened.at,
            together=opened.pair.starts_together,
            rejected=opened.before.blocks + opened.rejected + max(0, len(opened.blocks) - BLOCKS),
            foreign_cores=opened.foreign_cores,
            problems=self._problems(opened),
        )


@contextmanager
def _as_base_failure(arm: Arm) -> Iterator[None]:
    """Tell which of the servers could not be started."""
    try:
        yield
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


def _of_both(opened: _Open, what: Callable[[ServerArm], Iterable[Reason]]) -> tuple[Reason, ...]:
    """Combine texts about both servers, each with its server."""
    return tuple(reason for arm, server_arm in opened.server_arms.items() for reason in of_arm(arm, what(server_arm)))


def _other(arm: Arm) -> Arm:
    return "base" if arm == "candidate" else "candidate"


def _members(server_arms: Iterable[ServerArm]) -> list[int]:
    return [pid for server_arm in server_arms for pid in server_arm.members()]


def _slower(*paces: Pace) -> Pace:
    """One pace for both: windows of different lengths would be different measurements."""
    return Pace(settle=max(pace.settle for pace in paces), window=max(pace.window for pace in paces))


def _lacks_memory(problem: GpuserveError) -> bool:
    return _NO_MEMORY.search(f"{problem}\n{problem.log_tail}") is not None
