"""Special needs of a suite, and the skips without them."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from typing import Final

import pytest

DEFAULT_COMPILER: Final = "g++"
"""Inductor's compiler on Linux unless the variable CXX names another; it searches no further one."""


def needs_triton() -> None:
    """Skip a test without Triton's wheel, which does not exist for every Python, and needs numpy below 2."""
    if find_spec("pytriton") is None:
        pytest.skip("Triton is not installed: pip install 'pytest-gpuserve[pytriton]' (Python 3.12 or older, x86-64)")


def needs_cpp_compiler() -> None:
    """Skip a test if inductor, which compiles for the CPU, would not find a C++ compiler."""
    compiler = os.environ.get("CXX", DEFAULT_COMPILER)
    if shutil.which(compiler) is None:
        pytest.skip(f"the C++ compiler {compiler!r}, which torch.compile needs, is not installed: install g++")
