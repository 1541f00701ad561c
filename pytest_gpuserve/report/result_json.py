"""The machine-readable result, schema 2 (``--gpuserve-json``).

Latencies are in seconds, ``change`` is a fraction of the value with the value's own sign, ``tolerance`` and
``detectable`` are such fractions for the worse, without a sign, and what is not known is null. In schema 1 those two
were growths of the cost, which of a throughput is its reciprocal. Only additions may be made to a schema; anything else
is a new one.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pytest_gpuserve.gate.metric import METRICS
from pytest_gpuserve.measure.breakdown import breakdown_of
from pytest_gpuserve.measure.counters import added
from pytest_gpuserve.measure.histogram import merge
from pytest_gpuserve.measure.points import NotMeasured, pooled_value
from pytest_gpuserve.measure.rounds import reduced_by_metric
from pytest_gpuserve.measure.summary import summary_of
from pytest_gpuserve.measure.telemetry import as_plain, merged
from pytest_gpuserve.measure.window import Client, is_searched
from pytest_gpuserve.report.ranking import rows_of
from pytest_gpuserve.report.replicas import plain_replicas, plain_searches

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpuserve.gate.reason import Reason
    from pytest_gpuserve.measure.counters import Counters
    from pytest_gpuserve.measure.histogram import Histogram
    from pytest_gpuserve.measure.window import Session, Start, Window
    from pytest_gpuserve.report.ranking import Row
    from pytest_gpuserve.report.results import RunResult, SessionResult, TestResult

SCHEMA = 2

_MODES = {"": "gate", "--baseline-update": "update", "--baseline-update-new": "update-new"}

_QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


def document(result: SessionResult, shown: Callable[[str], str] = str) -> str:
    """Write a session's result as JSON.

    Args:
        result: The result.
        shown: Makes each text in it fit to be shown; numbers and names of fields stay as they are.
    """
    plain = {
        "schema": SCHEMA,
        "at": result.at or None,
        "commit": result.commit,
        # Of code that is not known nobody can say whether it was changed.
        "clean": None if result.commit is None else result.clean,
        "software": dict(result.software),
        "gpu": dict(result.gpu),
        "host": dict(result.host),
        # What `pytest_gpuserve.merge` has to know of a run.
        "mode": "against" if not result.stored else _MODES[result.update],
        "against": result.against or None,
        "header": result.header,
        "shard": None if result.shard is None else dict(zip(("number", "of"), result.shard, strict=True)),
        "dealt": None if result.shard is None else list(result.dealt),
        "unlisted": None if result.unlisted is None else asdict(result.unlisted),
        "comparisons": {"planned": result.planned, "among": result.among} if result.among else None,
        # Only tests that measure are listed, and nothing else tells of what else has failed, or was never run.
        "ending": None if result.ending is None else asdict(result.ending),
        "notes": list(result.notes),
        "tests": [_test(test) for test in result.tests],
    }
    return json.dumps(with_texts(plain, shown), indent=1, allow_nan=False) + "\n"


def with_texts(value: Any, shown: Callable[[str], str]) -> Any:  # noqa: ANN401 -- anything that JSON has
    """The same plain values with each text, but no name of a field, made fit to be shown.

    Args:
        value: Texts, numbers, and dictionaries and lists of them.
        shown: Makes a text fit to be shown.
    """
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, dict):
        return {name: with_texts(each, shown) for name, each in value.items()}
    return [with_texts(each, shown) for each in value] if isinstance(value, (list, tuple)) else value


def _test(test: TestResult) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "nodeid": test.nodeid,
        "outcome": test.outcome,
        "problem": test.problem,
        "verdicts": [_verdict(row) for row in rows_of(test)],
        "run": _run(test.runs[0]) if test.runs else None,
    }
    if len(test.runs) > 1:
        plain["more_runs"] = [_run(run) for run in test.runs[1:]]
    return plain


def _verdict(row: Row) -> dict[str, Any]:
    judgement = row.judgement
    return {
        "metric": judgement.metric.name,
        "verdict": str(judgement.verdict),
        "value": judgement.value,
        "unit": judgement.unit,
        "reference": judgement.reference,
        "reference_kind": judgement.reference_kind,
        "change": judgement.change,
        "interval": None if judgement.interval is None else list(judgement.interval),
        "tolerance": judgement.tolerance,
        "detectable": judgement.detectable,
        "rounds": judgement.rounds,
        "reasons": list(map(str, judgement.reasons)),
        "why": [_why(reason) for reason in judgement.reasons],
        "run": row.run.label,
        "windows": judgement.windows,
        "asserted": judgement.asserted,
        "overruled": row.judgement.overruled,
        "adjusted_p": judgement.adjusted_p,
    }


def _why(reason: Reason) -> dict[str, Any]:
    """What a program decides by of a reason: its kind, and those fields that it has."""
    fields = {"about": reason.about, "commit": reason.commit, "seconds": reason.seconds}
    return {"kind": str(reason.kind), **{name: value for name, value in fields.items() if value not in {"", None}}}


def _run(run: RunResult) -> dict[str, Any]:
    windows = [window for session in run.sessions for window in session.windows]
    starts = [start for session in run.sessions for start in session.starts]
    client = Client.pooled(session.client for session in run.sessions)
    counters = added([start.counters for start in starts if start.counters is not None])
    errors: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for window in windows:
        errors.update(window.errors)
    for session in run.sessions:
        sizes.update(session.batch_sizes)
    return {
        "label": run.label,
        "requests": sum(window.requests for window in windows),
        "errors": dict(errors),
        "seconds": sum(window.seconds for window in windows),
        "throughput": _known("throughput", run.sessions),
        "latency": _latency(run.sessions),
        "batching_ratio": _known("batching_ratio", run.sessions),
        "batch_sizes": dict(sizes),
        "breakdown": _breakdown(windows, counters, client),
        "points": {name: [asdict(each) for each in found] for name, found in reduced_by_metric(run.sessions).items()},
        "send_lag_p99": _quantile(client.lag, 0.99),
        "service": _quantiles(client.service) if client.service.total else None,
        "first_token": _quantiles(client.first_token) if client.first_token.total else None,
        "between_tokens": _quantiles(client.between_tokens) if client.between_tokens.total else None,
        "tokens_per_second": client.tokens / client.seconds if client.tokens else None,
        "client_ceiling": client.ceiling,
        "telemetry": _telemetry(starts),
        "windows_measured_again": [reason for start in starts for reason in start.rejected],
        "sessions": len(run.sessions),
        "sessions_at": [session.at for session in run.sessions],
        # How often a second the machine did fixed work, a list of readings for each kind of it.
        "yardstick": {kind: list(rates) for kind, rates in run.yardstick.rates.items()},
        "starts": len(starts),
        "cold_start_seconds": [start.cold_start_seconds for start in starts],
        "cold_start_parts": [dict(start.cold_start_parts) for start in starts],
        "counters": _counters(counters),
        "replicas": plain_replicas(windows, counters),
        "searches": plain_searches(starts),
        "answers": sum(session.answers for session in run.sessions),
        "answers_checked": sum(session.answers_checked for session in run.sessions),
        "foreign_cores": [start.foreign_cores for start in starts],
        "cpu_share": [start.cpu_share for start in starts],
        "client_cpu_seconds": sum(window.client_cpu_seconds for window in windows),
        "problems": [str(problem) for session in run.sessions for problem in session.problems],
        "load": dict(run.load),
        "server": dict(run.server),
        # What a reader must find the same before it compares; the two above have more than that.
        "workload": dict(run.workload) or None,
        "settings": {
            name: {"asked": setting.asked, "used": setting.used}
            for start in starts[-1:]
            for name, setting in start.settings.items()
        },
        "base": None if run.base is None else _base(run.base, run.base_options, run.base_sessions),
        "settles": run.settles,
    }


def _telemetry(starts: Sequence[Start]) -> dict[str, Any] | None:
    """What the cards did in the windows of all starts that were looked at; None where none was."""
    seen = [start for start in starts if start.telemetry is not None]
    whole = merged(start.telemetry for start in seen if start.telemetry is not None)
    if whole is None:
        return None
    requests = sum(start.requests for start in seen)
    idle = [start.idle_watts for start in seen if start.idle_watts is not None]
    idle_watts = sum(idle) / len(idle) if idle else None
    energy = whole.energy_per_inference(requests, idle_watts=idle_watts)
    return {
        **as_plain(whole),
        "idle_watts": idle_watts,
        "energy_per_inference": None if energy is None else asdict(energy),
        "server_cpu_seconds_per_request": whole.server_cpu_seconds_per_request(requests),
    }


def _breakdown(windows: Sequence[Window], counters: Counters | None, client: Client) -> dict[str, float] | None:
    """Seconds of an average request by component; None where the server does not count them by request."""
    try:
        return asdict(breakdown_of(summary_of(windows), counters, client))
    except NotMeasured:
        return None


def _counters(counted: Counters | None) -> dict[str, Any] | None:
    """What the server counted within the measured windows, whole and for each of its models or stages."""
    if counted is None:
        return None
    plain: dict[str, Any] = {
        "items": counted.items,
        "executions": counted.batches,
        "batch_sizes": dict(counted.batch_sizes),
        "requests": counted.requests,
        "stages": {name: {"seconds": time.seconds, "count": time.count} for name, time in counted.stages.items()},
    }
    if counted.parts:
        plain["parts"] = {name: _counters(part) for name, part in counted.parts.items()}
    return plain


def _base(name: str, options: Sequence[str], sessions: Sequence[Session]) -> dict[str, Any]:
    """What a run was measured beside, in the same units."""
    windows = [window for session in sessions for window in session.windows]
    return {
        "name": name,
        "options": list(options),
        "requests": sum(window.requests for window in windows),
        "seconds": sum(window.seconds for window in windows),
        "throughput": _known("throughput", sessions),
        "latency": _latency(sessions),
        "batching_ratio": _known("batching_ratio", sessions),
    }


def _known(name: str, sessions: Sequence[Session]) -> float | None:
    try:
        return pooled_value(METRICS[name], sessions)
    except NotMeasured:
        return None


def _quantile(histogram: Histogram, q: float) -> float | None:
    return histogram.quantile(q) if histogram.total else None


def _quantiles(histogram: Histogram) -> Mapping[str, float | None]:
    return {name: histogram.quantile(q) for name, q in _QUANTILES.items()}


def _latency(sessions: Sequence[Session]) -> Mapping[str, float | None]:
    windows = [window for session in sessions for window in session.windows]
    latency = merge(window.latency for window in windows)
    total = latency.total
    # Latencies at the capacity are of another rate in each run.
    if total == 0 or is_searched(start for session in sessions for start in session.starts):
        return dict.fromkeys(("mean", *_QUANTILES, "max"))
    return {
        "mean": sum(window.latency_sum_seconds for window in windows) / total,
        **{name: latency.quantile(q) for name, q in _QUANTILES.items()},
        "max": max(window.latency_max_seconds for window in windows),
    }
