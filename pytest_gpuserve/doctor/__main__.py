"""The command: reads the machine, prints it, and exits with whether a device can be measured."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from pytest_gpuserve.builds.interpreter import find_python, installed_versions
from pytest_gpuserve.device.gpu import AUTO, CPU, list_gpus
from pytest_gpuserve.device.host import DEFAULT_DISTRIBUTIONS
from pytest_gpuserve.device.select import select_device, visible_gpus
from pytest_gpuserve.doctor.checks import MACHINE, Check, Level, gpu_checks, host_checks
from pytest_gpuserve.doctor.look import lock_check, look
from pytest_gpuserve.errors import GpuserveError
from pytest_gpuserve.process.command_line import refused, run_command
from pytest_gpuserve.servers.triton_install import find_triton

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.device.gpu import Gpu
    from pytest_gpuserve.device.host import Host

SERVERS: Final = {"mosec": "mosec_server", "litserve": "litserve_server", "torch": "torch_worker"}
"""The fixture of each distribution; the extras of this package have the distributions' names."""

KERNEL_MODULE: Final = Path("/proc/driver/nvidia/version")
"""This file exists while NVIDIA's driver is loaded, also in a container without its library."""


@dataclass(frozen=True, slots=True)
class Report:
    """The whole report, as ``--json`` prints it; ``devices`` are values for ``--gpu`` that can be measured now."""

    can_measure: bool
    devices: tuple[str, ...]
    host: Host | None
    gpus: tuple[Gpu, ...]
    checks: tuple[Check, ...]
    servers: tuple[Check, ...]


def servers(python: str) -> list[Check]:
    """Find the servers that an interpreter can run. Raises ServerFailed."""
    versions = installed_versions(python, DEFAULT_DISTRIBUTIONS)
    found = []
    for name, fixture in SERVERS.items():
        if name in versions:
            found.append(Check(fixture, Level.OK, f"{name} {versions[name]}"))
        else:
            remedy = f"{python} -m pip install 'pytest-gpuserve[{name}]'"
            found.append(Check(fixture, Level.WARNING, f"{name} is not installed", remedy=remedy))
    try:
        found.append(Check("triton_server", Level.OK, f"nvidia-pytriton {find_triton(python).version}"))
    except GpuserveError as problem:
        found.append(Check("triton_server", Level.WARNING, problem.summary, remedy="; ".join(problem.remedies[:1])))
    return found


def examined(gpu: str | None, found_servers: Sequence[Check]) -> Report:
    """Read the machine and judge it; ``gpu`` is a value of ``--gpu``, None for any device."""
    visible, answer = os.environ.get("CUDA_VISIBLE_DEVICES"), list_gpus()
    host, gpus = look(answer.gpus, os.environ)
    checks = [*host_checks(host), lock_check(CPU)]
    if answer.problem and (KERNEL_MODULE.exists() or not answer.absent):
        effect = "--gpu=auto refuses to guess; --gpu=cpu is not affected"
        remedy = "`nvidia-smi` must list every GPU: reload the driver; docker run --gpus=all"
        checks.append(Check("driver", Level.PREVENTS, answer.problem, effect, remedy, subject="driver"))
    for each in gpus:
        checks += [lock_check(each.gpu.uuid), *gpu_checks(each)]
    names = {**{gpu.uuid: gpu.name for gpu in visible_gpus(answer.gpus, visible)}, CPU: CPU}
    wanted = [*names]
    if gpu is not None and host.host is not None:
        try:
            wanted = [select_device(gpu, known_names=(), answer=answer, host=host.host, visible=visible).lock_key]
        except GpuserveError as problem:
            found = f"{problem.summary} {problem.found}".strip()
            checks.append(Check("device", Level.PREVENTS, found, "pytest refuses to measure", problem.remedies[0]))
    prevented = {each.subject for each in checks if each.level is Level.PREVENTS}
    free = dict.fromkeys(names[key] for key in wanted if key not in prevented and MACHINE not in prevented)
    return Report(bool(free), tuple(free), host.host, answer.gpus, tuple(checks), tuple(found_servers))


def printed(report: Report) -> str:
    """The report for people."""
    labels = {gpu.uuid: f"{gpu.name} {gpu.uuid[:12]}" for gpu in report.gpus}
    host, lines = report.host, []
    if host is not None:
        lines = [f"{host.cpu}, {host.cores} cores, {host.memory_bytes / 2**30:.1f} GiB, {host.system}"]
    for gpu in report.gpus:
        facts = f"{gpu.product}, driver {gpu.driver}, CUDA {gpu.cuda}, {(gpu.memory_bytes or 0) / 2**30:.0f} GiB"
        lines.append(f"{labels[gpu.uuid]}: {facts}; --gpu={gpu.name}, baselines/{gpu.name}/")
    for title, checks in (("servers", report.servers), ("measuring here", report.checks)):
        lines += ["", title]
        for each in checks:
            name = f"{labels.get(each.subject, '')} {each.what}".strip()
            lines.append(f"  {each.level.value:8}  {name:24}  {each.found}".rstrip())
            told = (("effect", each.effect), ("help", each.remedy))
            lines += [f"{'':38}{word}: {text}" for word, text in told if text]
    count = Counter(each.level for each in report.checks)
    options = " or ".join(f"--gpu={name}" for name in report.devices)
    last = f"can be measured with {options}; {count[Level.WARNING]} warnings, {count[Level.UNKNOWN]} unknown"
    if not report.can_measure:
        why = "; ".join(f"{each.what}: {each.found}" for each in report.checks if each.level is Level.PREVENTS)
        last = f"no device can be measured: {why}"
    return "\n".join([*lines, "", last])


def main(arguments: Sequence[str]) -> int:
    """Read, print, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m pytest_gpuserve.doctor",
        description="Prints hardware, servers that can run here, and all disturbances of a measurement.",
        epilog="Exit status: 0 if a device can be measured, 1 if none can, 2 for a wrong argument.",
    )
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has the servers")
    parser.add_argument("--gpu", metavar="NAME", help=f"check this device alone: {AUTO}, {CPU}, or a name such as T4")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    given = parser.parse_args(arguments)
    try:
        # Before the CPU is watched, because the search for servers uses CPU too.
        found = servers(find_python(given.python, Path.cwd(), "--python"))
    except GpuserveError as problem:
        return refused(problem)
    report = examined(given.gpu, found)
    print(msgspec.json.format(msgspec.json.encode(report)).decode() if given.json else printed(report))  # noqa: T201 -- a command
    return 0 if report.can_measure else 1


if __name__ == "__main__":
    sys.exit(run_command(main))
