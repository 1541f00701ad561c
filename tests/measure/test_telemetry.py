"""Arithmetic over samples: energies, counters and means of stretches, of courses that are known."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.device.sample import GpuSample, TelemetrySample
from pytest_gpuserve.experiment.telemetry import gpu_use
from pytest_gpuserve.measure.conditions import judge_window
from pytest_gpuserve.measure.telemetry import (
    FAST_GAP_NS,
    NS,
    GpuTelemetry,
    Spread,
    Telemetry,
    as_plain,
    between,
    merged,
    rise_between,
    telemetry_between,
)
from pytest_gpuserve.measure.window import GpuUse

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

UUID = "GPU-1"
TICK_NS = NS // 10


def gpu_samples(make: Callable[[float], GpuSample], times_ns: Sequence[int]) -> list[TelemetrySample]:
    """Samples of one GPU whose state is a function of the time in seconds."""
    return [TelemetrySample(at_ns, gpus=(make(at_ns / NS),)) for at_ns in times_ns]


def steady_times(seconds: float) -> list[int]:
    """Ten moments a second."""
    return [tick * TICK_NS for tick in range(round(seconds * 10) + 1)]


@pytest.mark.parametrize(("begin", "end"), [(-1, 5), (5, 41), (-2, 50)])
def test_nothing_is_known_beyond_the_samples(begin: int, end: int) -> None:
    """A stretch that begins before the first sample or ends after the last has no energy."""
    samples = gpu_samples(lambda at: GpuSample(UUID, energy_joules=at), steady_times(4))
    found = telemetry_between(samples, begin * TICK_NS, end * TICK_NS)
    assert found.gpus[UUID].joules is found.joules is None
    assert not found.covered
    # A sample on the border of two windows belongs to the later one, and to no other.
    assert [sample.at_ns for sample in between(samples, TICK_NS, 3 * TICK_NS)] == [TICK_NS, 2 * TICK_NS]


def test_a_gap_leaves_the_counter() -> None:
    """A second without samples within a stretch: the counter knows, and the stretch is not covered.

    Where a stretch begins or ends in the gap, what a counter had risen to there is not guessed.
    """
    times = [at for at in steady_times(5) if not 2 * NS < at < 3 * NS]
    counted = telemetry_between(gpu_samples(lambda at: GpuSample(UUID, energy_joules=7 * at), times), NS, 4 * NS)
    assert counted.gpus[UUID].joules == pytest.approx(21.0)
    assert not counted.covered
    counter = [(at, float(at)) for at in times]
    for begin_tick, end_tick in ((10, 25), (25, 40), (24, 26)):
        assert rise_between(counter, begin_tick * TICK_NS, end_tick * TICK_NS, FAST_GAP_NS) is None
        assert rise_between(counter, begin_tick * TICK_NS, end_tick * TICK_NS, NS) is not None


@pytest.mark.parametrize("reset_tick", [5, 15, 20, 21, 29, 30, 40])
def test_a_counter_that_was_reset_tells_nothing(reset_tick: int) -> None:
    """A fall within the stretch, or in a gap at its ends, makes it unknown; falls elsewhere do not matter."""

    def seen(at: float) -> GpuSample:
        joules = 50 * at + 1000 if at * 10 < reset_tick - 0.5 else 50 * (at - reset_tick / 10)
        return GpuSample(UUID, energy_joules=joules)

    found = telemetry_between(gpu_samples(seen, steady_times(5)), round(1.45 * NS), round(2.95 * NS))
    assert found.gpus[UUID].joules == (pytest.approx(75.0) if reset_tick in {5, 40} else None)


def full_samples(seconds: float) -> list[TelemetrySample]:
    """Samples with everything, of a GPU that draws 60 W."""

    def seen(at: float) -> GpuSample:
        return GpuSample(UUID, 0.5, 1 << 30, sm_clock_mhz=1500, energy_joules=60 * at, clock_reasons=0x4)

    return gpu_samples(seen, steady_times(seconds))


def test_everything_of_a_stretch() -> None:
    """Each value of a sample reaches its own place, in its unit, and survives JSON."""
    found = telemetry_between(full_samples(5), 2 * NS, 3 * NS)
    assert (found.seconds, found.samples, found.covered) == (1.0, 10, True)
    gpu = found.gpus[UUID]
    assert gpu.joules == pytest.approx(60.0)
    assert replace(gpu, joules=None) == GpuTelemetry(
        UUID,
        gpu_utilisation=Spread(0.5, 0.5, 10),
        memory_used_bytes=Spread(1 << 30, 1 << 30, 10),
        sm_clock_mhz=Spread(1500, 1500, 10),
        busy_sm_clock_mhz=Spread(1500, 1500, 10),
        clock_reasons={0x4: 10},
        clock_reasons_samples=10,
    )
    plain = as_plain(found)
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    # Masks are written as NVML's documents write them.
    assert plain["gpus"][UUID]["clock_reasons"] == {"0x4": 10}
    assert plain["joules"] == pytest.approx(60.0)


def test_without_a_gpu_its_values_are_absent() -> None:
    """Without a GPU the result has no entry and no energy instead of zeros; a silent GPU has None everywhere."""
    found = telemetry_between([TelemetrySample(at_ns) for at_ns in steady_times(3)], NS, 2 * NS)
    assert found.gpus == {}
    assert found.joules is as_plain(found)["joules"] is None
    found = telemetry_between(gpu_samples(lambda at: GpuSample(UUID), steady_times(3)), NS, 2 * NS)
    assert found.gpus == {UUID: GpuTelemetry(UUID)}


@pytest.mark.parametrize(
    ("tells", "spread"),
    [("all", Spread(1450, 1500, 4)), ("no reasons", Spread(850, 1500, 8)), ("rest", None)],
)
def test_the_clock_of_work_leaves_out_rest(tells: str, spread: Spread | None) -> None:
    """Samples with GPU_IDLE, alone or among other reasons, do not count; where no reasons are known all do."""
    course = [(300, 0x1)] * 4 if tells == "rest" else [(1500, 0x0), (300, 0x1), (1400, 0x4), (200, 0x5)]

    def seen(at: float) -> GpuSample:
        mhz, reasons = course[round(at * 10) % 4]
        return GpuSample(UUID, sm_clock_mhz=mhz, clock_reasons=None if tells == "no reasons" else reasons)

    samples = gpu_samples(seen, steady_times(3))
    whole = telemetry_between(samples, NS, NS + 8 * TICK_NS)
    halves = merged(telemetry_between(samples, NS + k * 4 * TICK_NS, NS + (k + 1) * 4 * TICK_NS) for k in range(2))
    assert halves is not None
    for found in (whole, halves):
        assert found.gpus[UUID].busy_sm_clock_mhz == spread
        clock = found.gpus[UUID].sm_clock_mhz
        assert clock is not None
        assert clock.samples == 8


def test_a_stretch_between_two_samples_has_their_values() -> None:
    """The last window of a load that ends by itself may be one; all but counters is that of its neighbours."""

    def seen(at: float) -> GpuSample:
        late = at > 1.05
        return GpuSample(
            UUID,
            0.5 + late / 4,
            memory_used_bytes=2 + late,
            sm_clock_mhz=1500,
            energy_joules=at,
            clock_reasons=8 * late,
        )

    found = telemetry_between(gpu_samples(seen, steady_times(3)), NS + TICK_NS // 4, NS + TICK_NS // 2)
    gpu = found.gpus[UUID]
    assert (found.samples, found.covered) == (0, True)
    assert gpu.gpu_utilisation == Spread(0.625, 0.75, 2)
    assert gpu.memory_used_bytes == Spread(2.5, 3, 2)
    assert (gpu.clock_reasons, gpu.clock_reasons_samples) == ({8: 1}, 2)
    assert judge_window(found, [UUID]).rejected != ()
    used = gpu_use(found)
    assert used.joules == pytest.approx(0.025)
    assert (used.memory_bytes, used.utilisation, used.sm_clock_mhz) == (3, 0.625, 1500)


@pytest.mark.parametrize("begin", [-2.0, 1.5, 3.04])
def test_a_stretch_beside_the_samples_has_no_values(begin: float) -> None:
    """Values are unknown before the first sample, after the last one and in a gap."""
    times = [at for at in steady_times(3) if not NS < at < 2 * NS]
    begin_ns = round(begin * NS)
    found = telemetry_between(gpu_samples(lambda _: GpuSample(UUID, 0.5), times), begin_ns, begin_ns + TICK_NS // 4)
    assert not found.covered
    assert gpu_use(found) == GpuUse()
    assert judge_window(found, [UUID]).unknown != ()


@pytest.mark.parametrize(("uuid", "known"), [("GPU-1", True), ("MIG-1", False)])
def test_of_an_instance_energy_and_utilisation_are_not_known(uuid: str, *, known: bool) -> None:
    """NVML gives the whole GPU's, other instances included; memory is its own, and all have one clock."""

    def seen(at: float) -> GpuSample:
        return GpuSample(uuid, 0.5, memory_used_bytes=7, sm_clock_mhz=1500, energy_joules=9.0 * at)

    found = telemetry_between(gpu_samples(seen, steady_times(3)), NS, 2 * NS)
    used = gpu_use(found)
    assert (used.memory_bytes, used.sm_clock_mhz) == (7, 1500)
    assert (used.joules is not None, used.utilisation is not None) == (known,) * 2
    # What the GPU itself took stays to be seen.
    assert found.gpus[uuid].joules is not None


def test_an_unknown_part_makes_a_sum_unknown() -> None:
    """A window whose energy is not known is not one that used none; two GPUs add up, with one unknown none is known."""
    known = telemetry_between(full_samples(8), 2 * NS, 3 * NS)
    blind = Telemetry(1.0)
    for parts in ([known, blind], [blind, known]):
        found = merged(parts)
        assert found is not None
        assert found.gpus[UUID].joules is found.joules is None
        assert not found.covered
        assert found.gpus[UUID].sm_clock_mhz == known.gpus[UUID].sm_clock_mhz
    one = {"a": GpuTelemetry("a", joules=120.0)}
    assert Telemetry(2.0, gpus={**one, "b": GpuTelemetry("b", joules=80.0)}).joules == 200.0
    assert Telemetry(2.0, gpus={**one, "b": GpuTelemetry("b")}).joules is None
