"""What the doctor sees of the machine that it runs on, and that it leaves all as it was."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING

import psutil
import pytest

from pytest_gpuserve.device import DeviceLock
from pytest_gpuserve.device.card import NvmlAnswer
from pytest_gpuserve.doctor import look as looking
from pytest_gpuserve.doctor.conditions import Level, host_conditions
from pytest_gpuserve.doctor.look import HostLook, look, read_driver, read_lock
from tests.fakes.children.toolkit import busy

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpuserve.doctor.look import HostState


def seen(environ: dict[str, str] | None = None) -> HostState:
    """A look at this host."""
    host_look = HostLook(environ or {})
    host_look.watch()
    return host_look.now()


def test_a_busy_process_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody's endless loop is told with program, pid and the command that shows it; its arguments are not."""
    # Other tests may be busier meanwhile, and leave it next to nothing.
    monkeypatch.setattr(looking, "MOST_PROCESSES", 1000)
    monkeypatch.setattr(looking, "LEAST_CORES", 0.0)
    with busy("--token=secret") as pid:
        now = seen()
    (condition,) = [each for each in host_conditions(now) if each.what == "other processes"]
    assert condition.level is Level.WARNING
    assert f"(pid {pid})" in condition.found
    assert str(pid) in condition.remedy
    assert "secret" not in str(condition)


def test_we_are_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process itself uses is not told as another's."""

    def work(seconds: float) -> None:
        end = sum(os.times()[:2]) + seconds
        while sum(os.times()[:2]) < end:
            pass

    monkeypatch.setattr("time.sleep", work)
    monkeypatch.setattr(looking, "LOOK_SECONDS", 0.3)
    now = seen()
    assert now.cpu is not None
    assert os.getpid() not in {process.pid for process in now.cpu.processes}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for a moment only."""
    monkeypatch.setattr(looking, "LOOK_SECONDS", 0.05)


@pytest.mark.usefixtures("quick")
def test_this_machine_is_seen() -> None:
    """On any Linux that runs the tests: facts, use of the CPU, swap, limits and room; no reader fails."""
    now = seen()
    assert now.unknown == {}
    assert None not in (now.host, now.cpu, now.swap, now.shared_memory, now.open_files, now.temp)


@pytest.mark.usefixtures("quick")
def test_a_reader_that_fails_is_unknown_and_keeps_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a strange machine raises is the reason of that one thing."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("strange")

    readers = ["read_cpu", "read_host_counters", "read_boost", "read_core_limit", "is_virtual", "read_host", "_space"]
    for name in readers:
        monkeypatch.setattr(looking, name, fail)
    now = seen()
    assert now.open_files is not None
    assert set(now.unknown.values()) == {"RuntimeError: strange"}
    levels = {each.what: each.level for each in host_conditions(now)}
    assert levels.pop("open files") in {Level.OK, Level.WARNING}
    assert levels.pop("temporary files") is Level.PREVENTS
    assert set(levels.values()) == {Level.UNKNOWN}


@pytest.mark.usefixtures("quick")
@pytest.mark.filterwarnings("ignore")  # as outside of the tests
def test_zeros_are_not_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel may give zeros for its CPU time, a library warns and gives them for swap: both are unknown."""

    def warn() -> object:
        warnings.warn("swap memory stats could not be determined", RuntimeWarning, stacklevel=1)
        return psutil._ntuples.sswap(0, 0, 0, 0, 0, 0)

    times = psutil.cpu_times()
    monkeypatch.setattr("psutil.cpu_times", lambda: type(times)(*(0.0 for _ in times)))
    monkeypatch.setattr("psutil.swap_memory", warn)
    now = seen()
    assert (now.cpu, now.swap) == (None, None)
    assert "stand still" in now.unknown["cpu"]
    assert "could not be determined" in now.unknown["swap"]


@pytest.mark.usefixtures("quick")
def test_a_host_that_is_misnamed_is_told_as_pytest_tells_it() -> None:
    """GPUSERVE_HOST that is no name ends every session, so nothing can be measured; the rest is seen all the same."""
    now = seen({"GPUSERVE_HOST": "a b"})
    assert "GPUSERVE_HOST" in now.host_problem
    assert "unset GPUSERVE_HOST" in now.host_remedy
    assert now.cpu is not None


# -- locks


def test_who_measures_is_told_and_not_disturbed(tmp_path: Path) -> None:
    """A held lock is told with the session and its pid; the session still has it, and nobody has it afterwards."""
    lock = DeviceLock("GPU-1", command="pytest other", folder=tmp_path)
    with lock.acquire(wait_seconds=0, on_wait=lambda *_: None):
        state = read_lock("GPU-1", folder=tmp_path)
        assert (state.held, state.pid) == (True, os.getpid())
        assert "pytest other" in state.told
        assert "since" in state.told
        assert lock.held
    assert read_lock("GPU-1", folder=tmp_path).held is False
    lock.acquire(wait_seconds=0, on_wait=lambda *_: None)
    lock.release()


def test_a_lock_without_a_record_is_held_by_somebody(tmp_path: Path) -> None:
    """Whose it is may be unknown; that it is held is not."""
    lock = DeviceLock("cpu", command="", folder=tmp_path)
    with lock.acquire(wait_seconds=0, on_wait=lambda *_: None):
        lock.record_path.unlink()
        state = read_lock("cpu", folder=tmp_path)
    assert (state.held, state.pid, state.told) == (True, None, "an unknown process")


def test_looking_leaves_no_file(tmp_path: Path) -> None:
    """A device that was never measured on has no lock file afterwards; a link there is not followed, nor free."""
    assert read_lock("cpu", folder=tmp_path).held is False
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "pytest-gpuserve-cpu.lock").symlink_to(tmp_path / "elsewhere")
    assert read_lock("cpu", folder=tmp_path).held is None


# -- driver and device


def test_a_driver_without_its_library_is_no_missing_card(tmp_path: Path) -> None:
    """In a container that has no libnvidia-ml.so.1, a driver that is loaded is a problem; without one there is none."""
    answer = NvmlAnswer((), "no library", absent=True)
    assert read_driver(answer, module=tmp_path / "version").absent
    driver = read_driver(answer, module=tmp_path)
    assert (driver.answers, driver.absent) == (False, False)
    assert "does not answer" in driver.problem


@pytest.mark.usefixtures("quick")
def test_the_device_that_is_asked_for() -> None:
    """Without a name any device will do; with that of a card that is not here none will, in pytest's own words."""
    for asked in (None, "cpu"):
        found = look(asked, {})
        assert "cpu" in found.devices
        assert found.refused == ""
    found = look("no-such-card", {})
    assert found.devices == ()
    assert "--gpu=no-such-card asks for a card that is not on this machine" in found.refused
    assert "--gpu=cpu" in found.refused_remedy
