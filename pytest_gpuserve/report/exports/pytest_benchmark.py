"""pytest-benchmark's JSON, as ``pytest-benchmark compare`` reads it: one benchmark a load, one round a request.

A load's latencies are kept as a histogram: what is an order statistic (min, the quartiles, the whiskers) is within
0.05 % of a latency that was measured, by the nearest rank; what is a sum (mean, total) and the max are exact.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuserve.measure.histogram import seconds_of
from pytest_gpuserve.report.exports import ExportedLoad, json_text, loads_of, plain
from pytest_gpuserve.report.names import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpuserve.measure.summary import Summary
    from pytest_gpuserve.report.ranking import Row
    from pytest_gpuserve.report.results import SessionResult

LAYOUT: Final = "5.0.0"
"""The version of pytest-benchmark since which its files look like this."""

UNKNOWN_COMMIT: Final = "unknown"
"""What pytest-benchmark calls a commit that it cannot find out."""

WHISKER: Final = 1.5
"""Interquartile ranges beside the quartiles beyond which a round is an outlier (J. W. Tukey, 1977)."""

_OF_HOST: Final = {"node": "id", "processor": "cpu", "release": "kernel", "system": "system"}
"""Where pytest-benchmark puts what of the host."""


def document(result: SessionResult) -> str:
    """Write a session's loads as pytest-benchmark writes its benchmarks; one without sound requests is left out."""
    benchmarks = [_benchmark(load, summary) for load in loads_of(result) if (summary := load.summary)]
    return json_text(
        {
            "machine_info": _machine(result),
            "commit_info": {
                "id": UNKNOWN_COMMIT if result.commit is None else printable(result.commit),
                **({} if result.commit is None else {"dirty": not result.clean}),
            },
            "benchmarks": benchmarks,
            **({"datetime": printable(result.at)} if result.at else {}),
            "version": LAYOUT,
        }
    )


def statistics_of(summary: Summary) -> dict[str, float | int | str]:
    """Compute what pytest-benchmark keeps of the rounds of a benchmark; times in seconds.

    ``ops`` are the requests answered a second. pytest-benchmark's rounds follow each other, so that it may compute
    them as 1 / mean; requests are under way together.
    """
    rounds = [(min(seconds_of(b), summary.max), count) for b, count in sorted(summary.latency.counts.items())]
    total = summary.latency.total
    squares = math.fsum(count * (seconds - summary.mean) ** 2 for seconds, count in rounds)
    deviation = math.sqrt(squares / (total - 1)) if total > 1 else 0.0
    q1, median, q3 = (min(summary.quantile(q), summary.max) for q in (0.25, 0.5, 0.75))
    low, high = q1 - WHISKER * (q3 - q1), q3 + WHISKER * (q3 - q1)
    beyond = sum(count for seconds, count in rounds if abs(seconds - summary.mean) > deviation)
    outliers = sum(count for seconds, count in rounds if not low <= seconds <= high)
    return {
        "min": min(rounds[0][0], summary.mean),
        "max": summary.max,
        "mean": summary.mean,
        "stddev": deviation,
        "rounds": total,
        "median": median,
        "iqr": q3 - q1,
        "q1": q1,
        "q3": q3,
        "iqr_outliers": outliers,
        "stddev_outliers": beyond,
        "outliers": f"{beyond};{outliers}",
        "ld15iqr": next(seconds for seconds, _ in rounds if seconds >= low),
        "hd15iqr": next(seconds for seconds, _ in reversed(rounds) if seconds <= high),
        "ops": summary.throughput,
        "total": summary.mean * total,
        "iterations": 1,
    }


def _benchmark(load: ExportedLoad, summary: Summary) -> dict[str, Any]:
    parameters = load.test.partition("::")[2].partition("[")[2]
    return {
        # So that `compare A.json B.json` shows a load of one file below that of the other.
        "group": load.name,
        "name": load.name.partition("::")[2] or load.name,
        "fullname": load.name,
        "params": None,
        "param": parameters.removesuffix("]") or None,
        "extra_info": {
            "outcome": load.outcome,
            "metrics": {metric.name: value for metric, value in load.known().items()},
            "verdicts": [_verdict(row) for row in load.rows],
            "errors": summary.errors,
            "measured_seconds": summary.seconds,
            "load": plain(dict(load.run.load)),
            "server": plain(dict(load.run.server)),
        },
        "options": {},
        "stats": statistics_of(summary),
    }


def _verdict(row: Row) -> dict[str, Any]:
    judgement = row.judgement
    known = {
        "value": judgement.value,
        "reference": judgement.reference,
        "change": judgement.change,
        "interval": None if judgement.interval is None else list(judgement.interval),
        "tolerance": judgement.tolerance,
    }
    return {
        "metric": judgement.metric.name,
        "verdict": str(judgement.verdict),
        "reference_kind": judgement.reference_kind,
        "asserted": judgement.asserted,
        "overruled": row.judgement.overruled,
        **{name: value for name, value in known.items() if value is not None},
    }


def _machine(result: SessionResult) -> dict[str, Any]:
    host: Mapping[str, Any] = plain(dict(result.host))
    software: Mapping[str, Any] = plain(dict(result.software))
    cpu = {"brand_raw": host.get("cpu"), "count": host.get("cores")}
    found: dict[str, Any] = {ours: host.get(theirs) for ours, theirs in _OF_HOST.items()}
    found |= {
        "python_version": software.get("python"),
        "cpu": {name: value for name, value in cpu.items() if value is not None} or None,
        "gpu": plain(dict(result.gpu)) or None,
        "software": software or None,
    }
    return {name: value for name, value in found.items() if value is not None}
