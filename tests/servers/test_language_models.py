"""Servers of language models: counters by the engine's name, models, and a load of prompts."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.load import prompts
from pytest_gpuserve.measure.counters import ServerSetting, StageTime
from pytest_gpuserve.measure.window import CACHED_TOKENS, PREEMPTIONS, PROMPT_TOKENS
from pytest_gpuserve.process.ports import free_port
from pytest_gpuserve.servers.base import Site
from pytest_gpuserve.servers.command import CommandServer
from pytest_gpuserve.servers.language_models import ENGINES
from pytest_gpuserve.servers.metric_names import MetricNames
from tests.fakes.children.toolkit import HERE
from tests.servers.deployments import Starts, loaded
from tests.servers.pages import pages
from tests.servers.somebody import FACTORY


def histogram(name: str, labels: str, total: float, count: int) -> str:
    """A histogram as Prometheus' client writes it."""
    return "".join(
        f"{name}_{part}{{{labels}{edge}}} {value}\n"
        for part, edge, value in [("bucket", 'le="8"', count), ("bucket", 'le="+Inf"', count), ("sum", "", total)]
    ) + (f"{name}_count{{{labels}}} {count}\n")


VLLM = 'engine="0",model_name="m",'
PAGES = {
    "vllm": "# TYPE vllm:iteration_tokens_total histogram\n"
    + histogram("vllm:iteration_tokens_total", VLLM, 640.0, 40)
    + f'vllm:request_success_total{{{VLLM}finished_reason="stop"}} 2.0\n'
    + f'vllm:request_success_total{{{VLLM}finished_reason="length"}} 3.0\n'
    + "".join(
        histogram(f"vllm:{name}_seconds", VLLM, 1.5, 5)
        for name in ("e2e_request_latency", "request_queue_time", "request_prefill_time", "request_decode_time")
    )
    + f"vllm:prompt_tokens_total{{{VLLM}}} 200.0\nvllm:prefix_cache_hits_total{{{VLLM}}} 150.0\n"
    + f"vllm:num_preemptions_total{{{VLLM}}} 3.0\n",
    "sglang": 'sglang:num_requests_total{model_name="m"} 5.0\n'
    + histogram("sglang:e2e_request_latency_seconds", 'model_name="m",', 1.5, 5)
    + histogram("sglang:queue_time_seconds", 'model_name="m",', 1.5, 5)
    + 'sglang:prompt_tokens_total{model_name="m"} 200.0\nsglang:cached_tokens_total{cache_source="device"} 90.0\n'
    + 'sglang:cached_tokens_total{cache_source="host"} 60.0\n',
    "llama.cpp": "# TYPE llamacpp:tokens_predicted_total counter\nllamacpp:tokens_predicted_total 640\n"
    "# TYPE llamacpp:n_decode_total counter\nllamacpp:n_decode_total 40\n"
    "llamacpp:prompt_tokens_total 50\nllamacpp:prompt_tokens_cached_total 150\n",
    "trtllm": 'trtllm_request_success_total{finished_reason="stop"} 5.0\n'
    + histogram("trtllm_e2e_request_latency_seconds", "", 1.5, 5)
    + histogram("trtllm_request_queue_time_seconds", "", 1.5, 5),
    "tgi": histogram("tgi_batch_next_size", "", 640.0, 40)
    + "tgi_request_success 5\n"
    + histogram("tgi_request_duration", "", 1.5, 5)
    + histogram("tgi_request_queue_duration", "", 1.5, 5),
}


@pytest.mark.parametrize("engine", ENGINES)
def test_counters_by_the_name_of_the_engine(engine: str) -> None:
    """An engine's own page gives its counts, and only the tallies that it shows."""
    counters = ENGINES[engine].read(PAGES[engine])
    counted = engine in {"vllm", "llama.cpp", "tgi"}
    assert (counters.items, counters.batches, counters.counts_batches) == (
        (640, 40, True) if counted else (0, 0, False)
    )
    assert counters.requests == (None if engine == "llama.cpp" else 5)
    assert set(counters.stages.values()) <= {StageTime(1.5, 5)}
    of_cache = {PROMPT_TOKENS: 200, CACHED_TOKENS: 150} if engine in {"vllm", "sglang", "llama.cpp"} else {}
    assert counters.tallies == {**of_cache, **({PREEMPTIONS: 3} if engine == "vllm" else {})}


@pytest.mark.parametrize(
    ("status", "body", "settings"),
    [
        (
            200,
            b'{"object": "list", "data": [{"id": "a/b", "max_model_len": 1024}]}',
            {"model": "a/b", "context": "1024"},
        ),
        (
            200,
            b'{"data": [{"id": "/m/a.gguf", "meta": {"n_ctx": 512}}, {"id": "b"}]}',
            {"model": "a.gguf, b", "context": "512"},
        ),
        (401, b'{"data": [{"id": "a"}]}', {}),
        (200, b'{"data": []}', {}),
        (200, b'{"models": []}', {}),
        (200, b"<html>", {}),
    ],
)
def test_models_are_settings(status: int, body: bytes, settings: dict[str, str]) -> None:
    """Models are listed as by vLLM and llama.cpp; without a readable list nothing is known of them."""
    with pages() as web:
        web.status, web.body = status, body
        found = MetricNames(requests="r", models="/v1/models").read_models(web.site())
    assert found == {name: ServerSetting(used) for name, used in settings.items()}


def test_a_server_that_does_not_list_its_models_in_time_is_told() -> None:
    """The error names the path."""
    with pytest.raises(ServerFailed, match="/v1/models"):
        ENGINES["vllm"].read_models(Site(Path(), {"http": free_port()}))


def test_a_load_of_prompts(tmp_path: Path) -> None:
    """A load begins after one token; models are read back, tokens are counted, and no prompt comes twice."""
    kind = FACTORY.command(["{python}", str(HERE / "model_server.py"), "{port}"], counters="llama.cpp").kind
    assert isinstance(kind, CommandServer)
    target = Starts(tmp_path / "log").handle(kind).chat(prompts(3, output_tokens=5))
    start, problems, instance = loaded(target, seconds=1.0)
    assert not problems
    assert instance.settings == {"model": ServerSetting("a.gguf"), "context": ServerSetting("1")}
    assert all(window.streams is None or window.streams.has_usage for window in start.windows)
    items, batches = (sum(getattr(window, name) for window in start.windows) for name in ("items", "batches"))
    assert items == batches > 0
