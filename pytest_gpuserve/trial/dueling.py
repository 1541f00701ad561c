"""Two servers in one test: ``duel.throughput >= 1.05`` says that the first does 5 % more than the second."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn, Protocol

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.trial.sides import Sides

if TYPE_CHECKING:
    from pytest_gpuserve.gate.metric import Metric
    from pytest_gpuserve.trial.assertions import Comparison, Run


class DuelJudge(Protocol):
    """Who reaches the verdicts of a duel."""

    def against_ratio(self, run: Run, metric: Metric, limit: float) -> Comparison:
        """Compare the ratio of the first server's value to the second's with a limit, measuring until it is decided."""


class Duel(Sides["Ratio"]):
    """Two servers, measured side by side under one load; its metrics are ratios, the first server's to the second's.

    Args:
        run: What was measured of the first server.
        judge: Who reaches the verdicts.
    """

    def __init__(self, run: Run, judge: DuelJudge) -> None:
        super().__init__(lambda metric: Ratio(run, judge, metric))
        self.run = run


@dataclass(frozen=True, eq=False)
class Ratio:
    """A metric of the first server divided by that of the second; compare it with a number.

    It holds if the data show it, and does not hold if they show the contrary; there is no tolerance: say 0.95 where 5 %
    less will do.

    Args:
        run: What was measured of the first server.
        judge: Who reaches the verdict.
        metric: The metric.
    """

    run: Run = field(repr=False)
    judge: DuelJudge = field(repr=False)
    metric: Metric

    def __ge__(self, other: object) -> Comparison:
        return self._compare(other, ">=", wants_higher=True)

    def __le__(self, other: object) -> Comparison:
        return self._compare(other, "<=", wants_higher=False)

    def __gt__(self, other: object) -> NoReturn:
        self._refuse(">")

    def __lt__(self, other: object) -> NoReturn:
        self._refuse("<")

    def __eq__(self, other: object) -> NoReturn:
        self._refuse("==")

    def __ne__(self, other: object) -> NoReturn:
        self._refuse("!=")

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> NoReturn:
        raise UsageProblem(f"duel.{self.metric.name} is neither true nor false", remedies=[self._example()])

    def _compare(self, other: object, operator: str, *, wants_higher: bool) -> Comparison:
        if wants_higher is not self.metric.higher_is_better:
            self._refuse(operator)
        if isinstance(other, (int, float)) and not isinstance(other, bool) and math.isfinite(other) and other > 0:
            return self.judge.against_ratio(self.run, self.metric, float(other))
        raise UsageProblem(
            f"duel.{self.metric.name} is a ratio of two servers and can be compared with a number above 0",
            found=f"{other!r}",
            remedies=[self._example(), "baseline is for what load(...) returns"],
        )

    def _refuse(self, operator: str) -> NoReturn:
        good = "higher" if self.metric.higher_is_better else "lower"
        raise UsageProblem(
            f"`duel.{self.metric.name} {operator} ...` gates nothing: {good} is better", remedies=[self._example()]
        )

    def _example(self) -> str:
        text = ">= 1.05" if self.metric.higher_is_better else "<= 0.95"
        return f"write `assert duel.{self.metric.name} {text}`"
