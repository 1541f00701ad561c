"""Loads the plugin from a bare checkout, and pytester for the plugin's own tests, which run on all cores."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest_plugins = ["pytest_gpuserve.plugin", "pytester"]

TESTS = Path(__file__).resolve().parent / "tests"

MOST_WORKERS = 8
"""Each imports all tests."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Workers of ``-n auto``, which the ini file asks for: two a core for tests, which often wait.

    None for what measures: suites, benchmarks.
    """
    paths = [(config.invocation_params.dir / argument.split("::")[0]).resolve() for argument in config.args]
    tests = all(path.is_relative_to(TESTS) and not path.is_relative_to(TESTS / "benchmarks") for path in paths)
    if not tests:
        return 0
    return min(2 * len(os.sched_getaffinity(0)), MOST_WORKERS)
