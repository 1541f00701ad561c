"""A pytest plugin (``-p tests.fakes.scripted_starts``) by which the windows of a start are made up, from a script.

It stands for a measurement where a test is about what is made of one: options, files, verdicts, exit codes, texts. It
takes no time, gives the same numbers on every machine, and starts no server. That real servers are really measured is
proven in tests/servers, and in tests/plugin by the tests that use ``real_project``.

Replaced are the start of a server and the load on it, alone and side by side; and pytest-gpuserve looks at no GPU. The
sessions, the rounds, their order, what is remembered and what is judged are the product's own.

The script is ``scripted.json`` in the project's root folder; see ``Script``. How fast a build is stands in its app
file, ``SPEED = 0.9``, so that it is seen which file would have been run; a file without it has the speed 1, and one of
the speed 0 does not start. ``COLD_START = 1.5`` and ``JOULES = 1.5`` are times of what is usual.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final, cast

import msgspec
import pytest

from pytest_gpuserve import units
from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.load.tick import Tick
from pytest_gpuserve.measure.rounds import ArmResult
from pytest_gpuserve.measure.window import GpuUse, Start, Window
from pytest_gpuserve.plugin.fixtures import SESSION_NAME
from pytest_gpuserve.verdict.reason import Reason  # noqa: TC001 -- read at run time
from tests.support.rounds import window_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.experiment.server_arm import Pace
    from pytest_gpuserve.experiment.shape import LoadShape
    from pytest_gpuserve.experiment.watch import Progress
    from pytest_gpuserve.load.answers import AnswerCheck
    from pytest_gpuserve.servers.mosec import Mosec

SCRIPT_NAME: Final = "scripted.json"

STARTS_NAME: Final = "starts.log"
"""Beside the script: a line for each server that would have been started or ended."""

BLOCK_NOISE: Final = 10.0
"""Times the noise: what the windows of both servers in a block have in common, as a machine's drift; it cancels."""

COLD_START_SECONDS: Final = 1.0
JOULES: Final = 0.05


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What loads are to be like.

    Args:
        seed: Of the noise; another one is another run of the same build.
        speed: Of the machine: at 0.5 a build answers half as many requests a second, each in twice the time.
        noise: Standard deviation of the logarithm of the speed, once between starts and once between windows; batches
            vary alike.
        problems: Why nothing may be concluded from a load that is measured alone.
        foreign_cores: Cores that others took.
        pythons: Speed of the builds that an interpreter runs, by its path; 1 if it is not named.
        interrupted_window: Number, from 1, of the window that Ctrl-C cuts short; 0 for none.
        gpu: Whether a GPU is seen.
    """

    seed: int = 0
    speed: float = 1.0
    noise: float = 0.003
    problems: tuple[Reason, ...] = ()
    foreign_cores: float = 0.0
    pythons: dict[str, float] = {}
    interrupted_window: int = 0
    gpu: bool = False


@dataclass
class ScriptedStarts:
    """Starts servers that are none.

    Args:
        path: The script; every start reads it anew.
        starts: How many there were.
        windows: How many were measured.
    """

    path: Path
    starts: int = field(default=0, init=False)
    windows: int = field(default=0, init=False)

    @contextmanager
    def started(self, target: Target, beside: Callable[[], None] | None = None) -> Iterator[ScriptedStart]:
        """Stand for ``Target.started``."""
        script = msgspec.json.decode(self.path.read_bytes(), type=Script)
        kind = cast("Mosec", target.server.kind)
        said = kind.app.file.read_text()

        def of_app(name: str) -> float:
            found = re.search(rf"^{name} = (.+)$", said, re.MULTILINE)
            return float(found[1]) if found is not None else 1.0

        if not of_app("SPEED"):
            raise ServerFailed("mosec ended before it was ready", found="no weights here")
        self.starts += 1
        random = Random(f"{script.seed} {self.starts}")
        speed = script.speed * of_app("SPEED") * script.pythons.get(kind.app.python, 1.0)
        cost = random.gauss(-math.log(speed), script.noise)
        cold_start_seconds = COLD_START_SECONDS * of_app("COLD_START") * math.exp(random.gauss(0.0, 5 * script.noise))
        self._tell(f"start {kind.app.file}")
        try:
            if beside is not None:
                beside()
            yield ScriptedStart(self, target, script, random, cost, cold_start_seconds, JOULES * of_app("JOULES"))
        finally:
            self._tell(f"end {kind.app.file}")

    def load(
        self, start: ScriptedStart, target: Target, shape: LoadShape, check: AnswerCheck, progress: Progress, _: object
    ) -> ScriptedLoad:
        """Stand for ``LoadedStart``."""
        return ScriptedLoad(start, target, shape, progress, check)

    def of(self, _arm: str, start: ScriptedStart, target: Target, shape: LoadShape, progress: Progress) -> ScriptedLoad:
        """Stand for ``ServerArm.of``."""
        return ScriptedLoad(start, target, shape, progress)

    def _tell(self, line: str) -> None:
        with self.path.with_name(STARTS_NAME).open("a") as log:
            log.write(f"{line}\n")


@dataclass
class ScriptedStart:
    """A started server that is none.

    Args:
        makers: Who made it, and counts the windows of all.
        target: What would be sent.
        script: The script.
        random: Its noise.
        cost: Log cost of its windows: how much slower it is than a build of speed 1.
        cold_start_seconds: How long it took.
        joules: Of a request.
    """

    makers: ScriptedStarts
    target: Target
    script: Script
    random: Random
    cost: float
    cold_start_seconds: float
    joules: float
    process: None = None

    @property
    def kind(self) -> object:
        """What it would be."""
        return self.target.server.kind

    def window(self, shared: float = 0.0) -> Window:
        """Make up a window, with a log cost that it shares with others.

        Raises:
            KeyboardInterrupt: Where the script says so.
        """
        self.makers.windows += 1
        if self.makers.windows == self.script.interrupted_window:
            raise KeyboardInterrupt
        noise = self.script.noise
        window = window_at(self.random.gauss(self.cost + shared, noise), batch_cost=self.random.gauss(0.0, noise))
        if not self.script.gpu:
            return window
        joules = self.joules * window.requests * math.exp(self.random.gauss(0.0, noise))
        return replace(window, gpus=GpuUse(joules, 2.0**31, 0.8, sm_clock_mhz=1350.0))


@dataclass
class ScriptedLoad:
    """A load on a started server that is none, in the place of ``LoadedStart`` and of ``ServerArm``."""

    start: ScriptedStart
    target: Target
    shape: LoadShape
    progress: Progress
    check: AnswerCheck | None = None
    varies: bool = False
    interrupted: bool = False
    problems: list[Reason] = field(default_factory=list)
    disturbances: tuple[Reason, ...] = ()
    _windows: list[Window] = field(default_factory=list)
    _so_far: Tick = field(default_factory=Tick)

    @property
    def instance(self) -> ScriptedStart:
        """The server."""
        return self.start

    def measure(self) -> Start:
        """See ``LoadedStart``."""
        assert self.check is not None
        script = self.start.script
        for _ in range(self.shape.windows):
            self._take()
        self.problems.extend(script.problems)
        self.check.answers += self._answers
        self.check.checked += self._checked
        return Start(tuple(self._windows), self.start.cold_start_seconds, foreign_cores=script.foreign_cores)

    def warm_up(self, _stack: object) -> None:
        """It is warm."""

    def pace(self, _requests_wanted: object, _tolerance: object) -> Pace:
        """As if windows were long enough."""
        from pytest_gpuserve.experiment.server_arm import Pace

        return Pace(settle=2, window=10)

    def turn(self, _pace: Pace, *, seed: int) -> Window:
        """See ``ServerArm``."""
        script = self.start.script
        return self._take(Random(f"{script.seed} block {seed}").gauss(0.0, BLOCK_NOISE * script.noise))

    def disturbed(self, _window: Window) -> tuple[Reason, ...]:
        """Nothing disturbs it."""
        return ()

    def discard(self, windows: Iterable[Window]) -> None:
        """Forget turns that are no part of the round."""
        gone = {id(window) for window in windows}
        self._windows = [window for window in self._windows if id(window) not in gone]

    def members(self) -> tuple[int, ...]:
        """There is no process."""
        return ()

    def rest(self) -> None:
        """There is no load to end."""

    def judge(self) -> None:
        """All is well."""

    def side(self) -> ArmResult:
        """What is known of it beside its windows."""
        return ArmResult((self.start.cold_start_seconds,), answers=self._answers, answers_checked=self._checked)

    @property
    def _answers(self) -> int:
        return sum(window.requests for window in self._windows)

    @property
    def _checked(self) -> int:
        return self._answers if any(request.expect is not None for request in self.target.requests) else 0

    def _take(self, shared: float = 0.0) -> Window:
        """Take a window, and tell of it what a real load tells of its ticks."""
        window = self.start.window(shared)
        self._windows.append(window)
        begin_ns = self._so_far.end_ns
        end_ns = begin_ns + round(window.seconds * 1e9)
        self._so_far += Tick(len(self._windows) - 1, begin_ns, end_ns, requests=window.requests, latency=window.latency)
        self.progress.show(self._so_far)
        return window


def pytest_configure(config: pytest.Config) -> None:
    """Let each run begin minutes after the one before it, as real ones do: times are told to the second."""
    path = config.rootpath / SCRIPT_NAME
    if not path.exists():
        return
    minutes = msgspec.json.decode(path.read_bytes(), type=Script).seed

    class Later(dt.datetime):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> Later:
            return super().now(tz) + dt.timedelta(minutes=minutes)

    patch = pytest.MonkeyPatch()
    patch.setattr(units, "dt", SimpleNamespace(datetime=Later, timezone=dt.timezone))
    config.add_cleanup(patch.undo)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Replace what measures, once it is certain that something will: who uses no load imports nothing for one."""
    config = session.config
    if config.pluginmanager.get_plugin(SESSION_NAME) is None:
        return
    from pytest_gpuserve.compare import screen
    from pytest_gpuserve.experiment import pairing, sampling, shared_starts
    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.experiment.telemetry import NO_TELEMETRY
    from pytest_gpuserve.plugin import session as plugin_session
    from pytest_gpuserve.plugin.opening import Equipment

    starts = ScriptedStarts(config.rootpath / SCRIPT_NAME)
    patch = pytest.MonkeyPatch()
    patch.setattr(Target, "started", lambda target, beside=None: starts.started(target, beside))
    patch.setattr(sampling, "LoadedStart", starts.load)
    patch.setattr(pairing, "ServerArm", starts)
    patch.setattr(shared_starts, "_answers", lambda *_: True)
    # Loads that are made up have no hours, so that stored numbers of them count, and a host of one speed.
    for module in (screen, plugin_session):
        patch.setattr(module, "may_screen", lambda _: True)
    patch.setattr(plugin_session, "read_host", lambda: -3.5)
    patch.setattr(Equipment, "telemetry_source", lambda *_: NO_TELEMETRY)
    config.add_cleanup(patch.undo)
