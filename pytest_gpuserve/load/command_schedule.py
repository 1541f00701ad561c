"""When the command sends its requests, by its arguments."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.load.arguments import of_option, only_with, read_file
from pytest_gpuserve.load.schedule import MOST, Burst, Closed, Constant, Gamma, Poisson, Schedule, Steps, Trace

if TYPE_CHECKING:
    import argparse
    from pathlib import Path


def schedule_of(arguments: argparse.Namespace, payloads: int) -> Schedule:
    """Make the schedule that the arguments say.

    Args:
        arguments: Of the command.
        payloads: How many bodies there are, which a trace names by their number.

    Raises:
        UsageProblem: Some contradict each other, or say what cannot be.
    """
    given = [
        name for name in ("concurrency", "steps", "rate", "burst", "trace") if getattr(arguments, name) is not None
    ]
    if len(given) > 1:
        raise UsageProblem(
            f"--{' and --'.join(given)} contradict each other",
            remedies=["one of --concurrency, --steps, --rate, --burst and --trace says when requests are sent"],
        )
    kind = given[0] if given else "concurrency"
    only_with(arguments, "think", kind in {"concurrency", "steps"}, "--concurrency or --steps")
    only_with(arguments, "arrivals", kind == "rate", "--rate")
    only_with(arguments, "shape", arguments.arrivals == "gamma", "--arrivals gamma")
    only_with(arguments, "max_in_flight", kind in {"rate", "burst", "trace"}, "--rate, --burst or --trace")
    if kind == "trace":
        return _trace(arguments.trace, payloads, arguments.max_in_flight)
    try:
        return _of_kind(kind, arguments)
    except UsageProblem as problem:
        raise of_option(f"--{kind}", problem, remedies=problem.remedies) from problem


def _of_kind(kind: str, arguments: argparse.Namespace) -> Schedule:
    ceiling = arguments.max_in_flight
    if kind == "concurrency":
        return Closed(16 if arguments.concurrency is None else arguments.concurrency, arguments.think)
    if kind == "steps":
        return Steps(_steps(arguments.steps), arguments.think)
    if kind == "burst":
        return Burst(arguments.burst, ceiling)
    if arguments.arrivals == "gamma":
        return Gamma(arguments.rate, 1.0 if arguments.shape is None else arguments.shape, ceiling)
    return (Poisson if arguments.arrivals == "poisson" else Constant)(arguments.rate, ceiling)


def _steps(text: str) -> tuple[tuple[int, float], ...]:
    steps = []
    for part in text.split(","):
        users, _, seconds = part.partition(":")
        try:
            steps.append((int(users), float(seconds)))
        except ValueError as problem:
            raise UsageProblem(
                "USERS:SECONDS, several with commas between", found=repr(part), remedies=["--steps 1:5,10:5"]
            ) from problem
    return tuple(steps)


def _trace(file: Path, payloads: int, ceiling: int | None) -> Trace:
    requests: list[tuple[float, int]] = []
    before = 0.0
    for number, line in enumerate(read_file(file, "--trace").splitlines(), 1):
        words = line.split()
        if not words:
            continue
        try:
            seconds, index = float(words[0]), int(words[1]) if len(words) > 1 else len(requests) % payloads
        except ValueError:
            seconds, index = math.nan, 0
        if len(words) > 2 or not 0 <= seconds <= MOST or not 0 <= index < payloads:
            raise UsageProblem(
                f"--trace: line {number} of {file} is not `SECONDS [BODY_INDEX]` with an index below {payloads}",
                found=repr(line[:80].decode(errors="replace")),
            )
        if seconds < before:
            raise UsageProblem(
                f"--trace: line {number} of {file} goes back in time",
                found=f"{seconds:g} s after a line of {before:g} s",
            )
        before = seconds
        requests.append((seconds, index))
    if not requests:
        raise UsageProblem(f"--trace: {file} holds no request", remedies=["lines of `SECONDS [BODY_INDEX]`"])
    return Trace(tuple(requests), ceiling)
