"""The arithmetic that a request costs, how many a second a card could answer at most, and the share that a run reached.

After Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore architectures",
CACM 52 (2009): no kernel is faster than its operations at the peak rate of the units that do them. Only that roof is
used here; how many bytes a request moves depends on what a compiler fuses and what caches hold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.roofline.peak import is_positive
from pytest_gpuserve.units import format_rate, format_ratio

if TYPE_CHECKING:
    from pytest_gpuserve.roofline.peak import Peak


FLOPS_PER_MAC: Final = 2
"""A multiply-add is a multiplication and an addition."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """Floating-point operations of one request; a multiply-add is two of them.

    Tools that speak of "GFLOPs" and count multiply-adds (thop, fvcore, ptflops, most tables of vision models) give
    half of this: take theirs with `Work.of_macs`.

    Args:
        flops: The operations.
        uncounted: Kinds of operators that were executed and have no formula, such as ``aten.native_layer_norm``; they
            count as nothing. Empty where nobody counted.

    Raises:
        UsageProblem: The operations are no finite number above 0.
    """

    flops: float
    uncounted: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not is_positive(self.flops):
            raise UsageProblem(
                f"Work(flops=...) is a finite number above 0, not {self.flops!r}",
                remedies=["Work(flops=8.909e9)", "Work.of_macs(4.4548e9)"],
            )

    @classmethod
    def of_macs(cls, macs: float) -> Work:
        """The work of so many multiply-adds. Raises UsageProblem where they are no finite number above 0."""
        return cls(flops=FLOPS_PER_MAC * macs)

    @property
    def macs(self) -> float:
        """The same in multiply-adds."""
        return self.flops / FLOPS_PER_MAC


def ceiling_per_second(work: Work, peak: Peak) -> float:
    """Requests a second that the card could answer, in the precision of the peak, if its units never waited."""
    return peak.flops_per_second / work.flops


def share_of_peak(throughput_per_second: float, work: Work, peak: Peak) -> float:
    """The share of the ceiling that a throughput, in requests a second, reaches: from 0 to 1.

    Raises:
        UsageProblem: The throughput is none, or above the ceiling, which no card can do.
    """
    if not isinstance(work, Work):
        raise UsageProblem(
            f"{work!r} is not what a request costs",
            remedies=['work = count_flops("model.py:build", {...})', "Work(flops=8.909e9)"],
        )
    if not 0 <= throughput_per_second < math.inf:
        raise UsageProblem(f"{throughput_per_second!r} requests a second are no throughput")
    ceiling = ceiling_per_second(work, peak)
    share = throughput_per_second / ceiling
    if share > 1:
        raise UsageProblem(
            f"a throughput of {format_rate(throughput_per_second)} is {format_ratio(share)} times what {peak.product}"
            f" can do in {peak.precision}",
            found=f"at most {format_rate(ceiling)}: {peak.flops_per_second / 1e12:g} TFLOP/s,"
            f" {work.flops / 1e9:.4g} GFLOP a request",
            looked=[peak.source],
            remedies=[
                "name the precision that it really runs in: torch does convolutions of fp32 in tf32 where it can",
                "count the FLOPs of one request, with the shapes and the model that are served",
                "look for answers without work: caches, errors answered with 200",
            ],
        )
    return share
