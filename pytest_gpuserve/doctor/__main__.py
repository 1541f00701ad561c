"""The command: looks, prints, and says by its exit status whether anything can be measured."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pytest_gpuserve.builds.interpreter import find_python
from pytest_gpuserve.device.card import AUTO, CPU
from pytest_gpuserve.doctor.look import containers, look, servers
from pytest_gpuserve.doctor.report import make_report, report_text
from pytest_gpuserve.errors import GpuserveError
from pytest_gpuserve.process.command_line import refused, run_command

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Look, print, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m pytest_gpuserve.doctor",
        description="Says what this machine is, which servers work on it, and what would disturb a measurement.",
        epilog="Exit status: 0 where something can be measured, 1 where nothing can, 2 for a wrong argument.",
    )
    parser.add_argument("--python", default=sys.executable, help="the interpreter whose servers are looked at")
    parser.add_argument(
        "--gpu",
        metavar="NAME",
        help=f"ask for this device alone: {AUTO}, {CPU}, or a name such as T4 (default: for any)",
    )
    parser.add_argument("--json", action="store_true", help="print all of it as JSON")
    given = parser.parse_args(arguments)
    try:
        python = find_python(given.python, Path.cwd(), "--python")
        # Before the look at the CPU: what they ask is work, too.
        tools = servers(python), containers()
    except GpuserveError as problem:
        return refused(problem)
    seen = look(given.gpu, os.environ)
    report = make_report(seen, *tools, visible=os.environ.get("CUDA_VISIBLE_DEVICES"))
    shown = msgspec.json.format(msgspec.json.encode(report)).decode() if given.json else report_text(report)
    print(shown)  # noqa: T201 -- a command
    return 0 if report.can_measure else 1


if __name__ == "__main__":
    sys.exit(run_command(main))
