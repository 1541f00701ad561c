"""Parts of assertions, for every metric: the gating comparison, its mirror, and a judge that only notes."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuserve.compare.assertions import Comparison, Run
from pytest_gpuserve.verdict.metric import METRICS, Metric
from pytest_gpuserve.verdict.verdict import Verdict
from tests.support.builders import judgement, session

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_gpuserve.verdict.verdict import ReferenceKind

ALL = pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
COMPARISONS = (operator.ge, operator.le, operator.gt, operator.lt, operator.eq, operator.ne)


def cases(names: str, table: Mapping[str, tuple[object, ...]]) -> pytest.MarkDecorator:
    """Run a test with each row of a table, under its name."""
    return pytest.mark.parametrize(names, table.values(), ids=table)


@dataclass
class Listener:
    """A judge that notes its calls, and answers as configured."""

    verdict: Verdict = Verdict.PASS
    asked: list[tuple[str, object]] = field(default_factory=list)

    def __call__(self, run: Run, metric: Metric, kind: ReferenceKind, limit: float | None) -> Comparison:
        """See ``Judge``."""
        self.asked.append((metric.name, kind if limit is None else limit))
        return Comparison(judgement(self.verdict, metric.name), holds=self.verdict.passes)


def a_run(judge: Listener | None = None) -> Run:
    """A run of two sessions, one with a problem."""
    return Run("", judge or Listener(), [session(), session(problems=("it died",))])


def side(owner: object, metric: Metric) -> Any:  # noqa: ANN401 -- of a run, a baseline or a duel
    """``owner.throughput``, ``owner.latency.p99`` ... by the metric's name."""
    return operator.attrgetter(metric.name)(owner)


def good(metric: Metric) -> Callable[[Any, Any], Any]:
    """The comparison that gates."""
    return operator.ge if metric.higher_is_better else operator.le


def mirrored(metric: Metric) -> Callable[[Any, Any], Any]:
    """The mirrored operator, which gates only with exchanged operands."""
    return operator.le if metric.higher_is_better else operator.ge
