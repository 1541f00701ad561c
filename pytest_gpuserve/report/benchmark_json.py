"""pytest-benchmark's JSON, as its ``compare``, Bencher and github-action-benchmark read it: a load is a benchmark.

A load's latencies are kept as a histogram. Its order statistics (min, the quartiles, the whiskers) are within 0.05 % of
a measured latency, by the nearest rank. Sums (mean, total) and the max are exact.

A measurement with problems, or with the verdict INVALID, is left out. These tools keep numbers without their reasons,
so a number that cannot be trusted would pass for the server's.
"""

from __future__ import annotations

import json
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuserve.measure.histogram import seconds_of
from pytest_gpuserve.measure.points import NotMeasured, pooled_value, total_of
from pytest_gpuserve.report.names import printable
from pytest_gpuserve.report.result_json import plain_verdict
from pytest_gpuserve.verdict.metric import METRICS
from pytest_gpuserve.verdict.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_gpuserve.measure.window import Session, Window
    from pytest_gpuserve.report.results import RunResult, SessionResult, TestResult

LAYOUT: Final = "5.0.0"
"""First version of pytest-benchmark with this form of file."""

UNKNOWN_COMMIT: Final = "unknown"
"""pytest-benchmark's word for an unknown commit."""

WHISKER: Final = 1.5
"""Distance from the quartiles, in interquartile ranges, beyond which a round is an outlier (J. W. Tukey, 1977)."""

_OF_HOST: Final = {"node": "id", "processor": "cpu", "release": "kernel", "system": "system"}
"""pytest-benchmark's names for facts of the host."""


def document(result: SessionResult) -> str:
    """Write a session's loads in the form of pytest-benchmark's benchmarks; loads without sound requests are left out.

    Raises:
        ValueError: A number in the result is infinite or NaN.
    """
    taken: set[str] = set()
    plain = {
        "machine_info": _machine(result),
        "commit_info": {
            "id": UNKNOWN_COMMIT if result.commit is None else printable(result.commit),
            **({} if result.commit is None else {"dirty": not result.clean}),
        },
        "benchmarks": [benchmark for test in result.tests for benchmark in _benchmarks(test, taken)],
        **({"datetime": printable(result.at)} if result.at else {}),
        "version": LAYOUT,
    }
    return json.dumps(plain, indent=1, allow_nan=False) + "\n"


def statistics_of(summary: Window) -> dict[str, float | int | str]:
    """Compute pytest-benchmark's statistics of the rounds of a benchmark; times in seconds.

    ``ops`` are the requests answered a second. pytest-benchmark computes 1 / mean, because its rounds follow each
    other; requests run concurrently.
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


def _benchmarks(test: TestResult, taken: set[str]) -> Iterator[dict[str, Any]]:
    """The benchmarks of a test's loads, with names that are unique in the file."""
    nodeid = printable(test.nodeid)
    for run in test.runs:
        name = _unique(f"{nodeid} {printable(run.label)}" if run.label else nodeid, taken)
        try:
            summary = total_of([window for session in _sound(run) for window in session.windows])
        except NotMeasured:
            continue
        yield {
            # Then `compare A.json B.json` shows a load of one file below that of the other.
            "group": name,
            "name": name.partition("::")[2] or name,
            "fullname": name,
            "params": None,
            "param": nodeid.partition("::")[2].partition("[")[2].removesuffix("]") or None,
            "extra_info": {
                "outcome": test.outcome,
                "metrics": _metrics(run.sessions),
                "verdicts": [_facts(plain_verdict(each, run.label)) for each in run.judgements],
                "errors": summary.error_count,
                "measured_seconds": summary.seconds,
                "load": _facts(dict(run.load)),
                "server": _facts(dict(run.server)),
            },
            "options": {},
            "stats": statistics_of(summary),
        }


def _sound(run: RunResult) -> Sequence[Session]:
    # Other users of the host are not a problem of a session: its passed comparisons stand.
    judged = any(judgement.verdict is Verdict.INVALID for judgement in run.judgements)
    return () if judged or any(session.problems for session in run.sessions) else run.sessions


def _metrics(sessions: Sequence[Session]) -> dict[str, float]:
    """All known metrics; the others are absent, because a zero would be wrong."""
    found = {}
    for name, metric in METRICS.items():
        with suppress(NotMeasured):
            found[name] = pooled_value(metric, sessions)
    return found


def _machine(result: SessionResult) -> dict[str, Any]:
    host: Mapping[str, Any] = _facts(dict(result.host))
    software: Mapping[str, Any] = _facts(dict(result.software))
    cpu = {"brand_raw": host.get("cpu"), "count": host.get("cores")}
    found: dict[str, Any] = {ours: host.get(theirs) for ours, theirs in _OF_HOST.items()}
    found |= {
        "python_version": software.get("python"),
        "cpu": {name: value for name, value in cpu.items() if value is not None} or None,
        "gpu": _facts(dict(result.gpu)) or None,
        "software": software or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _facts(value: Any) -> Any:  # noqa: ANN401 -- anything that JSON has
    """Facts as printable single lines; unknown facts (None) are left out."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {name: _facts(each) for name, each in value.items() if each is not None}
    return [_facts(each) for each in value] if isinstance(value, (list, tuple)) else value


def _unique(name: str, taken: set[str]) -> str:
    """The name, with a number behind it if another load has the same name."""
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name} #{number}".lstrip()
    taken.add(found)
    return found
