"""Writes a session's result as the file of ``--gpuserve-json``; the page ``reference/json.md`` describes every field.

Latencies are in seconds. ``change`` is a fraction, above 0 if the value is larger. ``tolerance`` and ``detectable``
are such fractions for the worse, without a sign. Unknown values are null. A schema may only get additions; any other
change makes a new schema.

A JUnit file has the same values as properties of a test case, which CI systems show beside its outcome. A property is
named ``gpuserve.METRIC.FIELD``, or for a load with a name ``gpuserve.LOAD.METRIC.FIELD``. If a metric was compared with
several references, these are the fields of the one that decided last. A further reference has its kind in the name:
``gpuserve.throughput.limit.verdict``. Unknown values are absent.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuserve.measure.breakdown import breakdown_of
from pytest_gpuserve.measure.points import NotMeasured, pooled_value, total_of
from pytest_gpuserve.measure.window import Window
from pytest_gpuserve.report.names import printable
from pytest_gpuserve.verdict.metric import GOODPUT, METRICS, OUTPUT_TOKENS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pytest_gpuserve.measure.counters import Counters
    from pytest_gpuserve.measure.histogram import Histogram
    from pytest_gpuserve.measure.window import Session
    from pytest_gpuserve.report.results import RunResult, SessionResult, TestResult
    from pytest_gpuserve.verdict.verdict import Judgement

SCHEMA: Final = 3

Plain = dict[str, Any]
"""An object of JSON."""

_MODES: Final = {"": "gate", "--baseline-update": "update", "--baseline-update-new": "update-new"}

_KINDS: Final = ("baseline", "against", "duel", "limit")
"""Kinds of references: the first one that decided has the plain name."""

_QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


def document(result: SessionResult) -> str:
    """Write a session's result as JSON.

    Raises:
        ValueError: A number in the result is infinite or NaN.
    """
    plain = {
        "schema": SCHEMA,
        "at": result.at or None,
        "commit": result.commit,
        # If the commit is unknown, it is also unknown whether the code was changed.
        "clean": None if result.commit is None else result.clean,
        "software": dict(result.software),
        "gpu": dict(result.gpu),
        "host": dict(result.host),
        "mode": _MODES[result.update] if result.stored else "against",
        "against": result.against or None,
        "header": result.header,
        "notes": result.notes,
        "tests": [_test(test) for test in result.tests],
    }
    return json.dumps(plain, indent=1, allow_nan=False) + "\n"


def _test(test: TestResult) -> Plain:
    runs = [_run(run) for run in test.runs]
    return {
        "nodeid": test.nodeid,
        "outcome": test.outcome,
        "problem": test.problem,
        "verdicts": [plain_verdict(judgement, run.label) for run in test.runs for judgement in run.judgements],
        "run": runs[0] if runs else None,
        **({"more_runs": runs[1:]} if runs[1:] else {}),
    }


def plain_verdict(judgement: Judgement, label: str) -> Plain:
    """The plain values of a judgement of the load with this label."""
    why = (
        {"kind": reason.kind.value, "about": reason.about or None, "seconds": reason.seconds}
        for reason in judgement.reasons
    )
    return {
        "metric": judgement.metric.name,
        "verdict": judgement.verdict.value,
        "value": judgement.value,
        "unit": judgement.unit,
        "reference": judgement.reference,
        "reference_kind": judgement.reference_kind,
        "change": judgement.change,
        "interval": judgement.interval,
        "tolerance": judgement.tolerance,
        "detectable": judgement.detectable,
        "rounds": judgement.rounds,
        "reasons": list(map(str, judgement.reasons)),
        "why": [{name: value for name, value in each.items() if value is not None} for each in why],
        "run": label,
        "windows": judgement.windows,
    }


def _run(run: RunResult) -> Plain:
    starts = [start for session in run.sessions for start in session.starts]
    windows = [window for start in starts for window in start.windows]
    total = Window.pooled(windows)
    counters = total.counters
    return {
        "label": run.label,
        "requests": total.requests,
        "errors": dict(total.errors),
        "seconds": total.seconds,
        "throughput": _known("throughput", run.sessions),
        "latency": _latency(total),
        "batching_ratio": _known("batching_ratio", run.sessions),
        "batch_sizes": {} if counters is None else dict(counters.batch_sizes),
        "breakdown": _breakdown(windows),
        "send_lag_p99": total.lag.quantile(0.99) if total.lag.total else None,
        "service": _quantiles(total.service) if total.service.total else None,
        "ttft": _of_streams("ttft", run.sessions),
        "itl": _of_streams("itl", run.sessions),
        "tpot": _of_streams("tpot", run.sessions),
        "output_tokens_per_second": _known(OUTPUT_TOKENS, run.sessions),
        "goodput": _known(GOODPUT, run.sessions),
        "telemetry": None if total.gpus is None else asdict(total.gpus),
        "windows_measured_again": [reason for start in starts for reason in start.rejected],
        "sessions": len(run.sessions),
        "starts": len(starts),
        "cold_start_seconds": [start.cold_start_seconds for start in starts],
        "cold_start_parts": [dict(start.cold_start_parts) for start in starts],
        "counters": _counters(counters),
        "answers": sum(start.answers for start in starts),
        "answers_checked": sum(start.answers_checked for start in starts),
        "foreign_cores": [start.foreign_cores for start in starts],
        "cpu_share": [start.cpu_share for start in starts],
        "client_cpu_seconds": total.cpu_seconds,
        "problems": [str(problem) for session in run.sessions for problem in session.problems],
        "load": dict(run.load),
        "server": dict(run.server),
        "settings": {
            name: {"asked": setting.asked, "used": setting.used}
            for start in starts[-1:]
            for name, setting in start.settings.items()
        },
        "base": None if run.base is None else _base(run.base, run.base_options, run.base_sessions),
    }


def _breakdown(windows: Sequence[Window]) -> Plain | None:
    """Seconds of an average request by component; None if the server does not count them by request."""
    try:
        return asdict(breakdown_of(total_of(windows)))
    except NotMeasured:
        return None


def _counters(counted: Counters | None) -> Plain | None:
    """The server's counts within the measured windows, in total and for each of its models or stages."""
    if counted is None:
        return None
    plain: Plain = {
        "items": counted.items if counted.counts_batches else None,
        "executions": counted.batches if counted.counts_batches else None,
        "batch_sizes": dict(counted.batch_sizes),
        "requests": counted.requests,
        "stages": {name: {"seconds": time.seconds, "count": time.count} for name, time in counted.stages.items()},
        "tallies": dict(counted.tallies),
    }
    if counted.parts:
        plain["parts"] = {name: _counters(part) for name, part in counted.parts.items()}
    return plain


def _base(name: str, options: Sequence[str], sessions: Sequence[Session]) -> Plain:
    """The base of a run, in the same units."""
    total = Window.pooled([window for session in sessions for window in session.windows])
    return {
        "name": name,
        "options": list(options),
        "requests": total.requests,
        "seconds": total.seconds,
        "throughput": _known("throughput", sessions),
        "latency": _latency(total),
        "batching_ratio": _known("batching_ratio", sessions),
    }


def _known(name: str, sessions: Sequence[Session]) -> float | None:
    try:
        return pooled_value(METRICS[name], sessions)
    except NotMeasured:
        return None


def _quantiles(histogram: Histogram) -> Plain:
    return {name: histogram.quantile(q) for name, q in _QUANTILES.items()}


def _of_streams(times: str, sessions: Sequence[Session]) -> Plain | None:
    """Quantiles of the times of streams; None if all are unknown."""
    found = {name: _known(f"{times}.{name}", sessions) for name in _QUANTILES}
    return found if any(value is not None for value in found.values()) else None


def _latency(total: Window) -> Plain:
    if not total.latency.total:
        return dict.fromkeys(("mean", *_QUANTILES, "max"))
    return {"mean": total.mean, **_quantiles(total.latency), "max": total.max}


def properties(runs: Iterable[RunResult]) -> list[tuple[str, str]]:
    """Known facts of the metrics of a test's loads, as names and values."""
    # pytest escapes values for XML, but not names.
    return [
        (f"gpuserve.{f'{printable(run.label)}.' if run.label else ''}{place}.{name}", value)
        for run in runs
        for place, judgement in _places(run.judgements)
        for name, value in _fields(judgement)
    ]


def _places(judgements: Sequence[Judgement]) -> Iterator[tuple[str, Judgement]]:
    """The judgements of a load, each with a unique name: it has one of a metric for each kind of reference."""
    taken: set[str] = set()
    for judgement in sorted(judgements, key=lambda each: _KINDS.index(each.reference_kind)):
        plain = judgement.metric.name
        yield f"{plain}.{judgement.reference_kind}" if plain in taken else plain, judgement
        taken.add(plain)


def _fields(judgement: Judgement) -> Iterator[tuple[str, str]]:
    """Fields of the JSON result as texts; unknown ones are left out."""
    fields = plain_verdict(judgement, "")
    for name in ("metric", "run", "why"):
        del fields[name]
    if fields["interval"] is not None:
        fields["interval"] = json.dumps(fields["interval"])
    fields["reasons"] = "\n".join(printable(line) for reason in fields["reasons"] for line in reason.splitlines())
    for name in ("rounds", "windows"):
        fields[name] = fields[name] or None
    for name, value in fields.items():
        if value not in {None, ""}:
            yield name, str(value)
