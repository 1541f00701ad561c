"""A run with the means to measure more."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pytest_gpuserve.experiment.sampling import take_session
from pytest_gpuserve.load.source import LOCAL
from pytest_gpuserve.measure.points import NotMeasured, pooled_value
from pytest_gpuserve.report.results import RunResult
from pytest_gpuserve.units import format_value
from pytest_gpuserve.verdict.metric import METRICS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.compare.assertions import Run
    from pytest_gpuserve.compare.baseline_store import BaselineKey, Workload
    from pytest_gpuserve.compare.paired_runner import PairedRunner
    from pytest_gpuserve.compare.side_by_side import SideBySide
    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.experiment.shape import LoadShape
    from pytest_gpuserve.measure.rounds import Round
    from pytest_gpuserve.measure.window import Session
    from pytest_gpuserve.verdict.metric import Metric
    from pytest_gpuserve.verdict.reason import Reason
    from pytest_gpuserve.verdict.verdict import Judgement, ReferenceKind


@dataclass
class Measurement:
    """A load of a test.

    Args:
        run: The test's view of it.
        target: Requests and their server.
        shape: Schedule and length of the load.
        workload: Description for a baseline.
        baseline_key: Place of its baseline.
        paired_runner: Makes comparisons side by side.
        seconds: Measuring time without a base.
        interrupted: Whether Ctrl-C cut it short.
        answers: The last answer to each comparison: of a metric, with its baseline, a limit or a duel's opponent.
        paired: The comparison with its base side by side, or None.
        absent: Reason why a side-by-side comparison could not run, or None.
        reading: Speed of the host, if it was read.
        beside: The base of the run from its first look on; None if it was measured alone, even if a base confirms it.
    """

    run: Run
    target: Target
    shape: LoadShape
    workload: Workload
    baseline_key: BaselineKey
    paired_runner: PairedRunner
    seconds: float = 0.0
    interrupted: bool = False
    answers: dict[tuple[str, ReferenceKind], Judgement] = field(default_factory=dict)
    paired: SideBySide | None = None
    absent: Reason | None = None
    reading: list[float | None] = field(default_factory=list)
    beside: ReferenceKind | None = None

    @property
    def rounds(self) -> Sequence[Round]:
        """Rounds of the run; empty if it was measured alone."""
        return self.paired.rounds if self.beside is not None and self.paired is not None else ()

    def take(self, baseline_clock_mhz: float | None = None) -> None:
        """Measure another session; the clock is as in `LoadShape`.

        Raises:
            ServerFailed: The server could not be started.
            LoadFailed: The load engine failed.
        """
        began = time.monotonic()

        def keep(session: Session) -> None:
            self.run.sessions.append(replace(session, host_reading=reading))

        if self.paired_runner.starts.make_room() or self.run.sessions:
            # The host was read beside running servers, or for another session.
            self.reading.clear()
        reading = self.host_reading()
        try:
            shape = replace(self.shape, baseline_clock_mhz=baseline_clock_mhz)
            take_session(self.target, shape, keep, self.paired_runner.progress)
        except KeyboardInterrupt:
            self.interrupted = True
            raise
        finally:
            self.seconds += time.monotonic() - began

    @property
    def is_own(self) -> bool:
        """Whether the test starts the server; else it runs already, perhaps on another host."""
        return bool(self.target.server.kind.python)

    def host_reading(self) -> float | None:
        """Speed of the host before its next session, read once; None if unknown."""
        if not self.reading:
            self.reading.append(self.paired_runner.read_host() if self.is_own else None)
        return self.reading[0]

    def look(self) -> None:
        """Measure to the next look beside its base, and add that to the run.

        Raises:
            BaseFailed: The base could not be started.
            ServerFailed: The server could not be started.
            LoadFailed: The load engine failed.
        """
        assert self.paired is not None
        try:
            self.paired.more()
        except KeyboardInterrupt:
            self.interrupted = True
            raise
        finally:
            self.show()

    def show(self) -> None:
        """Add the measurement beside the base to the run."""
        assert self.paired is not None
        self.run.sessions[:] = self.paired.sessions("candidate")

    @property
    def all_seconds(self) -> float:
        """Measuring time, alone and side by side."""
        return self.seconds + (self.paired.seconds if self.paired is not None else 0.0)

    def value(self, metric: Metric) -> float | None:
        """The metric over the whole measurement; None if unknown."""
        try:
            return pooled_value(metric, self.run.sessions)
        except NotMeasured:
            return None

    def so_far(self) -> str:
        """One line on the measurement of a load that was cut short."""
        windows = [window for session in self.run.sessions for window in session.windows]
        requests = sum(window.requests for window in windows)
        values = ", ".join(
            f"{metric.name} {format_value(value, metric.unit)}"
            for metric in METRICS.values()
            if not metric.on_request and (value := self.value(metric)) is not None
        )
        measured = f"{values} of {requests} requests" if values else "no request was measured yet"
        return f"interrupted by Ctrl-C, not decided: {measured}"

    def result(self) -> RunResult:
        """The load's result for reports."""
        kind = self.target.server.kind
        source = self.shape.source
        engine = {} if source is LOCAL else {"engine": source.name, "workers": str(self.shape.processes)}
        return RunResult(
            label=self.run.label,
            sessions=tuple(self.run.sessions),
            judgements=tuple(self.answers.values()),
            load={**self.shape.workload(), **self.target.fingerprint(), **engine},
            server={**kind.workload(), **self.workload.information},
            base=None if self.paired is None else self.paired.name,
            base_options=() if self.paired is None else self.paired.options,
            base_sessions=() if self.paired is None else tuple(self.paired.sessions("base")),
            candidate_sessions=() if self.paired is None else tuple(self.paired.sessions("candidate")),
        )

    @property
    def foreign_cores(self) -> float:
        """Most cores that others took during one of its starts."""
        return max((start.foreign_cores for session in self.run.sessions for start in session.starts), default=0.0)
