"""What the command sends, for how long, and what must come back, by its arguments."""

from __future__ import annotations

import os
import ssl
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.load.answers import AnswerCheck
from pytest_gpuserve.load.arguments import of_option, only_with, read_file
from pytest_gpuserve.load.command_schedule import schedule_of
from pytest_gpuserve.load.request import Request
from pytest_gpuserve.load.schedule import Steps
from pytest_gpuserve.load.url import endpoint_of
from pytest_gpuserve.load.wire import Endpoint, Plan

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

TICK_NS: Final = 100_000_000

DEFAULT_SECONDS: Final = 10.0


def plan_of(arguments: argparse.Namespace) -> Plan:
    """Make the plan that the arguments say.

    Raises:
        UsageProblem: Some contradict each other, mean nothing for such a server, or name what cannot be read.
    """
    headers = headers_of(arguments.header)
    endpoint, path = endpoint_of(
        arguments.url,
        stream=arguments.stream,
        verify=not arguments.insecure,
        ca_file=os.path.abspath(arguments.ca_file) if arguments.ca_file else "",  # noqa: PTH100 -- no symlinks resolved
        metadata=tuple(headers.items()) if arguments.url.startswith("grpc") else (),
    )
    bodies = [os.fsencode(text) for text in arguments.body]
    bodies += [read_file(file, "--body-file") for file in arguments.body_file]
    _check_target(arguments, endpoint, len(bodies))
    payloads = bodies or [b""]
    method = arguments.method if arguments.method is not None else "POST" if bodies else "GET"
    if endpoint.protocol in {"http", "sse"}:
        try:
            requests = [Request(method, path, body, headers) for body in payloads]
        except UsageProblem as problem:
            raise of_option("--method", problem) from problem
        payloads = [request.to_bytes(endpoint.host, endpoint.port) for request in requests]
    return Plan(
        endpoint=endpoint,
        payloads=tuple((payload,) for payload in payloads),
        schedule=schedule_of(arguments, len(payloads)),
        tick_ns=TICK_NS,
        timeout_ns=round(arguments.timeout * 1e9),
        head=method == "HEAD",
        seed=arguments.seed,
        shuffled=arguments.shuffle,
        requests=arguments.requests,
        nanoseconds=_end_ns(arguments),
        keep_answers="some" if arguments.expect_file else "none",
    )


def headers_of(texts: Sequence[str]) -> dict[str, str]:
    """Read headers that are given as ``NAME: VALUE``.

    Raises:
        UsageProblem: One is none, cannot be sent, or is given twice.
    """
    headers: dict[str, str] = {}
    for text in texts:
        name, colon, value = (part.strip() for part in text.partition(":"))
        if not colon:
            raise UsageProblem("--header is 'NAME: VALUE'", found=repr(text))
        if name.lower() in {known.lower() for known in headers}:
            raise UsageProblem(f"--header {name!r} is given twice", remedies=[f"--header '{name}: ONE, OTHER'"])
        try:
            Request("GET", "/", headers={name: value})
        except UsageProblem as problem:
            raise of_option("--header", problem) from problem
        headers[name] = value
    return headers


def check_of(arguments: argparse.Namespace, payloads: int) -> AnswerCheck | None:
    """Make what checks the answers to so many bodies; None where nothing is expected of them.

    Raises:
        UsageProblem: A file cannot be read, or there are too few or too many.
    """
    if not arguments.expect_file:
        return None
    expected = [read_file(file, "--expect-file") for file in arguments.expect_file]
    if len(expected) not in {1, payloads}:
        raise UsageProblem(
            f"--expect-file is given once for all bodies or once for each of the {payloads}, not {len(expected)} times"
        )
    return AnswerCheck(expected * (payloads if len(expected) == 1 else 1))


def warmup_ns(seconds: float, plan: Plan) -> int:
    """How much of the load's begin is not counted.

    Raises:
        UsageProblem: It is all of the load.
    """
    begin_ns, whole_ns = round(seconds * 1e9), length_ns(plan)
    if whole_ns is not None and begin_ns >= whole_ns:
        raise UsageProblem(
            f"--warmup {seconds:g} leaves nothing of the load, which takes {whole_ns / 1e9:g} s",
            remedies=["a longer --duration, of which --warmup is a part"],
        )
    return begin_ns


def length_ns(plan: Plan) -> int | None:
    """How long the load takes at most, but for the last answers; None where nobody knows."""
    if not isinstance(plan.schedule, Steps):
        return plan.nanoseconds
    steps_ns = round(plan.schedule.seconds * 1e9)
    return steps_ns if plan.nanoseconds is None else min(steps_ns, plan.nanoseconds)


def _check_target(arguments: argparse.Namespace, endpoint: Endpoint, bodies: int) -> None:
    """Refuse options that mean nothing for this endpoint: what is ignored in silence is taken for done."""
    http = endpoint.protocol in {"http", "sse"}
    only_with(arguments, "method", http, "http:// or https://")
    only_with(arguments, "stream", http, "http:// or https://")
    only_with(arguments, "header", endpoint.protocol != "worker", "http(s):// or grpc(s)://")
    only_with(arguments, "ca_file", endpoint.tls is not None, "https:// or grpcs://")
    only_with(arguments, "insecure", endpoint.tls is not None, "https:// or grpcs://")
    only_with(arguments, "shuffle", bodies > 1 and arguments.trace is None, "several bodies, and without --trace")
    if arguments.ca_file and arguments.insecure:
        raise UsageProblem("--ca-file and --insecure contradict each other")
    if arguments.stream and arguments.method == "HEAD":
        raise UsageProblem("--stream and --method HEAD contradict each other: an answer to HEAD has no body")
    if arguments.ca_file:
        try:
            ssl.create_default_context(cafile=arguments.ca_file)
        except OSError as problem:
            raise UsageProblem(f"--ca-file {arguments.ca_file} holds no certificates", found=str(problem)) from problem


def _end_ns(arguments: argparse.Namespace) -> int | None:
    seconds: float | None = arguments.duration
    if seconds is not None:
        return round(seconds * 1e9)
    ends = any(getattr(arguments, name) is not None for name in ("requests", "steps", "burst", "trace"))
    return None if ends else round(DEFAULT_SECONDS * 1e9)
