"""What a suite needs beside what every environment has, and what is said where it is not there."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def needs_triton() -> None:
    """Skip a test where Triton's wheel is not installed: it is not made for every Python, and needs numpy below 2."""
    if find_spec("pytriton") is None:
        pytest.skip("Triton is not installed: pip install 'pytest-gpuserve[pytriton]' (Python 3.12 or older, x86-64)")
