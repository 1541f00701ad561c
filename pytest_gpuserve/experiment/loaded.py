"""One fresh start of a server under load, measured window by window, and its record."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from pytest_gpuserve.device.cpu import cores_taken_by_others, cpu_share, read_cpu
from pytest_gpuserve.errors import LoadFailed
from pytest_gpuserve.experiment.shape import LEAST_WINDOWS, TICK_SECONDS, TICKS_A_WINDOW, WINDOW_SECONDS, windows_wanted
from pytest_gpuserve.experiment.telemetry import TelemetryMonitor
from pytest_gpuserve.experiment.watch import Watch, client_of, our_processes
from pytest_gpuserve.load.driver import Engines
from pytest_gpuserve.load.tick import Tick, total
from pytest_gpuserve.measure.conditions import MOST_REJECTED_SHARE, too_many_rejected
from pytest_gpuserve.measure.counters import added
from pytest_gpuserve.measure.steady import truncate
from pytest_gpuserve.measure.window import Start
from pytest_gpuserve.units import format_seconds
from pytest_gpuserve.verdict.reason import Reason, ReasonKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.experiment.shape import LoadShape
    from pytest_gpuserve.experiment.watch import CounterReading, Progress
    from pytest_gpuserve.load.answers import AnswerCheck
    from pytest_gpuserve.measure.counters import Counters
    from pytest_gpuserve.measure.window import Window
    from pytest_gpuserve.servers.instance import Instance


class _Measured(NamedTuple):
    """A window with the data that is dropped with it when it is measured again."""

    window: Window
    ticks: list[Tick]
    counted: Counters | None
    readings: tuple[CounterReading | None, CounterReading | None]


@dataclass
class LoadedStart:
    """One fresh start of a server under load.

    Args:
        instance: The running server.
        target: The requests.
        shape: Schedule and length of the load.
        check: Check of the answers.
        progress: Shown the progress of the load.
        monitor: Watches the GPUs meanwhile.
        interrupted: Whether Ctrl-C cut the start short.
    """

    instance: Instance
    target: Target
    shape: LoadShape
    check: AnswerCheck
    progress: Progress
    monitor: TelemetryMonitor = field(default_factory=TelemetryMonitor)
    interrupted: bool = False
    _watch: Watch = field(init=False, repr=False)
    _reasons: list[tuple[Reason, ...]] = field(default_factory=list)
    _taken_cores: float = 0.0
    _cpu_share: float | None = None
    _measured: list[_Measured] = field(default_factory=list)
    _goal: int = 0
    _sifted: int = 0

    def __post_init__(self) -> None:
        self._watch = Watch(self.instance, self.target, self.shape, self.check, self.progress)

    @property
    def problems(self) -> list[Reason]:
        """Reasons why the start proves nothing."""
        return self._watch.problems

    @property
    def disturbances(self) -> list[Reason]:
        """Disturbances of the whole start, which proves nothing; another start may be free of them."""
        return self._watch.disturbances

    @contextmanager
    def _host_watched(self) -> Iterator[None]:
        """Watch who uses the host's cores until the end of the block; skipped if the block raises."""
        before = read_cpu(our_processes(self.instance.members()))
        yield
        after = read_cpu(our_processes(self.instance.members()))
        self._taken_cores, self._cpu_share = cores_taken_by_others(before, after), cpu_share(before, after)

    def _interrupt(self, measured: str) -> None:
        """Note that Ctrl-C cut the start short after so much."""
        self.interrupted = True
        text = f"interrupted by Ctrl-C after {measured}: not decided"
        self.problems.append(Reason(ReasonKind.INTERRUPTED, text))

    def _kept(self, windows: Sequence[Window], totals: Tick) -> Start:
        """Record of the start."""
        return Start(
            tuple(windows),
            self.instance.cold_start_seconds,
            foreign_cores=self._taken_cores,
            cpu_share=self._cpu_share,
            client=client_of(totals),
            cold_start_parts=self.instance.cold_start_parts,
            settings=self.instance.settings,
            rejected=tuple("; ".join(map(str, reasons)) for reasons in self._reasons if reasons),
        )

    def measure(self) -> Start:
        """Warm up, measure, lengthen if needed, cut off windows that are not steady.

        Trouble under load ends the start early and appears in ``problems``. So does Ctrl-C: the caller that finds
        ``interrupted`` raises it again once the measurement is safe.
        """
        discard, steady = 0, True
        try:
            with self._watch.sharing():
                self.monitor.up(self.instance)
                self._load()
            if not self.problems:
                discard, steady = self._cut(self._windows)
                self._watch.judge(self._ticks(discard), self._windows[discard:])
        except KeyboardInterrupt:
            self._interrupt(f"{len(self._measured)} windows")
        except LoadFailed as problem:
            if not self._watch.so_far.seconds:
                # The load never began, so an error loses no measurement.
                raise
            self._watch.lose(problem)
        return replace(
            self._kept(self._windows[discard:], self._totals(discard)),
            discarded=discard,
            steady=steady,
            counters=added([each.counted for each in self._measured[discard:] if each.counted is not None]),
        )

    def readings(self, start: Start) -> list[tuple[CounterReading | None, CounterReading | None]]:
        """Counter readings before and after each measured window."""
        return [each.readings for each in self._measured[start.discarded :]]

    @property
    def _windows(self) -> list[Window]:
        return [measured.window for measured in self._measured]

    def _cut(self, windows: list[Window]) -> tuple[int, bool]:
        """Number of windows to cut off the front, and whether the rest is steady."""
        if self.shape.finite:
            return 0, True
        cut = truncate([window.throughput for window in windows])
        if not cut.steady:
            text = (
                f"no steady state: after {len(windows)} windows of {WINDOW_SECONDS:.1f} s the"
                " throughput still changed; give it longer with load(..., warmup_seconds=...)"
            )
            self.disturbances.append(Reason(ReasonKind.NO_STEADY_STATE, text))
        return cut.discard, cut.steady

    def _totals(self, discard: int) -> Tick:
        return total(self._ticks(discard))

    def _ticks(self, discard: int) -> list[Tick]:
        return [tick for measured in self._measured[discard:] for tick in measured.ticks]

    def _load(self) -> None:
        """Measure the windows, and the CPU use of other processes meanwhile."""
        shape = self.shape
        self._goal = shape.windows
        warmup_ticks = max(1, round(shape.warmup_seconds / TICK_SECONDS))
        before = None
        if shape.finite:
            with Engines(self._watch.plan(shape.warmup), 1, shape.source) as engines:
                self._watch.ticks(engines, warmup_ticks)
                if not self.problems:
                    # Requests in flight would be counted as the load's.
                    engines.halt(seed=shape.seed)
            self._watch.so_far = Tick()
            # Start now: the load begins with its engines, and may end before its first tick is taken.
            before = self._watch.read_counters() if not self.problems else None
        if self.problems:
            return
        with Engines(self._watch.plan(shape.schedule), shape.processes, shape.source) as engines:
            if not shape.finite:
                self._watch.ticks(engines, warmup_ticks)
                before = self._watch.read_counters() if not self.problems else None
            with self._host_watched():
                while not self.problems and not self._watch.ended and not self._complete():
                    before = self._window(engines, before)
                self._sift(wait=True)
                self._judge_rejected()

    def _window(self, engines: Engines, before: CounterReading | None) -> CounterReading | None:
        """Measure a window."""
        ticks = self._watch.ticks(engines, TICKS_A_WINDOW)
        after = self._watch.read_counters() if not self.problems else None
        found = self._watch.counted(before, after)
        window = self._watch.window(ticks, found)
        if window is not None:
            self._measured.append(_Measured(window, ticks, found, (before, after)))
            # Usually judges the previous window: to wait for the samples of this one would hold the load up.
            self._sift(wait=False)
        return after

    def _complete(self) -> bool:
        """Whether enough was measured, and no window is due for another try."""
        return self._enough(self._windows) and not self._sift(wait=True)

    def _sift(self, *, wait: bool) -> bool:
        """Drop the windows with a disturbed GPU or a disturbed client; return whether any was dropped."""
        fresh = self._measured[self._sifted :]
        judged = self.monitor.judge([measured.window for measured in fresh], wait=wait)
        self.problems.extend(self.monitor.problems())
        good: list[_Measured] = []
        for measured, (window, reasons) in zip(fresh, judged, strict=False):
            # If a load is measured as a whole, its windows cannot be repeated, and the client is judged at the end.
            found = reasons if self.shape.finite else (*reasons, *self._watch.disturbed(measured.ticks))
            self._reasons.append(found)
            good += [] if found else [measured._replace(window=window)]
        self._measured[self._sifted : self._sifted + len(judged)] = good
        self._sifted += len(good)
        dropped = len(judged) - len(good)
        wanted = max(self._goal, self._sifted)
        if dropped and not self.problems and self._rejected > MOST_REJECTED_SHARE * (self._rejected + wanted):
            # Too many windows were lost, even if all others were good.
            self.problems.extend(too_many_rejected(self._reasons))
        return dropped > 0

    @property
    def _rejected(self) -> int:
        return sum(bool(reasons) for reasons in self._reasons)

    def _judge_rejected(self) -> None:
        if self.problems:
            return
        self.problems.extend(too_many_rejected(self._reasons))
        if self.shape.finite and self._rejected and not self.problems:
            first = next(filter(None, self._reasons))
            text = (
                f"{'; '.join(map(str, first))}; disturbed were {self._rejected} of {len(self._reasons)} windows of a"
                " load that is measured as a whole, so that none of them can be measured again"
            )
            self.problems.append(first[0].with_text(text))

    def _enough(self, windows: list[Window]) -> bool:
        shape = self.shape
        if shape.finite or len(windows) < LEAST_WINDOWS:
            return False
        if shape.requests is not None and sum(window.requests for window in windows) >= shape.requests:
            return True
        if shape.until is not None and shape.until(tuple(windows)):
            return True
        if len(windows) >= shape.most_windows:
            if shape.requests is not None:
                text = (
                    f"not reached: {sum(window.requests for window in windows)} of {shape.requests} requests within"
                    f" {format_seconds(sum(window.seconds for window in windows))}; allow more with load(...,"
                    " seconds=...)"
                )
                self.problems.append(Reason(ReasonKind.TOO_SHORT, text))
            elif shape.until is not None:
                text = (
                    f"not decided: until=... did not end it within {len(windows)} windows; allow more with load(...,"
                    " seconds=...)"
                )
                self.problems.append(Reason(ReasonKind.TOO_SHORT, text))
            return True
        if shape.requests is not None or shape.until is not None or len(windows) < self._goal:
            return False
        self._goal = windows_wanted(windows, shape)
        return len(windows) >= self._goal
