"""A pytest plugin (``-p tests.fakes.scripted_gpus``, after ``scripted_sessions``) that makes up loads on a GPU.

What the GPUs do in each window, and how long each start takes, is made up beside what ``scripted_sessions`` makes up.
The script is ``gpus.json`` in the project's root folder; see `Gpus`. How a build differs stands in its app file, as
its speed does: ``COLD_START = 1.5`` and ``JOULES = 1.5`` times the script's.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Final

import msgspec
import pytest

from pytest_gpuserve.measure.window import GpuUse
from pytest_gpuserve.plugin.fixtures import SESSION_NAME
from tests.fakes.scripted_contender import ScriptedContender, ScriptedContenders, ScriptedInstance
from tests.fakes.scripted_sessions import SCRIPT_NAME, ScriptedSessions, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.experiment.server_arm import Pace
    from pytest_gpuserve.experiment.shape import LoadShape
    from pytest_gpuserve.experiment.watch import Progress
    from pytest_gpuserve.measure.rounds import Arm, ArmResult
    from pytest_gpuserve.measure.window import Session, Start, Window

GPUS_NAME: Final = "gpus.json"


class Gpus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What GPUs and starts are to be like.

    Args:
        seed: Of the noise.
        joules: For a request; None where the GPU does not count energy.
        memory_bytes: On the GPU.
        utilisation: Share of the time.
        cold_start_seconds: Of each start; None as of a server that was not started.
        noise: Standard deviation of the logarithm of joules; of cold starts five times that.
        no_gpu: Whether nothing is seen of a GPU.
    """

    seed: int = 0
    joules: float | None = 0.05
    memory_bytes: float | None = 2.0**31
    utilisation: float | None = 0.8
    cold_start_seconds: float | None = 10.0
    noise: float = 0.003
    no_gpu: bool = False


@dataclass(frozen=True)
class _Build:
    """A build on its GPU."""

    gpus: Gpus
    random: Random
    cold_start: float
    joules: float

    @classmethod
    def of(cls, path: Path, target: Target, name: str) -> _Build:
        gpus = msgspec.json.decode(path.with_name(GPUS_NAME).read_bytes(), type=Gpus)
        text = kind_of(target).app.file.read_text()
        factors = [
            float(found[1]) if (found := re.search(rf"^{factor} = (.+)$", text, re.MULTILINE)) else 1.0
            for factor in ("COLD_START", "JOULES")
        ]
        return cls(gpus, Random(f"{gpus.seed} {name}"), *factors)

    def window(self, window: Window) -> Window:
        gpus = self.gpus
        if gpus.no_gpu:
            return window
        joules = None if gpus.joules is None else gpus.joules * self.joules * window.requests * self._factor(1)
        return replace(window, gpus=GpuUse(joules, gpus.memory_bytes, gpus.utilisation, sm_clock_mhz=1350.0))

    def cold_start_seconds(self) -> float | None:
        seconds = self.gpus.cold_start_seconds
        return None if seconds is None else seconds * self.cold_start * self._factor(5)

    def start(self, start: Start) -> Start:
        return replace(
            start, windows=tuple(map(self.window, start.windows)), cold_start_seconds=self.cold_start_seconds()
        )

    def _factor(self, times: int) -> float:
        return math.exp(self.random.gauss(0.0, times * self.gpus.noise))


@dataclass
class _Sessions:
    """Takes scripted sessions, on a GPU."""

    sessions: ScriptedSessions

    def take(self, target: Target, shape: LoadShape, keep: Callable[[Session], None], progress: Progress) -> None:
        def keep_on_gpu(session: Session) -> None:
            build = _Build.of(self.sessions.path, target, str(self.sessions.taken))
            keep(replace(session, starts=tuple(map(build.start, session.starts))))

        self.sessions.take(target, shape, keep_on_gpu, progress)


class _Contender(ScriptedContender):
    """A scripted contender on a GPU."""

    build: _Build
    seconds: float | None

    @classmethod
    def of(cls, made: ScriptedContender, build: _Build) -> _Contender:
        server_arm = cls.__new__(cls)
        vars(server_arm).update(vars(made))
        server_arm.build, server_arm.seconds = build, build.cold_start_seconds()
        return server_arm

    def turn(self, pace: Pace, *, seed: int) -> Window | None:
        window = super().turn(pace, seed=seed)
        if window is None:
            return None
        # What is discarded later is told by what was returned here.
        self._windows[-1] = self.build.window(window)
        return self._windows[-1]

    def side(self) -> ArmResult:
        return replace(super().side(), cold_start_seconds=(self.seconds,))


class _Contenders(ScriptedContenders):
    """Makes scripted contenders on a GPU."""

    def of(
        self, arm: Arm, instance: ScriptedInstance, target: Target, shape: LoadShape, progress: Progress
    ) -> ScriptedContender:
        made = super().of(arm, instance, target, shape, progress)
        return _Contender.of(made, _Build.of(self.path, target, f"{arm} {sum(self._starts.values())}"))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Replace what measures, as ``scripted_sessions`` does, after it."""
    config = session.config
    if config.pluginmanager.get_plugin(SESSION_NAME) is None:
        return
    from pytest_gpuserve.compare import measurement
    from pytest_gpuserve.experiment import pairing

    path = config.rootpath / SCRIPT_NAME
    patch = pytest.MonkeyPatch()
    patch.setattr(measurement, "take_session", _Sessions(ScriptedSessions(path)).take)
    contenders = _Contenders(path)
    patch.setattr(pairing.Pairing, "_start", contenders.start)
    patch.setattr(pairing, "ServerArm", contenders)
    config.add_cleanup(patch.undo)
