"""Hooks that the plugin offers to others."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def pytest_gpuserve_distributions() -> Sequence[str]:  # type: ignore[empty-body]
    """Called once: names of installed distributions, as on the package index, whose versions baselines keep."""
