"""Which windows are rejected and which runs proven nothing, by the state of the card alone."""

from __future__ import annotations

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.device.sample import CardEvent, CardSample, DeviceProcess, Sample
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
    judge_window,
    judge_windows,
)
from pytest_gpuserve.measure.telemetry import CardTelemetry, Spread, Telemetry

UUID = "GPU-1"
MIB = 1 << 20


def window(mhz: float | None = 1500.0, reasons: dict[int, int] | None = None, *, covered: bool = True) -> Telemetry:
    """A window of five samples of one card."""
    clock = None if mhz is None else Spread(mhz, mhz, mhz, 5)
    card = CardTelemetry(
        UUID, sm_clock_mhz=clock, busy_sm_clock_mhz=clock, clock_reasons=reasons, clock_reasons_samples=5
    )
    return Telemetry(0.5, 5, covered, {UUID: card})


def test_the_bits_are_those_of_nvml() -> None:
    """What counts as a disturbance is named by the binding's own constants; all others are let pass."""
    pynvml = pytest.importorskip("pynvml")
    disturbing = {"HwSlowdown", "SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown"}
    assert set(SLOWDOWNS) == {getattr(pynvml, f"nvmlClocksEventReason{name}") for name in disturbing}
    for name in ("GpuIdle", "ApplicationsClocksSetting", "SwPowerCap", "SyncBoost", "DisplayClockSetting"):
        bit = getattr(pynvml, f"nvmlClocksEventReason{name}")
        assert judge_window(window(reasons={bit: 5}), [UUID]) == WindowCondition()


@pytest.mark.parametrize("bit", SLOWDOWNS)
def test_one_sample_with_a_slowdown_rejects_the_window(bit: int) -> None:
    """The text names the card, the reason in NVML's words and in how many samples it was seen."""
    (text,) = judge_window(window(reasons={0x4: 5, bit: 1}), [UUID]).rejected
    assert text == f"{UUID}: {SLOWDOWNS[bit]} in 1 of 5 samples"


@given(st.floats(1, 3000), st.floats(1, 3000), st.floats(0.5, 1))
def test_a_clock_under_the_share_rejects(mhz: float, baseline: float, share: float) -> None:
    """Exactly where the mean clock is under the share of the baseline's, and only where there is a baseline's."""
    seen = window(mhz, reasons={})
    found = judge_window(seen, [UUID], baseline_clocks_mhz={UUID: baseline}, least_clock_share=share)
    assert bool(found.rejected) == (mhz / baseline < share)
    assert found.unknown == ()
    assert judge_window(seen, [UUID], baseline_clocks_mhz={"GPU-2": baseline}).good
    assert judge_window(seen, [UUID]).good


def test_a_fallen_clock_is_told_with_its_numbers() -> None:
    """Measured, share, baseline and limit."""
    found = judge_window(window(1350, reasons={}), [UUID], baseline_clocks_mhz={UUID: 1500.0})
    assert found.rejected == (f"{UUID}: SM clock 1350 MHz, 90 % of the baseline's 1500 MHz (at least 95 %)",)


@pytest.mark.parametrize(
    ("seen", "clocks", "words"),
    [
        (Telemetry(0.5, 5, covered=True), None, "no telemetry"),
        (window(reasons={}, covered=False), None, "no telemetry"),
        (window(reasons=None), None, "clock-event reasons"),
        (window(mhz=None, reasons={}), {UUID: 1500.0}, "SM clock"),
    ],
    ids=["no card", "not covered", "no reasons", "no clock"],
)
def test_what_was_not_seen_is_unknown_and_not_good(
    seen: Telemetry, clocks: dict[str, float] | None, words: str
) -> None:
    """A rule whose value is missing neither rejects nor passes."""
    found = judge_window(seen, [UUID], baseline_clocks_mhz=clocks)
    assert found.rejected == ()
    assert words in found.unknown[0]
    assert not found.good


def test_without_a_card_nothing_is_asked() -> None:
    """On a machine without one every window is good."""
    assert judge_window(Telemetry(0.5), []).good


def test_a_slowdown_shows_also_where_the_clock_is_unknown() -> None:
    """What is known to be wrong rejects, whatever else is not known."""
    found = judge_window(window(None, reasons={0x40: 2}), [UUID], baseline_clocks_mhz={UUID: 1.0})
    assert found.rejected
    assert found.unknown
    assert not found.good


@given(st.integers(0, 40), st.integers(1, 40), st.sampled_from([0.0, 0.1, 1 / 3, 0.5, 1.0]))
def test_the_bound_on_the_rejected_share(bad: int, good: int, share: float) -> None:
    """A run is invalid beyond the bound and not at it, with both counts in the text."""
    rejected = WindowCondition(rejected=("hot",))
    found = judge_windows([rejected] * bad + [WindowCondition()] * good, most_rejected_share=share)
    assert bool(found.invalid) == (bad > share * (bad + good))
    assert found.unknown == ()
    if found.invalid:
        assert found.invalid[0].startswith(f"throttled: {bad} of {bad + good} windows")
        assert "hot" in found.invalid[0]
        assert "never for how fast they were" in found.invalid[0]


def test_unknown_windows_are_counted_and_named() -> None:
    """They do not count as rejected, nor are they passed over."""
    found = judge_windows([WindowCondition(unknown=("x",)), WindowCondition(), WindowCondition()])
    assert found.invalid == ()
    assert found.unknown == ("telemetry unknown in 1 of 3 windows, first: x",)


def test_no_rule_can_see_how_fast_the_server_was() -> None:
    """Windows and runs are judged by telemetry; none of the functions takes a window of the load, or a rate."""
    for name, function in inspect.getmembers(conditions, inspect.isfunction):
        if name.startswith("judge_"):
            shown = str(inspect.signature(function)).lower()
            assert not any(word in shown for word in ("throughput", "latency", "window.window", "requests")), name


def test_a_card_at_rest_has_no_clock_to_compare() -> None:
    """Its clock falls because it has nothing to do; one that computed in part is judged by that part."""
    idle = Spread(300, 300, 300, 5)
    for busy, rejected in ((None, 0), (Spread(1500, 1500, 1500, 2), 0), (Spread(1350, 1350, 1350, 2), 1)):
        card = CardTelemetry(UUID, sm_clock_mhz=idle, busy_sm_clock_mhz=busy, clock_reasons={0x1: 3})
        found = judge_window(
            Telemetry(0.5, 5, covered=True, cards={UUID: card}), [UUID], baseline_clocks_mhz={UUID: 1500}
        )
        assert (len(found.rejected), found.unknown) == (rejected, ())


def test_a_run_needs_something_to_be_known_of_its_card() -> None:
    """One value in one sample is something; no value, no such card and no sample are nothing."""
    blank, power = (Sample(0, 1, 0.0, cards=(card,)) for card in (CardSample(UUID), CardSample(UUID, power_watts=1.0)))
    assert judge_known([blank, power], [UUID], needs_clock=False) == RunCondition()
    assert judge_known([], [], needs_clock=True) == RunCondition()
    for samples, uuid in (([blank, blank], UUID), ([power], "GPU-2"), ([], UUID)):
        (text,) = judge_known(samples, [uuid], needs_clock=False).invalid
        assert text.startswith(f"nothing is known of {uuid}: ")


def test_a_clock_that_the_baseline_has_must_be_known() -> None:
    """In every sample, if it is asked for."""
    clocks = [
        Sample(at, 1, 0.0, cards=(CardSample(UUID, 1.0, sm_clock_mhz=mhz),)) for at, mhz in ((0, 1500), (1, None))
    ]
    assert judge_known(clocks[:1], [UUID], needs_clock=True) == RunCondition()
    assert judge_known(clocks, [UUID], needs_clock=False) == RunCondition()
    (text,) = judge_known(clocks, [UUID], needs_clock=True).invalid
    assert text.startswith(f"SM clock of {UUID} unknown: ")


# -- processes

OURS = DeviceProcess(10, "server", 100 * MIB, ours=True)
THEIRS = DeviceProcess(20, "blender", 2048 * MIB, ours=False)
NAMELESS = DeviceProcess(30, None, None, ours=False)


def looks(*lists: tuple[DeviceProcess, ...] | None, uuid: str = UUID) -> list[Sample]:
    """A sample for each list of processes."""
    return [Sample(number, 1, 0.0, cards=(CardSample(uuid, processes=each),)) for number, each in enumerate(lists)]


def test_a_foreign_process_is_named() -> None:
    """Pid, name and memory, once however often it was seen, and what helps."""
    found = judge_processes(looks((), (OURS, THEIRS), (OURS, THEIRS)), [UUID], server_began_ns=1)
    assert found.unknown == ()
    (text,) = found.invalid
    assert text.startswith(f"foreign process on {UUID}: process 20 (blender, 2048 MiB); ")
    assert "end it" in text


def test_a_process_that_came_and_went_is_foreign_too() -> None:
    """One look is enough, and what is not known of it is said to be."""
    (text,) = judge_processes(looks((OURS,), (OURS, NAMELESS), (OURS,)), [UUID], server_began_ns=1).invalid
    assert "process 30 (of unknown name, unknown memory)" in text


def test_who_was_ours_once_is_ours() -> None:
    """A server's process that ends loses its parents, by which it is known, before it leaves the card."""
    orphan = DeviceProcess(OURS.pid, None, None, ours=False)
    assert judge_processes(looks((OURS,), (orphan,)), [UUID], server_began_ns=0) == RunCondition()


def test_who_was_there_before_the_server_is_foreign() -> None:
    """Before the start nobody can be ours, also where pids are of another namespace; after it nobody knows."""
    samples = looks((NAMELESS,), (NAMELESS,))
    assert judge_processes(samples, [UUID], server_began_ns=1).invalid != ()
    assert judge_processes(samples, [UUID], server_began_ns=0).invalid == ()
    assert judge_processes(samples, [UUID], server_began_ns=0).unknown != ()


def test_pids_of_another_namespace_are_unknown() -> None:
    """Where somebody came with the server and the server itself was never seen, nobody can tell who that is."""
    found = judge_processes(looks((), (NAMELESS,), (NAMELESS,)), [UUID], server_began_ns=1)
    assert found.invalid == ()
    (text,) = found.unknown
    assert "process 30" in text
    assert "--pid=host" in text


def test_who_is_allowed_is_none() -> None:
    """A program that is named beforehand, and the server's own, disturb nothing."""
    daemon = DeviceProcess(40, "nvidia-cuda-mps-server", 30 * MIB, ours=False)
    samples = looks((daemon,), (daemon, OURS))
    assert judge_processes(samples, [UUID], server_began_ns=1).invalid != ()
    assert (
        judge_processes(samples, [UUID], server_began_ns=1, allowed_names={"nvidia-cuda-mps-server"}) == RunCondition()
    )


def test_processes_that_were_never_seen_are_unknown() -> None:
    """Neither None in every sample nor no sample at all is an empty card; other cards' processes are not looked at."""
    for samples in (looks(None, None), [], looks((THEIRS,), uuid="GPU-2")):
        assert judge_processes(samples, [UUID], server_began_ns=1) == RunCondition(unknown=(f"{UUID}: its processes",))
    assert judge_processes(looks((), None), [UUID], server_began_ns=1) == RunCondition()


# -- memory


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40), st.integers(0, 1 << 34))
def test_memory_that_was_not_given_back(before: int, after: int, tolerance: int) -> None:
    """Exactly what is more than the tolerance above what was in use before; less than before is well."""
    found = judge_memory(UUID, before, after, tolerance_bytes=tolerance)
    assert bool(found.invalid) == (after - before > tolerance)
    assert found.unknown == ()


def test_memory_is_told_in_numbers_or_unknown() -> None:
    """Both amounts and the difference; without one of them nobody knows."""
    (text,) = judge_memory(UUID, 450 * MIB, 1450 * MIB).invalid
    assert text.startswith(f"memory not given back: on {UUID} 1000 MiB more")
    assert "(1450 MiB)" in text
    assert "(450 MiB)" in text
    for before, after in ((None, 1), (1, None), (None, None)):
        found = judge_memory(UUID, before, after)
        assert (found.invalid, len(found.unknown)) == ((), 1)


# -- events and ECC


@pytest.mark.parametrize(
    ("number", "words"), [(79, "fallen off the bus"), (48, "double-bit ECC"), (9999, "xid-errors")]
)
def test_an_xid_is_told_with_its_meaning(number: int, words: str) -> None:
    """The number, and what it means, or where to find that."""
    (text,) = judge_events([CardEvent(1, UUID, "xid", number)], [UUID]).invalid
    assert text.startswith(f"XID {number} on {UUID}: ")
    assert words in text


def test_events_are_counted_and_those_of_other_cards_left_out() -> None:
    """Of a hundred alike one text remains, with their number."""
    events = [CardEvent(at, UUID, "xid", 31) for at in range(100)] + [CardEvent(1, "GPU-2", "lost")]
    (text,) = judge_events(events, [UUID]).invalid
    assert text.endswith("(100 times)")
    assert judge_events([], [UUID]) == RunCondition()


def test_a_lost_card_is_told() -> None:
    """In words that can be searched for."""
    (text,) = judge_events([CardEvent(1, UUID, "lost")], [UUID]).invalid
    assert text.startswith(f"card lost: {UUID}")
    assert "GPU is lost" in text


def ecc(*counts: int | None) -> list[Sample]:
    """A sample for each reading of the counter."""
    return [
        Sample(number, 1, 0.0, cards=(CardSample(UUID, uncorrected_ecc=count),)) for number, count in enumerate(counts)
    ]


def test_ecc_errors_are_those_that_came_meanwhile() -> None:
    """Older ones are not this run's; a counter that was never read is unknown, unless the card has none."""
    assert judge_ecc(ecc(7, None, 7), [UUID]) == RunCondition()
    (text,) = judge_ecc(ecc(7, None, 8, 7), [UUID]).invalid
    assert ": 1 in this run (8 since" in text
    assert judge_ecc(ecc(None, None), [UUID]) == RunCondition(unknown=(f"{UUID}: its ECC errors",))
    assert judge_ecc(ecc(None, None), [UUID], without_ecc={UUID}) == RunCondition()


def test_conditions_together_keep_each_text_once() -> None:
    """In order, whichever rule said it first."""
    parts = [RunCondition(("a",), ("x",)), RunCondition(("b", "a")), RunCondition(unknown=("x", "y"))]
    assert RunCondition.together(parts) == RunCondition(("a", "b"), ("x", "y"))


def test_what_disturbed_the_client_is_told_as_that() -> None:
    """In its own words, where no card was disturbed; and a window in which both were counts once."""
    late = WindowCondition(client=("client held up: for 9 % of the time",))
    assert late.again == late.client
    assert not late.good
    assert judge_windows([late, WindowCondition(), WindowCondition()]).invalid == ()
    (text,) = judge_windows([late, late, WindowCondition()]).invalid
    assert text.startswith("client held up: for 9 % of the time; disturbed were 2 of 3 windows, more than 33.3 %")
    both = WindowCondition(rejected=("GPU-1: hot",), client=late.client)
    (text,) = judge_windows([late, both, WindowCondition()]).invalid
    assert text.startswith("throttled: 2 of 3 windows, more than 33.3 % of them; first: GPU-1: hot; client held up")
