"""The peak rates of NVIDIA's products, as their data sheets give them, and the share of one that a run reached.

A rate is of dense operations, a multiply-add counted as two. Where a data sheet gives only rates "with sparsity" half
of them stands here. Of rates for several ways to accumulate, and of those with and without tensor cores, the highest
stands here: a ceiling must be one. What a data sheet does not tell is left out.

After Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore architectures",
CACM 52 (2009): no kernel is faster than its operations at the peak rate of the units that do them. Only that roof is
used here; how many bytes a request moves depends on what a compiler fuses and what caches hold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, get_args

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.units import format_rate, format_ratio

if TYPE_CHECKING:
    from collections.abc import Mapping


Precision = Literal["fp64", "fp32", "tf32", "fp16", "bf16", "int8", "fp8"]
"""What is multiplied; of fp32 only what is not done in tf32."""


@dataclass(frozen=True)
class Source:
    """A publication of NVIDIA."""

    title: str
    url: str

    def __str__(self) -> str:
        return f"{self.title} <{self.url}>"


@dataclass(frozen=True)
class Product:
    """One product, which may be sold with several sizes of memory.

    Args:
        names: NVML's names of it, verbatim.
        tflops: Peak rates, in 1e12 operations a second.
    """

    names: tuple[str, ...]
    compute_capability: tuple[int, int]
    tflops: Mapping[Precision, float]
    source: Source


T4_SHEET: Final = Source(
    "NVIDIA T4 Tensor Core GPU data sheet",
    "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/tesla-t4/t4-tensor-core-datasheet-951643.pdf",
)
V100_SHEET: Final = Source(
    "NVIDIA V100 Tensor Core GPU data sheet",
    "https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf",
)
A10_SHEET: Final = Source(
    "NVIDIA A10 Tensor Core GPU data sheet",
    "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a10/pdf/a10-datasheet.pdf",
)
A30_SHEET: Final = Source(
    "NVIDIA A30 Tensor Core GPU data sheet",
    "https://www.nvidia.com/en-us/data-center/products/a30-gpu/",
)
A40_SHEET: Final = Source("NVIDIA A40 data sheet", "https://www.nvidia.com/en-us/data-center/a40/")
A100_SHEET: Final = Source(
    "NVIDIA A100 Tensor Core GPU data sheet",
    "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/"
    "nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf",
)
A100_40GB_PAPER: Final = Source(
    "NVIDIA A100 Tensor Core GPU Architecture, white paper",
    "https://images.nvidia.com/aem-dam/en-zz/Solutions/data-center/nvidia-ampere-architecture-whitepaper.pdf",
)
L4_SHEET: Final = Source("NVIDIA L4 Tensor Core GPU, specifications", "https://www.nvidia.com/en-us/data-center/l4/")
L40S_SHEET: Final = Source("NVIDIA L40S, specifications", "https://www.nvidia.com/en-us/data-center/l40s/")
H100_SHEET: Final = Source(
    "NVIDIA H100 Tensor Core GPU data sheet",
    "https://resources.nvidia.com/en-us-tensor-core/nvidia-tensor-core-gpu-datasheet",
)
H200_SHEET: Final = Source(
    "NVIDIA H200 Tensor Core GPU, specifications", "https://www.nvidia.com/en-us/data-center/h200/"
)
GA102_PAPER: Final = Source(
    "NVIDIA Ampere GA102 GPU Architecture, white paper, appendix A",
    "https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf",
)
ADA_PAPER: Final = Source(
    "NVIDIA Ada GPU Architecture, white paper, appendix A",
    "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf",
)

_A100: Final[Mapping[Precision, float]] = {
    "fp64": 19.5,
    "fp32": 19.5,
    "tf32": 156,
    "fp16": 312,
    "bf16": 312,
    "int8": 624,
}
_H100_SXM: Final[Mapping[Precision, float]] = {
    "fp64": 67,
    "fp32": 67,
    "tf32": 494.5,
    "fp16": 989.5,
    "bf16": 989.5,
    "int8": 1979,
    "fp8": 1979,
}
_H100_NVL: Final[Mapping[Precision, float]] = {
    "fp64": 60,
    "fp32": 60,
    "tf32": 417.5,
    "fp16": 835.5,
    "bf16": 835.5,
    "int8": 1670.5,
    "fp8": 1670.5,
}

PRODUCTS: Final = (
    Product(("Tesla V100-PCIE-16GB", "Tesla V100-PCIE-32GB"), (7, 0), {"fp64": 7, "fp32": 14, "fp16": 112}, V100_SHEET),
    Product(
        ("Tesla V100-SXM2-16GB", "Tesla V100-SXM2-32GB"), (7, 0), {"fp64": 7.8, "fp32": 15.7, "fp16": 125}, V100_SHEET
    ),
    Product(("Tesla V100S-PCIE-32GB",), (7, 0), {"fp64": 8.2, "fp32": 16.4, "fp16": 130}, V100_SHEET),
    Product(("Tesla T4",), (7, 5), {"fp32": 8.1, "fp16": 65, "int8": 130}, T4_SHEET),
    Product(("NVIDIA A100-PCIE-40GB", "NVIDIA A100-SXM4-40GB"), (8, 0), _A100, A100_40GB_PAPER),
    Product(("NVIDIA A100 80GB PCIe", "NVIDIA A100-SXM4-80GB"), (8, 0), _A100, A100_SHEET),
    Product(
        ("NVIDIA A30",),
        (8, 0),
        {"fp64": 10.3, "fp32": 10.3, "tf32": 82, "fp16": 165, "bf16": 165, "int8": 330},
        A30_SHEET,
    ),
    Product(("NVIDIA A10",), (8, 6), {"fp32": 31.2, "tf32": 62.5, "fp16": 125, "bf16": 125, "int8": 250}, A10_SHEET),
    Product(
        ("NVIDIA A40",), (8, 6), {"fp32": 37.4, "tf32": 74.8, "fp16": 149.7, "bf16": 149.7, "int8": 299.3}, A40_SHEET
    ),
    Product(
        ("NVIDIA GeForce RTX 3090",),
        (8, 6),
        {"fp32": 35.6, "tf32": 35.6, "fp16": 142, "bf16": 71, "int8": 284},
        GA102_PAPER,
    ),
    Product(
        ("NVIDIA L4",),
        (8, 9),
        {"fp32": 30.3, "tf32": 60, "fp16": 121, "bf16": 121, "int8": 242.5, "fp8": 242.5},
        L4_SHEET,
    ),
    Product(
        ("NVIDIA L40S",),
        (8, 9),
        {"fp32": 91.6, "tf32": 183, "fp16": 362, "bf16": 362, "int8": 733, "fp8": 733},
        L40S_SHEET,
    ),
    Product(
        ("NVIDIA GeForce RTX 4090",),
        (8, 9),
        {"fp32": 82.6, "tf32": 82.6, "fp16": 330.3, "bf16": 165.2, "int8": 660.6, "fp8": 660.6},
        ADA_PAPER,
    ),
    Product(
        ("NVIDIA H100 PCIe",),
        (9, 0),
        {"fp64": 51, "fp32": 51, "tf32": 378, "fp16": 756.5, "bf16": 756.5, "int8": 1513, "fp8": 1513},
        H100_SHEET,
    ),
    Product(("NVIDIA H100 NVL",), (9, 0), _H100_NVL, H100_SHEET),
    Product(("NVIDIA H100 80GB HBM3",), (9, 0), _H100_SXM, H100_SHEET),
    Product(("NVIDIA H200",), (9, 0), _H100_SXM, H200_SHEET),
    Product(("NVIDIA H200 NVL",), (9, 0), _H100_NVL, H200_SHEET),
)
"""What a share can be taken of; the H100 with HBM3 is the SXM one, whose NVML name does not say so."""


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
