"""A pytest plugin (``-p tests.fakes.scripted_sessions``) by which loads are not measured but made up, from a script.

It stands for a measurement where a test is about what is made of one: options, files, verdicts, exit codes, texts. It
takes no time, gives the same numbers on every machine, and starts no server. That real servers are really measured is
proven in tests/servers, and in tests/plugin by the tests that use ``real_project``.

Replaced are whole sessions (``trial.sampling.take_session``), and of a comparison side by side the two contenders
(``trial.contender.Contender``), and nobody looks at a GPU: the rounds, their order, what is remembered and what is
judged are the product's own.

The script is ``scripted.json`` in the project's root folder; see ``Script``. How fast a build is stands in its app
file, ``SPEED = 0.9``, so that it is seen which file would have been run; a file without it has the speed 1. With
several numbers, ``SPEED = 0.8, 1``, each start side by side has its own, and the last one holds from there on.
``COLD_START = 1.5`` and ``JOULES = 1.5`` are times of what the script says.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from random import Random
from statistics import NormalDist
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final

import msgspec
import pytest

from pytest_gpuserve import units
from pytest_gpuserve.load.tick import Tick
from pytest_gpuserve.measure.histogram import Histogram, bucket_of
from pytest_gpuserve.measure.streams import Streams
from pytest_gpuserve.measure.window import Client, GpuUse, Session, Start, Window
from pytest_gpuserve.plugin.fixtures import SESSION_NAME
from pytest_gpuserve.verdict.reason import Reason, ReasonKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pytest_gpuserve.experiment.handle import Target
    from pytest_gpuserve.experiment.shape import LoadShape
    from pytest_gpuserve.experiment.watch import Progress
    from pytest_gpuserve.servers.mosec import Mosec

SCRIPT_NAME: Final = "scripted.json"

STARTS_NAME: Final = "starts.log"
"""Beside the script: a line for each server of a comparison side by side that would have been started or ended."""

WINDOW_SECONDS: Final = 0.5
MEDIAN_SECONDS: Final = 0.005
SPREAD: Final = 0.1
"""Standard deviation of the logarithm of latencies: the p99 is 1.26 times the median."""

LAG_NS: Final = 20_000
INTERRUPTED: Final = Reason(ReasonKind.INTERRUPTED, "interrupted by Ctrl-C after 1 starts: not decided")


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What sessions are to be like.

    Args:
        seed: Of the noise; another one is another run of the same build.
        speed: Of the machine: at 0.5 a build answers half as many requests a second, each in twice the time.
        batch: Items in a batch.
        noise: Standard deviation of the logarithm of the speed, once between sessions, once between the starts of one
            and once between the windows of one; batches vary alike.
        requests: In a window, which lasts half a second at speed 1; few of them are thin data.
        tokens: Of each answer, two at least, which then is a stream: a fifth of its time until the first one, then each
            as long after the one before. 0 for no streams.
        problems: Why nothing may be concluded; a session with one ends after its first start.
        foreign_cores: Cores that others took.
        interrupted_session: Number, from 1, of the session that Ctrl-C cuts short after its first start; 0 for none.
        pythons: Speed of the builds that an interpreter runs, by its path; 1 if it is not named.
        fails: What the server of either side, ``base`` or ``candidate``, says instead of starting side by side.
        memory_for_one: Whether a second server does not fit beside the first.
        paired_problems: Why nothing may be concluded from the candidate's side of a round.
        interrupted_turn: Number, from 1, of the window side by side that Ctrl-C cuts short; 0 for none.
        lost_turn: Number, from 1, of the window side by side in which the load engines are lost; 0 for none.
        reading: How fast the host says that it is.
        gpu: Whether a GPU is seen.
        joules: Of a request; None if the GPU does not count energy.
        memory_bytes: On the GPU.
        cold_start_seconds: Of each start; None for a server that was not started.
    """

    seed: int = 0
    speed: float = 1.0
    batch: float = 4.0
    noise: float = 0.003
    requests: int = 800
    tokens: int = 0
    problems: tuple[Reason, ...] = ()
    foreign_cores: float = 0.0
    interrupted_session: int = 0
    pythons: dict[str, float] = {}
    fails: dict[str, str] = {}
    memory_for_one: bool = False
    paired_problems: tuple[Reason, ...] = ()
    interrupted_turn: int = 0
    lost_turn: int = 0
    reading: float = -3.5
    gpu: bool = False
    joules: float | None = 0.05
    memory_bytes: float = 2.0**31
    cold_start_seconds: float | None = 1.0


@dataclass
class ScriptedSessions:
    """Takes sessions by the script.

    Args:
        path: The script; every session reads it anew, so that a test of the project may change it.
        taken: How many there were.
    """

    path: Path
    taken: int = field(default=0, init=False)

    def take(self, target: Target, shape: LoadShape, keep: Callable[[Session], None], progress: Progress) -> None:
        """Stand for ``trial.sampling.take_session``.

        Raises:
            KeyboardInterrupt: After ``keep``, where the script says so.
        """
        self.taken += 1
        script = msgspec.json.decode(self.path.read_bytes(), type=Script)
        noise = Noise(script, str(self.taken))
        speed = script.speed * speed_of(target, script)
        interrupted = self.taken == script.interrupted_session
        short = interrupted or bool(script.problems)
        speed *= noise.factor()
        on_gpu = OnGpu.of(target, script, str(self.taken))
        starts = tuple(
            _start(script, noise, speed, on_gpu, shape, progress=progress) for _ in range(1 if short else shape.starts)
        )
        requests = sum(start.requests for start in starts)
        keep(
            Session(
                starts=starts,
                at=units.utc_now(),
                problems=(INTERRUPTED,) if interrupted else script.problems,
                batch_sizes={str(math.ceil(script.batch)): sum(w.batches or 0 for s in starts for w in s.windows)},
                answers=requests,
                answers_checked=requests if any(request.expect is not None for request in target.requests) else 0,
            )
        )
        if interrupted:
            raise KeyboardInterrupt


class Noise:
    """Factors around 1, the same on every machine for the same script and name.

    Args:
        script: With the seed and the size.
        name: Of what it is the noise.
    """

    def __init__(self, script: Script, name: str) -> None:
        self._size = script.noise
        self._random = Random(f"{script.seed} {name}")

    def factor(self) -> float:
        """Return the next factor."""
        return math.exp(self._random.gauss(0.0, self._size))


def kind_of(target: Target) -> Mosec:
    """The kind of the server that would be loaded."""
    from pytest_gpuserve.servers.mosec import Mosec

    kind = target.server.kind
    assert isinstance(kind, Mosec)
    return kind


def speed_of(target: Target, script: Script, *, start: int | None = None) -> float:
    """The speed of a build, by its app file and interpreter: that of its start so and so, or the lasting one."""
    speeds = _said(target, "SPEED")
    speed = speeds[-1] if start is None else speeds[min(start, len(speeds)) - 1]
    return speed * script.pythons.get(kind_of(target).app.python, 1.0)


def _said(target: Target, name: str) -> list[float]:
    """The numbers that an app file gives a name; 1 if it has none."""
    found = re.search(rf"^{name} = (.+)$", kind_of(target).app.file.read_text(), re.MULTILINE)
    return [float(number) for number in found[1].split(",")] if found is not None else [1.0]


@dataclass(frozen=True)
class OnGpu:
    """The start of a build, and its GPU, with noise of their own.

    Args:
        script: The script.
        noise: Of joules; cold starts vary five times as much.
        joules: Times the script's.
        cold_start: Times the script's.
    """

    script: Script
    noise: Noise
    joules: float
    cold_start: float

    @classmethod
    def of(cls, target: Target, script: Script, name: str) -> OnGpu:
        """Read how the build differs."""
        return cls(script, Noise(script, f"gpu {name}"), _said(target, "JOULES")[0], _said(target, "COLD_START")[0])

    def use(self) -> GpuUse | None:
        """Make up what the GPU does in a window."""
        script = self.script
        joules = None if script.joules is None else script.joules * self.joules * script.requests * self.noise.factor()
        return GpuUse(joules, script.memory_bytes, 0.8, sm_clock_mhz=1350.0) if script.gpu else None

    def cold_start_seconds(self) -> float | None:
        """Make up how long a start takes."""
        seconds = self.script.cold_start_seconds
        return None if seconds is None else seconds * self.cold_start * self.noise.factor() ** 5


def _start(script: Script, noise: Noise, speed: float, on_gpu: OnGpu, shape: LoadShape, *, progress: Progress) -> Start:
    speed *= noise.factor()
    measured = tuple(
        window_of(script, speed * noise.factor(), noise.factor(), on_gpu.use()) for _ in range(shape.windows)
    )
    show(measured, progress)
    return Start(
        measured,
        cold_start_seconds=on_gpu.cold_start_seconds(),
        foreign_cores=script.foreign_cores,
        client=client_of(measured),
    )


def client_of(windows: Sequence[Window]) -> Client:
    """What is known of a client that took these windows: it was never late."""
    if not windows:
        return Client()
    return Client(
        lag=Histogram({bucket_of(LAG_NS): sum(window.requests for window in windows)}),
    )


def window_of(script: Script, speed: float, batch_factor: float, gpus: GpuUse | None) -> Window:
    """Make up a window of a build of this speed."""
    latencies_ns = [round(latency / speed) for latency in _latencies_ns(script.requests)]
    counts: dict[int, int] = {}
    for bucket in map(bucket_of, latencies_ns):
        counts[bucket] = counts.get(bucket, 0) + 1
    return Window(
        seconds=WINDOW_SECONDS / speed,
        requests=script.requests,
        errors={},
        latency=Histogram(counts, sum(latencies_ns), max(latencies_ns)),
        items=script.requests,
        batches=max(1, round(script.requests / (script.batch * batch_factor))),
        client_cpu_seconds=0.05 / speed,
        streams=_streams(latencies_ns, script.tokens) if script.tokens else None,
        good=script.requests if script.tokens else None,
        gpus=gpus,
    )


def _streams(latencies_ns: Sequence[int], tokens: int) -> Streams:
    first, each = (
        Counter(bucket_of(round(share * latency)) for latency in latencies_ns) for share in (0.2, 0.8 / (tokens - 1))
    )
    gaps = {bucket: count * (tokens - 1) for bucket, count in each.items()}
    count = len(latencies_ns)
    return Streams(Histogram(first), Histogram(gaps), Histogram(each), count * tokens, count)


@cache
def _latencies_ns(count: int) -> tuple[float, ...]:
    """Latencies at speed 1: the quantiles of a lognormal distribution, so that they are the same in every window."""
    normal = NormalDist(math.log(MEDIAN_SECONDS * 1e9), SPREAD)
    return tuple(math.exp(normal.inv_cdf((i + 0.5) / count)) for i in range(count))


def reading(path: Path) -> float:
    """Stand for a reading of the host, by the script."""
    return msgspec.json.decode(path.read_bytes(), type=Script).reading


def show(windows: tuple[Window, ...], progress: Progress) -> None:
    """Tell of each window what a real load tells of each of its ticks."""
    so_far = Tick()
    now_ns = 0
    for number, window in enumerate(windows):
        end_ns = now_ns + round(window.seconds * 1e9)
        latency = Histogram(
            dict(window.latency.counts),
            round(window.latency.sum_seconds * 1e9),
            round(window.latency.max_seconds * 1e9),
        )
        tick = Tick(number, now_ns, end_ns, requests=window.requests, latency=latency, sent=window.requests)
        so_far += tick
        progress.show(so_far)
        now_ns = end_ns


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
    from pytest_gpuserve.compare import measurement, screen
    from pytest_gpuserve.experiment import pairing, shared_starts
    from pytest_gpuserve.experiment.telemetry import NO_TELEMETRY
    from pytest_gpuserve.plugin import session as plugin_session
    from pytest_gpuserve.plugin.opening import Equipment
    from tests.fakes.scripted_contender import ScriptedContenders

    path = config.rootpath / SCRIPT_NAME
    patch = pytest.MonkeyPatch()
    patch.setattr(measurement, "take_session", ScriptedSessions(path).take)
    contenders = ScriptedContenders(path)
    patch.setattr(pairing.Pairing, "_start", contenders.start)
    patch.setattr(shared_starts, "_answers", lambda *_: True)
    patch.setattr(pairing, "ServerArm", contenders)
    # Loads that are made up have no hours, so that stored numbers of them count, and a host that is as the script says.
    for module in (screen, plugin_session):
        patch.setattr(module, "may_screen", lambda _: True)
    patch.setattr(plugin_session, "read_host", lambda: reading(path))
    # What is made up needs nobody to look at the GPU meanwhile.
    patch.setattr(Equipment, "telemetry_source", lambda *_: NO_TELEMETRY)
    config.add_cleanup(patch.undo)
