"""What the doctor makes of what was seen: a table of facts, and what each of them does to a measurement."""

from __future__ import annotations

import re
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from pytest_gpuserve.device.card import UNSUPPORTED, Card
from pytest_gpuserve.device.host import Boost, Host
from pytest_gpuserve.device.sample import CardEvent, CardSample, DeviceProcess
from pytest_gpuserve.doctor.conditions import (
    GIB,
    MIB,
    CardConditions,
    Condition,
    Level,
    driver_condition,
    host_conditions,
    lock_condition,
)
from pytest_gpuserve.doctor.look import (
    BusyProcess,
    CardState,
    CpuUse,
    Driver,
    Finding,
    HostState,
    LockState,
    MachineState,
    Space,
    Swap,
)
from pytest_gpuserve.doctor.report import Report, make_report, report_text

OK, UNKNOWN, WARNING, PREVENTS = Level.OK, Level.UNKNOWN, Level.WARNING, Level.PREVENTS

HOST = Host("0123456789ab", "AMD EPYC", 16, 64 * GIB, "6.1.0", "Debian GNU/Linux 12", 1, "performance")

QUIET = CpuUse(seconds=1.0, by_others=0.1, stolen=0.0, stolen_since_boot=0.0)

GOOD_HOST = HostState(
    host=HOST,
    boost=Boost(on=False, turn_off="no"),
    core_limit=inf,
    is_virtual=False,
    sees_all=True,
    cpu=QUIET,
    swap=Swap(0, 0),
    shared_memory=Space("/dev/shm", 32 * GIB, 31 * GIB),
    open_files=(65536, 65536),
    temp=Space("/tmp", 200 * GIB, 100 * GIB),
)

UUID = "GPU-00000000-1111-2222-3333-444444444444"

CARD = Card(
    index=3,
    product="Tesla T4",
    name="T4",
    uuid=UUID,
    pci_bus_id="00000000:3B:00.0",
    memory_bytes=15 * GIB,
    driver="570.1",
    cuda="12.8",
    power_limit_watts=70.0,
    max_sm_clock_mhz=1590,
    mig=None,
    power_default_watts=70.0,
    application_clock_mhz=1500,
    application_clocks_set=True,
    ecc=True,
    persistence=True,
)

CALM = CardSample(
    UUID,
    gpu_utilisation=0.0,
    memory_used_bytes=450 * MIB,
    sm_clock_mhz=1500,
    temperature_celsius=40,
    clock_reasons=0,
    uncorrected_ecc=0,
    processes=(),
)

GOOD_CARD = CardState(card=CARD, samples=(CALM, CALM))

TAKEN = LockState(held=True, told="process 7 of ann (pytest suites), since noon", pid=7)


FACTS = ("power_limit_watts", "power_default_watts", "persistence", "ecc", "application_clocks_set")


def host_condition(what: str, **changes: Any) -> Condition:  # noqa: ANN401 -- fields of several types
    """The one condition of a good host with something changed."""
    (found,) = [each for each in host_conditions(replace(GOOD_HOST, **changes)) if each.what == what]
    return found


def card_conditions(now: CardState, *, sees_all: bool = True) -> dict[str, Condition]:
    """What is said of a card, by what it is about."""
    return {each.what: each for each in CardConditions(now, sees_all=sees_all, visible="1").conditions()}


def seen_as(sample: CardSample | None = None, **facts: Any) -> CardState:  # noqa: ANN401 -- fields of several types
    """A good card with other facts, and seen in another state."""
    samples = GOOD_CARD.samples if sample is None else (CALM, sample)
    return replace(GOOD_CARD, card=replace(CARD, **facts), samples=samples)


def calm(**changes: Any) -> CardSample:  # noqa: ANN401 -- fields of several types
    """A good sample with something changed."""
    return CardSample(**{**{name: getattr(CALM, name) for name in CALM.__struct_fields__}, **changes})


def cpu(**changes: Any) -> CpuUse:  # noqa: ANN401 -- fields of several types
    """A quiet CPU with something changed."""
    return replace(QUIET, **changes)


def of_host(**changes: Any) -> dict[str, Host]:  # noqa: ANN401 -- fields of several types
    """Another host."""
    return {"host": replace(HOST, **changes)}


def shared(total_bytes: int, free_bytes: int) -> dict[str, Space]:
    """Other shared memory."""
    return {"shared_memory": Space("/dev/shm", total_bytes, free_bytes)}


BUSY_TWO = {"cpu": cpu(by_others=0.9, processes=(BusyProcess(7, "cc1", 0.6), BusyProcess(8, "ld", 0.25)))}
BUSY_ONE = {"cpu": cpu(by_others=0.2, processes=(BusyProcess(7, "cc1", 0.9),))}


def test_a_good_machine_is_ok() -> None:
    """Nothing is warned of where nothing is wrong, and nothing is to be done."""
    told = [*host_conditions(GOOD_HOST), *card_conditions(GOOD_CARD).values()]
    assert {(each.level, each.effect, each.remedy) for each in told} == {(OK, "", "")}


def test_nothing_known_is_nothing_ok() -> None:
    """A machine of which nothing can be seen is unknown throughout, and without room for files it prevents."""
    told = host_conditions(HostState())
    assert {each.level for each in told if each.what != "temporary files"} == {UNKNOWN}
    nothing: dict[str, Any] = dict.fromkeys(FACTS)
    blind = card_conditions(CardState(card=replace(CARD, **nothing)))
    assert {each.level for name, each in blind.items() if name != "lock"} == {UNKNOWN}


@pytest.mark.parametrize(
    ("what", "changes", "level", "found", "remedy"),
    [
        ("identity", {"host": None, "host_problem": "bad", "host_remedy": "unset it"}, PREVENTS, "bad", "unset it"),
        ("identity", {"host": None, "unknown": {"host": "strange"}}, UNKNOWN, "strange", ""),
        ("governor", of_host(governor="powersave"), WARNING, "powersave", "frequency-set -g performance"),
        ("governor", of_host(governor="performance,powersave"), WARNING, "powersave", "cpupower"),
        ("governor", of_host(governor=None), UNKNOWN, "does not tell", ""),
        ("turbo", {"boost": Boost(on=True, turn_off="echo 1")}, WARNING, "on", "echo 1"),
        ("turbo", {"boost": None}, UNKNOWN, "does not tell", ""),
        ("cores", of_host(cores=4), OK, "4 ", ""),
        ("cores", of_host(cores=3), WARNING, "3 ", "--cpuset-cpus=0-3"),
        ("time quota", {"core_limit": 1.5}, WARNING, "1.5 cores", "docker run"),
        ("time quota", {"core_limit": None}, UNKNOWN, "no control group", ""),
        ("other processes", {"cpu": cpu(by_others=0.25)}, OK, "0.25 cores in 1.00 s", ""),
        ("other processes", BUSY_TWO, WARNING, "0.90 cores in 1.00 s: cc1 (pid 7) 0.60, ld (pid 8) 0.25", "ps -fp 7,8"),
        ("other processes", {"cpu": cpu(by_others=0.9)}, WARNING, "small ones, or processes that came", "top"),
        ("other processes", {"cpu": cpu(by_others=0.9), "sees_all": False}, WARNING, "cannot be seen from here", "top"),
        ("other processes", BUSY_ONE, WARNING, "0.90 cores", "ps -fp 7"),
        ("other processes", {"cpu": None, "unknown": {"cpu": "no /proc"}}, UNKNOWN, "no /proc", ""),
        ("stolen time", {"cpu": cpu(stolen=0.17)}, WARNING, "0.17 cores now", "dedicated"),
        ("stolen time", {"cpu": cpu(stolen_since_boot=0.02)}, WARNING, "2 % of the CPU time since", "dedicated"),
        ("stolen time", {"cpu": cpu(stolen_since_boot=0.001), "is_virtual": True}, OK, "0.1 %", ""),
        ("stolen time", {"is_virtual": True}, UNKNOWN, "the hypervisor does not tell", ""),
        ("stolen time", {"is_virtual": None}, UNKNOWN, "the hypervisor does not tell", ""),
        ("swap", {"swap": Swap(64 * MIB, 0)}, OK, "64 MiB in use", ""),
        ("swap", {"swap": Swap(3 * GIB, 0)}, WARNING, "3.0 GiB in use", "swapoff -a"),
        ("swap", {"swap": Swap(MIB, MIB)}, WARNING, "swapping: 1 MiB just now", "swapoff -a"),
        ("swap", {"swap": None}, UNKNOWN, "not seen", ""),
        ("/dev/shm", shared(64 * MIB, 64 * MIB), WARNING, "64 MiB of 64 MiB", "--shm-size"),
        ("/dev/shm", shared(9 * GIB, MIB), WARNING, "1 MiB of 9.0 GiB", "--shm-size"),
        (
            "/dev/shm",
            {"shared_memory": None, "unknown": {"shared_memory": "no file"}},
            UNKNOWN,
            "no file",
            "--shm-size",
        ),
        ("open files", {"open_files": (1024, 65536)}, WARNING, "1024 a process, at most 65536", "ulimit -n 65536"),
        ("open files", {"open_files": (1024, 1024)}, WARNING, "at most 1024", "LimitNOFILE=65536"),
        ("open files", {"open_files": (inf, inf)}, OK, "no limit", ""),
        ("open files", {"open_files": None}, UNKNOWN, "not seen", ""),
        ("temporary files", {"temp": Space("/tmp", GIB, 0)}, PREVENTS, "0 MiB of 1.0 GiB free in /tmp", "TMPDIR"),
        ("temporary files", {"temp": Space("/tmp", GIB, 500 * MIB)}, WARNING, "500 MiB", "TMPDIR"),
        ("temporary files", {"temp": None, "unknown": {"temp": "none usable"}}, PREVENTS, "none usable", "TMPDIR"),
    ],
)
def test_a_condition_of_the_host(what: str, changes: dict[str, Any], level: Level, found: str, remedy: str) -> None:
    """One fact changed gives that level, what was seen, what it does, and the command that helps."""
    condition = host_condition(what, **changes)
    assert condition.level is level
    assert found in condition.found
    assert remedy in condition.remedy
    assert bool(condition.effect) is (level is not OK)
    assert bool(condition.remedy) or level in {OK, UNKNOWN}


STRANGER = DeviceProcess(4242, "python", 800 * MIB, ours=False)

VISITED = seen_as(calm(processes=(STRANGER,)))
IDLE = seen_as(calm(clock_reasons=1), application_clocks_set=False)
SLOW = seen_as(calm(sm_clock_mhz=300), application_clocks_set=None, application_clock_mhz=None)
LOCK_CLOCKS = "sudo nvidia-smi -i 3 --lock-gpu-clocks=1500"
NO_POWER = seen_as(power_limit_watts=None, unknown={"power_limit_watts": UNSUPPORTED})


@pytest.mark.parametrize(
    ("what", "now", "level", "found", "remedy"),
    [
        ("processes", VISITED, PREVENTS, "python (pid 4242) with 800 MiB", "nvidia-smi -i 3"),
        ("processes", seen_as(calm(gpu_utilisation=0.5)), WARNING, "none that can be seen from here", "nvidia-smi"),
        ("processes", seen_as(calm(memory_used_bytes=3 * GIB)), WARNING, "3072 MiB in use", "nvidia-smi -i 3"),
        ("temperature", seen_as(calm(temperature_celsius=70)), WARNING, "70 °C", "cool"),
        ("temperature", seen_as(calm(temperature_celsius=69)), OK, "69 °C", ""),
        ("throttling", seen_as(calm(clock_reasons=0x8)), WARNING, "HW_SLOWDOWN", "-q -d PERFORMANCE"),
        ("throttling", seen_as(calm(clock_reasons=0x60)), WARNING, "HW_THERMAL_SLOWDOWN", "-q -d PERFORMANCE"),
        ("throttling", seen_as(calm(clock_reasons=0x4)), WARNING, "SW_POWER_CAP", "-q -d PERFORMANCE"),
        ("throttling", seen_as(calm(clock_reasons=0x3)), OK, "none now", ""),
        ("clocks", IDLE, WARNING, "not locked: they follow the load, now at 1500 MHz", LOCK_CLOCKS),
        ("clocks", SLOW, WARNING, "not locked", "--lock-gpu-clocks=1590"),
        (
            "clocks",
            seen_as(application_clocks_set=False),
            UNKNOWN,
            "does not tell whether they are locked",
            "--lock-gpu",
        ),
        ("power limit", seen_as(power_limit_watts=35.0), WARNING, "35 W of 70 W", "-i 3 --power-limit=70"),
        ("power limit", seen_as(power_limit_watts=69.5), OK, "69.5 W", ""),
        ("power limit", NO_POWER, UNKNOWN, UNSUPPORTED, ""),
        ("persistence mode", seen_as(persistence=False), WARNING, "off", "nvidia-smi -i 3 -pm 1"),
        ("ECC errors", seen_as(calm(uncorrected_ecc=2)), WARNING, "2 uncorrected", "ROW_REMAPPER"),
        ("ECC errors", seen_as(calm(uncorrected_ecc=None), ecc=False), UNKNOWN, "ECC is off", ""),
        ("visible", replace(GOOD_CARD, visible=False), WARNING, "CUDA_VISIBLE_DEVICES=1", "unset"),
        ("lock", replace(GOOD_CARD, lock=TAKEN), PREVENTS, "process 7 of ann (pytest suites), since noon", "kill 7"),
        ("lock", replace(GOOD_CARD, lock=LockState(None, "denied")), UNKNOWN, "denied", "fuser"),
        ("errors", replace(GOOD_CARD, events=(CardEvent(1, UUID, "xid", 79),)), WARNING, "XID 79", "dmesg"),
        ("errors", replace(GOOD_CARD, events=(CardEvent(1, UUID, "lost"),)), PREVENTS, "answers no more", "dmesg"),
    ],
)
def test_a_condition_of_a_card(what: str, now: CardState, level: Level, found: str, remedy: str) -> None:
    """One fact changed gives that level, what was seen, what it does, and the command that helps, with its index."""
    condition = card_conditions(now)[what]
    assert condition.level is level
    assert found in condition.found
    assert remedy in condition.remedy
    assert condition.subject == UUID
    assert bool(condition.effect) is (level is not OK)


def test_a_state_between_two_looks_is_not_forgotten() -> None:
    """A slowdown and a process that were there at the first look alone are told."""
    first = calm(clock_reasons=0x40, processes=(STRANGER,), temperature_celsius=90)
    told = card_conditions(replace(GOOD_CARD, samples=(first, CALM)))
    assert [told[what].level for what in ("processes", "throttling", "temperature")] == [PREVENTS, WARNING, WARNING]


def test_in_a_container_an_empty_card_is_unknown() -> None:
    """NVML shows no process of another container, so none that is seen proves nothing; and no name is guessed."""
    told = card_conditions(GOOD_CARD, sees_all=False)["processes"]
    assert (told.level, told.remedy) == (UNKNOWN, "docker run --pid=host")
    told = card_conditions(seen_as(calm(processes=(STRANGER,))), sees_all=False)["processes"]
    assert told.level is PREVENTS
    assert "python" not in told.found
    assert "(pid 4242)" in told.found


def test_the_reason_of_what_is_unknown_is_told() -> None:
    """What NVML said of a value, and of a card that was not found at all, stands where the value would."""
    now = seen_as(calm(temperature_celsius=None))
    now = replace(now, samples=(now.samples[1],), unknown={"temperature": "NVML said: No"})
    assert card_conditions(now)["temperature"].found == "NVML said: No"
    told = card_conditions(replace(GOOD_CARD, samples=(), unknown={"the card": "NVML said: Gone"}))
    whats = ("processes", "temperature", "throttling", "ECC errors")
    assert [told[what].found for what in whats] == ["NVML said: Gone"] * 4


def test_a_driver_that_does_not_answer_prevents() -> None:
    """A machine without a card is well; one whose driver errors may hide a card, and its words are told."""
    for answers, absent, problem in ((True, False, ""), (False, True, "no library"), (False, False, "NVML said: No")):
        condition = driver_condition(Driver(answers, absent, problem))
        assert condition.level is (OK if answers or absent else PREVENTS)
        assert problem in condition.found


# -- what can be measured

WORKING = [Finding("mosec_server", works=True, found="1")]
MISSING = [Finding("mosec_server", works=False, found="no", remedy="install")]

WITH_CARD = MachineState(host=GOOD_HOST, driver=Driver(True, False, ""), cards=(GOOD_CARD,), devices=(UUID, "cpu"))  # noqa: FBT003


def reported(servers: list[Finding] = WORKING, **changes: Any) -> Report:  # noqa: ANN401 -- fields of several types
    """The report of a machine with a card, with something changed."""
    return make_report(replace(WITH_CARD, **changes), servers, [], visible=None)


OCCUPIED = replace(GOOD_CARD, lock=TAKEN)


@pytest.mark.parametrize(
    ("report", "devices"),
    [
        (reported(), ("T4", "cpu")),
        (reported(cards=(OCCUPIED,)), ("cpu",)),
        (reported(cpu_lock=TAKEN), ("T4",)),
        (reported(cards=(OCCUPIED,), cpu_lock=TAKEN), ()),
        (reported(cards=(OCCUPIED,), devices=(UUID,)), ()),
        (reported(cpu_lock=TAKEN, devices=(UUID,)), ("T4",)),
        (reported(MISSING), ()),
        (reported(host=replace(GOOD_HOST, temp=None)), ()),
        (reported(devices=(), refused="--gpu=A100 asks for a card that is not here"), ()),
        (reported(driver=Driver(False, False, "NVML said: No"), cards=(), devices=("cpu",)), ("cpu",)),  # noqa: FBT003
    ],
)
def test_something_or_nothing_can_be_measured(report: Report, devices: tuple[str, ...]) -> None:
    """With a server and a free device, and nothing wrong with the machine as a whole; otherwise it is said why not."""
    assert (report.can_measure, report.devices) == (bool(devices), devices)
    assert bool(report.why_not) is not report.can_measure


def test_a_device_that_is_taken_is_named() -> None:
    """Servers alone are not enough: with a session on the last device nothing can be measured now."""
    assert reported(cards=(OCCUPIED,), cpu_lock=TAKEN).why_not == ("no device is free: T4, cpu",)


def test_the_text_has_all_of_it() -> None:
    """Facts of machine and card with its name for --gpu and its folder, each level in words, and what to do last."""
    host = replace(GOOD_HOST, host=replace(HOST, governor="powersave", numa_nodes=None))
    lines = report_text(reported(host=host, cards=(seen_as(power_limit_watts=35.0),))).splitlines()
    assert "    processor   AMD EPYC" in lines
    assert "    NUMA nodes  unknown" in lines
    assert "card T4" in lines
    assert "    taken by    --gpu=T4, with baselines in baselines/T4" in lines
    assert "    power limit 35 W, 70 W by default" in lines
    assert "    SM clock    1500 MHz now, 1590 MHz at most, application clock 1500 MHz (set)" in lines
    (warning,) = [number for number, line in enumerate(lines) if re.match(r"warning   governor +powersave$", line)]
    assert lines[warning + 1].strip().startswith("effect: cores clock up only under load")
    assert lines[warning + 2].strip() == "help: sudo cpupower frequency-set -g performance"
    assert any(re.match(r"warning   T4 power limit +35 W of 70 W by default", line) for line in lines)
    assert lines[-1] == "can be measured with --gpu=T4 or --gpu=cpu; 2 warnings"


def test_two_of_a_kind_are_told_apart() -> None:
    """By the beginning of the UUID, which CUDA_VISIBLE_DEVICES takes; the CPU's lock keeps nobody off a card."""
    other = replace(GOOD_CARD, card=replace(CARD, uuid="GPU-2" + UUID[5:]))
    text = report_text(reported(cards=(GOOD_CARD, other)))
    assert "card T4 GPU-00000000" in text
    assert "card T4 GPU-20000000" in text
    assert lock_condition(TAKEN, "cpu").subject == "cpu"
    assert lock_condition(LockState(held=False), "cpu").level is OK
