"""Speed of the host, by fixed work that no change of the code under test can affect.

A reading never scales a number, because workloads follow it by different amounts. It tells whether a stored number
comes from a host as fast as this one: see `rules.speed_text`.

``python host_speed.py`` prints a reading. The work runs as that program, with nothing but the standard library.
"""

from __future__ import annotations

import math
import subprocess
import sys
import time
from typing import Final

PIECES: Final = 500
"""Number of pieces of the work, of some 0.3 ms each."""

SECONDS: Final = 30.0
"""Deadline that only a host in trouble reaches: the work takes a quarter of a second."""


def read_speed() -> float | None:
    """Measure the host in a process that this one does not slow down: log of the seconds of fixed work.

    Returns:
        None if the host could not be measured.
    """
    # Without the user's site-packages and variables, because the work must be the same for every project.
    argv = [sys.executable, "-I", "-S", __file__]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False)
        found = float(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return found if math.isfinite(found) else None


def work() -> None:
    """Loop, calculate and look up, like a tokenizer, a server and a load engine."""
    table: dict[int, tuple[int, str]] = {}
    total = 0
    for number in range(2000):
        total = (total * 31 + number) & 0xFFFFFF
        table[total & 255] = (number, str(total))


def log_seconds() -> float:
    """Log of the seconds of the fastest piece.

    Other processes can only slow a piece down. A piece is shorter than a scheduler's time slice, so that some run
    undisturbed even on a busy host. `host` reads the use of CPU time during a load.
    """
    fastest = math.inf
    for _ in range(PIECES):
        began = time.perf_counter()
        work()
        fastest = min(fastest, time.perf_counter() - began)
    return math.log(fastest)


if __name__ == "__main__":
    sys.stdout.write(repr(log_seconds()))
