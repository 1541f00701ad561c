"""Chats with vLLM, streamed: tokens, their times, and requests a second within objectives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.load import Objectives, prompts
from pytest_gpuserve.units import ms
from suites.tolerances import CPU_TOLERANCES

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuserve.compare.assertions import Baseline, Run
    from pytest_gpuserve.experiment.handle import ServerHandle

pytestmark = [pytest.mark.gpuserve_full, CPU_TOLERANCES]

OBJECTIVES = Objectives(ttft=500 * ms, tpot=50 * ms)


@pytest.fixture(scope="module")
def server(vllm: Callable[..., ServerHandle]) -> ServerHandle:
    """A server that computes at most eight requests together."""
    return vllm("--max-num-seqs=8")


@pytest.mark.parametrize("users", [1, 8])
def test_vllm_chat(server: ServerHandle, load: Callable[..., Run], baseline: Baseline, users: int) -> None:
    """Users get their tokens as fast as in the baseline, in steps as large, and as many within objectives."""
    chats = prompts(64, input_tokens=64, output_tokens=32)
    run = load(server.chat(chats, ignore_eos=True), concurrency=users, goodput=OBJECTIVES)
    assert run.output_tokens_per_second >= baseline.output_tokens_per_second
    assert run.goodput >= baseline.goodput
    assert run.ttft.p50 <= baseline.ttft.p50
    assert run.tpot.p50 <= baseline.tpot.p50
    assert run.batching_ratio >= baseline.batching_ratio
