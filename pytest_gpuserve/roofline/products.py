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


@dataclass(frozen=True, kw_only=True)
class Product:
    """One product, which may be sold with several sizes of memory.

    Args:
        names: NVML's names of it, verbatim.
        gigabytes_per_second: Bandwidth of its memory, in 1e9 bytes.
        tflops: Peak rates, in 1e12 operations a second.
    """

    names: tuple[str, ...]
    compute_capability: tuple[int, int]
    gigabytes_per_second: float
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
    Product(
        names=("Tesla V100-PCIE-16GB", "Tesla V100-PCIE-32GB"),
        compute_capability=(7, 0),
        gigabytes_per_second=900,
        tflops={"fp64": 7, "fp32": 14, "fp16": 112},
        source=V100_SHEET,
    ),
    Product(
        names=("Tesla V100-SXM2-16GB", "Tesla V100-SXM2-32GB"),
        compute_capability=(7, 0),
        gigabytes_per_second=900,
        tflops={"fp64": 7.8, "fp32": 15.7, "fp16": 125},
        source=V100_SHEET,
    ),
    Product(
        names=("Tesla V100S-PCIE-32GB",),
        compute_capability=(7, 0),
        gigabytes_per_second=1134,
        tflops={"fp64": 8.2, "fp32": 16.4, "fp16": 130},
        source=V100_SHEET,
    ),
    Product(
        names=("Tesla T4",),
        compute_capability=(7, 5),
        gigabytes_per_second=320,  # 256 bits at 10 Gbit/s each
        tflops={"fp32": 8.1, "fp16": 65, "int8": 130},
        source=T4_SHEET,
    ),
    Product(
        names=("NVIDIA A100-PCIE-40GB", "NVIDIA A100-SXM4-40GB"),
        compute_capability=(8, 0),
        gigabytes_per_second=1555,
        tflops=_A100,
        source=A100_40GB_PAPER,
    ),
    Product(
        names=("NVIDIA A100 80GB PCIe",),
        compute_capability=(8, 0),
        gigabytes_per_second=1935,
        tflops=_A100,
        source=A100_SHEET,
    ),
    Product(
        names=("NVIDIA A100-SXM4-80GB",),
        compute_capability=(8, 0),
        gigabytes_per_second=2039,
        tflops=_A100,
        source=A100_SHEET,
    ),
    Product(
        names=("NVIDIA A30",),
        compute_capability=(8, 0),
        gigabytes_per_second=933,
        tflops={"fp64": 10.3, "fp32": 10.3, "tf32": 82, "fp16": 165, "bf16": 165, "int8": 330},
        source=A30_SHEET,
    ),
    Product(
        names=("NVIDIA A10",),
        compute_capability=(8, 6),
        gigabytes_per_second=600,
        tflops={"fp32": 31.2, "tf32": 62.5, "fp16": 125, "bf16": 125, "int8": 250},
        source=A10_SHEET,
    ),
    Product(
        names=("NVIDIA A40",),
        compute_capability=(8, 6),
        gigabytes_per_second=696,
        tflops={"fp32": 37.4, "tf32": 74.8, "fp16": 149.7, "bf16": 149.7, "int8": 299.3},
        source=A40_SHEET,
    ),
    Product(
        names=("NVIDIA GeForce RTX 3090",),
        compute_capability=(8, 6),
        gigabytes_per_second=936,
        tflops={"fp32": 35.6, "tf32": 35.6, "fp16": 142, "bf16": 71, "int8": 284},
        source=GA102_PAPER,
    ),
    Product(
        names=("NVIDIA L4",),
        compute_capability=(8, 9),
        gigabytes_per_second=300,
        tflops={"fp32": 30.3, "tf32": 60, "fp16": 121, "bf16": 121, "int8": 242.5, "fp8": 242.5},
        source=L4_SHEET,
    ),
    Product(
        names=("NVIDIA L40S",),
        compute_capability=(8, 9),
        gigabytes_per_second=864,
        tflops={"fp32": 91.6, "tf32": 183, "fp16": 362, "bf16": 362, "int8": 733, "fp8": 733},
        source=L40S_SHEET,
    ),
    Product(
        names=("NVIDIA GeForce RTX 4090",),
        compute_capability=(8, 9),
        gigabytes_per_second=1008,
        tflops={"fp32": 82.6, "tf32": 82.6, "fp16": 330.3, "bf16": 165.2, "int8": 660.6, "fp8": 660.6},
        source=ADA_PAPER,
    ),
    Product(
        names=("NVIDIA H100 PCIe",),
        compute_capability=(9, 0),
        gigabytes_per_second=2000,
        tflops={"fp64": 51, "fp32": 51, "tf32": 378, "fp16": 756.5, "bf16": 756.5, "int8": 1513, "fp8": 1513},
        source=H100_SHEET,
    ),
    Product(
        names=("NVIDIA H100 NVL",),
        compute_capability=(9, 0),
        gigabytes_per_second=3900,
        tflops=_H100_NVL,
        source=H100_SHEET,
    ),
    Product(
        names=("NVIDIA H100 80GB HBM3",),
        compute_capability=(9, 0),
        gigabytes_per_second=3350,
        tflops=_H100_SXM,
        source=H100_SHEET,
    ),
    Product(
        names=("NVIDIA H200",),
        compute_capability=(9, 0),
        gigabytes_per_second=4800,
        tflops=_H100_SXM,
        source=H200_SHEET,
    ),
    Product(
        names=("NVIDIA H200 NVL",),
        compute_capability=(9, 0),
        gigabytes_per_second=4800,
        tflops=_H100_NVL,
        source=H200_SHEET,
    ),
)
"""What a share can be taken of; the H100 with HBM3 is the SXM one, whose NVML name does not say so."""
