"""The end of a run that measured: its table and notes on the terminal, and its machine-readable result."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.process.secrets import without_secrets
from pytest_gpuserve.report.result_json import document
from pytest_gpuserve.report.results import SessionResult
from pytest_gpuserve.report.terminal import (
    bases_lines,
    client_lines,
    distinct_reasons,
    measured_again_lines,
    settings_lines,
    table,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pytest

    from pytest_gpuserve.report.results import TestResult


@dataclass(frozen=True)
class Closing:
    """All that a run has to say at its end, or one worker of it.

    Args:
        gpu: Facts of the device.
        host: Facts of the host.
        tests: What was measured, in the order in which it was.
        notes: What was written and what is worth knowing, a line each.
        places: What could not be read of the device, and where things are, a line each.
    """

    gpu: Mapping[str, Any]
    host: Mapping[str, Any]
    tests: tuple[TestResult, ...]
    notes: tuple[str, ...]
    places: tuple[str, ...]


def print_closing(writer: pytest.TerminalReporter, closing: Closing, json_path: Path | None) -> None:
    """Print the table, what was written, and what is left over; nothing where there is nothing to say."""
    tests = [test for test in closing.tests if any(run.judgements for run in test.runs)]
    if not tests and not closing.notes:
        return
    writer.section("gpuserve", sep="-", blue=True)
    if tests:
        writer.write_line(table(tests, width=shutil.get_terminal_size((120, 24)).columns, color=writer.hasmarkup))
    lines = (
        *bases_lines(tests),
        *distinct_reasons(tests),
        *measured_again_lines(tests),
        *settings_lines(tests),
        *client_lines(tests),
    )
    for line in (*lines, *closing.notes):
        writer.write_line(without_secrets(line, os.environ))
    for line in closing.places:
        writer.write_line(line)
    if json_path is not None:
        writer.write_line(f"results: {json_path}")


def write_json(path: Path, closing: Closing) -> None:
    """Write the machine-readable result in one step: a reader sees all of it or none.

    Raises:
        UsageProblem: It cannot be written.
    """
    result = SessionResult(gpu=closing.gpu, host=closing.host, tests=closing.tests)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        text = document(result, lambda text: without_secrets(text, os.environ))
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as problem:
        raise UsageProblem(f"--gpuserve-json: {path} cannot be written", found=str(problem)) from None
