"""Searches for a capacity that are made up, by the script of ``scripted_sessions``."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

import msgspec

from pytest_gpuserve.experiment.capacity.rounds import SearchedUp
from pytest_gpuserve.experiment.telemetry import no_monitor
from pytest_gpuserve.measure.capacity import Probe, ProbeOutcome, Search
from pytest_gpuserve.measure.window import Start
from tests.fakes.scripted_sessions import STARTS_NAME, Noise, Script, client_of, kind_of, speed_of, window_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_gpuserve.experiment.capacity.shape import SearchShape
    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.experiment.pairing import Pairing
    from pytest_gpuserve.experiment.telemetry import TelemetryMonitor
    from pytest_gpuserve.experiment.watch import Progress
    from pytest_gpuserve.gate.reason import Reason
    from pytest_gpuserve.load.answers import AnswerCheck
    from pytest_gpuserve.measure.rounds import Arm
    from pytest_gpuserve.servers.instance import Instance

CAPACITY: Final = 1000.0
"""Requests a second, of a build of speed 1."""

PROBES: Final = (
    (0.75, ProbeOutcome.MET, 0.001),
    (0.98, ProbeOutcome.MET, 0.005),
    (1.02, ProbeOutcome.MISSED, 0.02),
    (1.125, ProbeOutcome.MISSED, 0.5),
)
"""Of the capacity, what was found there, and the share of slow requests: the capacity lies in the middle."""

SAMPLED: Final = (0.008, 0.009, 0.0095, 0.01, 0.01, 0.0105, 0.011, 0.012)
"""Share of slow requests in the samples at the capacity."""

REQUESTS: Final = 10_000


def searched_start(script: Script, noise: Noise, speed: float, shape: SearchShape) -> Start:
    """Make up a start of a build of this speed that was searched."""
    capacity = CAPACITY * speed * noise.factor()
    probes = tuple(
        Probe(
            rate=capacity * share,
            finding=finding,
            seconds=9.6,
            requests=REQUESTS,
            slow=round(REQUESTS * slow),
            effective=REQUESTS,
            latency=shape.objective.seconds * share,
        )
        for share, finding, slow in (*PROBES, *((1.0, ProbeOutcome.UNDECIDED, slow) for slow in SAMPLED))
    )
    window = window_of(script, speed, 1.0)
    return Start((window,), 1.0, client=client_of((window,)), search=Search(shape.objective, probes))


@dataclass
class ScriptedSearches:
    """Makes what ``trial.capacity.rounds`` searches, and what searches it.

    Args:
        path: The script; every start reads it anew.
    """

    path: Path
    _starts: dict[Path, int] = field(default_factory=dict, init=False)

    @property
    def up(self) -> object:
        """Stand for ``Pairing._up``."""

        @contextmanager
        def up(pairing: Pairing, arm: Arm) -> Iterator[SearchedUp]:
            log = self.path.with_name(STARTS_NAME)
            target = pairing._targets[arm]
            _tell(log, f"start {arm} {target.server}")
            try:
                yield SearchedUp(target, cast("Instance", None), no_monitor())
            finally:
                _tell(log, f"end {arm}")

        return up

    def start(  # noqa: PLR0917 -- as what it stands for
        self,
        instance: Instance,
        target: Target,
        shape: SearchShape,
        check: AnswerCheck,
        progress: Progress,
        monitor: TelemetryMonitor,
    ) -> ScriptedSearch:
        """Stand for ``SearchedStart``."""
        del instance, check, progress, monitor
        script = msgspec.json.decode(self.path.read_bytes(), type=Script)
        app = kind_of(target).app.file
        number = self._starts[app] = self._starts.get(app, 0) + 1
        noise = Noise(script, f"search {app} {number}")
        speed = script.speed * speed_of(target, script, start=number) * noise.factor()
        return ScriptedSearch(searched_start(script, noise, speed, shape), list(script.paired_problems))


@dataclass
class ScriptedSearch:
    """Searches nothing.

    Args:
        found: What it finds.
        problems: Why nothing may be concluded from it.
        interrupted: Whether Ctrl-C cut it short; never.
    """

    found: Start
    problems: list[Reason]
    interrupted: bool = False

    def measure(self) -> Start:
        """Find it."""
        return self.found


def _tell(log: Path, line: str) -> None:
    with log.open("a") as file:
        file.write(f"{line}\n")
