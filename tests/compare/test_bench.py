"""Result files of other tools: what is read of them, what they are judged by, and what they cannot tell."""

from __future__ import annotations

import json
from contextlib import suppress
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuserve.compare.bench import AIPERF_FILE, INPUT_TOKENS, OUTPUT_TOKENS, read_bench
from pytest_gpuserve.errors import UsageProblem
from tests.support.baseline_repository import BaselineRepository, result_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pytest_gpuserve.compare.bench import BenchRun
    from tests.compare.conftest import Said

THROUGHPUT = "--metric=throughput"


def vllm(speed: float = 1.0, **more: object) -> dict[str, Any]:
    """As ``vllm bench serve --save-result`` 0.32 writes it: neither e2e latencies nor any percentile but p99."""
    return {
        "date": "20261101-120000",
        "endpoint_type": "openai",
        "backend": "openai",
        "label": None,
        "model_id": "tiny",
        "tokenizer_id": "tiny",
        "num_prompts": 1000,
        "request_rate": "inf",
        "burstiness": 1.0,
        "max_concurrency": 16,
        "duration": 10.0 / speed,
        "completed": 1000,
        "failed": 0,
        "total_input_tokens": 128000,
        "total_output_tokens": 64000,
        "request_throughput": 100.0 * speed,
        "request_goodput": None,
        "output_throughput": 6400.0 * speed,
        "mean_ttft_ms": 21.0,
        "median_ttft_ms": 20.0,
        "p99_ttft_ms": 40.0,
        "median_tpot_ms": 5.0,
        "p99_tpot_ms": 8.0,
        "median_itl_ms": 4.0,
        "p99_itl_ms": 9.0,
        **more,
    }


def sglang(speed: float = 1.0, **more: object) -> dict[str, Any]:
    """As ``sglang.bench_serving`` 0.5.23 writes a line; the rate without bound is no JSON."""
    return {
        "tag": None,
        "backend": "sglang",
        "dataset_name": "random",
        "request_rate": float("inf"),
        "max_concurrency": 16,
        "random_input_len": 128,
        "server_info": {"model_path": "tiny"},
        "duration": 10.0,
        "completed": 1000,
        "total_input_tokens": 128000,
        "total_output_tokens": 64000,
        "request_throughput": 100.0 * speed,
        "output_throughput": 6400.0,
        "median_e2e_latency_ms": 300.0,
        **{f"p{at}_e2e_latency_ms": 300.0 + at for at in (90, 95, 99)},
        "median_ttft_ms": 20.0,
        "median_tpot_ms": 5.0,
        "median_itl_ms": 4.0,
        **more,
    }


def spread(value: float) -> dict[str, Any]:
    """A distribution of GuideLLM's; of the requests that failed it has another."""
    percentiles = {"p50": value, "p90": 2 * value, "p95": 3 * value, "p99": 4 * value}
    return {"successful": {"mean": value, "percentiles": percentiles}, "errored": {"mean": 99.0}}


def guidellm(speed: float = 1.0, *, schema: int = 2, **more: object) -> dict[str, Any]:
    """As GuideLLM 0.8.1 writes it (schema 2), or 0.6 (schema 1)."""
    backend = {"target": "http://here:1", "model": "tiny"}
    asked = {"profile": {"kind": "concurrent", "streams": [16]}, "data": [{"prompt_tokens": 128}], "backend": backend}
    totals = {"successful": 1000, "errored": 0, "incomplete": 7}
    return {
        "metadata": {"version": schema, "guidellm_version": "0.8.1"},
        **({"config": {"spec": asked}} if schema == 2 else {"args": asked}),
        "benchmarks": [
            {
                "config": {
                    "strategy": {"type_": "concurrent", "worker_count": 3, "streams": 16},
                    "backend": backend,
                },
                "metrics": {
                    "request_totals": totals,
                    "prompt_token_count": spread(128),
                    "output_token_count": spread(64),
                    "requests_per_second": spread(100.0 * speed),
                    "output_tokens_per_second": spread(6400.0),
                    "request_latency": spread(0.3),
                    "time_to_first_token_ms": spread(20.0),
                    "inter_token_latency_ms": spread(5.0),
                    "time_per_output_token_ms": spread(6.0),
                    **more,
                },
            }
        ],
    }


def aiperf(speed: float = 1.0, **more: object) -> dict[str, Any]:
    """As AIPerf 0.13.0 writes it."""

    def of(unit: str, value: float) -> dict[str, Any]:
        return {"unit": unit, "avg": value, "p50": value, "p90": 2 * value, "p95": 3 * value, "p99": 4 * value}

    return {
        "schema_version": "1.4",
        "aiperf_version": "0.13.0",
        "request_throughput": of("requests/sec", 100 * speed),
        "request_latency": of("ms", 300.0),
        "time_to_first_token": of("ms", 20.0),
        "inter_token_latency": of("ms", 5.0),
        "inter_chunk_latency": {**of("us", 4000.0), "count": 62000},
        "output_token_throughput": of("tokens/sec", 6400.0),
        "request_count": of("requests", 1000.0),
        "input_sequence_length": of("tokens", 128.0),
        "output_sequence_length": of("tokens", 64.0),
        "input_config": {
            "models": {"items": [{"name": "tiny"}]},
            "endpoint": {"urls": ["http://here:1"], "type": "chat"},
            "phases": [{"type": "concurrency", "concurrency": 16, "requests": 1000}],
            "artifacts": {"dir": "/tmp/one"},
        },
        "was_cancelled": False,
        "start_time": "2026-11-24T16:13:34",
        **more,
    }


TOOLS = [vllm, sglang, guidellm, aiperf]
COMMON = {"throughput": 100.0, "output_tokens_per_second": 6400.0, "ttft.p50": 0.02, "tpot.p50": 0.005}
E2E = {"latency.p50": 0.3}


@pytest.mark.parametrize(
    ("plain", "values", "load", "gaps"),
    [
        (vllm(), {"itl.p50": 0.004, "itl.p99": 0.009}, "request_rate=inf max_concurrency=16", 63000),
        (sglang(), {**E2E, "itl.p50": 0.004, "latency.p99": 0.399}, "request_rate=inf max_concurrency=16", 63000),
        (guidellm(), {**E2E, "latency.p99": 1.2, "ttft.p95": 0.06}, "concurrent streams=16", 0),
        (guidellm(schema=1), {**E2E, "tpot.p90": 0.01}, "concurrent streams=16", 0),
        (aiperf(), {**E2E, "itl.p50": 0.004, "latency.p99": 1.2}, "concurrency=16", 62000),
    ],
)
def test_each_tool_is_read(plain: dict[str, Any], values: dict[str, float], load: str, gaps: int) -> None:
    """Metrics have this package's names, by their definitions, and units; work is what was asked."""
    (run,) = read_bench("a.json", json.dumps(plain).encode())
    assert {name: run.values[name] for name in (*COMMON, *values)} == pytest.approx({**COMMON, **values})
    assert (run.load, run.work["model"], run.requests, run.gaps) == (load, "tiny", 1000, gaps)
    assert run.tokens == {INPUT_TOKENS: 128.0, OUTPUT_TOKENS: 64.0}
    assert run.problems == ()
    assert not any("here" in value or "/tmp" in value for value in run.work.values())
    assert "strategy.worker_count" not in run.work
    assert "itl.p50" in run.values or "GuideLLM" in run.work["written by"]


def test_requests_tell_what_aggregates_leave_out() -> None:
    """Of ``--save-detailed`` come the quantiles that are not written, without failed requests; those written stay."""
    lists: dict[str, Any] = {
        "ttfts": [0.1, 0.2, 0.3, 0.0],
        "itls": [[0.01] * 4, [0.02] * 4, [0.03] * 4, []],
        "output_lens": [5, 9, 1, 0],
    }
    (run,) = read_bench("a.json", json.dumps(vllm(**lists)).encode())
    expected = {
        "latency.p50": 0.28,
        "latency.p90": 0.392,
        "ttft.p90": 0.28,
        "itl.p95": 0.03,
        "tpot.p90": 0.01,
        "ttft.p50": 0.02,
        "ttft.p99": 0.04,
    }
    assert {name: run.values[name] for name in expected} == pytest.approx(expected)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def damaged(draw: st.DrawFn) -> object:
    """A file of one of the tools in which something is something else."""
    plain = at = deepcopy(draw(st.sampled_from(TOOLS))(ttfts=[0.1], itls=[[0.1]], output_lens=[2]))
    while True:
        key = draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
        if draw(st.booleans()) or not isinstance(at[key], (dict, list)) or not at[key]:
            at[key] = draw(JSON)
            return plain
        at = at[key]


@given(damaged() | JSON)
def test_whatever_a_file_has_is_read_or_refused(plain: object) -> None:
    """Any JSON gives runs of numbers and texts, none, or a clear error."""
    runs: list[BenchRun] = []
    with suppress(UsageProblem):
        runs.extend(read_bench("a.json", json.dumps(plain).encode()))
    assert all(0 <= value < 1e15 for run in runs for value in run.values.values())
    assert all(isinstance(value, str) for run in runs for value in run.work.values())


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff", b"{}\n[]", b"[" * 100_000, b'{"a":' * 100_000])
def test_a_file_of_no_tool_has_no_runs(data: bytes) -> None:
    """What is not theirs is left to the other readers."""
    assert read_bench("a.json", data) == ()


# -- compared


@pytest.fixture
def sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Writes files into the folders ``a`` and ``b`` of the current folder: each a file's text, or its objects."""
    monkeypatch.chdir(tmp_path)

    def write(**found: Sequence[dict[str, Any] | str]) -> None:
        for side, files in found.items():
            (tmp_path / side).mkdir()
            for number, file in enumerate(files):
                text = file if isinstance(file, str) else json.dumps(file)
                (tmp_path / side / f"{number}.json").write_text(text)

    return write


STEADY = (1.0, 1.01, 0.99, 1.005, 0.995)


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize(("factor", "verdict"), [(1.001, "PASS"), (0.75, "REGRESSED"), (1.4, "IMPROVED")])
def test_files_are_starts(
    sides: Callable[..., None], said: Said, tool: Callable[..., dict[str, Any]], factor: float, verdict: str
) -> None:
    """Several files a side are judged as sessions are, with what they do not tell and whose tolerances these are."""
    sides(a=[tool(each) for each in STEADY], b=[tool(each * factor) for each in STEADY])
    status, text = said("a", "b", THROUGHPUT)
    assert (status, f"1 {verdict}" in text) == (int(verdict == "REGRESSED"), True)
    assert "A, the reference: a (5 files of another tool)" in text
    assert "not told by these files, and assumed: whether it was one machine" in text
    assert "default tolerances of throughput" in text


def test_a_file_a_side_is_two_numbers(sides: Callable[..., None], said: Said) -> None:
    """One start of either side decides nothing, however large the change; the number of files is told."""
    sides(a=[vllm(each) for each in STEADY], b=[vllm(0.5)])
    for a, b, starts in (("a", "b", "A has 5 and B 1"), ("b", "a", "A has 1 and B 5"), ("a/0.json", "b/0.json", "")):
        status, text = said(a, b, THROUGHPUT)
        assert (status, text.splitlines()[-1]) == (1, "not well: 1 INCONCLUSIVE")
        assert starts in text
        assert "A tolerance of 5 % needs at least 4 a side, a file each" in text
    assert "-50.0 %" in text


def test_a_gap_counts_for_gaps(sides: Callable[..., None], said: Said) -> None:
    """A tail of requests needs many of them, and one of gaps many gaps."""
    few = {"num_prompts": 100, "completed": 100, "total_input_tokens": 12800, "total_output_tokens": 6400}
    sides(a=[vllm(each, **few) for each in STEADY], b=[vllm(each * 1.001, **few) for each in STEADY])
    _, text = said("a", "b", "--json")
    found = {each["metric"]: each["verdict"] for each in json.loads(text)["loads"][0]["verdicts"]}
    assert (found["itl.p99"], found["ttft.p99"], found["ttft.p50"]) == ("PASS", "INCONCLUSIVE", "PASS")


def test_lines_of_a_file_share_its_start(sides: Callable[..., None], said: Said) -> None:
    """SGLang appends to its file, and nobody knows whether the server was started anew: one start, at their mean."""
    sides(
        **{
            side: ["\n".join(json.dumps(sglang(speed * each)) for each in STEADY)]
            for side, speed in {"a": 1, "b": 2}.items()
        }
    )
    status, text = said("a", "b", THROUGHPUT, "--json")
    plain = json.loads(text)
    (verdict,) = plain["loads"][0]["verdicts"]
    assert (status, verdict["verdict"], round(verdict["value"])) == (1, "INCONCLUSIVE", 200)
    assert "A has 1 and B 1" in verdict["reasons"][0]
    assert any(each.startswith("whether requests failed") for each in plain["untold"])


def test_a_load_is_known_by_its_rate(sides: Callable[..., None], said: Said) -> None:
    """A folder of several rates is compared rate by rate; the same files on both sides are not judged."""
    several = [vllm(each, request_rate=rate) for each in STEADY for rate in (1, 2)]
    sides(a=several, b=[*several[:5], vllm(request_rate=3)])
    status, text = said("a", "b", THROUGHPUT)
    assert (status, "the same sessions in both: unknown vLLM's bench::request_rate=1" in text) == (0, True)
    assert "only in B: unknown vLLM's bench::request_rate=3 max_concurrency=16" in text


@pytest.mark.parametrize(
    ("tool", "more", "says"),
    [
        (vllm, {"total_output_tokens": 65000}, "output tokens a request: A has 64, B has 65"),
        (vllm, {"model_id": "other"}, "model: A has 'tiny', B has 'other'"),
        (vllm, {"num_prompts": 900, "completed": 900}, "num_prompts: A has '1000', B has '900'"),
        (vllm, {"request_rate": 5.0}, "request_rate: A has 'inf', B has '5.0'"),
        (vllm, {"max_concurrency": None}, "max_concurrency: A has '16', B has 'None'"),
        (vllm, {"backend": "openai-chat"}, "backend: A has 'openai', B has 'openai-chat'"),
        (sglang, {}, 'written by: A has "vLLM\'s bench", B has "SGLang\'s bench_serving"'),
        (guidellm, {"prompt_token_count": spread(256)}, "input tokens a request: A has 128, B has 256"),
        (aiperf, {"aiperf_version": "0.14.0"}, "written by: A has \"vLLM's bench\", B has 'AIPerf 0.14.0'"),
    ],
)
def test_unlike_work_is_the_first_line(
    sides: Callable[..., None], said: Said, tool: Callable[..., dict[str, Any]], more: dict[str, Any], says: str
) -> None:
    """It is not compared, whatever may be skipped, and tokens come before what they follow from."""
    sides(a=[vllm(each) for each in STEADY], b=[tool(each, **more) for each in STEADY])
    status, text = said("a", "b", THROUGHPUT, "--on-missing=skip")
    below = text.split("\n\n")[2]
    assert (status, says in text) == (1, True)
    assert below.startswith("MISSING: another workload: ")
    assert says in below.splitlines()[0] or "tokens" not in says


@pytest.mark.parametrize(
    ("file", "says"),
    [
        (vllm(failed=3), "3 of 1003 requests failed"),
        (vllm(failed=None, completed=990), "10 of 1000 requests failed"),
        (sglang(errors=["", "refused"]), "1 of 1001 requests failed"),
        (guidellm(request_totals={"successful": 99, "errored": 1}), "1 of 100 requests failed"),
        (aiperf(error_request_count={"avg": 2.0}), "2 of 1002 requests failed"),
        (aiperf(was_cancelled=True), "it was cancelled"),
        (vllm(completed=0, num_prompts=0), "no request was answered"),
    ],
)
def test_failed_requests_are_invalid(sides: Callable[..., None], said: Said, file: dict[str, Any], says: str) -> None:
    """As in a load of our own; the file is named."""
    sides(a=[file])
    status, text = said("a/0.json", "a/0.json", THROUGHPUT)
    assert (status, f"INVALID: A: a/0.json: {says}" in text) == (1, True)


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ([vllm(), vllm()], "a/0.json and a/1.json are one measurement"),
        ([vllm(), vllm(0.9, total_output_tokens=1000)], "output tokens a request: a/0.json has 64, a/1.json has 1"),
        ([vllm(), vllm(0.9, model_id="other")], "model: a/0.json has 'tiny', a/1.json has 'other'"),
        ([vllm(), "{"], "a/1.json is no result of vLLM's bench"),
        ([vllm(), result_text()], "a/1.json is no result of vLLM's bench"),
        ([vllm(request_throughput=None)], "it has no number request_throughput"),
        ([vllm(median_ttft_ms="fast")], "median_ttft_ms is 'fast', no number of 0 or more"),
        ([vllm(median_ttft_ms=float("nan"))], "median_ttft_ms is 'nan'"),
        ([vllm(ttfts=[0.1], itls=[], output_lens=[1])], "ttfts, itls and output_lens are of 1, 0, 1 requests"),
        ([vllm(request_rate=None)], "it does not say at which rate"),
        ([sglang(server_info=None)], "--tag=MODEL"),
        ([{**guidellm(), "config": None}], "it does not say what was asked of it"),
        ([guidellm(schema=3)], "it is of schema 3"),
        ([{"benchmarks": [{}], "args": {}}], "it has no schema"),
        ([aiperf(input_config=None)], "input_config names none"),
        ([aiperf(request_latency={"unit": "min", "p50": 1.0})], "the unit of request_latency is 'min'"),
    ],
)
def test_what_cannot_be_used_is_told(
    sides: Callable[..., None], said: Said, files: list[dict[str, Any] | str], says: str
) -> None:
    """A side of more than one measurement of one work, and a file of another version, end with status 2."""
    sides(a=files, b=[vllm()])
    status, text = said("a", "b")
    assert (status, says in text) == (2, True), text


def test_lines_beside_baselines_are_none(repository: BaselineRepository, said: Said) -> None:
    """A folder of baselines may have other files of lines in it."""
    (repository.baselines / "a.jsonl").write_text("{}\n")
    assert said("HEAD:", "baselines")[0] == 0


def test_another_tool_is_not_held_against_our_own(sides: Callable[..., None], said: Said) -> None:
    """A result of this package and a file of another tool were measured in two ways."""
    sides(a=[vllm()], b=[result_text()])
    for arguments in (("a", "b/0.json"), ("b/0.json", "a")):
        status, text = said(*arguments)
        assert (status, "give two results of one tool" in text) == (2, True)


def test_aiperf_writes_more_than_its_result(sides: Callable[..., None], said: Said, tmp_path: Path) -> None:
    """Of a folder of its folders only the results are read."""
    sides(a=[], b=[])
    for side in "ab":
        for number, each in enumerate(STEADY):
            folder = tmp_path / side / str(number)
            folder.mkdir()
            (folder / AIPERF_FILE).write_text(json.dumps(aiperf(each + (side == "b") * 0.001)))
            (folder / "inputs.json").write_text("{}")
            (folder / "profile_export.jsonl").write_text('{"metadata": {}}\n')
    assert said("a", "b", THROUGHPUT)[0] == 0
    status, text = said("a/0/profile_export.jsonl", "b")
    assert (status, "profile_export.jsonl is no result of vLLM's bench" in text) == (2, True)
