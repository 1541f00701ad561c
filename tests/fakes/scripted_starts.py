"""A pytest plugin (``-p tests.fakes.scripted_starts``) by which the answers of servers are made up, from a script.

It stands for a measurement where a test is about what is made of one: options, files, verdicts, exit codes, texts. It
takes no time, gives the same numbers on every machine, and starts no server. That real servers are really measured is
proven in tests/servers, and in tests/plugin by the tests that use ``real_project``.

Replaced are the start of a server, the load engines, and who looks at the GPU and at the host: windows, sessions,
rounds, what is remembered and what is judged are the product's own.

The script is ``scripted.json`` in the project's root folder; see ``Script``. How fast a build is stands in its app
file, ``SPEED = 0.9``, so that it is seen which file would have been run; a file without it has the speed 1, and one of
the speed 0 does not start. ``COLD_START = 1.5`` and ``JOULES = 1.5`` are times of what is usual.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, Final, cast

import msgspec
import pytest

from pytest_gpuserve import units
from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.experiment.handle import Target
from pytest_gpuserve.experiment.telemetry import TelemetrySource
from pytest_gpuserve.load.driver import EngineSource
from pytest_gpuserve.load.schedule import Closed
from pytest_gpuserve.load.wire import Plan
from pytest_gpuserve.measure.counters import Counters
from pytest_gpuserve.measure.window import AnswerCount, Window
from pytest_gpuserve.plugin.fixtures import SESSION_NAME
from pytest_gpuserve.servers.instance import Instance
from pytest_gpuserve.servers.mosec import Mosec
from tests.fakes.scripted_engines import ScriptedEngines, ScriptedEyes, busy_tick, scripted_instance, stand_in

SCRIPT_NAME: Final = "scripted.json"

STARTS_NAME: Final = "starts.log"
"""Beside the script: a line for each server that would have been started or ended."""

TICK_REQUESTS: Final = 200
BATCH: Final = 4.0
JOULES: Final = 0.05
COLD_START_SECONDS: Final = 1.5
MEMORY_BYTES: Final = 1 << 31
INTERRUPTED_TICK: Final = 20


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Numbers of the scripted servers.

    Args:
        seed: Seed of the noise; another seed is another run of the same build.
        speed: Speed of the machine: at 0.5 a build answers half as many requests a second, each in twice the time.
        noise: Standard deviation of the logarithm of the speed, once between starts and once between windows of half a
            second; batches vary alike.
        wrong: Whether answers are wrong.
        foreign_cores: Cores that others take of the host.
        pythons: Speed of the builds that an interpreter runs, by its path; 1 if it is not named.
        interrupted_start: Number, from 1, of the start under whose load Ctrl-C is pressed; 0 for none.
        gpu: Whether a GPU is seen.
    """

    seed: int = 0
    speed: float = 1.0
    noise: float = 0.003
    wrong: bool = False
    foreign_cores: float = 0.0
    pythons: dict[str, float] = {}
    interrupted_start: int = 0
    gpu: bool = False


@dataclass
class ScriptedServer:
    """A scripted start.

    Args:
        script: The script.
        random: Its noise.
        number: Number of the start, from 1.
        cost: Log of how much slower it is than a build of speed 1.
        joules: Energy of a request.
    """

    script: Script
    random: Random
    number: int
    cost: float
    joules: float
    ticks: int = 0
    items: int = 0
    batches: float = 0.0

    def counters(self) -> Counters:
        """Items and batches so far."""
        return Counters(items=self.items, batches=round(self.batches))

    def tick(self, tick: Window, plan: Plan) -> Window:
        """Make up a tenth of a second."""
        self.ticks += 1
        if (self.number, self.ticks) == (self.script.interrupted_start, INTERRUPTED_TICK):
            raise KeyboardInterrupt
        noise = self.script.noise * math.sqrt(5)
        cost = self.random.gauss(self.cost, noise)
        requests = round(TICK_REQUESTS * math.exp(-cost))
        self.items += requests
        self.batches += requests / BATCH * math.exp(self.random.gauss(0.0, noise))
        users = plan.schedule.users if isinstance(plan.schedule, Closed) else 1
        answer = AnswerCount(0, b"nonsense" if self.script.wrong else b"FOX", requests, 0)
        made = busy_tick(tick.number, tick.begin_ns, requests, users=users)
        return msgspec.structs.replace(made, answers=[answer])


@dataclass
class ScriptedServers:
    """Scripted servers, their load and their GPU; each tick moves their clock.

    Args:
        path: The script; every start reads it anew.
    """

    path: Path
    _starts: int = 0
    _running: dict[int, ScriptedServer] = field(default_factory=dict)
    _joules: float = 0.0
    _foreign_cores: float = 0.0

    def __post_init__(self) -> None:
        self._eyes = ScriptedEyes(self._gpu)

    @contextmanager
    def started(self, target: Target, beside: Callable[[], None] | None = None) -> Iterator[Instance]:
        """Stand for ``Target.started``."""
        script = msgspec.json.decode(self.path.read_bytes(), type=Script)
        kind = cast("Mosec", target.server.kind)
        settings = kind.app.file.with_name(".env")
        said = kind.app.file.read_text() + (settings.read_text() if settings.exists() else "")

        def of_app(name: str) -> float:
            found = re.search(rf"^{name} = (.+)$", said, re.MULTILINE)
            return float(found[1]) if found is not None else 1.0

        if not of_app("SPEED"):
            raise ServerFailed("mosec ended before it was ready", found="no weights here")
        self._starts += 1
        number = self._starts
        self._foreign_cores = script.foreign_cores
        random = Random(f"{script.seed} {number}")
        speed = script.speed * of_app("SPEED") * of_app("SPEED_OF_SETTINGS")
        cost = -math.log(speed * script.pythons.get(kind.app.python, 1.0))
        cold_start = COLD_START_SECONDS * of_app("COLD_START") * math.exp(random.gauss(0.0, 5 * script.noise))
        server = ScriptedServer(script, random, number, random.gauss(cost, script.noise), JOULES * of_app("JOULES"))
        self._tell(f"start {kind.app.file}")
        self._running[number] = server
        try:
            if beside is not None:
                beside()
            no_log = SimpleNamespace(log=self.path.with_suffix(".log"))
            process = SimpleNamespace(pid=number, command=no_log, ask_to_end=lambda: None)
            yield scripted_instance(
                number, kind=kind, process=process, counters=server.counters, cold_start_seconds=cold_start
            )
        finally:
            del self._running[number]
            self._tell(f"end {kind.app.file}")

    def engines(self, plan: Plan, _processes: int, _source: EngineSource) -> ScriptedEngines:
        """Stand for ``Engines``."""
        assert plan.endpoint.port is not None
        server = self._running[plan.endpoint.port]

        def changed(tick: Window) -> Window:
            made = server.tick(tick, plan)
            self._joules += server.joules * made.requests
            return made

        return ScriptedEngines(plan, self._eyes.pass_tick, changed=changed)

    @cached_property
    def telemetry_source(self) -> TelemetrySource:
        """The sampler of the scripted GPU; none without one."""
        from pytest_gpuserve.experiment.telemetry import NO_TELEMETRY

        if not msgspec.json.decode(self.path.read_bytes(), type=Script).gpu:
            return NO_TELEMETRY
        return self._eyes.source([])

    def foreign_cores(self, *_: object) -> float:
        """Stand for ``cores_taken_by_others``."""
        return self._foreign_cores

    def _gpu(self, _at_seconds: float) -> Mapping[str, Any]:
        return {
            "joules": self._joules,
            "memory_bytes": MEMORY_BYTES * len(self._running),
            "sm_clock_mhz": 1350,
            **({"utilisation": 0.8} if self._eyes.loaded else {}),
        }

    def _tell(self, line: str) -> None:
        with self.path.with_name(STARTS_NAME).open("a") as log:
            log.write(f"{line}\n")


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
    from pytest_gpuserve.compare import measurement, stored
    from pytest_gpuserve.experiment import shared_starts
    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.plugin import session as plugin_session
    from pytest_gpuserve.plugin.opening import Equipment

    servers = ScriptedServers(config.rootpath / SCRIPT_NAME)
    patch = pytest.MonkeyPatch()
    patch.setattr(Target, "started", lambda target, beside=None: servers.started(target, beside))
    patch.setattr(shared_starts, "_answers", lambda *_: True)
    stand_in(patch, servers.engines, servers.foreign_cores)
    patch.setattr(Equipment, "telemetry_source", lambda _: servers.telemetry_source)
    # Loads that are made up have no hours, so that stored numbers of them count, and a host of one speed.
    for module in (measurement, stored, plugin_session):
        patch.setattr(module, "may_screen", lambda _: True)
    patch.setattr(measurement, "read_speed", lambda: -3.5)
    config.add_cleanup(patch.undo)
