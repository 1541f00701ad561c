"""What a start under one load and one that is searched have in common: who looks on, and what is kept in the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_gpuserve.device.cpu import cores_taken_by_others, cpu_share, read_cpu
from pytest_gpuserve.experiment.telemetry import TelemetryMonitor, nobody
from pytest_gpuserve.experiment.watch import Watch, client_of, our_processes
from pytest_gpuserve.gate.reason import Reason, ReasonKind
from pytest_gpuserve.measure.conditions import WindowCondition, judge_windows
from pytest_gpuserve.measure.window import Start

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.experiment.shape import LoadShape
    from pytest_gpuserve.experiment.watch import Progress
    from pytest_gpuserve.load.answers import AnswerCheck
    from pytest_gpuserve.load.totals import Totals
    from pytest_gpuserve.measure.conditions import RunCondition
    from pytest_gpuserve.measure.window import Window
    from pytest_gpuserve.servers.instance import Instance


@dataclass
class OneStart(ABC):
    """One fresh start of a server that is measured.

    Args:
        instance: The running server.
        target: What is sent.
        shape: When.
        check: Of the answers.
        progress: Told how it gets on.
        monitor: Looks after the cards meanwhile.
        interrupted: Whether Ctrl-C cut it short.
    """

    instance: Instance
    target: Target
    shape: LoadShape
    check: AnswerCheck
    progress: Progress
    monitor: TelemetryMonitor = field(default_factory=nobody)
    interrupted: bool = False
    _watch: Watch = field(init=False, repr=False)
    _conditions: list[WindowCondition] = field(default_factory=list)
    _taken_cores: float = 0.0
    _cpu_share: float | None = None

    def __post_init__(self) -> None:
        shape = self._watched_shape
        self._watch = Watch(self.instance, self.target, shape, self.check, self.progress, self._seconds_left)

    @property
    def problems(self) -> list[Reason]:
        """Why nothing may be concluded from it."""
        return self._watch.problems

    @property
    def disturbances(self) -> list[Reason]:
        """What disturbed all of it, so that nothing may be concluded from it: another start may do without."""
        return self._watch.disturbances

    @property
    def _watched_shape(self) -> LoadShape:
        """The shape by which its loads are watched."""
        return self.shape

    @abstractmethod
    def measure(self) -> Start:
        """Measure it; why nothing may be concluded from that stands in ``problems``."""

    @abstractmethod
    def _seconds_left(self) -> float | None:
        """How long the load will still take, if that is known."""

    @contextmanager
    def _host_watched(self) -> Iterator[None]:
        """See who uses the host's cores until the end of the block; not where that ends by an exception."""
        before = read_cpu(our_processes(self.instance.members()))
        yield
        after = read_cpu(our_processes(self.instance.members()))
        self._taken_cores, self._cpu_share = cores_taken_by_others(before, after), cpu_share(before, after)

    def _judged(self) -> RunCondition:
        """What the conditions of its windows come to; what could not be seen of them is told."""
        found = judge_windows(self._conditions)
        for text in found.unknown:
            self.monitor.note(text)
        return found

    def _interrupt(self, measured: str) -> None:
        """Ctrl-C has cut it short, after so much."""
        self.interrupted = True
        text = f"interrupted by Ctrl-C after {measured}: not decided"
        self.problems.append(Reason(ReasonKind.INTERRUPTED, text))

    def _kept(self, windows: Sequence[Window], totals: Totals, ceiling: float | None = None) -> Start:
        """What is kept of it.

        Args:
            windows: What was measured, and is kept.
            totals: The same as what the load engines saw.
            ceiling: Requests a second that they reach on this host at most; None where that was not measured.
        """
        return Start(
            self.monitor.with_cards(windows),
            self.instance.cold_start_seconds,
            foreign_cores=self._taken_cores,
            cpu_share=self._cpu_share,
            client=client_of(totals, ceiling),
            cold_start_parts=self.instance.cold_start_parts,
            settings=self.instance.settings,
            telemetry=self.monitor.telemetry(windows),
            idle_watts=self.monitor.idle_watts,
            rejected=tuple("; ".join(condition.again) for condition in self._conditions if condition.again),
        )
