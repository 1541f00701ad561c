"""Prometheus' text format, for a push gateway: each quantity a family of its own, in base units, without timestamps.

A gateway refuses timestamps, and whoever pushes names the job; so neither is in it.
"""

from __future__ import annotations

from statistics import geometric_mean
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric

from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.report.exports import ExportedLoad, plain, tests_of
from pytest_gpuserve.report.names import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_gpuserve.report.ranking import Row
    from pytest_gpuserve.report.results import SessionResult

LATENCY: Final = "gpuserve_latency_seconds"
"""The one summary; all other families are gauges."""

YARDSTICK: Final = "gpuserve_yardstick_per_second"

_HELP: Final[Mapping[str, str]] = {
    "gpuserve_session_info": "What was measured, and on what; always 1.",
    "gpuserve_test_outcome": "Outcome of a test, as pytest has it; always 1.",
    "gpuserve_verdict": "Outcome of a comparison, asserted unless its test ended before, overruled where it was then"
    " settled side by side; always 1.",
    "gpuserve_change_ratio": "Change of a metric from its reference, as a share of it, by the sign of the value.",
    "gpuserve_change_lower_ratio": "Lower bound of gpuserve_change_ratio.",
    "gpuserve_change_upper_ratio": "Upper bound of gpuserve_change_ratio.",
    "gpuserve_tolerance_ratio": "How much worse the metric may be, as a share of it.",
    "gpuserve_detectable_ratio": "Smallest change for the worse that would have been found, as a share of the metric.",
    "gpuserve_throughput_requests_per_second": "Requests answered a second.",
    LATENCY: "Latencies of the answered requests.",
    "gpuserve_failed_requests": "Requests that failed in the measured time.",
    "gpuserve_measured_seconds": "Measured time.",
    YARDSTICK: "How often a second the machine did fixed work of its own, which no change of the server touches.",
    "gpuserve_batching_ratio": "Items in a batch that the server executed, on average.",
    "gpuserve_ttft_seconds": "Quantiles of the time to the first chunk of a stream that has content.",
    "gpuserve_itl_seconds": "Quantiles of the gaps between such chunks.",
    "gpuserve_tpot_seconds": "Quantiles of the time for each token after the first.",
    "gpuserve_output_tokens_per_second": "Tokens that arrived a second.",
    "gpuserve_goodput_requests_per_second": "Answers a second that met all objectives.",
    "gpuserve_energy_per_inference_joules": "Energy that the cards took up for a request.",
    "gpuserve_gpu_memory_bytes": "The most memory that was allocated on the cards.",
    "gpuserve_gpu_utilisation_ratio": "Share of the time in which a kernel ran on the cards.",
    "gpuserve_cold_start_seconds": "From the launch of a server to its first answer.",
}
"""What each family says of itself."""

FAMILIES: Final[Mapping[str, str]] = {
    "throughput": "gpuserve_throughput_requests_per_second",
    "batching_ratio": "gpuserve_batching_ratio",
    "ttft": "gpuserve_ttft_seconds",
    "itl": "gpuserve_itl_seconds",
    "tpot": "gpuserve_tpot_seconds",
    "output_tokens_per_second": "gpuserve_output_tokens_per_second",
    "goodput": "gpuserve_goodput_requests_per_second",
    "energy_per_inference": "gpuserve_energy_per_inference_joules",
    "gpu_memory": "gpuserve_gpu_memory_bytes",
    "gpu_utilisation": "gpuserve_gpu_utilisation_ratio",
    "cold_start": "gpuserve_cold_start_seconds",
}
"""The family of each metric that is no quantile of the latency, and of the quantiles of other times."""

_QUANTILES: Final = (0.5, 0.9, 0.95, 0.99)

_GRAVEST: Final = (Verdict.REGRESSED, Verdict.INVALID, Verdict.MISSING, Verdict.INCONCLUSIVE)
"""Of several comparisons with references of one kind that of the first of these is told, else the last one."""

_OF_CARD: Final = ("product", "driver", "cuda")


def document(result: SessionResult) -> str:
    """Write a session's numbers and verdicts; what is unknown, or cannot be trusted, has no line."""
    gpu = printable(str(result.gpu.get("name") or ""))
    families = _Families(gpu)
    families.add("gpuserve_session_info", _facts(result), 1)
    for test in tests_of(result):
        families.add("gpuserve_test_outcome", {"test": test.name, "outcome": test.outcome}, 1)
        for load in test.loads:
            labels = {"test": load.test, "run": load.label}
            _add_numbers(families, labels, load)
            for kind, rates in load.run.yardstick.rates.items():
                families.add(YARDSTICK, {**labels, "work": kind}, geometric_mean(rates))
            for row in _gravest(load.rows):
                _add_row(families, labels, row)
    registry = CollectorRegistry()
    registry.register(families)
    return generate_latest(registry).decode()


class _Families:
    """Collects samples by family, each of which is written as one block."""

    def __init__(self, gpu: str) -> None:
        self._gpu = gpu
        self._found: dict[str, Metric] = {}

    def add(self, name: str, labels: Mapping[str, str], value: float | None, suffix: str = "") -> None:
        """Add a sample; None is unknown, and adds nothing."""
        if value is None:
            return
        kind = "summary" if name == LATENCY else "gauge"
        family = self._found.setdefault(name, Metric(name, _HELP[name], kind))
        family.add_sample(name + suffix, {**labels, "gpu": self._gpu}, value)

    def collect(self) -> Iterable[Metric]:
        """The families in the order in which they were first met."""
        return self._found.values()


def _add_numbers(families: _Families, labels: Mapping[str, str], load: ExportedLoad) -> None:
    for metric, value in load.known().items():
        family = FAMILIES.get(metric.times or metric.name)
        if family is not None:
            quantile = {} if metric.quantile is None else {"quantile": str(metric.quantile)}
            families.add(family, {**labels, **quantile}, value)
    summary = load.summary
    if summary is None:
        return
    for q in _QUANTILES:
        families.add(LATENCY, {**labels, "quantile": str(q)}, min(summary.quantile(q), summary.max))
    families.add(LATENCY, {**labels, "quantile": "1"}, summary.max)
    families.add(LATENCY, labels, summary.mean * summary.requests, "_sum")
    families.add(LATENCY, labels, summary.requests, "_count")
    families.add("gpuserve_failed_requests", labels, summary.errors)
    families.add("gpuserve_measured_seconds", labels, summary.seconds)


def _add_row(families: _Families, labels: Mapping[str, str], row: Row) -> None:
    judgement = row.judgement
    known = {**labels, "metric": judgement.metric.name, "reference": judgement.reference_kind}
    verdict = {
        "verdict": str(judgement.verdict),
        "asserted": str(judgement.asserted).lower(),
        "overruled": str(row.judgement.overruled).lower(),
    }
    families.add("gpuserve_verdict", {**known, **verdict}, 1)
    if row.judgement.overruled:
        # An alert of a change, which has no such label, is to be of the one that counts.
        return
    families.add("gpuserve_change_ratio", known, judgement.change)
    lower, upper = judgement.interval or (None, None)
    families.add("gpuserve_change_lower_ratio", known, lower)
    families.add("gpuserve_change_upper_ratio", known, upper)
    families.add("gpuserve_tolerance_ratio", known, judgement.tolerance)
    families.add("gpuserve_detectable_ratio", known, judgement.detectable)


def _gravest(rows: Iterable[Row]) -> list[Row]:
    """One row for each metric and kind of reference: a series has one value."""
    found: dict[tuple[str, str], Row] = {}
    for row in rows:
        key = row.judgement.metric.name, row.judgement.reference_kind
        known = found.get(key)
        if known is None or _gravity(row) >= _gravity(known):
            found[key] = row
    return list(found.values())


def _gravity(row: Row) -> tuple[bool, int]:
    verdict = row.judgement.verdict
    return row.counts, -(_GRAVEST.index(verdict) if verdict in _GRAVEST else len(_GRAVEST))


def _facts(result: SessionResult) -> dict[str, str]:
    card: dict[str, Any] = {name: result.gpu.get(name) for name in _OF_CARD}
    known = {
        **card,
        "host": result.host.get("id"),
        "commit": result.commit,
        "clean": None if result.commit is None else str(result.clean).lower(),
    }
    return {name: str(value) for name, value in plain(known).items()}
