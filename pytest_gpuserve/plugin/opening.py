"""Before the first test: what a session measures on, against and with is found, fetched and taken."""

from __future__ import annotations

import os
import re
import shlex
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.builds.checkout import read_revision, said_at_start
from pytest_gpuserve.builds.worktree import ReferenceBuilds, resolve_revision
from pytest_gpuserve.compare.baseline_store import BaselineStore
from pytest_gpuserve.device import DeviceLock, list_gpus, read_host, read_software, select_device
from pytest_gpuserve.device.gpu import UNSUPPORTED
from pytest_gpuserve.device.telemetry import SamplerProcess
from pytest_gpuserve.experiment.environment import RunEnvironment
from pytest_gpuserve.experiment.telemetry import NO_TELEMETRY, TelemetrySource
from pytest_gpuserve.load.ray import RayEngine
from pytest_gpuserve.load.source import LOCAL
from pytest_gpuserve.plugin.options import ENGINE_OPTION, Update
from pytest_gpuserve.plugin.progress import say
from pytest_gpuserve.process.command_line import module_command
from pytest_gpuserve.process.secrets import secret_headers
from pytest_gpuserve.servers.app import words
from pytest_gpuserve.servers.instance import Instance, started
from pytest_gpuserve.servers.remote import RemoteServer, reached
from pytest_gpuserve.store.files import stock_of
from pytest_gpuserve.units import format_seconds, utc_now

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    import pytest

    from pytest_gpuserve.builds.checkout import Revision
    from pytest_gpuserve.device import Device, Holder
    from pytest_gpuserve.experiment.handle import Starter
    from pytest_gpuserve.load.source import EngineSource
    from pytest_gpuserve.plugin.options import Settings
    from pytest_gpuserve.servers.base import Ask, ServerKind


LOG_NAME: Final = re.compile(r"[^A-Za-z0-9_.-]+")
"""What is not written into the name of a log."""


class Equipment:
    """The load engines and folders of a session; each is made when it is first needed.

    Args:
        engine: What makes the loads on Ray; None where processes of this host do. It is ended with the rest.
        logged: Hears of the log of each server that is started, and by name of what it is given that may be secret.
        note: Hears, once each, what a report should say of the GPU.
        make_room: Called before a server is started.

    Attributes:
        temporary: pytest's temporary folders, which the first fixture of ours brings.
    """

    temporary: pytest.TempPathFactory

    def __init__(
        self,
        settings: Settings,
        config: pytest.Config,
        device: Device,
        *,
        engine: RayEngine | None,
        logged: Callable[[Path, Mapping[str, str]], None],
        note: Callable[[str], None],
        make_room: Callable[[], object],
    ) -> None:
        self._settings = settings
        # Absent under `-p no:cacheprovider`.
        self._cache: pytest.Cache | None = getattr(config, "cache", None)
        self._device = device
        self._engine = engine
        self._logged = logged
        self._note = note
        self._make_room = make_room
        self._telemetry_source = NO_TELEMETRY
        self._starts = 0

    def remembered(self) -> Path | None:
        """The folder of what outlasts the run; None without pytest's cache, for ``--cache-clear`` has to forget it."""
        return None if self._cache is None else self._cache.mkdir("gpuserve")

    @cached_property
    def logs(self) -> Path:
        """The folder for what servers write."""
        return self.temporary.mktemp("gpuserve-logs")

    @cached_property
    def artifacts(self) -> Path:
        """The folder for what tests make."""
        folder = self._settings.artifacts_dir
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            return folder
        return (self.temporary.mktemp if self._cache is None else self._cache.mkdir)("gpuserve-artifacts")

    def places(self) -> list[str]:
        """The folders with something in them for people, a line each."""
        made = vars(self)
        artifacts: Path | None = made.get("artifacts")
        has_artifacts = artifacts is not None and artifacts.is_dir() and any(artifacts.iterdir())
        return [
            *([f"server logs: {self.logs}"] if "logs" in made else []),
            *([f"tables and charts: {artifacts}"] if has_artifacts else []),
        ]

    def starter(self, start_timeout_seconds: float) -> Starter:
        """What starts servers on the device, each with a log file of its own."""

        def start(
            kind: ServerKind, ask: Ask, beside: Callable[[], None] | None = None
        ) -> AbstractContextManager[Instance]:
            self._make_room()
            self._starts += 1
            log = self.logs / f"{self._starts:03d}-{LOG_NAME.sub('-', kind.name)}.log"
            if isinstance(kind, RemoteServer):
                return reached(kind, ask, timeout_seconds=start_timeout_seconds, beside=beside)
            return started(
                kind,
                ask,
                environment=self._device.environment(),
                gpus=self._device.gpus,
                log=log,
                start_timeout_seconds=start_timeout_seconds,
                launched=lambda given: self._logged(log, {**given, **secret_headers(ask.headers)}),
                beside=beside,
            )

        return start

    def telemetry_source(self) -> TelemetrySource:
        """The sampler of the GPU, from the first load to the session's end."""
        gpu = self._device.gpu
        if self._telemetry_source is NO_TELEMETRY and gpu is not None:
            lacks_ecc = gpu.ecc is False or gpu.unknown.get("ecc") == UNSUPPORTED
            self._telemetry_source = TelemetrySource(
                [gpu.uuid],
                lambda: SamplerProcess(
                    [gpu.uuid],
                    log=self.logs / "telemetry.log",
                    command=module_command("pytest_gpuserve.device.sampler"),
                ),
                self._note,
                without_ecc=[gpu.uuid] if lacks_ecc else [],
            )
        return self._telemetry_source

    def engine_source(self) -> EngineSource:
        """Where the engines of all loads come from."""
        return LOCAL if self._engine is None else self._engine.source(self.logs / "ray.log")

    def close(self) -> None:
        """End the engines and the sampler; may be called again."""
        with ExitStack() as stack:
            stack.callback(self._telemetry_source.close)
            if self._engine is not None:
                stack.callback(self._engine.close)


@dataclass(frozen=True)
class Opened:
    """What a session has before its first test.

    Args:
        lock: On the device; it is held if tests will measure.
        against_name: Whom comparisons are side by side with, as people call it; empty where nobody, or nothing is
            measured.
        engine: What makes the loads on Ray; None where processes of this host do.
        warnings: What is said before anything is measured.
    """

    settings: Settings
    here: RunEnvironment
    lock: DeviceLock
    baseline_store: BaselineStore
    reference_builds: ReferenceBuilds
    against_name: str
    engine: RayEngine | None
    notes: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    def close(self) -> None:
        """Remove the worktrees and give the device back; may be called again. Whoever uses the engine ends it."""
        with ExitStack() as stack:
            stack.callback(self.lock.release)
            stack.callback(self.reference_builds.close)


def open_session(config: pytest.Config, settings: Settings, *, measuring: bool) -> Opened:
    """Find all that a session needs, and take the device last: a mistake is told before anybody is waited for.

    Args:
        measuring: Whether tests will measure, so that the device must be ours alone.

    Raises:
        DeviceProblem: The device is not there, or another session kept it too long.
        UsageProblem: git does not know the revision to compare with, or what is to make the loads cannot.
    """
    device = find_device(settings)
    reference_builds = ReferenceBuilds(settings.root, settings.base_files, settings.baseline_dir)
    # Before a device is waited for, and long before the first test: git may not know the revision.
    against_name = (
        reference_builds.name_of(revision=settings.against, python=settings.against_python) if measuring else ""
    )
    engine = _engine_on_ray(settings, measuring=measuring)
    software, revision = read_software(known_distributions(config)), read_revision(settings.root, settings.baseline_dir)
    lock = DeviceLock(device.lock_key, command=shlex.join(sys.argv))
    if measuring:
        take(lock, config, settings)
    here = RunEnvironment(device, software, revision, occasion=utc_now())
    return Opened(
        settings=settings,
        here=here,
        lock=lock,
        baseline_store=BaselineStore(settings.baseline_dir / device.name, here),
        reference_builds=reference_builds,
        against_name=against_name,
        engine=engine,
        notes=tuple(_one_build(settings, revision)) if measuring else (),
        warnings=tuple(said_at_start(settings.root, gates=_gates(settings))) if measuring else (),
    )


def _gates(settings: Settings) -> bool:
    return settings.update is Update.NOTHING and not settings.side_by_side


def _one_build(settings: Settings, revision: Revision) -> list[str]:
    """Say that a commit would be compared with itself, which passes whatever it does."""
    against = settings.against
    if against is None or settings.against_python is not None or not revision.clean:
        return []
    if resolve_revision(settings.root, against) != revision.commit:
        return []
    return [f"--against={against}: this checkout is that commit, unchanged, so one build is compared with itself"]


def known_distributions(config: pytest.Config) -> tuple[str, ...]:
    """All whose versions can move a number, by all plugins: ours first, each once.

    Raises:
        UsageProblem: A plugin names something else.
    """
    hook = "pytest_gpuserve_distributions"
    named = [words(hook, names) for names in getattr(config.hook, hook)()]
    return tuple(dict.fromkeys(name for names in reversed(named) for name in names))


def _engine_on_ray(settings: Settings, *, measuring: bool) -> RayEngine | None:
    """What makes the loads on Ray, if something is to; checked, if there will be loads."""
    if settings.load_engine == "local":
        return None
    engine = RayEngine(settings.load_engine, ENGINE_OPTION)
    if measuring:
        engine.check()
    return engine


def find_device(settings: Settings) -> Device:
    """Find the device that was asked for; of several alike the first.

    Raises:
        DeviceProblem: It is not there, or cannot be told.
    """
    folder = settings.baseline_dir
    known = sorted(path.name for path in folder.iterdir() if stock_of(path).entries) if folder.is_dir() else []
    return select_device(
        settings.gpu,
        known_names=known,
        answer=list_gpus(),
        host=read_host(),
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
    )


def take(lock: DeviceLock, config: pytest.Config, settings: Settings) -> None:
    """Take a device for us alone, and say for whom it is waited.

    Raises:
        DeviceProblem: Another session kept it for longer than settings allow.
    """

    def say_waiting(holder: Holder, wait_seconds: float) -> None:
        limit = f"giving up after {format_seconds(wait_seconds)} (ini gpuserve_lock_wait)"
        say(config, f"gpuserve: waiting for the device: {holder} measures on it; {limit}")

    lock.acquire(wait_seconds=settings.lock_wait_seconds, on_wait=say_waiting)
