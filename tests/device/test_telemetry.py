"""A real sampler process, against scripted GPUs behind the real binding, against none, and against its own ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest

from pytest_gpuserve.device import telemetry as device_telemetry
from pytest_gpuserve.device.sample import DeviceProcess, GpuEvent, GpuSample
from pytest_gpuserve.device.sampler import SAMPLES
from pytest_gpuserve.device.telemetry import SamplerOutput, SamplerProcess
from pytest_gpuserve.measure.conditions import judge_window, judge_windows
from pytest_gpuserve.measure.telemetry import between, telemetry_between
from tests.fakes.children.toolkit import ROOT, eventually, printed
from tests.fakes.nvml.gpus import (
    DIVIDED_A100,
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    H200,
    HW_THERMAL,
    NOT_SUPPORTED,
    SW_POWER_CAP,
    T4,
    Course,
    Error,
    Event,
    Moment,
    Process,
    Script,
    Step,
    write,
)

if TYPE_CHECKING:
    from collections.abc import Callable

NS = 1_000_000_000
SLOW = ("processes", "uncorrected_ecc")
FAST = sorted({*GpuSample.__struct_fields__} - {"uuid", *SLOW})
REASONS = "nvmlDeviceGetCurrentClocksEventReasons"
OF_FUNCTION = {
    "nvmlDeviceGetUtilizationRates": "gpu_utilisation",
    "nvmlDeviceGetMemoryInfo": "memory_used_bytes",
    "nvmlDeviceGetClockInfo": "sm_clock_mhz",
    "nvmlDeviceGetTotalEnergyConsumption": "energy_joules",
    REASONS: "clock_reasons",
    "nvmlDeviceGetComputeRunningProcesses_v3": "processes",
    "nvmlDeviceGetTotalEccErrors": "uncorrected_ecc",
}
"""Value that is unknown if a function fails."""


def sample_script(
    script: Script, folder: Path, library: Path, uuids: list[str], until: Callable[[SamplerOutput], bool]
) -> SamplerOutput:
    """Let a sampler look at scripted GPUs until it has seen something, which it must."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in write(script, folder, library=library).items():
            patch.setenv(name, value)
        with SamplerProcess(uuids, log=folder / "log") as sampling:
            eventually(lambda: until(sampling.seen()), "the sampler has seen it")
            return sampling.seen()


def of_gpu(seen: SamplerOutput, uuid: str) -> list[GpuSample]:
    """All that was seen of a GPU."""
    return [gpu for sample in seen.samples for gpu in sample.gpus if gpu.uuid == uuid]


# -- a session with everything in it, looked at by several tests

FOREIGN = 2**22 + 7
"""A pid that no process has: above the kernel's limit."""


class Story:
    """What a sampler saw of three GPUs in three seconds, from their epoch on; in the middle the second GPU ran hot.

    Args:
        folder: An empty one.
        library: With the fake library.
        start_seconds: How long the sampler may take to begin.
    """

    def __init__(self, folder: Path, library: Path, start_seconds: float) -> None:
        self.epoch_ns = time.monotonic_ns() + round(start_seconds * NS)
        hot = Moment(from_ms=1500)
        self.quiet = replace(
            H200,
            power_watts=Course(100, (Step(700, Moment(from_ms=1000)),)),
            utilization=80,
            clock_reasons=SW_POWER_CAP,
            processes=(Process(os.getpid(), 7 << 20),),
        )
        self.hot = replace(
            T4,
            sm_clock=Course(1590, (Step(600, hot),)),
            clock_reasons=Course(0, (Step(HW_THERMAL, hot),)),
            processes=Course((), (Step((Process(FOREIGN, None), Process(1, 5 << 20)), hot),)),
            ecc_uncorrected=Course(3, (Step(5, hot),)),
            events=(Event(48, hot), Event(79, hot)),
        )
        script = Script((self.quiet, self.hot, DIVIDED_A100), epoch_ns=self.epoch_ns)
        self.slice = DIVIDED_A100.slices[1].uuid
        _, end_ns = self.window(0, 3000)
        self.seen = sample_script(
            script,
            folder,
            library,
            [self.quiet.uuid, self.hot.uuid, self.slice],
            lambda seen: seen.samples[-1].at_ns > end_ns,
        )

    @property
    def whole(self) -> bool:
        """Whether nothing was missed, as it is on a machine that is busy with something else."""
        return telemetry_between(self.seen.samples, *self.window(0, 3000)).covered

    def window(self, begin_ms: int, end_ms: int) -> tuple[int, int]:
        """A stretch of the story, by the clock of the samples, which is that of the epoch."""
        return self.epoch_ns + begin_ms * 1_000_000, self.epoch_ns + end_ms * 1_000_000


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Story:
    """Told once; again where the machine was too slow for it."""
    for start_seconds in (1.5, 5.0, 20.0):
        told = Story(tmp_path_factory.mktemp("story"), library, start_seconds)
        if told.whole:
            break
    return told


def test_every_value_reaches_its_place(story: Story) -> None:
    """What the script says of a GPU stands in the sample, in the sample's units."""
    assert story.seen.problem == ""
    first = of_gpu(story.seen, story.quiet.uuid)[0]
    assert first == GpuSample(
        story.quiet.uuid,
        gpu_utilisation=0.8,
        memory_used_bytes=450 << 20,
        sm_clock_mhz=1500,
        energy_joules=first.energy_joules,
        clock_reasons=SW_POWER_CAP,
        uncorrected_ecc=0,
        processes=(DeviceProcess(os.getpid(), psutil.Process().name(), 7 << 20, ours=True),),
    )


def test_samples_come_when_they_should(story: Story) -> None:
    """Ten a second by the clock of the load's ticks; a tenth of them has the slow values, ECC and processes."""
    times = [sample.at_ns for sample in story.seen.samples]
    assert times == sorted(set(times))
    assert times[0] < story.epoch_ns < times[-1] < time.perf_counter_ns()
    # Missed ones are left out; but for them there are ten a second.
    assert len(times) <= (times[-1] - times[0]) / NS * 10 + 2
    slow = [any(gpu.uncorrected_ecc is not None for gpu in sample.gpus) for sample in story.seen.samples]
    assert 1 <= sum(slow) <= len(slow) / 10 + 1


def test_what_changes_is_seen_from_its_time_on(story: Story) -> None:
    """A fallen clock, its reason, who else is on the GPU, and errors; each XID is heard once."""
    cool, hot = (
        [gpu for sample in between(story.seen.samples, *story.window(*at)) for gpu in sample.gpus]
        for at in ((500, 1300), (1700, 2500))
    )
    for uuid, first, then in ((story.hot.uuid, (1590, 0), (600, HW_THERMAL)), (story.quiet.uuid, *[(1500, 4)] * 2)):
        for seen, expected in ((cool, first), (hot, then)):
            assert {(gpu.sm_clock_mhz, gpu.clock_reasons) for gpu in seen if gpu.uuid == uuid} == {expected}
    looks = [gpu for gpu in of_gpu(story.seen, story.hot.uuid) if gpu.processes is not None]
    # Who is not below the session is foreign, with pid, name and memory where these are known.
    init = DeviceProcess(1, psutil.Process(1).name(), 5 << 20, ours=False)
    assert looks[-1].processes == (DeviceProcess(FOREIGN, None, None, ours=False), init)
    assert (looks[0].uncorrected_ecc, looks[-1].uncorrected_ecc) == (3, 5)
    found = [(event.uuid, event.kind, event.number) for event in story.seen.events]
    assert found == [(story.hot.uuid, "xid", 48), (story.hot.uuid, "xid", 79)]


def test_a_mig_instance_has_its_own_memory_and_the_whole_gpus_energy(story: Story) -> None:
    """Memory is the instance's; clocks and energy, which it has not, are those of its GPU."""
    first = of_gpu(story.seen, story.slice)[0]
    assert (first.memory_used_bytes, first.sm_clock_mhz) == (12 << 20, 1500)
    assert first.energy_joules is not None


# -- errors


PROBE = """
import sys, msgspec, pynvml
from pytest_gpuserve.device.gpu_probe import GpuProbe
from pytest_gpuserve.device.sample import Unknown
pynvml.nvmlInit()
for uuid in sys.argv[1:]:
    told = []
    probe = GpuProbe(pynvml, uuid, tell=told.append, is_ours=lambda _: False)
    looks = [probe.read(slow=True) for _ in range(12)]
    unknown = [each.what for each in told if isinstance(each, Unknown)]
    print(msgspec.json.encode((looks, unknown, len(told) - len(unknown))).decode())
"""


@pytest.mark.parametrize("lasts", [False, True], ids=["once", "for good"])
def test_a_value_is_given_up_after_several_failures_in_a_row(library: Path, tmp_path: Path, *, lasts: bool) -> None:
    """One error of the driver costs one look; one that lasts is told once, and NVML is asked no more."""
    functions = [name for name in OF_FUNCTION if name != REASONS]
    everywhere = ("nvmlDeviceGetHandleByUUID", "nvmlEventSetCreate", "nvmlEventSetWait_v2")
    gpus = tuple(replace(T4, uuid=f"GPU-{index:08}", pci=None) for index, _ in enumerate(functions))
    once = Moment(call=3, only=not lasts)
    errors = [Error(name, 999, index, once) for index, name in enumerate(functions)]
    # Without a GPU in the script these are the calls of all of them: only the first GPU meets an error that passes.
    errors += [Error(name, 999, None, Moment(call=1, only=True)) for name in everywhere]
    trace = tmp_path / "trace"
    environment = write(Script(gpus, tuple(errors)), tmp_path, library=library) | {"FAKE_NVML_TRACE": str(trace)}
    lines = printed(PROBE, *(gpu.uuid for gpu in gpus), env=environment).splitlines()
    answer = msgspec.json.Decoder(tuple[list[GpuSample], list[str], int])
    for index, (name, line) in enumerate(zip(functions, lines, strict=True)):
        looks, unknown, events = answer.decode(line)
        looks = looks if index else looks[1:]  # whose handle was not found at once
        lost = [each for each in (*SLOW, *FAST) if getattr(looks[-1], each) is None]
        assert (lost, len(unknown), events) == ([OF_FUNCTION[name]] * lasts, lasts, 0)
        assert lasts or sum(getattr(look, OF_FUNCTION[name]) is None for look in looks) == 1
    calls = Counter(trace.read_text().split())
    assert calls["nvmlDeviceGetClockInfo"] == 12 * len(gpus) - 1 - (12 - 2 - 5) * lasts


def test_what_cannot_be_had_is_unknown_and_the_rest_still_comes(library: Path, tmp_path: Path) -> None:
    """No registration costs a GPU its events alone; a uuid that NVML does not know has nothing.

    Of an older driver clock-event reasons are asked by their older name, throttle reasons.
    """
    gpus = tuple(replace(T4, uuid=f"GPU-{index}", pci=None) for index in range(2))
    last = replace(gpus[1], events=(Event(31, Moment(from_ms=200)),), clock_reasons=HW_THERMAL)
    errors = (Error("nvmlDeviceRegisterEvents", NOT_SUPPORTED, 0), Error(REASONS, FUNCTION_NOT_FOUND))
    uuids = [*(gpu.uuid for gpu in gpus), "GPU-none"]
    script = Script((gpus[0], last), errors)
    seen = sample_script(
        script, tmp_path, library, uuids, lambda seen: bool(seen.events) and len(seen.unknown) >= len(uuids) - 1
    )
    told = sorted((unknown.uuid, unknown.what) for unknown in seen.unknown)
    assert told == [("GPU-0", "XID events"), ("GPU-none", "the GPU")]
    assert [(event.uuid, event.number) for event in seen.events] == [("GPU-1", 31)]
    assert {look.clock_reasons for look in of_gpu(seen, "GPU-1")} == {HW_THERMAL}
    assert set(of_gpu(seen, "GPU-none")) == {GpuSample("GPU-none")}


def test_a_lost_gpu_is_one_event_and_all_of_it_unknown_from_then_on(library: Path, tmp_path: Path) -> None:
    """Whichever function finds out, it is told once; the other GPU goes on."""
    functions = list(OF_FUNCTION)
    gpus = tuple(replace(T4, uuid=f"GPU-{index:08}", pci=None) for index in range(len(functions) + 1))
    errors = tuple(Error(name, GPU_IS_LOST, index, Moment(call=1)) for index, name in enumerate(functions))
    *lost, well = uuids = [gpu.uuid for gpu in gpus]

    def over(seen: SamplerOutput) -> bool:
        return len(seen.events) >= len(lost) and seen.samples[-1].at_ns > seen.events[-1].at_ns

    seen = sample_script(Script(gpus, errors), tmp_path, library, uuids, over)
    assert seen.problem == ""
    assert Counter((event.uuid, event.kind) for event in seen.events) == {(uuid, "lost"): 1 for uuid in lost}
    last = {gpu.uuid: gpu for gpu in seen.samples[-1].gpus}
    assert all(last[uuid] == GpuSample(uuid) for uuid in lost)
    assert last[well].sm_clock_mhz == 1500


def test_a_library_that_does_not_start_is_told(library: Path, tmp_path: Path) -> None:
    """Without nvmlInit all of the GPU is None, never zero."""
    script = Script((T4,), (Error("nvmlInitWithFlags", 18),))
    seen = sample_script(script, tmp_path, library, [T4.uuid], lambda seen: bool(seen.samples))
    assert [(unknown.uuid, unknown.what) for unknown in seen.unknown] == [("", "NVML")]
    assert set(of_gpu(seen, T4.uuid)) == {GpuSample(T4.uuid)}


def test_a_process_is_ours_that_is_told_for_one(library: Path, tmp_path: Path) -> None:
    """Also one that is not below the session, such as a container's, with all below it, and only as long as told."""
    gpu = replace(T4, processes=(Process(1, 5 << 20), Process(FOREIGN, 5 << 20)))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in write(Script((gpu,)), tmp_path, library=library).items():
            patch.setenv(name, value)
        with SamplerProcess([gpu.uuid], log=tmp_path / "log") as sampling:
            for told, ours in (([], []), ([FOREIGN], [FOREIGN]), ([1], [1]), ([], [])):
                sampling.watch(told)
                seen = sampling.seen_until(time.perf_counter_ns() + 2 * NS)
                looks = [look.processes for look in of_gpu(seen, gpu.uuid) if look.processes is not None]
                assert [process.pid for process in looks[-1] if process.ours] == ours


# -- its ends


def test_a_killed_sampler_is_told_and_passes_no_rule(library: Path, tmp_path: Path) -> None:
    """After its death the reader says so, with what it had seen; a window of later is unknown, not good."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in write(Script((T4,)), tmp_path, library=library).items():
            patch.setenv(name, value)
        with SamplerProcess([T4.uuid], log=tmp_path / "log") as sampling:
            assert sampling.seen().problem == ""
            os.kill(sampling.pid, signal.SIGKILL)
            began = time.perf_counter_ns()
            seen = sampling.seen_until(began + NS)
            assert seen.problem.startswith("telemetry unknown: the sampler has ended (killed by SIGKILL)")
            assert len(seen.samples) >= 1
            sampling.watch([os.getpid()])
    window = judge_window(telemetry_between(seen.samples, began, began + NS // 2), [T4.uuid])
    assert not window.good
    assert judge_windows([window]).unknown != ()
    after = sampling.seen()
    assert after.samples == seen.samples
    assert after.problem == seen.problem


def test_a_sampler_that_is_stuck_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that writes nothing for too long is a problem, though it lives."""
    with SamplerProcess([], log=tmp_path / "log") as sampling:
        monkeypatch.setattr(device_telemetry, "SILENCE_SECONDS", 0.5)
        os.kill(sampling.pid, signal.SIGSTOP)
        eventually(lambda: "is stuck" in sampling.seen().problem, "it is told")


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("raise SystemExit('no pynvml here')", "no pynvml here"),
        ("import sys; open(sys.argv[1] + '/" + SAMPLES + "', 'w').write('{}\\n'); input()", "unreadable"),
    ],
    ids=["dies", "nonsense"],
)
def test_a_sampler_that_cannot_begin_is_a_problem_and_no_error(script: str, words: str, tmp_path: Path) -> None:
    """What went wrong stands in the problem, with the sampler's own last words."""
    with SamplerProcess([], log=tmp_path / "log", command=[sys.executable, "-c", script]) as sampling:
        seen = sampling.seen()
    assert seen.samples == ()
    assert seen.problem.startswith("telemetry unknown")
    assert words in seen.problem


OWNER = """
import sys, time
from pathlib import Path
from pytest_gpuserve.device.telemetry import SamplerProcess
sampling = SamplerProcess([], log=Path(sys.argv[1]) / "log")
print(sampling.pid, sampling._orders.parent, flush=True)
time.sleep(600)
"""


def test_a_killed_owner_leaves_nothing(tmp_path: Path) -> None:
    """After SIGKILL to the session the sampler ends, and its folder is removed."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT, text=True
    ) as owner:
        assert owner.stdout is not None
        pid, folder = owner.stdout.readline().split()
        assert psutil.pid_exists(int(pid))
        owner.kill()
    eventually(lambda: not psutil.pid_exists(int(pid)) and not Path(folder).exists(), "process and folder are gone")


def test_half_a_line_is_left_for_later(tmp_path: Path) -> None:
    """A record that is just being written is read when it is whole, and only once."""
    path = tmp_path / SAMPLES
    records = device_telemetry._Records(path)
    records.read()
    line = msgspec.json.encode(GpuEvent(5, "GPU-1", "lost")) + b"\n"
    path.write_bytes(line + line[:9])
    records.read()
    records.read()
    assert len(records.events) == 1
    path.write_bytes(line + line)
    records.read()
    assert records.events == [GpuEvent(5, "GPU-1", "lost")] * 2
    assert records.problem == ""


def test_what_is_needed_no_more_is_forgotten(tmp_path: Path) -> None:
    """But for the last sample before; at the end the process and its folder are gone, and what was seen is told."""
    with SamplerProcess([], log=tmp_path / "log") as sampling:
        pid, folder = sampling.pid, sampling._orders.parent
        assert folder.exists()
        eventually(lambda: len(sampling.seen().samples) >= 5, "there are samples")
        before = sampling.seen().samples
        for at_ns in (before[3].at_ns, before[3].at_ns - 1, 0):
            sampling.forget_before(at_ns)
            assert sampling.seen().samples[: len(before) - 2] == before[2:]
        eventually(lambda: len(sampling.seen().samples) > len(before), "there are more")
        sampling.forget_before(time.perf_counter_ns() + NS)
        assert 1 <= len(sampling.seen().samples) <= 2
        assert sampling.seen().problem == ""
    assert not psutil.pid_exists(pid)
    assert not folder.exists()
    assert sampling.seen().samples != ()
    assert "has been ended" in sampling.seen().problem
    assert (tmp_path / "log").read_text() == ""
