"""Chats with a model behind LitServe's and mosec's streams, which are not engines of language models.

Both answer the chats of a batch together, with equal numbers of tokens. Their prompts have equal numbers of words, and
all differ.
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

pytestmark = [pytest.mark.gpuserve_full, CPU_TOLERANCES]

SECONDS = 2.0
"""Measured time of a start; the plugin lengthens it if a quantile needs more."""

USERS = [1, 4]

CHATS = prompts(16, input_tokens=32, output_tokens=32)


@pytest.mark.parametrize("users", USERS)
def test_litserve(
    litserve_server: Callable[..., ServerHandle], load: Callable[..., Run], baseline: Baseline, users: int
) -> None:
    """Streams of LitServe's OpenAI-compatible API begin as soon as in the baseline, and go on as fast."""
    run = load(litserve_server("apps/chat_litserve.py").chat(CHATS), concurrency=users, seconds=SECONDS)
    check_stream(run, baseline)


@pytest.mark.parametrize("users", USERS)
def test_mosec(
    mosec_server: Callable[..., ServerHandle], load: Callable[..., Run], baseline: Baseline, users: int
) -> None:
    """Streams of mosec's worker for server-sent events begin as soon as in the baseline, and go on as fast."""
    run = load(mosec_server("apps/chat_mosec.py", max_batch_size=4).chat(CHATS), concurrency=users, seconds=SECONDS)
    check_stream(run, baseline)


def check_stream(run: Run, baseline: Baseline) -> None:
    """Compare the times of a stream, and the batch sizes."""
    assert run.ttft.p50 <= baseline.ttft.p50
    assert run.tpot.p50 <= baseline.tpot.p50
    assert run.output_tokens_per_second >= baseline.output_tokens_per_second
    assert run.batching_ratio >= baseline.batching_ratio
