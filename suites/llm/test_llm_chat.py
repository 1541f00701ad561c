"""Chats with llama.cpp's server, streamed: time to the first token, speed of the others, and batch sizes.

The model has random weights. All prompts have the same length and differ from each other, and every answer has the
requested number of tokens. So all requests are the same work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.load import prompts
from suites.tolerances import CPU_TOLERANCES

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuserve.compare.assertions import Baseline, Run
    from pytest_gpuserve.experiment.handle import ServerHandle

pytestmark = CPU_TOLERANCES

FULL = pytest.mark.gpuserve_full

INPUT_TOKENS = 64
OUTPUT_TOKENS = 64


@pytest.mark.parametrize("users", [pytest.param(1, marks=FULL), 4, pytest.param(16, marks=FULL)])
def test_chat(llamacpp: Callable[..., ServerHandle], load: Callable[..., Run], baseline: Baseline, users: int) -> None:
    """Users get their first token as soon as in the baseline, and the others as fast, in batches as large."""
    chats = prompts(64, input_tokens=INPUT_TOKENS, output_tokens=OUTPUT_TOKENS)
    run = load(llamacpp("--slots=8").chat(chats, ignore_eos=True), concurrency=users)
    assert run.output_tokens_per_second >= baseline.output_tokens_per_second
    assert run.ttft.p50 <= baseline.ttft.p50
    assert run.tpot.p50 <= baseline.tpot.p50
    assert run.batching_ratio >= baseline.batching_ratio


@FULL
def test_conversations_go_on_from_what_is_cached(
    llamacpp: Callable[..., ServerHandle], load: Callable[..., Run], baseline: Baseline
) -> None:
    """Users who converse in three turns get first tokens as soon as in the baseline, because histories are cached.

    Only the last answer of a history is computed, because it is not the server's own.
    """
    chats = prompts(32, input_tokens=128, output_tokens=16, turns=3, think=0.05)
    run = load(llamacpp("--slots=4", "--cache-prompt").chat(chats, ignore_eos=True), concurrency=4)
    assert run.ttft.p50 <= baseline.ttft.p50


@FULL
def test_a_cached_prefix_is_not_computed_again(
    llamacpp: Callable[..., ServerHandle], load: Callable[..., Run], baseline: Baseline
) -> None:
    """If prompts share a long begin and the server keeps it, the first token comes as soon as in the baseline."""
    chats = prompts(64, input_tokens=64, output_tokens=8, shared_prefix=448)
    run = load(llamacpp("--slots=1", "--cache-prompt").chat(chats, ignore_eos=True), concurrency=1)
    assert run.ttft.p50 <= baseline.ttft.p50
