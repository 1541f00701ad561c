"""Names of the counters of language model servers: ``counters="vllm"`` instead of each name.

A batching ratio is tokens an engine step, of prompts and answers (vLLM), or tokens of answers an execution (llama.cpp).
TGI counts requests of a prefill. SGLang and TensorRT-LLM do not count executions. vLLM, SGLang and llama.cpp report
prompt tokens from their prefix caches; the first two also report preemptions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from pytest_gpuserve.measure.window import CACHED_TOKENS, OTHER_COMPUTE, PREEMPTIONS, PROMPT_TOKENS, QUEUE, SERVER
from pytest_gpuserve.servers.metric_names import MetricNames

if TYPE_CHECKING:
    from collections.abc import Mapping

Engine = Literal["vllm", "sglang", "llama.cpp", "trtllm", "tgi"]

_MODELS: Final = "/v1/models"

ENGINES: Final[Mapping[str, MetricNames]] = {
    "vllm": MetricNames(
        batch_size="vllm:iteration_tokens_total",
        requests="vllm:request_success_total",
        stages={
            SERVER: "vllm:e2e_request_latency_seconds",
            QUEUE: "vllm:request_queue_time_seconds",
            f"{OTHER_COMPUTE}prefill": "vllm:request_prefill_time_seconds",
            f"{OTHER_COMPUTE}decode": "vllm:request_decode_time_seconds",
        },
        tallies={
            PROMPT_TOKENS: ["vllm:prompt_tokens_total"],
            CACHED_TOKENS: ["vllm:prefix_cache_hits_total"],
            PREEMPTIONS: ["vllm:num_preemptions_total"],
        },
        models=_MODELS,
    ),
    # Needs the option --enable-metrics.
    "sglang": MetricNames(
        requests="sglang:num_requests_total",
        stages={SERVER: "sglang:e2e_request_latency_seconds", QUEUE: "sglang:queue_time_seconds"},
        tallies={
            PROMPT_TOKENS: ["sglang:prompt_tokens_total"],
            CACHED_TOKENS: ["sglang:cached_tokens_total"],
            PREEMPTIONS: ["sglang:num_retracted_requests_total"],
        },
        models=_MODELS,
    ),
    # Needs the option --metrics.
    "llama.cpp": MetricNames(
        items="llamacpp:tokens_predicted_total",
        batches="llamacpp:n_decode_total",
        tallies={
            # Its counters separate computed tokens from cached ones.
            PROMPT_TOKENS: ["llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total"],
            CACHED_TOKENS: ["llamacpp:prompt_tokens_cached_total"],
        },
        models=_MODELS,
    ),
    # Needs return_perf_metrics: true among its options.
    "trtllm": MetricNames(
        requests="trtllm_request_success_total",
        stages={SERVER: "trtllm_e2e_request_latency_seconds", QUEUE: "trtllm_request_queue_time_seconds"},
        path="/prometheus/metrics",
        models=_MODELS,
    ),
    "tgi": MetricNames(
        batch_size="tgi_batch_next_size",
        requests="tgi_request_success",
        stages={SERVER: "tgi_request_duration", QUEUE: "tgi_request_queue_duration"},
        models=_MODELS,
    ),
}
"""Names of the metrics by engine."""
