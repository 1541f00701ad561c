"""Equipment of a session: found before the first test, given back after the last one."""

from __future__ import annotations

import os
import re
from contextlib import ExitStack
from functools import cached_property
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.builds.checkout import read_revision, said_at_start
from pytest_gpuserve.builds.worktree import ReferenceBuilds, resolve_revision
from pytest_gpuserve.compare.baseline_store import BaselineStore, RunEnvironment
from pytest_gpuserve.device.gpu import list_gpus
from pytest_gpuserve.device.host import read_host, read_software
from pytest_gpuserve.device.lock import DeviceLock
from pytest_gpuserve.device.sampler import SamplerProcess
from pytest_gpuserve.device.select import select_device
from pytest_gpuserve.experiment.telemetry import NO_TELEMETRY, TelemetrySource
from pytest_gpuserve.load.driver import LOCAL, EngineSource
from pytest_gpuserve.load.ray import RayEngine
from pytest_gpuserve.plugin.options import ENGINE_OPTION, Update
from pytest_gpuserve.plugin.terminal import say
from pytest_gpuserve.process.secrets import secret_headers
from pytest_gpuserve.servers.app import words
from pytest_gpuserve.servers.instance import Instance, started
from pytest_gpuserve.servers.remote import RemoteServer, reached
from pytest_gpuserve.store.baseline import stock_of
from pytest_gpuserve.units import format_seconds, utc_now

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    import pytest

    from pytest_gpuserve.builds.checkout import Revision
    from pytest_gpuserve.device import Device
    from pytest_gpuserve.experiment.handle import Starter
    from pytest_gpuserve.plugin.options import Settings
    from pytest_gpuserve.process.ready import Ask
    from pytest_gpuserve.servers.base import ServerKind


LOG_NAME: Final = re.compile(r"[^A-Za-z0-9_.-]+")
"""Characters that are replaced in the name of a log."""


class Equipment:
    """The device, its lock and baselines, other builds, load engines and folders; some are made when first needed.

    The device is taken last, so that mistakes are reported before any wait.

    Args:
        config: Configuration of the run.
        settings: See there.
        measuring: Whether tests will measure, so that they need the device for themselves.
        logged: Called with the log of each started server, and with its variables that may be secret.
        note: Called with each remark for the report.
        make_room: Called before a server is started.

    Attributes:
        here: The circumstances.
        reference_builds: Prepares other revisions.
        baseline_store: The baselines of the device.
        against_name: Reference of side-by-side comparisons, for people; empty without one, or without measurements.
        engine: The engines on Ray; None if processes of this host make the load.
        warnings: Warnings to show before the first measurement.
        temporary: pytest's temporary folders, set by our first fixture.

    Raises:
        DeviceProblem: The device is not there, or another session kept it too long.
        UsageProblem: git does not know the revision to compare with, or the load engines cannot be made.
    """

    temporary: pytest.TempPathFactory

    def __init__(
        self,
        config: pytest.Config,
        settings: Settings,
        *,
        measuring: bool,
        logged: Callable[[Path, Mapping[str, str]], None],
        note: Callable[[str], None],
        make_room: Callable[[], object],
    ) -> None:
        self._settings = settings
        # Absent under `-p no:cacheprovider`.
        self._cache: pytest.Cache | None = getattr(config, "cache", None)
        self._logged = logged
        self._note = note
        self._make_room = make_room
        self._telemetry_source = NO_TELEMETRY
        self._starts = 0
        self._device = device = find_device(settings)
        self.reference_builds = ReferenceBuilds(settings.root, settings.base_files, settings.baseline_dir)
        software = read_software(known_distributions(config))
        revision = read_revision(settings.root, settings.baseline_dir)
        self.engine = None if settings.load_engine == "local" else RayEngine(settings.load_engine, ENGINE_OPTION)
        self.against_name = ""
        self.warnings: tuple[str, ...] = ()
        self.lock = DeviceLock(device.lock_key)
        if measuring:
            # Early, before the wait for a device and the first test: git may not know the revision.
            self.against_name = self.reference_builds.name_of(revision=settings.against, python=settings.against_python)
            if self.engine is not None:
                self.engine.check()
            if compares_with_itself(settings, revision):
                note(
                    f"--against={settings.against}: this checkout is that commit, unchanged, so one build is compared"
                    " with itself"
                )
            gates = settings.update is Update.NOTHING and not settings.side_by_side
            self.warnings = tuple(said_at_start(settings.root, gates=gates))
            take(self.lock, config, settings)
        self.here = RunEnvironment(device, software, revision, occasion=utc_now())
        self.baseline_store = BaselineStore(settings.baseline_dir / device.name, self.here)

    def remembered(self) -> Path | None:
        """The folder that outlasts the run; None without pytest's cache, because ``--cache-clear`` has to clear it."""
        return self._cached("gpuserve")

    def _cached(self, name: str) -> Path | None:
        try:
            return None if self._cache is None else self._cache.mkdir(name)
        except OSError as problem:
            # Without the path, in which pytest puts a random name: the same line is noted once.
            self._note(
                f"a re-run begins anew, because pytest's cache cannot be written ({problem.strerror});"
                " make it writable, or name another folder: -o cache_dir=DIR"
            )
            return None

    @cached_property
    def logs(self) -> Path:
        """The folder for the logs of servers."""
        return self.temporary.mktemp("gpuserve-logs")

    @cached_property
    def artifacts(self) -> Path:
        """The folder for the artifacts of tests."""
        folder = self._settings.artifacts_dir
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            return folder
        name = "gpuserve-artifacts"
        return self._cached(name) or self.temporary.mktemp(name)

    def places(self) -> list[str]:
        """Folders with contents for people, a line each."""
        made = vars(self)
        artifacts: Path | None = made.get("artifacts")
        has_artifacts = artifacts is not None and artifacts.is_dir() and any(artifacts.iterdir())
        return [
            *([f"server logs: {self.logs}"] if "logs" in made else []),
            *([f"tables and charts: {artifacts}"] if has_artifacts else []),
        ]

    def starter(self, start_timeout_seconds: float) -> Starter:
        """Starter of servers on the device, each with its own log file."""

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
            self._telemetry_source = TelemetrySource(
                lambda: SamplerProcess(gpu.uuid, log=self.logs / "telemetry.log"), self._note
            )
        return self._telemetry_source

    def engine_source(self) -> EngineSource:
        """Source of the engines of all loads."""
        return LOCAL if self.engine is None else self.engine.source(self.logs / "ray.log")

    def close(self) -> None:
        """End the engines and the sampler, remove the worktrees, and release the device; later calls do nothing."""
        with ExitStack() as stack:
            stack.callback(self.lock.release)
            stack.callback(self.reference_builds.close)
            stack.callback(self._telemetry_source.close)
            if self.engine is not None:
                stack.callback(self.engine.close)


def compares_with_itself(settings: Settings, revision: Revision) -> bool:
    """Whether a commit is compared with itself, which always passes."""
    against = settings.against
    if against is None or settings.against_python is not None or not revision.clean:
        return False
    return resolve_revision(settings.root, against) == revision.commit


def known_distributions(config: pytest.Config) -> tuple[str, ...]:
    """Distributions whose versions can move a number, from all plugins: ours first, each once.

    Raises:
        UsageProblem: A plugin returns something else than names.
    """
    hook = "pytest_gpuserve_distributions"
    named = [words(hook, names) for names in getattr(config.hook, hook)()]
    return tuple(dict.fromkeys(name for names in reversed(named) for name in names))


def find_device(settings: Settings) -> Device:
    """Find the requested device; the first of several equal ones.

    Raises:
        DeviceProblem: The device is absent, or unknown.
    """
    folder = settings.baseline_dir
    known = sorted(path.name for path in folder.iterdir() if stock_of(path)[0]) if folder.is_dir() else []
    return select_device(
        settings.gpu,
        known_names=known,
        answer=list_gpus(),
        host=read_host(),
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
    )


def take(lock: DeviceLock, config: pytest.Config, settings: Settings) -> None:
    """Take a device exclusively, and say which session is in the way.

    Raises:
        DeviceProblem: Another session kept it for longer than the settings allow.
    """

    def say_waiting(holder: str, wait_seconds: float) -> None:
        limit = f"giving up after {format_seconds(wait_seconds)} (ini gpuserve_lock_wait)"
        say(config, f"gpuserve: waiting for the device: {holder} measures on it; {limit}")

    lock.acquire(wait_seconds=settings.lock_wait_seconds, on_wait=say_waiting)
