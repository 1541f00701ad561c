"""Gated metrics: their direction, and the scale on which all of them are judged.

Every statistic works on the log of a *cost*. Worse is larger for every cost: 1/throughput, a latency quantile,
1/batching ratio, joules, bytes. A slowdown of r moves the log cost by log(1 + r), in any unit.

A *tolerance* is a change of the value itself: a throughput may fall by so much, a latency may rise by so much. A
`Growth` is a change of the cost. The two differ if more is better, and `Metric.growth` and `Metric.loss` convert one to
the other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NewType

if TYPE_CHECKING:
    from collections.abc import Mapping

REQUESTS_PER_TOLERANCE: Final = 2.0
"""Requests beyond a quantile, times the tolerance: 1000 requests gate p99 within 20 %, 2000 within 10 %."""

Growth = NewType("Growth", float)
"""Growth of a cost, as a fraction: a throughput that falls by 20 % is a growth of 0.25."""

LATENCY: Final = "latency"
COLD_START: Final = "cold_start"
OUTPUT_TOKENS: Final = "output_tokens_per_second"
GOODPUT: Final = "goodput"


@dataclass(frozen=True)
class Metric:
    """One number of a run that can be gated.

    Attributes:
        name: The name in assertions: ``throughput``, ``latency.p99``.
        unit: ``1/s``, ``s``, ``J``, ``B``, or empty for a plain ratio.
        higher_is_better: Whether a larger value is the better one.
        default_tolerance: How much worse the value may be by default, as a fraction of it.
        sd_floor: Smallest standard deviation of log cost between starts or sessions that is believed.
        default_sd: Assumed standard deviation of log cost between sessions, before any is known.
        default_pair_sd: Assumed standard deviation of the difference of two paired starts; ``sd_floor`` if that is
            more.
        is_of_requests: Whether the value is computed from requests, and so needs many. Else one is enough.
        on_request: Whether the metric is judged and shown only in tests that name it.
        times: The times whose quantile this is: ``latency``, ``ttft``, ``itl`` or ``tpot``; empty for other metrics.
        quantile: Which quantile the metric is, or None.
    """

    name: str
    unit: str
    higher_is_better: bool = False
    default_tolerance: float = 0.05
    sd_floor: float = 0.005
    default_sd: float = 0.02
    default_pair_sd: float = 0.015
    is_of_requests: bool = True
    on_request: bool = True
    times: str = ""
    quantile: float | None = None

    @property
    def option(self) -> str:
        """The name in the marker: ``throughput``, ``p99``, ``ttft_p99``."""
        return self.name.removeprefix(f"{LATENCY}.").replace(".", "_")

    @property
    def counted(self) -> str:
        """Unit of the sample size: requests, or what else the metric counts."""
        return _COUNTED.get(self.times or self.name, "requests")

    def value_at(self, log_cost: float) -> float:
        """Value in the metric's unit that has this log cost: the inverse of `log_cost`."""
        return math.exp(-log_cost if self.higher_is_better else log_cost)

    def change_of(self, log_ratio: float) -> float | None:
        """Signed change of the value, as a fraction, for this growth of log cost; None if it is beyond any number."""
        try:
            change = math.expm1(-log_ratio if self.higher_is_better else log_ratio)
        except OverflowError:
            return None
        return change if math.isfinite(change) else None

    def check_tolerance(self, tolerance: float) -> None:
        """Refuse a tolerance that cannot lead to a verdict.

        Raises:
            ValueError: The tolerance is not positive, or it lets a value of which more is better fall to zero.
        """
        _check_positive("a tolerance", tolerance)
        if self.higher_is_better and tolerance >= 1:
            raise ValueError(f"{self.name} cannot fall by {tolerance:.0%}: its tolerance must be below 1")

    def growth(self, tolerance: float) -> Growth:
        """Growth of the cost if the value is worse by exactly the tolerance.

        Args:
            tolerance: How much worse the value may be, as a fraction of it.

        Raises:
            ValueError: As for `check_tolerance`.
        """
        self.check_tolerance(tolerance)
        return Growth(tolerance / (1 - tolerance) if self.higher_is_better else tolerance)

    def loss(self, growth: Growth) -> float:
        """Loss of the value, as a fraction, for this growth of the cost: the inverse of `growth`."""
        # To twelve digits, so that a tolerance is shown as the user wrote it.
        return float(f"{growth / (1 + growth):.12g}") if self.higher_is_better else growth


_COUNTED: Final = {"itl": "gaps between chunks", "tpot": "requests of two tokens or more"}


def _quantiles(times: str) -> list[Metric]:
    """Quantile metrics of the latency, or of the times of streams, which vary as the latency does."""
    return [
        Metric(
            f"{times}.p{percent}",
            "s",
            default_tolerance=tolerance,
            sd_floor=0.03 if percent == 99 else 0.005,
            default_sd=0.03 if percent == 99 else 0.02,
            on_request=times != LATENCY,
            times=times,
            quantile=percent / 100,
        )
        for percent, tolerance in ((50, 0.05), (90, 0.10), (95, 0.10), (99, 0.20))
    ]


_ALL: Final = (
    Metric("throughput", "1/s", higher_is_better=True, on_request=False),
    *_quantiles(LATENCY),
    Metric("batching_ratio", "", higher_is_better=True, sd_floor=0.003, on_request=False),
    *_quantiles("ttft"),
    *_quantiles("itl"),
    *_quantiles("tpot"),
    Metric(OUTPUT_TOKENS, "1/s", higher_is_better=True),
    Metric(GOODPUT, "1/s", higher_is_better=True),
    # A ratio of totals: most of its spread comes from the throughput.
    Metric("energy_per_inference", "J"),
    # Allocators request whole segments of a few MiB, which is less than half a percent of a model's GiB.
    Metric(
        "gpu_memory",
        "B",
        default_tolerance=0.02,
        sd_floor=0.001,
        default_sd=0.005,
        default_pair_sd=0.005 * math.sqrt(2),
        is_of_requests=False,
    ),
    # The driver counts in whole percents, so two starts may agree by rounding alone.
    Metric("gpu_utilisation", "", higher_is_better=True, sd_floor=0.01, is_of_requests=False),
    # A start reads files, compiles and waits for the driver, so it varies more than a started server. Each start gives
    # one number only, and a pair differs by the spread of both starts.
    Metric(
        COLD_START,
        "s",
        default_tolerance=0.20,
        sd_floor=0.02,
        default_sd=0.05,
        default_pair_sd=0.05 * math.sqrt(2),
        is_of_requests=False,
    ),
)

METRICS: Final[Mapping[str, Metric]] = {metric.name: metric for metric in _ALL}
"""All metrics by name, in the order of the reports."""

_BY_OPTION: Final[Mapping[str, Metric]] = {metric.option: metric for metric in _ALL}


def metric_by_option(option: str) -> Metric:
    """The metric that the marker calls ``option``.

    Raises:
        KeyError: No metric has that name; the caller knows where it was written and says so.
    """
    return _BY_OPTION[option]


def log_cost(metric: Metric, value: float) -> float:
    """Put a value on the scale of all statistics, where worse is larger.

    Args:
        metric: The metric of the value.
        value: The value in the metric's unit.

    Raises:
        ValueError: The value is zero, negative, infinite or NaN: nothing was measured, so nothing can be judged.
    """
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{metric.name} must be a positive number, not {value}")
    return -math.log(value) if metric.higher_is_better else math.log(value)


def requests_needed(metric: Metric, tolerance: float) -> int:
    """Fewest requests of one server start that let the metric be gated within ``tolerance``.

    For a metric that counts something else, see `Metric.counted`, the number is of that.

    A quantile needs 2/tolerance requests beyond it. A rate or a ratio of totals needs 2/tolerance requests in all: one
    request more or less at the window's edge then moves it by at most half the tolerance. A metric read from a GPU or a
    clock needs one request, as proof of a load.

    Args:
        metric: The gated metric.
        tolerance: How much worse the value may be, as a fraction of it; any size if no verdict depends on it.

    Raises:
        ValueError: The tolerance is not a positive number.
    """
    _check_positive("a tolerance", tolerance)
    if not metric.is_of_requests:
        return 1
    share_beyond = 1.0 if metric.quantile is None else 1.0 - metric.quantile
    # Rounded first: 1 - 0.9 is not quite 0.1, and one extra request would contradict the published rule.
    return math.ceil(round(REQUESTS_PER_TOLERANCE / tolerance / share_beyond, 6))


def check_growth(growth: Growth) -> None:
    """Raise ValueError for a growth that is not a positive number."""
    _check_positive("a largest growth", growth)


def _check_positive(what: str, fraction: float) -> None:
    if not (math.isfinite(fraction) and fraction > 0):
        raise ValueError(f"{what} must be a positive fraction, not {fraction}")
