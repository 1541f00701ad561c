"""Which of a server's Prometheus metrics say what: the counters of a server that nothing else is known of."""

from __future__ import annotations

import contextlib
import http.client
import math
import os
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from pytest_gpuserve.errors import ServerFailed, UsageProblem
from pytest_gpuserve.measure.counters import Counters, ServerSetting, StageTime
from pytest_gpuserve.measure.window import COMPUTE, FORMATION, OTHER_COMPUTE, PER_REQUEST, QUEUE, SERVER, TALLIES
from pytest_gpuserve.process.logs import excerpt
from pytest_gpuserve.servers.base import HOST

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable, Mapping, Sequence

TIMEOUT_SECONDS = 2.0

_FREE = frozenset({"gauge", "summary"})
"""Types of metrics that may have any value: below zero, or none as the quantiles of a summary that saw nothing."""


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One line of a scrape."""

    name: str
    labels: dict[str, str]
    value: float


def scrape(
    port: int, path: str = "/metrics", *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> list[MetricSample]:
    """Fetch and parse a metrics page.

    Args:
        port: Where it is.
        path: What it is called there.
        host: Whose it is.
        tls: What checks the certificate of a server that speaks TLS.

    Raises:
        ServerFailed: There is no answer, no 200, or no Prometheus text; or a count is negative or not a number.
    """
    where = f"http{'s' if tls else ''}://{host}:{port}{path}"
    try:
        status, body = _get(port, path, host, tls)
    except (OSError, http.client.HTTPException) as problem:
        raise ServerFailed(f"the counters at {where} could not be read", found=str(problem) or repr(problem)) from None
    if status != http.client.OK:
        raise ServerFailed(f"the counters at {where} could not be read", found=f"status {status}")
    try:
        return read_samples(body.decode())
    except ValueError as problem:
        raise ServerFailed(
            f"the counters at {where} are not Prometheus text", found=str(problem) or repr(problem)
        ) from None


def _get(port: int, path: str, host: str, tls: ssl.SSLContext | None) -> tuple[int, bytes]:
    connection = (
        http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)
        if tls is None
        else http.client.HTTPSConnection(host, port, timeout=TIMEOUT_SECONDS, context=tls)
    )
    with contextlib.closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()


def read_samples(text: str) -> list[MetricSample]:
    """Parse a metrics page.

    Raises:
        ValueError: It is no Prometheus text; or a count is negative or not a number.
    """
    try:
        families = list(text_string_to_metric_families(text))
    except LookupError as problem:
        # The parser looks at the first letter of a name before it knows that there is one.
        raise ValueError(f"a name is missing ({problem})") from None
    for family in families:
        for sample in family.samples:
            if family.type not in _FREE and not is_count(sample.value):
                raise ValueError(f"{sample.name}{sample.labels} is {sample.value}")
    return [
        MetricSample(sample.name, dict(sample.labels), sample.value) for family in families for sample in family.samples
    ]


def is_count(value: float) -> bool:
    """Whether something that is counted or timed can have this value."""
    return math.isfinite(value) and value >= 0


_STAGES: Final = (SERVER, QUEUE, FORMATION, COMPUTE)

_LIST_CHARACTERS: Final = 1000

_HELP: Final = ("say where and what they are: counters=MetricNames(..., path=...)", "or leave out counters=...")


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

    def fetch(self, port: int, *, host: str = HOST, tls: ssl.SSLContext | None = None) -> Counters:
        """Scrape a server and make counters of that.

        Args:
            port: Where its metrics are.
            host: Whose they are.
            tls: What checks the certificate of a server that speaks TLS.

        Raises:
            ServerFailed: They cannot be read, or as for `read`.
        """
        try:
            samples = scrape(port, self.path, host=host, tls=tls)
        except ServerFailed as problem:
            problem.remedies = (*problem.remedies, *_HELP)
            raise
        return self.read(samples)

    def read(self, samples: Iterable[MetricSample]) -> Counters:
        """Make counters of a scrape.

        Raises:
            ServerFailed: A metric is not there, although it is counted from the start, or is no count.
        """
        ours = [sample for sample in samples if self.labels.items() <= sample.labels.items()]
        items, batches = (
            (f"{self.batch_size}_sum", f"{self.batch_size}_count") if self.batch_size else (self.items, self.batches)
        )
        return Counters(
            items=self._count(ours, items) if items else 0,
            batches=self._count(ours, batches) if batches else 0,
            batch_sizes=self._sizes(ours),
            stages={
                stage: StageTime(self._sum(ours, f"{name}_sum"), self._count(ours, f"{name}_count"))
                for stage, name in sorted(self.stages.items())
            },
            requests=self._count(ours, self.requests) if self.requests else None,
            pending=self._count(ours, self.pending) if self.pending else None,
            counts_batches=bool(items),
            tallies={
                tally: sum(self._count(ours, name) for name in names)
                for tally, names in sorted(self.tallies.items())
                if all(self._values(ours, name) for name in names)
            },
        )

    def read_models(
        self, port: int, *, host: str = HOST, tls: ssl.SSLContext | None = None
    ) -> dict[str, ServerSetting]:
        """Read which models a server has, as settings; empty where it does not list them, or not to everybody.

        Args:
            port: Where it is.
            host: Whose it is.
            tls: What checks the certificate of a server that speaks TLS.

        Raises:
            ServerFailed: It does not answer.
        """
        if not self.models:
            return {}
        try:
            status, body = _get(port, self.models, host, tls)
        except (OSError, http.client.HTTPException) as problem:
            raise ServerFailed(
                f"the list of models at {self.models} could not be read", found=str(problem) or repr(problem)
            ) from None
        try:
            models = _read_models(body).data if status == http.client.OK else []
        except msgspec.DecodeError:
            models = []
        found = {
            "model": [model.shown for model in models],
            "context": [str(tokens) for model in models if (tokens := model.context) is not None],
        }
        return {name: ServerSetting(", ".join(each)) for name, each in found.items() if each}

    @staticmethod
    def _values(samples: list[MetricSample], name: str) -> list[float]:
        """A metric's values; none where it is not there."""
        # A counter may be shown with or without its suffix, by the version of the library that shows it.
        for written in (name, f"{name}_total", name.removesuffix("_total")):
            values = [sample.value for sample in samples if sample.name == written]
            if values:
                return values
        return []

    def _sum(self, samples: list[MetricSample], name: str) -> float:
        values = self._values(samples, name)
        if not values:
            known = sorted({sample.name for sample in samples})
            raise ServerFailed(
                f"the server has no metric {name}" + (f" with {dict(self.labels)}" if self.labels else ""),
                found=f"{len(known)} others: {_listed(known)}" if known else "no metric with these labels",
                looked=[self.path],
                remedies=["correct the names or labels in counters=MetricNames(...)"],
            )
        if not all(map(is_count, values)):
            raise ServerFailed(
                f"the metric {name} is no count and no time",
                found=_listed(map(str, values)),
                looked=[self.path],
                remedies=_HELP,
            )
        return math.fsum(values)

    def _count(self, samples: list[MetricSample], name: str) -> int:
        value = self._sum(samples, name)
        if value != round(value):
            raise ServerFailed(
                f"the metric {name} counts, and yet is {value}",
                looked=[self.path],
                remedies=["name a counter, no time or average, in counters=MetricNames(...)"],
            )
        return round(value)

    def _sizes(self, samples: list[MetricSample]) -> dict[str, int]:
        if not self.batch_size:
            return {}
        return bucket_counts(sample for sample in samples if sample.name == f"{self.batch_size}_bucket")


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
        ServerFailed: A bucket has no edge, or its edge is no number.
    """
    cumulative: dict[float, int] = {}
    for sample in buckets:
        try:
            edge = float(sample.labels["le"])
        except (KeyError, ValueError):
            raise ServerFailed(
                "a histogram of batch sizes makes no sense", found=f"a bucket labelled {sample.labels}"
            ) from None
        cumulative[edge] = cumulative.get(edge, 0) + round(sample.value)
    sizes = {}
    below = 0
    for edge in sorted(cumulative):
        if cumulative[edge] > below:
            sizes[f"{edge:g}"] = cumulative[edge] - below
        below = cumulative[edge]
    return sizes
