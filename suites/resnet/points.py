"""Which batches are measured where, in workers of both kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from _pytest.mark.structures import ParameterSet

BATCHES = (1, 32, 64, 128, 256)
"""The published ones."""

CPU_BATCHES = (1,)

CPU_COMPILED_BATCHES = (1,)
"""One: each shape is compiled for some 20 s where inductor's cache does not know it yet."""


def wanted_points() -> list[ParameterSet]:
    """Every batch, by itself and compiled; those that a CPU is spared carry the marker."""

    def point(batch: int, *, compiled: bool) -> ParameterSet:
        on_cpu = CPU_COMPILED_BATCHES if compiled else CPU_BATCHES
        marks = [] if batch in on_cpu else [pytest.mark.gpuserve_full]
        return pytest.param(batch, compiled, marks=marks, id=f"batch{batch}-{'compiled' if compiled else 'eager'}")

    batches = sorted({*BATCHES, *CPU_BATCHES})
    return [point(batch, compiled=compiled) for compiled in (False, True) for batch in batches]
