"""The load generator as a command: ``python -m pytest_gpuserve.load URL --concurrency 16 --requests 100000``.

Exit status: 0 for a valid measurement, 1 for one that proves nothing, 2 for a wrong argument, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pytest_gpuserve.device.host import read_host
from pytest_gpuserve.errors import GpuserveError, LoadFailed, UsageProblem
from pytest_gpuserve.load.driver import LOCAL, Engines, EngineSource
from pytest_gpuserve.load.request import Request
from pytest_gpuserve.load.schedule import Closed, Constant, Poisson, is_open
from pytest_gpuserve.load.tick import shares
from pytest_gpuserve.load.validity import lost_in_mid_load, one_line, reasons
from pytest_gpuserve.load.wire import Plan, endpoint_of
from pytest_gpuserve.measure.histogram import is_quantile_known
from pytest_gpuserve.measure.window import Streams, Window
from pytest_gpuserve.process.command_line import INTERRUPTED, failed, refused, run_command
from pytest_gpuserve.process.secrets import secret_headers, without_secrets
from pytest_gpuserve.units import format_rate, format_seconds
from pytest_gpuserve.verdict.reason import Reason, ReasonKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpuserve.load.schedule import Schedule
    from pytest_gpuserve.measure.histogram import Histogram


@dataclass(frozen=True)
class LoadOutcome:
    """Result of a load.

    Args:
        totals: Sum of all ticks.
        reasons: Reasons why the load proves nothing; empty if it is valid.
    """

    totals: Window
    reasons: tuple[Reason, ...]


def run_load(
    plan: Plan,
    *,
    processes: int = 1,
    cores: int | None = None,
    warmup_ns: int = 0,
    allowed_errors: float = 0.0,
    source: EngineSource = LOCAL,
) -> LoadOutcome:
    """Run a load and add up its ticks; a load that is lost on the way is kept, with the reason.

    Args:
        plan: The load; without an end of its own it needs Ctrl-C.
        processes: Engines that share it.
        cores: Cores that they may use together; None for one each.
        warmup_ns: Ticks that begin within this time are thrown away, except for their errors.
        allowed_errors: Share of the requests that may fail.
        source: Source of the engines.

    Raises:
        LoadFailed: An engine failed before the first tick.
        UsageProblem: The limit on open files is too low.
    """
    totals = Window()
    of_each: dict[str, Window] = {}
    found: list[Reason] = []
    course: list[int] = []
    begin_ns: int | None = None
    try:
        with Engines(plan, processes, source) as engines:
            while True:
                tick = engines.next_tick()
                begin_ns = tick.begin_ns if begin_ns is None else begin_ns
                if tick.begin_ns - begin_ns >= warmup_ns:
                    totals += tick
                    of_each = shares([tick], of_each)
                    course += [tick.under_way] if tick.due else []
                else:
                    totals += Window(errors=tick.errors, error_samples=tick.error_samples)
                if tick.last:
                    break
    except KeyboardInterrupt:
        found.append(Reason(ReasonKind.INTERRUPTED, "interrupted by Ctrl-C: not decided"))
    except LoadFailed as problem:
        if begin_ns is None:
            # The load never began, so an error loses no measurement.
            raise
        found.append(lost_in_mid_load(problem))
    found += reasons(
        totals,
        schedule=plan.schedule,
        processes=processes,
        cores=cores,
        allowed_errors=allowed_errors,
        course=course,
        workers=of_each,
    )
    return LoadOutcome(totals, tuple(found))


def make_parser() -> argparse.ArgumentParser:
    """Make the parser; it checks the range of each number, but not their combination."""
    parser = argparse.ArgumentParser(
        prog="python -m pytest_gpuserve.load",
        usage="%(prog)s URL [options]",
        description="Load a server, and print the measurement and whether it is valid.",
        epilog="Exit status: 0 if the measurement is valid, 1 if not, 2 for a wrong argument.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("url", help="http(s)://HOST:PORT/PATH, grpc(s)://HOST:PORT/SERVICE/METHOD")
    add("--concurrency", type=_count, metavar="N", help="closed loop of N users (default: 16)")
    add("--rate", type=_above_zero, metavar="PER_SECOND", help="open loop at this rate")
    add("--arrivals", choices=["constant", "poisson"], help="arrivals of the open loop (default: constant)")
    add("--max-in-flight", type=_count, metavar="N", help="ceiling on an open loop's requests in flight")
    add("--requests", type=_count, metavar="N", help="end after this number of requests")
    add("--duration", type=_above_zero, metavar="SECONDS", help="end after this time (default: 10)")
    add("--warmup", type=_above_zero, default=0.0, metavar="SECONDS", help="first part of the duration, not counted")
    add("--processes", type=_count, default=1, metavar="N", help="engines that share the load (default: 1)")
    add("--body", metavar="TEXT", action="append", default=[], help="request body; repeat it to rotate several")
    add("--body-file", type=Path, metavar="FILE", action="append", default=[], help="the same from a file")
    add("--header", metavar="'NAME: VALUE'", action="append", default=[], help="header of every request")
    add("--stream", action="store_true", help="answers are server-sent events: time their tokens")
    add("--allowed-errors", type=_share, default=0.0, metavar="SHARE", help="of requests that may fail (default: 0)")
    add("--timeout", type=_above_zero, default=10.0, metavar="SECONDS", help="most time of a request (default: 10)")
    add("--json", action="store_true", help="print JSON instead of the summary")
    return parser


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 10**12:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)


def _above_zero(text: str) -> float:
    return _within(text, 1e-6, 1e9, "a number above 0")


def _share(text: str) -> float:
    return _within(text, 0.0, 0.999999, "a share of the requests from 0 to below 1")


def _within(text: str, least: float, most: float, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"{what}, not {text!r}")
    return value


def plan_of(arguments: argparse.Namespace) -> Plan:
    """Make the plan from the arguments.

    Raises:
        UsageProblem: Arguments contradict each other, do not apply to such a server, or name unreadable files.
    """
    headers = headers_of(arguments.header)
    endpoint, path = endpoint_of(arguments.url, stream=arguments.stream)
    over_http = endpoint.protocol in {"http", "sse"}
    if not over_http and (headers or arguments.stream):
        # Silently ignored options would be misleading.
        raise UsageProblem("--header and --stream apply only to http:// or https://")
    bodies = [os.fsencode(text) for text in arguments.body]
    bodies += [read_bytes(file, "--body-file") for file in arguments.body_file]
    payloads = bodies or [b""]
    method = "POST" if bodies else "GET"
    if over_http:
        requests = [Request(method, path, body, headers) for body in payloads]
        payloads = [request.to_bytes(endpoint.authority) for request in requests]
    seconds = 10.0 if arguments.duration is None and arguments.requests is None else arguments.duration
    if seconds is not None and arguments.warmup >= seconds:
        raise UsageProblem(
            f"--warmup {arguments.warmup:g} leaves nothing of the load, which takes {seconds:g} s",
            remedies=["a longer --duration, because it includes --warmup"],
        )
    return Plan(
        endpoint=endpoint,
        payloads=tuple((payload,) for payload in payloads),
        schedule=_schedule(arguments),
        tick_ns=100_000_000,
        timeout_ns=round(arguments.timeout * 1e9),
        requests=arguments.requests,
        nanoseconds=None if seconds is None else round(seconds * 1e9),
        keep_answers="none",
    )


def _schedule(arguments: argparse.Namespace) -> Schedule:
    if arguments.rate is None:
        if arguments.arrivals or arguments.max_in_flight:
            raise UsageProblem("--arrivals and --max-in-flight apply only with --rate")
        return Closed(arguments.concurrency or 16)
    if arguments.concurrency:
        raise UsageProblem("--concurrency and --rate contradict each other", remedies=["give one of them"])
    kind = Poisson if arguments.arrivals == "poisson" else Constant
    return kind(arguments.rate, max_in_flight=arguments.max_in_flight)


def headers_of(texts: Sequence[str]) -> dict[str, str]:
    """Headers as ``NAME: VALUE``, each name once. Raises UsageProblem for other texts."""
    headers: dict[str, str] = {}
    for text in texts:
        name, colon, value = (part.strip() for part in text.partition(":"))
        if not colon or name.lower() in {known.lower() for known in headers}:
            raise UsageProblem("--header is 'NAME: VALUE', each name once", found=f"{name!r}")
        headers[name] = value
    return headers


def read_bytes(file: Path, option: str) -> bytes:
    """Contents of a file that an option names. Raises UsageProblem if it cannot be read."""
    try:
        return file.read_bytes()
    except OSError as problem:
        raise UsageProblem(f"{option} {file} cannot be read", found=str(problem)) from problem


def main(argv: Sequence[str]) -> int:
    """Load the server, print the result, and return the exit status."""
    try:
        arguments = make_parser().parse_args(argv)
        plan = plan_of(arguments)
        outcome = run_load(
            plan,
            processes=arguments.processes,
            warmup_ns=round(arguments.warmup * 1e9),
            allowed_errors=arguments.allowed_errors,
            cores=read_host().cores,
        )
    except UsageProblem as problem:
        return refused(problem)
    except GpuserveError as problem:
        return failed(problem)
    # An answer may repeat secrets of a request, or of this process.
    secrets = {**os.environ, **secret_headers(headers_of(arguments.header))}
    values = values_of(outcome, plan.schedule)
    values["reasons"] = [without_secrets(reason.text, secrets) for reason in outcome.reasons]
    text = msgspec.json.format(msgspec.json.encode(values)).decode()
    print(text if arguments.json else without_secrets(summary(outcome, values), secrets))  # noqa: T201 -- a command
    if any(reason.kind is ReasonKind.INTERRUPTED for reason in outcome.reasons):
        return INTERRUPTED
    return 1 if outcome.reasons else 0


def values_of(outcome: LoadOutcome, schedule: Schedule) -> dict[str, Any]:
    """Result of a load, ready for JSON: durations in seconds, unknown values as null.

    A quantile is null if it has fewer than ``histogram.requests_to_know`` values. ``service`` is null for a closed
    loop, whose latency it is.
    """
    totals = outcome.totals
    streams = totals.streams or Streams()
    is_known = streams.has_usage and streams.tokens > 0 and totals.seconds
    return {
        "requests": totals.requests,
        "errors": totals.error_count,
        "error_kinds": dict(sorted(totals.errors.items())),
        "seconds": totals.seconds,
        "throughput": totals.throughput if totals.seconds else None,
        "latency": _times(totals.latency),
        "service": _times(totals.service) if is_open(schedule) else None,
        "send_lag_p50": totals.lag.known_quantile(0.50),
        "send_lag_p99": totals.lag.known_quantile(0.99),
        "ttft": _times(streams.ttft) if totals.streams else None,
        "itl": _times(streams.itl, gaps=True) if totals.streams else None,
        "tpot": _times(streams.tpot, gaps=True) if totals.streams else None,
        "output_tokens_per_second": streams.tokens / totals.seconds if is_known else None,
        "cpu_seconds": totals.cpu_seconds,
        "valid": not outcome.reasons,
        "reasons": [reason.text for reason in outcome.reasons],
    }


def _times(durations: Histogram, *, gaps: bool = False) -> dict[str, float | None]:
    """Mean, quantiles and maximum; gaps between chunks within one read of the client are unknown."""
    known = {q: not gaps or is_quantile_known(durations, q) for q in (0.50, 0.90, 0.95, 0.99)}
    quantiles = {
        f"p{round(100 * q)}": durations.known_quantile(q) if is_known else None for q, is_known in known.items()
    }
    return {"mean": durations.mean, **quantiles, "max": durations.max_seconds if durations.total else None}


def summary(outcome: LoadOutcome, values: Mapping[str, Any]) -> str:
    """Result of a load for people: several lines, without a final newline; ``values`` are those of `values_of`."""
    totals = outcome.totals
    lines = [
        f"requests    {totals.requests} in {format_seconds(totals.seconds)}",
        f"throughput  {format_rate(totals.throughput) if totals.seconds else '-'}",
    ]
    for name in ("latency", "ttft", "itl", "tpot"):
        times = values[name] or {}
        if times.get("mean") is not None:
            told = (f"{which} {'-' if value is None else format_seconds(value)}" for which, value in times.items())
            lines.append(f"{name if name == 'latency' else name.upper():<11} {', '.join(told)}")
    if values["output_tokens_per_second"] is not None:
        lines.append(f"tokens      {format_rate(values['output_tokens_per_second'])}")
    for kind, count in sorted(totals.errors.items()):
        sample = totals.error_samples.get(kind)
        lines.append(f"{kind}: {count}" + (f", the first: {one_line(sample)}" if sample else ""))
    lines += [f"INVALID: {reason.text}" for reason in outcome.reasons] or ["VALID"]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(run_command(main))
