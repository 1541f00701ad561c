"""Hooks that the plugin offers to others."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuserve.verdict.verdict import Judgement


def pytest_gpuserve_judged(nodeid: str, label: str, judgement: Judgement) -> None:
    """Called after each verdict; ``label`` tells apart several loads of one test."""


def pytest_gpuserve_distributions() -> Sequence[str]:  # type: ignore[empty-body]
    """Called once: names of distributions, as on the package index, whose versions baselines keep where installed."""
