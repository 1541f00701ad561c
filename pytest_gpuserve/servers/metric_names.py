"""Which of a server's Prometheus metrics say what: the counters of a server that nothing else is known of."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_gpuserve.errors import ServerFailed, UsageProblem
from pytest_gpuserve.measure.counters import Counters
from pytest_gpuserve.measure.window import StageTime

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_gpuserve.servers.prometheus import Sample


@dataclass(frozen=True)
class MetricNames:
    """Names of metrics as a scrape shows them; each is summed over all its labels that ``labels`` does not fix.

    Either ``items`` and ``batches`` are given, or ``batch_size``, a histogram of batch sizes, whose sum and count they
    then are.

    Args:
        items: Counter of executed items.
        batches: Counter of executions.
        batch_size: Histogram of batch sizes.
        requests: Counter of requests that were answered well.
        pending: Gauge of waiting requests.
        stages: Times by the names of ``measure/window.py`` (``queue``, ``compute`` ...): each a histogram or summary in
            seconds.
        labels: Only samples with these labels count, such as ``{"model": "resnet"}``.
        path: Where the metrics are.

    Raises:
        UsageProblem: They do not tell items and batches.
    """

    items: str = ""
    batches: str = ""
    batch_size: str = ""
    requests: str = ""
    pending: str = ""
    stages: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    path: str = "/metrics"

    def __post_init__(self) -> None:
        if bool(self.batch_size) == bool(self.items or self.batches) or bool(self.items) != bool(self.batches):
            raise UsageProblem(
                "MetricNames needs either items= and batches=, or batch_size=",
                remedies=['MetricNames(items="nv_inference_count", batches="nv_inference_exec_count")'],
            )
        if not self.path.startswith("/"):
            raise UsageProblem(f"MetricNames(path=...) begins with a slash, not {self.path!r}")

    def read(self, samples: Iterable[Sample]) -> Counters:
        """Make counters of a scrape.

        Raises:
            ServerFailed: A metric is not there, although it is counted from the start, or is no count.
        """
        ours = [sample for sample in samples if self.labels.items() <= sample.labels.items()]
        items, batches = self.items or f"{self.batch_size}_sum", self.batches or f"{self.batch_size}_count"
        return Counters(
            items=self._count(ours, items),
            batches=self._count(ours, batches),
            batch_sizes=self._sizes(ours),
            stages={
                stage: StageTime(self._sum(ours, f"{name}_sum"), self._count(ours, f"{name}_count"))
                for stage, name in sorted(self.stages.items())
            },
            requests=self._count(ours, self.requests) if self.requests else None,
            pending=self._count(ours, self.pending) if self.pending else None,
        )

    def _sum(self, samples: list[Sample], name: str) -> float:
        # A counter may be shown with or without its suffix, by the version of the library that shows it.
        names = {name, f"{name}_total"}
        values = [sample.value for sample in samples if sample.name in names]
        if not values:
            known = sorted({sample.name for sample in samples})
            raise ServerFailed(
                f"the server has no metric {name}" + (f" with {dict(self.labels)}" if self.labels else ""),
                found=f"{len(known)} others: {', '.join(known)[:1000]}" if known else "no metric with these labels",
                looked=[self.path],
                remedies=["correct the names in counters=MetricNames(...)", "send it a request at start: ready="],
            )
        return math.fsum(values)

    def _count(self, samples: list[Sample], name: str) -> int:
        value = self._sum(samples, name)
        if value != round(value):
            raise ServerFailed(f"the metric {name} counts, and yet is {value}")
        return round(value)

    def _sizes(self, samples: list[Sample]) -> dict[str, int]:
        if not self.batch_size:
            return {}
        return bucket_counts(sample for sample in samples if sample.name == f"{self.batch_size}_bucket")


def bucket_counts(buckets: Iterable[Sample]) -> dict[str, int]:
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
