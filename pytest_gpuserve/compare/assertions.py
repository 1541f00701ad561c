"""The vocabulary of a test's assertions: ``run.throughput >= baseline.throughput``.

A comparison with ``baseline`` gets a verdict from its test's comparisons, which may measure more before they answer. A
comparison with a plain number is a service-level check. A comparison without a meaning is an error, never silently true
or false.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.experiment.observed import Observed
from pytest_gpuserve.measure.points import pooled_value
from pytest_gpuserve.verdict.metric import GOODPUT, METRICS, OUTPUT_TOKENS, Metric

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from pytest_gpuserve.load.schedule import Schedule
    from pytest_gpuserve.measure.window import Session
    from pytest_gpuserve.verdict.verdict import Judgement, ReferenceKind

    Judge: TypeAlias = Callable[[Metric, ReferenceKind, "float | None"], "Comparison"]
    """Compares a metric of a run with a baseline (None), a limit or the ratio of a duel; it may measure more first."""

T = TypeVar("T")


class Sides(Generic[T]):
    """The metrics, as attributes of a run or of a reference: ``x.throughput``, ``x.latency.p99``."""

    def __init__(self, make: Callable[[Metric], T]) -> None:
        self._make = make

    @property
    def throughput(self) -> T:
        """Requests answered a second."""
        return self._make(METRICS["throughput"])

    @property
    def latency(self) -> Quantiles[T]:
        """Latencies in seconds: to the last byte, or to a stream's last chunk with content.

        They count from the send, in an open loop from the due time.
        """
        return Quantiles("latency", self._make)

    @property
    def batching_ratio(self) -> T:
        """Mean items of an executed batch, by the server's own counters."""
        return self._make(METRICS["batching_ratio"])

    @property
    def ttft(self) -> Quantiles[T]:
        """Time of streams to the first chunk with content, in seconds; lower is better.

        It counts from the send, in an open loop from the due time. A request counts where it ends. An answer without
        content has the time of its end.
        """
        return Quantiles("ttft", self._make)

    @property
    def itl(self) -> Quantiles[T]:
        """Gaps of streams between chunks with content (inter-token latency), in seconds; lower is better.

        They are unknown if too many chunks came in one read.
        """
        return Quantiles("itl", self._make)

    @property
    def tpot(self) -> Quantiles[T]:
        """Time of streams for each output token after the first, in seconds; lower is better.

        For a request it is (end - first chunk with content) / (tokens - 1), with the token count of its ``usage``. It
        is unknown unless every answer reports that.
        """
        return Quantiles("tpot", self._make)

    @property
    def output_tokens_per_second(self) -> T:
        """Tokens of streams that arrived a second, by ``usage``; unknown unless every answer reports it."""
        return self._make(METRICS[OUTPUT_TOKENS])

    @property
    def goodput(self) -> T:
        """Answers a second that met all objectives of ``load(..., goodput=Objectives(...))``; higher is better.

        It needs a load with objectives. A load with other objectives is another workload.
        """
        return self._make(METRICS[GOODPUT])

    @property
    def energy_per_inference(self) -> T:
        """Joules of the GPU for each answered request, idle power included; lower is better.

        A request of several items is one inference. Energy is a whole GPU's. Beside ``--against`` the other server
        rests on the GPU meanwhile, and its idle power is in both numbers alike.
        """
        return self._make(METRICS["energy_per_inference"])

    @property
    def gpu_memory(self) -> T:
        """The most bytes that all processes had allocated on the GPU; lower is better.

        Beside ``--against`` it is known only for alternating servers: ``gpuserve(one_at_a_time=True)``.
        """
        return self._make(METRICS["gpu_memory"])

    @property
    def gpu_utilisation(self) -> T:
        """Share of the time, 0 to 1, when a kernel ran on the GPU; higher is better.

        Compare it only at the same load: in an open loop a faster model answers the same requests in less of the GPU's
        time. It tells that a kernel ran, not how much of the GPU it used.
        """
        return self._make(METRICS["gpu_utilisation"])

    @property
    def cold_start(self) -> T:
        """Seconds from the launch of the server's process to its first answer, a value for each start; lower is better.

        The first start reads from disk; later starts hit the page cache.
        """
        return self._make(METRICS["cold_start"])

    def __bool__(self) -> NoReturn:
        no_truth(type(self).__name__.lower(), "throughput")

    def __getattr__(self, name: str) -> NoReturn:
        __tracebackhide__ = True
        _no_such_metric(type(self).__name__.lower(), name)


class Quantiles(Generic[T]):
    """The quantiles of a latency, or of another time."""

    def __init__(self, times: str, make: Callable[[Metric], T]) -> None:
        self._times = times
        self._make = make

    @property
    def p50(self) -> T:
        """The median."""
        return self._make(METRICS[f"{self._times}.p50"])

    @property
    def p90(self) -> T:
        """The 90th percentile."""
        return self._make(METRICS[f"{self._times}.p90"])

    @property
    def p95(self) -> T:
        """The 95th percentile."""
        return self._make(METRICS[f"{self._times}.p95"])

    @property
    def p99(self) -> T:
        """The 99th percentile."""
        return self._make(METRICS[f"{self._times}.p99"])

    def __bool__(self) -> NoReturn:
        no_truth(self._times, f"{self._times}.p99")

    def __getattr__(self, name: str) -> NoReturn:
        __tracebackhide__ = True
        _no_such_metric(self._times, name)


def example(metric: Metric) -> str:
    """Example of a comparison of a metric with the baseline's."""
    operator = ">=" if metric.higher_is_better else "<="
    return f"write `assert run.{metric.name} {operator} baseline.{metric.name}`"


def no_truth(what: str, metric: str) -> NoReturn:
    """Refuse the truth value of an object that has to be compared first.

    Args:
        what: Description of the object.
        metric: Name of a metric that could be compared.

    Raises:
        UsageProblem: Always.
    """
    raise UsageProblem(f"{what} is neither true nor false", remedies=[example(METRICS[metric])])


def _no_such_metric(owner: str, name: str) -> NoReturn:
    __tracebackhide__ = True
    # Python looks up dunder names by itself and needs exactly this error.
    if name.startswith("_"):
        raise AttributeError(name)
    raise AttributeError(f"{owner} has no metric {name!r}; its metrics: {', '.join(METRICS)}")


class _Comparable(ABC):
    """A metric that can be compared in its good direction; any other comparison is an error."""

    metric: Metric

    def __ge__(self, other: object) -> Comparison:
        return self._compared(">=", other)

    def __le__(self, other: object) -> Comparison:
        return self._compared("<=", other)

    def __gt__(self, other: object) -> NoReturn:
        self._refuse(">", other)

    def __lt__(self, other: object) -> NoReturn:
        self._refuse("<", other)

    def __eq__(self, other: object) -> NoReturn:
        self._refuse("==", other)

    def __ne__(self, other: object) -> NoReturn:
        self._refuse("!=", other)

    __hash__ = None  # type: ignore[assignment]

    def _compared(self, operator: str, other: object) -> Comparison:
        if (operator == ">=") is not self.metric.higher_is_better:
            self._refuse(operator, other)
        return self._judged(other)

    @abstractmethod
    def _judged(self, other: object) -> Comparison: ...

    @abstractmethod
    def _refuse(self, operator: str, other: object) -> NoReturn: ...


class Duel(Sides["Ratio"]):
    """Two servers, measured side by side under one load; its metrics are ratios, the first server's to the second's.

    Args:
        run: Measurement of the first server.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(lambda metric: Ratio(run, metric))
        self.run = run


@dataclass(frozen=True, eq=False)
class Ratio(_Comparable):
    """A metric of the first server divided by that of the second; compare it with a number.

    The assertion holds if the data show it, and fails if they show the contrary. It has no tolerance: write 0.95 if 5 %
    less is acceptable.

    Args:
        run: Measurement of the first server.
        metric: The metric.
    """

    run: Run = field(repr=False)
    metric: Metric

    def __bool__(self) -> NoReturn:
        raise UsageProblem(f"duel.{self.metric.name} is neither true nor false", remedies=[self._example()])

    def _judged(self, other: object) -> Comparison:
        if isinstance(other, (int, float)) and not isinstance(other, bool) and math.isfinite(other) and other > 0:
            return self.run.judge(self.metric, "duel", float(other))
        raise UsageProblem(
            f"duel.{self.metric.name} is a ratio of two servers and can be compared with a number above 0",
            found=f"{other!r}",
            remedies=[self._example(), "baseline is for what load(...) returns"],
        )

    def _refuse(self, operator: str, _other: object) -> NoReturn:
        good = "higher" if self.metric.higher_is_better else "lower"
        raise UsageProblem(
            f"`duel.{self.metric.name} {operator} ...` gates nothing: {good} is better", remedies=[self._example()]
        )

    def _example(self) -> str:
        text = ">= 1.05" if self.metric.higher_is_better else "<= 0.95"
        return f"write `assert duel.{self.metric.name} {text}`"


@dataclass(frozen=True)
class Comparison:
    """Result of an assertion: true or false, with its judgement.

    Args:
        judgement: The verdict and its numbers.
        holds: Whether the assertion holds; in a recording run it may hold where a gating run fails.
    """

    judgement: Judgement
    holds: bool

    def __bool__(self) -> bool:
        return self.holds


@dataclass(frozen=True, eq=False)
class Reference:
    """A metric of the baseline, which has a value only in a comparison with a run.

    Args:
        metric: The metric.
    """

    metric: Metric

    def _refuse(self, _other: object = None) -> NoReturn:
        option = self.metric.option
        raise UsageProblem(
            f"{self!r} is not a number, and gates nothing without a comparison with a run's metric",
            remedies=[example(self.metric), f"allow a change of 10 % by a marker: @pytest.mark.gpuserve({option}=0.1)"],
        )

    __eq__ = __ne__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __float__ = _refuse
    value = property(_refuse)

    __hash__ = None  # type: ignore[assignment]

    def _reflected(self, other: object) -> object:
        # Python then calls the comparison of the run's metric.
        return NotImplemented if isinstance(other, _Comparable) else self._refuse()

    __ge__ = __le__ = __gt__ = __lt__ = _reflected

    def __repr__(self) -> str:
        return f"baseline.{self.metric.name}"

    def __bool__(self) -> NoReturn:
        no_truth(repr(self), self.metric.name)


class Baseline(Sides[Reference]):
    """The stored baseline of the run that it is compared with."""

    def __init__(self) -> None:
        super().__init__(Reference)


class Run(Sides["Measured"], Observed):
    """Measurement of one load; it keeps its server, so that a comparison can measure more.

    Args:
        label: Distinguishes several loads of one test; empty for the first.
        judge: Compares it with a baseline, a limit or an opponent.
        sessions: Gives the measured sessions, the first look first; a comparison may add to them.
        schedule: Schedule of its requests.
    """

    def __init__(
        self,
        label: str,
        judge: Judge,
        sessions: Callable[[], Sequence[Session]],
        schedule: Schedule | None = None,
    ) -> None:
        Sides.__init__(self, lambda metric: Measured(self, metric))
        Observed.__init__(self, sessions, schedule)
        self.label = label
        self.judge = judge


@dataclass(frozen=True, eq=False)
class Measured(_Comparable):
    """A metric of a run: compare it with ``baseline`` or with a number, in its good direction.

    Args:
        run: The run.
        metric: The metric.
    """

    run: Run = field(repr=False)
    metric: Metric

    @property
    def value(self) -> float:
        """The value over the whole measurement, in the metric's unit (seconds, requests a second, joules, bytes, ...).

        Raises:
            NotMeasured: The metric's data are missing.
        """
        return pooled_value(self.metric, self.run.sessions)

    def __float__(self) -> float:
        return self.value

    def __bool__(self) -> NoReturn:
        no_truth(self.metric.name, self.metric.name)

    def _judged(self, other: object) -> Comparison:
        if isinstance(other, Reference):
            if other.metric != self.metric:
                raise UsageProblem(
                    f"{self.metric.name} can only be compared with a baseline value of the same metric,"
                    f" not with {other.metric.name}",
                    remedies=[example(self.metric)],
                )
            return self.run.judge(self.metric, "baseline", None)
        # Every metric is above 0, so a limit of 0 or below is always true, or always false.
        if isinstance(other, (int, float)) and not isinstance(other, bool) and math.isfinite(other) and other > 0:
            return self.run.judge(self.metric, "limit", float(other))
        raise UsageProblem(
            f"{self.metric.name} can be compared with baseline.{self.metric.name} or with a finite number",
            found=f"{other!r}",
            remedies=[example(self.metric)],
        )

    def _refuse(self, operator: str, other: object) -> NoReturn:
        good, gate = ("higher", ">=") if self.metric.higher_is_better else ("lower", "<=")
        shown = "baseline" if isinstance(other, Reference) else repr(other)
        why = f"a gate is written {gate}" if gate.startswith(operator) else f"{good} is better"
        limit = isinstance(other, (int, float)) and not isinstance(other, bool)
        raise UsageProblem(
            f"`{self.metric.name} {operator} {shown}` gates nothing: {why}",
            remedies=[
                example(self.metric),
                *([f"or, as a limit, `{self.metric.name} {gate} {other}`"] if limit else []),
            ],
        )
