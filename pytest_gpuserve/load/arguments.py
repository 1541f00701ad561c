"""The arguments of the command, and what is said of those that are wrong."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.load.schedule import LEAST, MOST

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    when.add_argument(
        "--engine",
        default="local",
        help="where they run: local (default), ray (a Ray cluster for this load), or the address of one that is there:"
        " ray://HOST:PORT or HOST:PORT",
    )
    when.add_argument("--workers", type=_count, metavar="N", help="the same as --processes, of an engine on Ray")
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

    Args:
        arguments: Of the command.
        name: Of the argument, as its attribute.
        fits: Whether it means something.
        what: With what it would.

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
