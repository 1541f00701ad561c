"""Which servers and container engines work here."""

from __future__ import annotations

import os
from typing import Final

from pytest_gpuserve.device.software import DEFAULT_DISTRIBUTIONS
from pytest_gpuserve.doctor.finding import Finding
from pytest_gpuserve.errors import GpuserveError
from pytest_gpuserve.process.container_engine import examine
from pytest_gpuserve.servers.imports import installed_versions
from pytest_gpuserve.servers.triton_install import PACKAGE, find_triton

SERVERS: Final = {
    "mosec": ("mosec_server", "mosec"),
    "litserve": ("litserve_server", "litserve"),
    "torch": ("torch_worker", "torch"),
}
"""Distributions that a server needs, each with its fixture and the extra of this package that brings it."""


def servers(python: str) -> list[Finding]:
    """Which servers an interpreter can run.

    Raises:
        ServerFailed: It does not answer.
    """
    versions = installed_versions(python, DEFAULT_DISTRIBUTIONS)
    findings = [
        Finding(fixture, works=True, found=f"{distribution} {versions[distribution]}")
        if distribution in versions
        else Finding(
            fixture,
            works=False,
            found=f"{distribution} is not installed",
            remedy=f"{python} -m pip install 'pytest-gpuserve[{extra}]', or python=... of the fixture",
        )
        for distribution, (fixture, extra) in SERVERS.items()
    ]
    try:
        install = find_triton(python)
    except GpuserveError as problem:
        found = f"{problem.summary}: {problem.found}" if problem.found else problem.summary
        remedy = problem.remedies[0] if problem.remedies else ""
        triton = [Finding(name, False, found, remedy) for name in ("triton_server", "pytriton_server")]  # noqa: FBT003 -- named by the line above
    else:
        found = f"{PACKAGE.partition('=')[0]} {install.version}, without a container"
        triton = [Finding(name, works=True, found=found) for name in ("triton_server", "pytriton_server")]
    return [*findings, *triton]


def containers() -> list[Finding]:
    """Which container engines can run ``triton_server(image=...)``."""
    return [
        Finding(f"containers by {state.name}", state.works, state.found, state.remedy)
        for state in examine(env=os.environ)
    ]
