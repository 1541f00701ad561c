"""The load generator as a command: ``python -m pytest_gpuserve.load URL --concurrency 16 --requests 100000``.

Exit status: 0 for a valid measurement, 1 for one from which nothing may be concluded, 2 for a wrong argument, 130 for
one that Ctrl-C ended.
"""

from __future__ import annotations

import argparse
import math
import os
import ssl
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, TypedDict

import msgspec

from pytest_gpuserve.device.host import read_host
from pytest_gpuserve.errors import GpuserveError, UsageProblem
from pytest_gpuserve.load.answers import AnswerCheck
from pytest_gpuserve.load.ceiling import load_ceiling
from pytest_gpuserve.load.progress import progress_line
from pytest_gpuserve.load.request import Request
from pytest_gpuserve.load.run import run_load
from pytest_gpuserve.load.schedule import LEAST, MOST, Burst, Closed, Constant, Gamma, Poisson, Schedule, Steps, Trace
from pytest_gpuserve.load.summary import summary_json, summary_text
from pytest_gpuserve.load.url import endpoint_of
from pytest_gpuserve.load.wire import Endpoint, Plan
from pytest_gpuserve.process.command_line import INTERRUPTED, failed, refused, run_command
from pytest_gpuserve.process.secrets import secret_headers, without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpuserve.gate.reason import Reason
    from pytest_gpuserve.load.run import LoadOutcome
    from pytest_gpuserve.load.totals import RunningTotals
    from pytest_gpuserve.load.wire import Tick

MOST_COUNTED: Final = 10**12
"""Beyond, a mistake is surer than a wish."""


def make_parser() -> argparse.ArgumentParser:
    """Make the parser; what it returns has numbers in their ranges, and says nothing of how they fit together."""
    parser = _Parser(
        prog="python -m pytest_gpuserve.load",
        description="Load a server and say what it did, and whether the measurement can be believed.",
        allow_abbrev=False,
    )
    parser.add_argument("url", help="http(s)://HOST:PORT/PATH, grpc(s)://HOST:PORT/SERVICE/METHOD, worker:///SOCKET")
    when = parser.add_argument_group("when requests are sent")
    when.add_argument("--concurrency", type=_count, metavar="N", help="closed loop of N users (default: 16)")
    when.add_argument(
        "--think", type=_from_zero, default=0.0, metavar="SECONDS", help="pause of a user after an answer"
    )
    when.add_argument("--steps", metavar="USERS:SECONDS,...", help="closed loop whose users change in steps")
    when.add_argument("--rate", type=_above_zero, metavar="PER_SECOND", help="open loop at this rate")
    when.add_argument(
        "--arrivals", choices=["constant", "poisson", "gamma"], help="of the open loop (default: constant)"
    )
    when.add_argument(
        "--shape", type=_above_zero, metavar="K", help="of gamma arrivals; 1 is Poisson, less is burstier"
    )
    when.add_argument("--burst", type=_count, metavar="N", help="N requests at once")
    when.add_argument("--trace", type=Path, metavar="FILE", help="replay lines of `SECONDS [BODY_INDEX]`")
    when.add_argument("--max-in-flight", type=_count, metavar="N", help="ceiling on an open loop's requests under way")
    when.add_argument("--seed", type=_seed, default=0, metavar="N", help="of arrivals and of --shuffle (default: 0)")
    when.add_argument("--requests", type=_count, metavar="N", help="end after so many")
    when.add_argument("--duration", type=_above_zero, metavar="SECONDS", help="end after so long (default: 10)")
    when.add_argument("--warmup", type=_from_zero, default=0.0, metavar="SECONDS", help="of the load, not counted")
    when.add_argument("--processes", type=_count, metavar="N", help="engines that share the load (default: 1)")
    what = parser.add_argument_group("what is sent")
    what.add_argument("--method", metavar="METHOD", help="default: GET, or POST with a body")
    what.add_argument("--body", metavar="TEXT", action="append", default=[], help="several rotate")
    what.add_argument("--body-file", type=Path, metavar="FILE", action="append", default=[], help="several rotate")
    what.add_argument("--shuffle", action="store_true", help="rotate in a seeded order")
    what.add_argument("--header", metavar="'NAME: VALUE'", action="append", default=[])
    what.add_argument("--stream", action="store_true", help="answers are server-sent events: time their tokens")
    what.add_argument("--ca-file", default="", metavar="FILE", help="certificates to trust instead of the system's")
    what.add_argument("--insecure", action="store_true", help="do not check the TLS certificate")
    what.add_argument("--timeout", type=_above_zero, default=10.0, metavar="SECONDS", help="of a request (default: 10)")
    back = parser.add_argument_group("what comes back")
    back.add_argument(
        "--expect-file", type=Path, metavar="FILE", action="append", default=[], help="each body's answer"
    )
    back.add_argument("--allowed-errors", type=_share, default=0.0, metavar="SHARE", help="default: 0")
    back.add_argument("--json", action="store_true", help="print JSON instead of the summary")
    return parser


def only_with(arguments: argparse.Namespace, name: str, fits: bool, what: str) -> None:  # noqa: FBT001 -- it reads as a sentence
    """See that an argument is not given where it means nothing.

    Raises:
        UsageProblem: It is given all the same.
    """
    if getattr(arguments, name) and not fits:
        raise UsageProblem(f"--{name.replace('_', '-')} means something only with {what}")


def of_option(option: str, problem: UsageProblem, *, remedies: Sequence[str] = ()) -> UsageProblem:
    """Name the option whose value has this problem."""
    return UsageProblem(f"{option}: {problem.summary}", found=problem.found, remedies=remedies)


def read_file(file: Path, option: str) -> bytes:
    """Read a file that an option names.

    Raises:
        UsageProblem: It cannot be read.
    """
    try:
        return file.read_bytes()
    except OSError as problem:
        raise UsageProblem(f"{option} {file} cannot be read", found=str(problem)) from problem


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in the way of this package, without a page of usage before it."""

    def error(self, message: str) -> NoReturn:
        """Refuse the arguments."""
        raise UsageProblem(message, remedies=[f"`{self.prog} --help` lists all arguments"])


def _count(text: str) -> int:
    """Read a whole number of 1 at least."""
    return _whole(text, 1)


def _seed(text: str) -> int:
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not least <= value <= MOST_COUNTED:
        raise argparse.ArgumentTypeError(f"a whole number from {least} to {MOST_COUNTED}, not {text!r}")
    return value


def _above_zero(text: str) -> float:
    value = _number(text)
    if not LEAST <= value <= MOST:
        raise argparse.ArgumentTypeError(f"a number above 0, from {LEAST:g} to {MOST:g}, not {text!r}")
    return value


def _from_zero(text: str) -> float:
    value = _number(text)
    if not 0 <= value <= MOST:
        raise argparse.ArgumentTypeError(f"a number from 0 to {MOST:g}, not {text!r}")
    return value


def _share(text: str) -> float:
    value = _number(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"a share of the requests from 0 to below 1, not {text!r}")
    return value


def _number(text: str) -> float:
    """Read a number; what is none is not a number, and so outside of every range."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def schedule_of(arguments: argparse.Namespace, payloads: int) -> Schedule:
    """Make the schedule that the arguments say.

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


QUIET_SECONDS: Final = 2.0
"""A load as short as this needs no progress line."""


def progress_on_terminal(
    length_ns: int | None,
) -> tuple[Callable[[RunningTotals, Tick], None], Callable[[], None]]:
    """Return what shows a progress line on the terminal, and what removes it; both do nothing without a terminal."""
    if not sys.stderr.isatty() or os.environ.get("CI") or os.environ.get("BUILD_NUMBER"):
        return (lambda _totals, _tick: None), (lambda: None)
    begin_ns: int | None = None
    is_shown = False

    def show(totals: RunningTotals, tick: Tick) -> None:
        nonlocal begin_ns, is_shown
        begin_ns = tick.begin_ns if begin_ns is None else begin_ns
        passed_ns = tick.end_ns - begin_ns
        if passed_ns < QUIET_SECONDS * 1e9:
            return
        left = None if length_ns is None else max(0.0, (length_ns - passed_ns) / 1e9)
        # The width of the terminal that the line is on; standard output may be somewhere else.
        width = (os.get_terminal_size(sys.stderr.fileno()).columns or 80) - 1
        is_shown = True
        sys.stderr.write("\r" + progress_line(totals.totals(), tick, left, width) + "\x1b[K")
        sys.stderr.flush()

    def clear() -> None:
        if is_shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    return show, clear


class _About(TypedDict):
    """What text and JSON show beside the totals."""

    schedule: Schedule
    processes: int
    reasons: Sequence[Reason]
    checked: int | None
    ceiling_per_second: float | None


def main(argv: Sequence[str]) -> int:
    """Load, print, and return the exit status."""
    try:
        return _load(make_parser().parse_args(argv))
    except UsageProblem as problem:
        return refused(problem)
    except GpuserveError as problem:
        return failed(problem)


def run() -> int:
    """Run the command on this process's arguments."""
    return run_command(main)


def _load(arguments: argparse.Namespace) -> int:
    plan = plan_of(arguments)
    check = check_of(arguments, len(plan.payloads))
    not_counted_ns = warmup_ns(arguments.warmup, plan)
    # A wrong GPUSERVE_HOST is told before the load, not after it.
    cores = read_host().cores
    show, clear = progress_on_terminal(length_ns(plan))
    workers = arguments.processes or 1
    try:
        outcome = run_load(
            plan,
            processes=workers,
            warmup_ns=not_counted_ns,
            check=check,
            allowed_errors=arguments.allowed_errors,
            cores=cores,
            ceiling=partial(load_ceiling, plan, workers),
            on_tick=show,
        )
    except UsageProblem as problem:
        # Too many connections for the limit on open files, or too few for the processes.
        remedies = [remedy.replace("processes=", "--processes ") for remedy in problem.remedies]
        raise of_option("--processes", problem, remedies=remedies) from problem
    finally:
        clear()
    outcome = _fit_to_show(outcome, headers_of(arguments.header))
    about = _About(
        schedule=plan.schedule,
        processes=workers,
        reasons=outcome.reasons,
        checked=outcome.checked,
        ceiling_per_second=outcome.ceiling_per_second,
    )
    if arguments.json:
        values = summary_json(outcome.totals, **about)
        text = msgspec.json.format(msgspec.json.encode(values), indent=2).decode()
    else:
        text = summary_text(outcome.totals, **about)
    print(text)  # noqa: T201 -- a command
    if outcome.interrupted:
        return INTERRUPTED
    return 1 if outcome.reasons else 0


def _fit_to_show(outcome: LoadOutcome, headers: Mapping[str, str]) -> LoadOutcome:
    """Take out the secrets of this process and of the request, which an answer may repeat."""
    shown = partial(without_secrets, environment={**os.environ, **secret_headers(headers)})
    samples = {kind: shown(sample) for kind, sample in outcome.totals.error_samples.items()}
    return replace(
        outcome,
        totals=replace(outcome.totals, error_samples=samples),
        reasons=tuple(reason.with_text(shown(reason.text)) for reason in outcome.reasons),
    )
