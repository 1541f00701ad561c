"""The texts of the files of a new suite; ``@WORD@`` is filled in."""

from __future__ import annotations

from typing import Final

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
