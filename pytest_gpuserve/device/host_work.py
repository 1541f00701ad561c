"""The fixed work of a reading of the host, run as a program of its own with nothing but the standard library.

``python host_work.py`` prints the log of the seconds that one piece of the work takes: a loop of the interpreter, which
a tokenizer, a server and a load engine go through.
"""

from __future__ import annotations

import math
import sys
import time
from typing import Final

PIECES: Final = 500
"""Of some 0.3 ms each."""


def work() -> None:
    """Loop, calculate and look up."""
    table: dict[int, tuple[int, str]] = {}
    total = 0
    for number in range(2000):
        total = (total * 31 + number) & 0xFFFFFF
        table[total & 255] = (number, str(total))


def log_seconds() -> float:
    """The log of the seconds that the fastest piece takes.

    Other processes only ever add to a piece. A piece is shorter than a scheduler's time slice, so that some run
    undisturbed on a busy host too; who takes CPU time is judged by `cpu`, while the load runs.
    """
    fastest = math.inf
    for _ in range(PIECES):
        began = time.perf_counter()
        work()
        fastest = min(fastest, time.perf_counter() - began)
    return math.log(fastest)


if __name__ == "__main__":
    sys.stdout.write(repr(log_seconds()))
