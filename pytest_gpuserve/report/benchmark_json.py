"""pytest-benchmark's JSON, as its ``compare``, Bencher and github-action-benchmark read it: a load is a benchmark.

A load's latencies are kept as a histogram: what is an order statistic (min, the quartiles, the whiskers) is within
0.05 % of a latency that was measured, by the nearest rank; what is a sum (mean, total) and the max are exact.

What was measured while something was wrong, or was judged to be INVALID, is no benchmark: these tools keep numbers and
not their reasons, and one that cannot be trusted would be taken for what the server does.
"""

from __future__ import annotations

import json
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pytest_gpuserve.measure.histogram import seconds_of
from pytest_gpuserve.measure.points import NotMeasured, pooled_value
from pytest_gpuserve.measure.summary import summary_of
from pytest_gpuserve.report.names import printable
from pytest_gpuserve.report.result_json import verdict_record
from pytest_gpuserve.units import digest
from pytest_gpuserve.verdict.metric import METRICS
from pytest_gpuserve.verdict.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_gpuserve.measure.summary import Summary
    from pytest_gpuserve.measure.window import Session
    from pytest_gpuserve.report.results import RunResult, SessionResult, TestResult

LAYOUT: Final = "5.0.0"
"""The version of pytest-benchmark since which its files look like this."""

UNKNOWN_COMMIT: Final = "unknown"
"""What pytest-benchmark calls a commit that it cannot find out."""

LONGEST_NAME_BYTES: Final = 1024
"""Of a load's name, in UTF-8: the longest that Bencher takes, which is the strictest."""

WHISKER: Final = 1.5
"""Interquartile ranges beside the quartiles beyond which a round is an outlier (J. W. Tukey, 1977)."""

_OF_HOST: Final = {"node": "id", "processor": "cpu", "release": "kernel", "system": "system"}
"""Where pytest-benchmark puts what of the host."""


def document(result: SessionResult) -> str:
    """Write a session's loads as pytest-benchmark writes its benchmarks; one without sound requests is left out.

    Raises:
        ValueError: A number in it is infinite or NaN.
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


def _benchmarks(test: TestResult, taken: set[str]) -> Iterator[dict[str, Any]]:
    """The benchmarks of a test's loads, whose names are those of no other load."""
    nodeid = printable(test.nodeid)
    for run in test.runs:
        name = _unique(f"{nodeid} {printable(run.label)}" if run.label else nodeid, taken)
        try:
            summary = summary_of(window for session in _sound(run) for window in session.windows)
        except NotMeasured:
            continue
        yield {
            # So that `compare A.json B.json` shows a load of one file below that of the other.
            "group": name,
            "name": name.partition("::")[2] or name,
            "fullname": name,
            "params": None,
            "param": nodeid.partition("::")[2].partition("[")[2].removesuffix("]") or None,
            "extra_info": {
                "outcome": test.outcome,
                "metrics": _metrics(run.sessions),
                "verdicts": [_facts(msgspec.to_builtins(verdict_record(each, run.label))) for each in run.judgements],
                "errors": summary.errors,
                "measured_seconds": summary.seconds,
                "load": _facts(dict(run.load)),
                "server": _facts(dict(run.server)),
            },
            "options": {},
            "stats": statistics_of(summary),
        }


def _sound(run: RunResult) -> Sequence[Session]:
    # That others used the host is no problem of a session: what passed in spite of them stands.
    judged = any(judgement.verdict is Verdict.INVALID for judgement in run.judgements)
    return () if judged or any(session.problems for session in run.sessions) else run.sessions


def _metrics(sessions: Sequence[Session]) -> dict[str, float]:
    """All that are known; of the others nothing is told, for no zero stands for them."""
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
    """Facts with each text in them as one line that is fit to be shown; what is unknown (None) is left out."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {name: _facts(each) for name, each in value.items() if each is not None}
    return [_facts(each) for each in value] if isinstance(value, (list, tuple)) else value


def _unique(name: str, taken: set[str]) -> str:
    """The name in so many bytes as readers take, with a number behind it where another load has it already."""
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name} #{number}".lstrip()
    taken.add(found)
    written = found.encode()
    if len(written) <= LONGEST_NAME_BYTES:
        return found
    # The digest tells apart names that begin alike.
    mark = f" {digest(found)}"
    return written[: LONGEST_NAME_BYTES - len(mark)].decode(errors="ignore") + mark
