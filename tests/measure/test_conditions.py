"""Windows that are rejected and runs that prove nothing, by the state of the GPU alone."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.device.sample import DeviceProcess, GpuEvent, GpuSample, TelemetrySample
from pytest_gpuserve.measure import conditions
from pytest_gpuserve.measure.conditions import (
    SLOWDOWNS,
    RunCondition,
    WindowCondition,
    judge_ecc,
    judge_events,
    judge_known,
    judge_memory,
    judge_processes,
    judge_rest,
    judge_use,
    judge_window,
    judge_windows,
)
from pytest_gpuserve.measure.telemetry import GpuTelemetry, Spread, Telemetry
from pytest_gpuserve.verdict.reason import ReasonKind
from tests.compare.vocabulary import cases
from tests.support.reasons import because, said

UUID = "GPU-1"
MIB = 1 << 20
CLOCK = {UUID: 1500.0}
"""Of the baseline."""


def window(mhz: float | None = 1500.0, reasons: dict[int, int] | None = None, *, covered: bool = True) -> Telemetry:
    """A window of five samples of one GPU."""
    clock = None if mhz is None else Spread(mhz, mhz, 5)
    gpu = GpuTelemetry(
        UUID, sm_clock_mhz=clock, busy_sm_clock_mhz=clock, clock_reasons=reasons, clock_reasons_samples=5
    )
    return Telemetry(0.5, 5, covered, {UUID: gpu})


# -- windows


def test_the_bits_are_those_of_nvml() -> None:
    """The disturbing bits are the binding's own constants; all others are harmless."""
    pynvml = pytest.importorskip("pynvml")
    disturbing = {"HwSlowdown", "SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown"}
    assert set(SLOWDOWNS) == {getattr(pynvml, f"nvmlClocksEventReason{name}") for name in disturbing}
    for name in ("GpuIdle", "ApplicationsClocksSetting", "SwPowerCap", "SyncBoost", "DisplayClockSetting"):
        bit = getattr(pynvml, f"nvmlClocksEventReason{name}")
        assert judge_window(window(reasons={bit: 5}), [UUID]) == WindowCondition()


@pytest.mark.parametrize("bit", SLOWDOWNS)
def test_one_sample_with_a_slowdown_rejects_the_window(bit: int) -> None:
    """The text names GPU, reason and number of samples; a clock that is not known does not hide it."""
    for mhz in (1500.0, None):
        found = judge_window(window(mhz, reasons={0x4: 5, bit: 1}), [UUID], baseline_clocks_mhz=CLOCK)
        assert found.rejected == (f"{UUID}: {SLOWDOWNS[bit]} in 1 of 5 samples",)
        assert bool(found.unknown) is (mhz is None)
        assert not found.good


@given(st.floats(1, 3000), st.floats(1, 3000), st.floats(0.5, 1))
def test_a_clock_under_the_share_rejects(mhz: float, baseline: float, share: float) -> None:
    """A window is rejected exactly if its mean clock is below the share of the baseline's, and only with a baseline."""
    seen = window(mhz, reasons={})
    found = judge_window(seen, [UUID], baseline_clocks_mhz={UUID: baseline}, least_clock_share=share)
    assert bool(found.rejected) == (mhz / baseline < share)
    assert found.unknown == ()
    assert judge_window(seen, [UUID], baseline_clocks_mhz={"GPU-2": baseline}).good
    assert judge_window(seen, [UUID]).good


def test_a_fallen_clock_is_told_with_its_numbers() -> None:
    """A GPU that rests lowers its clock, so it is judged by the part in which it computed."""
    found = judge_window(window(1350, reasons={}), [UUID], baseline_clocks_mhz=CLOCK)
    assert found.rejected == (f"{UUID}: SM clock 1350 MHz, 90 % of the baseline's 1500 MHz (at least 95 %)",)
    idle = Spread(300, 300, 5)
    for busy, rejected in ((None, 0), (Spread(1500, 1500, 2), 0), (Spread(1350, 1350, 2), 1)):
        gpu = GpuTelemetry(UUID, sm_clock_mhz=idle, busy_sm_clock_mhz=busy, clock_reasons={0x1: 3})
        resting = Telemetry(0.5, 5, covered=True, gpus={UUID: gpu})
        found = judge_window(resting, [UUID], baseline_clocks_mhz=CLOCK)
        assert (len(found.rejected), found.unknown) == (rejected, ())


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (Telemetry(0.5, 5, covered=True), "no telemetry"),
        (window(reasons={}, covered=False), "no telemetry"),
        (window(reasons=None), "clock-event reasons"),
        (window(mhz=None, reasons={}), "SM clock"),
    ],
    ids=["no GPU", "not covered", "no reasons", "no clock"],
)
def test_what_was_not_seen_is_unknown_and_not_good(seen: Telemetry, words: str) -> None:
    """A rule whose value is missing neither rejects nor passes; without a GPU no rule applies."""
    found = judge_window(seen, [UUID], baseline_clocks_mhz=CLOCK)
    assert found.rejected == ()
    assert words in found.unknown[0]
    assert not found.good
    assert judge_window(seen, []).good


@given(st.integers(0, 40), st.integers(1, 40))
def test_the_bound_on_the_rejected_share(bad: int, good: int) -> None:
    """A run is invalid beyond a third of its windows, not at it, with both counts; unknown windows count as neither."""
    rejected = WindowCondition(rejected=("hot",))
    found = judge_windows([rejected] * bad + [WindowCondition()] * good)
    assert bool(found.invalid) == (bad > (bad + good) / 3)
    assert found.unknown == ()
    if found.invalid:
        assert found.invalid[0].text.startswith(f"throttled: {bad} of {bad + good} windows")
        assert "hot" in found.invalid[0].text
        assert "never for how fast they were" in found.invalid[0].text
    found = judge_windows([WindowCondition(unknown=("x",)), WindowCondition(), WindowCondition()])
    assert found == RunCondition(unknown=("telemetry unknown in 1 of 3 windows, first: x",))


def test_what_disturbed_the_client_is_told_as_that() -> None:
    """A disturbed client has its own words; a window with both disturbances counts once."""
    late = WindowCondition(client=because("client held up: for 9 % of the time", kind=ReasonKind.CLIENT_HELD_UP))
    assert late.again == said(late.client)
    assert not late.good
    assert judge_windows([late, WindowCondition(), WindowCondition()]).invalid == ()
    (reason,) = judge_windows([late, late, WindowCondition()]).invalid
    assert reason.kind is ReasonKind.CLIENT_HELD_UP
    assert reason.text.startswith(
        "client held up: for 9 % of the time; disturbed were 2 of 3 windows, more than 33.3 %"
    )
    both = WindowCondition(rejected=("GPU-1: hot",), client=late.client)
    (reason,) = judge_windows([late, both, WindowCondition()]).invalid
    assert reason.kind is ReasonKind.THROTTLED
    assert reason.text.startswith(
        "throttled: 2 of 3 windows, more than 33.3 % of them; first: GPU-1: hot; client held up"
    )


def test_no_rule_can_see_how_fast_the_server_was() -> None:
    """Windows and runs are judged by telemetry; none of the functions takes a window of the load, or a rate."""
    for name, function in inspect.getmembers(conditions, inspect.isfunction):
        if name.startswith("judge_"):
            shown = str(inspect.signature(function)).lower()
            assert not any(word in shown for word in ("throughput", "latency", "window.window", "requests")), name


def test_a_run_needs_something_to_be_known_of_its_gpu() -> None:
    """One value in one sample is enough; a clock that the baseline has may be missing only in some samples."""
    blank, power = (TelemetrySample(0, gpus=(gpu,)) for gpu in (GpuSample(UUID), GpuSample(UUID, energy_joules=1.0)))
    assert judge_known([blank, power], [UUID], needs_clock=False) == RunCondition()
    assert judge_known([], [], needs_clock=True) == RunCondition()
    for samples, uuid in (([blank, blank], UUID), ([power], "GPU-2"), ([], UUID)):
        (reason,) = judge_known(samples, [uuid], needs_clock=False).invalid
        assert reason.text.startswith(f"no value of {uuid} is known: ")
    clocks = [TelemetrySample(0, gpus=(GpuSample(UUID, 1.0, sm_clock_mhz=mhz),)) for mhz in (1500, None)]
    assert judge_known((clocks[:1] + clocks[1:] * 4) * 3, [UUID], needs_clock=True) == RunCondition()
    clocks = clocks[:1] + clocks[1:] * 5
    assert judge_known(clocks, [UUID], needs_clock=False) == RunCondition()
    (reason,) = judge_known(clocks, [UUID], needs_clock=True).invalid
    assert reason.text.startswith(f"SM clock of {UUID} unknown: ")


# -- processes

OURS = DeviceProcess(10, "server", 100 * MIB, ours=True)
THEIRS = DeviceProcess(20, "blender", 2048 * MIB, ours=False)
NAMELESS = DeviceProcess(30, None, None, ours=False)
ORPHAN = DeviceProcess(OURS.pid, None, None, ours=False)
"""A server's process that ends loses its parents, by which it is known, before it leaves the GPU."""

FOREIGN = f"foreign process on {UUID}: process "
NOT_SEEN = f"{UUID}: its processes"


@cases(
    "looks, server_began, invalid, unknown",
    {
        # Once, however often it was seen; and one look is enough.
        "foreign": (((), (OURS, THEIRS), (OURS, THEIRS)), 1, FOREIGN + "20 (blender, 2048 MiB); ", ""),
        "came and went": (((OURS,), (OURS, NAMELESS)), 1, FOREIGN + "30 (of unknown name, unknown memory)", ""),
        "was ours once": (((OURS,), (ORPHAN,)), 0, "", ""),
        # Before the start nobody can be ours, also where pids are of another namespace; after it nobody knows.
        "there before the server": (((NAMELESS,), (NAMELESS,)), 1, FOREIGN + "30", ""),
        "came with the server": (((NAMELESS,), (NAMELESS,)), 0, "", "process 30"),
        "of another namespace": (((), (NAMELESS,), (NAMELESS,)), 1, "", "--pid=host"),
        "seen in one sample": (((), None), 1, "", ""),
        "never seen": ((None, None), 1, "", NOT_SEEN),
    },
)
def test_processes_of_others_are_named(
    looks: tuple[tuple[DeviceProcess, ...] | None, ...], server_began: int, invalid: str, unknown: str
) -> None:
    """They are named by pid, name and memory, with a remedy; a process without a known owner is unknown, not a pass."""
    samples = [TelemetrySample(number, gpus=(GpuSample(UUID, processes=each),)) for number, each in enumerate(looks)]
    found = judge_processes(samples, [UUID], server_began_ns=server_began)
    for texts, words in ((said(found.invalid), invalid), (found.unknown, unknown)):
        assert len(texts) == bool(words)
        assert all(words in text for text in texts)
    assert all("end it" in reason.text for reason in found.invalid)
    assert all("process 30" in text or text == NOT_SEEN for text in found.unknown)


@pytest.mark.parametrize(
    ("values", "uuid", "used"),
    [
        ([(0.0, 1024 * MIB)], UUID, False),
        ([(0.0, 0), (0.0, 1024 * MIB + 1)], UUID, True),
        ([(0.01, 0), (0.0, 0)], UUID, True),
        ([(0.5, 0)], "MIG-1", False),
        ([(None, None)], UUID, False),
        ([], UUID, False),
    ],
)
def test_use_without_a_process_is_foreign(
    values: list[tuple[float | None, int | None]], uuid: str, *, used: bool
) -> None:
    """By memory or utilisation; of an instance by memory alone, for the utilisation is its whole GPU's."""
    gpus = [GpuSample(uuid, gpu_utilisation=busy, memory_used_bytes=memory) for busy, memory in values]
    found = judge_rest([TelemetrySample(0, gpus=(gpu,)) for gpu in gpus], [uuid]).invalid
    assert [(reason.kind, reason.about) for reason in found] == [(ReasonKind.FOREIGN_PROCESS, uuid)] * used


BUSY, IDLE = {"gpu_utilisation": 0.01}, {"gpu_utilisation": 0.0}


@cases(
    "looks, invalid, unknown",
    {
        "only another's process": ([IDLE, {**IDLE, "processes": (THEIRS,)}], True, False),
        "no utilisation and no processes known": ([{"memory_used_bytes": 514 * MIB}], True, False),
        "busy once": ([IDLE, BUSY], False, False),
        "a process of ours": ([IDLE, {**IDLE, "processes": (OURS,)}], False, False),
        "a light load in a container": ([IDLE, {**IDLE, "memory_used_bytes": 515 * MIB}], False, False),
        "memory unknown": ([{**IDLE, "memory_used_bytes": None}], False, True),
        "no load yet": ([], False, False),
    },
)
def test_a_server_that_does_not_use_the_gpu(looks: list[dict[str, Any]], *, invalid: bool, unknown: bool) -> None:
    """It has no process of its own, no utilisation, and no more memory than before its start."""
    gpus = [GpuSample(UUID, **{"memory_used_bytes": 450 * MIB, **look}) for look in looks]
    samples = [TelemetrySample(0, gpus=(gpu,)) for gpu in gpus]
    found = judge_use(samples, [UUID], before_bytes={UUID: 450 * MIB}, remedy="--device=cuda")
    assert [(reason.kind, reason.about) for reason in found.invalid] == [(ReasonKind.GPU_UNUSED, UUID)] * invalid
    assert all("--device=cuda; or measure the CPU: --gpu=cpu" in reason.text for reason in found.invalid)
    assert bool(found.unknown) is unknown
    assert bool(judge_use(samples, [UUID], before_bytes={UUID: None}, remedy="").invalid) is False


# -- memory, events and ECC


def test_memory_is_told_in_numbers_or_unknown() -> None:
    """The text has both amounts and the difference, beyond the tolerance; without one of them it is unknown."""
    assert judge_memory(UUID, 450 * MIB, 451 * MIB, tolerance_bytes=MIB) == RunCondition()
    assert judge_memory(UUID, 450 * MIB, 451 * MIB, tolerance_bytes=MIB - 1).invalid != ()
    (reason,) = judge_memory(UUID, 450 * MIB, 1450 * MIB).invalid
    assert reason.text.startswith(f"memory not given back: {UUID} had 1000 MiB more")
    assert "(1450 MiB)" in reason.text
    assert "(450 MiB)" in reason.text
    for before, after in ((None, 1), (1, None), (None, None)):
        found = judge_memory(UUID, before, after)
        assert (found.invalid, len(found.unknown)) == ((), 1)


@pytest.mark.parametrize(
    ("event", "begin", "words"),
    [
        (GpuEvent(1, UUID, "xid", 79), f"XID 79 on {UUID}: ", "fallen off the bus"),
        (GpuEvent(1, UUID, "xid", 9999), f"XID 9999 on {UUID}: ", "xid-errors"),
        (GpuEvent(1, UUID, "lost"), f"GPU lost: {UUID}", "GPU is lost"),
    ],
)
def test_an_event_is_told_with_its_meaning(event: GpuEvent, begin: str, words: str) -> None:
    """Or where to find that; of a hundred alike once, with their number; those of other GPUs are left out."""
    for times in (1, 100):
        (reason,) = judge_events([event] * times + [GpuEvent(1, "GPU-2", "lost")], [UUID], load_ns=(0, 9)).invalid
        assert reason.text.startswith(begin)
        assert words in reason.text
        assert reason.text.endswith("(100 times)") is (times == 100)
    assert judge_events([], [UUID], load_ns=(0, 9)) == RunCondition()


@pytest.mark.parametrize(("number", "counted"), [(45, (5, 9)), (31, (5, 9)), (79, (4, 5, 9, 10))])
def test_xids_of_an_application_count_under_load_alone(number: int, counted: tuple[int, ...]) -> None:
    """The end of a server that works logs them, too; an error of the GPU itself counts whenever it comes."""
    invalid = [
        at for at in (4, 5, 9, 10) if judge_events([GpuEvent(at, UUID, "xid", number)], [UUID], load_ns=(5, 9)).invalid
    ]
    assert tuple(invalid) == counted


def test_ecc_errors_are_those_that_came_meanwhile() -> None:
    """Older errors are not this run's; a counter that was never read is unknown, unless the GPU has none."""

    def ecc(*counts: int | None) -> list[TelemetrySample]:
        return [TelemetrySample(0, gpus=(GpuSample(UUID, uncorrected_ecc=count),)) for count in counts]

    assert judge_ecc(ecc(7, None, 7), [UUID]) == RunCondition()
    (reason,) = judge_ecc(ecc(7, None, 8, 7), [UUID]).invalid
    assert ": 1 in this run (8 since" in reason.text
    assert judge_ecc(ecc(None, None), [UUID]) == RunCondition(unknown=(f"{UUID}: its ECC errors",))
    assert judge_ecc(ecc(None, None), [UUID], without_ecc={UUID}) == RunCondition()
