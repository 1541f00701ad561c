"""Counters of any server by the names of its Prometheus metrics, and the names of known engines."""

from __future__ import annotations

import http.client
import math
import os
import re
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Final, Literal

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from pytest_gpuserve.errors import ServerFailed, UsageProblem
from pytest_gpuserve.measure.counters import Counters, ServerSetting, StageTime
from pytest_gpuserve.measure.window import (
    CACHED_TOKENS,
    COMPUTE,
    FORMATION,
    OTHER_COMPUTE,
    PER_REQUEST,
    PREEMPTIONS,
    PROMPT_TOKENS,
    QUEUE,
    SERVER,
    TALLIES,
)
from pytest_gpuserve.process.logs import excerpt
from pytest_gpuserve.process.ready import Ask
from pytest_gpuserve.servers.base import fetch, query

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from prometheus_client.samples import Sample

    from pytest_gpuserve.servers.base import Site


def scrape(site: Site, path: str = "/metrics") -> str:
    """Fetch a metrics page.

    Raises:
        ServerFailed: The server does not answer, or not with 200.
    """
    return fetch(site, Ask("GET", path), what=f"the counters at {site.url(path)} could not be read").decode(
        errors="replace"
    )


_HELP: Final = ("name their path and their names: counters=MetricNames(..., path=...)", "or leave out counters=...")

_NAME: Final = re.compile(r'\s*\{?\s*"?([^\s{"]+)')
"""Name of the metric of a line: ``name 1``, ``name{label="x"} 1``, ``{"name",label="x"} 1``."""

_METRIC: Final = re.compile(r'^\s*\{?\s*"?([a-zA-Z_:][\w:.]*)(?![^\s{"])', re.MULTILINE)
"""Likewise, of every line of a page, if it is a valid name."""


def read_samples(page: str, wanted: Callable[[str], bool]) -> list[Sample]:
    """Read the samples of some metrics; other lines may be invalid.

    Args:
        page: A metrics page in Prometheus' text format.
        wanted: Names of the metrics.

    Raises:
        ServerFailed: A line of these metrics is invalid.
    """
    lines = ((line, _NAME.match(line)) for line in page.split("\n"))
    return [sample for line, name in lines if name and wanted(name[1]) for sample in _parsed(line)]


def _parsed(line: str) -> list[Sample]:
    try:
        return [sample for family in text_string_to_metric_families(line) for sample in family.samples]
    except (ValueError, LookupError) as problem:
        # The parser reads the first letter of a name without a check that one exists.
        raise ServerFailed(
            "a line of the metrics page is not Prometheus text",
            found=f"{excerpt(line, os.environ)}: {problem!r}",
        ) from None


def check_counts(samples: Iterable[Sample]) -> None:
    """Check that these can be counts or times.

    Raises:
        ServerFailed: One is negative, infinite or not a number.
    """
    for sample in samples:
        if not (math.isfinite(sample.value) and sample.value >= 0):
            raise ServerFailed(
                f"the metric {sample.name} is not a count or a time",
                found=_listed([f"{sample.name}{sample.labels or ''} {sample.value}"]),
                remedies=_HELP,
            )


_STAGES: Final = (SERVER, QUEUE, FORMATION, COMPUTE)

_LIST_CHARACTERS: Final = 1000


@dataclass(frozen=True)
class MetricNames:
    """Names of metrics on a metrics page; each is summed over all labels that ``labels`` does not fix.

    Give either ``items`` and ``batches``, or ``batch_size``, a histogram of batch sizes whose sum and count replace
    them. A server that does not count batches has only ``requests`` or ``stages``.

    Args:
        items: Counter of executed items.
        batches: Counter of executions.
        batch_size: Histogram of batch sizes.
        requests: Counter of requests that were answered well, without requests for health or metrics.
        stages: Times by the names of ``measure/window.py`` (``queue``, ``compute`` ...): each a histogram or summary in
            seconds.
        tallies: Further counts by the names of ``measure/window.py`` (``prompt_tokens`` ...): each a counter, or
            several that are added. Unknown unless the server shows all of them.
        labels: Labels of the counted samples, such as ``{"model": "resnet"}``.
        path: Path of the metrics page.
        models: Path of a list of models as in OpenAI's API, such as ``/v1/models``; may be empty. Names and context
            lengths of the models become settings.

    Raises:
        UsageProblem: The names give no counter, or items without batches; or a value is not a name.
    """

    items: str = ""
    batches: str = ""
    batch_size: str = ""
    requests: str = ""
    stages: Mapping[str, str] = field(default_factory=dict)
    tallies: Mapping[str, Sequence[str]] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    path: str = "/metrics"
    models: str = ""

    def __post_init__(self) -> None:
        self._check_texts()
        counts_items = bool(self.items or self.batches)
        if (
            bool(self.items) != bool(self.batches)
            or (counts_items and self.batch_size)
            or not (counts_items or self.batch_size or self.requests or self.stages)
        ):
            raise UsageProblem(
                "MetricNames needs either items= and batches=, or batch_size=",
                remedies=['MetricNames(items="nv_inference_count", batches="nv_inference_exec_count")'],
            )
        for name, path, right in (("path", self.path, "/metrics"), ("models", self.models or "/", "/v1/models")):
            if not path.startswith("/"):
                raise UsageProblem(
                    f"MetricNames({name}=...) begins with a slash, not {path!r}", remedies=[f'{name}="{right}"']
                )
        for stage in self.stages:
            if stage not in _STAGES and not stage.startswith((OTHER_COMPUTE, PER_REQUEST)):
                raise UsageProblem(
                    f"MetricNames(stages=...): the stage {stage!r} does not exist",
                    remedies=[f"one of {', '.join(_STAGES)}, {OTHER_COMPUTE}NAME, {PER_REQUEST}NAME"],
                )
        for tally in self.tallies:
            if tally not in TALLIES:
                raise UsageProblem(
                    f"MetricNames(tallies=...): the tally {tally!r} does not exist",
                    remedies=[f"one of {', '.join(TALLIES)}"],
                )

    def _check_texts(self) -> None:
        single = (self.items, self.batches, self.batch_size, self.requests, self.path, self.models)
        pairs = [*self.stages.items(), *self.labels.items()]
        listed = [text for names in self.tallies.values() for text in names]
        for text in (*single, *(text for pair in pairs for text in pair), *listed):
            if not isinstance(text, str):
                raise UsageProblem(f"MetricNames takes names and labels as text, not {text!r}")

    def fetch(self, site: Site) -> Counters:
        """Read a server's counters from its metrics page.

        Raises:
            ServerFailed: The page cannot be read, or `read` failed.
        """
        try:
            page = scrape(site, self.path)
        except ServerFailed as problem:
            problem.remedies = (*problem.remedies, *_HELP)
            raise
        return self.read(page)

    def read(self, page: str) -> Counters:
        """Read counters from a metrics page; lines of other metrics may be invalid.

        Raises:
            ServerFailed: A metric that is counted from the start is absent, or a value is not a count.
        """
        items, batches = (
            (f"{self.batch_size}_sum", f"{self.batch_size}_count") if self.batch_size else (self.items, self.batches)
        )
        sizes = f"{self.batch_size}_bucket"
        times = [f"{name}_{part}" for name in self.stages.values() for part in ("sum", "count")]
        listed = [name for names in self.tallies.values() for name in names]
        named = {
            spelling
            for name in (items, batches, self.requests, *times, *listed)
            if name
            for spelling in _spellings(name)
        }
        samples = read_samples(page, lambda name: name in named or name == sizes)
        ours = _Page(self, page, [sample for sample in samples if self.labels.items() <= sample.labels.items()])
        return Counters(
            items=ours.count(items) if items else 0,
            batches=ours.count(batches) if batches else 0,
            batch_sizes=bucket_counts(sample for sample in ours.samples if sample.name == sizes),
            stages={
                stage: StageTime(ours.sum(f"{name}_sum"), ours.count(f"{name}_count"))
                for stage, name in sorted(self.stages.items())
            },
            requests=ours.count(self.requests) if self.requests else None,
            counts_batches=bool(items),
            tallies={
                tally: sum(map(ours.count, names))
                for tally, names in sorted(self.tallies.items())
                if all(map(ours.of, names))
            },
        )

    def read_models(self, site: Site) -> dict[str, ServerSetting]:
        """Read a server's models as settings; empty if it does not list them, or not without a key.

        Raises:
            ServerFailed: The server does not answer.
        """
        if not self.models:
            return {}
        what = f"the list of models at {site.url(self.models)} could not be read"
        reply = query(site, Ask("GET", self.models), what=what)
        try:
            models = _read_models(reply.body).data if reply.status == http.client.OK else []
        except msgspec.DecodeError:
            models = []
        found = {
            "model": [model.shown for model in models],
            "context": [str(tokens) for model in models if (tokens := model.context) is not None],
        }
        return {name: ServerSetting(", ".join(each)) for name, each in found.items() if each}


def _spellings(name: str) -> tuple[str, ...]:
    """Names of a counter with and without its suffix, because libraries differ in that."""
    return name, f"{name}_total", name.removesuffix("_total")


@dataclass(frozen=True)
class _Page:
    """Samples of a page that are selected by names and labels."""

    names: MetricNames
    text: str
    samples: list[Sample]

    def of(self, name: str) -> list[Sample]:
        """A metric's samples; empty if it is absent."""
        found = ([each for each in self.samples if each.name == written] for written in _spellings(name))
        return next(filter(None, found), [])

    def sum(self, name: str) -> float:
        samples = self.of(name)
        if not samples:
            raise self._absent(name)
        check_counts(samples)
        return math.fsum(sample.value for sample in samples)

    def count(self, name: str) -> int:
        value = self.sum(name)
        if value != round(value):
            raise ServerFailed(
                f"the metric {name} has to be a count, but is {value}",
                looked=[self.names.path],
                remedies=["name a counter, not a time or an average, in counters=MetricNames(...)"],
            )
        return round(value)

    def _absent(self, name: str) -> ServerFailed:
        labels = dict(self.names.labels)
        known = sorted(set(_METRIC.findall(self.text)))
        found = f"{len(known)} metrics: {_listed(known)}" if known else f"no metric: {excerpt(self.text, os.environ)}"
        return ServerFailed(
            f"the server has no metric {name}" + (f" with {labels}" if labels else ""),
            found=found,
            looked=[self.names.path],
            remedies=["correct the names or labels in counters=MetricNames(...)"],
        )


class _Meta(msgspec.Struct):
    n_ctx: int | None = None


class _Model(msgspec.Struct):
    """A listed model; ``max_model_len`` by vLLM and SGLang, ``meta`` by llama.cpp."""

    id: str
    max_model_len: int | None = None
    meta: _Meta | None = None

    @property
    def shown(self) -> str:
        """Its name; of a file's path only the file, because a checkout may move."""
        return PurePath(self.id).name if self.id.startswith("/") else self.id

    @property
    def context(self) -> int | None:
        """Most tokens of a request with its answer; None if not reported."""
        return self.max_model_len if self.meta is None else self.meta.n_ctx


class _Models(msgspec.Struct):
    data: list[_Model]


_read_models: Final = msgspec.json.Decoder(_Models).decode


def _listed(words: Iterable[str]) -> str:
    return excerpt(", ".join(words), os.environ, most=_LIST_CHARACTERS)


def bucket_counts(buckets: Iterable[Sample]) -> dict[str, int]:
    """Turn Prometheus' cumulative buckets into separate counts by upper edge, without empty ones.

    Raises:
        ServerFailed: A bucket has no edge, or its edge or count is not a number.
    """
    cumulative: dict[float, int] = {}
    for sample in buckets:
        try:
            edge = float(sample.labels["le"])
        except (KeyError, ValueError):
            raise ServerFailed(
                "a histogram of batch sizes makes no sense", found=f"a bucket labelled {sample.labels}"
            ) from None
        check_counts([sample])
        cumulative[edge] = cumulative.get(edge, 0) + round(sample.value)
    sizes = {}
    below = 0
    for edge in sorted(cumulative):
        if cumulative[edge] > below:
            sizes[f"{edge:g}"] = cumulative[edge] - below
        below = cumulative[edge]
    return sizes


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
"""Names of the metrics of language models' servers: ``counters="vllm"`` instead of each name.

A batching ratio is tokens an engine step, of prompts and answers (vLLM), or tokens of answers an execution (llama.cpp).
TGI counts requests of a prefill. SGLang and TensorRT-LLM do not count executions. vLLM, SGLang and llama.cpp report
prompt tokens from their prefix caches; the first two also report preemptions.
"""


def metric_names(fixture: str, counters: object) -> MetricNames | None:
    """Check a user's names of metrics, or look up those of an engine.

    Raises:
        UsageProblem: The value is neither.
    """
    if counters is None or isinstance(counters, MetricNames):
        return counters
    if isinstance(counters, str) and counters in ENGINES:
        return ENGINES[counters]
    raise UsageProblem(
        f"{fixture}(counters=...) takes MetricNames, or the name of an engine",
        found=repr(counters),
        remedies=[
            f"one of {', '.join(map(repr, ENGINES))}",
            "from pytest_gpuserve.servers.metric_names import MetricNames",
            'counters=MetricNames(items="...", batches="...")',
        ],
    )
