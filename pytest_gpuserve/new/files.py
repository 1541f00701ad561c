"""The files of a new suite: what stands in them, and writing those that are not there."""

from __future__ import annotations

import json
from os.path import relpath
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.process.secrets import secret_headers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpuserve.new.app import App, Exchange

CONFTEST: Final = '''"""The deployment that the tests of this folder measure."""

import pytest


@pytest.fixture(scope="session")
def server(@FIXTURE@):
    """A description: each load starts it afresh."""
    return @FIXTURE@(@ARGUMENTS@)
'''

TEST: Final = '''"""Throughput and tail latency of @NAME@, gated against its baseline."""
@IMPORTS@
import pytest
@CONSTANTS@

# How much worse each may get before the test fails, on the CPU of a shared machine; a GPU's defaults are tighter.
@pytest.mark.gpuserve(gpu="cpu", throughput=0.2, p99=1.0)
def test_@NAME@(server, load, baseline):
    """@DOC@"""
    run = load(
        server.request(
            @REQUEST@,
        ),
        concurrency=8,
    )
    assert run.throughput >= baseline.throughput
    assert run.latency.p99 <= baseline.latency.p99
'''

WORKFLOW: Final = """# Measures every pull request side by side with its base.
name: Gate @NAME@

on:
  pull_request:

permissions:
  contents: read
jobs:
  # Make this a required check. No condition may skip it: GitHub takes what is skipped for passed.
  gate:
    runs-on: @RUNNER@
    timeout-minutes: 60
    steps:
      - uses: actions/checkout@11bd71901bbe5b1630ceea73d27597364c9af683 # v4.2.2
        with:
          fetch-depth: 0 # the base, to compare with
          persist-credentials: false
      - uses: actions/setup-python@a26af69be951a213d495a4c3e4e4022e16d87065 # v5.6.0
        with:
          python-version: "3.11"
      - run: pip install --quiet @INSTALL@
      # What was checked out is a merge: its first parent is the base.
      - run: pytest suites/@NAME@ --gpu=@GPU@ --against=HEAD^1 --gpuserve-json=result.json --gpuserve-report=report.html
      - if: always()
        uses: actions/upload-artifact@ea165f8d65b6e75b540449e92b4886f43607fa02 # v4.6.2
        with:
          name: gpuserve-@NAME@
          path: |
            result.json
            report.html
"""

_IN_SOURCE: Final = 80  # longer bodies go into files of their own


def suite_files(app: App, asked: Exchange, *, root: Path, python: str, gpu_runner: str) -> dict[Path, bytes]:
    """The contents of a suite's files, by their paths; ``python`` and ``gpu_runner`` as the user named them."""
    folder, request = root / "suites" / app.name, asked.request
    files: dict[Path, bytes] = {}

    def constant(name: str, body: bytes) -> str:
        if len(body) <= _IN_SOURCE:
            return f"{name} = {body!r}"
        file = f"{name.lower()}.bin"
        files[folder / file] = body
        return f'{name} = Path(__file__).with_name("{file}").read_bytes()'

    constants, parts = [], [json.dumps(request.method), json.dumps(request.path)]
    if request.body:
        constants.append(constant("REQUEST", request.body))
        parts.append("body=REQUEST")
    if request.headers:
        parts.append(f"headers={_headers(request.headers)}")
    doc = "Only the status of each answer is checked: the answer differs from one request to the next."
    if asked.repeats:
        constants.append(constant("ANSWER", asked.body))
        parts.append("expect=ANSWER")
        doc = "Each answer is the one that was there when this test was written."
    wanted = (("import os", "os.environ", parts), ("from pathlib import Path", "Path(", constants))
    imports = [f"\n{line}" for line, mark, texts in wanted if any(mark in text for text in texts)]
    extras = {"command": "report", "triton": "pytriton,report"}.get(app.kind, f"{app.kind},report")
    projects = {"requirements.txt": " -r requirements.txt", "pyproject.toml": " -e ."}
    project = next((words for name, words in projects.items() if (root / name).is_file()), "")
    words = {
        "NAME": app.name,
        "DOC": doc,
        "IMPORTS": "".join([*imports, "\n"]) if imports else "",
        "CONSTANTS": "\n".join(["", *constants, ""]) if constants else "",
        "REQUEST": ",\n            ".join(parts),
        "FIXTURE": f"{app.kind}_server",
        "ARGUMENTS": _arguments(app, root, folder, python),
        "RUNNER": f"[{gpu_runner}]" if gpu_runner else "ubuntu-24.04",
        "GPU": "auto" if gpu_runner else "cpu",
        "INSTALL": f"'pytest-gpuserve[{extras}]'{project}",
    }
    for path, text in (
        (folder / "conftest.py", CONFTEST),
        (folder / f"test_{app.name}.py", TEST),
        (root / ".github" / "workflows" / f"gate-{app.name}.yml", WORKFLOW),
    ):
        filled = text
        for word, value in words.items():
            filled = filled.replace(f"@{word}@", value)
        files[path] = filled.encode()
    return files


def write_missing(files: Mapping[Path, bytes]) -> tuple[list[Path], list[Path]]:
    """Write the files that do not exist; return those, and the others. Raises UsageProblem where one cannot be."""
    left = [path for path in files if path.exists()]
    written = [path for path in files if path not in left]
    for path in written:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(files[path])
        except OSError as problem:
            raise UsageProblem(f"{path} cannot be written", found=str(problem)) from None
    return written, left


def variable_of(header: str) -> str:
    """The variable that a written test takes a secret header's value from."""
    return header.upper().replace("-", "_")


def _headers(headers: Mapping[str, str]) -> str:
    """Headers as source; a secret does not go into a file that is committed."""
    secrets = secret_headers(headers)
    entries = (
        f"{json.dumps(name)}: " + (f'os.environ["{variable_of(name)}"]' if name in secrets else json.dumps(value))
        for name, value in headers.items()
    )
    return f"{{{', '.join(entries)}}}"


def _arguments(app: App, root: Path, folder: Path, python: str) -> str:
    """Of the fixture, with paths relative to the suite's folder."""
    if "/" in python and not Path(python).is_absolute():
        python = Path(relpath(root / python, folder)).as_posix()
    place = json.dumps(Path(relpath(app.place, folder)).as_posix())
    parts = [f"{json.dumps(app.argv)}, cwd={place}" if app.kind == "command" else place]
    parts += [f"{name}={json.dumps(value)}" for name, value in (("model", app.model), ("python", python)) if value]
    return ", ".join(parts)
