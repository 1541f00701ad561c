"""The gate, end to end, on a CPU and on scripted GPUs: recorded, gated, slowed down; and files that it cannot use."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from tests.fakes.nvml import gpus
from tests.fakes.nvml.gpus import second
from tests.fakes.scripted_starts import Script
from tests.plugin.conftest import JSON, Project, says_no_traceback, text_of

ALL = """assert run.throughput >= baseline.throughput
    assert run.latency.p50 <= baseline.latency.p50
    assert run.latency.p99 <= baseline.latency.p99
    assert run.batching_ratio >= baseline.batching_ratio"""


def test_recorded_then_gated_then_slowed(project: Project) -> None:
    """A recorded build gated again passes in every metric; made slower, it fails, with the size of the change."""
    project.write(ALL)
    recorded = project.run("--baseline-update")
    recorded.assert_outcomes(passed=1)
    recorded.stdout.fnmatch_lines(["*test_it: recorded (2 sessions) in */baselines/cpu/perf/test_perf.json*"])
    before = project.baseline.read_bytes()

    same = project.run(JSON)
    same.assert_outcomes(passed=1)
    assert same.ret == 0
    gated = ("throughput", "latency.p50", "latency.p99", "batching_ratio")
    assert project.verdicts() == dict.fromkeys(gated, "PASS")

    project.script = Script(speed=0.7)
    slow = project.run()
    slow.assert_outcomes(failed=1)
    assert slow.ret == 1
    change = re.search(r"REGRESSED: throughput is \S+, baseline \S+: (-\d+\.\d) % \(tolerance 10 %\)", text_of(slow))
    assert change is not None, text_of(slow)
    assert float(change.group(1)) == pytest.approx(-30, abs=2)
    slow.stdout.fnmatch_lines(
        ["*to accept the new number: pytest *--baseline-update*", "*metrics that moved with it:*latency.p50 +*"]
    )
    assert project.baseline.read_bytes() == before


def test_a_plain_limit_needs_no_baseline(project: Project) -> None:
    """A number is a service-level check by itself, on either side; what gates nothing is refused at the user's line."""
    project.write("assert run.latency.p99 <= 5.0\n    assert 1e6 <= run.throughput")
    result = project.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*assert REGRESSED: throughput is */s, limit 1000000/s*"])
    text = text_of(result)
    assert re.search(r"latency\.p99 .*PASS", text)
    assert re.search(r"throughput .*REGRESSED", text)
    project.write("assert run.throughput <= baseline.throughput")
    wrong = project.run()
    wrong.assert_outcomes(failed=1)
    wrong.stdout.fnmatch_lines(
        [
            "*test_perf.py:*: `throughput <= baseline` gates nothing: higher is better*",
            "*write `assert run.throughput >=*",
        ]
    )
    assert says_no_traceback(wrong)


@pytest.mark.parametrize("options", [(), ("--baseline-update",)], ids=["gating", "recording"])
def test_damage_is_named_and_nothing_is_lost(project: Project, recorded: Path, options: tuple[str, ...]) -> None:
    """The test fails unmeasured, the message names file and field, the file keeps its bytes, no traceback is shown."""
    # A measurement would end the run like Ctrl-C.
    project.script = Script(interrupted_start=1)
    file = json.loads(recorded.read_text())
    file["entries"]["test_it"]["sessions"][0]["starts"][0]["seconds"] = -0.5
    project.baseline.parent.mkdir(parents=True)
    project.baseline.write_text(text := json.dumps(file))
    result = project.run(*options)
    result.assert_outcomes(failed=1)
    assert result.ret == 1
    field = "entries['test_it'].sessions[0].starts[0].seconds"
    assert re.search(rf"baseline file {re.escape(str(project.baseline))}\b.*{re.escape(field)}", text_of(result))
    assert says_no_traceback(result)
    assert project.baseline.read_text() == text


def test_a_baseline_of_another_load_is_missing(project: Project, recorded: Path) -> None:
    """A baseline of another load is named with both values."""
    project.store(recorded)
    text = project.test_file.read_text()
    project.test_file.write_text(text.replace("concurrency=8", "concurrency=9"))
    other = project.run()
    other.assert_outcomes(failed=1)
    other.stdout.fnmatch_lines(
        ["*MISSING: throughput*", "*has another workload*", "*concurrency: baseline has '8', this run has '9'*"]
    )


DEVICE_TEST = """
def test_device(device, gpuserve_servers):
    print("DEVICE", device.name, device.is_gpu, device.environment(), gpuserve_servers.torch_device)
"""


def test_a_gpu_is_recorded_and_gated(project: Project, library: Path) -> None:
    """`--gpu=T4` records what the GPU is, without its UUID, and a later run on another T4 is judged by it."""
    project.with_gpus(library, gpus.T4)
    project.baseline = project.path / "baselines" / "T4" / "perf" / "test_perf.json"
    assert project.run("--gpu=T4", "--baseline-update").ret == 0
    device = project.entry()["device"]
    known = {"name": "T4", "product": "Tesla T4", "power_limit_watts": 70.0, "ecc": True, "compute_capability": "7.5"}
    assert {field: device[field] for field in known} == known
    assert gpus.T4.uuid.removeprefix("GPU-") not in project.baseline.read_text()
    project.with_gpus(library, second(gpus.T4))
    result = project.run("--gpu=T4")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["gpuserve: T4 (Tesla T4)*gating against*baselines/T4*", "*throughput*PASS*"])
    assert "the baseline's is" not in text_of(result)


def test_absent_gpu_is_exit_4(project: Project) -> None:
    """The error names a device that is there, and an old result is not left for a new one; collecting needs no GPU."""
    project.ini(gpu="T4")
    assert project.run("--collect-only", "-q").ret == 0
    old = project.path / "out.json"
    old.write_text('{"schema": 1, "tests": []}')
    result = project.run(JSON)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "--gpu=cpu" in text_of(result)
    assert not old.exists()
    assert says_no_traceback(result)


def test_servers_get_the_device(project: Project, library: Path) -> None:
    """The GPU that is named among several, by its index; or the CPU, where servers see no GPU."""
    project.with_gpus(library, gpus.H200, second(gpus.T4))
    project.test_file.write_text(DEVICE_TEST)
    for gpu, line in (
        ("T4", "*DEVICE T4 True*'CUDA_VISIBLE_DEVICES': '1'* cuda"),
        ("cpu", "*DEVICE cpu False*'CUDA_VISIBLE_DEVICES': ''* cpu"),
    ):
        project.run("-s", f"--gpu={gpu}").stdout.fnmatch_lines([line])


GATES = """held = [
        run.energy_per_inference <= baseline.energy_per_inference,
        run.cold_start <= baseline.cold_start,
    ]
    assert all(held)"""
"""Both are judged, also where the first does not hold."""


@pytest.fixture
def on_gpu(project: Project) -> Project:
    """A project whose loads are scripted with a GPU."""
    assert project.script is not None
    project.script = msgspec.structs.replace(project.script, gpu=True)
    return project


def test_energy_and_cold_start_are_recorded_and_gated(on_gpu: Project) -> None:
    """An identical build passes and shows joules and seconds; one that starts and burns half more fails both gates."""
    on_gpu.write(GATES)
    assert on_gpu.run("--baseline-update").ret == pytest.ExitCode.OK
    summary = json.loads(on_gpu.baseline.read_text())["summary"]["test_it"]
    assert set(summary) >= {"energy_per_inference", "gpu_memory", "gpu_utilisation", "cold_start"}
    result = on_gpu.run(JSON)
    assert result.ret == pytest.ExitCode.OK, text_of(result)
    assert on_gpu.verdicts() == {"energy_per_inference": "PASS", "cold_start": "PASS"}
    result.stdout.fnmatch_lines_random(["*cold_start * s * PASS", "*energy_per_inference * mJ * PASS"])
    on_gpu.app_file.write_text(f"{on_gpu.app_file.read_text()}\nCOLD_START = 1.5\nJOULES = 1.5\n")
    assert on_gpu.run(JSON).ret == pytest.ExitCode.TESTS_FAILED
    assert on_gpu.verdicts() == {"energy_per_inference": "REGRESSED", "cold_start": "REGRESSED"}
