"""The result of a load: as text in the manner of hey, for people, and as plain values for JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_gpuserve.load.durations import requests_to_know
from pytest_gpuserve.load.schedule import is_open
from pytest_gpuserve.load.validity import one_line
from pytest_gpuserve.measure.histogram import seconds_of
from pytest_gpuserve.measure.streams import is_quantile_known, within_one_read
from pytest_gpuserve.units import format_fraction, format_rate, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.gate.reason import Reason
    from pytest_gpuserve.load.durations import Durations
    from pytest_gpuserve.load.schedule import Schedule
    from pytest_gpuserve.load.totals import Totals

UNKNOWN: Final = "-"

BAR_COLUMNS: Final = 40
BAR_STEPS: Final = 10

PERCENTS: Final = (10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0)
RARE_PERCENT: Final = 99.9
"""Shown only where it is known: a short load is not to be blamed for it."""

_QUANTILES: Final = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}


def summary_text(
    totals: Totals,
    *,
    schedule: Schedule,
    processes: int,
    reasons: Sequence[Reason],
    checked: int | None = None,
    ceiling_per_second: float | None = None,
) -> str:
    """Write the summary for people: several lines, without a newline at the end."""
    sections = [_summary(totals)]
    if totals.latency.total:
        sections += [_histogram(totals.latency), _distribution(totals.latency)]
    if is_open(schedule):
        sections.append(_open_loop(totals))
    if totals.ttft.total or totals.tokens:
        sections.append(_streams(totals))
    sections += [_answers(totals, checked), _client(totals, processes, ceiling_per_second), _verdict(reasons)]
    return "\n\n".join("\n".join(lines) for lines in sections)


def summary_json(
    totals: Totals,
    *,
    schedule: Schedule,
    processes: int,
    reasons: Sequence[Reason],
    checked: int | None = None,
    ceiling_per_second: float | None = None,
) -> dict[str, object]:
    """Make plain values of it, ready for JSON; durations in seconds, and null for whatever is not known.

    A quantile is null where there are fewer than ``durations.requests_to_know`` of what it is taken of: 100 for p99.
    ``service`` is null for a closed loop, in which it is the latency.
    """
    streams = totals.ttft.total or totals.tokens
    return {
        "requests": totals.requests,
        "errors": totals.error_count,
        "answers_checked": checked,
        "seconds": totals.seconds,
        "throughput": totals.throughput,
        "latency": _values(totals.latency),
        "service": _values(totals.service) if is_open(schedule) else None,
        "send_lag_p50": totals.lag.quantile(0.50),
        "send_lag_p99": totals.lag.quantile(0.99),
        "cpu_seconds": totals.cpu_seconds,
        "client_ceiling": ceiling_per_second,
        "valid": not reasons,
        "reasons": [reason.text for reason in reasons],
        "schedule": schedule.workload(),
        "processes": processes,
        "error_kinds": dict(sorted(totals.errors.items())),
        "ttft": _values(totals.ttft) if streams else None,
        "itl": _gaps(totals.itl) if streams else None,
        "tpot": _gaps(totals.tpot) if streams else None,
        "output_tokens_per_second": totals.output_tokens_per_second,
        "resent": totals.resent,
        "tokens_from_usage": totals.tokens_from_usage if streams else None,
    }


def _values(durations: Durations) -> dict[str, float | None]:
    return {
        "mean": durations.mean,
        **{name: durations.quantile(q) for name, q in _QUANTILES.items()},
        "max": durations.maximum,
    }


def _gaps(gaps: Durations) -> dict[str, float | None]:
    unknown = [name for name, q in _QUANTILES.items() if not is_quantile_known(gaps.histogram, q)]
    return {**_values(gaps), **dict.fromkeys(unknown)}


def _summary(totals: Totals) -> list[str]:
    latency = totals.latency
    lines = [
        "Summary:",
        f"  Total:         {format_seconds(totals.seconds)}",
        f"  Slowest:       {_seconds(latency.maximum)}",
        f"  Fastest:       {_seconds(latency.minimum)}",
        f"  Average:       {_seconds(latency.mean)}",
        f"  Requests/sec:  {UNKNOWN if totals.throughput is None else f'{totals.throughput:.4f}'}",
        f"  Total data:    {totals.bytes_received} bytes",
    ]
    if totals.requests:
        lines.append(f"  Size/request:  {totals.bytes_received / totals.requests:.0f} bytes")
    return lines


def _histogram(latency: Durations) -> list[str]:
    """Draw as many bars as hey does: one for the fastest, ten steps from there to the slowest."""
    fastest, slowest = latency.minimum, latency.maximum
    assert fastest is not None
    assert slowest is not None
    marks = [fastest + (slowest - fastest) * step / BAR_STEPS for step in range(BAR_STEPS + 1)]
    counts = [0] * len(marks)
    place = 0
    for bucket in sorted(latency.counts):
        while place < BAR_STEPS and min(seconds_of(bucket), slowest) > marks[place]:
            place += 1
        counts[place] += latency.counts[bucket]
    most = max(counts)
    labels = [format_seconds(mark) for mark in marks]
    wide, count_wide = max(map(len, labels)), len(str(most)) + 2
    bars = ["■" * round(count * BAR_COLUMNS / most) for count in counts]
    return [
        "Response time histogram:",
        *(
            f"  {label:>{wide}} {f'[{count}]':<{count_wide}} |{bar}"
            for label, count, bar in zip(labels, counts, bars, strict=True)
        ),
    ]


def _distribution(latency: Durations) -> list[str]:
    lines = ["Latency distribution:"]
    for percent in (*PERCENTS, RARE_PERCENT):
        # 99.9 / 100 is not quite 0.999.
        q = round(percent / 100, 6)
        seconds = latency.quantile(q)
        if seconds is not None:
            lines.append(f"  {percent:g} % in {format_seconds(seconds)}")
        elif percent != RARE_PERCENT:
            lines.append(f"  {percent:g} % in {UNKNOWN} (known from {requests_to_know(q)} requests on)")
    return lines


def _open_loop(totals: Totals) -> list[str]:
    achieved = totals.achieved
    share = "" if achieved is None else f" ({format_fraction(achieved)})"
    return [
        "Open loop (latency counts from the intended send, service time from the actual one):",
        f"  Service time:  {_line(_values(totals.service))}",
        f"  Send lag:      {_line(_values(totals.lag))}",
        f"  Sent:          {totals.sent} of {totals.due} due{share}, {totals.held} after waiting for max_in_flight",
    ]


def _streams(totals: Totals) -> list[str]:
    rate = format_rate(totals.tokens / totals.seconds) if totals.tokens and totals.seconds else UNKNOWN
    within = within_one_read(totals.itl.histogram)
    lines = [
        "Streams:",
        f"  First token:     {_line(_values(totals.ttft))}",
        f"  Between chunks:  {_line(_gaps(totals.itl))}",
    ]
    if totals.tpot.total:
        lines.append(f"  A token (TPOT):  {_line(_gaps(totals.tpot))}")
    if not is_quantile_known(totals.itl.histogram, 0.99):
        lines.append(f"  In one read:     {format_fraction(within)} of these gaps, which blur the quantiles shown as -")
    if totals.tokens_from_usage:
        return [*lines, f"  Tokens:          {totals.tokens}, {rate}"]
    known = f"{totals.with_usage} of {totals.requests} answers say how many tokens they have"
    return [*lines, f"  Chunks:          {totals.tokens}, {rate} ({known})"]


def _answers(totals: Totals, checked: int | None) -> list[str]:
    compared = "" if checked is None else f", {checked} of them compared with what is expected"
    lines = ["Answers:", f"  [good]  {totals.requests}{compared}"]
    for kind, count in sorted(totals.errors.items(), key=lambda item: (-item[1], item[0])):
        sample = totals.error_samples.get(kind)
        lines.append(f"  [{kind}]  {count}" + (f", the first: {one_line(sample)}" if sample else ""))
    if totals.resent:
        why = "the server closed connections that it had kept open"
        lines.append(f"  {totals.resent} requests were sent again, on new connections: {why}")
    return lines


def _client(totals: Totals, processes: int, ceiling: float | None) -> list[str]:
    each = "" if processes == 1 else f" for each of {processes} processes"
    share = format_fraction(totals.cpu_seconds / (totals.seconds * processes)) if totals.seconds else UNKNOWN
    lines = ["Client:", f"  CPU:  {_seconds(totals.cpu_seconds_a_request)} a request, {share} of a core{each}"]
    if ceiling is not None:
        lines.append(f"  Ceiling:  {format_rate(ceiling)} on this host, against a server that does nothing")
    return lines


def _verdict(reasons: Sequence[Reason]) -> list[str]:
    return ["INVALID:", *(f"  {reason.text}" for reason in reasons)] if reasons else ["VALID"]


def _line(values: dict[str, float | None]) -> str:
    return ", ".join(f"{name} {_seconds(values[name])}" for name in ("mean", "p50", "p99", "max"))


def _seconds(seconds: float | None) -> str:
    return UNKNOWN if seconds is None else format_seconds(seconds)
