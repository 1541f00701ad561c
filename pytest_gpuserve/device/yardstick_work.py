"""The fixed work of a yardstick, run as a program of its own with nothing but the standard library.

``python yardstick_work.py PROCESSES`` does each kind of work in so many processes at once, and prints as JSON how often
a second they have done it together. All cores are used at once, as servers use them: a time quota, or a sibling thread
of the same core, does not show in the work of one.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

WORK_NS: Final = 100_000_000
"""How long each kind of work is done: as long as the period of a control group's time quota is by default."""

BEGIN_NS: Final = 30_000_000
"""Until then all processes have been made."""

COPIED_BYTES: Final = 1 << 24
"""Of two processes, more than most caches hold."""

HASHED_BYTES: Final = 1 << 16

_SOURCE: Final = bytearray(COPIED_BYTES)
_TARGET: Final = bytearray(COPIED_BYTES)
_HASHED: Final = bytes(HASHED_BYTES)


def interpret() -> None:
    """Loop, calculate, and look up: what the interpreter of a server does around its model."""
    table: dict[int, tuple[int, str]] = {}
    total = 0
    for number in range(1000):
        total = (total * 31 + number) & 0xFFFFFF
        table[total & 255] = (number, str(total))
    sorted(table)


def calculate() -> None:
    """Hash what the caches hold: OpenSSL's vector arithmetic, which every interpreter has."""
    hashlib.sha512(_HASHED, usedforsecurity=False).digest()


def copy() -> None:
    """Copy from memory to memory."""
    _TARGET[:] = _SOURCE


KINDS: Final[dict[str, Callable[[], None]]] = {"interpreter": interpret, "arithmetic": calculate, "memory": copy}


def work(begin_ns: int) -> list[float]:
    """Do each kind of work for its time, the first from ``begin_ns`` (monotonic) on; how often a second of each."""
    for do in KINDS.values():
        do()
    rates = []
    for number, do in enumerate(KINDS.values()):
        start_ns = begin_ns + number * WORK_NS
        while time.monotonic_ns() < start_ns:
            pass
        count = 0
        # Once at least, and from when it was due: a machine on which nobody gets a turn in that time is slow too.
        while count == 0 or time.monotonic_ns() < start_ns + WORK_NS:
            do()
            count += 1
        rates.append(count * 1e9 / (time.monotonic_ns() - start_ns))
    return rates


def measure(processes: int) -> dict[str, float]:
    """Measure with so many processes at once. Raises ChildProcessError where one sent no numbers."""
    begin_ns = time.monotonic_ns() + BEGIN_NS
    pipes = []
    for _ in range(processes):
        reading, writing = os.pipe()
        if not os.fork():
            try:
                os.write(writing, json.dumps(work(begin_ns)).encode())
            finally:
                os._exit(0)
        os.close(writing)
        pipes.append(reading)
    totals = [0.0] * len(KINDS)
    for pipe in pipes:
        with os.fdopen(pipe, "rb") as told:
            text = told.read()
        if not text:
            raise ChildProcessError("a process ended before it had told its numbers")
        totals = [total + rate for total, rate in zip(totals, json.loads(text), strict=True)]
    for _ in pipes:
        os.wait()
    return dict(zip(KINDS, totals, strict=True))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(int(sys.argv[1]))))
