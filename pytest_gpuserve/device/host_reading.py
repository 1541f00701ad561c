"""Speed of the host, by fixed work that no change of the code under test can affect.

A reading never scales a number, because workloads follow it by different amounts. It tells whether a stored number
comes from a host as fast as this one.
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
"""Largest difference of a host's readings, as a change of log time, that counts as the same speed."""

SECONDS: Final = 30.0
"""Deadline that only a host in trouble reaches: the work takes a quarter of a second."""


class NoReading(GpuserveError):
    """The host could not be measured, so its speed is unknown."""


def read_host() -> float:
    """Measure the host in a process that this one does not slow down: log of the seconds of fixed work.

    Raises:
        NoReading: The host could not be measured.
    """
    # Without the user's site-packages and variables, because the work must be the same for every project.
    argv = [sys.executable, "-I", "-S", str(Path(__file__).with_name("host_work.py"))]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False)
        found = float(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as problem:
        raise NoReading("the speed of this host could not be measured", found=str(problem)) from None
    if not math.isfinite(found):
        raise NoReading("the speed of this host could not be measured", found=repr(found))
    return found


def speed_text(then: float | None, now: float | None) -> str:
    """Reason why a stored number comes from a host of another speed; empty for the same speed.

    Args:
        then: The reading of the recording, or None.
        now: The reading of this run; None if it failed.
    """
    if now is None:
        return "the speed of this host could not be measured"
    if then is None:
        return "the speed of the host when the baseline was recorded is unknown"
    if abs(now - then) <= LIMIT:
        return ""
    word = "slower" if now > then else "faster"
    return f"this host is {format_fraction(math.expm1(abs(now - then)))} {word} than when the baseline was recorded"
