"""Contenders of a comparison side by side that are made up, by the script of ``scripted_sessions``."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

import msgspec

from pytest_gpuserve.errors import LoadFailed, ServerFailed
from pytest_gpuserve.experiment.pairing import _as_base_failure
from pytest_gpuserve.experiment.server_arm import Pace
from pytest_gpuserve.load.run import lost_in_mid_load
from pytest_gpuserve.measure.rounds import ArmResult
from tests.fakes.scripted_sessions import (
    STARTS_NAME,
    Noise,
    OnGpu,
    Script,
    client_of,
    kind_of,
    show,
    speed_of,
    window_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import ExitStack
    from pathlib import Path

    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.experiment.pairing import Pairing
    from pytest_gpuserve.experiment.shape import LoadShape
    from pytest_gpuserve.experiment.watch import Progress
    from pytest_gpuserve.measure.rounds import Arm
    from pytest_gpuserve.measure.window import Window
    from pytest_gpuserve.servers.base import ServerKind
    from pytest_gpuserve.servers.instance import Instance
    from pytest_gpuserve.verdict.reason import Reason

BLOCK_NOISE: Final = 10.0
"""Times the noise: what the windows of both servers in a block have in common, as a machine's drift; it cancels."""


@dataclass
class ScriptedContenders:
    """Makes contenders by the script, in the place of the class ``trial.contender.Contender``.

    Args:
        path: The script; every start reads it anew.
    """

    path: Path
    turns: int = field(default=0, init=False)
    _starts: dict[tuple[str, Path], int] = field(default_factory=dict, init=False)
    _running: int = field(default=0, init=False)

    @property
    def start(self) -> Callable[..., ScriptedInstance]:
        """Stand for ``Pairing._start``."""

        def start(
            pairing: Pairing, arm: Arm, stack: ExitStack, beside: Callable[[], None] | None = None
        ) -> ScriptedInstance:
            with _as_base_failure(arm):
                return self._started(arm, pairing._targets[arm], stack, beside)

        return start

    def of(
        self, arm: Arm, instance: ScriptedInstance, target: Target, shape: LoadShape, progress: Progress
    ) -> ScriptedContender:
        """Stand for ``ServerArm.of``."""
        del shape
        return ScriptedContender(self, arm, target, instance, progress)

    def _started(
        self, arm: Arm, target: Target, stack: ExitStack, beside: Callable[[], None] | None
    ) -> ScriptedInstance:
        """Start none.

        Raises:
            ServerFailed: Where the script says so.
        """
        script = msgspec.json.decode(self.path.read_bytes(), type=Script)
        app = kind_of(target).app.file
        if arm in script.fails:
            raise ServerFailed("mosec ended before it was ready", found=script.fails[arm])
        if script.memory_for_one and self._running:
            raise ServerFailed("mosec ended before it was ready", log_tail="torch.OutOfMemoryError: CUDA out of memory")
        self._tell(f"start {arm} {app}")
        self._running += 1
        stack.callback(self._end, arm)
        number = self._starts[arm, app] = self._starts.get((arm, app), 0) + 1
        noise = Noise(script, f"{arm} {app.name} {number} {sum(self._starts.values())}")
        speed = script.speed * speed_of(target, script, start=number) * noise.factor()
        if beside is not None:
            beside()
        on_gpu = OnGpu.of(target, script, f"{arm} {sum(self._starts.values())}")
        return ScriptedInstance(target.server.kind, script, speed, noise, on_gpu)

    def _end(self, arm: Arm) -> None:
        self._running -= 1
        self._tell(f"end {arm}")

    def _tell(self, line: str) -> None:
        with self.path.with_name(STARTS_NAME).open("a") as log:
            log.write(f"{line}\n")


@dataclass(frozen=True)
class ScriptedInstance:
    """A started server that is none.

    Args:
        kind: What it would be.
        script: The script.
        speed: Of this start.
        noise: Of its windows.
        on_gpu: What its GPU does.
    """

    kind: ServerKind
    script: Script
    speed: float
    noise: Noise
    on_gpu: OnGpu
    process: None = None


@dataclass
class ScriptedContender:
    """A load on a started server that is none.

    Args:
        makers: Who made it, and counts the turns of all.
        arm: Its side.
        target: What is sent to it.
        started: Its server.
        progress: Told of each window.
        varies: Whether its load would be begun anew for each turn.
        problems: Why nothing may be concluded from it.
    """

    makers: ScriptedContenders
    arm: Arm
    target: Target
    started: ScriptedInstance
    progress: Progress
    varies: bool = False
    problems: list[Reason] = field(default_factory=list)
    disturbances: tuple[Reason, ...] = ()
    _windows: list[Window] = field(default_factory=list)

    @property
    def script(self) -> Script:
        """The script."""
        return self.started.script

    def warm_up(self, stack: ExitStack) -> None:
        """It is warm."""

    def pace(self, requests_wanted: object, tolerance: object) -> Pace:
        """As if windows were long enough."""
        return Pace(settle=2, window=10)

    def turn(self, pace: Pace, *, seed: int) -> Window | None:
        """Make up a window, with what it has in common with the other server's; none where the script says so.

        Raises:
            KeyboardInterrupt: Where the script says so.
        """
        self.makers.turns += 1
        if self.makers.turns == self.script.interrupted_turn:
            raise KeyboardInterrupt
        if self.makers.turns == self.script.lost_turn:
            self.problems.append(lost_in_mid_load(LoadFailed("the load engine died", found="exit status -9")))
            return None
        block = Noise(msgspec.structs.replace(self.script, noise=BLOCK_NOISE * self.script.noise), f"block {seed}")
        noise = self.started.noise
        speed = self.started.speed * block.factor() * noise.factor()
        window = window_of(self.script, speed, noise.factor(), self.started.on_gpu.use())
        show((window,), self.progress)
        self._windows.append(window)
        return window

    def disturbed(self, window: Window) -> tuple[Reason, ...]:
        """Nothing disturbs it."""
        del window
        return ()

    def discard(self, windows: Iterable[Window]) -> None:
        """Forget turns that are no part of the round."""
        gone = {id(window) for window in windows}
        self._windows = [window for window in self._windows if id(window) not in gone]

    @property
    def instance(self) -> Instance:
        """There is no server."""
        return cast("Instance", None)

    def members(self) -> tuple[int, ...]:
        """There is no server."""
        return ()

    def rest(self) -> None:
        """End no load."""

    def judge(self) -> None:
        """Have the problems of the script."""
        if self.arm == "candidate":
            self.problems.extend(self.script.paired_problems)

    def side(self) -> ArmResult:
        """What is known of it beside its windows."""
        requests = sum(window.requests for window in self._windows)
        return ArmResult(
            cold_start_seconds=(self.started.on_gpu.cold_start_seconds(),),
            client=client_of(self._windows),
            batch_sizes={str(math.ceil(self.script.batch)): sum(window.batches or 0 for window in self._windows)},
            answers=requests,
            answers_checked=requests if any(request.expect is not None for request in self.target.requests) else 0,
        )
