"""Bencher Metric Format: for each benchmark its measures, each a value with the bounds that are known of it.

``latency`` (nanoseconds) and ``throughput`` (operations a second) are Bencher's own measures. It makes others as it
meets them, and cannot be told their unit, so that theirs stands in their name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_gpuserve.report.exports.values import ExportedLoad, Value, json_text, loads_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_gpuserve.report.results import SessionResult

_NS: Final = 1e9

LATENCY: Final = "latency"
"""Bencher's own measure: the mean over all requests."""

MEASURES: Final[Mapping[str, tuple[str, float]]] = {
    "throughput": ("throughput", 1.0),
    "latency.p50": ("latency-p50-nanoseconds", _NS),
    "latency.p90": ("latency-p90-nanoseconds", _NS),
    "latency.p95": ("latency-p95-nanoseconds", _NS),
    "latency.p99": ("latency-p99-nanoseconds", _NS),
    "batching_ratio": ("batching-ratio", 1.0),
    "energy_per_inference": ("energy-per-inference-joules", 1.0),
    "gpu_memory": ("gpu-memory-bytes", 1.0),
    "gpu_utilisation": ("gpu-utilisation", 1.0),
    "cold_start": ("cold-start-nanoseconds", _NS),
    "capacity": ("capacity", 1.0),
}
"""For each metric the slug of its measure, and how many of the measure's unit are one of the metric's."""


def document(result: SessionResult, shown: Callable[[str], str] = str) -> str:
    """Write a session's loads as benchmarks; the bounds of a measure are its lowest and highest server start.

    Args:
        result: The result.
        shown: Makes each text in it fit to be shown.
    """
    benchmarks = {load.name: _measures(load) for load in loads_of(result, shown)}
    return json_text({name: measures for name, measures in benchmarks.items() if measures})


def _measures(load: ExportedLoad) -> dict[str, dict[str, float]]:
    found = {MEASURES[metric.name]: value for metric, value in load.tracked().items()}
    mean = load.mean_latency()
    if mean is not None:
        found[LATENCY, _NS] = mean
    return {slug: _metric(value, factor) for (slug, factor), value in found.items()}


def _metric(value: Value, factor: float) -> dict[str, float]:
    known = {"value": value.value, "lower_value": value.lowest, "upper_value": value.highest}
    return {name: number * factor for name, number in known.items() if number is not None}
