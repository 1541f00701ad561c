"""How many requests a second a card could answer at most, and the share of that which a run reached.

After Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore architectures",
CACM 52 (2009): no kernel is faster than its operations at the peak rate of the units that do them. Only that roof is
used here; how many bytes a request moves depends on what a compiler fuses and what caches hold.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.roofline.work import Work
from pytest_gpuserve.units import format_rate, format_ratio

if TYPE_CHECKING:
    from pytest_gpuserve.roofline.peak import Peak


def ceiling_per_second(work: Work, peak: Peak) -> float:
    """Requests a second that the card could answer if its units did nothing else, and never waited.

    Args:
        work: Of one request.
        peak: Of the card, in the precision that the model runs in.
    """
    return peak.flops_per_second / work.flops


def share_of_peak(throughput_per_second: float, work: Work, peak: Peak) -> float:
    """The share of the ceiling that a throughput is, from 0 to 1.

    Args:
        throughput_per_second: Requests answered a second.
        work: Of one request.
        peak: Of the card, in the precision that the model runs in.

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
