"""Which of a server's Prometheus metrics say what: the counters of a server that nothing else is known of."""

from __future__ import annotations

import contextlib
import http.client
import math
import os
import re
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from pytest_gpuserve.errors import ServerFailed, UsageProblem
from pytest_gpuserve.measure.counters import Counters, ServerSetting, StageTime
from pytest_gpuserve.measure.window import COMPUTE, FORMATION, OTHER_COMPUTE, PER_REQUEST, QUEUE, SERVER, TALLIES
from pytest_gpuserve.process.logs import excerpt
from pytest_gpuserve.servers.query import query

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pytest_gpuserve.servers.base import Site


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One line of a metrics page."""

    name: str
    labels: dict[str, str]
    value: float


def scrape(site: Site, path: str = "/metrics") -> str:
    """Fetch a metrics page.

    Raises:
        ServerFailed: There is no answer, or no 200.
    """
    failed = f"the counters at {site.url(path)} could not be read"
    reply = query(site, path, what=failed)
    if reply.status != http.client.OK:
        raise ServerFailed(failed, found=reply.refusal())
    return reply.body.decode(errors="replace")


_HELP: Final = ("name their path and their names: counters=MetricNames(..., path=...)", "or leave out counters=...")

_NAME: Final = re.compile(r'\s*\{?\s*"?([^\s{"]+)')
"""The metric that a line is of: ``name 1``, ``name{label="x"} 1``, ``{"name",label="x"} 1``."""


def read_samples(page: str, wanted: Callable[[str], bool]) -> list[MetricSample]:
    """Read the samples of some metrics; lines of others may hold anything.

    Args:
        page: A metrics page in Prometheus' text format.
        wanted: Which metrics.

    Raises:
        ServerFailed: A line of one of these cannot be read.
    """
    return [sample for line in _lines(page, wanted) for sample in _parsed(line)]


def _lines(page: str, wanted: Callable[[str], bool]) -> Iterator[str]:
    for line in page.split("\n"):
        name = _NAME.match(line)
        if name and not name[1].startswith("#") and wanted(name[1]):
            yield line


def _parsed(line: str) -> list[MetricSample]:
    try:
        return [
            MetricSample(sample.name, dict(sample.labels), sample.value)
            for family in text_string_to_metric_families(line)
            for sample in family.samples
        ]
    except (ValueError, LookupError) as problem:
        # The parser looks at the first letter of a name before it knows that there is one.
        raise ServerFailed(
            "a line of the metrics page is not Prometheus text",
            found=f"{excerpt(line, os.environ)}: {problem!r}",
        ) from None


def is_count(value: float) -> bool:
    """Whether something that is counted or timed can have this value."""
    return math.isfinite(value) and value >= 0


def check_counts(samples: Iterable[MetricSample]) -> None:
    """See that these can be counts or times.

    Raises:
        ServerFailed: One is negative, infinite or not a number.
    """
    for sample in samples:
        if not is_count(sample.value):
            raise ServerFailed(
                f"the metric {sample.name} is not a count or a time",
                found=_listed([f"{sample.name}{sample.labels or ''} {sample.value}"]),
                remedies=_HELP,
            )


_STAGES: Final = (SERVER, QUEUE, FORMATION, COMPUTE)

_LIST_CHARACTERS: Final = 1000


@dataclass(frozen=True)
class MetricNames:
    """Names of metrics as a scrape shows them; each is summed over all its labels that ``labels`` does not fix.

    Of batches either ``items`` and ``batches`` are given, or ``batch_size``, a histogram of batch sizes, whose sum and
    count they then are; a server that counts none has ``requests`` or ``stages`` alone.

    Args:
        items: Counter of executed items.
        batches: Counter of executions.
        batch_size: Histogram of batch sizes.
        requests: Counter of requests that were answered well; without what only asks for health or metrics.
        pending: Gauge of waiting requests.
        stages: Times by the names of ``measure/window.py`` (``queue``, ``compute`` ...): each a histogram or summary in
            seconds.
        tallies: What else is counted, by the names of ``measure/window.py`` (``prompt_tokens`` ...): each a counter, or
            several whose sum it is; not known of a server that does not show them all.
        labels: Only samples with these labels count, such as ``{"model": "resnet"}``.
        path: Where the metrics are.
        models: Where models are listed as by OpenAI's API, such as ``/v1/models``: their names and how many tokens one
            of their requests may have are settings. Empty for nowhere.

    Raises:
        UsageProblem: They tell nothing, or items without batches; or one is no name.
    """

    items: str = ""
    batches: str = ""
    batch_size: str = ""
    requests: str = ""
    pending: str = ""
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
                    f"MetricNames(stages=...): there is no stage {stage!r}",
                    remedies=[f"one of {', '.join(_STAGES)}, {OTHER_COMPUTE}NAME, {PER_REQUEST}NAME"],
                )
        for tally in self.tallies:
            if tally not in TALLIES:
                raise UsageProblem(
                    f"MetricNames(tallies=...): there is no tally {tally!r}", remedies=[f"one of {', '.join(TALLIES)}"]
                )

    def _check_texts(self) -> None:
        single = (self.items, self.batches, self.batch_size, self.requests, self.pending, self.path, self.models)
        pairs = [*self.stages.items(), *self.labels.items()]
        listed = [text for names in self.tallies.values() for text in names]
        for text in (*single, *(text for pair in pairs for text in pair), *listed):
            if not isinstance(text, str):
                raise UsageProblem(f"MetricNames takes names and labels as text, not {text!r}")

    def fetch(self, site: Site) -> Counters:
        """Scrape a server and make counters of that.

        Raises:
            ServerFailed: They cannot be read, or as for `read`.
        """
        try:
            page = scrape(site, self.path)
        except ServerFailed as problem:
            problem.remedies = (*problem.remedies, *_HELP)
            raise
        return self.read(page)

    def read(self, page: str) -> Counters:
        """Make counters of a metrics page; lines of metrics that are not named may hold anything.

        Raises:
            ServerFailed: A metric is not there, although it is counted from the start, or is not a count.
        """
        items, batches = (
            (f"{self.batch_size}_sum", f"{self.batch_size}_count") if self.batch_size else (self.items, self.batches)
        )
        sizes = f"{self.batch_size}_bucket"
        times = [f"{name}_{part}" for name in self.stages.values() for part in ("sum", "count")]
        listed = [name for names in self.tallies.values() for name in names]
        named = {
            spelling
            for name in (items, batches, self.requests, self.pending, *times, *listed)
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
            pending=ours.count(self.pending) if self.pending else None,
            counts_batches=bool(items),
            tallies={
                tally: sum(map(ours.count, names))
                for tally, names in sorted(self.tallies.items())
                if all(map(ours.of, names))
            },
        )

    def read_models(self, site: Site) -> dict[str, ServerSetting]:
        """Read which models a server has, as settings; empty where it does not list them, or not to everybody.

        Raises:
            ServerFailed: It does not answer.
        """
        if not self.models:
            return {}
        reply = query(site, self.models, what=f"the list of models at {site.url(self.models)} could not be read")
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
    """A counter may be shown with or without its suffix, by the version of the library that shows it."""
    return name, f"{name}_total", name.removesuffix("_total")


@dataclass(frozen=True)
class _Page:
    """The samples of a page that names and labels choose."""

    names: MetricNames
    text: str
    samples: list[MetricSample]

    def of(self, name: str) -> list[MetricSample]:
        """A metric's samples; none where it is not there."""
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
                f"the metric {name} counts, and yet is {value}",
                looked=[self.names.path],
                remedies=["name a counter, not a time or an average, in counters=MetricNames(...)"],
            )
        return round(value)

    def _absent(self, name: str) -> ServerFailed:
        labels = dict(self.names.labels)
        shown: list[MetricSample] = []
        for line in _lines(self.text, lambda _: True):
            with contextlib.suppress(ServerFailed):
                shown += _parsed(line)
        known = sorted({each.name for each in shown if labels.items() <= each.labels.items()})
        nothing = "no metric with these labels" if shown else f"no metrics: {excerpt(self.text, os.environ)}"
        return ServerFailed(
            f"the server has no metric {name}" + (f" with {labels}" if labels else ""),
            found=f"{len(known)} others: {_listed(known)}" if known else nothing,
            looked=[self.names.path],
            remedies=["correct the names or labels in counters=MetricNames(...)"],
        )


class _Meta(msgspec.Struct):
    n_ctx: int | None = None


class _Model(msgspec.Struct):
    """A model as it is listed; ``max_model_len`` by vLLM and SGLang, ``meta`` by llama.cpp."""

    id: str
    max_model_len: int | None = None
    meta: _Meta | None = None

    @property
    def shown(self) -> str:
        """Its name; of a file's path only the file, for a checkout may move."""
        return PurePath(self.id).name if self.id.startswith("/") else self.id

    @property
    def context(self) -> int | None:
        """How many tokens a request may have, with its answer; None where that is not told."""
        return self.max_model_len if self.meta is None else self.meta.n_ctx


class _Models(msgspec.Struct):
    data: list[_Model]


_read_models: Final = msgspec.json.Decoder(_Models).decode


def _listed(words: Iterable[str]) -> str:
    return excerpt(", ".join(words), os.environ, most=_LIST_CHARACTERS)


def bucket_counts(buckets: Iterable[MetricSample]) -> dict[str, int]:
    """Turn Prometheus' cumulative buckets into counts of their own by upper edge, empty ones left out.

    Raises:
        ServerFailed: A bucket has no edge, or its edge or its count is not one.
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
