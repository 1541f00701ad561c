"""Measures the machine itself: fixed work that no change of the code under test can touch, on cores and on the card.

On the cores it is the interpreter, vector arithmetic and memory (`yardstick_work`), on a card a matrix multiply and a
copy, by the torch of an interpreter that has one (`yardstick_card`). Where none has, nothing but the card's clocks and
power limit tells how fast it is, and those are facts that must match anyway (`device.rules`).
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.errors import GpuserveError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_PROCESSES: Final = 16
"""Of a machine with more cores so many are worked on: each takes memory, and servers seldom use more."""

WORK_SECONDS: Final = 30.0
"""A deadline that only a machine which hardly runs at all should reach: the work takes some tenths of a second."""

CARD_SECONDS: Final = 120.0
"""The same of a card: torch is imported, and the driver may have to be loaded."""

NO_TORCH_EXIT: Final = 3
"""Exit status of `yardstick_card` where the interpreter has no torch that can use a card."""

_FOLDER: Final = Path(__file__).parent


class YardstickFailed(GpuserveError):
    """The machine could not be measured, so that nobody knows how fast it is."""


def measure_cores(cores: int) -> dict[str, float]:
    """Measure this many cores, all at once: takes 0.4 s.

    Returns:
        By the kind of work (``interpreter``, ``arithmetic``, ``memory``), how often a second all of them did it.

    Raises:
        YardstickFailed: They could not be measured.
    """
    processes = max(1, min(cores, MOST_PROCESSES))
    # Neither the user's site-packages nor variables: what is measured must be the same work whatever the project.
    argv = [sys.executable, "-I", "-S", str(_FOLDER / "yardstick_work.py"), str(processes)]
    return _rates(argv, os.environ, WORK_SECONDS)


def measure_card(python: str, environment: Mapping[str, str], *, torch_device: str = "cuda") -> dict[str, float]:
    """Measure a card by the torch of an interpreter: takes seconds, most of which torch needs to begin.

    Args:
        environment: Variables that name the card, on top of this process's own.
        torch_device: As torch calls it.

    Returns:
        By the kind of work (``matrix multiply``, ``card memory``), how often a second it was done; empty where the
        interpreter has no torch that can use the device.

    Raises:
        YardstickFailed: It could not be measured.
    """
    # This folder must not be where the interpreter looks for modules: its `select.py` is not Python's.
    argv = [python, "-I", str(_FOLDER / "yardstick_card.py"), torch_device]
    return _rates(argv, {**os.environ, **environment}, CARD_SECONDS)


def _rates(argv: Sequence[str], environment: Mapping[str, str], seconds: float) -> dict[str, float]:
    try:
        done = subprocess.run(
            argv,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise YardstickFailed("the speed of this machine could not be measured", found=str(problem)) from None
    if done.returncode == NO_TORCH_EXIT:
        return {}
    try:
        rates = {str(kind): float(rate) for kind, rate in json.loads(done.stdout).items()}
    except (ValueError, AttributeError, TypeError):
        rates = {}
    if done.returncode or not rates or not all(math.isfinite(rate) and rate > 0 for rate in rates.values()):
        raise YardstickFailed(
            "the speed of this machine could not be measured",
            found=f"exit status {done.returncode}, output {done.stdout[:200]!r}",
            log_tail=done.stderr[-2000:].decode(errors="replace"),
        )
    return rates
