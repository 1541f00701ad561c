"""The files of a new suite: what stands in them, and writing those that are not there."""

from __future__ import annotations

import json
from os.path import relpath
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.process.secrets import secret_headers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_gpuserve.new.asking import SampleExchange
    from pytest_gpuserve.new.recognise import RecognisedApp

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

# How much worse each may get before the test fails, on the CPU of a shared machine; a card's defaults are tighter.
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

WORKFLOW: Final = """# Measure every pull request side by side with its base, on the same machine in the same minutes.
name: Gate @NAME@

on:
  pull_request:

permissions:
  contents: read

concurrency:
  group: gate-@NAME@-${{ github.event.pull_request.number }}
  cancel-in-progress: true

jobs:
  # Make this a required check. No condition may skip it: GitHub takes what is skipped for passed.
  gate:
    runs-on: ubuntu-24.04
    timeout-minutes: 60
    steps:
      - uses: actions/checkout@11bd71901bbe5b1630ceea73d27597364c9af683 # v4.2.2
        with:
          # Without it the base is not there to compare with.
          fetch-depth: 0
          persist-credentials: false
      - uses: actions/setup-python@a26af69be951a213d495a4c3e4e4022e16d87065 # v5.6.0
        with:
          python-version: "3.11"
      # A run that failed is kept too, so that a second one goes on and does not try its luck.
      - uses: actions/cache/restore@5a3ec84eff668545956fd18022155c47e93e2684 # v4.2.3
        with:
          path: ${{ runner.temp }}/pytest-cache
          key: gpuserve-@NAME@-${{ github.event.pull_request.head.sha }}-${{ github.run_id }}-${{ github.run_attempt }}
          restore-keys: |
            gpuserve-@NAME@-${{ github.event.pull_request.head.sha }}-
            gpuserve-@NAME@-
      - name: Install
        run: |
          mkdir -p "$RUNNER_TEMP/gpuserve"
          python3 -m venv "$RUNNER_TEMP/venv"
          "$RUNNER_TEMP/venv/bin/pip" install --quiet @INSTALL@
      # What was checked out is a merge: its first parent is the base.
      - name: Gate
        run: |
          "$RUNNER_TEMP/venv/bin/pytest" suites/@NAME@ --gpu=cpu --against=HEAD^1 \\
            -o cache_dir="$RUNNER_TEMP/pytest-cache" \\
            --gpuserve-json="$RUNNER_TEMP/gpuserve/result.json" \\
            --gpuserve-report="$RUNNER_TEMP/gpuserve/report.html" \\
            --gpuserve-markdown="$RUNNER_TEMP/gpuserve/comment.md" \\
            --junitxml="$RUNNER_TEMP/gpuserve/junit.xml"
      - name: Keep what was measured, also of a run that failed
        if: always()
        uses: actions/cache/save@5a3ec84eff668545956fd18022155c47e93e2684 # v4.2.3
        with:
          path: ${{ runner.temp }}/pytest-cache
          key: gpuserve-@NAME@-${{ github.event.pull_request.head.sha }}-${{ github.run_id }}-${{ github.run_attempt }}
      - name: Keep the results, whatever they are
        if: always()
        uses: actions/upload-artifact@ea165f8d65b6e75b540449e92b4886f43607fa02 # v4.6.2
        with:
          name: gpuserve-@NAME@
          path: ${{ runner.temp }}/gpuserve
          retention-days: 30
"""


_IN_SOURCE: Final = 80
"""Longer bodies go into files of their own."""

_EXTRAS: Final = {"mosec": "mosec", "litserve": "litserve", "triton": "pytriton", "pytriton": "pytriton"}

IGNORED: Final = ("__pycache__/", ".pytest_cache/")


def suite_files(app: RecognisedApp, asked: SampleExchange, *, root: Path, python: str) -> dict[Path, bytes]:
    """The contents of the files of an app's suite, by their paths; ``python`` as the user named it."""
    folder = root / "suites" / app.name
    files: dict[Path, bytes] = {}

    def constant(name: str, body: bytes) -> str:
        if len(body) <= _IN_SOURCE:
            return f"{name} = {body!r}"
        file = f"{name.lower()}.bin"
        files[folder / file] = body
        return f'{name} = Path(__file__).with_name("{file}").read_bytes()'

    question = asked.question
    constants, parts = [], [json.dumps(question.method), json.dumps(question.path)]
    if question.body:
        constants.append(constant("REQUEST", question.body))
        parts.append("body=REQUEST")
    if question.headers:
        parts.append(f"headers={_headers(question.headers)}")
    doc = "Only the status of each answer is checked: the answer differs from one request to the next."
    if asked.repeats:
        constants.append(constant("ANSWER", asked.body))
        parts.append("expect=ANSWER")
        doc = "Each answer is the one that was there when this test was written."
    imports = [
        f"{line}\n"
        for line, mark, texts in (("import os", "os.environ", parts), ("from pathlib import Path", "Path(", constants))
        if any(mark in text for text in texts)
    ]
    words = {
        "NAME": app.name,
        "DOC": doc,
        "IMPORTS": "".join(["\n", *imports]) if imports else "",
        "CONSTANTS": "\n".join(["", *constants, ""]) if constants else "",
        "REQUEST": ",\n            ".join(parts),
        "FIXTURE": f"{app.kind}_server",
        "ARGUMENTS": _arguments(app, folder, _from_suite(python, root, folder)),
        "INSTALL": _installed(app, root),
    }
    files[folder / "conftest.py"] = _filled(CONFTEST, words).encode()
    files[folder / f"test_{app.name}.py"] = _filled(TEST, words).encode()
    files[root / ".github" / "workflows" / f"gate-{app.name}.yml"] = _filled(WORKFLOW, words).encode()
    return files


def write_missing(files: Mapping[Path, bytes]) -> tuple[list[Path], list[Path]]:
    """Write the files that do not exist; return those, and the others. Raises UsageProblem where one cannot be."""
    written, left = [], []
    for path, content in files.items():
        if path.exists():
            left.append(path)
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                file.write(content)
        except OSError as problem:
            raise UsageProblem(f"{path} cannot be written", found=str(problem)) from None
        written.append(path)
    return written, left


def ignore(file: Path, lines: Iterable[str]) -> bool:
    """Add the lines that a ``.gitignore`` lacks; whether there were any."""
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    there = {line.strip().strip("/") for line in text.splitlines()}
    missing = [line for line in lines if line.strip("/") not in there]
    if missing:
        end = "" if not text or text.endswith("\n") else "\n"
        file.write_text(text + end + "".join(f"{line}\n" for line in missing), encoding="utf-8")
    return bool(missing)


def _filled(text: str, words: Mapping[str, str]) -> str:
    for word, value in words.items():
        text = text.replace(f"@{word}@", value)
    return text


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


def _arguments(app: RecognisedApp, folder: Path, python: str) -> str:
    place = Path(relpath(app.place, folder)).as_posix()
    parts = [f"{json.dumps(app.argv)}, cwd={json.dumps(place)}" if app.kind == "command" else json.dumps(place)]
    if app.model:
        parts.append(f"model={json.dumps(app.model)}")
    if python:
        parts.append(f"python={json.dumps(python)}")
    return ", ".join(parts)


def _from_suite(python: str, root: Path, folder: Path) -> str:
    """An interpreter as the suite names it: a relative path is one from the suite's folder."""
    is_relative = "/" in python and not Path(python).is_absolute()
    return Path(relpath(root / python, folder)).as_posix() if is_relative else python


def _installed(app: RecognisedApp, root: Path) -> str:
    extras = ",".join(filter(None, (_EXTRAS.get(app.kind, ""), "report")))
    parts = [f"'pytest-gpuserve[{extras}]'"]
    if (root / "requirements.txt").is_file():
        parts.append("-r requirements.txt")
    elif (root / "pyproject.toml").is_file():
        parts.append("-e .")
    return " ".join(parts)
