"""Upper bounds of the throughput: from the GPU's peak rate, and from the wait of a batch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

GIGA_MACS: Final = 4.4548
"""Multiply-adds of ConvNeXt-tiny with two labels for one picture of 224 x 224, in 1e9."""

PUBLISHED_GIGA_MACS: Final = 4.45
"""The published value, called GFLOPS there, because thop counts a multiply-add as one."""

PUBLISHED_TFLOPS: Final = {"fp32": 8.1, "fp16": 65.1}
"""A T4's peak rates in the published computation; 65.1 is a slip for 65."""

FLOPS_PER_MAC: Final = 2
"""A multiply-add is a multiplication and an addition; peak rates count both."""


PEAK_TFLOPS: Final[Mapping[str, Mapping[str, float]]] = {
    "Tesla V100-SXM2-32GB": {"fp32": 15.7, "fp16": 125},
    "Tesla T4": {"fp32": 8.1, "fp16": 65},
    "NVIDIA A30": {"fp32": 10.3, "fp16": 165, "bf16": 165},
    "NVIDIA A100-SXM4-80GB": {"fp32": 19.5, "fp16": 312, "bf16": 312},
    "NVIDIA L4": {"fp32": 30.3, "fp16": 121, "bf16": 121},
    "NVIDIA H100 80GB HBM3": {"fp32": 67, "fp16": 989.5, "bf16": 989.5},
    "NVIDIA H200": {"fp32": 67, "fp16": 989.5, "bf16": 989.5},
}
"""Dense rates of NVIDIA's data sheets in 1e12 operations a second, by NVML's name and by precision."""


def peak_tflops(product: str, precision: str, *, mig_profile: str | None = None) -> float | None:
    """The peak rate of a GPU; None if unknown, as for a part of one or for a precision without units."""
    return None if mig_profile else PEAK_TFLOPS.get(product, {}).get(precision)


def ceiling_per_second(peak_tflops: float, giga_macs: float) -> float:
    """Pictures a second of a GPU whose units do nothing else and never wait.

    Peak rate by operations of one picture (Williams and others, "Roofline", CACM 52, 2009: its flat roof).

    Args:
        peak_tflops: Dense peak rate in 1e12 operations a second; a multiply-add is two.
        giga_macs: Multiply-adds of one picture, in 1e9.
    """
    return peak_tflops * 1e12 / (FLOPS_PER_MAC * giga_macs * 1e9)


def ceiling_as_published(peak_tflops: float, giga_macs: float) -> float:
    """The published figure, twice the right one, because it takes multiply-adds for operations.

    The document prints 1820 and 14 640 pictures a second. These come from the time of one picture cut to three digits,
    and the result cut to tens.

    Args:
        peak_tflops: One of `PUBLISHED_TFLOPS`.
        giga_macs: Multiply-adds of one picture, in 1e9.
    """
    seconds = giga_macs * 1e9 / (peak_tflops * 1e12)
    unit = 10.0 ** (math.floor(math.log10(seconds)) - 2)
    return math.floor(1 / (math.floor(seconds / unit) * unit) / 10) * 10.0


def ceiling_of_timeout(users: int, batch_timeout_seconds: float) -> float:
    """Requests a second of one worker whose batches are never full, for users who wait for their answers.

    LitServe's worker collects a batch for the whole timeout, beginning when it is free instead of at a first request.
    So it makes at most 1/timeout batches a second, and no batch has two requests of one user. The bound does not hold
    for several workers, each with its own cycle: a request may go to a worker that is about to close its batch.

    Args:
        users: Requests in flight, fewer than a batch has.
        batch_timeout_seconds: Time for which the worker collects.
    """
    return users / batch_timeout_seconds


def efficiency(api_per_second: Iterable[float], model_per_second: Iterable[float]) -> float:
    """The server's best throughput over its concurrencies, as a share of the model's best over its batch sizes.

    Raises:
        ValueError: One of the two was not measured.
    """
    return max(api_per_second) / max(model_per_second)
