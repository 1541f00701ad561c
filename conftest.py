"""Loads the plugin from a bare checkout, and pytester for the plugin's own tests, which run on all cores."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

pytest_plugins = ["pytest_gpuserve.plugin", "pytester"]

TESTS = Path(__file__).parent / "tests"

MOST_WORKERS = 8
"""Each imports all tests."""


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Workers of ``-n auto``, which the ini file asks for: two a core for tests, which often wait; none for suites."""
    paths = [(config.invocation_params.dir / argument.split("::")[0]).resolve() for argument in config.args]
    workers = min(2 * len(os.sched_getaffinity(0)), MOST_WORKERS)
    return workers if all(path.is_relative_to(TESTS) for path in paths) else 0
