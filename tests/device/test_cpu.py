"""CPU time of the host: what we used, and what others took meanwhile."""

from __future__ import annotations

import time

import psutil
import pytest

from pytest_gpuserve.device.host import (
    CpuReading,
    busy_seconds,
    cores_taken_by_others,
    cpu_share,
    read_cpu,
)
from tests.fakes.children.toolkit import busy

CORE_SECONDS = 0.5
LONGEST_SECONDS = 60.0


def test_the_same_work_is_ours_or_theirs() -> None:
    """A busy process counts when it is not ours, and not when it is: by about what it used itself."""
    with busy() as pid:
        process = psutil.Process(pid)
        ours, theirs, before = read_cpu([process]), read_cpu([]), used_by(process)
        end = time.monotonic() + LONGEST_SECONDS  # until it has got so much of a busy machine
        while used_by(process) - before < CORE_SECONDS and time.monotonic() < end:
            time.sleep(0.1)
        later_ours, later_theirs, after = read_cpu([process]), read_cpu([]), used_by(process)
    # The machine may be busy with other things; it is so for both readings.
    found = [
        cores_taken_by_others(first, second) * (second.at_seconds - first.at_seconds)
        for first, second in ((theirs, later_theirs), (ours, later_ours))
    ]
    assert after - before >= CORE_SECONDS
    assert found[0] - found[1] == pytest.approx(after - before, rel=0.4)


def used_by(process: psutil.Process) -> float:
    """Seconds of a core that it used."""
    return sum(process.cpu_times()[:2])


def test_stolen_time_is_taken_by_others() -> None:
    """Time of other guests counts as taken by others; rounding never makes it negative."""
    before, after = CpuReading(0.0, 10.0, 1.0, 5.0), CpuReading(10.0, 20.0, 4.0, 15.0)
    assert cores_taken_by_others(before, after) == 0.3
    reading = CpuReading(1.0, 1.0, 0.0, 1.0)
    assert cores_taken_by_others(reading, reading) == 0.0
    assert cores_taken_by_others(reading, CpuReading(2.0, 1.5, 0.0, 2.0)) == 0.0


def test_a_process_that_is_gone_used_nothing() -> None:
    """A process that ended between two readings does not break the reading."""
    with busy() as pid:
        process = psutil.Process(pid)
    assert read_cpu([process]).ours_seconds == 0.0


def test_busy_share_is_of_all_cores_and_whoever_used_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three core-seconds in two seconds of a machine with four cores are three eighths, whichever of them are ours."""
    monkeypatch.setattr(psutil, "cpu_count", lambda: 4)
    before = CpuReading(at_seconds=10.0, busy_seconds=100.0, stolen_seconds=0.0, ours_seconds=0.0)
    after = CpuReading(at_seconds=12.0, busy_seconds=103.0, stolen_seconds=1.0, ours_seconds=0.5)
    assert cpu_share(before, after) == 3 / 8
    assert cpu_share(before, before) is None


FIELDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest", "guest_nice")


def test_an_idle_host_has_not_worked() -> None:
    """Two readings of a real host that only idled in between, which a sum less its idle time had step back."""
    worked = {"user": 77012.97, "nice": 1361.75, "system": 15212.58, "iowait": 675.26, "irq": 0.0}
    worked |= {"softirq": 1215.92, "steal": 3354.46, "guest": 0.0, "guest_nice": 0.0}
    assert busy_seconds({**worked, "idle": 75057.75}) == busy_seconds({**worked, "idle": 75057.73})


def test_only_work_is_counted() -> None:
    """User, nice, system and both kinds of interrupts count; idle, waiting, stolen and guests' time do not."""
    assert busy_seconds({name: float(2**power) for power, name in enumerate(FIELDS)}) == 1 + 2 + 4 + 32 + 64
    assert busy_seconds({"user": 3.0, "nice": 0.5, "system": 1.0, "idle": 7.0}) == 4.5
