"""A real sampler process, against scripted GPUs behind the real binding, against none, and against its own ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import psutil
import pytest

from pytest_gpuserve.device import sampler as sampler_module
from pytest_gpuserve.device.gpu_probe import GpuProcess, GpuSample
from pytest_gpuserve.device.sampler import SamplerProcess
from pytest_gpuserve.measure.conditions import between, samples_of, window_reasons
from pytest_gpuserve.verdict.reason import ReasonKind
from tests.fakes.children.toolkit import ROOT, eventually, printed
from tests.fakes.nvml.gpus import (
    DIVIDED_A100,
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
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

NS = 1_000_000_000
VALUES = sorted({*GpuSample.__struct_fields__} - {"at_ns", "lost"})
REASONS = "nvmlDeviceGetCurrentClocksEventReasons"
OF_FUNCTION = {
    "nvmlDeviceGetUtilizationRates": "utilisation",
    "nvmlDeviceGetMemoryInfo": "memory_bytes",
    "nvmlDeviceGetClockInfo": "sm_clock_mhz",
    "nvmlDeviceGetTotalEnergyConsumption": "joules",
    REASONS: "clock_reasons",
    "nvmlDeviceGetComputeRunningProcesses_v3": "processes",
    "nvmlDeviceGetTotalEccErrors": "uncorrected_ecc",
}
"""Value that is unknown if a function fails."""


def sample_script(
    script: Script, folder: Path, library: Path, uuid: str, until: Callable[[list[GpuSample]], bool]
) -> list[GpuSample]:
    """Let a sampler look at a scripted GPU until it has seen something, which it must."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in write(script, folder, library=library).items():
            patch.setenv(name, value)
        with SamplerProcess(uuid, log=folder / "log") as sampling:

            def seen() -> bool:
                sampling.read()
                return until(sampling.samples)

            eventually(seen, "the sampler has seen it")
            assert sampling.problem == ""
            return sampling.samples


# -- a session with everything in it, looked at by several tests

FOREIGN = 2**22 + 7
"""A pid that no process has: above the kernel's limit."""


class Story:
    """Samples of a GPU over three seconds, in the middle of which it ran hot.

    Args:
        folder: An empty one.
        library: With the fake library.
        start_seconds: How long the sampler may take to begin.
    """

    def __init__(self, folder: Path, library: Path, start_seconds: float) -> None:
        self.epoch_ns = time.monotonic_ns() + round(start_seconds * NS)
        hot = Moment(from_ms=1500)
        ours = Process(os.getpid(), 7 << 20)
        self.gpu = replace(
            T4,
            sm_clock=Course(1590, (Step(600, hot),)),
            power_watts=Course(30, (Step(70, hot),)),
            utilization=80,
            clock_reasons=Course(SW_POWER_CAP, (Step(HW_THERMAL, hot),)),
            processes=Course((ours,), (Step((Process(FOREIGN, None), Process(1, 5 << 20)), hot),)),
            ecc_uncorrected=Course(3, (Step(5, hot),)),
            events=(Event(48, hot), Event(79, hot)),
        )
        _, end_ns = self.window(0, 3000)
        self.seen = sample_script(
            Script((self.gpu,), epoch_ns=self.epoch_ns),
            folder,
            library,
            self.gpu.uuid,
            lambda seen: bool(seen) and seen[-1].at_ns > end_ns,
        )

    def window(self, begin_ms: int, end_ms: int) -> tuple[int, int]:
        """A stretch of the story, by the clock of the samples, which is that of the epoch."""
        return self.epoch_ns + begin_ms * 1_000_000, self.epoch_ns + end_ms * 1_000_000


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Story:
    """Told once; again where the machine was too slow for it."""
    for start_seconds in (1.5, 5.0, 20.0):
        told = Story(tmp_path_factory.mktemp("story"), library, start_seconds)
        if samples_of(told.seen, *told.window(0, 3000)):
            break
    return told


def test_every_value_reaches_its_place(story: Story) -> None:
    """A sample has the script's values of a GPU, in the sample's units."""
    first = story.seen[0]
    own = psutil.Process()
    assert first == GpuSample(
        first.at_ns,
        utilisation=0.8,
        memory_bytes=450 << 20,
        sm_clock_mhz=1590,
        joules=first.joules,
        clock_reasons=SW_POWER_CAP,
        uncorrected_ecc=3,
        processes=(GpuProcess(own.pid, own.name(), 7 << 20, tuple(parent.pid for parent in own.parents())),),
        xids=(),
    )
    assert first.joules is not None


def test_samples_come_when_they_should(story: Story) -> None:
    """Ten a second by the clock of the load's ticks."""
    times = [sample.at_ns for sample in story.seen]
    assert times == sorted(set(times))
    assert times[0] < story.epoch_ns < times[-1] < time.perf_counter_ns()
    # Missed ones are left out; but for them there are ten a second.
    assert len(times) <= (times[-1] - times[0]) / NS * 10 + 2


def test_what_changes_is_seen_from_its_time_on(story: Story) -> None:
    """A fallen clock, its reason, who else is on the GPU, and errors; each XID is heard once."""
    cool, hot = (between(story.seen, *story.window(*at)) for at in ((500, 1300), (1700, 2500)))
    assert {(sample.sm_clock_mhz, sample.clock_reasons, sample.uncorrected_ecc) for sample in cool} == {(1590, 4, 3)}
    assert {(sample.sm_clock_mhz, sample.clock_reasons, sample.uncorrected_ecc) for sample in hot} == {
        (600, HW_THERMAL, 5)
    }
    # Of a process its pid, name and memory are told where they are known.
    init = GpuProcess(1, psutil.Process(1).name(), 5 << 20)
    assert hot[-1].processes == (GpuProcess(FOREIGN, None, None), init)
    assert [xid for sample in story.seen for xid in sample.xids or ()] == [48, 79]


def test_a_mig_instance_has_its_own_memory_and_no_energy(library: Path, tmp_path: Path) -> None:
    """Energy and utilisation are those of the whole GPU, other instances included; all have one clock."""
    uuid = DIVIDED_A100.slices[1].uuid
    first, *_ = sample_script(Script((DIVIDED_A100,)), tmp_path, library, uuid, bool)
    assert (first.memory_bytes, first.sm_clock_mhz) == (12 << 20, 1500)
    assert first.joules is first.utilisation is None


# -- errors


PROBE = """
import sys, msgspec, pynvml
from pytest_gpuserve.device.gpu_probe import GpuProbe
pynvml.nvmlInit()
for uuid in sys.argv[1:]:
    probe = GpuProbe(pynvml, uuid)
    print(msgspec.json.encode([probe.read() for _ in range(4)]).decode())
"""


def test_an_error_of_the_driver_costs_one_value_of_one_sample(library: Path, tmp_path: Path) -> None:
    """Whichever function fails: the next sample has the value again."""
    functions = [name for name in OF_FUNCTION if name != REASONS]
    gpus = tuple(replace(T4, uuid=f"GPU-{index:08}") for index, _ in enumerate(functions))
    errors = [Error(name, 999, index, Moment(call=3, only=True)) for index, name in enumerate(functions)]
    # Without a GPU in the script these are the calls of all of them: only the first GPU meets the error.
    everywhere = ("nvmlDeviceGetHandleByUUID", "nvmlEventSetCreate", "nvmlEventSetWait_v2")
    errors += [Error(name, 999, None, Moment(call=1, only=True)) for name in everywhere]
    environment = write(Script(gpus, tuple(errors)), tmp_path, library=library)
    lines = printed(PROBE, *(gpu.uuid for gpu in gpus), env=environment).splitlines()
    answer = msgspec.json.Decoder(list[GpuSample])
    for index, (name, line) in enumerate(zip(functions, lines, strict=True)):
        looks = answer.decode(line)
        lacking = [[each for each in VALUES if getattr(look, each) is None] for look in looks]
        if index:
            assert lacking == [[], [], [OF_FUNCTION[name]], []]
        else:
            # Its handle, its registration for events and its first wait for one failed, too.
            assert lacking == [VALUES, ["xids"], ["xids"], [OF_FUNCTION[name]]]


def test_what_cannot_be_had_is_unknown_and_the_rest_still_comes(library: Path, tmp_path: Path) -> None:
    """No registration costs a GPU its XIDs alone; a UUID that NVML does not know has nothing.

    Of an older driver clock-event reasons are asked by their older name, throttle reasons.
    """
    gpus = tuple(replace(T4, uuid=f"GPU-{index}", clock_reasons=HW_THERMAL) for index in range(2))
    errors = (Error("nvmlDeviceRegisterEvents", NOT_SUPPORTED, 0), Error(REASONS, FUNCTION_NOT_FOUND))
    environment = write(Script(gpus, errors), tmp_path, library=library)
    lines = printed(PROBE, *(gpu.uuid for gpu in gpus), "GPU-none", env=environment).splitlines()
    looks = [msgspec.json.decode(line, type=list[GpuSample])[-1] for line in lines]
    assert [look.xids for look in looks] == [None, (), None]
    assert [look.clock_reasons for look in looks] == [HW_THERMAL, HW_THERMAL, None]
    assert looks[-1] == GpuSample(looks[-1].at_ns)


def test_a_lost_gpu_is_told_and_all_of_it_unknown_from_then_on(library: Path, tmp_path: Path) -> None:
    """Whichever function finds it out; the other GPU goes on."""
    functions = list(OF_FUNCTION)
    gpus = tuple(replace(T4, uuid=f"GPU-{index:08}") for index in range(len(functions) + 1))
    errors = tuple(Error(name, GPU_IS_LOST, index, Moment(call=1)) for index, name in enumerate(functions))
    environment = write(Script(gpus, errors), tmp_path, library=library)
    lines = printed(PROBE, *(gpu.uuid for gpu in gpus), env=environment).splitlines()
    *lost, well = (msgspec.json.decode(line, type=list[GpuSample]) for line in lines)
    assert all(look.lost for looks in lost for look in looks)
    assert all(looks[-1] == GpuSample(looks[-1].at_ns, lost=True) for looks in lost)
    assert (well[-1].sm_clock_mhz, well[-1].lost) == (1500, False)


def test_a_library_that_does_not_start_gives_samples_without_values(library: Path, tmp_path: Path) -> None:
    """Without nvmlInit all of the GPU is None, never zero."""
    script = Script((T4,), (Error("nvmlInitWithFlags", 18),))
    for sample in sample_script(script, tmp_path, library, T4.uuid, bool):
        assert sample == GpuSample(sample.at_ns)


# -- its ends


def test_a_killed_sampler_is_told_and_passes_no_rule(library: Path, tmp_path: Path) -> None:
    """After its death the reader says so, with what it had seen; a window of later was not seen."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in write(Script((T4,)), tmp_path, library=library).items():
            patch.setenv(name, value)
        with SamplerProcess(T4.uuid, log=tmp_path / "log") as sampling:
            assert sampling.problem == ""
            os.kill(sampling.pid, signal.SIGKILL)
            began = time.perf_counter_ns()
            sampling.wait_until(began + NS)
            problem = sampling.problem
            assert problem.startswith("telemetry unknown: the sampler has ended (killed by SIGKILL)")
            assert len(sampling.samples) >= 1
    (reason,) = window_reasons(samples_of(sampling.samples, began, began + NS // 2), None, baseline_mhz=None)
    assert reason.kind is ReasonKind.GPU_UNKNOWN
    assert sampling.problem == problem


def test_a_sampler_that_is_stuck_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that writes nothing for too long is a problem, though it lives."""
    with SamplerProcess("GPU-none", log=tmp_path / "log") as sampling:
        monkeypatch.setattr(sampler_module, "SILENCE_SECONDS", 0.5)
        os.kill(sampling.pid, signal.SIGSTOP)

        def is_told() -> bool:
            sampling.read()
            return "is stuck" in sampling.problem

        eventually(is_told, "it is told")


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("raise SystemExit('no pynvml here')", "no pynvml here"),
        ("import sys; open(sys.argv[1], 'w').write('{}\\n'); input()", "unreadable"),
    ],
    ids=["dies", "nonsense"],
)
def test_a_sampler_that_cannot_begin_is_a_problem_and_no_error(script: str, words: str, tmp_path: Path) -> None:
    """The problem names the failure, with the sampler's own last words."""
    with SamplerProcess("GPU-1", log=tmp_path / "log", command=[sys.executable, "-c", script]) as sampling:
        sampling.read()
        assert sampling.samples == []
        assert sampling.problem.startswith("telemetry unknown")
        assert words in sampling.problem


OWNER = """
import sys, time
from pathlib import Path
from pytest_gpuserve.device.sampler import SamplerProcess
sampling = SamplerProcess("GPU-none", log=Path(sys.argv[1]) / "log")
print(sampling.pid, Path(sampling._file.name).parent, flush=True)
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


HALVES = """
import sys, time
with open(sys.argv[1], "ab", buffering=0) as file:
    for piece in (b'{"at_ns": 5}\\n{"at', b'_ns": 6}\\n', b'{"at_ns": 7}\\n'):
        file.write(piece)
        time.sleep(0.2)
time.sleep(600)
"""


def test_half_a_line_is_left_for_later(tmp_path: Path) -> None:
    """A sample that is just being written is read when it is whole, and only once."""
    with SamplerProcess("GPU-1", log=tmp_path / "log", command=[sys.executable, "-c", HALVES]) as sampling:
        assert sampling.samples[0] == GpuSample(5)

        def whole() -> bool:
            sampling.read()
            return sampling.samples[-1].at_ns == 7

        eventually(whole, "all is read")
        assert [sample.at_ns for sample in sampling.samples] == [5, 6, 7]


def test_what_is_needed_no_more_is_forgotten(tmp_path: Path) -> None:
    """But for the last sample before; at the end the process and its folder are gone, and what was seen is told."""
    with SamplerProcess("GPU-none", log=tmp_path / "log") as sampling:
        pid, folder = sampling.pid, Path(sampling._file.name).parent
        assert folder.exists()
        sampling.wait_until(time.perf_counter_ns() + NS // 2)
        before = [*sampling.samples]
        for at_ns in (before[3].at_ns, before[3].at_ns - 1, 0):
            sampling.forget_before(at_ns)
            assert sampling.samples == before[2:]
        sampling.forget_before(time.perf_counter_ns() + NS)
        assert sampling.samples == before[-1:]
        assert sampling.problem == ""
    assert not psutil.pid_exists(pid)
    assert not folder.exists()
    assert sampling.samples != []
    assert "has been ended" in sampling.problem
    assert (tmp_path / "log").read_text() == ""
