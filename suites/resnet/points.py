"""Which batches are measured where, in workers of both kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from _pytest.mark.structures import ParameterSet

BATCHES = (1, 32, 64, 128, 256)
"""The published ones."""

SMALLEST = 1
"""Measured without ``--gpuserve-full``: inductor compiles each shape for some 20 s unless its cache has it."""


def wanted_points() -> list[ParameterSet]:
    """Return each batch, eager and compiled; all but the smallest carry the marker ``gpuserve_full``."""

    def point(batch: int, *, compiled: bool) -> ParameterSet:
        marks = [] if batch == SMALLEST else [pytest.mark.gpuserve_full]
        return pytest.param(batch, compiled, marks=marks, id=f"batch{batch}-{'compiled' if compiled else 'eager'}")

    return [point(batch, compiled=compiled) for compiled in (False, True) for batch in BATCHES]
