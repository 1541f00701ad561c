"""The metrics by name, as a run, a baseline and all else that is compared has them: ``run.latency.p99``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.gate.metric import METRICS, Metric

if TYPE_CHECKING:
    from collections.abc import Callable

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
    def latency(self) -> Latency[T]:
        """Latencies in seconds, from send to last byte."""
        return Latency(self._make)

    @property
    def batching_ratio(self) -> T:
        """Items in an executed batch, on average, by the server's own counters."""
        return self._make(METRICS["batching_ratio"])

    @property
    def energy_per_inference(self) -> T:
        """Joules of all cards by answered request, idle power included; lower is better.

        A request of several items is one inference. Energy is a whole card's: beside ``--against`` the other server
        rests on it meanwhile, whose idle power is in both numbers alike.
        """
        return self._make(METRICS["energy_per_inference"])

    @property
    def gpu_memory(self) -> T:
        """The most bytes that were allocated on the cards, by whatever process; lower is better.

        Beside ``--against`` it is known only of servers that run by turns: ``gpuserve(one_at_a_time=True)``.
        """
        return self._make(METRICS["gpu_memory"])

    @property
    def gpu_utilisation(self) -> T:
        """Share of the time, 0 to 1, in which a kernel ran on the cards, as their mean; higher is better.

        Only at the same load: of an open loop a quicker model answers the same requests in less of the card's time.
        It says that a kernel ran, not how much of the card it used.
        """
        return self._make(METRICS["gpu_utilisation"])

    @property
    def cold_start(self) -> T:
        """Seconds from the launch of the server's process to its first answer, a value for each start; lower is better.

        Files that the first start of all finds on the disk, later ones find in memory.
        """
        return self._make(METRICS["cold_start"])

    @property
    def capacity(self) -> T:
        """The highest rate that meets a latency objective, requests a second; higher is better.

        Only ``load.capacity(...)`` finds it.
        """
        return self._make(METRICS["capacity"])

    def __bool__(self) -> NoReturn:
        no_truth(type(self).__name__.lower(), "throughput")

    def __getattr__(self, name: str) -> NoReturn:
        _no_such_metric(type(self).__name__.lower(), name)


class Latency(Generic[T]):
    """The quantiles of a latency."""

    def __init__(self, make: Callable[[Metric], T]) -> None:
        self._make = make

    @property
    def p50(self) -> T:
        """The median."""
        return self._make(METRICS["latency.p50"])

    @property
    def p90(self) -> T:
        """The 90th percentile."""
        return self._make(METRICS["latency.p90"])

    @property
    def p95(self) -> T:
        """The 95th percentile."""
        return self._make(METRICS["latency.p95"])

    @property
    def p99(self) -> T:
        """The 99th percentile."""
        return self._make(METRICS["latency.p99"])

    def __bool__(self) -> NoReturn:
        no_truth("latency", "latency.p99")

    def __getattr__(self, name: str) -> NoReturn:
        _no_such_metric("latency", name)


def example(metric: Metric, owner: str = "baseline") -> str:
    """Tell how a comparison of a metric with its owner's is written."""
    operator = ">=" if metric.higher_is_better else "<="
    return f"write `assert run.{metric.name} {operator} {owner}.{metric.name}`"


def no_truth(what: str, metric: str, owner: str = "baseline") -> NoReturn:
    """Refuse to say whether something is true that would have to be compared first.

    Args:
        what: What was asked for its truth.
        metric: The name of a metric that could be compared.
        owner: With whose.

    Raises:
        UsageProblem: Always.
    """
    raise UsageProblem(f"{what} is neither true nor false", remedies=[example(METRICS[metric], owner)])


def _no_such_metric(owner: str, name: str) -> NoReturn:
    # Python asks for dunder names on its own account and expects exactly this answer.
    if name.startswith("_"):
        raise AttributeError(name)
    raise AttributeError(f"{owner} has no metric {name!r}; there are: {', '.join(METRICS)}")
