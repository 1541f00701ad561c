"""What the collected tests will compare, as far as their code tells, before any of them is run."""

from __future__ import annotations

import inspect
from types import CodeType
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.gate.metric import METRICS
from pytest_gpuserve.items import MEASURING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pytest

CLAIMING: Final = frozenset({"baseline", "duel"})
"""Fixtures whose comparisons claim something beyond chance."""


def compared_metrics(item: pytest.Item) -> frozenset[str]:
    """The metrics that a test's function mentions by name; all usual ones where it mentions none, as through a helper.

    A metric that only a helper mentions is gated like any other, but its load may be too short for it, which is told.
    """
    function = getattr(item, "function", None)
    # Of a decorated test both count: the wrapper and what it wraps.
    codes = [getattr(each, "__code__", None) for each in (function, inspect.unwrap(function) if function else None)]
    mentioned = {name for code in codes if code is not None for name in _names(code)}
    named = frozenset(name for name, metric in METRICS.items() if metric.option in mentioned)
    return named or frozenset(name for name, metric in METRICS.items() if not metric.on_request)


def planned_comparisons(items: Iterable[pytest.Item]) -> int:
    """How many comparisons the measuring tests among these will make, as far as their code tells.

    One that is skipped makes none, and neither does one that compares with published numbers alone: these have no
    samples, so that nothing is claimed of them beyond chance.
    """
    return sum(
        len(compared_metrics(item))
        for item in items
        if _can_claim(getattr(item, "fixturenames", ())) and item.get_closest_marker("skip") is None
    )


def _can_claim(fixturenames: Sequence[str]) -> bool:
    return MEASURING in fixturenames and ("published" not in fixturenames or not CLAIMING.isdisjoint(fixturenames))


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
