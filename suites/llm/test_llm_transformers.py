"""Chats with ``transformers serve``: it has no counters, and its streams begin with a role and end without a mark."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.load import prompts
from suites.tolerances import CPU_TOLERANCES

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuserve.compare.assertions import Baseline, Run
    from pytest_gpuserve.experiment.handle import ServerHandle

pytestmark = [pytest.mark.gpuserve_full, CPU_TOLERANCES]

COMMAND = ("{python}", "apps/transformers_serve.py", "--port={port}", "--folder={folder}", "--continuous-batching")


def test_transformers_chat(
    command_server: Callable[..., ServerHandle], load: Callable[..., Run], baseline: Baseline
) -> None:
    """Four users get their first token as soon as in the baseline, and the others as fast."""
    missing = [name for name in ("openai", "accelerate") if find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}; pip install 'transformers[serving]>=5,<6'")
    chats = prompts(64, input_tokens=64, output_tokens=8)
    run = load(command_server(COMMAND).chat(chats), concurrency=4)
    assert run.output_tokens_per_second >= baseline.output_tokens_per_second
    assert run.ttft.p50 <= baseline.ttft.p50
