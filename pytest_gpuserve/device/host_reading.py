"""How fast the host is, by fixed work that no change of the code under test can touch.

A reading is never used to scale a number, for workloads follow it by different amounts. It tells whether a stored
number is of a host as fast as this one.
"""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Final

from pytest_gpuserve.errors import GpuserveError
from pytest_gpuserve.units import format_fraction

LIMIT: Final = 0.05
"""How far, as a change of log time, a host may be from what it was."""

SECONDS: Final = 30.0
"""A deadline that only a host which hardly runs at all should reach: the work takes a quarter of a second."""


class NoReading(GpuserveError):
    """The host could not be measured, so that nobody knows how fast it is."""


def read_host() -> float:
    """Measure the host now, by a process that nothing of this one slows down: the log of the seconds of fixed work.

    Raises:
        NoReading: It could not be measured.
    """
    # Neither the user's site-packages nor variables: what is measured must be the same work whatever the project.
    argv = [sys.executable, "-I", "-S", str(Path(__file__).with_name("host_work.py"))]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False)
        found = float(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as problem:
        raise NoReading("how fast this host is could not be measured", found=str(problem)) from None
    if not math.isfinite(found):
        raise NoReading("how fast this host is could not be measured", found=repr(found))
    return found


def speed_text(then: float | None, now: float | None) -> str:
    """Why a number that was stored is not of a host as fast as this one; empty where it is.

    Args:
        then: The reading of the recording; None where there was none.
        now: That of this run; None where it could not be measured.
    """
    if now is None:
        return "how fast this host is could not be measured"
    if then is None:
        return "how fast the host was when the baseline was recorded is not known"
    if abs(now - then) <= LIMIT:
        return ""
    word = "slower" if now > then else "faster"
    return f"this host is {format_fraction(math.expm1(abs(now - then)))} {word} than when the baseline was recorded"
