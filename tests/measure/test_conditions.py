"""The state of the GPU alone: what its samples come to, windows that are rejected, runs that prove nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.device.gpu_probe import GpuProcess, GpuSample
from pytest_gpuserve.measure.conditions import (
    NS,
    SLOWDOWNS,
    between,
    error_reasons,
    gpu_use,
    memory_reasons,
    process_reasons,
    rest_reasons,
    samples_of,
    too_many_rejected,
    unknown_text,
    use_reasons,
    use_text,
    window_reasons,
)
from pytest_gpuserve.measure.window import GpuUse
from pytest_gpuserve.verdict.reason import Reason, ReasonKind
from tests.support.builders import because, cases, kinds, said

MIB = 1 << 20
CLOCK = 1500.0
"""Of the baseline."""

HOT = Reason(ReasonKind.THROTTLED, "hot")


def window(*masks: int | None, mhz: int | None = 1500) -> list[GpuSample]:
    """The samples of a window."""
    return [GpuSample(number, sm_clock_mhz=mhz, clock_reasons=mask, joules=1.0) for number, mask in enumerate(masks)]


# -- windows


def test_the_bits_are_those_of_nvml() -> None:
    """The disturbing bits are the binding's own constants; all others are harmless."""
    pynvml = pytest.importorskip("pynvml")
    disturbing = {"HwSlowdown", "SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown"}
    assert set(SLOWDOWNS) == {getattr(pynvml, f"nvmlClocksEventReason{name}") for name in disturbing}
    for name in ("GpuIdle", "ApplicationsClocksSetting", "SwPowerCap", "SyncBoost", "DisplayClockSetting"):
        bit = getattr(pynvml, f"nvmlClocksEventReason{name}")
        assert window_reasons(window(*[bit] * 5), 1500, baseline_mhz=None) == ()


@pytest.mark.parametrize("bit", SLOWDOWNS)
def test_one_sample_with_a_slowdown_rejects_the_window(bit: int) -> None:
    """The text names the reason and the number of samples; samples without reasons do not hide it."""
    (reason,) = window_reasons(window(0x4, 0x4, None, 0x4 | bit), 1500, baseline_mhz=CLOCK)
    assert (reason.kind, reason.text) == (ReasonKind.THROTTLED, f"{SLOWDOWNS[bit]} in 1 of 3 samples")


@given(st.floats(1, 3000), st.floats(1, 3000))
def test_a_clock_under_the_share_rejects(mhz: float, baseline: float) -> None:
    """A window is rejected exactly if its mean clock is below 95 % of the baseline's, and only with a baseline."""
    assert bool(window_reasons(window(0), mhz, baseline_mhz=baseline)) == (mhz / baseline < 0.95)
    assert window_reasons(window(0), mhz, baseline_mhz=None) == ()


def test_a_fallen_clock_is_told_with_its_numbers() -> None:
    """A GPU without work in the window is not compared, because it lowers its clock."""
    (reason,) = window_reasons(window(0), 1350.0, baseline_mhz=CLOCK)
    assert reason.text == "SM clock 1350 MHz, 90 % of the baseline's 1500 MHz (at least 95 %)"
    assert window_reasons(window(0x1, mhz=300), None, baseline_mhz=CLOCK) == ()


@pytest.mark.parametrize("seen", [[], [GpuSample(1), GpuSample(2)], window(0, mhz=None)])
def test_a_window_that_was_not_seen_is_rejected(seen: list[GpuSample]) -> None:
    """Without samples, without values, or without the clock that its baseline has, the GPU may have been slow."""
    assert kinds(window_reasons(seen, None, baseline_mhz=CLOCK)) == [ReasonKind.GPU_UNKNOWN]


@given(st.integers(0, 40), st.integers(1, 40))
def test_the_bound_on_the_rejected_share(bad: int, good: int) -> None:
    """A run is invalid beyond a third of its windows, not at it, with both counts."""
    found = too_many_rejected([(HOT,)] * bad + [()] * good)
    assert bool(found) == (bad > (bad + good) / 3)
    if found:
        assert found[0].kind is ReasonKind.THROTTLED
        assert found[0].text.startswith(f"hot; {bad} of {bad + good} windows were disturbed")
        assert "never for their speed" in found[0].text
        assert "--lock-gpu-clocks" in found[0].text


def test_what_disturbed_first_is_told_as_that() -> None:
    """A disturbed client has its own kind and words; a window with both disturbances counts once."""
    late = because("client held up: for 9 % of the time", kind=ReasonKind.CLIENT_HELD_UP)
    (reason,) = too_many_rejected([late, late, ()])
    assert reason.kind is ReasonKind.CLIENT_HELD_UP
    assert reason.text.startswith(
        "client held up: for 9 % of the time; 2 of 3 windows were disturbed, more than 33.3 %"
    )
    (reason,) = too_many_rejected([(HOT, *late), (HOT,), ()])
    assert reason.kind is ReasonKind.THROTTLED
    assert reason.text.startswith("hot; client held up: for 9 % of the time; 2 of 3 windows were disturbed")


# -- processes

OWN = {10}
OURS = GpuProcess(11, "server", 100 * MIB, ancestors=(10, 1))
THEIRS = GpuProcess(20, "blender", 2048 * MIB, ancestors=(1,))
NAMELESS = GpuProcess(30, None, None)
ORPHAN = GpuProcess(OURS.pid, None, None)
"""A server's process that ends loses its parents, by which it is known, before it leaves the GPU."""

FOREIGN = "foreign process on the GPU: process "


@cases(
    "looks, server_began, invalid, unknown",
    {
        # Once, however often it was seen; and one look is enough.
        "foreign": (((), (OURS, THEIRS), (OURS, THEIRS)), 1, FOREIGN + "20 (blender, 2048 MiB); ", ""),
        "came and went": (((OURS,), (OURS, NAMELESS)), 1, FOREIGN + "30 (of unknown name, unknown memory)", ""),
        "was ours once": (((OURS,), (ORPHAN,)), 0, "", ""),
        "by its own pid": (((GpuProcess(10, "server", None),),), 0, "", ""),
        # Before the start nobody can be ours, also where pids are of another namespace; after it nobody knows.
        "there before the server": (((NAMELESS,), (NAMELESS,)), 1, FOREIGN + "30", "--pid=host"),
        "came with the server": (((NAMELESS,), (NAMELESS,)), 0, "", "--pid=host"),
        "of another namespace": (((), (NAMELESS,), (NAMELESS,)), 1, "", "--pid=host"),
        "seen in one sample": (((), None), 1, "", ""),
        "never seen": ((None, None), 1, "", "telemetry unknown: processes"),
    },
)
def test_processes_of_others_are_named(
    looks: tuple[tuple[GpuProcess, ...] | None, ...], server_began: int, invalid: str, unknown: str
) -> None:
    """They are named by pid, name and memory, with a remedy; a process without a known owner is unknown, not a pass."""
    samples = [
        GpuSample(number, memory_bytes=1, clock_reasons=0, uncorrected_ecc=0, xids=(), processes=each)
        for number, each in enumerate(looks)
    ]
    found = said(process_reasons(samples, OWN, server_began_ns=server_began))
    assert len(found) == bool(invalid)
    assert all(invalid in text and "end it" in text for text in found)
    told = unknown_text(samples, OWN)
    assert bool(told) is bool(unknown)
    assert unknown in told


@pytest.mark.parametrize(
    ("values", "used", "text"),
    [
        ([(0.0, 1024 * MIB)], False, "0 % busy, 1024 MiB in use"),
        ([(0.0, 0), (0.0, 1024 * MIB + 1)], True, "0 % busy, 1024 MiB in use"),
        ([(0.01, 0), (0.0, 0)], True, "1 % busy, 0 MiB in use"),
        ([(None, None)], False, "utilisation unknown, memory unknown"),
        ([], False, "utilisation unknown, memory unknown"),
    ],
)
def test_use_without_a_process_is_foreign(
    values: list[tuple[float | None, int | None]], text: str, *, used: bool
) -> None:
    """By memory or utilisation, before the server's start."""
    samples = [GpuSample(0, utilisation=busy, memory_bytes=memory) for busy, memory in values]
    assert use_text(samples) == text
    assert kinds(rest_reasons(samples)) == [ReasonKind.FOREIGN_PROCESS] * used


IDLE = {"utilisation": 0.0}


@cases(
    "looks, invalid",
    {
        "only another's process": ([IDLE, {**IDLE, "processes": (THEIRS,)}], True),
        "no utilisation and no processes known": ([{"memory_bytes": 514 * MIB}], True),
        "busy once": ([IDLE, {"utilisation": 0.01}], False),
        "a process of ours": ([IDLE, {**IDLE, "processes": (OURS,)}], False),
        "a light load in a container": ([IDLE, {**IDLE, "memory_bytes": 515 * MIB}], False),
        "memory unknown": ([{**IDLE, "memory_bytes": None}], False),
        "no load yet": ([], False),
    },
)
def test_a_server_that_does_not_use_the_gpu(looks: list[dict[str, Any]], *, invalid: bool) -> None:
    """It has no process of its own, no utilisation, and no more memory than before its start."""
    samples = [GpuSample(0, **{"memory_bytes": 450 * MIB, **look}) for look in looks]
    found = use_reasons(samples, OWN, before_bytes=450 * MIB, remedy="--device=cuda")
    assert kinds(found) == [ReasonKind.GPU_UNUSED] * invalid
    assert all("--device=cuda; or measure the CPU: --gpu=cpu" in reason.text for reason in found)
    assert use_reasons(samples, OWN, before_bytes=None, remedy="") == []


# -- memory and errors


def test_memory_is_told_in_numbers() -> None:
    """The text has both amounts and the difference, beyond what a driver may keep; unknown amounts are not compared."""
    assert memory_reasons(450 * MIB, 514 * MIB) == []
    assert memory_reasons(450 * MIB, 514 * MIB + 1) != []
    (reason,) = memory_reasons(450 * MIB, 1450 * MIB)
    assert reason.text.startswith("memory not given back: the GPU had 1000 MiB more")
    assert "(1450 MiB)" in reason.text
    assert "(450 MiB)" in reason.text
    assert memory_reasons(None, 1) == memory_reasons(1, None) == []


def test_an_error_is_told_once_with_its_number() -> None:
    """An XID names how often it came and where its meaning is; a lost GPU is an error of its own."""
    for times in (1, 100):
        (reason,) = error_reasons([GpuSample(1, xids=(79,))] * times, load_ns=(0, 9))
        assert (reason.kind, reason.about) == (ReasonKind.GPU_ERROR, "XID 79")
        assert ("100 times" in reason.text) is (times == 100)
        assert "xid-errors" in reason.text
    (reason,) = error_reasons([GpuSample(1), GpuSample(2, lost=True), GpuSample(3, lost=True)], load_ns=(0, 9))
    assert reason.text.startswith("GPU lost: ")
    assert error_reasons([GpuSample(1)], load_ns=(0, 9)) == []


@pytest.mark.parametrize(("number", "counted"), [(45, (5, 9)), (31, (5, 9)), (79, (4, 5, 9, 10))])
def test_xids_of_an_application_count_under_load_alone(number: int, counted: tuple[int, ...]) -> None:
    """The end of a server that works logs them, too; an error of the GPU itself counts whenever it comes."""
    invalid = [at for at in (4, 5, 9, 10) if error_reasons([GpuSample(at, xids=(number,))], load_ns=(5, 9))]
    assert tuple(invalid) == counted


def test_ecc_errors_are_those_that_came_meanwhile() -> None:
    """Older errors are not this run's."""

    def ecc(*counts: int | None) -> list[GpuSample]:
        return [GpuSample(0, uncorrected_ecc=count) for count in counts]

    assert error_reasons(ecc(7, None, 7), load_ns=(0, 9)) == []
    (reason,) = error_reasons(ecc(7, None, 8, 7), load_ns=(0, 9))
    assert ": 1 in this run (8 since" in reason.text


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


def test_a_sample_on_the_border_of_two_windows_belongs_to_the_later_one() -> None:
    """And to no other."""
    samples = counter(steady_times(4))
    assert [sample.at_ns for sample in between(samples, TICK_NS, 3 * TICK_NS)] == [TICK_NS, 2 * TICK_NS]


OUT_OF_SIGHT = [(-0.1, 0.5), (4.5, 5.1), (1.0, 4.0), (2.5, 3.0), (3.0, 3.5), (2.5, 2.55), (1.5, 2.5)]


@pytest.mark.parametrize(("begin", "end"), OUT_OF_SIGHT)
def test_nothing_is_known_beyond_the_samples_or_in_a_gap(begin: float, end: float) -> None:
    """A gap of more than a second between samples is not guessed, and the rest of the stretch does not count."""
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
