"""The peak rate of a card in a precision, or why it has none; and the share of it that a run reached.

After Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore architectures",
CACM 52 (2009): no kernel is faster than its operations at the peak rate of the units that do them. Only that roof is
used here; how many bytes a request moves depends on what a compiler fuses and what caches hold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, get_args

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.roofline.products import PRODUCTS, Precision, Product
from pytest_gpuserve.units import format_rate, format_ratio

PRECISIONS: Final[tuple[Precision, ...]] = get_args(Precision)
"""The precisions that a peak rate can be asked for."""

FIRST_WITH_UNITS: Final[dict[Precision, tuple[int, int]]] = {"tf32": (8, 0), "bf16": (8, 0), "fp8": (8, 9)}
"""The compute capability from which on there are units for a precision ("Arithmetic Instructions" and "Tensor Cores"
in the appendix on compute capabilities of NVIDIA's CUDA C++ Programming Guide). Before it such a model runs too where
its library computes in another precision and converts."""

_VENDOR: Final = "NVIDIA "  # older drivers name most cards without it


def is_positive(number: object) -> bool:
    """Whether it is a finite number above 0."""
    return isinstance(number, (int, float)) and not isinstance(number, bool) and 0 < number < math.inf


@dataclass(frozen=True, kw_only=True)
class Peak:
    """What a card can do at most, at the power and clocks of its data sheet.

    A power limit below the default one, locked clocks and heat take from what a card reaches, not from its peak: the
    share then says how much of the product is used.

    Args:
        product: NVML's name of the card.
        precision: Of what is multiplied.
        flops_per_second: Dense operations, those of its tensor cores where it has such; a multiply-add is two.
        source: Where that is written: title and address.

    Raises:
        UsageProblem: The rate is no finite number above 0.
    """

    product: str
    precision: Precision
    flops_per_second: float
    source: str

    def __post_init__(self) -> None:
        if not is_positive(self.flops_per_second):
            raise UsageProblem(
                f"Peak(flops_per_second=...) is a finite number above 0, not {self.flops_per_second!r}",
                remedies=["give that of the card's data sheet"],
            )


def peak_of(product: str | None, precision: str, *, mig_profile: str | None = None) -> Peak:
    """The peak rate of a card.

    A MIG instance is refused, not scaled: the multiprocessors of a profile are no round share of the card's (a seventh
    of an A100 has 14 of its 108), data sheets do not tell them, and its clocks depend on what the other instances do.

    Args:
        product: NVML's name of the card, as it is; None without a card.
        precision: One of `PRECISIONS`.
        mig_profile: Of an instance its profile.

    Raises:
        UsageProblem: There is no card, it is an instance or not in the table, it has no units for the precision, or
            its rate in it is not published.
    """
    known = _known(precision)
    if product is None:
        raise UsageProblem(
            "without a card there is no peak rate to take a share of",
            remedies=["measure on a card: --gpu=auto", "skip the assertion where there is none"],
        )
    if mig_profile is not None:
        raise UsageProblem(
            f"the peak rate of a MIG instance is not known, only that of a whole {product}",
            found=f"profile {mig_profile}",
            remedies=["measure on a card that is not divided"],
        )
    found = _BY_NAME.get(product.removeprefix(_VENDOR))
    if found is None:
        raise UsageProblem(
            f"no peak rates of {product!r} are known",
            found=f"rates of {', '.join(_BY_NAME)}",
            remedies=["give that of its data sheet, dense: peak=Peak(...) instead of precision=..."],
        )
    _check_units(product, found, known)
    if known not in found.tflops:
        raise UsageProblem(
            f"the peak rate of {product} in {known} is not known",
            found=f"rates in {', '.join(found.tflops)}",
            looked=[str(found.source)],
            remedies=["name the precision that the model runs in", "or give its rate: peak=Peak(...)"],
        )
    return Peak(
        product=product,
        precision=known,
        flops_per_second=found.tflops[known] * 1e12,
        source=str(found.source),
    )


def _known(precision: str) -> Precision:
    for each in PRECISIONS:
        if each == precision:
            return each
    raise UsageProblem(
        f"there is no precision {precision!r}", found=", ".join(PRECISIONS), remedies=['precision="fp16"']
    )


def _check_units(product: str, found: Product, precision: Precision) -> None:
    needed = FIRST_WITH_UNITS.get(precision)
    if needed is None or found.compute_capability >= needed:
        return
    major, minor = found.compute_capability
    raise UsageProblem(
        f"{product} has no units for {precision}, so there is no peak to take a share of",
        found=f"compute capability {major}.{minor}; {precision} needs {needed[0]}.{needed[1]}",
        remedies=[
            f"name what it is computed in, which no {precision} model is as it stands: {', '.join(found.tflops)}",
        ],
    )


_BY_NAME: Final = {name.removeprefix(_VENDOR): product for product in PRODUCTS for name in product.names}


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
