"""Counters of a server by the names of its Prometheus metrics, or of a language model engine, and a load of prompts."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuserve.errors import ServerFailed, UsageProblem
from pytest_gpuserve.load import prompts
from pytest_gpuserve.measure.counters import Counters, ServerSetting, StageTime, counted_between
from pytest_gpuserve.measure.window import CACHED_TOKENS, COMPUTE, PREEMPTIONS, PROMPT_TOKENS
from pytest_gpuserve.process.ports import free_port
from pytest_gpuserve.servers.base import Site
from pytest_gpuserve.servers.command import CommandServer
from pytest_gpuserve.servers.metric_names import ENGINES, MetricNames
from tests.fakes.children.toolkit import HERE
from tests.servers.deployments import FACTORY, Pages, Starts, loaded, pages

PAGE = """
# TYPE go_gc_duration_seconds summary
go_gc_duration_seconds{quantile="0.5"} NaN
go_gc_duration_seconds_sum 0
go_gc_duration_seconds_count 0
# TYPE process_limit gauge
process_limit -1
# TYPE items_total counter
items_total{model="a",replica="0"} 30
items_total{model="a",replica="1"} 10
items_total{model="b",replica="0"} 5
# TYPE items gauge
items 7
# TYPE runs counter
runs_total{model="a"} 12
# TYPE size histogram
size_bucket{model="a",le="1"} 2
size_bucket{model="a",le="8"} 12
size_bucket{model="a",le="+Inf"} 12
size_sum{model="a"} 40
size_count{model="a"} 12
# TYPE took summary
took_sum{model="a"} 1.5
took_count{model="a"} 12
# TYPE waiting gauge
waiting{model="a"} 3
broken{model="a"} NaN
x_bytes -8.58914944e+08
# TYPE signed histogram
signed_bucket{le="-1"} 2
itemss_total oops
{
"""
"""Lines that a test does not name may be negative, NaN, or not Prometheus text: they spoil no other."""


def test_counters_are_found_by_their_names() -> None:
    """Values are summed over labels that are not fixed, with or without a library's suffix."""
    of_a = {"model": "a"}
    names = MetricNames(items="items_total", batches="runs", requests="runs_total", labels=of_a)
    assert names.read(PAGE) == Counters(items=40, batches=12, requests=12)
    # A histogram tells items, batches and sizes, each bucket without those below; times are a sum and a count too.
    names = MetricNames(batch_size="size", stages={COMPUTE: "took"}, labels=of_a)
    stages = {COMPUTE: StageTime(1.5, 12)}
    assert names.read(PAGE) == Counters(items=40, batches=12, batch_sizes={"1": 2, "8": 10}, stages=stages)


def test_the_exact_name_goes_first() -> None:
    """A gauge beside the counter of its name is not added to it."""
    assert MetricNames(items="items", batches="runs").read(PAGE).items == 7
    assert MetricNames(items="items_total", batches="runs").read(PAGE).items == 45


BOTH: dict[str, Any] = {"items": "items", "batches": "runs"}
LISTED = "items, items_total, itemss_total"
SIZES = "size_sum 4\nsize_count 2\nsize_bucket"


@pytest.mark.parametrize(
    ("given", "page", "said"),
    [
        (BOTH | {"items": "broken"}, PAGE, ["metric broken is not a count", "leave out counters"]),
        (BOTH | {"items": "process_limit"}, PAGE, ["metric process_limit is not a count"]),
        (BOTH | {"items": "took_sum"}, PAGE, ["metric took_sum has to be a count, but is 1.5", "name a counter"]),
        # The page's metrics are listed, also if only the label is unknown.
        (BOTH | {"items": "item", "labels": {"model": "a"}}, PAGE, ["no metric item with {'model'", LISTED]),
        (BOTH | {"labels": {"model": "c"}}, PAGE, ["no metric items with {'model'", LISTED]),
        *(
            (BOTH, f"runs 1\n{line}\n", ["items"])
            for line in ("items oops", "items{", "items", "items -1", "items NaN")
        ),
        *(({"batch_size": "size"}, f"{SIZES}{line}\n", ["size"]) for line in ('{le="1"} -1', '{le="x"} 1', "{} 1")),
        # Of a page without metrics the begin is shown.
        *(
            (BOTH, page, ["no metric items", page[:20]])
            for page in ("<html><body>Not here</body></html>", "", "garbage")
        ),
    ],
)
def test_what_is_named_has_to_be_a_count(given: dict[str, Any], page: str, said: list[str]) -> None:
    """A metric that is not there, a malformed line of it, or no number of executions is an error that names it."""
    with pytest.raises(ServerFailed) as caught:
        MetricNames(**given).read(page)
    assert all(words in str(caught.value) for words in said)
    assert "Traceback" not in str(caught.value)


def test_a_server_that_counts_no_executions_has_none() -> None:
    """Without a metric of batches requests and times are known, and batches are unknown, not zero."""
    names = MetricNames(requests="runs", stages={COMPUTE: "took"})
    assert names.read(PAGE) == Counters(0, 0, stages={COMPUTE: StageTime(1.5, 12)}, requests=12, counts_batches=False)
    assert not counted_between(names.read(PAGE), names.read(PAGE)).counts_batches


@pytest.mark.parametrize(
    "given",
    [
        *({}, {"items": "a"}, {"batches": "b", "requests": "c"}),
        *(BOTH | wrong for wrong in ({"items": ""}, {"batch_size": "c"}, {"path": "metrics"})),
        BOTH | {"labels": {"replica": 1}},
    ],
)
def test_names_that_tell_nothing_are_told(given: dict[str, Any]) -> None:
    """Items need batches, one metric at least is counted, and a name that never matches is refused."""
    with pytest.raises(UsageProblem):
        MetricNames(**given)


def test_names_of_stages_are_checked() -> None:
    """An unknown stage is refused with those that exist; a pipeline's stages have names of their own."""
    with pytest.raises(UsageProblem, match="the stage 'computing' does not exist") as caught:
        MetricNames(**BOTH, stages={"computing": "d"})
    assert "server, queue, formation, compute" in str(caught.value)
    MetricNames(**BOTH, stages={"compute.Tokenizer_1": "d", "request.infer": "e"})


def test_the_same_metric_of_another_model_may_hold_anything() -> None:
    """Only samples with the given labels are checked."""
    names = MetricNames(items="items", batches="runs", labels={"model": "a"})
    page = 'items{model="b"} -1\nitems{model="a"} 4\nruns{model="a"} 2\nruns{model="b"} NaN\n'
    assert names.read(page) == Counters(items=4, batches=2)


@settings(deadline=None, max_examples=300)
@given(text=st.text(st.sampled_from('abc_{}",=# \\\n\t01.e+-N\x00é'), max_size=40))
def test_no_page_is_a_crash(text: str) -> None:
    """Any text gives counts or a typed error."""
    names = MetricNames(items="a", batches="b", batch_size="")
    with suppress(ServerFailed):
        assert names.read(f"{text}\na 3\nb 2\n").items >= 0


def test_what_is_no_answer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only status 200 counts; a closed and a refused connection, and a page that takes too long, are named."""
    monkeypatch.setattr("pytest_gpuserve.servers.base.ANSWER_SECONDS", 0.3)
    names = MetricNames(batch_size="size", models="/v1/models")

    def refusal(page: Pages) -> ServerFailed:
        with pytest.raises(ServerFailed, match=rf"127\.0\.0\.1:{page.port}/metrics could not be read") as caught:
            names.fetch(page.site())
        return caught.value

    with pages() as web:
        web.body = PAGE.encode() + b"\xff"
        for web.status in (204, 302, 404, 500):
            assert refusal(web).found.startswith(f"status {web.status}: ")
        web.status, web.location = 307, "https://elsewhere/metrics/"
        assert refusal(web).found.startswith("status 307, it redirects to https://elsewhere/metrics/: ")
        web.close_early = True
        assert refusal(web).found
        web.close_early, web.status, web.location, web.seconds = False, 200, "", 0.6
        assert refusal(web).found == "no answer in 300 ms"
    nowhere = Site(Path(), {"http": free_port()})
    with pytest.raises(ServerFailed, match=r"could not be read[\s\S]*path=[\s\S]*leave out counters"):
        names.fetch(nowhere)
    with pytest.raises(ServerFailed, match="/v1/models"):
        names.read_models(nowhere)


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


def test_a_load_of_prompts(tmp_path: Path) -> None:
    """A load begins after one token; models are read back, tokens are counted, and no prompt comes twice."""
    kind = FACTORY.command(["{python}", str(HERE / "model_server.py"), "{port}"], counters="llama.cpp").kind
    assert isinstance(kind, CommandServer)
    target = Starts(tmp_path / "log").handle(kind).chat(prompts(3, output_tokens=5))
    start, problems, instance = loaded(target, seconds=1.0)
    assert not problems
    assert instance.settings == {"model": ServerSetting("a.gguf"), "context": ServerSetting("1")}
    assert all(window.streams is None or window.streams.has_usage for window in start.windows)
    counters = start.total.counters
    assert counters is not None
    assert counters.items == counters.batches > 0
