"""Arithmetic over samples: energies, counters and means of stretches, of courses that are known."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuserve.device.gpu_probe import GpuSample
from pytest_gpuserve.measure.telemetry import NS, between, gpu_use, samples_of
from pytest_gpuserve.measure.window import GpuUse

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TICK_NS = NS // 10


def steady_times(seconds: float) -> list[int]:
    """Ten moments a second."""
    return [tick * TICK_NS for tick in range(round(seconds * 10) + 1)]


def course(values: Callable[[float], dict[str, Any]], times_ns: Sequence[int]) -> list[GpuSample]:
    """Samples whose values are a function of the time in seconds."""
    return [GpuSample(at_ns, **values(at_ns / NS)) for at_ns in times_ns]


def counter(times_ns: Sequence[int], watts: float = 50.0) -> list[GpuSample]:
    """Samples of a GPU that draws this much."""
    return course(lambda at: {"joules": watts * at, "utilisation": 0.5}, times_ns)


@pytest.mark.parametrize(("begin", "end"), [(-1, 5), (5, 41), (-2, 50)])
def test_nothing_is_known_beyond_the_samples(begin: int, end: int) -> None:
    """A stretch that begins before the first sample or ends after the last has no values."""
    assert gpu_use(counter(steady_times(4)), begin * TICK_NS, end * TICK_NS) == GpuUse()


def test_a_sample_on_the_border_of_two_windows_belongs_to_the_later_one() -> None:
    """And to no other."""
    samples = counter(steady_times(4))
    assert [sample.at_ns for sample in between(samples, TICK_NS, 3 * TICK_NS)] == [TICK_NS, 2 * TICK_NS]


@pytest.mark.parametrize(("begin", "end"), [(1.0, 4.0), (2.5, 3.0), (3.0, 3.5), (2.5, 2.55), (1.5, 2.5)])
def test_a_stretch_in_a_gap_has_no_values(begin: float, end: float) -> None:
    """What happened in more than a second without samples is not guessed, nor does the rest of the stretch count."""
    samples = counter([at for at in steady_times(5) if not 2.05 * NS < at < 3.25 * NS])
    assert gpu_use(samples, round(begin * NS), round(end * NS)) == GpuUse()
    assert not samples_of(samples, round(begin * NS), round(end * NS))
    assert gpu_use(samples, NS, 2 * NS).joules == pytest.approx(50.0)


def test_an_energy_that_was_not_read_once_is_interpolated() -> None:
    """A driver fails now and then; the counter knows what it used meanwhile."""
    for missing in (10, 12, 20):
        samples = [
            GpuSample(sample.at_ns) if number == missing else sample
            for number, sample in enumerate(counter(steady_times(5)))
        ]
        assert gpu_use(samples, NS, 2 * NS).joules == pytest.approx(50.0)
    samples = course(lambda at: {"joules": 50 * at} if not 1.05 < at < 2.15 else {}, steady_times(5))
    assert gpu_use(samples, round(1.5 * NS), 2 * NS).joules is None


@pytest.mark.parametrize("reset_tick", [5, 15, 20, 21, 29, 30, 40])
def test_a_counter_that_was_reset_tells_nothing(reset_tick: int) -> None:
    """A fall within the stretch, or between its ends and the next sample, makes it unknown; others do not matter."""

    def seen(at: float) -> dict[str, Any]:
        return {"joules": 50 * at + 1000 if at * 10 < reset_tick - 0.5 else 50 * (at - reset_tick / 10)}

    found = gpu_use(course(seen, steady_times(5)), round(1.45 * NS), round(2.95 * NS))
    assert found.joules == (pytest.approx(75.0) if reset_tick in {5, 40} else None)


def test_everything_of_a_stretch() -> None:
    """Each value of a sample reaches its own place: memory as its peak, the others as means."""
    samples = course(
        lambda at: {
            "utilisation": 0.5 + (at > 2.45) / 4,
            "memory_bytes": 1 << (30 + (at == 2.2)),
            "sm_clock_mhz": 1500,
            "joules": 60 * at,
            "clock_reasons": 0x4,
        },
        steady_times(5),
    )
    found = gpu_use(samples, 2 * NS, 3 * NS)
    assert found.joules == pytest.approx(60.0)
    assert replace(found, joules=None) == GpuUse(None, 1 << 31, 0.625, 1500.0)
    assert len(samples_of(samples, 2 * NS, 3 * NS)) == 10
    assert gpu_use(course(lambda _: {}, steady_times(3)), NS, 2 * NS) == GpuUse()


@pytest.mark.parametrize(("tells", "clock"), [("all", 1450), ("no reasons", 850), ("rest", None)])
def test_the_clock_of_work_leaves_out_rest(tells: str, clock: float | None) -> None:
    """Samples with GPU_IDLE, alone or among other reasons, do not count; where no reasons are known all do."""
    cycle = [(300, 0x1)] * 4 if tells == "rest" else [(1500, 0x0), (300, 0x1), (1400, 0x4), (200, 0x5)]

    def seen(at: float) -> dict[str, Any]:
        mhz, reasons = cycle[round(at * 10) % 4]
        return {"sm_clock_mhz": mhz, "clock_reasons": None if tells == "no reasons" else reasons}

    assert gpu_use(course(seen, steady_times(3)), NS, NS + 8 * TICK_NS).sm_clock_mhz == clock


def test_a_stretch_between_two_samples_has_their_values() -> None:
    """The last window of a load that ends by itself may be one; all but energy is that of its neighbours."""

    def seen(at: float) -> dict[str, Any]:
        late = at > 1.05
        return {
            "utilisation": 0.5 + late / 4,
            "memory_bytes": 2 + late,
            "sm_clock_mhz": 1500,
            "joules": at,
            "clock_reasons": 8 * late,
        }

    samples = course(seen, steady_times(3))
    stretch = NS + TICK_NS // 4, NS + TICK_NS // 2
    assert [sample.clock_reasons for sample in samples_of(samples, *stretch)] == [0, 8]
    used = gpu_use(samples, *stretch)
    assert used.joules == pytest.approx(0.025)
    assert (used.memory_bytes, used.utilisation, used.sm_clock_mhz) == (3, 0.625, 1500)
