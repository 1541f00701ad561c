"""A fault in a suite's server is found by the metric that should see it.

Each test clones this repository, edits an app as a careless change would, and gates the suite against its own commit,
with real servers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.plugin.conftest import REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.alone]

TOLERANCES = "suites/tolerances.py"
GPU_LIKE = (
    "throughput=0.1, output_tokens_per_second=0.1, ttft_p50=0.1, tpot_p50=0.1, p50=0.1, p90=0.2, p95=0.2, p99=0.3,"
    " batching_ratio=0.1"
)

MOSEC_APP = "suites/distilbert/apps/distilbert_mosec.py"
OPTIONS = "suites/distilbert/apps/distilbert_options.py"
MOSEC_TEST = "suites/distilbert/test_distilbert_mosec.py::test_distilbert[workers1-connections50]"

LITSERVE_APP = "suites/catdog/apps/catdog_litserve.py"
LITSERVE_TEST = "suites/catdog/test_catdog_serving.py::test_one_user_waits_for_a_batch_that_never_fills[timeout0.05]"

LLAMACPP_APP = "suites/llm/apps/llamacpp.py"
LLM_MODEL = "suites/llm/apps/tiny_model.py"
LLM_TEST = "suites/llm/test_llm_chat.py::test_chat[16]"
LLM_CACHE_TEST = "suites/llm/test_llm_chat.py::test_a_cached_prefix_is_not_computed_again"
VLLM_APP = "suites/llm/apps/vllm_tiny.py"
VLLM_TEST = "suites/llm/test_llm_vllm.py::test_vllm_chat[8]"
VLLM_ARGUMENTS = '"--served-model-name=tiny", *more]'
SLOTS = "params.n_parallel = options.slots\n"

ANSWER = """        return labels if self._batched else labels[0]
"""
WRONG_ANSWER = """        self._answers = getattr(self, "_answers", 0) + len(labels)
        if self._answers % 1000 < len(labels):
            labels[0] = "POSITIVE" if labels[0] == "NEGATIVE" else "NEGATIVE"
        return labels if self._batched else labels[0]
"""

TOKENIZER = """        return self._encode(data)
"""
SLOW_TOKENIZER = """        import time

        end_ns = time.perf_counter_ns() + 3_000_000
        while time.perf_counter_ns() < end_ns:
            pass
        return self._encode(data)
"""

BUDGET_SECONDS = 600
"""Budget of a comparison: in a slow hour a round takes minutes."""

SECONDS = 1500
"""Time limit of a run, which only a hanging one reaches."""


class Checkout:
    """An edited clone of this repository in a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        subprocess.run(["git", "clone", "--quiet", str(REPOSITORY), str(path)], check=True, timeout=60)

    def edit(self, file: str, old: str, new: str) -> None:
        """Replace a text that stands in the file exactly once."""
        text = (self.path / file).read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{file} has {text.count(old)} times {old!r}"
        (self.path / file).write_text(text.replace(old, new), encoding="utf-8")

    def gate(self, test: str) -> tuple[dict[str, Any], str]:
        """Gate a test on the CPU against the commit; its JSON result, and all that was printed."""
        options = ("--gpu=cpu", "--gpuserve-full", "-p", "no:cacheprovider", f"--gpuserve-budget={BUDGET_SECONDS}")
        # The clone's own package, wherever ours is installed from; `-m` puts its folder first.
        environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "CI"}}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", test, "--against=HEAD", "--gpuserve-json=out.json", "-vv", *options],
            cwd=self.path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        printed = done.stdout + done.stderr
        assert (self.path / "out.json").exists(), printed
        (found,) = json.loads((self.path / "out.json").read_text())["tests"]
        return found, printed


FAULTS: dict[str, tuple[tuple[str, str, str], str, set[str], str]] = {
    "batches take half as long again": (
        (OPTIONS, 'os.environ.get("DISTILBERT_SLOWDOWN", "0")', 'os.environ.get("NO_SUCH", "0.5")'),
        *(MOSEC_TEST, {"throughput"}, "compute"),
    ),
    # Though the workload asks for no other.
    "nothing is batched": (
        (OPTIONS, 'default=32, help="most requests', 'default=1, help="most requests'),
        *(MOSEC_TEST, {"batching_ratio"}, ""),
    ),
    "a user who is alone waits ten times as long": (
        (LITSERVE_APP, "batch_timeout=options.batch_timeout", "batch_timeout=10 * options.batch_timeout"),
        *(LITSERVE_TEST, {"latency.p50"}, ""),
    ),
    # The test ends with what it asserts first, and batches are smaller too when requests come to them one by one.
    "tokenizing becomes the bottleneck": (
        (MOSEC_APP, TOKENIZER, SLOW_TOKENIZER),
        *(MOSEC_TEST, {"batching_ratio", "throughput"}, "Preprocess"),
    ),
    "one in 1000 is wrong": ((MOSEC_APP, ANSWER, WRONG_ANSWER), MOSEC_TEST, set(), "wrong answer"),
    "answers are computed one by one": (
        (LLAMACPP_APP, SLOTS, "params.n_parallel = 1\n"),
        *(LLM_TEST, {"ttft.p50", "output_tokens_per_second"}, ""),
    ),
    "vLLM computes half as many answers together": (
        (VLLM_APP, VLLM_ARGUMENTS, VLLM_ARGUMENTS.replace("]", ', "--max-num-seqs=4"]')),
        *(VLLM_TEST, {"output_tokens_per_second", "goodput", "ttft.p50"}, ""),
    ),
    "a model takes longer for each token": (
        (LLM_MODEL, "feed_forward: int = 576", "feed_forward: int = 1152"),
        *(LLM_TEST, {"output_tokens_per_second"}, "decode"),
    ),
    "a prefix is computed again": (
        (LLAMACPP_APP, "params.cache_prompt = options.cache_prompt", "params.cache_prompt = False"),
        *(LLM_CACHE_TEST, {"ttft.p50"}, "TTFT"),
    ),
}
"""Of each fault its edit, the test that finds it, the metrics of which one does (none: INVALID), and a printed word."""


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(tmp_path: Path, name: str) -> None:
    """One of the metrics that should see the fault is REGRESSED, with the cause; a wrong answer is INVALID."""
    edit, test, metrics, said = FAULTS[name]
    if test is VLLM_TEST and "GPUSERVE_VLLM_PYTHON" not in os.environ:
        pytest.skip("GPUSERVE_VLLM_PYTHON names no vLLM")
    pull_request = Checkout(tmp_path / "clone")
    # What the suites tolerate on a CPU is more than some of these faults cost.
    text = (pull_request.path / TOLERANCES).read_text(encoding="utf-8")
    begin = text.index("    throughput=0.2,")
    pull_request.edit(TOLERANCES, text[begin : text.index("    cold_start")], f"    {GPU_LIKE},\n")
    pull_request.edit(*edit)
    found, printed = pull_request.gate(test)
    assert found["outcome"] == "failed", printed
    verdicts = {each["metric"]: each["verdict"] for each in found["verdicts"]}
    if metrics:
        assert "REGRESSED" in {verdicts.get(metric) for metric in metrics}, printed
    else:
        assert set(verdicts.values()) == {"INVALID"}, printed
    assert said in printed
