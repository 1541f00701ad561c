"""The language models' suite."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from suites.llm.conftest import WITH_VLLM
from tests.plugin.conftest import REPOSITORY


@pytest.mark.parametrize(
    "text", [WITH_VLLM, (REPOSITORY / "suites" / "README.md").read_text(encoding="utf-8")], ids=["reason", "readme"]
)
def test_the_command_for_vllm_selects_its_tests(text: str) -> None:
    """The commands for vLLM, in the reason of a skip and in the suites' README, select its tests."""
    (arguments,) = re.findall(r"pytest (suites/llm/.*)", text)
    argv = [sys.executable, "-m", "pytest", "-n0", "-q", "--collect-only", *arguments.split()]
    done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert "::test_vllm_chat[8]" in done.stdout, done.stdout + done.stderr
