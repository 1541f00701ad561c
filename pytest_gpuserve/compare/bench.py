"""Result files of other tools: vLLM's bench, SGLang's bench_serving, GuideLLM and AIPerf.

A file gives a run for each load that it holds. Its metrics are named by their definition, not by what the tool calls
them. GuideLLM and AIPerf call (end - first token) / (tokens - 1) of a request its inter-token latency: that is the
``tpot`` of vLLM, SGLang and this package. AIPerf calls the gaps between chunks inter-chunk latency: that is ``itl``.
GuideLLM keeps no gaps.

The formats are those of vLLM's ``benchmarks/serve.py`` (0.6 to 0.32) and ``benchmark_serving.py``, SGLang's
``bench_serving.py`` (0.4 to 0.5.23), GuideLLM's report schemas 1 and 2 (0.4 to 0.8), and AIPerf's
``profile_export_aiperf.json`` (0.1 to 0.13).
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.errors import UsageProblem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

VLLM: Final = "vLLM's bench"
SGLANG: Final = "SGLang's bench_serving"
GUIDELLM: Final = "GuideLLM"
AIPERF: Final = "AIPerf"
AIPERF_FILE: Final = "profile_export_aiperf.json"
"""The one of AIPerf's several files that is read."""

PERCENTS: Final = (50, 90, 95, 99)
INPUT_TOKENS: Final = "input tokens a request"
OUTPUT_TOKENS: Final = "output tokens a request"

_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}
_RETOKENIZED: Final = "whether tokens are as the server counted them: AIPerf counts with a tokenizer of its own"
_UNKNOWN_FAILURES: Final = "whether requests failed (SGLang tells it with --output-details)"

_STREAM: Final = ("ttft", "itl", "tpot")
_RAMP: Final = ("ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps")
_LENGTHS: Final = ("sharegpt_output_len", "random_input_len", "random_output_len", "random_range_ratio")

_GUIDELLM_SCHEMAS: Final = (1, 2)
_NO_WORK: Final = frozenset(
    {"target", "url", "urls", "api_key", "headers", "outputs", "output_dir", "output_path", "metrics"}
)
"""Arguments that are no part of the work: where the server is, who asks, where the file goes, and what is in it."""

_AIPERF_WORK: Final = ("endpoint", "models", "loadgen", "input", "datasets", "phases", "tokenizer", "slos")
_LOAD: Final = frozenset({"concurrency", "max_concurrency", "rate", "request_rate", "streams", "type_"})


@dataclass(frozen=True)
class BenchRun:
    """A load as another tool measured it.

    Args:
        load: Rate and concurrency, by which loads of one side are told apart.
        work: What another run must have in common with it, the load included.
        tokens: Mean number of tokens of a request, by ``INPUT_TOKENS`` and ``OUTPUT_TOKENS``, as far as known.
        values: By the names of metrics, in their units.
        requests: Answered requests.
        gaps: Gaps between tokens, about.
        problems: Why nothing may be concluded from it.
        untold: What such a file does not tell beyond what no such file does.
    """

    load: str
    work: Mapping[str, str]
    tokens: Mapping[str, float]
    values: Mapping[str, float]
    requests: int
    gaps: int
    problems: tuple[str, ...] = ()
    untold: tuple[str, ...] = ()


def read_bench(name: str, data: bytes) -> tuple[BenchRun, ...]:
    """Read a file of one of the tools.

    Args:
        name: What people call the file.
        data: What is in it: an object of JSON, or one a line.

    Returns:
        Its runs in their order; none where no such tool wrote it.

    Raises:
        UsageProblem: A tool wrote it, and it lacks a field, or a field of it cannot be used.
    """
    try:
        return tuple(run for plain in _objects(data) for run in _runs(_Fields(name, _tool_of(plain), plain)))
    except RecursionError:
        raise UsageProblem(f"{name} cannot be read", found="objects in objects, a thousand deep") from None


def _runs(fields: _Fields) -> Iterator[BenchRun]:
    if fields.tool in {VLLM, SGLANG}:
        yield _served(fields)
    elif fields.tool == GUIDELLM:
        yield from _guidellm(fields)
    elif fields.tool == AIPERF:
        yield _aiperf(fields)


def _objects(data: bytes) -> list[Mapping[str, object]]:
    """The object in a file, or those on its lines; none where it has anything else."""
    try:
        # SGLang writes a rate without bound as Infinity, which only Python's parser reads.
        try:
            found = [json.loads(data)]
        except ValueError:
            found = [json.loads(line) for line in data.splitlines() if line.strip()]
    except (ValueError, RecursionError):
        return []
    return found if all(isinstance(each, dict) for each in found) else []


def _tool_of(plain: Mapping[str, object]) -> str:
    if isinstance(plain.get("benchmarks"), list) and {"metadata", "args", "config"} & plain.keys():
        return GUIDELLM
    if "aiperf_version" in plain or {"input_config", "request_latency"} <= plain.keys():
        return AIPERF
    if {"request_throughput", "total_input_tokens"} <= plain.keys():
        return VLLM if "model_id" in plain else SGLANG
    return ""


class _Fields:
    """What is in a file, by paths such as ``metrics.request_latency``."""

    def __init__(self, name: str, tool: str, plain: object) -> None:
        self._name = name
        self.tool = tool
        self._plain = plain

    def __contains__(self, path: str) -> bool:
        return self.find(path) is not None

    def within(self, plain: object) -> _Fields:
        return _Fields(self._name, self.tool, plain)

    def refuse(self, found: str, *remedies: str) -> UsageProblem:
        return UsageProblem(f"{self._name}, by {self.tool}, cannot be compared", found=found, remedies=remedies)

    def find(self, path: str) -> object:
        found = self._plain
        for part in path.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        return found

    def number(self, path: str) -> float | None:
        """A number that is not negative; None where there is none."""
        return None if path not in self else self._checked(path, self.find(path))

    def needed(self, path: str) -> float:
        found = self.number(path)
        if found is None:
            raise self.refuse(f"it has no number {path}: it is another file of the tool, or of another version")
        return found

    def count(self, path: str) -> int:
        return int(self.needed(path))

    def numbers(self, path: str, plain: object) -> list[float]:
        if not isinstance(plain, list):
            raise self.refuse(f"{path} is no list of numbers")
        return [self._checked(path, each) for each in plain]

    def text(self, *paths: str) -> str:
        """What stands at the first of these paths that has a text; empty where none has."""
        found = (self.find(path) for path in paths)
        return next((each for each in found if isinstance(each, str) and each), "")

    def _checked(self, path: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e15:
            raise self.refuse(f"{path} is {str(value)[:40]!r}, no number of 0 or more")
        return float(value)


# -- vLLM and SGLang, whose bench began as a copy of vLLM's


def _served(fields: _Fields) -> BenchRun:
    requests = fields.count("completed")
    if fields.tool == VLLM:
        model = fields.text("model_id")
        named = ("tokenizer_id", "backend", "num_prompts", "burstiness", *_RAMP)
        asked, failed = fields.needed("num_prompts"), fields.number("failed")
        failed = max(0.0, asked - requests) if failed is None else failed
    else:
        # Only newer servers tell their model.
        model = fields.text("server_info.model_path", "tag")
        named = ("backend", "dataset_name", "completed", *_LENGTHS)
        failed = float(sum(map(bool, _listed(fields, "errors"))))
    if not model or "request_rate" not in fields:
        raise fields.refuse(
            f"it does not say {'at which rate' if model else 'which model was served'}",
            *([] if model else ["name the model to SGLang's bench_serving: --tag=MODEL"]),
        )
    load = {name: str(fields.find(name)) for name in ("request_rate", "max_concurrency")}
    values: dict[str, float | None] = {
        "throughput": fields.needed("request_throughput"),
        "output_tokens_per_second": fields.number("output_throughput"),
    }
    detailed = _detailed(fields) if "ttfts" in fields else {}
    for kind, word in (("latency", "e2el" if fields.tool == VLLM else "e2e_latency"), *((x, x) for x in _STREAM)):
        for percent in PERCENTS:
            told = fields.number(f"{'median' if percent == 50 else f'p{percent}'}_{word}_ms")
            own = detailed.get(kind)
            values[f"{kind}.p{percent}"] = told * 1e-3 if told is not None else _quantile(own, percent) if own else None
    outputs = fields.number("total_output_tokens")
    return BenchRun(
        load=_words(load),
        work={
            "written by": fields.tool,
            "model": model,
            **load,
            **{name: str(fields.find(name)) for name in named if name in fields},
        },
        tokens=_a_request({INPUT_TOKENS: fields.needed("total_input_tokens"), OUTPUT_TOKENS: outputs}, requests),
        values=_known(values),
        requests=requests,
        gaps=max(0, int(outputs or 0) - requests),
        problems=_problems(requests, failed),
        untold=(_UNKNOWN_FAILURES,) if fields.tool == SGLANG and "errors" not in fields else (),
    )


def _listed(fields: _Fields, path: str) -> list[object]:
    found = fields.find(path)
    return found if isinstance(found, list) else []


def _detailed(fields: _Fields) -> dict[str, list[float]]:
    """Latencies, first tokens, gaps and times a token of each answered request, in seconds."""
    firsts = fields.numbers("ttfts", fields.find("ttfts"))
    gaps = [fields.numbers("itls", each) for each in _listed(fields, "itls")]
    lengths = fields.numbers("output_lens", fields.find("output_lens"))
    if not len(firsts) == len(gaps) == len(lengths):
        raise fields.refuse(f"ttfts, itls and output_lens are of {len(firsts)}, {len(gaps)}, {len(lengths)} requests")
    # A failed request has no output. The end of an answer is its last chunk, for both tools.
    answered = [(first, each, length) for first, each, length in zip(firsts, gaps, lengths, strict=True) if length > 0]
    return {
        "latency": [first + sum(each) for first, each, _ in answered],
        "ttft": [first for first, _, _ in answered],
        "itl": [gap for _, each, _ in answered for gap in each],
        "tpot": [sum(each) / (length - 1) for _, each, length in answered if length > 1],
    }


def _quantile(values: Iterable[float], percent: int) -> float:
    """Linear between neighbours, as ``numpy.percentile`` has it, by which both tools compute the others."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    low, high = next(pairwise(ordered[below : below + 2]), (ordered[below],) * 2)
    return low + (high - low) * (place - below)


# -- GuideLLM


def _guidellm(fields: _Fields) -> Iterator[BenchRun]:
    schema = fields.number("metadata.version")
    if schema not in _GUIDELLM_SCHEMAS:
        raise fields.refuse(
            "it has no schema" if schema is None else f"it is of schema {schema:g}",
            f"measure with a GuideLLM that writes schema {' or '.join(map(str, _GUIDELLM_SCHEMAS))}: 0.4 to 0.8",
        )
    asked = dict(_flat(fields.find("args" if schema == 1 else "config.spec")))
    if not asked:
        raise fields.refuse("it does not say what was asked of it")
    version = fields.text("metadata.guidellm_version")
    for benchmark in _listed(fields, "benchmarks"):
        each = fields.within(benchmark)
        model = each.text("config.backend.model") or asked.get("model", "")
        if not model:
            raise fields.refuse("it does not say which model was served", "name it to GuideLLM: --model=MODEL")
        strategy = dict(_flat(each.find("config.strategy")))
        strategy.pop("worker_count", None)
        requests = each.count("metrics.request_totals.successful")
        tokens = {
            INPUT_TOKENS: each.needed("metrics.prompt_token_count.successful.mean"),
            OUTPUT_TOKENS: each.number("metrics.output_token_count.successful.mean"),
        }
        yield BenchRun(
            load=_words(strategy),
            work={
                **asked,
                "written by": f"{GUIDELLM} {version}",
                "model": model,
                **{f"strategy.{name}": value for name, value in strategy.items()},
            },
            tokens=_known(tokens),
            values=_known(
                {
                    "throughput": each.needed("metrics.requests_per_second.successful.mean"),
                    "output_tokens_per_second": each.number("metrics.output_tokens_per_second.successful.mean"),
                    **_guidellm_quantiles(each, "latency", "request_latency", 1.0),
                    **_guidellm_quantiles(each, "ttft", "time_to_first_token_ms", 1e-3),
                    **_guidellm_quantiles(each, "tpot", "inter_token_latency_ms", 1e-3),
                }
            ),
            requests=requests,
            gaps=0,
            problems=_problems(requests, each.number("metrics.request_totals.errored") or 0.0),
        )


def _guidellm_quantiles(fields: _Fields, kind: str, word: str, unit: float) -> dict[str, float | None]:
    found = {at: fields.number(f"metrics.{word}.successful.percentiles.p{at}") for at in PERCENTS}
    return {f"{kind}.p{at}": None if value is None else value * unit for at, value in found.items()}


# -- AIPerf


def _aiperf(fields: _Fields) -> BenchRun:
    sections = {name: fields.find(f"input_config.{name}") for name in _AIPERF_WORK}
    work = dict(_flat(sections))
    model = work.get("endpoint.model_names.0") or work.get("models.items.0.name")
    if not model:
        raise fields.refuse("it does not say which model was served: input_config names none")
    requests = fields.count("request_count.avg")
    # Older versions do not count the gaps.
    gaps = fields.number("inter_chunk_latency.count") or (fields.number("total_osl.avg") or 0.0) - requests
    cancelled = ("it was cancelled",) if fields.find("was_cancelled") is True else ()
    tokens = {
        INPUT_TOKENS: fields.needed("input_sequence_length.avg"),
        OUTPUT_TOKENS: fields.number("output_sequence_length.avg"),
    }
    return BenchRun(
        load=_words(work),
        work={**work, "written by": f"{AIPERF} {fields.text('aiperf_version')}".strip(), "model": model},
        tokens=_known(tokens),
        values=_known(
            {
                "throughput": fields.needed("request_throughput.avg"),
                "output_tokens_per_second": fields.number("output_token_throughput.avg"),
                "goodput": fields.number("goodput.avg"),
                **_aiperf_quantiles(fields, "latency", "request_latency"),
                **_aiperf_quantiles(fields, "ttft", "time_to_first_token"),
                **_aiperf_quantiles(fields, "itl", "inter_chunk_latency"),
                **_aiperf_quantiles(fields, "tpot", "inter_token_latency"),
            }
        ),
        requests=requests,
        gaps=max(0, int(gaps)),
        problems=(*_problems(requests, fields.number("error_request_count.avg") or 0.0), *cancelled),
        untold=(_RETOKENIZED,),
    )


def _aiperf_quantiles(fields: _Fields, kind: str, word: str) -> dict[str, float | None]:
    if word not in fields:
        return {}
    unit = _SECONDS.get(fields.text(f"{word}.unit"))
    if unit is None:
        raise fields.refuse(f"the unit of {word} is {fields.text(f'{word}.unit')!r}, none of {', '.join(_SECONDS)}")
    found = {at: fields.number(f"{word}.p{at}") for at in PERCENTS}
    return {f"{kind}.p{at}": None if value is None else value * unit for at, value in found.items()}


# -- all


def _flat(plain: object, path: str = "") -> Iterator[tuple[str, str]]:
    """The values in nested objects and lists, by their paths; what is null is left out."""
    if isinstance(plain, (dict, list)):
        for name, value in plain.items() if isinstance(plain, dict) else enumerate(plain):
            if name not in _NO_WORK:
                yield from _flat(value, f"{path}.{name}" if path else str(name))
    elif plain is not None:
        yield path, str(plain)


def _words(work: Mapping[str, str]) -> str:
    """The load of a work: ``request_rate=inf max_concurrency=16``."""
    named = [(name.rpartition(".")[2], value) for name, value in work.items()]
    return " ".join(f"{name}={value}" for name, value in named if name in _LOAD).replace("type_=", "") or "the load"


def _known(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}


def _a_request(totals: Mapping[str, float | None], requests: int) -> dict[str, float]:
    return {name: total / requests for name, total in _known(totals).items()} if requests else {}


def _problems(requests: int, failed: float) -> tuple[str, ...]:
    if not requests:
        return ("no request was answered",)
    return (f"{failed:.0f} of {requests + failed:.0f} requests failed",) if failed else ()
