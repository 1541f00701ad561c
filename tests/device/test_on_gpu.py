"""Assumptions of the GPU code about NVML, the driver and CUDA, on the present GPU.

Each assumption stands in ``pytest_gpuserve/device/ASSUMPTIONS.md``. Numbers are printed: ``pytest -m gpu -s``.
"""

from __future__ import annotations

import inspect
import os
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import pynvml
import pytest

import pytest_gpuserve
from pytest_gpuserve.device.gpu import Gpu, initialised, list_gpus
from pytest_gpuserve.device.gpu_probe import GpuProbe, GpuSample
from pytest_gpuserve.device.host import read_host
from pytest_gpuserve.device.sampler import SAMPLE_NS, SamplerProcess
from pytest_gpuserve.device.select import select_device
from pytest_gpuserve.experiment.telemetry import RELEASE_NS
from pytest_gpuserve.measure.conditions import (
    APPLICATION_XIDS,
    GPU_IDLE,
    MEMORY_TOLERANCE_BYTES,
    NS,
    between,
    gpu_use,
    memory_reasons,
    rest_reasons,
    unknown_text,
    use_text,
)
from pytest_gpuserve.servers.instance import likely_cause

pytestmark = pytest.mark.usefixtures("gpu")

LOOKS = 30
"""Of each kind of reading, so that a first one that takes longer does not count."""

CALLED = frozenset(
    name
    for path in Path(pytest_gpuserve.__file__).parent.rglob("*.py")
    for name in re.findall(r"\bnvml[A-Z]\w+", path.read_text(encoding="utf-8"))
    if inspect.isfunction(getattr(pynvml, name, None))
)
"""The functions of NVML that the package names."""


@pytest.fixture(scope="module")
def gpu() -> Gpu:
    """The first GPU that may be used."""
    answer = list_gpus()
    if not answer.gpus:
        pytest.skip(f"there is no GPU: {answer.problem}")
    return answer.gpus[0]


@pytest.fixture
def busy_gpu(gpu: Gpu) -> Iterator[tuple[Gpu, int]]:
    """The same while a process of ours multiplies matrices on it, and that process's id."""
    needs_cuda()
    with on_gpu(gpu, MULTIPLY) as process:
        yield gpu, process.pid


def needs_cuda() -> None:
    """Skip a test where torch cannot use the GPU."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} sees no GPU")


MULTIPLY = """
import torch
left = torch.ones((4096, 4096), dtype=torch.float16, device="cuda")
torch.mm(left, left)
torch.cuda.synchronize()
properties = torch.cuda.get_device_properties(0)
print(torch.cuda.device_count(), properties.total_memory, getattr(properties, "uuid", ""), flush=True)
while True:
    # One product takes less time than its launch and the wait for it, which would leave a large GPU idle between two.
    for _ in range(50):
        torch.mm(left, left)
    torch.cuda.synchronize()
"""

REST = """
import time, torch
held = torch.ones(1 << 30, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
print(flush=True)
time.sleep(600)
"""

LITSERVE = """
import torch
from litserve import LitAPI, LitServer

class Api(LitAPI):
    def setup(self, device):
        pass

    def predict(self, x):
        return x

devices = LitServer(Api()).devices
print(torch.ones(1, device=devices[0][0]).device, devices)
"""

CONTEXT = """
import time, torch
held = torch.ones(1, device="cuda")
torch.cuda.synchronize()
print(flush=True)
time.sleep(600)
"""

GRAPHS = """
import torch
recorded = 0
enter = torch.cuda.graph.__enter__

def counted(graph):
    global recorded
    recorded += 1
    return enter(graph)

torch.cuda.graph.__enter__ = counted
model = torch.compile(torch.nn.Linear(64, 64).cuda(), mode="reduce-overhead")
with torch.no_grad():
    for rows in range(1, 5):
        seen = []
        for _ in range(6):
            model(torch.ones(rows, 64, device="cuda")).cpu()
            seen.append(recorded)
        print(*seen)
"""

TOO_MUCH = """
import torch
torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
"""


def variables(gpu: Gpu) -> dict[str, str]:
    """Variables that give a server a GPU of this machine."""
    device = select_device(gpu.name, known_names=(), answer=list_gpus(), host=read_host(), visible=gpu.uuid)
    return device.environment()


@contextmanager
def on_gpu(gpu: Gpu, code: str) -> Iterator[subprocess.Popen[str]]:
    """A process that uses the GPU, from when it has printed a line."""
    environment = {**os.environ, **variables(gpu)}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.told = process.stdout.readline().split()  # type: ignore[attr-defined]
            yield process
        finally:
            process.kill()


def look(gpu: Gpu) -> GpuSample:
    """All values of a GPU once."""
    return GpuProbe(initialised(), gpu.uuid).read()


@pytest.mark.gpu
def test_nvml_answers_each_function(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every function that is called on this GPU answers, or says that it is not supported; all are quick enough.

    A look at the GPU takes less than half of the time between two. Prints for each function what it says, and what it
    costs.
    """
    costs: defaultdict[str, list[float]] = defaultdict(list)
    answers: dict[str, str] = {}

    def traced(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: object) -> object:
            began = time.perf_counter_ns()
            try:
                answer = function(*arguments)
                answers.setdefault(name, str(answer).replace("\n", " "))
            except pynvml.NVMLError as error:
                answers[name] = f"error {error.value}: {error}"
                raise
            finally:
                costs[name].append((time.perf_counter_ns() - began) / 1e3)
            return answer

        return call

    for name in CALLED:
        monkeypatch.setattr(pynvml, name, traced(name, getattr(pynvml, name)))
    answer = list_gpus()
    took: list[float] = []
    samples: list[GpuSample] = []
    probe = GpuProbe(pynvml, gpu.uuid)
    for _ in range(LOOKS):
        began = time.perf_counter()
        samples.append(probe.read())
        took.append(time.perf_counter() - began)
    for name in sorted(CALLED):
        cost = costs[name] or [0.0]
        said = answers.get(name, "not called on this GPU")[:80]
        print(f"{name:50} {len(costs[name]):5} {median(cost):9.1f} us {max(cost):9.1f} us  {said}")  # noqa: T201 -- shown by -rA
    print(f"a look: {median(took) * 1e3:.2f} ms, at most {max(took) * 1e3:.2f} ms")  # noqa: T201 -- as above
    assert answer.problem == ""
    assert unknown_text(samples, [os.getpid()]) in {"", "telemetry unknown: memory errors"}
    assert median(took) < 0.5 * SAMPLE_NS / NS


OPEN = """
import sys, time, pynvml
began = time.perf_counter()
pynvml.nvmlInit()
pynvml.nvmlDeviceGetHandleByUUID(sys.argv[1])
print(time.perf_counter() - began)
"""


@pytest.mark.gpu
def test_nvml_that_is_open_keeps_the_driver_loaded(gpu: Gpu) -> None:
    """While this process has NVML open, another one opens it within half a second, without persistence mode, too."""
    initialised()
    took = [float(subprocess.check_output([sys.executable, "-c", OPEN, gpu.uuid])) for _ in range(3)]
    print(f"persistence mode {gpu.persistence}: {', '.join(f'{each:.3f}' for each in took)} s")  # noqa: T201 -- as above
    assert median(took) < 0.5


@pytest.mark.gpu
def test_a_busy_gpu_shows(busy_gpu: tuple[Gpu, int]) -> None:
    """Of a GPU that computes utilisation, clock, power and energy say so, and the process is there by our own pid.

    The energy counter agrees with the power; none of the clock-event reasons is idle.
    """
    gpu, pid = busy_gpu
    with SamplerProcess(gpu.uuid, log=Path(os.devnull)) as sampler:
        began = time.perf_counter_ns() + NS
        sampler.wait_until(began + 4 * NS)
        assert sampler.problem == ""
    found = gpu_use(sampler.samples, began, began + 3 * NS)
    print(found)  # noqa: T201 -- shown by -rA
    assert gpu.mig_profile is not None or (found.utilisation is not None and found.utilisation > 0.9)
    assert found.sm_clock_mhz is not None
    assert gpu.max_sm_clock_mhz is None or found.sm_clock_mhz <= 1.01 * gpu.max_sm_clock_mhz
    assert not any((sample.clock_reasons or 0) & GPU_IDLE for sample in between(sampler.samples, began, began + 3 * NS))
    if found.joules is not None:
        pynvml = initialised()
        watts = pynvml.nvmlDeviceGetPowerUsage(pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)) / 1000
        assert 0.8 < found.joules / 3 / watts < 1.25
    processes = look(gpu).processes
    assert processes is not None
    assert [process.pid for process in processes] == [pid]
    assert os.getpid() in processes[0].ancestors


@pytest.mark.gpu
def test_a_gpu_at_rest_is_called_unused(gpu: Gpu) -> None:
    """A second after the last of our processes has left it, the driver's own memory does not count as use."""
    with SamplerProcess(gpu.uuid, log=Path(os.devnull)) as sampler:
        began = time.perf_counter_ns() + NS
        sampler.wait_until(began + NS)
        assert sampler.problem == ""
    rest = between(sampler.samples, began, began + NS)
    print(f"at rest {use_text(rest)}")  # noqa: T201 -- as above
    assert rest_reasons(rest) == []


@pytest.mark.gpu
def test_cuda_finds_the_gpu(gpu: Gpu) -> None:
    """A server's variables leave this one GPU, with the UUID and the memory that NVML gives."""
    needs_cuda()
    print(variables(gpu))  # noqa: T201 -- as above
    with on_gpu(gpu, MULTIPLY) as process:
        count, memory, *uuid = process.told  # type: ignore[attr-defined]
    assert count == "1"
    assert gpu.memory_bytes is None or 0.9 < int(memory) / gpu.memory_bytes <= 1
    assert gpu.mig_profile is not None or uuid in ([], [gpu.uuid.removeprefix("GPU-")])


@pytest.mark.gpu
def test_memory_is_given_back_after_a_kill(gpu: Gpu) -> None:
    """Memory of a process that SIGKILL ends is free again within the time that a start waits for it."""
    needs_cuda()
    before = look(gpu).memory_bytes
    with on_gpu(gpu, REST):
        held = look(gpu).memory_bytes
    began = time.perf_counter_ns()
    while memory_reasons(before, after := look(gpu).memory_bytes):
        assert time.perf_counter_ns() - began < RELEASE_NS, (before, held, after)
        time.sleep(0.05)
    print(f"{before} before, {held} held, {after} after {(time.perf_counter_ns() - began) / 1e6:.0f} ms")  # noqa: T201 -- as above
    assert None not in (before, held)
    assert held > before + (1 << 30)  # type: ignore[operator]  # the line above says that they are numbers


@pytest.mark.gpu
def test_a_process_on_the_gpu_shows_in_its_memory(gpu: Gpu) -> None:
    """The CUDA context of the smallest process takes more than a driver may keep of one that has ended."""
    needs_cuda()
    before = look(gpu).memory_bytes
    with on_gpu(gpu, CONTEXT):
        held = look(gpu).memory_bytes
    print(f"{before} before, {held} with the context of one process")  # noqa: T201 -- as above
    assert before is not None
    assert held is not None
    assert held - before > MEMORY_TOLERANCE_BYTES


@pytest.mark.gpu
def test_a_kill_under_load_is_no_error_of_the_gpu(busy_gpu: tuple[Gpu, int]) -> None:
    """A process that is killed while it computes leaves the GPU usable; an XID is one that a killed process may have.

    Sources: the XID catalog; the list of those that NVIDIA's device plugin takes for errors of an application.
    """
    gpu, pid = busy_gpu
    with SamplerProcess(gpu.uuid, log=Path(os.devnull)) as sampler:
        sampler.wait_until(time.perf_counter_ns() + NS)
        os.kill(pid, signal.SIGKILL)
        sampler.wait_until(time.perf_counter_ns() + 3 * NS)
        assert sampler.problem == ""
    xids = {xid for sample in sampler.samples for xid in sample.xids or ()}
    print(xids)  # noqa: T201 -- as above
    assert not any(sample.lost for sample in sampler.samples)
    assert xids <= APPLICATION_XIDS
    with on_gpu(gpu, MULTIPLY) as process:
        assert process.told  # type: ignore[attr-defined]


@pytest.mark.gpu
def test_litserve_takes_the_gpu(gpu: Gpu) -> None:
    """LitServe's server takes the measured GPU by default, from the variables of a server."""
    needs_cuda()
    pytest.importorskip("litserve")
    environment = {**os.environ, **variables(gpu)}
    done = subprocess.run(
        [sys.executable, "-c", LITSERVE], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout.startswith("cuda:0 "), done.stdout + done.stderr


@pytest.mark.gpu
def test_cuda_graphs_are_recorded_by_the_second_execution(gpu: Gpu) -> None:
    """For each batch size the third execution records no graph, so three before the load are enough."""
    needs_cuda()
    environment = {**os.environ, **variables(gpu)}
    done = subprocess.run(
        [sys.executable, "-c", GRAPHS], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    print(done.stdout)  # noqa: T201 -- as above
    sizes = [[int(count) for count in line.split()] for line in done.stdout.splitlines()]
    assert len(sizes) == 4, done.stderr
    assert all(seen[0] <= seen[1] == seen[-1] for seen in sizes)
    assert sizes[-1][-1] >= 4


@pytest.mark.gpu
def test_a_full_gpu_is_told(gpu: Gpu) -> None:
    """The words that identify a full GPU in a server's log are those of torch."""
    needs_cuda()
    environment = {**os.environ, **variables(gpu)}
    done = subprocess.run(
        [sys.executable, "-c", TOO_MUCH], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert "GPU's memory is full" in likely_cause(done.stderr), done.stderr


@pytest.mark.gpu
@pytest.mark.skipif("GPUSERVE_MAY_SET_CLOCKS" not in os.environ, reason="it locks clocks: GPUSERVE_MAY_SET_CLOCKS=1")
def test_clocks_that_are_locked_show(busy_gpu: tuple[Gpu, int]) -> None:
    """A GPU whose clock is locked at half of its highest one computes at that clock, as telemetry tells it."""
    gpu, _ = busy_gpu
    assert gpu.max_sm_clock_mhz is not None
    handle = pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
    clock = gpu.max_sm_clock_mhz // 2
    try:
        pynvml.nvmlDeviceSetGpuLockedClocks(handle, clock, clock)
        time.sleep(1)
        seen = look(gpu).sm_clock_mhz
    finally:
        pynvml.nvmlDeviceResetGpuLockedClocks(handle)
    time.sleep(1)
    free = look(gpu).sm_clock_mhz
    print(f"locked at {clock} MHz: {seen} MHz; free: {free} MHz")  # noqa: T201 -- as above
    assert seen == pytest.approx(clock, rel=0.05)


@pytest.mark.gpu
def test_an_instance_of_a_divided_gpu_is_told_from_the_whole(gpu: Gpu) -> None:
    """An instance has a profile, memory that is less than its GPU's, and is named to CUDA by its own UUID."""
    if gpu.mig_profile is None:
        pytest.skip("this GPU is not divided (MIG)")
    whole = pynvml.nvmlDeviceGetMemoryInfo(initialised().nvmlDeviceGetHandleByIndex(gpu.index)).total
    assert gpu.memory_bytes is not None
    assert gpu.memory_bytes < whole
    assert gpu.uuid.startswith("MIG-")
    test_cuda_finds_the_gpu(gpu)
