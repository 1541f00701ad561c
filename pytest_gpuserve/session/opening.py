"""Before the first test: what a session measures on, against and with is found, fetched and taken."""

from __future__ import annotations

import shlex
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.device import DeviceLock, read_software
from pytest_gpuserve.devices import find_devices, take_device, waiting
from pytest_gpuserve.load.ray.address import ClusterAddress
from pytest_gpuserve.load.ray.source import RayEngine
from pytest_gpuserve.options import ENGINE_OPTION
from pytest_gpuserve.progress import say
from pytest_gpuserve.settings import Update
from pytest_gpuserve.store.elsewhere.opening import shared_files
from pytest_gpuserve.store.files import LocalFiles
from pytest_gpuserve.trial.here import Here
from pytest_gpuserve.trial.ledger import Ledger
from pytest_gpuserve.trial.opponents import Opponents
from pytest_gpuserve.trial.provenance import read_revision
from pytest_gpuserve.units import utc_now

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from pytest_gpuserve.device import Device, Holder
    from pytest_gpuserve.settings import Settings
    from pytest_gpuserve.store.files import BaselineFiles

OFFLINE: Final = "baselines as of {}, when they were fetched last: --baseline-offline asks for no newer ones"


@dataclass(frozen=True)
class Opened:
    """What a session has before its first test.

    Args:
        settings: What was asked.
        here: The circumstances.
        lock: On the device; it is held if tests will measure.
        files: Where baselines are kept.
        ledger: The baselines of the device.
        opponents: Makes other revisions ready.
        against_name: Whom comparisons are side by side with, as people call it; empty where nobody, or nothing is
            measured.
        engine: What makes the loads on Ray; None where processes of this host do.
        notes: What a report should say of it all.
    """

    settings: Settings
    here: Here
    lock: DeviceLock
    files: BaselineFiles
    ledger: Ledger
    opponents: Opponents
    against_name: str
    engine: RayEngine | None
    notes: tuple[str, ...]

    def close(self) -> None:
        """Remove the worktrees and give the device back; may be called again. Whoever uses the engine ends it."""
        with ExitStack() as stack:
            stack.callback(self.lock.release)
            stack.callback(self.files.close)
            stack.callback(self.opponents.close)


def open_session(config: pytest.Config, settings: Settings, *, measuring: bool) -> Opened:
    """Find all that a session needs, and take the device last: a mistake is told before anybody is waited for.

    Args:
        config: Of the session.
        settings: What was asked.
        measuring: Whether tests will measure, so that the device must be ours alone.

    Raises:
        DeviceProblem: The device is not there, or another session kept it too long.
        UsageProblem: git does not know the revision to compare with, or what is to make the loads cannot, or the
            storage of the baselines does not let them be read, or written where they are to be.
    """
    devices = find_devices(settings)
    opponents = Opponents(settings.root)
    # Before a device is waited for, and long before the first test: git may not know the revision.
    against_name = opponents.name_of(revision=settings.against, python=settings.against_python) if measuring else ""
    engine = _engine_on_ray(settings, measuring=measuring)
    files, as_of = _baseline_files(settings, devices[0].name, measuring=measuring)
    software, revision = read_software(), read_revision(settings.root, settings.baseline_dir)
    device, lock = _taken(devices, config, settings, measuring=measuring)
    here = Here(device, software, revision, occasion=utc_now())
    return Opened(
        settings=settings,
        here=here,
        lock=lock,
        files=files,
        ledger=Ledger(settings.baseline_dir / device.name, here, files),
        opponents=opponents,
        against_name=against_name,
        engine=engine,
        notes=(OFFLINE.format(as_of),) if as_of else (),
    )


def _engine_on_ray(settings: Settings, *, measuring: bool) -> RayEngine | None:
    """What makes the loads on Ray, if something is to; checked, if there will be loads.

    Raises:
        UsageProblem: Ray is not installed, or the cluster cannot be joined or runs other versions.
    """
    choice = settings.load_engine
    if choice == "local":
        return None
    engine = RayEngine(choice if isinstance(choice, ClusterAddress) else None, ENGINE_OPTION)
    if measuring:
        engine.check()
    return engine


def _baseline_files(settings: Settings, device: str, *, measuring: bool) -> tuple[BaselineFiles, str]:
    """Where the baselines of this session are, and of when they are where that is not now.

    A storage is not asked for a session that measures nothing.

    Raises:
        UsageProblem: The storage that they are in does not let them be read, or written where they are to be.
    """
    if settings.baseline_address is None:
        return LocalFiles(), ""
    updates = settings.update is not Update.NOTHING
    files = shared_files(
        settings.baseline_address,
        device,
        needed=measuring,
        updates=updates,
        offline=settings.baseline_offline,
    )
    return files, files.as_of


def _taken(
    devices: Sequence[Device], config: pytest.Config, settings: Settings, *, measuring: bool
) -> tuple[Device, DeviceLock]:
    """Of devices alike a free one, for us alone; without taking its lock if we do not measure."""
    if not measuring:
        return devices[0], DeviceLock(devices[0].lock_key, command=shlex.join(sys.argv))

    def say_waiting(holders: Sequence[Holder], wait_seconds: float) -> None:
        say(config, waiting(holders, wait_seconds))

    return take_device(
        devices,
        wait_seconds=settings.lock_wait_seconds,
        on_wait=say_waiting,
        command=getattr(config, "workerinput", {}).get("mainargv", sys.argv),
    )
