"""Holm's step-down, to which the rules for claims that come one after another are held."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuserve.gate.sequential import ALPHA

if TYPE_CHECKING:
    from collections.abc import Mapping


def holm(p_values: Mapping[str, float], alpha: float = ALPHA) -> frozenset[str]:
    """Which of all claims are upheld once all are known (Scandinavian Journal of Statistics 6, 1979, 65-70).

    Args:
        p_values: Of each claim, by a name.
        alpha: How likely any upheld claim may be wrong.
    """
    upheld: set[str] = set()
    for name in sorted(p_values, key=lambda name: p_values[name]):
        if p_values[name] > alpha / (len(p_values) - len(upheld)):
            break
        upheld.add(name)
    return frozenset(upheld)
