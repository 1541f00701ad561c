"""Peak rates of NVIDIA's products, as their data sheets give them.

A rate is of dense operations, a multiply-add counted as two. Where a data sheet gives only rates "with sparsity" half
of them stands here. Of rates for several ways to accumulate, and of those with and without tensor cores, the highest
stands here: a ceiling must be one. What a data sheet does not tell is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

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
