"""The fixed work of a reading of the host, run as a program of its own with nothing but the standard library.

``python host_work.py`` prints the log of the seconds that the work takes: a loop of the interpreter, which a tokenizer,
a server and a load engine go through, and a copy of memory.
"""

from __future__ import annotations

import math
import sys
import time
from statistics import median
from typing import Final

REPEATS: Final = 9

COPIED_BYTES: Final = 1 << 24
"""Of two buffers, more than most caches hold."""


def work(source: bytearray, target: bytearray) -> None:
    """Loop, calculate, look up, and copy."""
    table: dict[int, tuple[int, str]] = {}
    total = 0
    for number in range(20_000):
        total = (total * 31 + number) & 0xFFFFFF
        table[total & 255] = (number, str(total))
    for _ in range(4):
        target[:] = source


def log_seconds() -> float:
    """The log of the seconds that it takes: the median of some tries, so that no interruption decides it."""
    source, target = bytearray(COPIED_BYTES), bytearray(COPIED_BYTES)
    work(source, target)
    taken = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        work(source, target)
        taken.append(time.perf_counter() - began)
    return math.log(median(taken))


if __name__ == "__main__":
    sys.stdout.write(repr(log_seconds()))
