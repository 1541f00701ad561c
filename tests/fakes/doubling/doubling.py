"""The model of all kinds of servers in the tests: it doubles, takes a known time a batch, and keeps count."""

from __future__ import annotations

import os
import time

SECONDS_A_BATCH = 0.008
MOST_AT_ONCE = 8
WAIT_SECONDS = 0.002

COUNTS_VARIABLE = "DOUBLING_COUNTS"
"""Names the file to which each batch adds a line: its size, when it was done in seconds, and the process."""


def work(size: int) -> None:
    """Take the time of a batch of any size, and note it."""
    time.sleep(SECONDS_A_BATCH)
    with open(os.environ[COUNTS_VARIABLE], "a") as file:  # noqa: PTH123 -- one write, in appending mode
        file.write(f"{size} {time.monotonic():.3f} {os.getpid()}\n")
