"""What a suite needs beside what every environment has, and what is said where it is not there."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from typing import Final

import pytest

DEFAULT_COMPILER: Final = "g++"
"""What inductor runs on Linux where the variable CXX names no other; it looks for no further one."""


def needs_triton() -> None:
    """Skip a test where Triton's wheel is not installed: it is not made for every Python, and needs numpy below 2."""
    if find_spec("pytriton") is None:
        pytest.skip("Triton is not installed: pip install 'pytest-gpuserve[pytriton]' (Python 3.12 or older, x86-64)")


def needs_cpp_compiler() -> None:
    """Skip a test in which inductor compiles for the CPU where it would not find a C++ compiler."""
    compiler = os.environ.get("CXX", DEFAULT_COMPILER)
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no C++ compiler {compiler!r}, with which torch.compile makes its kernels: install g++")
