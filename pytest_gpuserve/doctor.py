"""What works on this machine: ``python -m pytest_gpuserve.doctor [--python=EXE] [--json]``.

Exit status: 0 where a server can be started, 1 where none can, 2 for a wrong argument.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from pytest_gpuserve.device.software import DEFAULT_DISTRIBUTIONS
from pytest_gpuserve.errors import GpuserveError
from pytest_gpuserve.process.container import examine
from pytest_gpuserve.servers.imports import find_python, installed_versions
from pytest_gpuserve.servers.triton_install import PACKAGE, find_triton

if TYPE_CHECKING:
    from collections.abc import Sequence

SERVERS: Final = {
    "mosec": ("mosec_server", "mosec"),
    "litserve": ("litserve_server", "litserve"),
    "torch": ("torch_worker", "torch"),
}
"""Distributions that a server needs, each with its fixture and the extra of this package that brings it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether one thing works here.

    Args:
        what: The fixture, or the container engine.
        works: Whether it can be used.
        found: Its version, or what is wrong.
        remedy: What helps; empty where it works.
    """

    what: str
    works: bool
    found: str
    remedy: str = ""


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


def text(findings: Sequence[Finding]) -> str:
    """Findings as lines, each with what helps below it."""
    width = max(len(finding.what) for finding in findings)
    lines = []
    for finding in findings:
        first, *more = finding.found.splitlines() or [""]
        lines.append(f"{'ok' if finding.works else '--'}  {finding.what:<{width}}  {first}".rstrip())
        lines.extend(f"    {'':<{width}}  {line}" for line in more)
        if finding.remedy:
            lines.append(f"    {'':<{width}}  help: {finding.remedy}")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Look, print, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m pytest_gpuserve.doctor", description="Says which servers and containers work on this machine."
    )
    parser.add_argument("--python", default=sys.executable, help="the interpreter whose servers are looked at")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    given = parser.parse_args(arguments)
    try:
        python = find_python(given.python, Path.cwd(), "--python")
        found = servers(python)
    except GpuserveError as problem:
        print(problem, file=sys.stderr)  # noqa: T201 -- a command
        return 2
    findings = [*found, *containers()]
    shown = msgspec.json.format(msgspec.json.encode(findings)).decode() if given.json else text(findings)
    print(shown)  # noqa: T201 -- a command
    return 0 if any(finding.works for finding in findings) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
