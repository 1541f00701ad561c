"""The fixed work of a reading of the host, run as a program of its own with nothing but the standard library.

``python host_work.py`` prints the log of the seconds of one piece of the work. A piece is a loop of the interpreter,
like those of a tokenizer, a server and a load engine.
"""

from __future__ import annotations

import math
import sys
import time
from typing import Final

PIECES: Final = 500
"""Number of pieces, of some 0.3 ms each."""


def work() -> None:
    """Loop, calculate and look up."""
    table: dict[int, tuple[int, str]] = {}
    total = 0
    for number in range(2000):
        total = (total * 31 + number) & 0xFFFFFF
        table[total & 255] = (number, str(total))


def log_seconds() -> float:
    """Log of the seconds of the fastest piece.

    Other processes can only slow a piece down. A piece is shorter than a scheduler's time slice, so that some run
    undisturbed even on a busy host. `cpu` judges the use of CPU time during a load.
    """
    fastest = math.inf
    for _ in range(PIECES):
        began = time.perf_counter()
        work()
        fastest = min(fastest, time.perf_counter() - began)
    return math.log(fastest)


if __name__ == "__main__":
    sys.stdout.write(repr(log_seconds()))
