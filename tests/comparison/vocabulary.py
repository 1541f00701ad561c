"""What assertions are made of, for every metric: its sides, the comparison that gates, and a judge that only notes."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from pytest_gpuserve.comparison.assertions import Comparison, Run
from pytest_gpuserve.gate.metric import METRICS, Metric
from pytest_gpuserve.gate.verdict import Verdict
from pytest_gpuserve.store.published import PublishedEntry, Record, SourceDocument
from tests.support.builders import judgement, session
from tests.support.published_files import record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_gpuserve.device.card import Card

DOCUMENT = SourceDocument("someone/bench", "results/bert.md", "ab" * 32)
ALL = pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
COMPARISONS = (operator.ge, operator.le, operator.gt, operator.lt, operator.eq, operator.ne)


def cases(names: str, table: Mapping[str, tuple[object, ...]]) -> pytest.MarkDecorator:
    """Run a test with each row of a table, under its name."""
    return pytest.mark.parametrize(names, table.values(), ids=table)


@dataclass
class Listener:
    """A judge that notes what it was asked, and answers as told."""

    verdict: Verdict = Verdict.PASS
    asked: list[tuple[str, object]] = field(default_factory=list)

    def against_baseline(self, run: Run, metric: Metric) -> Comparison:
        """See ``Judge``."""
        return self._noted(metric, "baseline")

    def against_limit(self, run: Run, metric: Metric, limit: float) -> Comparison:
        """See ``Judge``."""
        return self._noted(metric, limit)

    def against_published(self, run: Run, metric: Metric, entry: PublishedEntry) -> Comparison:
        """See ``Judge``."""
        return self._noted(metric, entry)

    def against_ratio(self, run: Run, metric: Metric, limit: float) -> Comparison:
        """See ``DuelJudge``."""
        return self._noted(metric, limit)

    def _noted(self, metric: Metric, other: object) -> Comparison:
        self.asked.append((metric.name, other))
        return Comparison(judgement(self.verdict, metric.name), holds=self.verdict.passes)


def a_run(judge: Listener | None = None, card: Card | None = None) -> Run:
    """A run of two sessions, one of which went wrong."""
    return Run("", judge or Listener(), [session(), session(problems=("it died",))], card)


def side(owner: object, metric: Metric) -> Any:  # noqa: ANN401 -- of a run, a baseline, a published entry or a duel
    """``owner.throughput``, ``owner.latency.p99`` ... by the metric's name."""
    return operator.attrgetter(metric.name)(owner)


def good(metric: Metric) -> Callable[[Any, Any], Any]:
    """The comparison that gates."""
    return operator.ge if metric.higher_is_better else operator.le


def mirrored(metric: Metric) -> Callable[[Any, Any], Any]:
    """The one that gates where the sides are exchanged, and gates nothing where they are not."""
    return operator.le if metric.higher_is_better else operator.ge


def entry(**changes: Any) -> PublishedEntry:  # noqa: ANN401 -- fields of a record
    """A number published for a T4: 20 requests/s at 10 ms, unless said otherwise."""
    plain = record(
        values={"throughput": 20.0, "latency.p50": 0.010}, printed={"throughput": 20.0, "unit": "requests/s"}
    )
    return PublishedEntry("T4", DOCUMENT, msgspec.convert({**plain, **changes}, Record), "NVIDIA T4")
